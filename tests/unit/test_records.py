"""From run.json files to runs.parquet: what counts, and what is left out."""

import json
from itertools import permutations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.estimates.records import flags, losses, schema
from analysis.estimates.records.losses import AGREES, DIFFERS, ONLY_ALONE
from collocate.app import main as collocate
from tests.records import TRAIN_SIZE, merged, record, telemetry
from workflow.collocation.record.series import LAG_NS


def on_disk(folder, *records):
    """Their run.json files."""
    paths = []
    for number, content in enumerate(records):
        path = folder / "records" / str(number) / "run.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        paths.append(path)
    return paths


def merging(output, paths) -> int:
    """Merge these records of the study `records`; the exit code."""
    listed = output.with_suffix(".txt")
    listed.write_text("".join(f"{path}\n" for path in paths))
    return collocate(
        ["step", "records", "--study", "records", "--output", str(output), "--list", str(listed)]
    )


# -- rows -----------------------------------------------------------------------------------------


def test_a_row_is_a_member_in_a_window():
    windows = [{"before": 600}, {"before": 610, "after": 900}]
    frame = merged(record("1x_a"), record("2x_a--departure", "mps", windows=windows))
    assert frame["window"].tolist() == ["window", "before", "before", "after"]
    assert frame["samples_per_s"].tolist() == [1000, 600, 610, 900]
    assert frame["epoch_time_s"].iloc[0] == TRAIN_SIZE / 1000
    assert set(frame["n"]) == {1, 2} and set(frame["device"]) == {"GPU-1"}


def interleaved(**options):
    turns = [{"alone": [900, 1100]}, *[{"naive": [500, 510]}] * 2, *[{"mps": [800, 0]}] * 2]
    return record("2x_a--interleaved", "alone-naive-mps", windows=turns, **options)


