"""models.data: what is written is what the published formats hold, and is read back as it was."""

import csv
import gzip
import hashlib
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from models.data import DATASETS, DataError, open_dataset
from models.data import cifar10 as cifar10_module
from models.data.__main__ import main
from models.data.base import margin
from models.data.criteo import TABLE_ROWS, parse_hex
from models.data.images import fit
from models.data.prepare import prepare

REPOSITORY = Path(__file__).resolve().parent.parent
SMALL = {"cifar10": (200, 50), "imagenet64": (96, 24), "imagenet": (64, 16), "criteo": (900, 100)}


def make(root: Path, name: str, **options):
    """A small generated dataset, opened."""
    train, validation = SMALL[name]
    options = {"source": "synthetic", "train": train, "validation": validation} | options
    return open_dataset(name, prepare(DATASETS[name], root, **options)["path"])


@pytest.fixture(scope="module")
def data_root(tmp_path_factory) -> Path:
    """A data folder whose datasets the tests only read."""
    return tmp_path_factory.mktemp("data")


def digest(folder: Path) -> str:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    value = hashlib.sha256()
    for path in paths:
        value.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return value.hexdigest()


def unchecked_cifar10():
    """torchvision's CIFAR10 without its md5 checks."""
    from models import compat  # noqa: F401

    from torchvision.datasets import CIFAR10  # isort: skip

    class Unchecked(CIFAR10):
        train_list = [[name, None] for name, _ in CIFAR10.train_list]
        test_list = [[name, None] for name, _ in CIFAR10.test_list]
        meta = {**CIFAR10.meta, "md5": None}

    return Unchecked


# Formats and round trips


