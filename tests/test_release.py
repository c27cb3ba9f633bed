"""What reviewers use: seal, verify, artifact, contribute, on some of the cells that ship."""

import gzip
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import release.artifact
import release.merge
import release.seal
from analysis.records import schema
from release import (
    compare,
    contents,
    contribute,
    derive,
    manifest,
    private,
    readings,
    slices,
    verify,
)
from release.contents import Attempt
from tests import warm
from tests.studio import REPOSITORY
from workflow.collocation.gpu.lock import folder_lock
from workflow.collocation.plan.attempts import scan
from workflow.collocation.plan.jobs import write_plan
from workflow.collocation.plan.session import open_session
from workflow.collocation.plan.show import banner
from workflow.collocation.record.slices import LAG_NS
from workflow.collocation.record.step_times import slices_rate

SOURCE = REPOSITORY / "results" / "h200"
SETS = ("1x_resnet152_imagenet_b32", "2x_resnet152_imagenet_b32", "7x_resnet152_imagenet_b32")
KEPT = [
    f"{s}/paper_step/{method}/r{n}" for s in SETS for method in ("naive", "mps") for n in (1, 2)
]
FULL = "5x_resnet152_imagenet_b256/paper_step/naive/r6"  # which ran out of memory
NEVER_RUN = "3x_resnet152_imagenet_b32/paper_step/naive/r1"
PAIR = Attempt("2x_resnet152_imagenet_b32/paper_step/mps/r1", 1)
OTHER = Attempt("2x_resnet152_imagenet_b32/paper_step/mps/r2", 1)
# Written so that they are not in this file as a whole: the archive holds it.
SECRET = "/".join(("", "home", "somebody", "data"))
BOB = ".".join(("bob", "smith"))
PROCESS = "PID 12 (their_tool, {} {})".format("owner", BOB)


def command(*arguments: object, **options) -> subprocess.CompletedProcess:
    """`python -m release ...`"""
    return warm.run("release", *arguments, **options)


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """What is derived in this process is derived by commands that import nothing."""

    def run(folder: Path, *commands: list) -> None:
        for command in commands:
            done = warm.run("analysis", *command, cwd=folder.parents[1])
            assert done.returncode == 0, done.stderr

    monkeypatch.setattr(derive, "_run", run)


