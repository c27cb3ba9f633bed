"""The room analysis/: merge, metrics, checks, intervals, figures, tables, on synthetic records."""

import json
import math
import os
import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pandas as pd
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import flags, metrics, pages, style
from analysis.cells import NOT_RUN, load, read_runs, read_study, summarise
from analysis.figures import stem, stems
from analysis.figures.__main__ import main as draw
from analysis.records import losses, merge
from analysis.names import METHODS, method_order
from analysis.tables import checks, evidence
from analysis.tables import summary as tables
from analysis.twins import phrase, twin_checks
from tests.records import TRAIN_SIZE, merged, record

# Metrics

rate = st.floats(1e-3, 1e6)
shares = st.lists(st.floats(0.01, 2.0), min_size=1, max_size=8)


@given(st.integers(1, 50), rate)
def test_members_at_alone_speed_give_stp_n(n, alone):
    p = [metrics.progress(alone, alone)] * n
    assert metrics.stp(p) == pytest.approx(n)
    assert metrics.antt(p) == metrics.jain(p) == pytest.approx(1)


@given(shares)
def test_bounds(p):
    assert len(p) * min(p) * (1 - 1e-9) <= metrics.stp(p) <= len(p) * max(p) * (1 + 1e-9)
    assert 1 / len(p) - 1e-9 <= metrics.jain(p) <= 1 + 1e-9
    # Harmonic against arithmetic mean.
    assert metrics.antt(p) * metrics.stp(p) >= len(p) * (1 - 1e-9)


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=4))
def test_order_of_members_does_not_matter(p):
    for order in permutations(p):
        assert metrics.stp(order) == pytest.approx(metrics.stp(p))
        assert metrics.antt(order) == pytest.approx(metrics.antt(p))
        assert metrics.jain(order) == pytest.approx(metrics.jain(p))


@given(st.integers(2, 8), rate, st.floats(0.01, 1.0))
def test_equal_members_beat_serial_exactly_when_stp_exceeds_one(n, alone, p):
    work = [alone] * n  # one second each
    together = metrics.makespan(work, [p * alone] * n, [alone] * n)
    serial = metrics.serial_time(work, [alone] * n)
    assert together == pytest.approx(1 / p)
    assert (together <= serial * (1 + 1e-9)) == (metrics.stp([p] * n) >= 1 - 1e-9)
    assert metrics.saving(together, serial) == pytest.approx(1 - 1 / (n * p))


@given(st.lists(st.tuples(rate, rate, st.floats(0.01, 1.0)), min_size=1, max_size=6))
def test_makespan_lies_between_the_longest_job_and_no_speed_up_at_the_end(jobs):
    work, alone, p = zip(*jobs, strict=True)
    collocated = [a * q for a, q in zip(alone, p, strict=True)]
    found = metrics.makespan(work, collocated, alone)
    assert found >= max(w / a for w, a in zip(work, alone, strict=True)) * (1 - 1e-9)
    assert found <= max(w / c for w, c in zip(work, collocated, strict=True)) * (1 + 1e-9)


def test_makespan_of_two_jobs():
    # 100 s at half speed for the short job; the long one has 150 of 200 left, alone at 1/s.
    assert metrics.makespan([50, 200], [0.5, 0.5], [1, 1]) == pytest.approx(250)
    assert metrics.makespan([1, 1], [0, 0], [1, 1]) == math.inf


# Merge


def test_progress_is_taken_within_block_arm_and_device():
    frame = merged(
        record("1x_a", rates=[1000]),
        record("1x_a", replicate=2, rates=[800]),
        record("2x_a", "mps", rates=[900, 800]),
        record("2x_a", "mps", replicate=2, rates=[400, 400]),
        record("2x_a", "mps", arm="tuned", rates=[900, 900]),
        record("2x_a--files", "mps", rates=[900, 900]),
        record("1x_a--allcores", rates=[2000]),
    )
    pair = frame[(frame["scenario"] == "2x_a") & (frame["arm"] == "faithful")]
    assert pair["progress"].tolist() == pytest.approx([0.9, 0.8, 0.5, 0.5])
    assert pair["slowdown"].tolist() == pytest.approx([1 / 0.9, 1.25, 2, 2])
    assert pair["epoch_time_s"].iloc[0] == pytest.approx(TRAIN_SIZE / 900)
    assert frame[frame["arm"] == "tuned"]["progress"].isna().all()
    assert frame[frame["scenario"] == "2x_a--files"]["progress"].isna().all()


@pytest.mark.parametrize(
    "status", ["out_of_memory", "unsupported", "failed", "timed_out", "postponed"]
)
def test_every_status_is_a_row_and_has_no_stp(status):
    other = record("2x_a", "mps", rates=[500, None], status=status, reason="why")
    frame = merged(record("1x_a"), other)
    rows = frame[frame["scenario"] == "2x_a"]
    started = status not in ("unsupported", "postponed")
    assert len(rows) == (2 if started else 1)
    assert rows["member"].isna().all() != started
    assert set(rows["status"]) == {status} and set(rows["reason"]) == {"why"}
    if started:  # the survivor's rate is kept
        assert rows["samples_per_s"].iloc[0] == 500
    cells = load(frame).cells
    cell = cells[cells["scenario"] == "2x_a"].iloc[0]
    assert cell["status"] == status and pd.isna(cell["stp"]) and pd.isna(cell["samples_per_s"])