def test_generated_cifar10_is_read_by_torchvision(data_root):
    ours = make(data_root, "cifar10")
    for split, train in (("train", True), ("validation", False)):
        theirs = unchecked_cifar10()(ours.data, train=train, download=False)
        mine = ours.open(split)
        assert len(theirs) == len(mine.labels) == ours.manifest[f"{split}_size"]
        assert np.array_equal(theirs.data, mine.pixels)
        assert theirs.targets == mine.labels.tolist()
        assert np.bincount(mine.labels).tolist() == [ours.manifest[f"{split}_size"] // 10] * 10


def test_cifar10_is_read_as_python_2_pickled_it(tmp_path):
    """As the published files are: bytes were strings (opcode T instead of B)."""
    made = make(tmp_path, "cifar10")
    before = made.open("validation").pixels
    path = made.data / "cifar-10-batches-py/test_batch"
    size = (50 * 3072).to_bytes(4, "little")
    content = path.read_bytes()
    assert content.count(b"B" + size) == 1
    path.write_bytes(content.replace(b"B" + size, b"T" + size))
    assert np.array_equal(made.open("validation").pixels, before)


def test_generated_image_folder_is_read_by_torchvision(data_root):
    from models import compat  # noqa: F401

    from torchvision.datasets import ImageFolder  # isort: skip

    ours = make(data_root, "imagenet64")
    for split, folder in (("train", "train"), ("validation", "val")):
        theirs = ImageFolder(ours.data / folder)
        mine = ours.open(split)
        paths = [str(mine.folder / os.fsdecode(path)) for path in mine.paths]
        assert list(zip(paths, mine.labels.tolist(), strict=True)) == theirs.samples
        assert len(theirs.classes) == ours.classes


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_files_augment_training_only(data_root, name):
    dataset = make(data_root, name)
    train, validation = dataset.files("train", 32), dataset.files("validation", 32)
    assert (len(train), len(validation)) == (dataset.train_size, dataset.validation_size)
    image, label = train[3]
    assert image.shape == (3, 32, 32) and image.dtype == torch.uint8
    assert isinstance(label, int) and 0 <= label < dataset.classes
    assert np.array_equal(validation[3][0], validation[3][0])
    assert not all(np.array_equal(image, train[3][0]) for _ in range(5))


def test_digits_are_scikit_learns_and_need_no_torch(tmp_path):
    from sklearn.datasets import load_digits

    program = (
        "import sys; from models.data.__main__ import main; "
        "sys.exit(main(['prepare', 'digits', *sys.argv[1:]]) or 'torch' in sys.modules)"
    )
    where = ["--root", tmp_path, "--input-size", "32", "--ready", tmp_path / "ready.json"]
    subprocess.run([sys.executable, "-c", program, *where], cwd=REPOSITORY, check=True)
    record = json.loads((tmp_path / "ready.json").read_text())
    assert (record["source"], record["classes"]) == ("real", 10)
    assert (record["train_size"], record["validation_size"]) == (1437, 360)
    dataset = open_dataset("digits", record["path"])
    parts = [dataset.open(split) for split in ("train", "validation")]
    labels = np.concatenate([part.labels for part in parts])
    assert np.array_equal(np.bincount(labels), np.bincount(load_digits().target))
    assert np.bincount(parts[1].labels).min() >= 34  # stratified
    pixels = np.concatenate([part.pixels for part in parts])
    small = pixels.reshape(-1, 8, 4, 8, 4, 3).mean((2, 4, 5)).reshape(len(pixels), -1)
    real = load_digits().data * (255 / 16)
    # The nearest original of each image has its label and is almost it.
    chosen = np.arange(0, len(small), 29)
    distance = np.abs(small[chosen, None] - real[None]).mean(2)
    assert np.array_equal(load_digits().target[distance.argmin(1)], labels[chosen])
    assert distance.min(1).max() < 25


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_resident_is_cached_and_mapped(data_root, name):
    dataset = make(data_root, name, input_sizes=[32, 64])
    for size in (32, 64):
        batch = dataset.resident("train", size, 40)
        side = margin(size)
        assert side >= size * 8 / 7 and side % 2 == 0
        assert batch["images"].shape == (40, 3, side, side)
        assert batch["images"].dtype == np.uint8 and batch["labels"].dtype == np.int64
        assert isinstance(batch["images"], np.memmap)
        everything = dataset.resident("validation", size, 10**6)
        assert len(everything["images"]) == len(everything["labels"]) == dataset.validation_size
    with pytest.raises(DataError, match=rf"prepare {name} --input-size 96"):
        dataset.resident("train", 96, 40)
    if name == "cifar10":  # which is as large as the input: it is the file's in the middle
        source, resident = dataset.open("train"), dataset.resident("train", 32, 10**6)
        known = dict(zip(map(np.ndarray.tobytes, source.pixels), source.labels, strict=True))
        centre = resident["images"][:, :, 3:35, 3:35].transpose(0, 2, 3, 1)
        labels = [known.pop(np.ascontiguousarray(image).tobytes()) for image in centre]
        assert labels == resident["labels"].tolist() and not known


@settings(max_examples=60)
@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    side=st.integers(2, 60),
    colour=st.tuples(*[st.integers(0, 255)] * 3),
)
def test_fit_gives_the_side_and_invents_no_colour(width, height, side, colour):
    pixels = fit(Image.new("RGB", (width, height), colour), side)
    assert pixels.shape == (3, side, side)
    assert np.array_equal(np.unique(pixels.reshape(3, -1), axis=1)[:, 0], colour)


# Criteo

FIXTURE = [
    ["1", *map(str, range(13)), *[f"{n:08x}" for n in range(26)]],
    ["0", *[""] * 13, *[""] * 26],
    ["0", "-1", "-2", "", *["1000000"] * 10, "ffffffff", "FF", "0", "", *["80000000"] * 22],
    ["1", *["5"] * 13, "a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdef0", *["1b"] * 19],
]


def write_fixture(folder: Path) -> None:
    folder.mkdir(parents=True)
    days = {"day_0": FIXTURE[:1], "day_2.gz": FIXTURE[1:3], "day_10": FIXTURE[3:]}
    for name, rows in days.items():
        opener = gzip.open if name.endswith("gz") else open
        with opener(folder / name, "wt", newline="") as file:
            csv.writer(file, delimiter="\t", lineterminator="\n").writerows(rows)


