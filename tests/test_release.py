"""What reviewers use: verify, artifact, contribute, seal, on a study measured with stand-ins."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from analysis.cells import read_runs
from analysis.claims.rules import load
from analysis.compare import page
from analysis.figures import NAMES, stems
from release import (
    archive,
    cells,
    compact,
    compare,
    cost,
    derive,
    evaluation,
    ledger,
    manifest,
    private,
    readme,
    seal,
    verify,
)
from release.contents import LEDGER, MANIFEST, Attempt, by_value, is_raw, shipped
from tests.studio import REPOSITORY, STUDY, Studio, study, workload

PAIR = Attempt("2x_plain/faithful/naive/r1", 1)
# Written so that they do not stand here: the archive holds this file.
SECRET = "/".join(("", "home", "somebody", "data"))
PROCESS = "PID 12 (their_tool, {} them)".format("owner")
SERIAL = "_".join(("board", "serial"))


def command(module: str, cwd: Path) -> subprocess.CompletedProcess:
    """`python -m release.MODULE`, of the code in that folder."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [sys.executable, "-m", f"release.{module}"]
    return subprocess.run(line, cwd=cwd, env=kept, capture_output=True, text=True)


def call(module: str, *arguments) -> subprocess.CompletedProcess:
    """`python -m release.MODULE ...` of this code, without a process, which imports for long."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = import_module(f"release.{module}").main([str(a) for a in arguments])
        except SystemExit as ended:
            code = 1
            err.write(f"{ended.code}\n")
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def derived_already(study: Path) -> Iterator[None]:
    """Whatever derives everything is given what was derived of this study before, where that its
    raw files give it is looked at by another test.
    """
    names = [name for name in shipped(study) if by_value(name)]

    def again(made: derive.Derivation) -> None:
        for name in names:
            target = made.there / made.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(study / name, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derive, "everything", lambda made, only=None: again(made))
        yield


@pytest.fixture(scope="module")
def measured(module_studio) -> Studio:
    """A study of four cells on a GPU that is not there, with everything derived but images."""
    studio = module_studio().with_card()
    counts = {1: ["naive"], 2: ["naive", "mps", "mig"]}
    ladders = [{"workloads": ["plain"], "counts": counts}]
    content = study(ladders=ladders, arms=["faithful"])
    result = studio.write({"plain": workload()}, **{STUDY: content}).measure()
    assert result.code == 0, result.output
    made = derive.lay(studio.results, STUDY, studio.folder / "derived")
    derive.everything(made)
    for path in (made.there / made.folder).iterdir():
        if not path.is_symlink() and path.name != "runs.txt":
            copy = shutil.copytree if path.is_dir() else shutil.copyfile
            copy(path, studio.results / path.name)
    return studio


@pytest.fixture(scope="module")
def sealed(measured) -> Path:
    with derived_already(measured.results):
        done = call("seal", measured.results)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 completed, 1 unsupported" in done.stdout
    return measured.results


@pytest.fixture
def copy(sealed, tmp_path) -> Path:
    """The sealed study, to be altered."""
    ignored = shutil.ignore_patterns("log", ".*")
    return shutil.copytree(sealed, tmp_path / "results" / STUDY, ignore=ignored)


def reseal(folder: Path, with_ledger: bool = False) -> None:
    """Recompute the manifest, and the ledger too, without any of the checks."""
    if with_ledger:
        found = manifest.digests(folder, shipped(folder))
        (folder / LEDGER).write_text(ledger.text(found))
    text = manifest.text(manifest.digests(folder, shipped(folder)))
    (folder / MANIFEST).write_text(text)


def wrong(folder: Path) -> list[str]:
    """What verify says of the raw files, without deriving anything."""
    known, found = manifest.read(folder / MANIFEST), manifest.digests(folder, shipped(folder))
    said = [*verify.held_against(known, found), *ledger.differences(ledger.read(folder), found)]
    return said + [what for line in verify.raw(folder, found) for what in line.wrong]


def numbers(value, path=()):
    """Places of all numbers in a JSON value."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield path
        return
    for key, item in items:
        yield from numbers(item, (*path, key))


def change(record: dict, path: tuple) -> None:
    """Alter the number at that place."""
    for key in path[:-1]:
        record = record[key]
    record[path[-1]] = record[path[-1]] * 2 + 1