def test_latest_attempt_wins_and_another_gpus_baseline_stays():
    frame = merged(
        record("1x_a", rates=[1000], gpu="GPU-1"),
        record("1x_a", rates=[500], gpu="GPU-2", attempt=2),
        record("2x_a", "mps", rates=[900, 900], gpu="GPU-1"),
        record("3x_a", "mps", rates=[100] * 3, gpu="GPU-2"),
        record("3x_a", "mps", rates=[250] * 3, gpu="GPU-2", attempt=2),
        record("2x_a", rates=[1, 1], gpu="GPU-1"),
        record("2x_a", rates=[250, 250], gpu="GPU-2", attempt=2),
    )
    alone = frame[frame["scenario"] == "1x_a"]
    assert alone["current"].tolist() == [False, True]
    assert frame[frame["cell"] == "2x_a/faithful/mps/r1"]["progress"].iloc[0] == pytest.approx(0.9)
    assert frame[frame["cell"] == "3x_a/faithful/mps/r1"]["progress"].tolist() == [0.5] * 3
    assert frame[frame["cell"] == "2x_a/faithful/naive/r1"]["progress"].tolist() == [0.5] * 2
    cells = load(frame).cells
    assert len(cells) == 4
    assert cells.set_index("cell")["stp"]["1x_a/faithful/naive/r1"] == 1


@pytest.mark.parametrize("statuses", list(permutations(["completed", "failed", "postponed"])))
def test_a_result_outlives_faults_whatever_their_order(statuses):
    attempts = [
        record("2x_a", rates=[1, 1], status=status, attempt=i)
        for i, status in enumerate(statuses, start=1)
    ]
    assert set(merged(*attempts)["status"]) == {"completed"}
    faults = [a for a in attempts if a["status"] != "completed"]
    assert set(merged(*faults)["status"]) == {"failed"}
    again = record("2x_a", status="out_of_memory", rates=[1, None], attempt=4)
    assert set(merged(*attempts, again)["status"]) == {"out_of_memory"}


def test_a_fault_on_another_gpu_hides_no_result():
    first = record("1x_a", rates=[1000], gpu="GPU-1")
    fault = record("1x_a", rates=[None], gpu="GPU-2", attempt=2, status="failed")
    pair = record("2x_a", rates=[500, 500], gpu="GPU-2")
    frame = merged(first, fault, pair)
    alone = frame[frame["scenario"] == "1x_a"]
    assert alone["status"].tolist() == ["completed"] and alone["current"].all()
    # A result on the second GPU is the newest, whatever fails there later.
    second = record("1x_a", rates=[800], gpu="GPU-2", attempt=3)
    later = record("1x_a", rates=[None], gpu="GPU-2", attempt=4, status="timed_out")
    frame = merged(first, fault, pair, second, later)
    alone = frame[frame["scenario"] == "1x_a"]
    assert alone["samples_per_s"].tolist() == [800]
    assert frame[frame["scenario"] == "2x_a"]["progress"].tolist() == [0.625] * 2


def test_suspect_numbers_are_flagged_for_the_whole_cell():
    frame = merged(
        record("1x_a", rates=[1000]),
        record("2x_a", rates=[1060, 900], flags=["cores_shared"]),
        record("3x_a", rates=[400] * 3, drift=-0.01),
        record("4x_a", rates=[400] * 4, drift=0.05, drift_error=0.03),
        record("5x_a", rates=[400] * 5, drift=-0.05, drift_error=0.02),
        record("7x_a", rates=[1040] * 7, drift=0.0099, drift_error=0.001),
    )
    found = frame.groupby("scenario")["flags"].agg(set).to_dict()
    assert found == {
        "1x_a": {""},
        "2x_a": {"cores_shared;suspect_baseline"},
        "3x_a": {"unsteady"},
        "4x_a": {""},  # two standard errors are more
        "5x_a": {"unsteady"},
        "7x_a": {""},
    }
    table = summarise(load(frame).cells).set_index("scenario")["flags"]
    assert flags.marks(table["2x_a"]) == "!÷" and flags.marks(table["3x_a"]) == "~"
    footer = "; ".join(style.footer_parts(frame)).replace("\u00a0", " ")
    assert "unsteady (drift beyond 1 % and noise): 2 of 6 cells" in footer
    assert "progress above 1.05, suspect baseline: 1 of 6 cells" in footer


@pytest.mark.parametrize(("rates", "suspect"), [([1030, 1031], True), ([1030, 980], False)])
def test_progress_above_one_beyond_its_interval_is_suspect(rates, suspect):
    records = [record("1x_a", replicate=r, rates=[1000]) for r in (1, 2)]
    records += [record("2x_a", replicate=r, rates=[p, 900]) for r, p in enumerate(rates, start=1)]
    pair = merged(*records).set_index("scenario")["flags"]["2x_a"]
    assert set(pair) == {flags.SUSPECT_BASELINE if suspect else ""}


@pytest.mark.parametrize(
    ("rates", "uneven"),
    [
        ([500, 500, 390], True),  # one slept
        ([500, 500, 410], False),
        ([500, 400, 300], True),  # a member's own rate is no part of what it is compared with
        ([500, 420], False),
        ([500, 410], True),
        ([500], False),
    ],
)
def test_members_that_do_the_same_at_different_rates_are_uneven(rates, uneven):
    cell = record(f"{len(rates)}x_a", "mps", rates=rates)
    assert set(merged(cell)["flags"]) == {flags.UNEVEN if uneven else ""}
    assert flags.marks(flags.UNEVEN) == "≠"
    unfinished = record("3x_a", rates=[500, 100, None], status="out_of_memory")
    assert set(merged(unfinished)["flags"]) == {""}


