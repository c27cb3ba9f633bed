"""Bundles that somebody made to hurt whoever opens them: refused or neutralised, a line each.

Each is built from cells that ship, its lists made anew, and given to the command line.
"""

import gzip
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.estimates.schema import COLUMNS, SCHEMA
from analysis.estimates.table import Estimates
from analysis.records import records
from analysis.records.safe import read_json, read_table, read_text
from release import contents, manifest, merge, whole
from release.cells import Checked, examine
from release.contents import Attempt
from tests import warm
from tests.studio import REPOSITORY

SOURCE = REPOSITORY / "results" / "h200"
CELL = "2x_resnet152_imagenet_b32/paper_step/mps/r1"
OTHER = "2x_resnet152_imagenet_b32/paper_step/mps/r2"
ALONE = "1x_resnet152_imagenet_b32/paper_step/naive/r1"
CELLS = (ALONE, CELL, OTHER)
INSIDE = f"cells/{CELL}/a1"
LIMIT_S = 100  # far below derive's own; a command that hangs is killed, and the test fails
MOST = 3_000_000_000  # bytes of address space: what a bomb would fill


def run(*arguments: object) -> subprocess.CompletedProcess:
    """A command of the repository, without the memory that a bomb needs."""
    done = warm.run(*arguments, timeout=LIMIT_S, data=MOST)
    assert done.returncode >= 0, "it was killed"
    assert "Traceback" not in done.stderr, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Path:
    """A bundle as `contribute` makes them, but for what is merged."""
    folder = tmp_path_factory.mktemp("hostile") / "results" / "theirs"
    for cell in CELLS:
        shutil.copytree(SOURCE / "cells" / cell, folder / "cells" / cell)
    shutil.copytree(SOURCE / "datasets", folder / "datasets")
    plan = json.loads((SOURCE / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps([c for c in plan if c["id"] in CELLS]))
    lines = [f"results/theirs/cells/{cell}/a1/run.json\n" for cell in CELLS]
    (folder / "runs.txt").write_text("".join(lines))
    (folder / "not_run.txt").write_text("")
    (folder / "CONTRIBUTED.md").write_text("# theirs\n")
    shutil.copyfile(SOURCE / "estimates.parquet", folder / "estimates.parquet")
    return folder


@pytest.fixture
def bundle(honest, tmp_path) -> Path:
    return shutil.copytree(honest, tmp_path / "results" / "theirs")


def seal(folder: Path) -> None:
    """Lists as their maker would write them, where they can be."""
    manifest.write(folder, manifest.digests(folder))


def record(folder: Path, change, cell: str = CELL) -> None:
    path = folder / "cells" / cell / "a1" / "run.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def listed(line: str):
    return lambda folder: (folder / "runs.txt").write_text(f"{line}\n")


def fifo(name: str):
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(folder / name)

    return make


def link(name: str, to: str):
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)

    return make


def bomb(name: str, rows: int = 10**6, text: str = "", nested: bool = False):
    """A table that is small on disk: of one value or text again and again, or of one long list."""
    values = pa.nulls(rows, pa.int8() if nested else pa.int64())
    if text:
        indices = pa.array(np.zeros(rows, np.int32))
        values = pa.DictionaryArray.from_arrays(indices, pa.array([text]))
    elif nested:
        values = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), values)
    table = pa.table({"c": values})
    return lambda folder: pq.write_table(table, folder / name, compression="zstd")