# -- compact -----------------------------------------------------------------------------------


def test_a_record_that_ships_is_compact_and_says_the_same(tmp_path):
    said = {"status": "completed", "number": 0.1 + 0.2, "text": "a, b: c", "none": None}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"cell": said, "list": [1, 2.5]}, indent=1))
    before = path.stat()
    compact.records(tmp_path, ["run.json"])
    once = path.read_bytes()
    compact.records(tmp_path, ["run.json"])
    assert path.read_bytes() == once and json.loads(once) == {"cell": said, "list": [1, 2.5]}
    assert len(once) < before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns
    assert not list(tmp_path.glob("*.partial"))


# -- verify ------------------------------------------------------------------------------------


def test_an_altered_rate_is_found_with_all_hashes_recomputed(copy, monkeypatch):
    """And an altered table; both are named, with their cells. As where no explorer can be made."""
    monkeypatch.setattr(derive, "find_spec", lambda name: None)
    path = copy / PAIR.folder / "run.json"
    record = json.loads(path.read_text())
    record["members"][1]["windows"]["window"]["samples_per_s"] *= 1.0001
    path.write_text(json.dumps(record))
    table = copy / "tables" / "evidence.csv"
    table.write_text(table.read_text().replace(",completed,", ",unsupported,", 1))
    reseal(copy, with_ledger=True)
    done = call("verify", copy)
    assert done.returncode == 1
    found = [line for line in done.stdout.splitlines() if line.startswith("DIFFERS")]
    artefacts = [line.removeprefix("DIFFERS ").split(": ")[0] for line in found]
    assert len(set(artefacts)) == len(artefacts)
    said = dict(zip(artefacts, found, strict=True))
    assert f"raw files of cell {PAIR}" in said
    assert PAIR.cell in said["runs.parquet"] and "samples_per_s" in said["runs.parquet"]
    assert any("figures/" in line for line in found)
    line = said["tables/evidence.csv"]
    assert line.startswith("DIFFERS tables/evidence.csv: cell ") and ";" not in line
    assert "column status: shipped unsupported, derived completed" in line
    assert done.stdout.splitlines()[-1] == f"{len(found)} artefacts differ"


def test_every_number_of_a_record_is_held(copy):
    """Each one alone is altered, and the manifest recomputed."""
    path = copy / PAIR.folder / "run.json"
    text = path.read_text()
    known = ledger.read(copy)
    places = list(numbers(json.loads(text)))
    assert len(places) > 150
    for place in places:
        record = json.loads(text)
        change(record, place)
        path.write_text(json.dumps(record))
        found = known | {f"{PAIR.folder}/run.json": manifest.sha256(path)}
        said = f"cell {PAIR}: run.json differs from what the tables were made from"
        assert ledger.differences(known, found) == [said]


PARTS = [
    ("members", 0, "windows", "window", "samples_per_s"),
    ("members", 0, "windows", "window", "steps"),
    ("members", 1, "windows", "window", "step_ms_p99"),
    ("members", 1, "windows", "window", "drift"),
    ("windows", 0, "end_ns"),
    ("windows", 0, "seconds"),
    ("telemetry", "windows", "window", "series", "gpu", "power"),
    ("telemetry", "windows", "window", "entities", "gpu", "temperature"),
    ("telemetry", "windows", "window", "members", "0", "rss"),
    ("telemetry", "windows", "window", "host", "memory_used"),
    ("telemetry", "windows", "window", "seconds"),
    ("files", "gpu.parquet", "bytes"),
    ("cell", "replicate"),
    ("spec", "members", 0, "batch_size"),
]


@pytest.mark.parametrize("place", PARTS, ids=lambda place: ".".join(map(str, place)))
def test_what_readings_repeat_is_found_without_the_ledger(copy, place):
    path = copy / PAIR.folder / "run.json"
    record = json.loads(path.read_text())
    change(record, place)
    path.write_text(json.dumps(record))
    assert cells.check(copy, PAIR, {})