def test_members_that_differ_in_what_they_do_or_have_are_not_uneven():
    mix = record("2x_a+1x_b", rates=[500, 500, 90])
    limited = record("2x_a", "mps_lists", rates=[500, 250])
    for member, percent in zip(limited["spec"]["members"], (60, 30), strict=True):
        member["sm_percent"] = percent
    # Of three in two MIG instances, two share one.
    dealt = record("3x_a", "mig_mps", rates=[250, 500, 250])
    for member, device in zip(dealt["members"], ("MIG-1", "MIG-2", "MIG-1"), strict=True):
        member["device_uuid"] = device
    left = record("2x_a--departure", windows=[{"before": 500, "after": 900}, {"before": 510}])
    assert set(merged(mix, limited, dealt, left)["flags"]) == {""}


def test_a_completed_cell_whose_method_was_not_proven_is_flagged():
    frame = merged(
        record("1x_a", verified=True),
        record("2x_a", rates=[1, 1], verified=None),
        record("2x_a", "mps", rates=[1, 1], verified=False),
        record("3x_a", rates=[1, 1, None], status="out_of_memory", verified=None),
        record("3x_a", "mig", status="unsupported", reason="no MIG"),
    )
    found = frame.groupby(["scenario", "method"])["flags"].agg(set).to_dict()
    assert found == {
        ("1x_a", "naive"): {""},
        ("2x_a", "naive"): {flags.UNVERIFIED},
        ("2x_a", "mps"): {flags.UNVERIFIED},
        ("3x_a", "naive"): {""},
        ("3x_a", "mig"): {""},
    }
    assert flags.marks("unverified") == "?"
    assert flags.legend(["unverified"]) == ["? method not proven in force"]
    assert flags.marks("unverified;uneven;cores_shared;telemetry_incomplete") == "≠?÷+"
    footer = "; ".join(style.footer_parts(frame)).replace("\u00a0", " ")
    assert "? method not proven in force: 2 of 3 cells" in footer
    table = summarise(load(frame).cells)
    assert "unverified" in table.set_index(["scenario", "method"])["flags"]["2x_a", "mps"]


def test_whole_epochs_give_training_time_apart_from_validation():
    epochs = [
        {"epoch": i, "train_s": s, "validation_s": 5.0, "samples": 49_984, "accuracy": 0.3 + i / 10}
        for i, s in enumerate([50.0, 54.0])
    ]
    frame = merged(record("1x_a", rates=[961.2]), record("1x_a--epochs", rates=[1], epochs=epochs))
    row = frame[frame["window"] == "epochs"].iloc[0]
    assert row["epoch_time_s"] == 52 and row["epoch_time_kind"] == "trained"
    assert row["samples_per_s"] == pytest.approx(2 * 49_984 / 104)
    assert row["accuracy"] == pytest.approx(0.4) and row["validation_s"] == 5
    assert row["progress"] == pytest.approx(1, abs=1e-3)
    small = [epochs[0] | {"samples": 5_000, "train_s": 5.0}]
    row = merged(record("1x_a--epochs", epochs=small)).iloc[0]
    assert row["epoch_time_s"] == 50 and row["epoch_time_kind"] == "trained_scaled"


def test_limits_and_what_members_found_are_columns():
    limits = {"sm_percent": 14.29, "pinned_memory_mb": 2000}
    frame = merged(
        record("1x_a", sm_count=132),
        record("2x_a", "mps_small", rates=[1, 1], limits=limits, sm_count=18, uuids=["GPU-1"] * 2),
        record("2x_a", "mig", status="unsupported"),
    )
    columns = ["sm_percent", "pinned_memory_mb", "sm_count", "device_uuid", "method_verified"]
    rows = frame.set_index("method")[columns].astype(object)
    rows = rows.where(rows.notna(), None)
    assert rows.loc["naive"].tolist() == [None, None, 132, "GPU-1", True]
    assert rows.loc["mps_small"].iloc[1].tolist() == [14.29, 2000, 18, "GPU-1", True]
    assert rows.loc["mig"].tolist() == [None] * 5


def test_departure_has_a_row_per_member_and_window():
    windows = [{"before": 600}, {"before": 600, "after": 900}]
    frame = merged(record("1x_a"), record("2x_a--departure", "mps", windows=windows))
    assert frame["window"].tolist() == ["window", "before", "before", "after"]
    cells = load(frame).cells
    assert cells.set_index("window")["stp"].to_dict() == pytest.approx(
        {"window": 1, "before": 1.2, "after": 0.9}
    )


def test_command_line_survives_bad_files_and_is_reproducible(tmp_path, capsys):
    good = {
        "alone": record("1x_a"),
        "pair": record("2x_a", rates=[500, 400]),
        "bent": record("3x_a") | {"members": [{"member": 7}]},
        "foreign": record("2x_a", study="elsewhere"),
    }
    for name, content in good.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "cut.json").write_text('{"schema_version": 1, "cell"')
    named = record("1x_a") | {"cell": record("1x_a")["cell"] | {"scenario": "a"}}
    (tmp_path / "named.json").write_text(json.dumps(named))
    (tmp_path / "old.json").write_text('{"schema_version": 0}')
    (tmp_path / "list").write_text("\n".join(str(p) for p in sorted(tmp_path.glob("*.json"))))
    output = tmp_path / "out" / "runs.parquet"
    arguments = ["--study", "records", "--output", str(output), str(tmp_path / "absent.json")]
    assert merge.main([*arguments, "--list", str(tmp_path / "list")]) == 0
    note = output.with_suffix(".unreadable.txt").read_text()
    assert len(note.splitlines()) == 6 and "schema_version is 0" in note
    assert "absent.json" in note and "elsewhere" in note and "3x_a/" in note
    frame = read_runs(output)
    assert frame["progress"].tolist() == [1, 0.5, 0.4]
    assert pd.read_csv(output.with_suffix(".csv"))["progress"].tolist() == [1, 0.5, 0.4]
    metadata = pyarrow.parquet.read_schema(output).field("samples_per_s").metadata
    assert metadata[b"unit"] == b"samples/s" and metadata[b"description"]
    first = output.read_bytes()
    merge.main([*arguments, "--list", str(tmp_path / "list")])
    assert output.read_bytes() == first
    capsys.readouterr()


