"""What reviewers use: seal, verify, artifact and merge, on some of the cells that ship."""

import json
import re
import shutil
import subprocess
import tarfile
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from collocate.outputs import derive
from release import checks, manifest, private, verify
from release.bundle import artifact, seal
from release.manifest import Attempt
from tests import warm
from tests.forging import as_it_was, change, forge, rename, scaled, times, wrong
from tests.studio import REPOSITORY
from workflow.collocation.gpu.lock import folder_lock
from workflow.collocation.study.grid import MERGED_OFFSET

SOURCE = REPOSITORY / "results" / "ladder"
PLAIN = "1x_dlrm_criteo_b2048/paper_step/naive"
MIX = "1x_dlrm_criteo_b2048+1x_resnet152_imagenet_b32/paper_step"
KEPT = [f"{PLAIN}/r7", f"{PLAIN}/r8", f"{MIX}/naive/r8", f"{MIX}/mps/r8"]
FULL = "5x_resnet152_imagenet_b256/paper_step/naive/r7"  # which ran out of memory
NEVER_RUN = f"{MIX}/naive/r7"
PAIR = Attempt(f"{MIX}/mps/r8", 1)
HERE, ELSEWHERE = Attempt(f"{PLAIN}/r8", 1), Attempt(f"{PLAIN}/r7", 1)  # of two machines
INTERLEAVED = Attempt("1x_resnet152_imagenet_b32--interleaved/paper_step/alone-mps/r4", 1)
# Written so that they are not in this file as a whole: the archive holds it.
SECRET = "/".join(("", "home", "somebody", "data"))
BOB = ".".join(("bob", "smith"))


