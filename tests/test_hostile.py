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
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.estimates.schema import COLUMNS, SCHEMA
from analysis.records import records
from release import manifest, whole
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


def record(folder: Path, change) -> None:
    path = folder / INSIDE / "run.json"
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


def hidden_fifo(folder: Path) -> None:
    """Where no list looks, and named as a record."""
    fifo(f"cells/{CELL}/log/run.json")(folder)
    listed(f"results/theirs/cells/{CELL}/log/run.json")(folder)


def link(name: str, to: str):
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)

    return make


@cache
def packed_table(rows: int, columns: int = 1, text: str = "", nested: bool = False) -> bytes:
    """A table that is small on disk: of one value or text again and again, or of one long list."""
    values, out = pa.nulls(rows, pa.int8() if nested else pa.int64()), io.BytesIO()
    if text:
        indices = pa.array(np.zeros(rows, np.int32))
        values = pa.DictionaryArray.from_arrays(indices, pa.array([text]))
    elif nested:
        values = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), values)
    pq.write_table(pa.table({f"c{i}": values for i in range(columns)}), out, compression="zstd")
    assert len(out.getvalue()) < 20_000_000
    return out.getvalue()


def bomb(name: str, **of: object):
    return lambda folder: (folder / name).write_bytes(packed_table(**of))