def test_only_the_shown_hardware_is_drawn_and_the_rest_is_named():
    frame = merged(
        record("1x_a"),
        record("2x_a", rates=[500, 500]),
        record("1x_a", replicate=2, gpu="GPU-9", gpu_name="Other GPU"),
        record("7x_a", "mig", gpu=None, status="unsupported"),
    )
    study = load(frame)
    assert study.hardware == "Test GPU" and "1 on Other GPU" in study.note
    assert sorted(study.cells["status"]) == ["completed", "completed", "unsupported"]
    assert load(frame, hardware="Other GPU").cells["block"].tolist() == [2, 1]


def test_importing_the_room_needs_no_training_stack():
    code = "import sys, analysis.records.merge, analysis.pages, analysis.figures;"
    code += "assert not {'torch', 'scipy', 'models', 'workflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Checks


def loss_result(records, cell):
    results = losses.loss_checks(records)
    return next(r["loss_check"] for r in results if r["cell"].startswith(cell))


def test_loss_agrees_within_what_alone_runs_differ():
    alone = [
        record("1x_a", replicate=i, losses=[[7.0, 6.0 + d, 5.0]])
        for i, d in ((1, 0.0), (2, 0.01), (3, -0.01))
    ]
    near = record("2x_a", "mps", rates=[1, 1], losses=[[7.0, 6.02, 5.0]] * 2)
    far = record("3x_a", "mps", rates=[1] * 3, losses=[[7.0, 6.5, 5.0]] * 3)
    odd = record("7x_a", "mps", rates=[1], losses=[[7.0, None, 5.0]])
    tuned = record("2x_a", "mps", arm="tuned", rates=[1, 1])
    records = [*alone, near, far, odd, tuned]
    assert loss_result(records, "1x_a") == loss_result(records, "2x_a/f") == losses.AGREES
    assert loss_result(records, "3x_a") == loss_result(records, "7x_a") == losses.DIFFERS
    assert loss_result(records, "2x_a/tuned") == losses.NEEDS_TWO
    bases = {r["cell"]: r["basis"] for r in losses.loss_checks(records)}
    assert bases["1x_a/faithful/naive/r1"] == "2 alone runs"
    assert bases["2x_a/faithful/mps/r1"] == "3 alone runs" and bases[tuned["cell"]["id"]] is None


def test_one_alone_run_is_a_reference_but_cannot_be_checked():
    alone = record("1x_a", losses=[[7.0, 6.0, 5.0]])
    near = record("2x_a", "mps", rates=[1, 1], losses=[[7.0, 6.1, 5.0]] * 2)
    far = record("3x_a", "mps", rates=[1] * 3, losses=[[7.0, 6.5, 5.0]] * 3)
    results = {r["cell"][:4]: r for r in losses.loss_checks([alone, near, far])}
    found = {key: (r["loss_check"], r["tolerance"], r["basis"]) for key, r in results.items()}
    assert found == {
        "1x_a": (losses.NEEDS_TWO, None, None),
        "2x_a": (losses.AGREES, losses.FLOOR, "one alone run"),
        "3x_a": (losses.NEEDS_TWO, losses.FLOOR, "one alone run"),
    }
    assert merged(alone, near)["loss_check"].tolist() == [losses.NEEDS_TWO, *["agrees"] * 2]


def test_a_stray_alone_run_is_no_reference():
    alone = [record("1x_a", replicate=i, losses=[[7.0, 6.0, 5.0]]) for i in (1, 2, 3)]
    stray = record("1x_a", replicate=4, losses=[[7.0, 6.9, 6.8]])
    quick = record("2x_a", "mps", rates=[1, 1], losses=[[7.0, 6.9, 6.8]] * 2)
    results = {r["cell"]: r["loss_check"] for r in losses.loss_checks([*alone, stray, quick])}
    assert results["1x_a/faithful/naive/r4"] == losses.DIFFERS
    assert results["2x_a/faithful/mps/r1"] == losses.DIFFERS
    far_pair = [alone[0], stray]
    assert {r["loss_check"] for r in losses.loss_checks(far_pair)} == {losses.DIFFERS}


def test_what_differs_within_a_study_is_listed(tmp_path, capsys):
    records = [record("1x_a"), record("2x_a", rates=[1, 1], digest="d2", source="real")]
    records[0]["flags"] = ["hyperthreads_shared"]
    found = {m["field"]: m["values"] for m in checks.mismatches(records)}
    assert found == {"digest": {"d1": 1, "d2": 1}, "source of images": {"real": 1, "synthetic": 1}}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(records[0]))
    output = tmp_path / "checks.json"
    assert checks.main(["--study", "records", "--output", str(output), str(path)]) == 0
    written = json.loads(output.read_text())
    assert written["loss"][0]["loss_check"] == losses.NEEDS_TWO
    cell = records[0]["cell"]["id"]
    assert written["flags"] == dict.fromkeys(flags.KNOWN, []) | {"hyperthreads_shared": [cell]}
    capsys.readouterr()