def command(*arguments: object) -> subprocess.CompletedProcess:
    """`collocate ...`"""
    return warm.run("collocate", *arguments)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A study of some cells of the one that ships, with everything derived, sealed."""
    folder = tmp_path_factory.mktemp("release") / "results" / "ladder"
    for cell in (*KEPT, FULL):
        shutil.copytree(SOURCE / "cells" / cell, folder / "cells" / cell)
    shutil.copytree(SOURCE / "datasets", folder / "datasets")
    plan = json.loads((SOURCE / "plan.json").read_text("utf-8"))
    plan = [cell for cell in plan if cell["replicate"] < MERGED_OFFSET]
    (folder / "plan.json").write_text(json.dumps(plan))
    records = sorted(folder.glob("cells/*/*/*/*/*/run.json"))
    lines = [path.relative_to(folder.parents[1]).as_posix() for path in records]
    manifest.write_lines(folder / "runs.txt", lines)
    derive(folder, paper=True)
    assert seal(folder, derive) == 0
    return folder


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    """The sealed study, to be altered."""
    return shutil.copytree(finished, tmp_path / "results" / "ladder")


FIRST, SEEN = "members 0 windows window", "telemetry windows window"
FORGERIES = [
    (times(f"{FIRST} samples_per_s", 1.02), {}, "samples_per_s is"),
    (times(f"{FIRST} steps", 2), {}, "steps is"),
    (times(f"{FIRST} step_ms_p50", 0.99), {}, "step_ms_p50 is"),
    (times(f"{SEEN} entities gpu gract", 1.049), {}, "gract of gpu is"),
    (times(f"{SEEN} energy integrated_joules", 0.9), {}, "integrated_joules is"),
    (times("windows 0 seconds", 1.01), {}, "by its ends"),
    (times("method evidence end verified", 0), {}, "method is verified, and its evidence is not"),
    (lambda record: record["members"][0]["windows"].clear(), {}, "completed, 1 of 2 members are"),
    (as_it_was, {"gpu__power": scaled(0.9)}, "gpu.power is"),
    (as_it_was, {"steps__tick": scaled(2)}, "windows.window"),
    (as_it_was, {"member__gpu_memory": scaled(2)}, "gpu_memory is"),
]


@pytest.mark.parametrize(("how", "columns", "said"), FORGERIES)
def test_a_forged_cell_is_named_with_every_hash_recomputed(copy, how, columns, said):
    assert wrong(copy) == []
    forge(copy, PAIR, how, **columns)
    lines = wrong(copy)
    assert lines and all(str(PAIR) in line for line in lines)
    assert any(said in line for line in lines), lines


def test_an_altered_rate_is_named_from_the_record_to_the_estimates(copy):
    forge(copy, PAIR, times(f"{FIRST} samples_per_s", 1.02))
    done = command("verify", copy)
    named = [line.split(": ")[0] for line in done.stdout.splitlines() if "DIFFERS" in line]
    for artefact in (f"raw files of cell {PAIR}", "runs.parquet", "estimates.csv"):
        assert f"DIFFERS {artefact}" in named, done.stdout
    assert done.returncode == 1


def swapped_hosts(copy):
    """Two cells of two machines; each says that it is of the other's, with its GPU and session, and
    that it began a second before it.
    """
    paths = [copy / attempt.folder / "run.json" for attempt in (HERE, ELSEWHERE)]
    one, other = (json.loads(path.read_text("utf-8")) for path in paths)
    for key in ("machine", "session"):
        a, b = one["provenance"], other["provenance"]
        assert a[key] != b[key]
        a[key], b[key] = b[key], a[key]
    a["started_at"], b["started_at"] = a_second_before(b), a_second_before(a)
    one["gpu"], other["gpu"] = other["gpu"], one["gpu"]
    for path, record in zip(paths, (one, other), strict=True):
        path.write_text(json.dumps(record), encoding="utf-8")


def a_second_before(provenance: dict) -> str:
    return (datetime.fromisoformat(provenance["started_at"]) - timedelta(seconds=1.5)).isoformat()


def in_one_second(copy):
    """One cell says that it began when the one before it on its GPU did."""
    before = Attempt(f"{MIX}/naive/r8", 1)
    began = json.loads((copy / before.folder / "run.json").read_text("utf-8"))["provenance"]
    own = copy / HERE.folder / "run.json"
    change(own, lambda r: r["provenance"].update(started_at=began["started_at"]))


def copied(copy):
    """A cell is another replicate of itself."""
    other = Attempt(PAIR.cell.replace("/r8", "/r7"), 1)
    shutil.copytree(copy / PAIR.folder, copy / other.folder)
    forge(copy, other, lambda record: record["cell"].update(id=other.cell, replicate=7))


def not_analysed(copy):
    lines = (copy / "runs.txt").read_text().splitlines()
    manifest.write_lines(copy / "runs.txt", [line for line in lines if PAIR.folder not in line])


def taken_away(copy):
    not_analysed(copy)
    shutil.rmtree(copy / PAIR.folder)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (swapped_hosts, "has another clock than the machine"),
        (in_one_second, "at the same time"),
        (copied, "at the same time"),
        (taken_away, f"cell {PAIR.cell}: whether it has a record"),
        (not_analysed, "run.json is not in runs.txt"),
    ],
)
def test_cells_that_do_not_agree_with_each_other_are_named(copy, how, said):
    how(copy)
    assert any(said in line for line in wrong(copy)), wrong(copy)


def trimmed(window, _):
    """Every slice to its best 62 %."""
    for span in window["spans"]:
        span[1] = span[0] + int(0.62 * (span[1] - span[0]))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (trimmed, "do not last"),
        (lambda w, _: w["spans"].pop(), "slices, not"),
        (lambda w, _: w["spans"][3].__setitem__(1, w["spans"][3][1] - 10**7), "do not last"),
        (lambda w, _: w["spans"].__setitem__(1, w["spans"][0]), "before another one is over"),
        (lambda _, m: m["slices"].__setitem__(2, 2 * m["slices"][2]), "slices[2] is"),
        (lambda _, m: m.update(samples_per_s=1.05 * m["samples_per_s"]), "samples_per_s is"),
    ],
)  # fmt: skip
def test_slices_are_as_many_and_as_long_as_the_spec_says(tmp_path, how, said):
    folder = shutil.copytree(SOURCE / INTERLEAVED.folder, tmp_path / INTERLEAVED.folder)
    digests = {path.name: manifest.sha256(path) for path in folder.iterdir() if path.is_file()}
    assert checks.check_attempt(tmp_path, INTERLEAVED, digests).problems == []

    def both(record: dict) -> None:
        window, member = record["windows"][0], record["members"][0]
        how(window, member["windows"][window["name"]])

    change(folder / "run.json", both)
    found = checks.check_attempt(tmp_path, INTERLEAVED, digests).problems
    assert any(said in line for line in found), found


def test_files_that_changed_since_the_seal_are_named(copy):
    assert command("verify", copy).returncode == 0
    (copy / PAIR.folder / "host.parquet").unlink()
    (copy / PAIR.folder / "notes.txt").write_text("1")
    (copy / "plan.json").write_text((copy / "plan.json").read_text() + "\n")
    done = command("verify", copy)
    for said in ("host.parquet is missing", "notes.txt is not listed", "plan.json is not what was"):
        assert said in done.stdout
    assert done.returncode == 1 and seal(copy, derive) == 1


def test_each_cell_that_was_removed_from_a_sealed_study_is_named(copy):
    removed = [*manifest.attempts(manifest.digests(copy))]
    for attempt in removed:
        shutil.rmtree(copy / attempt.folder)
    lines = [line.text() for line in verify.verify_study(copy, derive)]
    for attempt in removed:
        assert f"DIFFERS cell {attempt}: was sealed, and is gone" in lines, lines


@pytest.mark.parametrize("name", [f"{PAIR.folder}/{n}" for n in ("run.json", "steps.parquet")])
def test_no_content_raises(copy, name):
    for content in (b"", b"\xff\x00", b"[" * 100_000, b'{"a": 1}', b"PAR1" * 9):
        (copy / name).write_bytes(content)
        assert wrong(copy), content


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("rate 0.1 at 2", "rate 0.10000000000000001 at 2", True),
        ("v\n1.5\n", "v\n1.50000000000001\n", True),
        ("v\n1.5\n", "v\n1.500001\n", False),
        ("n 2", "n 3", False),
        ("a\nb\nc", "a\nb", False),
    ],
)
def test_differences_are_of_values_not_of_bytes(one, other, same):
    assert (verify.text_differences(one, other) == []) is same


def test_what_is_private_or_unfinished_is_not_sealed(copy, capsys):
    token = "gh" + "p_" + 36 * "a"
    (copy / "datasets" / "notes.json").write_text(json.dumps({"path": SECRET, "note": token}))
    (copy / "cells" / NEVER_RUN / "a1").mkdir(parents=True)
    (copy / "cells" / NEVER_RUN / "a1" / "note").write_bytes(b"")
    assert seal(copy, derive) == 1
    said = capsys.readouterr().err
    assert "datasets/notes.json: path" in said and f"{NEVER_RUN}/a1 has no run.json" in said
    assert "datasets/notes.json: token" in said and token not in said


def test_an_archive_checks_itself(finished, tmp_path):
    assert artifact(finished, tmp_path / "a.tar.xz", derive) == 0
    with tarfile.open(tmp_path / "a.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    there = tmp_path / "gpu-collocation-study-ladder"
    for folder, name in ((there, "MANIFEST"), (there / "results/ladder", "raw")):
        line = ["sha256sum", "--quiet", "-c", f"{name}.sha256"]
        assert subprocess.run(line, cwd=folder).returncode == 0
    assert manifest.root(finished) in (there / "ARTIFACT.md").read_text("utf-8")
    assert (there / "release/verify.py").exists()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"at {SECRET}", "path"),
        *(("/".join(("at ", place, "x1", "y")), "path") for place in ("u", "users", "project")),
        (f"in {'~'}bob/data", "path"),
        ("file:" + "/" * 3 + "elsewhere/x", "path"),
        ("\\".join(("C:", "Users", "somebody")), "path"),
        (".".join(("10", "20", "30", "40")), "address"),
        (":".join(("2001", "db8", "", "17")), "address"),
        (":".join(("aa", "bb", "cc", "dd", "ee", "0f")), "hardware address"),
        ("@".join((BOB, "uni.example")), "e-mail address"),
        (".".join(("gpu17", "cluster", "example", "edu")), "host name"),
        ("ghp" + "_" + 30 * "a", "token"),
        ("AKIA" + 16 * "B", "token"),
        ("on node-a17.", "host name"),
        ("PID 12 (their_tool, {} {})".format("owner", BOB), "process of somebody"),
        ("PID 12 (python3, {} root)".format("owner"), None),
        ("GPU-b6efbf7a-8d3a-6dd7-c63b-16033fb68d0f machine-7f32e10c at 12:34:56", None),
        ("driver 580.159.04, https://example.org/data/x, a/tmp/b, 127.0.0.1, 7.6.1.1", None),
    ],
)
def test_what_is_private(text, kind):
    found = private.Detector({"node-a17": "host name"}).in_text(text)
    assert {*found.values()} == ({kind} if kind else set())


# -- merge: cells of the same study, measured elsewhere -------------------------------------------

BIG = "3x_resnet152_imagenet_b32--interleaved"
MEASURED_ONCE = [
    "2x_cait_xxs24_imagenet_b128--interleaved/paper_step/naive-mps",
    "3x_cait_xxs24_imagenet_b128--interleaved/paper_step/alone-2xmps-mps",
    "3x_dlrm_criteo_small_b2048--interleaved/paper_step/alone-naive-mps",
    f"{BIG}/graph/alone-naive-mps-streams",
    f"{BIG}/compile/alone-naive-mps-streams",
    f"{BIG}/paper_step/alone-2xnaive-naive-2xmps-mps",
]


def lay(folder: Path, replicate: int, machine: str = "", cells=MEASURED_ONCE) -> Path:
    """A results folder with a replicate of the study that ships, as replicate 1."""
    for cell in cells:
        there = folder / "cells" / cell / "r1" / "a1"
        shutil.copytree(SOURCE / "cells" / cell / f"r{replicate}" / "a1", there)

        def moved(record: dict, cell: str = cell) -> None:
            record["cell"] |= {"id": f"{cell}/r1", "replicate": 1}
            record["provenance"]["machine"] = machine or record["provenance"]["machine"]

        change(there / "run.json", moved)
        uuid = json.loads((there / "run.json").read_text())["gpu"]["uuid"]
        rename(there / "run.json", uuid, uuid + machine)
    return folder


def merge(source: Path, results: Path, *settings: str) -> subprocess.CompletedProcess:
    options = [word for pair in settings for word in ("--set", pair)]
    return command("merge", source, "--results", results, *options)


def there(folder: Path) -> dict[str, str]:
    """Every file of its cells, with its SHA-256; nothing is left beside them."""
    assert not [*folder.rglob(".a*")]
    return {n: d for n, d in manifest.digests(folder).items() if n.startswith("cells/")}


def test_two_hosts_that_measured_the_same_replicate_stay_two_and_come_once(tmp_path):
    results = tmp_path / "results"
    own, other = lay(results / "ladder", 1), lay(tmp_path / "other", 2, "machine-0000000b")
    before = there(own)
    done = merge(other, results, "study=ladder")
    assert done.returncode == 0, done.stderr
    assert f"{len(MEASURED_ONCE)} attempts merged, 0 were there" in done.stdout
    after = there(own)
    assert before.items() < after.items()
    assert any("/r1001/a1/" in name for name in after)
    settings = ["--set", f"results={results}", "--set", "measure=false"]
    plan = warm.run("collocate", "plan", "ladder", *settings)
    n = len(MEASURED_ONCE)
    said = rf"(\d+) cells \({n} merged from elsewhere\), {2 * n} measured, (\d+) not\n"
    every, left = map(int, re.search(said, plan.stdout).groups())
    assert left == every - 2 * n > 0
    again = merge(other, results)
    assert f"0 attempts merged, {len(MEASURED_ONCE)} were there" in again.stdout
    assert there(own) == after


def test_a_replicate_that_went_on_elsewhere_stays_one(tmp_path):
    folder, other = tmp_path / "results" / "ladder", tmp_path / "other"
    lay(folder, 1, cells=MEASURED_ONCE[:2])
    lay(other, 1, cells=MEASURED_ONCE[1:3])
    done = merge(other, folder.parent)
    assert "1 attempts merged, 1 were there" in done.stdout, done.stdout + done.stderr
    found = {str(attempt) for attempt in manifest.attempts(there(folder))}
    assert found == {f"{cell}/r1 a1" for cell in MEASURED_ONCE[:3]}


MISFITS = [
    (lambda r: r.update(study="theirs"), "belongs to study 'theirs'"),
    (lambda r: r["spec"].update(seed=7), "other settings: seed 7 → 42"),
    (lambda r: r["members"][0]["windows"]["alone"].update(samples_per_s=1.0), "per_s is 1.0"),
    (lambda r: r["cell"].update(attempt=2), "run.json is of cell"),
    (as_it_was, "is not what was sealed"),
]


def test_what_does_not_belong_is_named_and_left_out(tmp_path):
    source = lay(tmp_path / "other", 1)
    for cell, (how, _) in zip(MEASURED_ONCE, MISFITS, strict=False):
        change(source / "cells" / cell / "r1" / "a1" / "run.json", how)
    sealed = manifest.digests(source)
    sealed[f"cells/{MEASURED_ONCE[4]}/r1/a1/gpu.parquet"] = "0" * 64
    (source / "raw.sha256").write_text(manifest.list_text(sealed))
    done = merge(source, tmp_path / "results", "study=ladder")
    lines = done.stderr.splitlines()
    for cell, (_, said) in zip(MEASURED_ONCE, MISFITS, strict=False):
        assert [line for line in lines if cell in line and said in line], (said, lines)
    assert len(lines) == 5 and "1 attempts merged" in done.stdout


def test_a_study_that_is_sealed_or_running_is_left_as_it_is(copy, tmp_path):
    other, before = lay(tmp_path / "other", 2, "machine-0000000b"), manifest.digests(copy)
    done = merge(other, copy.parent)
    assert done.returncode == 1 and "is sealed" in done.stderr and manifest.digests(copy) == before
    results = tmp_path / "running"
    with folder_lock(results / "ladder", {"pid": 7}):
        done = merge(other, results)
    assert done.returncode == 1 and "in use by pid 7" in done.stderr
    assert not (results / "ladder" / "cells").exists()


def test_a_bundle_that_is_not_there_is_one_line(tmp_path):
    done = merge(tmp_path / "nowhere", tmp_path / "ours", "study=ladder")
    assert done.returncode == 2 and "nowhere: no such file or folder" in done.stderr


# -- after an interruption, on a full disk --------------------------------------------------------


def lists(study: Path) -> list[bytes]:
    return [(study / name).read_bytes() for name in (manifest.RAW, manifest.MANIFEST)]


@pytest.mark.parametrize("name", [manifest.RAW, manifest.MANIFEST, manifest.NOT_RUN])
@pytest.mark.parametrize("kept", [0, 40, 80, -1, -30])
def test_a_list_that_was_cut_is_written_anew(copy, monkeypatch, name, kept):
    monkeypatch.setattr(verify, "check_contents", lambda study, found, derive: [])
    before = lists(copy)
    (copy / name).write_bytes((copy / name).read_bytes()[:kept])
    assert seal(copy, derive) == 0 and lists(copy) == before


class Sealed:
    """How `seal` is tried: on a finished study, sealed before or not."""

    def __init__(self, finished, folder):
        self.study = shutil.copytree(finished, folder / "results" / "ladder")
        self.changed, self.arguments = self.study, ["seal", self.study]
        (self.study / manifest.RAW).unlink()

    def right(self) -> bool:
        return bool(manifest.read_list(self.study / manifest.MANIFEST))


class Packed:
    """How `artifact` is tried."""

    def __init__(self, finished, folder):
        self.changed = folder
        self.archive = folder / "build" / "a.tar.xz"
        self.arguments = ["artifact", finished, "--output", self.archive]

    def right(self) -> bool:
        with tarfile.open(self.archive) as packed:
            return bool(packed.getmembers()) and [*self.archive.parent.iterdir()] == [self.archive]


class Merged:
    """How `merge` is tried."""

    def __init__(self, finished, folder):
        del finished
        source, self.changed = lay(folder / "other", 1, cells=MEASURED_ONCE[:2]), folder / "results"
        self.arguments = ["merge", source, "--results", self.changed, "--study", "ladder"]

    def right(self) -> bool:
        return len(manifest.attempts(there(self.changed / "ladder"))) == 2


def faulty(tried, **fault) -> subprocess.CompletedProcess:
    fault = json.dumps({"folder": str(tried.changed)} | fault)
    return warm.run("tests.faulty", fault, "collocate", *tried.arguments)


@pytest.mark.parametrize(("kind", "step"), [(Sealed, 2), (Packed, 2), (Merged, 13)])
def test_the_same_command_succeeds_after_it_was_killed_at_any_moment(
    finished, tmp_path, kind, step
):
    for number in range(1, 1000, step):
        tried = kind(finished, tmp_path / str(number))
        done = faulty(tried, change=number)
        if done.returncode == 0:  # it makes no more changes
            break
        assert done.returncode == -9, done.stderr
        again = faulty(tried)
        assert again.returncode == 0 and tried.right(), (number, again.stderr)
    assert number > 3 * step


@pytest.mark.parametrize("kind", [Sealed, Packed, Merged])
@pytest.mark.parametrize("size", [600, 3000])
def test_a_full_disk_is_one_line_and_then_the_same_command_succeeds(finished, tmp_path, kind, size):
    tried = kind(finished, tmp_path)
    done = faulty(tried, full=size)
    assert done.returncode == 1 and "File too large" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1
    again = faulty(tried)
    assert again.returncode == 0 and tried.right(), again.stderr