def analysis(folder: Path) -> None:
    """All commands that the workflow runs, but those that draw."""
    root, of = folder.parents[1], ["--folder", f"results/{folder.name}"]
    listed = ["--study", "h200", "--list", f"results/{folder.name}/runs.txt", "--output"]
    rules = ["--claims", REPOSITORY / "config/claims.yaml"]
    for line in (
        ["merge", *listed, folder / "runs.parquet"],
        ["telemetry", *listed, folder / "telemetry.parquet"],
        ["estimate", *of, *rules, "--reported", REPOSITORY / "config/reported.csv"],
        ["pages", *of, *rules],
        ["figures", "--data-only", *of],
        ["explorer", *of, "--output", folder / "explorer.html"],
    ):
        done = warm.run("analysis", *line, cwd=root)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A study of some cells of the one that ships, with everything derived, sealed."""
    folder = tmp_path_factory.mktemp("release") / "results" / "h200"
    for cell in (*KEPT, FULL):
        shutil.copytree(SOURCE / "cells" / cell, folder / "cells" / cell)
    shutil.copytree(SOURCE / "datasets", folder / "datasets")
    plan = json.loads((SOURCE / "plan.json").read_text())
    plan = [cell for cell in plan if cell["id"] in (*KEPT, FULL, NEVER_RUN)]
    (folder / "plan.json").write_text(json.dumps(plan))
    lines = (SOURCE / "runs.txt").read_text().splitlines(keepends=True)
    kept = [
        line for line in lines if line.partition("/cells/")[2].rpartition("/a")[0] in (*KEPT, FULL)
    ]
    (folder / "runs.txt").write_text("".join(kept))
    analysis(folder)
    assert release.seal.main(folder) == 0
    return folder


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    """The sealed study, to be altered."""
    return shutil.copytree(finished, tmp_path / "results" / "h200")


def forge(folder: Path, attempt: Attempt, change=None, **columns) -> None:
    """Alter a record, and columns of its Parquet files (file__column=function); recompute every
    hash, in run.json and in both lists.
    """
    path = folder / attempt.folder / "run.json"
    record = json.loads(path.read_text())
    if change:
        change(record)
    for key, altered in columns.items():
        name, _, column = key.partition("__")
        file = path.with_name(f"{name}.parquet")
        table = pq.read_table(file)
        place = table.schema.get_field_index(column)
        values = pa.array(map(altered, table[column].to_pylist()), table.schema.types[place])
        pq.write_table(table.set_column(place, table.schema.field(place), values), file)
        digest = {"sha256": manifest.sha256(file), "bytes": file.stat().st_size}
        record["files"][file.name] = digest
    path.write_text(json.dumps(record))
    manifest.write(folder, manifest.digests(folder))


def wrong(folder: Path) -> list[str]:
    """What verify says of the raw files, without deriving anything."""
    found = manifest.digests(folder)
    known = {**manifest.read(folder / manifest.MANIFEST), **manifest.read(folder / manifest.RAW)}
    known.pop(manifest.RAW)
    assert list(verify.held_against(known, found)) == [], "the forger recomputed every hash"
    return [line.text(every=True) for line in verify.raw(folder, found) if line.wrong]


def scaled(factor: float):
    return lambda value: None if value is None else value * factor


def test_what_ships_follows(finished):
    done = command("verify", finished)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and "DIFFERS" not in done.stdout, done.stdout + done.stderr
    assert (
        f" artefacts follow from the raw files ({len(manifest.digests(finished))} files" in lines[0]
    )
    assert f"root {manifest.root(finished)}" in lines[0] and lines[1].startswith("all follows")
    assert "no list of a study's own can prove" in done.stdout


def test_an_altered_rate_is_named_from_the_record_to_the_figures(copy):
    def faster(record):
        record["members"][1]["windows"]["window"]["samples_per_s"] *= 1.001

    forge(copy, PAIR, faster)
    done = command("verify", "--all", copy)
    assert done.returncode == 1
    assert "\nok MANIFEST.sha256 and raw.sha256 (" in done.stdout and "\nok tables/" in done.stdout
    parts = done.stdout.split("DIFFERS ")
    said = {part.partition(":")[0]: part for part in parts[1:]}
    assert "samples_per_s is" in said[f"raw files of cell {PAIR}"]
    assert PAIR.cell in said["runs.parquet"] and "samples_per_s" in said["runs.parquet"]
    assert "rate:2x_resnet152_imagenet_b32/paper_step/mps" in said["estimates.parquet"]
    assert f", cell {PAIR.cell}," in said["estimates.parquet"]
    assert any(name.startswith("figures/") for name in said) and "explorer.html" in said


def losses(record):
    for member in record["members"]:
        member["loss"]["value"] = [1.2 * value for value in member["loss"]["value"]]


def energy(record):
    told = record["telemetry"]["windows"]["window"]["energy"]
    record["telemetry"]["idle"]["power"] *= 0.9
    told |= {name: 0.9 * value for name, value in told.items() if name != "seconds"}


def counter(record):
    """The counter's part alone, so that what follows from each other does."""
    told = record["telemetry"]["windows"]["window"]["energy"]
    told["mean_power"] *= 0.9
    told["joules"] *= 0.9
    told["above_idle_joules"] = told["joules"] - told["idle_joules"]


def unproven(record):
    record["method"]["evidence"]["end"]["verified"] = False


def ended(status):
    return lambda record: record.update(status=status, reason="somebody said so", phase="window")


FORGERIES = {
    "losses": (losses, {}, "loss is not what steps.parquet has"),
    "losses everywhere": (losses, {"steps__loss": scaled(1.2)}, "begins with a loss of"),
    "energy": (energy, {}, "integrated_joules is"),
    "counter": (counter, {}, "the counter in gpu.parquet grew by"),
    "power readings": (None, {"gpu__power": scaled(0.9)}, "gpu.power is"),
    "step times": (None, {"steps__tick": scaled(2)}, "windows.window"),
    "memory": (None, {"member__gpu_memory": scaled(2)}, "gpu_memory is"),
    "host": (None, {"host__memory_used": scaled(2)}, "memory_used is"),
    "evidence": (unproven, {}, "method is verified, and its evidence is not"),
} | {
    status: (ended(status), {}, f"status is {status}, its members are completed")
    for status in ("unsupported", "failed", "out_of_memory")
}


def test_a_forged_cell_is_named_with_every_hash_recomputed(copy):
    """Each forgery in a cell of its own."""
    cells = [Attempt(cell, 1) for cell in reversed(KEPT)]
    for cell, (change, columns, _) in zip(cells, FORGERIES.values(), strict=True):
        forge(copy, cell, change, **columns)
    lines = wrong(copy)
    for cell, (_, _, said) in zip(cells, FORGERIES.values(), strict=True):
        assert len([line for line in lines if said in line and str(cell) in line]) == 1, said


def test_a_cell_whose_job_can_never_run_is_unsupported_with_a_member_that_failed(copy):
    def uncapturable(record):
        record.update(status="unsupported", reason="its step cannot be captured", phase="warm")
        record["windows"], record["telemetry"]["windows"] = [], {}
        for member in record["members"]:
            member.update(status="failed", windows={})

    forge(copy, Attempt(FULL, 1), uncapturable)
    assert wrong(copy) == []