def test_the_summary_line_counts_the_cells_that_a_reader_must_know_of(tmp_path, capsys):
    records = [
        record("1x_a", rates=[1000]),
        record("2x_a", rates=[500, 250], verified=None),
        record("3x_a", rates=[300] * 3, verified=None),
        record("3x_a", "mps", rates=[300] * 3, drift=0.5),
        record("4x_a", rates=[300] * 4, flags=["cores_shared"]),
    ]
    paths = [tmp_path / f"{i}.json" for i in range(len(records))]
    for path, found in zip(paths, records, strict=True):
        path.write_text(json.dumps(found))
    output = tmp_path / "checks.json"
    checks.main(["--study", "records", "--output", str(output), *map(str, paths)])
    written = json.loads(output.read_text())["flags"]
    assert written["unverified"] == ["2x_a/faithful/naive/r1", "3x_a/faithful/naive/r1"]
    said = "; 3 cells unsteady, uneven, unverified, throttled, on a shared GPU or with a suspect "
    assert said in capsys.readouterr().err


# A/A: naive and its twin


def twins(rates, scenario="2x_a"):
    """Records of naive (100 samples/s a member, drifting from block to block) and its twin."""
    records = []
    for block, rate in enumerate(rates, start=1):
        slow = 1 / block  # a block's own speed says nothing of a difference
        records.append(record(scenario, "naive", block, [100 * slow] * 2))
        records.append(record(scenario, "naive_again", block, [rate * slow] * 2))
    return records


@pytest.mark.parametrize(
    ("rates", "differs", "words"),
    [
        ([101, 99, 100.2], False, "A/A: 1.001 (0.976-1.026), no difference above 2.6 %"),
        ([104, 105, 104.5], True, "A/A: 1.045 (1.033-1.057), a difference"),
        ([104], None, "A/A: 1.040, one replicate"),
    ],
)
def test_twins_are_compared_within_a_replicate(rates, differs, words):
    [found] = twin_checks(merged(*twins(rates)))
    assert found["differs"] is differs and found["replicates"] == len(rates)
    assert (found["arm"], found["scenario"], found["window"]) == ("faithful", "2x_a", "window")
    assert phrase([found]) == words


def test_twins_that_never_met_are_not_compared():
    alone = [record("2x_a", rates=[1, 1]), record("3x_a", "naive_again", rates=[1] * 3)]
    elsewhere = record("2x_a", "naive_again", rates=[1, 1], gpu="GPU-2")
    later = record("2x_a", "naive_again", 2, rates=[1, 1])
    dead = record("7x_a", "naive_again", rates=[1, None], status="out_of_memory")
    for records in ([], alone, [*alone, elsewhere], [*alone, later], [*alone, dead]):
        assert twin_checks(merged(*records)) == []
    assert phrase([]) == ""


def test_several_twins_are_summed_up_with_what_chance_would_do():
    records = [*twins([100, 101]), *twins([120, 121], "2x_b"), *twins([99, 100], "1x_a+1x_b")]
    rows = twin_checks(merged(*records))
    assert [row["scenario"] for row in rows] == ["2x_a", "1x_a+1x_b", "2x_b"]
    text = phrase(rows)
    assert text.startswith(
        "A/A: 1 of 3 scenarios differ (0.15 would by chance): faithful 2x_b 1.20"
    )
    none = phrase(twin_checks(merged(*records[:4], *records[8:])))
    assert none.startswith("A/A: 0 of 2 scenarios differ (0.1 would by chance), widest 0.995 (")
    single = phrase(twin_checks(merged(*records[:2], *records[4:6])))
    assert single == "A/A: 2 scenarios, one replicate each, widest 1.200"


def test_the_twin_is_in_checks_and_tables_and_in_no_figure(tmp_path, capsys):
    records = [record("1x_a"), record("2x_a", "mps", rates=[900, 900]), *twins([100, 101, 102])]
    paths = []
    for i, content in enumerate(records):
        paths.append(str(tmp_path / f"{i}.json"))
        (tmp_path / f"{i}.json").write_text(json.dumps(content))
    checks.main(["--study", "records", "--output", str(tmp_path / "checks.json"), *paths])
    [row] = json.loads((tmp_path / "checks.json").read_text())["aa"]
    assert row["differs"] is False and row["low"] < 1 < row["ratio"] < row["high"]
    assert "; A/A: 1.010 (" in capsys.readouterr().err

    merge.write(merge.merge(records)[0], tmp_path / "runs.parquet")
    runs = ["--runs", str(tmp_path / "runs.parquet")]
    for name in ("epoch_time", "throughput_gain"):
        draw([name, *runs, "--output", str(tmp_path / "figures" / name)])
        drawn = pd.read_csv(tmp_path / "figures" / f"{name}_faithful.csv")
        assert {"naive", "mps"} <= set(drawn["method"]) and "naive_again" not in set(
            drawn["method"]
        )
    tables.main([*runs, "--output", str(tmp_path / "summary")])
    printed = (tmp_path / "summary.txt").read_text()
    assert "naive_again" in printed and "\nA/A: 1.010 (" in printed
    assert "A/A: 1.010 (" in (tmp_path / "summary.md").read_text()


# Methods' names and looks


def test_a_studys_own_variants_stand_with_their_family():
    methods = ["mig", "other", "mps_14", "naive", "mps", "mps_equal", "mps_tight", "naive_again"]
    expected = ["naive", "naive_again", "mps", "mps_equal", "mps_14", "mps_tight", "mig", "other"]
    assert sorted(methods, key=method_order) == expected


def test_every_method_is_told_from_the_others_without_colour():
    methods = [*METHODS[1:], *(f"mps_{i}" for i in range(5)), "unheard_of"]
    methods.remove("naive_again")
    found = style.looks(methods, merged())
    marks = [(look.marker,) for look in found.values()]
    lines = [(look.colour, str(look.dashes)) for look in found.values()]
    bars = [(look.colour, look.hatch) for look in found.values()]
    for signs in (lines, bars, [look.label for look in found.values()]):
        assert len(set(signs)) == len(found)
    within = [found[m].marker for m in methods if m.startswith("mps")]
    assert len(set(within)) == len(within) and len(set(marks)) >= len(found) - 2