def test_criteo_text_is_read_back_exactly(tmp_path):
    write_fixture(tmp_path / "criteo")
    record = prepare(DATASETS["criteo"], tmp_path, train=3, validation=1)
    assert record["source"] == "real" and record["classes"] == 2
    assert (record["train_size"], record["validation_size"]) == (3, 1)
    assert record["nominal_train_size"] == 4_195_197_692
    dataset = open_dataset("criteo", record["path"])
    parts = [dataset.resident(split, 0, 10) for split in ("train", "validation")]
    got = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    types = {key: array.dtype for key, array in got.items()}
    assert types == {"dense": np.float32, "sparse": np.int64, "label": np.float32}
    assert got["label"].tolist() == [1, 0, 0, 1]
    assert got["sparse"].tolist() == [[int(x or "0", 16) for x in row[14:]] for row in FIXTURE]
    numbers = [[max(int(x or "0"), 0) for x in row[1:14]] for row in FIXTURE]
    assert np.allclose(got["dense"], np.log1p(numbers), rtol=1e-6)
    record = prepare(DATASETS["criteo"], tmp_path, train=1, validation=1)  # no more than asked
    dataset = open_dataset("criteo", record["path"])
    assert dataset.resident("validation", 0, 9)["label"].tolist() == [0]
    record = prepare(DATASETS["criteo"], tmp_path, train=300, validation=100)  # has 4
    assert (record["train_size"], record["validation_size"]) == (3, 1)


@settings(max_examples=60)
@given(st.lists(st.one_of(st.none(), st.integers(0, 2**32 - 1)), min_size=1, max_size=30))
def test_hexadecimal_round_trip(values):
    text = pa.array([None if value is None else f"{value:x}" for value in values], pa.string())
    assert parse_hex(text).tolist() == [value or 0 for value in values]
    assert parse_hex(text.slice(1)).tolist() == [value or 0 for value in values[1:]]


@pytest.mark.parametrize(
    "texts", [["12", "1g"], ["123456789"], ["123456789", "1234567 "], ["1 "], ["0x1"], ["é"]]
)
def test_what_is_not_hexadecimal_is_refused(texts):
    with pytest.raises(ValueError):
        parse_hex(pa.array(texts))


@pytest.mark.parametrize(
    "line",
    [
        "1\t2\t3\n",
        "1" + "\tx" * 39 + "\n",
        "1" + "\t2" * 13 + "\tzz" * 26 + "\n",
        "\n",
        "",
        b"\x1f\x8b\x08 not gzip at all",
    ],
)
def test_damaged_criteo_is_refused(tmp_path, line):
    (tmp_path / "criteo").mkdir()
    text = "\t".join(FIXTURE[0]) + "\n" + line if isinstance(line, str) and line else ""
    (tmp_path / "criteo" / "day_0").write_text(text)
    if isinstance(line, bytes):
        (tmp_path / "criteo" / "day_2.gz").write_bytes(line)
    with pytest.raises(DataError) as caught:
        prepare(DATASETS["criteo"], tmp_path)
    assert "criteo" in str(caught.value) and "\n" not in str(caught.value)
    assert not list((tmp_path / "prepared").glob("criteo*"))


# Generated


def test_generated_images_are_learnable(tmp_path):
    dataset = make(tmp_path, "cifar10", input_sizes=[32], train=600, validation=200)
    train, validation = (dataset.resident(split, 32, 600) for split in ("train", "validation"))
    flat = [part["images"].reshape(len(part["images"]), -1) / 255 for part in (train, validation)]
    labels = range(dataset.classes)
    means = np.stack([flat[0][train["labels"] == label].mean(0) for label in labels])
    nearest = ((flat[1][:, None] - means[None]) ** 2).sum(2).argmin(1)
    assert (nearest == validation["labels"]).mean() > 0.5


def test_generated_clicks_are_learnable_and_zipf_like(tmp_path):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    dataset = make(tmp_path, "criteo", train=30_000, validation=8_000)
    train, validation = (dataset.resident(split, 0, 30_000) for split in ("train", "validation"))
    model = LogisticRegression(max_iter=500).fit(train["dense"], train["label"])
    score = model.predict_proba(validation["dense"])[:, 1]
    assert roc_auc_score(validation["label"], score) > 0.65
    assert 0.01 < train["label"].mean() < 0.1
    sparse = train["sparse"]
    assert (sparse.min(0) >= 0).all() and (sparse.max(0) < TABLE_ROWS).all()
    counts = np.sort(np.bincount(sparse[:, 1]))[::-1][:100]
    slope = np.polyfit(np.log(np.arange(1, 101)), np.log(counts), 1)[0]
    assert -1.5 < slope < -0.7


