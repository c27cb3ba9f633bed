"""models.data: torchvision's classes read what is generated; sources, pins and folders."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.data import images as images_module
from models.data import open_dataset, prepare, readers
from models.data.__main__ import main
from models.data.base import DataError
from models.data.criteo import TABLE_ROWS
from models.data.images import fit, margin

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = {"cifar10": 200, "imagenet64": 96, "imagenet": 64, "criteo": 900}


def make(root: Path, name: str, **options):
    """A small generated dataset, opened."""
    options = {"source": "synthetic", "train": SMALL[name]} | options
    return open_dataset(name, prepare(name, root, **options)["path"])


@pytest.fixture(scope="module")
def data_root(tmp_path_factory) -> Path:
    """A data folder whose datasets the tests only read."""
    return tmp_path_factory.mktemp("data")


def digest(folder: Path) -> str:
    value = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        value.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return value.hexdigest()


def run(*arguments) -> int:
    return main(["prepare", *map(str, arguments)])


def refused(capsys, *arguments) -> str:
    """The one line of a command that fails."""
    capsys.readouterr()
    assert run(*arguments) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith(f"data: {arguments[0]}: ")
    return message


# -- what is read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "imagenet64", "imagenet"])
def test_files_are_augmented(data_root, name):
    dataset = make(data_root, name)
    train = dataset.files(32)
    assert len(train) == dataset.train_size == SMALL[name]
    image, label = train[3]
    assert image.shape == (3, 32, 32) and image.dtype == torch.uint8
    assert isinstance(label, int) and set(train.targets) == set(range(dataset.classes))
    assert not all(np.array_equal(image, train[3][0]) for _ in range(5))


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_resident_is_cached_and_mapped(data_root, name):
    dataset = make(data_root, name, input_sizes=[32, 64])
    for size in (32, 64):
        batch, side = dataset.resident(size, 40), margin(size)
        assert side >= size * 8 / 7 and side % 2 == 0
        assert batch["images"].shape == (40, 3, side, side)
        assert batch["images"].dtype == np.uint8 and batch["labels"].dtype == np.int64
        assert isinstance(batch["images"], np.memmap)
        everything = dataset.resident(size, 10**6)
        assert len(everything["images"]) == len(everything["labels"]) == dataset.train_size
    with pytest.raises(DataError, match=rf"prepare {name} --input-size 96"):
        dataset.resident(96, 40)
    if name == "cifar10":  # which is as large as the input: it is the file's in the middle
        source, resident = dataset.open(), dataset.resident(32, 10**6)
        known = dict(zip(map(np.ndarray.tobytes, source.data), source.targets, strict=True))
        centre = resident["images"][:, :, 3:35, 3:35].transpose(0, 2, 3, 1)
        labels = [known.pop(np.ascontiguousarray(image).tobytes()) for image in centre]
        assert labels == resident["labels"].tolist() and not known
        assert labels != source.targets  # shuffled: any leading part holds all classes


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


def test_digits_are_scikit_learns(tmp_path):
    from sklearn.datasets import load_digits

    record = prepare("digits", tmp_path)
    assert (record["source"], record["train_size"]) == ("real", 1437)
    train = open_dataset("digits", record["path"]).open()
    small = train.data.reshape(-1, 8, 4, 8, 4, 3).mean((2, 4, 5)).reshape(len(train), -1)[::29]
    # The nearest original of each image has its label and is almost it.
    distance = np.abs(small[:, None] - load_digits().data[None] * (255 / 16)).mean(2)
    assert load_digits().target[distance.argmin(1)].tolist() == train.targets[::29]
    assert distance.min(1).max() < 25


# -- what is generated -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SMALL))
def test_a_seed_reproduces_every_byte(tmp_path, name):
    few = {"train": 20, "input_sizes": [] if name == "criteo" else [32]}
    first, again, other = (
        digest(make(tmp_path / str(index), name, seed=seed, **few).folder)
        for index, seed in enumerate([1, 1, 2])
    )
    assert first == again != other


def test_generated_images_are_learnable(tmp_path):
    dataset = make(tmp_path, "cifar10", train=800)
    images, labels = dataset.open().data.reshape(800, -1) / 255, np.array(dataset.open().targets)
    (flat, other), (labels, true) = np.split(images, [600]), np.split(labels, [600])
    means = np.stack([flat[labels == label].mean(0) for label in range(dataset.classes)])
    nearest = ((other[:, None] - means[None]) ** 2).sum(2).argmin(1)
    assert (nearest == true).mean() > 0.5


def test_generated_clicks_are_learnable_and_zipf_like(tmp_path):
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    dataset = make(tmp_path, "criteo", train=40_000)  # more than are made at once
    clicks = dataset.resident(0, 10**6)
    dense, label, sparse = clicks["dense"], clicks["label"], clicks["sparse"]
    assert len(dense) == len(label) == len(sparse) == dataset.train_size == 40_000
    model = LogisticRegression(max_iter=500).fit(dense[:30_000], label[:30_000])
    score = model.predict_proba(dense[30_000:])[:, 1]
    assert roc_auc_score(label[30_000:], score) > 0.65
    assert 0.01 < label.mean() < 0.1
    assert (sparse.min(0) >= 0).all() and (sparse.max(0) < TABLE_ROWS).all()
    counts = np.sort(np.bincount(sparse[:, 1]))[::-1][:100]
    slope = np.polyfit(np.log(np.arange(1, 101)), np.log(counts), 1)[0]
    assert -1.5 < slope < -0.7


# -- sources, pins, messages -----------------------------------------------------------------------


def test_ready_and_pin_say_what_is_used(tmp_path, capsys):
    pin, ready = tmp_path / "pins/cifar10.json", tmp_path / "ready/cifar10.json"
    common = ["cifar10", "--root", tmp_path / "data", "--train", 40]
    assert run(*common, "--source", "synthetic", "--pin", pin, "--ready", ready) == 0
    record, pinned = json.loads(ready.read_text()), json.loads(pin.read_text())
    assert record == pinned | {"path": record["path"]} and Path(record["path"]).is_absolute()
    assert (record["train_size"], record["nominal_train_size"]) == (40, 50_000)
    assert str(tmp_path) not in (Path(record["path"]) / "manifest.json").read_text()
    assert str(tmp_path) not in pin.read_text()
    assert "synthetic, 40 samples" in capsys.readouterr().out


def test_the_source_found_first_stays(data_root, tmp_path, capsys):
    pin, ready = tmp_path / "pin.json", tmp_path / "ready.json"
    common = ["imagenet64", "--root", tmp_path, "--train", 32, "--pin", pin]
    common += ["--ready", ready]

    def source_found() -> str:
        assert run(*common) == 0
        return json.loads(ready.read_text())["source"]

    assert source_found() == "synthetic"  # auto, and nothing is there
    real = tmp_path / "imagenet64"
    shutil.copytree(make(data_root, "imagenet64").data, real)
    assert source_found() == "synthetic"
    assert json.loads(ready.read_text())["reason"] == json.loads(pin.read_text())["reason"]
    assert "pins 'synthetic'" in refused(capsys, *common, "--source", "real")
    pin.unlink()
    assert source_found() == "real"
    shutil.rmtree(real)
    assert f"remove {pin}" in refused(capsys, *common)


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("imagenet64", "real", "set source: auto or synthetic"),
        ("criteo", "real", "set source: auto or synthetic"),
        ("digits", "synthetic", "always real"),
    ],
)
def test_a_source_that_is_not_there_is_one_line(tmp_path, capsys, name, source, words):
    assert words in refused(capsys, name, "--root", tmp_path, "--source", source)
    assert not (tmp_path / "synthetic").exists()


def test_real_cifar10_is_the_published_one(data_root, tmp_path, capsys, monkeypatch):
    made = make(data_root, "cifar10")
    shutil.copytree(made.data / "cifar-10-batches-py", tmp_path / "cifar10/cifar-10-batches-py")
    assert "not the published CIFAR-10" in refused(capsys, "cifar10", "--root", tmp_path)
    monkeypatch.setattr(readers, "CIFAR10", readers.GeneratedCifar10)
    record = prepare("cifar10", tmp_path, input_sizes=[32])
    assert (record["source"], record["train_size"]) == ("real", 200)
    assert len(open_dataset("cifar10", record["path"]).resident(32, 10**6)["labels"]) == 200


def test_real_image_folder(data_root, tmp_path, capsys):
    real = tmp_path / "imagenet64"
    shutil.copytree(make(data_root, "imagenet64").data / "train", real / "train")
    before = digest(real)
    record = prepare("imagenet64", tmp_path, input_sizes=[64])
    assert (record["source"], record["train_size"]) == ("real", 96)
    assert len(open_dataset("imagenet64", record["path"]).resident(64, 999)["labels"]) == 96
    assert digest(real) == before

    # One more image is noticed, damage is named.
    first = next((real / "train/n00000001").iterdir())
    shutil.copy(first, first.with_name("another.png"))
    assert prepare("imagenet64", tmp_path)["train_size"] == 97
    first.write_bytes(b"no image")
    common = ["imagenet64", "--root", tmp_path]
    assert str(first) in refused(capsys, *common, "--input-size", 32)
    shutil.rmtree(real / "train")
    assert f"{real}/train" in refused(capsys, *common)
    assert not (tmp_path / "synthetic").exists()


@pytest.fixture
def photos(data_root, tmp_path) -> Path:
    """The class folders of a real image folder in tmp_path."""
    train = tmp_path / "imagenet64" / "train"
    shutil.copytree(make(data_root, "imagenet64").data / "train", train)
    return train


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def huge(path: Path) -> None:
    Image.new("1", (20_000, 10_000)).save(path)


@pytest.mark.parametrize("damage", [truncated, huge, Path.unlink])
def test_an_image_that_cannot_be_read_is_named(photos, tmp_path, capsys, damage):
    path = next((photos / "n00000002").iterdir())
    damage(path)
    if not path.exists():
        os.mkfifo(path)
    common = ["imagenet64", "--root", tmp_path]
    assert f"{path}: " in refused(capsys, *common, "--input-size", 64)


def test_hidden_folders_are_no_class_and_hold_no_image(photos, tmp_path):
    first = next((photos / "n00000001").iterdir())
    for place in (photos, photos / "n00000002"):
        (place / ".ipynb_checkpoints").mkdir()
        shutil.copy(first, place / ".ipynb_checkpoints" / first.name)
    record = prepare("imagenet64", tmp_path)
    assert (record["classes"], record["train_size"]) == (6, 96)


def test_an_image_that_was_replaced_is_decoded_again(photos, tmp_path):
    record = prepare("imagenet64", tmp_path, input_sizes=[64])
    path = next((photos / "n00000001").iterdir())
    with path.open("r+b") as file:  # in place: the folder's time stays
        file.truncate()
        Image.new("RGB", (64, 64), (255, 0, 0)).save(file, "png")
    assert prepare("imagenet64", tmp_path, input_sizes=[64])["bytes"] != record["bytes"]
    images = open_dataset("imagenet64", record["path"]).resident(64, 999)["images"]
    assert any((image[0] == 255).all() and not image[1:].any() for image in images)


def test_links_to_class_folders_count_what_they_hold(photos, tmp_path):
    size = sum(path.stat().st_size for path in photos.glob("*/*"))
    elsewhere = tmp_path / "elsewhere"
    for path in sorted(photos.iterdir()):
        shutil.move(path, elsewhere / path.name)
        path.symlink_to(elsewhere / path.name)
    assert prepare("imagenet64", tmp_path)["bytes"] == size > 0


def test_cifar10_that_is_not_unpacked_says_what_to_do(tmp_path, capsys):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz").write_bytes(b"x")
    line = refused(capsys, "cifar10", "--root", tmp_path)
    assert "cifar-10-batches-py" in line and "unpack" in line and "download" not in line


# -- folders: whole or absent ----------------------------------------------------------------------


def test_a_half_made_or_old_folder_is_made_again(tmp_path):
    few = {"train": 40, "input_sizes": [32]}
    made = make(tmp_path, "cifar10", **few)
    whole, manifest = digest(made.folder), made.folder / "manifest.json"
    before = manifest.stat().st_ino
    make(tmp_path, "cifar10", **few)
    assert manifest.stat().st_ino == before  # nothing to do
    for old in (None, {**made.manifest, "format_version": 0}):
        manifest.unlink()
        if old:
            manifest.write_text(json.dumps(old))
        with pytest.raises(DataError, match="not prepared"):
            open_dataset("cifar10", made.folder)
        make(tmp_path, "cifar10", **few)
        assert digest(made.folder) == whole


def test_two_prepares_at_once(tmp_path):
    command = [sys.executable, "-m", "models.data", "prepare", "criteo", "--root", tmp_path]
    command += ["--train", "9000", "--pin", tmp_path / "pin.json", "--ready"]
    both = [
        subprocess.Popen([*command, tmp_path / f"{index}.json"], cwd=REPOSITORY)
        for index in range(2)
    ]
    assert [process.wait() for process in both] == [0, 0]
    first, second = (json.loads((tmp_path / f"{index}.json").read_text()) for index in range(2))
    assert first == second
    assert len(open_dataset("criteo", first["path"]).resident(0, 10**6)["label"]) == 9000
    folders = [path.name for path in (tmp_path / "synthetic").iterdir() if path.is_dir()]
    assert folders == ["criteo-9000-seed42"]


def test_what_is_prepared_may_lie_where_nobody_can_write(data_root, monkeypatch):
    """Neither a folder nor a lock is asked for."""
    made = make(data_root, "imagenet64", input_sizes=[64])
    monkeypatch.setattr(Path, "mkdir", None)
    monkeypatch.setattr("models.data.base.fcntl", None)
    assert make(data_root, "imagenet64", input_sizes=[64]).manifest == made.manifest


def test_a_failed_build_leaves_nothing(tmp_path, monkeypatch, capsys):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(images_module, "write_batches", full)
    refused(capsys, "cifar10", "--root", tmp_path, "--source", "synthetic", "--train", 20)
    assert [path for path in (tmp_path / "synthetic").iterdir() if path.is_dir()] == []