def test_variants_are_labelled_with_their_share_where_it_is_one():
    shares = {"mps_14": [14, 14], "mps_low": [14.286, 14.286], "mps_list": [30, 60], "mps_mem": []}
    records = [
        record(f"{n}x_a", method, rates=[1] * n, limits={"sm_percent": percent})
        for method, percents in shares.items()
        for n, percent in enumerate(percents, start=2)
    ]
    found = style.looks([*shares, "mps_equal", "mps_overlap"], merged(*records))
    assert {method: look.label for method, look in found.items() if method != "serial"} == {
        "mps_equal": "MPS, equal shares 100/N",
        "mps_overlap": "MPS, overlapping 200/N",
        "mps_14": "MPS 14 %",
        "mps_low": "MPS 14.3 % (low)",
        "mps_list": "MPS list",
        "mps_mem": "MPS mem",
    }
    assert found["mps_low"].short == "MPS low" and found["mps_14"].short == "MPS 14 %"


# Evidence


def test_evidence_in_one_phrase_a_cell(tmp_path, capsys):
    naive = {"verified": True, "members": [1, 2], "compute": [1, 2], "mps": []}
    server = {"verified": True, "server": 123, "clients": [1, 2], "nvml_agrees": True}
    silent = server | {"nvml_agrees": None}
    lie = {"verified": False, "reason": "MPS: member 0 is not among the clients"}
    full = {"unproven": "the card is full"}
    unproven = server | {"verified": None, "limits": {"0": full, "1": {}, "2": full}}
    mig = {"verified": True, "layout": "2x 3g.71gb"}
    inside = mig | {"mps": {"MIG-1": {"server": 8}}, "nvml_agrees": True}
    two, parts = {"rates": [1, 1]}, {"uuids": ["MIG-1", "MIG-2"]}
    cells = [
        (record("1x_a", gpu=None), "nothing was witnessed"),
        (
            record("2x_a", **two, evidence={"barrier": naive, "end": naive}, sm_count=132),
            "2 processes without MPS, listed by NVML as such, 132 SMs each",
        ),
        (
            record("2x_a", "naive_again", **two, evidence={"end": naive | {"verified": None}}),
            "2 processes without MPS, NVML's PIDs do not compare",
        ),
        (
            record("2x_a", "mps", **two, evidence={"barrier": server, "end": server}, sm_count=18),
            "MPS server 123: 2 clients, NVML agrees, 18 SMs each",
        ),
        (
            record("2x_a", "mps_equal", status="out_of_memory", evidence={"barrier": silent}),
            "MPS server 123: 2 clients, NVML's PIDs do not compare (at the barrier only)",
        ),
        (
            record("2x_a", "mps_overlap", status="failed", evidence={"end": lie}, reason="why"),
            "why",
        ),
        (
            record("2x_a", "mps_1g", **two, evidence={"end": unproven}, verified=None),
            "MPS server 123: 2 clients, NVML agrees, memory limit not proven (the card is full)",
        ),
        (
            record("2x_a", "mps_lost", status="out_of_memory", verified=None),
            "out of memory before it was witnessed",
        ),
        (
            record("2x_a", "mig", **two, **parts, evidence={"end": mig}, sm_count=60),
            "MIG 2x 3g.71gb: 2 devices, NVML's PIDs do not compare, 60 SMs each",
        ),
        (
            record("2x_a", "mig_mps", **two, evidence={"end": inside}),
            "MIG 2x 3g.71gb: 1 device, MPS server 8, NVML agrees",
        ),
        (record("3x_a", "mig", status="unsupported", reason="off | on"), "off | on"),
    ]
    older = record("2x_a", attempt=0, status="failed", reason="older")
    table = evidence.table([older, *(cell for cell, _ in reversed(cells))])
    assert table["proof"].tolist() == [proof for _, proof in cells]
    assert table["verified"].tolist()[-1] is None and table["verified"].tolist()[1] is True
    cpu = {"end": {"verified": True, "device": "cpu", "members": [5]}}
    assert evidence.proof(record("1x_a", evidence=cpu)) == "1 process on the CPU"

    (tmp_path / "run.json").write_text(json.dumps(cells[-1][0]))
    output = ["--output", str(tmp_path / "checks.json"), "--evidence", str(tmp_path / "t" / "seen")]
    assert checks.main(["--study", "records", *output, str(tmp_path / "run.json")]) == 0
    assert pd.read_csv(tmp_path / "t" / "seen.csv")["proof"].tolist() == ["off | on"]
    assert "off \\| on" in (tmp_path / "t" / "seen.md").read_text()
    evidence.write(table, tmp_path / "t" / "all")
    shown = (tmp_path / "t" / "all.md").read_text().splitlines()
    says = {
        line.split("|")[1].strip(): line.split("|")[4].strip() for line in shown if "/r1" in line
    }
    assert says["2x_a/faithful/naive/r1"] == "yes" and says["3x_a/faithful/mig/r1"] == ""
    assert says["2x_a/faithful/mps_1g/r1"] == "not proven"
    assert says["2x_a/faithful/mps_lost/r1"] == "out of memory first"
    checks.main(["--study", "nobody's", *output])
    assert pd.read_csv(tmp_path / "t" / "seen.csv").empty
    capsys.readouterr()