def test_photographs_have_imagenets_sizes(data_root):
    dataset = make(data_root, "imagenet")
    paths = sorted((dataset.data / "train").rglob("*.JPEG"))
    sizes = np.array([path.stat().st_size for path in paths])
    shapes = np.array([Image.open(path).size for path in paths])
    assert len(paths) == 64 and 90e3 < sizes.mean() < 130e3
    assert 440 < shapes[:, 0].mean() < 540 and 340 < shapes[:, 1].mean() < 440
    assert np.median(shapes.max(1)) == 500


# Seeds


@pytest.mark.parametrize("name", list(SMALL))
def test_a_seed_reproduces_every_byte(tmp_path, name):
    size = 0 if name == "criteo" else 32
    few = {"train": 20, "validation": 10}
    folders = [
        make(tmp_path / str(index), name, seed=seed, input_sizes=[size], **few).folder
        for index, seed in enumerate([1, 1, 2])
    ]
    first, again, other = (digest(folder) for folder in folders)
    assert first == again != other


# Sources, pins, messages


def run(*arguments) -> int:
    return main(["prepare", *map(str, arguments)])


def test_ready_and_pin(tmp_path, capsys):
    pin, ready = tmp_path / "pins/cifar10.json", tmp_path / "ready/cifar10.json"
    common = ["cifar10", "--root", tmp_path / "data", "--train", 40, "--validation", 20]
    assert run(*common, "--source", "synthetic", "--pin", pin, "--ready", ready) == 0
    record, pinned = json.loads(ready.read_text()), json.loads(pin.read_text())
    assert {key: record[key] for key in pinned} == pinned
    assert set(record) - set(pinned) == {"path"} and Path(record["path"]).is_absolute()
    assert (record["train_size"], record["nominal_train_size"]) == (40, 50_000)
    manifest = (Path(record["path"]) / "manifest.json").read_text()
    assert str(tmp_path) not in manifest + pin.read_text()
    assert "synthetic, 40 + 20" in capsys.readouterr().out


def test_the_source_resolved_first_stays(tmp_path, capsys):
    pin = tmp_path / "pin.json"
    common = ["criteo", "--root", tmp_path, "--train", 60, "--validation", 20, "--pin", pin]
    assert run(*common) == 0  # auto, nothing there: generated
    assert json.loads(pin.read_text())["source"] == "synthetic"
    write_fixture(tmp_path / "criteo")
    before = pin.read_text()
    ready = tmp_path / "ready.json"
    assert run(*common, "--ready", ready) == 0
    assert json.loads(ready.read_text())["source"] == "synthetic" and pin.read_text() == before
    capsys.readouterr()
    assert run(*common, "--source", "real") == 2
    message = capsys.readouterr().err
    assert "pins 'synthetic'" in message and "remove the pin" in message

    pin.unlink()
    assert run(*common, "--ready", ready) == 0
    assert json.loads(ready.read_text())["source"] == "real"
    shutil.rmtree(tmp_path / "criteo")
    capsys.readouterr()
    assert run(*common) == 2  # pinned real, but gone
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "pins 'real'" in message
    assert "put Criteo" in message and "remove the pin" in message


@pytest.mark.parametrize("name", ["imagenet64", "criteo"])
def test_real_refuses_to_generate(tmp_path, capsys, name):
    assert run(name, "--root", tmp_path, "--source", "real") == 2
    message = capsys.readouterr().err
    assert message.startswith(f"data: {name}: source is 'real' but {tmp_path / name} has no ")
    assert "put " in message and "set source: auto or synthetic" in message
    assert message.count("\n") == 1 and not (tmp_path / "synthetic").exists()
    assert run("digits", "--root", tmp_path, "--source", "synthetic") == 2
    assert "always real" in capsys.readouterr().err


