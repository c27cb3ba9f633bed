"""Forgeries of shipped studies that agree with themselves, and what verify says of each.

Whoever forges derives everything anew and makes every hash right: raw files alone can tell.
"""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from release import manifest
from release.manifest import Attempt
from tests.forging import as_it_was, change, forge, rename, scaled, times, wrong
from tests.studio import REPOSITORY
from workflow.collocation.record import step_times
from workflow.collocation.record.values import Window
from workflow.collocation.study.grid import MERGED_OFFSET

PAIR = "1x_resnet18_digits_b64_triggered+1x_resnet26_cifar10_b128/bf16"
CELL = Attempt(f"{PAIR}/mps_60/r1", 1)
OTHER_HOST = Attempt(f"{PAIR}/mps/r3", 1)
# On two cards of one machine, at the same time.
BUSY, BUSY_BESIDE = Attempt(f"{PAIR}/mps_60/r2", 1), Attempt(f"{PAIR}/mps/r2", 1)
INTERLEAVED = Attempt("3x_asr_b240--interleaved/bf16/alone-2xnaive-naive-2xmps-mps/r1", 1)
WINDOW, MEMBER = "telemetry windows window", "members 0 windows window"
HOUR_NS = 3600 * 10**9


def copy_of(study: str, folder: Path) -> Path:
    """A shipped study's raw files, to be altered."""
    source, copy = REPOSITORY / "results" / study, folder / "results" / study
    for name in manifest.digests(source):
        if manifest.is_raw(name):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, copy / name)
    return copy


def record_of(study: Path, attempt: Attempt) -> dict:
    return json.loads((study / attempt.folder / "run.json").read_text("utf-8"))


def altered(how, attempt: Attempt = CELL, **columns):
    """What alters one record, and columns of its series."""
    return lambda study: forge(study, attempt, how, **columns)


def share(metric: str):
    """What makes a share of the GPU's time larger by 30 %, in the record alone."""
    return altered(times(f"{WINDOW} entities gpu {metric}", 1.3))


def without_evidence(record: dict) -> None:
    record["method"]["evidence"] = {when: {"verified": True} for when in ("barrier", "end")}


def of_a_stranger(record: dict) -> None:
    """Evidence of another process of the same cell."""
    record["method"]["evidence"]["end"]["clients"][0] += 1


def relabelled(attempt: Attempt, other: Attempt):
    """A cell says that it ran on the card, and the machine, of another one."""

    def how(study: Path) -> None:
        path = study / attempt.folder / "run.json"
        before, after = record_of(study, attempt), record_of(study, other)
        rename(path, before["gpu"]["uuid"], after["gpu"]["uuid"])
        rename(path, before["provenance"]["machine"], after["provenance"]["machine"])

    return how