def test_a_cell_that_ran_out_of_memory_did_not_complete_and_a_rate_without_steps_is_named(copy):
    forge(copy, Attempt(FULL, 1), ended("completed"))
    (copy / PAIR.folder / "steps.parquet").unlink()
    forge(copy, PAIR, lambda record: record["files"].pop("steps.parquet"))
    steps, full = sorted(wrong(copy))
    assert FULL in full and "status is completed, its members are" in full
    assert f"cell {PAIR}" in steps and "steps.parquet is missing" in steps


def test_cells_that_are_deleted_copied_renumbered_or_planned_otherwise_are_named(copy):
    gone, later, replanned = (
        f"{SETS[2]}/paper_step/{of}" for of in ("mps/r1", "mps/r2", "naive/r1")
    )
    shutil.rmtree(copy / "cells" / gone)
    first, second = Attempt(later, 1), Attempt(later, 2)
    (copy / first.folder).rename(copy / second.folder)
    lines = (copy / "runs.txt").read_text().replace(first.folder, second.folder)
    lines = "".join(line for line in lines.splitlines(keepends=True) if gone not in line)
    (copy / "runs.txt").write_text(lines)
    plan = json.loads((copy / "plan.json").read_text())
    next(cell for cell in plan if cell["id"] == replanned)["n"] = 3
    (copy / "plan.json").write_text(json.dumps(plan))
    shutil.rmtree(copy / OTHER.folder)
    shutil.copytree(copy / PAIR.folder, copy / OTHER.folder)

    def renamed(record):  # and every time in it is moved
        record["cell"] |= {"id": OTHER.cell, "replicate": 2}
        record["provenance"]["started_at"] = "2030-01-01T00:00:00+00:00"

    forge(copy, OTHER, renamed)
    forge(copy, second, lambda record: record["cell"].update(attempt=2))
    (text,) = wrong(copy)
    said = text.splitlines()
    for words in (
        f"cell {gone} was planned and has no record",
        f"cell {OTHER} has the step times and losses of cell {PAIR}",
        f"cell {later} has attempt 2 and none before it",
        f"cell {replanned}: n is 3 in plan.json, not 7",
    ):
        assert [words in line for line in said].count(True) == 1, said
    assert NEVER_RUN in (copy / "not_run.txt").read_text() and NEVER_RUN not in text


def test_files_that_changed_since_the_seal_are_named(copy):
    (copy / PAIR.folder / "host.parquet").unlink()
    (copy / PAIR.folder / "notes.txt").write_text("1")
    (copy / "plan.json").write_text((copy / "plan.json").read_text() + "\n")
    lines = iter(verify.verify(copy))
    said = next(lines).text(every=True)
    assert f"cell {PAIR}: host.parquet is missing" in said and "notes.txt is not listed" in said
    assert "plan.json is not what was sealed" in said
    assert "host.parquet is missing" in next(lines).text()


@pytest.mark.parametrize(
    "name", [manifest.MANIFEST, manifest.RAW, "run.json", "steps.parquet", "runs.txt"]
)
def test_no_content_raises(copy, monkeypatch, name):
    monkeypatch.setattr(verify, "derived", lambda *_: iter(()))
    folder = copy / PAIR.folder if name.startswith(("run.", "steps")) else copy
    for content in (b"", b"\xff\x00", b"[" * 100_000, b'{"a": 1}', b"PAR1" * 9):
        (folder / name).write_bytes(content)
        assert any(line.wrong for line in verify.verify(copy)), content


def test_a_study_that_is_not_there_or_not_sealed_is_told(copy, tmp_path, monkeypatch):
    done = command("verify", copy.parent / "nosuch")
    assert done.returncode == 1 and f"{copy.parent} has: h200" in done.stderr
    done = command("artifact", tmp_path, "--output", tmp_path / "a.tar.gz")
    assert done.returncode == 1 and "make seal" in done.stderr
    monkeypatch.chdir(tmp_path / "results" / "h200")
    assert verify.main([], every=False) == 2  # nothing that ships is here