@pytest.mark.parametrize("silent", [False, True])
def test_no_network_falls_back_or_refuses(tmp_path, capsys, monkeypatch, silent):
    """A download's address that refuses connections, and one that accepts and says nothing."""
    common = ["cifar10", "--root", tmp_path, "--train", 20, "--validation", 10]
    monkeypatch.setattr(cifar10_module, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] if silent else 9
        monkeypatch.setattr(cifar10_module, "URL", f"http://127.0.0.1:{port}/x.tar.gz")
        assert run(*common, "--source", "real") == 2
        assert "could not be downloaded" in capsys.readouterr().err
        assert run(*common) == 0
    out = capsys.readouterr().out
    assert "synthetic" in out and "could not be downloaded" in out
    assert not (tmp_path / "cifar10").exists()
    monkeypatch.setattr(DATASETS["cifar10"], "download", None)
    assert make(tmp_path, "cifar10").source == "synthetic"  # which never asks


def published(monkeypatch) -> None:
    """Makes torchvision take generated files for the published ones."""
    from models import compat  # noqa: F401

    from torchvision.datasets import CIFAR10  # isort: skip

    for attribute in ("train_list", "test_list", "meta"):
        monkeypatch.setattr(CIFAR10, attribute, getattr(unchecked_cifar10(), attribute))


def test_cifar10_is_downloaded_once_and_checked(data_root, tmp_path, monkeypatch, capsys):
    made = make(data_root, "cifar10")
    archive = tmp_path / "archive.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(made.data / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(cifar10_module, "URL", archive.as_uri())
    root = tmp_path / "data"
    record = prepare(DATASETS["cifar10"], root, train=20, validation=10)
    assert record["source"] == "synthetic" and "another md5" in record["reason"]
    shutil.copytree(made.data / "cifar-10-batches-py", tmp_path / "cifar10/cifar-10-batches-py")
    assert run("cifar10", "--root", tmp_path) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "not the published CIFAR-10" in message
    published(monkeypatch)
    record = prepare(DATASETS["cifar10"], root, input_sizes=[32])
    assert (record["source"], record["reason"]) == ("real", "downloaded")
    archive.unlink()
    assert prepare(DATASETS["cifar10"], root)["reason"] == "found in the data folder"
    dataset = open_dataset("cifar10", record["path"])
    assert np.array_equal(dataset.open("train").pixels, made.open("train").pixels)
    assert len(dataset.resident("validation", 32, 10**6)["labels"]) == 50
    assert [path.name for path in (root / "cifar10").iterdir()] == ["cifar-10-batches-py"]


def test_real_image_folder(data_root, tmp_path, capsys):
    made = make(data_root, "imagenet64")
    real = tmp_path / "imagenet64"
    for folder in ("train", "val"):
        shutil.copytree(made.data / folder, real / folder)
    before = digest(real)
    record = prepare(DATASETS["imagenet64"], tmp_path, input_sizes=[64])
    assert (record["source"], record["train_size"]) == ("real", 96)
    dataset = open_dataset("imagenet64", record["path"])
    assert len(dataset.resident("train", 64, 999)["labels"]) == 96
    assert digest(real) == before

    # One more image is noticed.
    first = next((real / "train/n00000001").iterdir())
    shutil.copy(first, first.with_name("another.png"))
    assert prepare(DATASETS["imagenet64"], tmp_path)["train_size"] == 97

    # Damage is named, not papered over.
    first.write_bytes(b"no image")
    (real / "train/n00000001/another.png").unlink()
    assert run("imagenet64", "--root", tmp_path, "--input-size", 32) == 2
    assert f"{first} cannot be decoded" in capsys.readouterr().err
    shutil.rmtree(real / "val/n00000002")
    assert run("imagenet64", "--root", tmp_path) == 2
    assert "n00000002 is not in both" in capsys.readouterr().err
    shutil.rmtree(real / "val")
    assert run("imagenet64", "--root", tmp_path) == 2
    assert "not both train/ and val/" in capsys.readouterr().err
    assert not (tmp_path / "synthetic").exists()


# Folders: whole or absent