@pytest.mark.parametrize("name", ["steps", "gpu", "member", "host"])
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_number_in_a_table_of_readings_is_found(copy, name, recomputed):
    path = copy / PAIR.folder / f"{name}.parquet"
    table = pq.read_table(path)
    place = next(
        i
        for i, column in enumerate(table.columns)
        if table.schema.names[i] not in ("t_ns", "member")
        and not pa.types.is_dictionary(column.type)
        and column.null_count < len(column)
    )
    values = table.columns[place].to_pylist()
    row = next(i for i, value in enumerate(values) if value is not None)
    values[row] = values[row] + 1
    column = pa.array(values, table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), path)
    if recomputed:
        reseal(copy)
    said = wrong(copy)
    assert f"cell {PAIR}: {path.name} differs from what the tables were made from" in said
    assert any(f"{path.name} is not the file whose SHA-256" in line for line in said)
    shipped_as = f"cell {PAIR}: {path.name} is not the file that was shipped"
    assert (shipped_as in said) != recomputed


def test_files_of_the_study_that_are_altered_or_lost_or_new_are_named(copy):
    plan = json.loads((copy / "plan.json").read_text())
    plan[0]["n"] += 1
    (copy / "plan.json").write_text(json.dumps(plan))
    (copy / PAIR.folder / "host.parquet").unlink()
    (copy / PAIR.folder / "notes.txt").write_text("1")
    said = wrong(copy)
    assert "plan.json is not the file that was shipped" in said
    assert any(f"cell {plan[0]['id']}: n is" in line for line in said)
    assert f"cell {PAIR}: host.parquet is missing" in said
    assert f"cell {PAIR}: notes.txt is not listed" in said
    reseal(copy)
    assert "plan.json differs from what the tables were made from" in wrong(copy)


@pytest.mark.parametrize("module", ["verify", "seal", "contribute"])
def test_a_study_that_is_not_there_is_told_with_those_that_are(module, copy, tmp_path):
    more = ["--output", tmp_path / "x.tar.gz"] if module == "contribute" else []
    done = call(module, copy.parent / "nosuch", *more)
    assert done.returncode != 0 and done.stderr.count("\n") == 1
    assert f"nosuch; {copy.parent} has: {STUDY}" in done.stderr


def test_nothing_to_verify_is_said_in_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("verify")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_what_is_lost_with_its_line_of_the_manifest_is_named(copy, sealed):
    """Also where nothing of its kind is left, so that no other file asks for it to be made."""
    lost = ["claims.md", *(name for name in shipped(copy) if name.startswith("figures/"))]
    for name in lost:
        (copy / name).unlink()
    reseal(copy)
    with derived_already(sealed):
        said = [line for line in verify.derived(copy, shipped(copy)) if line.wrong]
    assert sorted(line.artefact for line in said) == sorted(lost)
    assert all("is not among what ships" in line.text for line in said)


def test_all_is_derived_whatever_ships(copy, monkeypatch):
    asked = []
    monkeypatch.setattr(derive, "everything", lambda made, only=None: asked.append(only))
    list(verify.derived(copy, ["claims.md"]))
    list(verify.derived(copy, ["runs.csv", "CONTRIBUTED.md"]))
    assert asked == [None, ["runs.csv"]]


@pytest.fixture
def told(copy) -> Path:
    """The repository's README with the parts of the sealed study, beside its results."""
    path = copy.parents[1] / "README.md"
    text = (REPOSITORY / "README.md").read_text()
    path.write_text(readme.fill(text, copy, f"results/{STUDY}"))
    return path


def said_of_readme(copy: Path) -> list[str]:
    return [line.text for line in verify.readme_parts(copy, copy.parents[1])]


def test_a_study_altered_as_a_whole_is_not_the_readme_s(copy, told):
    """A number that no other file repeats, with all that is derived and all hashes made anew."""
    assert said_of_readme(copy) == ["ok README.md"]
    path = copy / PAIR.folder / "run.json"
    record = json.loads(path.read_text())
    record["members"][0]["pid"] = 1
    path.write_text(json.dumps(record))
    reseal(copy, with_ledger=True)
    (line,) = said_of_readme(copy)
    assert line.startswith("DIFFERS README.md: findings, line ") and "raw.csv" in line