def test_differences_are_of_values_not_of_bytes(tmp_path):
    def of(ending, one, other):
        paths = [tmp_path / f"{name}.{ending}" for name in ("one", "other")]
        for path, text in zip(paths, (one, other), strict=True):
            path.write_text(text)
        return compare.files(*paths)

    assert of("md", "rate 0.1 at 2", "rate 0.10000000000000001 at 2") == []
    assert of("csv", "v\n1.5\n", "v\n1.50000000000001\n") == []
    assert of("md", "a\nb\nc", "a\nc") == ["line 2: shipped b, derived nothing"]
    (said,) = of("md", "x\n| 2x_a/paper_step/mps/r1 | yes |", "x\n| 2x_a/paper_step/mps/r1 | no |")
    assert said.startswith("line 2, cell 2x_a/paper_step/mps/r1")
    (said,) = of("csv", "id,v\na,1.5\nb,2\n", "id,v\na,1.6\nb,2\n")
    assert said.endswith("shipped a,1.5, derived a,1.6")


def test_a_sealed_attempt_may_not_change(copy, capsys):
    session = open_session({"study": "h200", "results": str(copy.parent), "gpu": "cpu"})
    assert "'make verify STUDY=h200' tells what differs" in banner(session)
    path = copy / PAIR.folder / "run.json"
    path.write_text(path.read_text() + " ")
    assert release.seal.main(copy) == 1
    assert f"cell {PAIR}: run.json has changed since it was sealed" in capsys.readouterr().err


def test_what_is_private_or_unfinished_is_not_sealed(copy, capsys):
    (copy / "datasets" / "notes.json").write_text(json.dumps({"path": SECRET}))
    (copy / "cells" / NEVER_RUN / "a1").mkdir(parents=True)
    (copy / "cells" / NEVER_RUN / "a1" / "steps.parquet").write_bytes(b"")
    assert release.seal.main(copy) == 1
    said = capsys.readouterr().err
    assert "private: datasets/notes.json, line 1: path" in said
    assert f"cells/{NEVER_RUN}/a1 has no run.json" in said


def test_an_archive_checks_itself_and_is_the_same_each_time(finished, tmp_path, capsys):
    assert release.artifact.main(finished, tmp_path / "a.tar.gz") == 0
    assert " artefacts follow from the raw files (" in capsys.readouterr().out
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    there = tmp_path / "gpu-collocation-study-h200"
    inside = there / "results/h200"
    for folder, name in ((there, "MANIFEST"), (inside, "MANIFEST"), (inside, "raw")):
        line = ["sha256sum", "--quiet", "-c", f"{name}.sha256"]
        assert subprocess.run(line, cwd=folder).returncode == 0
    page = (there / "ARTIFACT.md").read_text()
    claims = yaml.safe_load((REPOSITORY / "config" / "claims.yaml").read_text())["claims"]
    assert all(f"| {claim['id']} |" in page for claim in claims) and manifest.root(finished) in page
    assert "13 completed" not in page and "12 completed" in page
    names = release.artifact.code(there)
    assert {"release/verify.py", "Makefile"} <= {*names} and "ARTIFACT.md" not in names
    packed = (*manifest.read(there / "MANIFEST.sha256"), "MANIFEST.sha256")
    again = {name: (there / name).read_bytes() for name in packed}
    manifest.pack(tmp_path / "b.tar.gz", there.name, again)
    assert len({manifest.sha256(tmp_path / f"{name}.tar.gz") for name in "ab"}) == 1


def test_a_contribution_is_anonymous_and_verifies(copy, tmp_path):
    def tells(record):
        record["reason"] = f"FileNotFoundError: {SECRET}/x.bin"
        record["telemetry"]["strangers"] = [PROCESS]
        record["files"]["trace.json.gz"] = {"sha256": "0" * 64, "bytes": 1}

    forge(copy, PAIR, tells)
    done = command("contribute", copy, "--output", tmp_path / "bundle.tar.gz")
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(tmp_path / "bundle.tar.gz") as packed:
        packed.extractall(tmp_path / "theirs", filter="data")
    (folder,) = (tmp_path / "theirs").iterdir()
    record = json.loads((folder / PAIR.folder / "run.json").read_text())
    assert record["reason"] == "FileNotFoundError: <path>"
    assert "trace.json.gz" not in record["files"]
    assert BOB not in str(record) and "their_tool" not in str(record)
    assert [line.text() for line in verify.verify(folder) if line.wrong] == []