def sparse(name: str):
    def make(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(10**13)

    return make


def written(name: str, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


TABLE = 10**6  # bytes that a table below may take
TEXT = "x" * 10**5  # which a column repeats
NESTED = b"[" * 200_000
# What is found in place of a file → who reads it, and what he says.
UNREAD = {
    "a FIFO": (fifo("x"), read_text, "no plain file"),
    "a link": (link("x", "/dev/zero"), read_text, "is a link"),
    "a sparse file": (sparse("x"), read_text, "no plain file of at most"),
    "nested": (written("x", NESTED), read_json, "x is nested too deeply"),
    "a number of a million digits": (written("x", b"9" * 10**6), read_json, "x: .*digits"),
    "no table": (written("x", b"PAR1" * 9), read_table, "x is no table"),
    "many rows": (bomb("x"), read_table, "would take more"),
    "one text": (bomb("x", text=TEXT), read_table, "would take more"),
    "one row": (bomb("x", 10**7, nested=True), read_table, "would take more"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_what_is_no_plain_file_of_bounded_size_is_not_read(tmp_path, case):
    make, read, said = UNREAD[case]
    make(tmp_path)
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "x", **({"most": TABLE} if read is read_table else {}))


TO_ROOT = "../" * 12


@pytest.mark.parametrize(
    "cell", [f"{TO_ROOT}dev/zero", f"a/b/c/r1/a1/{TO_ROOT}x", "../../../r1/a1/run.json"]
)
def test_a_list_of_records_names_nothing_else(tmp_path, cell):
    for line in (cell, f"{CELL}/log/run.json"):  # where no list looks
        listed(f"results/theirs/cells/{line}")(tmp_path)
        with pytest.raises(ValueError, match="runs.txt lists .* no record of a cell"):
            contents.listed(tmp_path)


def deep(folder: Path) -> None:
    there = folder / "cells"
    for _ in range(500):
        there = there / "d"
    there.mkdir(parents=True)


def named(name: bytes):
    def make(folder: Path) -> None:
        (folder / "tables").mkdir(exist_ok=True)
        Path(os.fsdecode(os.fsencode(folder / "tables") + b"/" + name)).write_text("1")

    return make


NOTHING = "derived from nothing"
# What is done to the bundle → what a line has to say: the file, and what is wrong.
REFUSED = {
    "traversal in runs.txt": (
        listed(f"results/theirs/cells/{TO_ROOT}dev/zero"),
        ("runs.txt", "no record of a cell"),
    ),
    "traversal in a list": (
        lambda folder: (folder / "raw.sha256").write_text(f"{'0' * 64}  {TO_ROOT}etc/passwd\n"),
        ("etc/passwd", "is missing"),
    ),
    "traversal in a record's files": (
        lambda folder: record(
            folder, lambda r: r["files"].update({TO_ROOT + "x": r["files"]["steps.parquet"]})
        ),
        (CELL, "is missing"),
    ),
    "a study that is a path": (
        lambda folder: record(folder, lambda r: r.update(study="../../x"), ALONE),
        ("runs.txt", "is no name"),
    ),
    "FIFO as run.json": (fifo(f"{INSIDE}/run.json"), (f"cell {CELL} a1: run.json", "not opened")),
    "FIFO as estimates": (fifo("estimates.parquet"), ("estimates.parquet", "not opened")),
    "FIFO as list": (fifo("raw.sha256"), ("raw.sha256", "no plain file")),
    "link to a device": (link(f"{INSIDE}/gpu.parquet", "/dev/zero"), ("gpu.parquet", "not opened")),
    "link as plan": (link("plan.json", "/etc/passwd"), ("plan.json", "not opened")),
    "link to a folder": (link("bench", "/"), ("bench", "not opened")),
    "bomb of readings": (
        bomb(f"{INSIDE}/gpu.parquet", text=TEXT),
        (CELL, "gpu.parquet would take more than"),
    ),
    "bomb of estimates": (
        bomb("estimates.parquet", text=TEXT),
        ("estimates.parquet", "would take more than"),
    ),
    "sparse file": (sparse("datasets/cifar10.json"), ("datasets/cifar10.json", "larger than")),
    "nested record": (written(f"{INSIDE}/run.json", NESTED), (CELL, "nested too deeply")),
    "plan of another kind": (written("plan.json", b'[{"id": []}]'), ("plan.json", "cannot be")),
    "folders within each other": (deep, ("cells/d/d", "within each other")),
    "a name that is no text": (named(b"\xff\xfe.md"), ("tables/\\udcff\\udcfe.md", NOTHING)),
    "a name with colours": (named(b"\x1b[2Jx.md"), ("tables/\\x1b[2Jx.md", NOTHING)),
    "a name of two lines": (named(b"x\nok raw files"), ("tables/x\\nok raw files", NOTHING)),
}


# What verify meets in one bundle, for it takes a while; all others are met alone.
TOGETHER = [
    ("traversal in runs.txt", "traversal in a record's files", "link as plan", "link to a folder"),
    ("FIFO as estimates", "FIFO as run.json", "sparse file"),
    ("bomb of readings", "bomb of estimates", "a name that is no text", "a name with colours")
    + ("a name of two lines",),
    ("nested record", "link to a device"),
    ("a study that is a path", "traversal in a list"),
    ("plan of another kind",),
    ("FIFO as list",),
    ("folders within each other",),
]
AFTER = ("a name", "traversal in a list", "FIFO", "link", "sparse", "folders")  # it was sealed


@pytest.mark.parametrize("names", TOGETHER, ids="; ".join)
def test_verify_refuses_each_with_a_line(bundle, names):
    for after in (False, True):
        for name in names:
            if name.startswith(AFTER) == after:
                REFUSED[name][0](bundle)
        if not after:
            seal(bundle)
    done = run("release", "verify", bundle)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stdout + done.stderr
    for name in names:
        found = [line for line in lines if all(part in line for part in REFUSED[name][1])]
        assert found and len(found) <= 3, "\n".join([name, *lines])


NESTED_DICTS = written(f"{INSIDE}/run.json", b'{"a":' * 900 + b"1" + b"}" * 900)
ZIPPED = written("datasets/x.json", gzip.compress(bytes(5 * 10**8), 1))
UNFIT = [
    [
        (fifo("datasets/x.json"), ("datasets/x.json", "not opened")),
        REFUSED["link as plan"],
    ],
    [(NESTED_DICTS, (CELL, "nested too deeply"))],
    [(ZIPPED, ("datasets/x.json", "unpacks to more than")), REFUSED["bomb of readings"]],
    [REFUSED["traversal in runs.txt"]],
]


@pytest.mark.parametrize("unfit", UNFIT)
def test_contribute_refuses_each_with_a_line(bundle, tmp_path, unfit):
    for make, _ in unfit:
        make(bundle)
    done = run("release", "contribute", bundle, "--output", tmp_path / "out.tar.gz")
    assert done.returncode == 1 and not (tmp_path / "out.tar.gz").exists()
    lines = done.stderr.splitlines()
    for _, said in unfit:
        assert any(all(part in line for part in said) for line in lines), done.stderr
    assert "no bundle was made" in lines[-1]


def packed(*entries: tuple[str, bytes, int]):
    """A bundle of these entries: name (or name and target of a link), type, size; of a large one
    the header alone.
    """

    def make(folder: Path) -> Path:
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            for name, kind, size in entries:
                entry = tarfile.TarInfo(name.partition(">")[0])
                entry.type, entry.linkname = kind, name.partition(">")[2]
                entry.size = size if kind == tarfile.REGTYPE else 0
                if entry.size < 10**6:
                    archive.addfile(entry, io.BytesIO(bytes(entry.size)))
                else:
                    tar.write(entry.tobuf())
        path = folder.with_suffix(".tar.gz")
        path.write_bytes(gzip.compress(tar.getvalue()))
        return path

    return make


OUT = "theirs/../../../escaped"
UNMERGED = {
    "link": (link(f"{INSIDE}/gpu.parquet", "/dev/zero"), "not opened"),
    "a path out of the bundle": (packed((OUT, tarfile.REGTYPE, 9)), "leads out"),
    "an absolute path": (packed(("/escaped", tarfile.REGTYPE, 9)), "leads out"),
    "a link in the bundle": (packed(("a>/etc", tarfile.SYMTYPE, 0)), "link"),
    "a hard link in the bundle": (packed(("a>/etc/passwd", tarfile.LNKTYPE, 0)), "link"),
    "a device in the bundle": (packed(("a", tarfile.CHRTYPE, 0)), "no plain file"),
    "one name twice": (packed(*2 * [("a/b", tarfile.REGTYPE, 9)]), "exists"),
    "more than is unpacked": (packed(("a", tarfile.REGTYPE, 10**11)), "unpacks to more"),
    "no archive": (lambda folder: folder / "plan.json", "gzip"),
    "nothing": (packed(), "it holds no cells"),
}


@pytest.mark.parametrize("name", UNMERGED)
def test_nothing_is_taken_in_of_what_leads_elsewhere(bundle, tmp_path, name):
    make, said = UNMERGED[name]
    source, scratch = make(bundle) or bundle, tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises((ValueError, OSError), match=said):
        merge.stage(merge.unpacked(source, scratch) if source.is_file() else source, scratch / "to")
    assert not list(tmp_path.rglob("*escaped*"))


def test_merge_refuses_with_one_line(bundle, tmp_path):
    source = UNMERGED["a path out of the bundle"][0](bundle)
    done = run("release", "merge", source, "--config", f"results={tmp_path}/ours", "study=h200")
    assert done.returncode == 1 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing is merged from") and "leads out" in line


def test_merge_leaves_each_out_with_one_line(bundle, tmp_path):
    NESTED_DICTS(bundle)
    bomb(f"cells/{OTHER}/a1/gpu.parquet", text=TEXT)(bundle)
    done = run("release", "merge", bundle, "--config", f"results={tmp_path}/ours")
    assert "1 attempts merged" in done.stdout, done.stderr
    lines = done.stderr.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"cell {CELL} a1", f"cell {OTHER} a1"]


def rows(**changed: object):
    """An estimates.parquet with a row that is not as it should be."""

    def make(folder: Path) -> None:
        base = {"quantity": "stp", "scenario": "2x_a_b1", "arm": "paper_step", "method": "mps"}
        row = dict.fromkeys(COLUMNS, "") | {"n": 1, "hosts": 1, "value": 1.0, "spread": "none"}
        row |= {"low": None, "high": None, "replicates": [], "source": "measured"} | base | changed
        schema = SCHEMA
        if isinstance(row["n"], str):
            place = SCHEMA.get_field_index("n")
            schema = SCHEMA.set(place, pa.field("n", pa.string()))
        pq.write_table(pa.Table.from_pylist([row], schema=schema), folder / "estimates.parquet")

    return make


NOT_COMPARED = {
    "FIFO": fifo("estimates.parquet"),
    "bomb": bomb("estimates.parquet", text=TEXT),
    "no scenario": rows(scenario=None),
    "scenario": rows(scenario="../../x"),
    "host": rows(host="\x1b[2J"),
    "spread": rows(spread="range"),
    "quantity": rows(quantity="=1+1"),
    "types": rows(n="1"),
}


@pytest.mark.parametrize("name", NOT_COMPARED)
def test_estimates_that_no_reader_could_rely_on_are_refused(tmp_path, name):
    NOT_COMPARED[name](tmp_path)
    with pytest.raises(ValueError, match=r"estimates\.parquet"):
        Estimates.read(tmp_path / "estimates.parquet")


def test_compare_refuses_them_with_one_line(bundle, tmp_path):
    NOT_COMPARED["host"](bundle)
    done = run("analysis", "compare", SOURCE, bundle, "--output", tmp_path / "out")
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    (line,) = done.stderr.splitlines()
    assert "estimates.parquet" in line


def examined(folder: Path) -> list[Checked]:
    found = manifest.digests(folder)
    own = {c: {Path(n).name: d for n, d in found.items() if f"/{c}/a1/" in n} for c in CELLS}
    return [examine(folder, Attempt(cell, 1), own[cell]) for cell in CELLS]


@pytest.mark.parametrize("jitter", [1, 3, 10])  # ticks of 10 µs
def test_a_copied_cell_with_jittered_times_is_named(honest, jitter):
    checked = examined(honest)
    assert list(whole._alike(checked)) == []
    one, _, other = (next(c for c in checked if c.attempt.cell == x) for x in (CELL, ALONE, OTHER))
    noise = np.random.default_rng(7)
    other.took = [took + noise.integers(-jitter, jitter + 1, len(took)) for took in one.took]
    (said,) = whole._alike(checked)
    assert f"{OTHER} a1" in said and f"{CELL} a1" in said and "rise and fall" in said


def test_losses_altered_in_the_warm_up_alone_are_named(honest):
    checked = examined(honest)
    assert list(whole._first_losses(checked)) == []
    key = next(key for key, _ in checked[1].first if key[-1] == 10)
    checked[1].first = [(k, 1.5 * v if k == key else v) for k, v in checked[1].first]
    said = list(whole._first_losses(checked))
    assert said and f"cell {CELL} a1" in said[0] and "at step 10 of its warm-up" in said[0]


def test_a_record_that_is_a_fifo_or_a_link_is_left_out(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    (tmp_path / "x.json").symlink_to("/dev/zero")
    found, problems = records.read_records([tmp_path / "run.json", tmp_path / "x.json"])
    assert found == [] and len(problems) == 2