def test_an_altered_readme_is_found_and_one_of_another_study_is_not_compared(copy, told):
    text = told.read_text()
    told.write_text(text.replace("3 completed", "4 completed"))
    assert len(said_of_readme(copy)) == 1
    root = manifest.root((copy / LEDGER).read_text())
    told.write_text(text.replace(root, "0" * 63))  # names no study
    assert len(said_of_readme(copy)) == 1
    told.write_text(text.replace(f"results/{STUDY}", "results/other"))  # that is not there
    assert said_of_readme(copy)[0].startswith("DIFFERS")
    (copy.parent / "other").mkdir()
    (copy.parent / "other" / MANIFEST).touch()
    assert said_of_readme(copy) == []
    told.write_text(readme.fill(text, None, ""))
    assert said_of_readme(copy) == []
    told.write_text("no marks")
    assert "no part" in said_of_readme(copy)[0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a,b\n1,0.1\n", "a,b\n1,0.10000000000000002\n", True),
        ("a,b\n1,0.1\n", "a,b\n1,0.1000001\n", False),
        ("a,b\n1,x\n", "a,b\n1,y\n", False),
        ("a,b\n1,x\n", "a,b\n1,x\n2,x\n", False),
        ("a,b\n1,x\n", "a,c\n1,x\n", False),
        ("a\nnan\n", "a\n\n", False),
    ],
)
def test_tables_are_compared_by_value(tmp_path, one, other, same):
    for name, text in (("one.csv", one), ("other.csv", other)):
        (tmp_path / name).write_text(text)
    assert (compare.files(tmp_path / "one.csv", tmp_path / "other.csv") == []) == same


def test_the_commit_of_the_rules_is_not_compared_and_their_digest_is(tmp_path):
    for name, commit, digest in (
        ("a", "1234abc", "x1"),
        ("b", "unknown", "x1"),
        ("c", "9abc123", "y1"),
    ):
        (tmp_path / f"{name}.md").write_text(f"Rules: commit {commit} (SHA-256 {digest}).\n")
    assert compare.files(tmp_path / "a.md", tmp_path / "b.md") == []
    assert compare.files(tmp_path / "a.md", tmp_path / "c.md") != []


# -- seal --------------------------------------------------------------------------------------


def test_a_sealed_attempt_never_changes(copy):
    path = copy / PAIR.folder / "run.json"
    record = json.loads(path.read_text())
    record["timing"]["total_s"] += 1
    path.write_text(json.dumps(record))
    before = (copy / LEDGER).read_text()
    done = call("seal", copy)
    assert done.returncode == 1 and (copy / LEDGER).read_text() == before
    assert f"cell {PAIR}: run.json has changed since it was sealed" in done.stderr


def test_what_is_private_or_unfinished_is_not_sealed(copy):
    (copy / "bench").mkdir()
    (copy / "bench" / "smact.json").write_text(json.dumps({"from": SECRET}))
    interrupted, put_off = (copy / f"cells/3x_plain/faithful/naive/r{n}/a1" for n in (1, 2))
    for path in (interrupted / "steps.parquet", put_off / "log" / "conductor.log"):
        path.parent.mkdir(parents=True)
        path.touch()
    said = [
        line for line in seal.refusals(copy, shipped(copy)) if "cells/3x" in line or SECRET in line
    ]
    assert len(said) == 2 and any(line.startswith("private: bench/smact.json") for line in said)
    assert any("naive/r1/a1 has no run.json" in line for line in said)


def test_raw_files_too_large_for_git_are_not_sealed_and_what_is_derived_may_be(copy, monkeypatch):
    names = shipped(copy)
    raw = sum((copy / name).stat().st_size for name in names if is_raw(name))
    assert raw < sum((copy / name).stat().st_size for name in names)
    for most, refused in ((raw, False), (raw - 1, True)):
        monkeypatch.setattr(seal, "MOST_BYTES", most)
        with derived_already(copy):
            said = "; ".join(seal.refusals(copy, names))
        assert ("MB of raw files are more than" in said) == refused