@pytest.mark.parametrize("alias", ["machine-../x", "node17"])
def test_an_alias_never_becomes_a_folder(copy, tmp_path, alias):
    forge(copy, PAIR, lambda record: record["provenance"].update(machine=alias))
    with pytest.raises(SystemExit, match="alias"):
        contribute.main(copy, tmp_path / "bundle.tar.gz")
    assert not (tmp_path / "bundle.tar.gz").exists()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"at {SECRET}", "path"),
        *(("/".join(("at ", place, "x1", "y")), "path") for place in ("users", "project", "lus")),
        *(("/".join(("", on, "home", "x1")), "path") for on in ("storage", "beegfs", "cluster")),
        ("file:" + "/" * 3 + "elsewhere/x", "path"),
        (".".join(("10", "20", "30", "40")), "address"),
        (":".join(("2001", "db8", "", "17")), "address"),
        (":".join(("aa", "bb", "cc", "dd", "ee", "0f")), "hardware address"),
        ("\\".join(("C:", "Users", "somebody")), "path"),
        ("@".join((BOB, "uni.example")), "e-mail address"),
        (".".join(("gpu17", "cluster", "example", "edu")), "host name"),
        ("on node-a17.", "host name"),
        ("by jdoe,", "user name"),
        (PROCESS, "process of somebody"),
        ("GPU-b6efbf7a-8d3a-6dd7-c63b-16033fb68d0f machine-7f32e10c at 12:34:56", None),
        ("driver 580.159.04, https://example.org/data/x, a/tmp/b, jdoes, 127.0.0.1, 7.6.1.1", None),
    ],
)
def test_what_is_private(text, kind):
    detector = private.Detector({"node-a17": "host name", "jdoe": "user name", "vm": "host name"})
    found = {found for found, _ in detector.in_text(text)}
    assert found == ({kind} if kind else set())
    assert list(detector.in_text(detector.strip(text))) == []


def test_private_strings_are_found_wherever_they_hide(tmp_path):
    detector = private.Detector({"node-a17": "host name"})
    nested = pa.array([["on node-a17"], []])
    table = pa.table({"a": ["x", "on node-a17"], "b": nested, "node-a17": [1, 2]})
    pq.write_table(table.replace_schema_metadata({"made": "by node-a17"}), tmp_path / "t.parquet")
    hidden = gzip.compress(b"\xff\x00 node-a17 \xfe")
    found = list(
        detector.search({"t.parquet": (tmp_path / "t.parquet").read_bytes(), "x.gz": hidden})
    )
    for said, where in zip(found, ("schema", "column a", "column b", "x.gz, bytes"), strict=True):
        assert where in said and said.endswith("host name 'node-a17'")


def test_what_ships_is_enough_for_snakemakes_report(tmp_path):
    """As in a fresh clone: no SVG, no logs, nothing of Snakemake's own."""
    there = tmp_path / "results" / "h200"
    made_here = shutil.ignore_patterns("*.svg", "log", "jobs", "telemetry.parquet", "report.*")
    shutil.copytree(REPOSITORY / "results" / "h200", there, ignore=made_here)
    command = [sys.executable, "-m", "snakemake", "--snakefile", REPOSITORY / "Snakefile"]
    command += ["--directory", tmp_path, "--report", tmp_path / "r.html", "--config", "study=h200"]
    done = subprocess.run([*command, "gpu=cpu"], capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "r.html").stat().st_size > 1e6, done.stderr


def test_citation_zenodo_and_catalogue_say_the_same():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    zenodo = json.loads((REPOSITORY / ".zenodo.json").read_text())
    catalogue = yaml.safe_load((REPOSITORY / ".snakemake-workflow-catalog.yml").read_text())
    assert (zenodo["title"], zenodo["version"]) == (citation["title"], citation["version"])
    assert zenodo["license"] == citation["license"]
    paper = citation["references"][0]["doi"]
    assert [entry["identifier"] for entry in zenodo["related_identifiers"]] == [paper]
    assert "usage" in catalogue and "## [Unreleased]" in (REPOSITORY / "CHANGELOG.md").read_text()


def test_no_text_in_a_csv_is_a_formula(tmp_path):
    table = pa.table({"text": ["=1+1", "-x", "ok", None], "number": [-1.5, 2, 3, 4]})
    schema.write(table, tmp_path / "t.parquet")
    assert (tmp_path / "t.csv").read_text().split() == [
        *('"text","number"', '"\'=1+1",-1.5', '"\'-x",2', '"ok",3', ",4")
    ]
    assert pq.read_table(tmp_path / "t.parquet") == table


# -- slices of alternating cells ------------------------------------------------------------------

DROP, SLICE, SIZE = 100_000_000, 500_000_000, 32


def taking_turns(took):
    """Two sides of one member each whose steps take so long (ns): windows, the ends of its steps,
    and what the conductor, with arithmetic of its own, writes of each member.
    """
    now, spans, ends = 7_000_000, {"naive": [], "mps": []}, {"naive": [], "mps": []}
    took = iter(took)
    for side in ("naive", "mps", "mps", "naive"):
        spans[side].append([now + DROP, now + SLICE])
        begin = now
        while begin < now + SLICE:  # the last one ends after `hold`
            begin += next(took)
            ends[side].append(begin)
        now = begin + 3_000_000
    rates = {of: slices_rate(np.array(ends[of]), spans[of], DROP, SIZE) for of in spans}
    told = {side: rate.model_dump() for side, rate in rates.items()}
    windows = [
        {"name": side, "spans": of, "start_ns": of[0][0], "end_ns": of[-1][1], "seconds": 0.8}
        for side, of in spans.items()
    ]
    return windows, told, ends