def test_a_half_made_or_old_folder_is_rebuilt(tmp_path):
    few = {"train": 40, "validation": 10, "input_sizes": [32]}
    made = make(tmp_path, "cifar10", **few)
    whole, manifest = digest(made.folder), made.folder / "manifest.json"

    def stamp() -> int:
        return manifest.stat().st_ino

    before = stamp()
    make(tmp_path, "cifar10", **few)
    assert stamp() == before  # nothing to do

    manifest.unlink()
    with pytest.raises(DataError, match="not prepared"):
        open_dataset("cifar10", made.folder)
    make(tmp_path, "cifar10", **few)
    assert digest(made.folder) == whole

    manifest.write_text(json.dumps({**made.manifest, "format_version": 0}))
    for name, words in {"cifar10": "format version 0", "criteo": "holds 'cifar10'"}.items():
        with pytest.raises(DataError, match=words):
            open_dataset(name, made.folder)
    make(tmp_path, "cifar10", **few)
    assert digest(made.folder) == whole

    (made.folder / "cifar-10-batches-py/test_batch").write_bytes(b"")
    with pytest.raises(DataError, match="test_batch"):
        made.open("validation")
    leftover = made.folder.parent / f".{made.folder.name}.tmp-dead"
    leftover.mkdir()
    make(tmp_path, "cifar10", **few)
    assert digest(made.folder) == whole and not leftover.exists()


class Planted:
    """Runs a command when it is unpickled, in the place of what is pickled."""

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_3"),
        ("cifar10", "cifar-10-batches-py/data_batch_3: an array of objects"),
        ("cifar10", "resident-32/train_images.npy"),
        ("criteo", "label.npy"),
    ],
)
def test_a_planted_file_is_refused_and_runs_nothing(tmp_path, name, file):
    made = make(tmp_path, name, input_sizes=[32], train=20, validation=10)
    file, _, objects = file.partition(":")
    target, planted = made.folder / file, Planted()
    planted.mark = tmp_path / "ran"
    if target.suffix == ".npy" or objects:
        planted = np.array([planted] * 3, object)
    if target.suffix == ".npy":
        np.save(target, planted)
    else:
        batch = {"data": planted, "labels": [0]} if objects else planted
        target.write_bytes(pickle.dumps(batch, protocol=4))
    with pytest.raises(DataError) as caught:
        made.open("train") if name != "criteo" and "resident" not in file else None
        made.resident("train", 32, 10)
    assert str(target) in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_two_prepares_at_once(tmp_path):
    command = [sys.executable, "-m", "models.data", "prepare", "criteo", "--root", tmp_path]
    command += ["--train", "9000", "--validation", "30", "--pin", tmp_path / "pin.json", "--ready"]
    both = [
        subprocess.Popen([*command, tmp_path / f"{index}.json"], cwd=REPOSITORY)
        for index in range(2)
    ]
    assert [process.wait() for process in both] == [0, 0]
    first, second = (json.loads((tmp_path / f"{index}.json").read_text()) for index in range(2))
    assert first == second
    dataset = open_dataset("criteo", first["path"])
    assert len(dataset.resident("train", 0, 10**6)["label"]) == 9000
    folders = [path.name for path in (tmp_path / "synthetic").iterdir() if path.is_dir()]
    assert folders == ["criteo-9000+30-seed42"]


def test_what_is_prepared_may_lie_where_nobody_can_write(tmp_path):
    with tempfile.TemporaryDirectory() as place:  # all may look into it, other than into tmp_path
        root, ready = Path(place, "data"), Path(place, "ready.json")
        common = ["imagenet64", "--root", root, "--source", "synthetic", "--train", 32]
        common += ["--validation", 8, "--input-size", 64]
        assert run(*common, "--ready", ready) == 0
        own, before = os.geteuid(), ready.read_bytes()
        folders = [Path(place), *(path for path in root.rglob("*") if path.is_dir()), root]
        for folder in folders:
            folder.chmod(0o555)
        for lock in root.rglob(".*.lock"):
            lock.chmod(0o444)
        try:
            os.seteuid(own or 65534)  # nothing is read-only to root
            assert run(*common) == 0
            assert run(*common, "--train", 33) == 2, "and what is not prepared cannot be"
        finally:
            os.seteuid(own)
            for folder in folders:
                folder.chmod(0o755)
        assert ready.read_bytes() == before


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cifar10_module, "write_batches", full)
    common = ["cifar10", "--root", tmp_path, "--source", "synthetic", "--train", 20]
    assert run(*common, "--validation", 10) == 2
    assert [path for path in (tmp_path / "synthetic").iterdir() if path.is_dir()] == []