# Figures and tables, on one small study with every outcome


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A study of synthetic records and the files drawn from it."""
    folder = tmp_path_factory.mktemp("drawn")
    records = []
    for r in (1, 2):
        records += [record("1x_a", replicate=r, rates=[1000 + r]), record("1x_b", replicate=r)]
        records.append(record("2x_a", replicate=r, rates=[500.0, 510.0 + r]))
        records.append(record("2x_a", "mps", r, [950.0 + 10 * r, 940.0]))
        records.append(record("2x_a", "mig", r, status="unsupported", reason="no MIG"))
        records.append(record("3x_a", "mps", r, [1, None, 1], status="out_of_memory"))
        records.append(record("1x_a+1x_b", "mps", r, [900, 800 + r], drift=0.2))
    records.append(record("1x_a+1x_b", "mig", status="unsupported"))
    table, _ = merge.merge(records)
    merge.write(table, folder / "runs.parquet")
    expected = [
        {"scenario": "7x_a", "arm": "faithful", "method": "naive", "replicate": 1, "n": 7},
        {"scenario": "2x_a", "arm": "faithful", "method": "mps", "replicate": 1, "n": 2},
    ]
    (folder / "expected.json").write_text(json.dumps(expected))
    arguments = ["--runs", str(folder / "runs.parquet"), "--arm", "faithful"]
    arguments += ["--expected", str(folder / "expected.json")]
    for name in ("epoch_time", "throughput_gain"):
        assert draw([name, *arguments, "--output", str(folder / "figures" / name)]) == 0
    return folder


def test_figures_are_written_with_embedded_fonts(drawn):
    for name in ("epoch_time_faithful", "throughput_gain_faithful"):
        stem = drawn / "figures" / name
        assert stem.with_suffix(".png").read_bytes()[1:4] == b"PNG"
        pdf = stem.with_suffix(".pdf").read_bytes()
        assert b"FontFile2" in pdf and b"/Type3" not in pdf and b"CreationDate" not in pdf
    assert not list(drawn.rglob("*.partial"))


def test_drawn_epoch_times_are_the_measured_ones(drawn):
    data = pd.read_csv(drawn / "figures" / "epoch_time_faithful.csv")
    runs = read_runs(drawn / "runs.parquet")
    bars = data[(data["method"] == "mps") & (data["n"] == 2)]
    same = runs[(runs["method"] == "mps") & (runs["scenario"] == "2x_a")]
    assert sorted(bars["epoch_time_s"]) == pytest.approx(sorted(same["epoch_time_s"]))
    serial = data[(data["method"] == "serial") & (data["n"] == 2)]
    expected = [2 * TRAIN_SIZE / 1001, 2 * TRAIN_SIZE / 1002]
    assert serial["epoch_time_s"].tolist() == pytest.approx(expected)
    statuses = data.groupby(["n", "method"])["status"].first()
    assert statuses[2, "mig"] == "unsupported" and statuses[7, "naive"] == NOT_RUN
    oom = data[(data["n"] == 3) & (data["method"] == "mps")]
    assert set(oom["status"]) == {"out_of_memory"} and oom["epoch_time_s"].isna().all()


def test_drawn_gains_are_the_cells_stp(drawn):
    data = pd.read_csv(drawn / "figures" / "throughput_gain_faithful.csv")
    cells = load(read_runs(drawn / "runs.parquet")).cells
    expected = cells[cells["scenario"] == "2x_a"].set_index(["method", "block"])["stp"].dropna()
    found = data[data["scenario"] == "2x_a"].set_index(["method", "block"])["stp"].dropna()
    assert found.to_dict() == pytest.approx(expected.to_dict())
    interval = data[(data["scenario"] == "2x_a") & (data["method"] == "mps")].iloc[0]
    assert interval["low"] < interval["mean"] < interval["high"]
    mix = data[(data["panel"] == "mixes") & (data["method"] == "mps")]
    assert mix["stp"].iloc[0] == pytest.approx(900 / 1001 + 801 / 1000)


def test_a_study_is_read_once_until_it_changes(drawn, tmp_path):
    runs = tmp_path / "runs.parquet"
    shutil.copy(drawn / "runs.parquet", runs)
    first = read_study(runs)
    first.cells["stp"] = 0.0  # of no concern to who reads it next
    again = read_study(runs)
    assert again.cells.equals(load(read_runs(runs)).cells)
    pd.read_parquet(runs).head(1).to_parquet(runs)
    os.utime(runs, ns=(1, 1))
    assert len(read_study(runs).runs) == 1


def test_the_same_study_gives_the_same_bytes(drawn, tmp_path):
    arguments = ["epoch_time", "--runs", str(drawn / "runs.parquet"), "--output"]
    assert draw([*arguments, str(tmp_path / "once")]) == 0
    assert draw([*arguments, str(tmp_path / "twice")]) == 0
    for kind in ("png", "pdf", "svg", "csv"):
        once, twice = (tmp_path / f"{n}_faithful.{kind}" for n in ("once", "twice"))
        assert once.read_bytes() == twice.read_bytes()


def test_footer_names_what_was_measured(drawn):
    text = "; ".join(style.footer_parts(read_runs(drawn / "runs.parquet")))
    for part in ("records", "Test GPU", "faithful", "generated", "2 replicates", "10 s"):
        assert part in text


@pytest.mark.parametrize("records", [[], [record("2x_a", status="out_of_memory", rates=[None])]])
def test_an_empty_or_failed_study_gives_figures(tmp_path, records):
    merge.write(merge.merge(records)[0], tmp_path / "runs.parquet")
    arguments = ["--runs", str(tmp_path / "runs.parquet"), "--arm", "faithful"]
    for name in ("epoch_time", "throughput_gain"):
        assert draw([name, *arguments, "--output", str(tmp_path / name)]) == 0
        assert (tmp_path / f"{name}_faithful.png").exists()


def saved(figure, target, drawn):
    """In the place of style.save: files in which nothing stands."""
    style.close(figure)
    for path in style.files(target):
        path.touch()
    return style.files(target)


def test_all_figures_of_a_study_are_drawn_once(tmp_path, monkeypatch):
    merge.write(merge.merge([record("1x_a"), record("2x_a", "mps")])[0], tmp_path / "runs.parquet")
    monkeypatch.setattr(style, "save", saved)  # what is looked for is whether, not how
    arguments = ["all", "--runs", str(tmp_path / "runs.parquet"), "--output", str(tmp_path / "all")]
    assert draw(arguments) == 0
    names = {stem(*task) for task in stems(["faithful"])}
    pictures = {path.stem: path.stat().st_mtime_ns for path in (tmp_path / "all").glob("*.svg")}
    assert set(pictures) == names
    (tmp_path / "all" / "memory_faithful.svg").unlink()
    assert draw(arguments) == 0
    again = {path.stem: path.stat().st_mtime_ns for path in (tmp_path / "all").glob("*.svg")}
    assert {name for name in names if again[name] != pictures[name]} == {"memory_faithful"}


def test_summary_table(drawn):
    stem = drawn / "tables" / "summary"
    arguments = ["--runs", str(drawn / "runs.parquet"), "--output", str(stem)]
    assert tables.main(arguments) == 0
    printed = stem.with_suffix(".txt").read_text()
    assert max(len(line) for line in printed.splitlines()) <= tables.WIDTH
    for part in ("2x_a", "mps", "unsupported", "out of memory", "2/2", "~ unsteady"):
        assert part in printed
    lines = printed.splitlines()
    mix = lines[lines.index("1x_a+1x_b") + 1]
    assert mix.startswith("  mps ") and "] ~" in mix
    assert "GR/SM" not in printed and "acc." not in printed  # nothing is known of these
    table = pd.read_csv(stem.with_suffix(".csv")).set_index(["scenario", "method"])
    study = load(read_runs(drawn / "runs.parquet"))
    stps = study.cells.set_index(["scenario", "method"])["stp"]["2x_a", "mps"]
    assert table.loc[("1x_a+1x_b", "mps")]["flags"] == "unsteady"
    row = table.loc[("2x_a", "mps")]
    assert row["stp"] == pytest.approx(math.sqrt(stps.prod()), abs=1e-5)
    assert pd.isna(table.loc[("1x_a", "naive")]["low"])
    assert "generated data" in stem.with_suffix(".md").read_text()


def test_a_run_ends_with_the_summary_of_its_runs_and_where_to_look(tmp_path, monkeypatch):
    study = tmp_path / "results" / "x"
    (study / "tables").mkdir(parents=True)
    assert pages.closing(study) == ""
    text = study / "tables" / "summary.txt"
    text.write_text("a table\n")
    for name in ("runs.parquet", "belief.html"):
        (study / name).touch()
    os.utime(text, (1, 1))
    monkeypatch.chdir(tmp_path)
    assert pages.closing(study) == f"why to believe it: {Path('results', 'x', 'belief.html')}"
    os.utime(study / "runs.parquet", (1, 1))
    assert pages.closing(study).splitlines()[0] == "a table"


def test_a_mix_too_long_for_a_line_wraps_a_member_a_line_and_no_other():
    names = [f"{name}_imagenet64_b128" for name in ("resnet50", "efficientnetv2_s", "resnet152")]
    long, windows = "+".join(f"1x_{name}" for name in names) + "--departure", {"before": 6}
    mix = record(long, windows=[windows, windows, windows | {"after": 9}])
    frame = merged(mix, record("1x_a+1x_b", rates=[1, 1]))
    lines = tables.terminal(tables.summary(load(frame))).splitlines()
    assert lines[lines.index("1x_a+1x_b") + 1].startswith("  naive ")
    start = lines.index("1x_resnet50_imagenet64_b128")
    assert lines[start + 1] == "  + 1x_efficientnetv2_s_imagenet64_b128"
    assert lines[start + 3].startswith("  naive before")
    assert max(map(len, lines)) <= tables.WIDTH


def test_rows_of_unlike_replicates_are_told_apart_in_the_terminal():
    alone = [record("1x_a", replicate=block) for block in (1, 2)]
    text = tables.terminal(tables.summary(load(merged(*alone, record("2x_a", rates=[900] * 2)))))
    assert text.endswith("be they of other blocks; gain: within blocks")
    assert "of other blocks" not in tables.terminal(tables.summary(load(merged(*alone))))


@pytest.mark.parametrize(("scenarios", "told"), [(3, "not run: 1x_b"), (99, "99 scenarios, see")])
def test_scenarios_that_were_not_run_are_named_or_if_many_counted(scenarios, told):
    idle = [f"{n}x_b" for n in range(1, scenarios + 1)]
    expected = [
        {"id": f"{name}/faithful/mps/r1", "scenario": name, "arm": "faithful", "method": "mps"}
        | {"replicate": 1, "n": int(name.split("x")[0])}
        for name in idle
    ]
    text = tables.terminal(tables.summary(load(merged(record("1x_a")), expected)))
    assert told in text and len(text.splitlines()) < 8


def test_one_replicate_has_no_interval():
    frame = merged(record("1x_a"), record("2x_a", "mps", rates=[900, 950]))
    table = summarise(load(frame).cells)
    assert table["low"].isna().all() and table["high"].isna().all()
    assert table.set_index("scenario")["stp"]["2x_a"] == pytest.approx(1.85)