def said_of(windows, told, ends, origin=5_000_123):
    found = []
    for window in windows:
        ticks = (np.array(ends[window["name"]]) - origin) // 10_000
        about = told[window["name"]], ticks, window["spans"], DROP
        found += slices.rates("mps", *about, (origin, 10_000), SIZE)
    measure = {"slices": 2, "slice_s": 0.5, "drop_s": 0.1}
    return [*found, *slices.windows({"spec": {"measure": measure}, "windows": windows})]


@given(st.data())
@settings(max_examples=40)
def test_slices_are_computed_again_from_the_step_ends(data):
    """Whatever its steps take, from 1 ms to a second; a change of half a per cent is named."""
    longest = data.draw(st.sampled_from([2, 30, 1000]))
    seed = data.draw(st.integers(0, 999))
    took = np.random.default_rng(seed).integers(1_000_000, longest * 1_000_000, 3000).tolist()
    windows, told, ends = taking_turns(took)
    assert said_of(windows, told, ends) == []
    side, at = data.draw(st.sampled_from(["naive", "mps"])), data.draw(st.integers(0, 1))
    if told[side]["slices"][at] * 0.4 > SIZE / 2:
        told[side]["slices"][at] *= data.draw(st.sampled_from([0.99, 1.01]))
        said = said_of(windows, told, ends)
        assert len(said) == 2 and f"slices[{at}]" in said[0] and "samples_per_s" in said[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w, t, e: t["mps"]["slices"].pop(), "slices are 1, not 2"),
        (lambda w, t, e: t["mps"].update(steps=t["mps"]["steps"] + 9), "steps is"),
        (lambda w, t, e: t["mps"].update(samples_per_s=1.0), "samples_per_s is"),
        (lambda w, t, e: t["mps"].update(step_ms_p50=5.02), "step_ms_p50 is 5.02"),
        (lambda w, t, e: t["mps"].update(step_ms_p99=None), "step_ms_p99 is None"),
        (lambda w, t, e: w[0].update(seconds=0.9), "counts 0.9 s"),
        (lambda w, t, e: w[0].update(start_ns=1), "does not begin and end with its slices"),
        (lambda w, t, e: w[1]["spans"].reverse(), "does not begin and end with its slices"),
        (lambda w, t, e: w[0].update(spans=w[1]["spans"]), "before another one is over"),
        (lambda w, t, e: e["naive"].__delitem__(slice(20, 25)), "slices[0] is"),
    ],
)
def test_what_does_not_follow_from_them_is_named(change, said):
    windows, told, ends = taking_turns([5_000_000] * 3000)
    assert said_of(windows, told, ends) == []
    change(windows, told, ends)
    assert said in " ".join(said_of(windows, told, ends))


def test_telemetry_of_a_slice_is_of_readings_that_are_of_it_alone():
    """And of rates those alone that begin after the driver's lag."""
    times = [LAG_NS * t for t in (0, 1, 2, 5, 6, 7, 8, 10)]
    rows = {"t_ns": times, "entity": ["gpu"] * 8, "power": [1.0] * 8}
    table = pa.table(rows | {"gract": [0.1, 0.2, 0.3, 0.4, 0.5, None, 0.6, 0.7]})
    series = readings.Readings("gpu", table.replace_schema_metadata({"origin_ns": "1000"}), {})
    spans = [[1000, 1000 + 2 * LAG_NS], [1000 + 5 * LAG_NS, 1000 + 8 * LAG_NS]]
    over = (spans[0][0], spans[1][1]), spans
    assert list(series.apart("x", {"gract": 0.5, "power": 1.0}, over)) == []
    assert len(list(series.apart("x", {"gract": 0.3, "power": None}, over))) == 2


# -- merge: cells of the same study, measured elsewhere -------------------------------------------

MEASURED_ONCE = [f"{s}/paper_step/{m}" for s in SETS for m in ("naive", "mps")]
MEASURED_ONCE += ["3x_resnet152_imagenet_b32/paper_step/naive"]


def lay(folder: Path, block: int, machine: str = "", cells=MEASURED_ONCE, attempt: int = 1) -> Path:
    """A results folder with a block of the study that ships, as such an attempt at block 1."""
    for cell in cells:
        there = folder / "cells" / cell / "r1" / f"a{attempt}"
        shutil.copytree(SOURCE / "cells" / cell / f"r{block}" / "a1", there)
        record = json.loads((there / "run.json").read_text())
        record["cell"] |= {"id": f"{cell}/r1", "replicate": 1, "attempt": attempt}
        record["provenance"]["machine"] = machine or record["provenance"]["machine"]
        record["gpu"]["uuid"] += machine
        (there / "run.json").write_text(json.dumps(record, indent=1) + "\n")
    return folder