def copied(study: Path) -> None:
    """A cell is a further replicate, an hour later by every clock, and planned."""
    cell = f"{PAIR}/mps_60/r{1 + MERGED_OFFSET}"
    copy = Attempt(cell, 1)
    shutil.copytree(study / CELL.folder, study / copy.folder)
    files = {}
    for path in (study / copy.folder).glob("*.parquet"):
        table = pq.read_table(path)
        if b"origin_ns" not in (table.schema.metadata or {}):
            continue
        origin_ns = int(table.schema.metadata[b"origin_ns"]) + HOUR_NS
        metadata = table.schema.metadata | {b"origin_ns": str(origin_ns).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
        files[path.name] = {"sha256": manifest.sha256(path), "bytes": path.stat().st_size}

    def later(record: dict) -> None:
        record["cell"] |= {"id": cell, "replicate": 1 + MERGED_OFFSET}
        record["files"] |= files
        record["provenance"]["started_at"] = "2026-11-26T17:09:08+00:00"
        for window in record["windows"]:
            window["start_ns"] += HOUR_NS
            window["end_ns"] += HOUR_NS

    change(study / copy.folder / "run.json", later)
    with (study / "runs.txt").open("a") as lines:
        lines.write(f"results/retrain/{copy.folder}/run.json\n")
    plan = json.loads((study / "plan.json").read_text("utf-8"))
    [planned] = [entry for entry in plan if entry["id"] == CELL.cell]
    plan.append(planned | {"id": cell, "replicate": 1 + MERGED_OFFSET})
    (study / "plan.json").write_text(json.dumps(plan), encoding="utf-8")


def without_rounds(rounds: slice):
    """Three rounds are gone from an interleaved cell, from its rates and from its spec."""

    def how(record: dict) -> None:
        record["spec"]["measure"]["slices"] -= 3
        steps = pq.read_table(REPOSITORY / "results/asr" / INTERLEAVED.folder / "steps.parquet")
        end_ns = {member: ends for member, (ends, _) in step_times.read_steps(steps).items()}
        for window in record["windows"]:
            del window["spans"][rounds]
            window["start_ns"], window["end_ns"] = window["spans"][0][0], window["spans"][-1][1]
            window["seconds"] = sum(end - start for start, end in window["spans"]) / 1e9
            for member in record["members"]:
                if window["name"] in member["windows"]:
                    batch_size = record["spec"]["members"][member["member"]]["batch_size"]
                    drop_s = record["spec"]["measure"]["drop_s"]
                    rate = step_times.member_rate(
                        Window(**window), end_ns[member["member"]], batch_size, drop_s
                    )
                    member["windows"][window["name"]] |= rate.model_dump(exclude={"latency"})

    return altered(how, INTERLEAVED)


def declared_failed(record: dict) -> None:
    record.update(status="failed", phase="window", reason="member 0: Error")


def planned_less(study: Path) -> None:
    """A cell was never planned, and is gone."""
    shutil.rmtree(study / CELL.folder)
    change(
        study / "plan.json", lambda plan: plan.remove(next(c for c in plan if c["id"] == CELL.cell))
    )
    lines = (study / "runs.txt").read_text().splitlines()
    manifest.write_lines(study / "runs.txt", [line for line in lines if CELL.folder not in line])


def less_energy(record: dict) -> None:
    for number in ("joules", "mean_power"):
        record["telemetry"]["windows"]["window"]["energy"][number] *= 0.8


FORGERIES = {
    "smact": ("retrain", share("smact"), "smact of gpu is"),
    "tenso": ("retrain", share("tenso"), "tenso of gpu is"),
    "drama": ("retrain", share("drama"), "drama of gpu is"),
    "memory": ("retrain", share("memory_used"), "memory_used of gpu is"),
    "rounds in the middle": ("asr", without_rounds(slice(4, 7)), "is a hole of"),
    "rounds at the end": ("asr", without_rounds(slice(-3, None)), "slices 12 → 9"),
    "copied": ("retrain", copied, "are copies"),
    "evidence emptied": ("retrain", altered(without_evidence), "does not name member 0"),
    "evidence of another": ("retrain", altered(of_a_stranger), "does not name member"),
    "another card": ("retrain", relabelled(BUSY, BUSY_BESIDE), "at the same time"),
    "declared failed": ("retrain", altered(declared_failed), "every member ended well"),
    "less energy": ("retrain", altered(less_energy), "the energy counter gives"),
    "counter lowered": (
        "retrain",
        altered(as_it_was, gpu__energy=scaled(0.5)),
        "energy counter goes from",
    ),
    "planned less": ("retrain", planned_less, "it is not what retrain.yaml plans"),
    "settings": ("retrain", altered(times("spec seed", 2)), "other settings than retrain.yaml"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named(tmp_path, name):
    study_name, how, sentence = FORGERIES[name]
    study = copy_of(study_name, tmp_path)
    assert wrong(study) == []
    how(study)
    problems = wrong(study)
    assert any(sentence in problem for problem in problems), problems


def a_member_declared_failed(record: dict) -> None:
    declared_failed(record)
    record["members"][0].update(status="failed", phase="window", error="Error", windows={})


def more_smact(record: dict) -> None:
    """In the record as in the readings."""
    for part in ("entities", "series"):
        record["telemetry"]["windows"]["window"][part]["gpu"]["smact"] *= 1.3


UNSEEN = {
    "SMACT and its readings": altered(more_smact, gpu__smact=scaled(1.3)),
    "member declared failed": altered(a_member_declared_failed),
    "idle card of the same host": relabelled(CELL, Attempt(f"{PAIR}/mps/r1", 1)),
    "another host at another time": relabelled(CELL, OTHER_HOST),  # it may have been restarted
    "PCIe": share("pcie_rx"),
    "losses": altered(lambda record: record["members"][0]["loss"]["value"].reverse()),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_raw_file_contradicts_is_not_named(tmp_path, name):
    """docs/artifact.md says so."""
    study = copy_of("retrain", tmp_path)
    UNSEEN[name](study)
    assert wrong(study) == []