def sparse(name: str):
    def make(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(10**13)

    return make


def written(name: str, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


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


TO_ROOT = "../" * 12
NOTHING = "derived from nothing"
NESTED = b"[" * 200_000
# What is done to the bundle → what a line has to say: the file, and what is wrong.
REFUSED = {
    "traversal in runs.txt": (
        listed(f"results/theirs/cells/{TO_ROOT}dev/zero"),
        ("runs.txt", "no record of a cell"),
    ),
    "traversal behind a cell": (
        listed(f"results/theirs/cells/a/b/c/r1/a1/{TO_ROOT}dev/zero"),
        ("runs.txt", "no record of a cell"),
    ),
    "traversal as a cell": (
        listed("results/theirs/cells/../../../r1/a1/run.json"),
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
        lambda folder: record_first(folder, study="../../x"),
        ("runs.txt", "is no name"),
    ),
    "FIFO as run.json": (fifo(f"{INSIDE}/run.json"), (f"cell {CELL} a1: run.json", "not opened")),
    "FIFO as estimates": (fifo("estimates.parquet"), ("estimates.parquet", "not opened")),
    "FIFO as list": (fifo("raw.sha256"), ("raw.sha256", "no plain file")),
    "FIFO as plan": (fifo("plan.json"), ("plan.json", "not opened")),
    "FIFO where nobody looks": (hidden_fifo, ("runs.txt", "no record of a cell")),
    "link to a device": (link(f"{INSIDE}/gpu.parquet", "/dev/zero"), ("gpu.parquet", "not opened")),
    "link as plan": (link("plan.json", "/etc/passwd"), ("plan.json", "not opened")),
    "link to a folder": (link("bench", "/"), ("bench", "not opened")),
    "link as list": (link("raw.sha256", "/etc/passwd"), ("raw.sha256", "link")),
    "parquet bomb of steps": (
        bomb(f"{INSIDE}/steps.parquet", rows=2 * 10**8, columns=2),
        (CELL, "steps.parquet would take more than"),
    ),
    "parquet bomb of one text": (
        bomb(f"{INSIDE}/gpu.parquet", rows=10**6, text="x" * 10**5),
        (CELL, "gpu.parquet would take more than"),
    ),
    "parquet bomb of one row": (
        bomb("estimates.parquet", rows=10**8, nested=True),
        ("estimates.parquet", "would take more than"),
    ),
    "sparse file": (sparse("datasets/cifar10.json"), ("datasets/cifar10.json", "larger than")),
    "nested record": (written(f"{INSIDE}/run.json", NESTED), (CELL, "nested too deeply")),
    "nested plan": (written("plan.json", NESTED), ("plan.json", "nested too deeply")),
    "plan of another kind": (written("plan.json", b'[{"id": []}]'), ("plan.json", "cannot be")),
    "a number of a million digits": (
        written("plan.json", b"[" + b"9" * 10**6 + b"]"),
        ("plan.json", "digits"),
    ),
    "folders within each other": (deep, ("cells/d/d", "within each other")),
    "a name that is no text": (named(b"\xff\xfe.md"), ("tables/\\udcff\\udcfe.md", NOTHING)),
    "a name with colours": (named(b"\x1b[2Jx.md"), ("tables/\\x1b[2Jx.md", NOTHING)),
    "a name of two lines": (named(b"x\nok raw files"), ("tables/x\\nok raw files", NOTHING)),
}


def record_first(folder: Path, **changed: object) -> None:
    path = folder / "cells" / ALONE / "a1" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


# What verify meets in one bundle, for it takes a while; all others are met alone.
TOGETHER = [
    ("traversal in runs.txt", "traversal in a record's files"),
    ("traversal behind a cell", "parquet bomb of steps"),
    ("traversal as a cell", "parquet bomb of one text"),
    ("nested plan", "nested record"),
    ("parquet bomb of one row", "a name that is no text", "a name with colours")
    + ("a name of two lines",),
]
TOGETHER += [(name,) for name in REFUSED if not any(name in names for names in TOGETHER)]
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
    assert "ok raw files" not in [line[:12] for line in lines if line.endswith("raw files")]


PRIVATE = {
    "path": "/".join(("", "home", "somebody", "data")),
    "Windows path": "\\".join(("C:", "Users", "somebody")),
    "URL of a file": "file:" + "/" * 3 + "elsewhere/x",
    "process": "PID 12 (their_tool, {} {})".format("owner", ".".join(("bob", "smith"))),
    "owner": " ".join(("owner", ".".join(("bob", "smith")))),
    "e-mail": "@".join(("bob", "uni.example")),
    "hardware address": ":".join(("aa", "bb", "cc", "dd", "ee", "0f")),
    "host": ".".join(("gpu17", "cluster", "example", "edu")),
    "IPv4": ".".join(("10", "20", "30", "40")),
    "IPv6": ":".join(("2001", "db8", "", "17")),
}


def test_private_data_is_taken_out_of_records_and_refused_elsewhere(bundle, tmp_path):
    out = tmp_path / "out.tar.gz"
    record(bundle, lambda r: r.update(reason="; ".join(f"it said: {x}" for x in PRIVATE.values())))
    done = run("release", "contribute", bundle, "--output", out)
    assert done.returncode == 0, done.stderr
    packed = gzip.decompress(out.read_bytes()).decode("latin-1")
    assert [kind for kind, text in PRIVATE.items() if json.dumps(text)[1:-1] in packed] == []
    out.unlink()
    for number, text in enumerate(PRIVATE.values()):
        (bundle / "datasets" / f"x{number}.json").write_text(json.dumps({"note": f"see {text}"}))
    done = run("release", "contribute", bundle, "--output", out)
    assert done.returncode == 1 and not out.exists()
    for number, kind in enumerate(PRIVATE):
        said = [s for s in done.stderr.splitlines() if f"private: datasets/x{number}.json" in s]
        assert said, kind


UNFIT = {
    "FIFO": (fifo("datasets/x.json"), ("datasets/x.json", "not opened")),
    "link": (link("plan.json", "/etc/passwd"), ("plan.json", "not opened")),
    "nested record": (written(f"{INSIDE}/run.json", NESTED), ("run.json", "nested too deeply")),
    "nested, and read": (
        written(f"{INSIDE}/run.json", b'{"a":' * 900 + b"1" + b"}" * 900),
        (CELL, "nested too deeply"),
    ),
    "nested plan": (written("plan.json", NESTED), ("plan.json", "nested too deeply")),
    "gzip bomb": (
        written("datasets/x.json", gzip.compress(bytes(5 * 10**8), 1)),
        ("datasets/x.json", "unpacks to more than"),
    ),
    "parquet bomb": (
        bomb(f"{INSIDE}/gpu.parquet", rows=10**6, text="x" * 10**5),
        ("gpu.parquet", "would take more than"),
    ),
    "no table": (written(f"{INSIDE}/gpu.parquet", b"PAR1" * 9), ("gpu.parquet", "no table")),
    "traversal": (
        listed(f"results/theirs/cells/{TO_ROOT}dev/zero"),
        ("runs.txt", "no record of a cell"),
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_contribute_refuses_each_with_a_line(bundle, tmp_path, name):
    make, said = UNFIT[name]
    make(bundle)
    done = run("release", "contribute", bundle, "--output", tmp_path / "out.tar.gz")
    assert done.returncode == 1 and not (tmp_path / "out.tar.gz").exists()
    assert any(all(part in line for part in said) for line in done.stderr.splitlines()), done.stderr
    assert "no bundle was made" in done.stderr.splitlines()[-1]


def packed(*entries: tuple[str, bytes, int], after: bytes = b""):
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
        path.write_bytes(gzip.compress(tar.getvalue()) + after)
        return path

    return make


OUT = "theirs/../../../escaped"
UNMERGED = {
    "FIFO": (fifo("cells/x.json"), "not opened"),
    "link": (link(f"{INSIDE}/gpu.parquet", "/dev/zero"), "not opened"),
    "link to a folder": (link("cells/other", "/"), "not opened"),
    "folders within each other": (deep, "within each other"),
    "sparse file": (sparse(f"{INSIDE}/steps.parquet"), "larger than"),
    "a path out of the bundle": (packed((OUT, tarfile.REGTYPE, 9)), "leads out"),
    "an absolute path": (packed(("/escaped", tarfile.REGTYPE, 9)), "leads out"),
    "a link in the bundle": (packed(("a>/etc", tarfile.SYMTYPE, 0)), "link"),
    "a hard link in the bundle": (packed(("a>/etc/passwd", tarfile.LNKTYPE, 0)), "link"),
    "a device in the bundle": (packed(("a", tarfile.CHRTYPE, 0)), "no plain file"),
    "one name twice": (packed(*2 * [("a/b", tarfile.REGTYPE, 9)]), "exists"),
    "more than is unpacked": (packed(("a", tarfile.REGTYPE, 10**11)), "unpacks to more"),
    "a bomb behind its end": (packed(after=10 * gzip.compress(bytes(10**8), 1)), "holds no cells"),
    "no archive": (lambda folder: folder / "plan.json", "gzip"),
    "nothing": (packed(), "it holds no cells"),
}


@pytest.mark.parametrize("name", UNMERGED)
def test_merge_refuses_each_with_one_line(bundle, tmp_path, name):
    make, said = UNMERGED[name]
    before = {path for path in tmp_path.rglob("*") if "/d/d" not in str(path)}
    source = make(bundle) or bundle
    done = run("release", "merge", source, "--config", f"results={tmp_path}/ours", "study=h200")
    assert done.returncode == 1, done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing is merged from") and said in line
    new = {path for path in tmp_path.rglob("*") if "theirs" not in str(path)} - before
    assert {path.name for path in new} <= {"ours", "h200", ".lock"}


@pytest.mark.parametrize("name", ["nested record", "nested, and read", "parquet bomb", "no table"])
def test_merge_leaves_each_out_with_one_line(bundle, tmp_path, name):
    UNFIT[name][0](bundle)
    done = run("release", "merge", bundle, "--config", f"results={tmp_path}/ours")
    assert f"{len(CELLS) - 1} attempts merged" in done.stdout, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cell {CELL} a1: ")


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
    "link": link("estimates.parquet", "/dev/zero"),
    "bomb": bomb("estimates.parquet", rows=2 * 10**8, columns=2),
    "bomb of one text": bomb("estimates.parquet", rows=10**6, text="x" * 10**5),
    "bomb of one row": bomb("estimates.parquet", rows=10**8, nested=True),
    "sparse": sparse("estimates.parquet"),
    "garbage": written("estimates.parquet", b"PAR1" * 9),
    "no scenario": rows(scenario=None),
    "scenario": rows(scenario="../../x"),
    "host": rows(host="\x1b[2J"),
    "spread": rows(spread="range"),
    "quantity": rows(quantity="=1+1"),
    "types": rows(n="1"),
}


@pytest.mark.parametrize("name", NOT_COMPARED)
def test_compare_refuses_each_with_one_line(bundle, tmp_path, name):
    NOT_COMPARED[name](bundle)
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