def merge(source: Path, results: Path, *settings: str) -> subprocess.CompletedProcess:
    return command("merge", source, "--config", f"results={results}", *settings)


def there(folder: Path) -> dict[str, str]:
    """Every file of its cells, with its SHA-256; nothing is left beside them."""
    assert not (folder / ".merge").exists()
    return {n: d for n, d in manifest.digests(folder).items() if n.startswith("cells/")}


def test_two_hosts_that_measured_the_same_block_stay_two(tmp_path, monkeypatch):
    monkeypatch.undo()  # of what is derived, each command is a process of its own
    folder, results = tmp_path / "results" / "h200", tmp_path / "results"
    own, other = lay(folder, 1), lay(tmp_path / "other", 2, "machine-0000000b")
    before = there(own)
    done = merge(other, results, "study=h200")
    assert done.returncode == 0, done.stderr
    assert f"{len(MEASURED_ONCE)} attempts merged, 0 were there" in done.stdout
    assert before.items() < there(folder).items()
    session = open_session({"study": "h200", "results": str(results), "gpu": "cpu"})
    assert f"{len(MEASURED_ONCE)} merged from elsewhere" in banner(session)
    assert not [path for path in session.coming if "/r1001/" in path.as_posix()]
    assert len(session.measured) == len(before.keys() & {n for n in before if "run.json" in n}) * 2
    write_plan(replace(session, jobs=[]))
    contents.write_not_run(folder)
    found = manifest.digests(folder)
    assert [line.text() for line in verify.raw(folder, found) if line.wrong] == []

    made = derive.lay(folder, tmp_path / "derived")
    derive.derive(made, merged_only=True)
    rows = pq.read_table(made / "estimates.parquet").to_pylist()
    (visits,) = (row["value"] for row in rows if row["id"] == "count:sessions")
    assert visits == 2  # one to each host
    own_each = {
        row["id"]: (row, *(r for r in rows if r["id"].startswith(row["id"]) and r["host"]))
        for row in rows
        if row["id"].startswith(("stp:2x", "stp:7x")) and "@" not in row["id"]
    }
    assert len(own_each) == 4  # two sets by two methods
    for over_both, *each in own_each.values():
        assert [row["n"] for row in each] == [1, 1] and over_both["hosts"] == 2, each
        assert over_both["spread"] == "range"
        assert {row["value"] for row in each} == {over_both["low"], over_both["high"]}


def test_a_block_that_went_on_elsewhere_stays_one_and_its_attempts_get_the_next_numbers(tmp_path):
    folder, other = tmp_path / "results" / "h200", tmp_path / "other"
    both = MEASURED_ONCE[1:2]
    lay(folder, 1, cells=MEASURED_ONCE[:2])
    lay(folder, 3, cells=both, attempt=2)
    lay(other, 1, cells=MEASURED_ONCE[1:3])
    again = lay(other, 2, cells=both, attempt=2) / "cells" / both[0] / "r1" / "a2" / "run.json"
    record = json.loads(again.read_text())
    failed = again.parent.with_name("a3") / "run.json"  # where a result is here
    failed.parent.mkdir()
    record["cell"]["attempt"] = 3
    record["provenance"]["started_at"] = "2030-01-01T00:00:00+00:00"
    nothing = {"members": [], "windows": [], "files": {}, "telemetry": None}
    failed.write_text(json.dumps(record | nothing | {"status": "failed"}))
    before = there(folder)
    done = merge(other, folder.parent)
    assert "2 attempts merged, 1 were there" in done.stdout, done.stdout + done.stderr
    (said,) = done.stderr.splitlines()
    assert f"cell {MEASURED_ONCE[1]}/r1 a3: failed, and has a result here" in said
    assert before.items() < there(folder).items()
    found = {str(a) for a in contents.attempts(there(folder))}
    numbers = {(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)}
    assert found == {f"{MEASURED_ONCE[cell]}/r1 a{number}" for cell, number in numbers}
    tried = scan(folder / "cells")
    assert all(attempt.content for each in tried.values() for attempt in each)
    said = verify.raw(folder, there(folder))
    assert [line.wrong for line in said if "cell" in line.artefact] == []


MISFITS = {
    "another study": (lambda r: r.update(study="theirs"), "belongs to study 'theirs'"),
    "settings": (lambda r: r["spec"].update(seed=7), "other settings: seed 7 → 42"),
    "put off": (lambda r: r.update(status="postponed", members=[], windows=[]), "was put off"),
    "a rate": (
        lambda r: r["members"][0]["windows"]["window"].update(samples_per_s=1.0),
        "samples_per_s is 1.0",
    ),
    "of another cell": (lambda r: r["cell"].update(attempt=2), "run.json is of cell"),
}