def test_a_row_of_an_interleaved_cell_has_its_slices_and_how_busy_the_gpu_was_in_each(tmp_path):
    """Readings count that are of one slice as a whole, and begin after the driver's lag (100)."""
    cell = interleaved() | {"files": {"gpu.parquet": {"sha256": "", "bytes": 1}}}
    spans = {"alone": [[0, 400], [2000, 2400]], "naive": [[500, 900], [1500, 1900]]}
    spans["mps"] = [[1000, 1400], [2500, 2900]]
    spans = {name: [[LAG_NS // 100 * t for t in span] for span in of] for name, of in spans.items()}
    ends = {"start_ns": 0, "end_ns": 1, "seconds": 8.0}
    cell["windows"] = [{"name": name, "spans": of} | ends for name, of in spans.items()]
    times = [0, 100, 200, 400, 500, 610, 700, 2010, 2110, 2200]
    readings = {"t_ns": [LAG_NS // 100 * t for t in times], "entity": ["gpu"] * 10}
    readings["gract"] = [0.9, 0.8, 0.2, 0.5, 1.0, 0.9, 0.7, 1.0, 0.9, 0.3]
    kinds = {"gract": {"kind": "rate"}}
    fields = [pa.field(n, pa.array(of).type, metadata=kinds.get(n)) for n, of in readings.items()]
    table = pa.table(readings, schema=pa.schema(fields, metadata={"origin_ns": "0"}))
    pq.write_table(table, tmp_path / "gpu.parquet")
    rows = {row.window: row for row in merged(cell, folder=tmp_path).itertuples()}
    assert [list(rows[condition].slices) for condition in ("alone", "mps")] == [
        [900, 1100],
        [800, 0],
    ]
    assert rows["alone"].samples_per_s == 1000 and rows["mps"].window_s == 8
    assert list(rows["alone"].gract_slices) == pytest.approx([0.4, 0.3])
    assert rows["naive"].gract_slices[0] == pytest.approx(0.7)
    assert pd.isna(rows["naive"].gract_slices[1])
    cell["telemetry"] = telemetry(windows=("alone",), card={"gract": None})  # contradicted
    rows = {row.window: row for row in merged(cell, folder=tmp_path).itertuples()}
    assert rows["alone"].gract_slices is None and rows["naive"].gract_slices is not None
    (tmp_path / "gpu.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match="gpu.parquet is no table"):
        merged(cell, folder=tmp_path)


@pytest.mark.parametrize(
    "status", ["out_of_memory", "unsupported", "failed", "timed_out", "postponed"]
)
def test_every_status_is_a_row(status):
    rows = merged(record("2x_a", "mps", rates=[500, None], status=status, reason="why"))
    assert set(rows["status"]) == {status} and set(rows["reason"]) == {"why"}
    started = status not in ("unsupported", "postponed")  # the survivor's rate is kept
    assert rows["member"].fillna(-1).tolist() == ([0, 1] if started else [-1])
    assert rows["samples_per_s"].fillna(0).tolist() == ([500, 0] if started else [0])


def test_limits_session_and_what_members_found_are_columns():
    """And what is not known is null."""
    limits = {"sm_percent": 14.29, "pinned_memory_mb": 2000}
    more = {"limits": limits, "sm_count": 18, "uuids": ["GPU-1"] * 2, "session": "s1"}
    bare = record("2x_b", rates=[1, 1]) | {"provenance": {"versions": None}, "data": []}
    frame = merged(record("2x_a", "mps_small", rates=[1, 1], **more), bare)
    rows = frame.iloc[0]
    assert (rows["sm_percent"], rows["pinned_memory_mb"]) == (14.29, 2000)
    assert (rows["sm_count"], rows["device_uuid"], rows["session"]) == (18, "GPU-1", "s1")
    assert bool(rows["method_verified"]) and rows["machine"] == "m1" and rows["digest"] == "d1"
    assert frame["torch"].isna().tolist() == [False] * 2 + [True] * 2


# -- attempts -------------------------------------------------------------------------------------


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


def test_of_a_replicate_that_moved_to_another_gpu_the_job_alone_stays_on_both():
    first, second = {"gpu": "GPU-1"}, {"gpu": "GPU-2", "attempt": 2}
    frame = merged(
        record("1x_a", rates=[1000], **first),
        record("1x_a", rates=[500], **second),
        record("1x_a", implementation="bf16", rates=[700], **first),
        record("1x_a", implementation="bf16", rates=[350], **second),
        record("1x_b", rates=[90], **first),
        record("1x_b", rates=[80], **second),
        record("2x_a", "mps", rates=[900, 900], **first),
        record("3x_a", "mps", rates=[100] * 3, **first),
        record("3x_a", "mps", rates=[250] * 3, **second),
    )
    alone = frame[frame["n"] == 1].groupby("cell")["current"].agg(list)
    assert alone["1x_a/paper_step/naive/r1"] == [False, True]
    # Nothing of their implementation, or with their job, was measured on the first GPU and still
    # counts.
    assert alone["1x_a/bf16/naive/r1"] == alone["1x_b/paper_step/naive/r1"] == [True]
    rates = frame.groupby("cell")["samples_per_s"].agg(list)
    assert rates["1x_a/paper_step/naive/r1"] == [1000, 500]
    assert rates["3x_a/paper_step/mps/r1"] == [250] * 3


@pytest.mark.parametrize("later", [1, 2])
def test_of_a_cell_that_two_gpus_measured_the_one_that_began_last_counts(later):
    """Whichever of two hosts' folders was merged into the other; a fault there hides no result."""
    tried = [record("2x_a", rates=[n, n], gpu=f"GPU-{n}", attempt=n) for n in (1, 2)]
    for each in tried:
        day = 2 if each["cell"]["attempt"] == later else 1
        each["provenance"]["started_at"] = f"2026-01-0{day}T00:00:00+00:00"
    assert set(merged(*tried)["samples_per_s"]) == {later}
    fault = record("2x_a", rates=[None], gpu="GPU-3", attempt=3, status="failed")
    assert set(merged(*tried, fault)["samples_per_s"]) == {later}


# -- flags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "flag"),
    [
        *(([500, 500, 390], flags.UNEVEN), ([500, 400, 300], flags.UNEVEN)),
        ([500, 410], flags.UNEVEN),  # a member's own rate is no part of what it is compared with
        *(([500, 500, 410], ""), ([500, 420], ""), ([500], "")),
        ([500, 100, None], ""),  # of an unfinished cell nothing is said
    ],
)
def test_members_that_do_the_same_at_different_rates_are_uneven(rates, flag):
    status = "completed" if all(rates) else "out_of_memory"
    cell = record(f"{len(rates)}x_a", "mps", rates=rates, status=status)
    assert set(merged(cell)["flags"]) == {flag}


def test_members_that_differ_in_what_they_do_or_have_are_not_uneven():
    mix = record("2x_a+1x_b", rates=[500, 500, 90])
    limited = record("2x_a", "mps_lists", rates=[500, 250])
    for member, percent in zip(limited["spec"]["members"], (60, 30), strict=True):
        member["sm_percent"] = percent
    # Of three in two MIG instances, two share one.
    dealt = record("3x_a", "mig_mps", rates=[250, 500, 250], uuids=["MIG-1", "MIG-2", "MIG-1"])
    left = record("2x_a--departure", windows=[{"before": 500, "after": 900}, {"before": 510}])
    assert set(merged(mix, limited, dealt, left)["flags"]) == {""}


@given(st.lists(st.lists(st.sampled_from([*flags.MEANINGS])).map(";".join) | st.none()))
def test_a_union_of_flags_has_each_once(columns):
    found = flags.split(flags.union(columns))
    assert found == sorted({flag for column in columns for flag in flags.split(column)})


# -- losses ---------------------------------------------------------------------------------------

curves = st.lists(st.floats(0.1, 10), min_size=3, max_size=3)


def checks_of(*records):
    """Cell → (verdict, distance) of its first member."""
    frame = merged(*records).drop_duplicates("cell")
    pairs = zip(frame["loss_check"], frame["loss_distance"], strict=True)
    return dict(zip(frame["cell"].str.removesuffix("/r1"), pairs, strict=True))


def alone_runs(*found):
    return [record("1x_a", replicate=i, losses=[curve]) for i, curve in enumerate(found, 1)]


def pair(curve, **options):
    return record("2x_a", "mps", rates=[1, 1], losses=[curve] * 2, **options)


def test_the_alone_condition_is_what_losses_are_held_against():
    losses = [[7.0, 6.0, 5.0]] * 4 + [[9.0, 9.0, 9.0]]
    frame = merged(interleaved(losses=losses), record("3x_a", "mps", rates=[1] * 3))
    assert frame["loss_check"].tolist() == [ONLY_ALONE] + [AGREES] * 3 + [DIFFERS] + [AGREES] * 3


@given(alone=st.lists(curves, min_size=2, max_size=5), curve=curves)
def test_verdicts_do_not_depend_on_the_order_of_the_runs_or_the_unit_of_the_loss(alone, curve):
    found = checks_of(*alone_runs(*alone), pair(curve))["2x_a/paper_step/mps"]
    backwards = checks_of(*alone_runs(*reversed(alone)), pair(curve))["2x_a/paper_step/mps"]
    assert found == pytest.approx(backwards, nan_ok=True)
    twice = [[2 * loss for loss in other] for other in (*alone, curve)]
    doubled = checks_of(*alone_runs(*twice[:-1]), pair(twice[-1]))["2x_a/paper_step/mps"]
    assert found[0] == doubled[0] and found[1] == pytest.approx(doubled[1], nan_ok=True)


@given(curve=curves, place=st.integers(0, 2), runs=st.integers(2, 4))
def test_a_loss_that_is_not_finite_is_a_difference(curve, place, runs):
    bad = [*curve]
    bad[place] = None
    found = checks_of(*alone_runs(*[curve] * runs), pair(bad))
    assert found["2x_a/paper_step/mps"] == (DIFFERS, np.inf)
    # Nor does it spoil the reference.
    found = checks_of(*alone_runs(*[curve] * runs, bad), pair(curve))
    assert found["2x_a/paper_step/mps"] == (AGREES, 0.0)
    assert found[f"1x_a/paper_step/naive/r{runs + 1}"][0] == DIFFERS


@pytest.mark.parametrize(
    "losses, verdict",
    [
        ([7.01, 6.0, 5.0], AGREES),
        ([7.02, 6.0, 5.0], DIFFERS),  # begins with other weights, or another batch
        ([7.0, 7.5, 6.5], AGREES),  # rounding grows
        ([7.0, 7.0, 8.2], DIFFERS),  # does not learn
    ],
)
@pytest.mark.parametrize("runs", [1, 3])
def test_a_member_begins_as_the_alone_runs_do_and_learns_as_they_do(losses, verdict, runs):
    found = checks_of(*alone_runs(*[[7.0, 6.0, 5.0]] * runs), pair(losses))
    assert found["2x_a/paper_step/mps"][0] == verdict
    assert found["1x_a/paper_step/naive"][0] == (AGREES if runs > 1 else ONLY_ALONE)


def test_a_member_with_other_sms_may_begin_otherwise():
    alone = record("1x_a", losses=[[7.0, 6.0, 5.0]], sm_count=132)
    fewer, same = pair([7.2, 6.0, 5.0], sm_count=32), pair([7.2, 6, 5], sm_count=132, replicate=2)
    found = checks_of(alone, fewer, same)
    assert found["2x_a/paper_step/mps"][0] == AGREES
    assert found["2x_a/paper_step/mps/r2"][0] == DIFFERS


def test_what_alone_runs_cannot_tell():
    """They set no seed, so that their first losses say nothing; or there are none."""
    found = checks_of(*alone_runs([7.0, 6.0, 5.0], [7.2, 6.0, 5.0]), pair([7.4, 6.0, 5.0]))
    assert {verdict for verdict, _ in found.values()} == {AGREES}
    assert checks_of(pair([7.0, 6.0, 5.0]))["2x_a/paper_step/mps"][0] == losses.NO_ALONE
    assert checks_of(pair([]))["2x_a/paper_step/mps"][0] == losses.NO_LOSS


def test_members_are_held_against_alone_runs_of_their_own_code_where_there_are_any():
    """Another version may draw other weights."""
    old = [*alone_runs(*[[7.0, 6.0, 5.0]] * 3), pair([7.0, 6.0, 5.0])]
    new = [record("1x_a", replicate=i, losses=[[6.0, 5.0, 4.0]], digest="new") for i in (4, 5)]
    new += [pair([6.0, 5.0, 4.0], replicate=2, digest="new")]
    found = checks_of(*old, *new)
    assert {verdict for verdict, _ in found.values()} == {AGREES}
    assert checks_of(*old, new[-1])["2x_a/paper_step/mps/r2"][0] == DIFFERS


@pytest.mark.parametrize(
    "other", [{"implementation": "bf16"}, {"source": "real"}, {"limits": {"input": {}}}]
)
def test_only_members_of_a_kind_are_held_against_each_other(other):
    found = checks_of(*alone_runs([7.0, 6.0, 5.0], [7.0, 6.0, 5.0]), pair([1.0, 1.0, 1.0], **other))
    assert {verdict for verdict, _ in found.values()} == {AGREES, losses.NO_ALONE}


# -- what cannot be read --------------------------------------------------------------------------


def test_merging_is_reproducible_and_names_what_is_no_record_of_the_study(tmp_path, capsys):
    records = [record("1x_a"), record("2x_a", rates=[500, 400])]
    records.append(record("2x_a", "mps", rates=[1, 1]))
    paths, output = on_disk(tmp_path, *records), tmp_path / "runs.parquet"
    others = on_disk(tmp_path / "x", '{"cell"', record("1x_a", study="other"), "[" * 100_000)
    assert merging(output, paths) == 0
    before = output.read_bytes()
    for other in (*others, tmp_path / "absent.json"):
        assert merging(output, [*paths, other]) == 1
        error = capsys.readouterr().err
        assert str(other) in error and error.count("\n") == 1
    output.write_bytes(before[: len(before) // 2])
    assert merging(output, paths[::-1]) == 0
    assert output.read_bytes() == before
    assert pq.read_table(output).schema.equals(schema.SCHEMA)
    assert merging(tmp_path / "none.parquet", []) == 0
    assert len(pq.read_table(tmp_path / "none.parquet", schema=schema.SCHEMA)) == 0
    as_text = pd.read_csv(output.with_suffix(".csv"))
    assert as_text["samples_per_s"].tolist() == [1000, 1, 1, 500, 400]