# -- archive -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unpacked(sealed, tmp_path_factory) -> Path:
    """The archive, unpacked in an empty folder elsewhere."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (sealed / "report.html").write_text(f"<p>{SECRET}</p>")
    (sealed / "report.zip").write_text("<p>nothing</p>")
    with derived_already(sealed):
        done = call("artifact", sealed, "--output", folder / "study.tar.gz")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.startswith("left out report.html: ") and done.stderr.count("\n") == 1
    with tarfile.open(folder / "study.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def test_the_archive_verifies_elsewhere_and_plans_no_gpu_job(unpacked, measured):
    sums = subprocess.run(["sha256sum", "--quiet", "-c", MANIFEST], cwd=unpacked)
    assert sums.returncode == 0
    listed = set(manifest.read(unpacked / MANIFEST)) | {MANIFEST}
    there = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
    reports = {f"results/{STUDY}/report.{ending}" for ending in ("html", "zip")}
    assert reports & there == {f"results/{STUDY}/report.zip"}
    assert listed == there and {"release/verify.py", "ARTIFACT.md", "Makefile"} <= there
    done = command("verify", cwd=unpacked)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for artefact in ("runs.parquet", "claims.json", "tables/summary.csv"):
        assert f"ok {artefact}" in lines
    assert "ok figures/epoch_time_faithful.csv" in lines and "ok README.md" in lines
    assert lines[-1] == "all follows from the raw files" and "DIFFERS" not in done.stdout
    ledger_there = (unpacked / "results" / STUDY / LEDGER).read_text()
    assert manifest.root(ledger_there) in lines[0]
    for name in ("workloads.yaml", "studies"):
        source = measured.folder / name
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, unpacked / name)
    studio = Studio(unpacked, measured.data, measured.locks, repository=unpacked)
    planned = studio.snakemake("-n", "--", "figures", config={"measure": "false"})
    assert planned.code == 0 and planned.planned == 0, planned.output
    assert "draw" in planned.output


def test_the_archive_holds_nothing_private(unpacked):
    names = manifest.read(unpacked / MANIFEST)
    assert private.in_files(unpacked, names) == []
    own = unpacked.parent / "study.tar.gz"
    assert private.Detector().in_file(own) == []


def test_the_page_names_every_claim_and_figure(unpacked):
    text = (unpacked / "ARTIFACT.md").read_text()
    claims = load(REPOSITORY / "config" / "claims.yaml")
    assert all(f"| {claim.id} " in text and claim.text in text for claim in claims)
    assert all(f"figures/{name}" in text for name in NAMES)
    shown = {evaluation.shown_by(test) for claim in claims for test in claim.tests}
    assert {name for name in shown if name not in NAMES} == {"tables/pair.md"}


def test_the_time_of_every_figure_is_that_of_its_own_cells(sealed):
    """Whatever its data call a set of jobs."""
    runs = read_runs(sealed / "runs.parquet")
    completed = runs[runs["status"] == "completed"]
    took = {n: cost.of_figure(sealed, n, arm, runs) for n, arm in stems(["faithful"])}
    assert all(one.own for one in took.values())
    assert took["mig_layouts"].minutes == 0
    ladders = ("epoch_time", "throughput_gain", "activity", "memory", "latency", "energy")
    for name in (*ladders, "decomposition"):
        wanted = completed if name == "decomposition" else runs
        assert took[name].minutes == pytest.approx(cost.cost(wanted)), name
    assert 0 < took["timeline"].minutes < took["epoch_time"].minutes


def test_an_archive_of_the_same_files_is_the_same(tmp_path):
    (tmp_path / "tool").write_text("x")
    (tmp_path / "tool").chmod(0o755)
    for name, files in (
        ("one", {"a": b"1", "b/tool": tmp_path / "tool"}),
        ("two", {"b/tool": tmp_path / "tool", "a": b"1"}),
    ):
        archive.write(tmp_path / f"{name}.tar.gz", "top", files)
        os.utime(tmp_path / "tool", (1, 1))
    digests = [hashlib.sha256((tmp_path / f"{n}.tar.gz").read_bytes()) for n in ("one", "two")]
    assert digests[0].digest() == digests[1].digest()


def test_a_study_that_is_not_sealed_makes_no_archive(tmp_path):
    done = call("artifact", tmp_path, "--output", tmp_path / "a.tar.gz")
    assert done.returncode == 1 and "make seal" in done.stderr


# -- contribute --------------------------------------------------------------------------------


def test_a_contribution_is_anonymous_verifies_and_compares(copy, tmp_path):
    path = copy / PAIR.folder / "run.json"
    record = json.loads(path.read_text())
    record["reason"] = f"FileNotFoundError: {SECRET}/x.bin"
    record["telemetry"]["strangers"] = [PROCESS]
    record["files"]["trace.json.gz"] = {"sha256": "0" * 64, "bytes": 1}
    path.write_text(json.dumps(record))
    done = call("contribute", copy, "--output", tmp_path / "bundle.tar.gz")
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(tmp_path / "bundle.tar.gz") as packed:
        packed.extractall(tmp_path / "theirs", filter="data")
    (folder,) = (tmp_path / "theirs").iterdir()
    assert f"make compare A=results/h200 B=results/{folder.name}" in done.stdout
    text = (folder / PAIR.folder / "run.json").read_text()
    assert "somebody" not in text and "their_tool" not in text and "them" not in text
    assert json.loads(text)["reason"] == "FileNotFoundError: <path>"
    assert json.loads(text)["files"].keys() == record["files"].keys() - {"trace.json.gz"}
    assert private.in_files(folder, shipped(folder)) == []
    assert [line.text for line in verify.verify(folder) if line.wrong] == []
    assert page.main([str(copy), str(folder), "--output", str(tmp_path / "two")]) == 0
    assert (tmp_path / "two" / "comparison.md").exists()


def test_what_cannot_be_taken_out_is_refused_with_its_place(copy, tmp_path):
    path = copy / PAIR.folder / "run.json"
    record = json.loads(path.read_text())
    record["gpu_state"][SERIAL] = 1650
    path.write_text(json.dumps(record))
    (copy / "datasets" / "digits.json").write_text(json.dumps({"path": SECRET}))
    done = call("contribute", copy, "--output", tmp_path / "bundle.tar.gz")
    assert done.returncode == 1 and not (tmp_path / "bundle.tar.gz").exists()
    assert "private: datasets/digits.json, line 1: path" in done.stderr
    assert f"private: {PAIR.folder}/run.json, line" in done.stderr and "serial" in done.stderr


# -- private strings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"at {SECRET}", "path"),
        ('"' + "/".join(("", "tmp", "x1")) + '"', "path"),
        (".".join(("10", "20", "30", "40")), "address"),
        ("on node-a17.cluster", "host name"),
        ("by jdoe,", "user name"),
        (PROCESS, "process of somebody"),
        ("GPU-b6efbf7a-8d3a-6dd7-c63b-16033fb68d0f machine-7f32e10c", None),
        ("driver 580.159.04, https://example.org/data/x, a/tmp/b, jdoes, 127.0.0.1, 7.6.1.1", None),
    ],
)
def test_what_is_private(text, kind):
    detector = private.Detector({"node-a17": "host name", "jdoe": "user name", "vm": "host name"})
    assert [found for found, _ in detector.in_text(text)] == ([kind] if kind else [])
    assert list(detector.in_text(detector.strip(text))) == []


def test_private_strings_are_found_wherever_they_hide(tmp_path):
    detector = private.Detector({"node-a17": "host name"})
    table = pa.table({"a": ["x", "on node-a17"], "node-a17": [1, 2]})
    table = table.replace_schema_metadata({"made": "by node-a17"})
    pq.write_table(table, tmp_path / "t.parquet")
    found = {finding.where for finding in detector.in_file(tmp_path / "t.parquet")}
    assert found == {"metadata", "column names", "column a"}
    archive.write(tmp_path / "a.tar.gz", "top", {"x.bin": b"\xff\x00 node-a17 \xfe"})
    (hidden,) = detector.in_file(tmp_path / "a.tar.gz")
    assert hidden.file == "top/x.bin"


# -- what stands beside the code ------------------------------------------------------------------


def test_citation_zenodo_and_catalogue_say_the_same():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    zenodo = json.loads((REPOSITORY / ".zenodo.json").read_text())
    catalogue = yaml.safe_load((REPOSITORY / ".snakemake-workflow-catalog.yml").read_text())
    assert (zenodo["title"], zenodo["version"]) == (citation["title"], citation["version"])
    assert zenodo["license"] == citation["license"]
    paper = citation["references"][0]["doi"]
    assert [entry["identifier"] for entry in zenodo["related_identifiers"]] == [paper]
    assert catalogue["usage"]["software-stack-deployment"]["conda"] is True
    assert "## [Unreleased]" in (REPOSITORY / "CHANGELOG.md").read_text()