def test_what_does_not_belong_is_named_and_left_out(tmp_path):
    source = lay(tmp_path / "other", 1)
    for cell, (change, _) in zip(MEASURED_ONCE, MISFITS.values(), strict=False):
        path = source / "cells" / cell / "r1" / "a1" / "run.json"
        record = json.loads(path.read_text())
        change(record)
        path.write_text(json.dumps(record))
    unplanned = source / "cells" / "9x_nothing" / "paper_step" / "naive" / "r1" / "a1"
    shutil.copytree(source / "cells" / MEASURED_ONCE[5] / "r1" / "a1", unplanned)
    text = (unplanned / "run.json").read_text()
    record = json.loads(text.replace(MEASURED_ONCE[5].split("/")[0], "9x_nothing"))
    record["cell"] |= {"id": "9x_nothing/paper_step/naive/r1", "method": "naive"}
    record["method"]["name"] = "naive"
    (unplanned / "run.json").write_text(json.dumps(record))
    found = manifest.digests(source)
    lost = f"cells/{MEASURED_ONCE[6]}/r1/a1/gpu.parquet"
    (source / "raw.sha256").write_text(manifest.text(found | {lost: "0" * 64}))
    done = merge(source, tmp_path / "results", "study=h200")
    lines = done.stderr.splitlines()
    said = [*(said for _, said in MISFITS.values()), "is no cell of this study"]
    for cell, text in zip([*MEASURED_ONCE[:5], "9x_nothing"], said, strict=True):
        assert [line for line in lines if cell in line and text in line], (text, lines)
    assert [line for line in lines if MEASURED_ONCE[6] in line and "not what was sealed" in line]
    assert len(lines) == 7 and "1 attempts merged" in done.stdout
    kept = {name.split("/r1/")[0] for name in there(tmp_path / "results" / "h200")}
    assert kept == {f"cells/{MEASURED_ONCE[5]}"}


def test_a_study_that_is_sealed_or_running_is_left_as_it_is(copy, tmp_path):
    other, before = lay(tmp_path / "other", 2, "machine-0000000b"), manifest.digests(copy)
    done = merge(other, copy.parent)
    assert done.returncode == 1 and "is sealed" in done.stderr and manifest.digests(copy) == before
    results = tmp_path / "running"
    with folder_lock(results / "h200", {"pid": 7}):
        done = merge(other, results)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "is being run" in done.stderr and "pid 7" in done.stderr
    assert not (results / "h200" / "cells").exists()


def test_a_merge_that_is_interrupted_leaves_whole_attempts_and_goes_on(tmp_path, monkeypatch):
    folder, source = tmp_path / "results" / "h200", lay(tmp_path / "other", 1)
    (folder / ".merge" / "cells").mkdir(parents=True)  # of one that was killed
    (folder / "cells" / MEASURED_ONCE[0] / "r1" / "a1" / "log").mkdir(parents=True)
    (folder / "cells" / MEASURED_ONCE[0] / "r1" / "a1.bak").mkdir()
    (folder / "cells" / MEASURED_ONCE[0] / "r1" / "a1.bak" / "run.json").touch()
    before, moved = manifest.digests(folder), []

    for made, end in ((0, KeyboardInterrupt()), (2, OSError(28, "No space left on device"))):

        def rename(path: Path, target: Path, end=end, most=made) -> None:
            if len(moved) == most + 2:
                raise end
            moved.append(target)
            path.replace(target)

        with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, SystemExit)) as said:
            patch.setattr(Path, "rename", rename)
            release.merge.main(source, [f"results={folder.parent}"])
        assert len(there(folder)) == sum(len([*target.iterdir()]) for target in moved) + 1
    words = "2 of 5 attempts are merged, and the same command carries on: [Errno 28] No space"
    assert str(said.value).startswith(f"{folder}: {words}") and "\n" not in str(said.value)
    for copied in before:
        (folder / copied).unlink()
    assert "3 attempts merged, 4 were there" in merge(source, folder.parent).stdout
    assert there(source) == there(folder)


@pytest.mark.parametrize(("name", "held"), [("h200", True), ("turns", False)])
def test_readme_is_held_against_its_own_study_whatever_it_links_to(name, held):
    study = REPOSITORY / "results" / name
    assert f"(results/{name}/" in (REPOSITORY / "README.md").read_text()
    said = [line.artefact for line in verify.readme(study, study)]
    assert ("README.md" in said) is held and bool(said) is held
