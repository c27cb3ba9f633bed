"""From run.json files to runs.parquet and telemetry.parquet: what counts, and what is left out."""

import json
from itertools import permutations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.__main__ import main as analysis
from analysis.records import flags, losses, merge, schema
from analysis.records.losses import AGREES, DIFFERS, ITSELF
from tests.records import TRAIN_SIZE, merged, record, telemetry
from workflow.collocation.record import step_times as steps
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


def merging(output, paths):
    """Merge these records of the study `records`; the lines that say what was left out."""
    arguments = ["--study", "records", "--output", str(output), *map(str, paths)]
    assert analysis(["merge", *arguments]) == 0
    note = output.with_suffix(".unreadable.txt")
    return note.read_text().splitlines() if note.exists() else []


# -- rows -----------------------------------------------------------------------------------------


def test_a_row_is_a_member_in_a_window():
    windows = [{"before": 600}, {"before": 610, "after": 900}]
    frame = merged(record("1x_a"), record("2x_a--departure", "mps", windows=windows))
    assert frame["window"].tolist() == ["window", "before", "before", "after"]
    assert frame["samples_per_s"].tolist() == [1000, 600, 610, 900]
    assert frame["epoch_time_s"].iloc[0] == TRAIN_SIZE / 1000
    assert set(frame["n"]) == {1, 2} and set(frame["device"]) == {"GPU-1"}


TURNS = [{"alone": [900, 1100]}, *[{"naive": [500, 510]}] * 2, *[{"mps": [800, 0]}] * 2]


def alternating(windows=TURNS, **options):
    return record("2x_a--alternate", "alone-naive-mps", windows=windows, **options)


def test_a_row_of_an_alternating_cell_has_its_slices_and_how_busy_the_gpu_was_in_each(tmp_path):
    """Readings count that are of one slice as a whole, and begin after the driver's lag (100)."""
    cell = alternating() | {"folder": tmp_path, "files": {"gpu.parquet": {}}}
    spans = {"alone": [[0, 400], [2000, 2400]], "naive": [[500, 900], [1500, 1900]]}
    spans["mps"] = [[1000, 1400], [2500, 2900]]
    spans = {name: [[LAG_NS // 100 * t for t in span] for span in of] for name, of in spans.items()}
    cell["windows"] = [{"name": name, "seconds": 8.0, "spans": of} for name, of in spans.items()]
    times = [0, 100, 200, 400, 500, 610, 700, 2010, 2110, 2200]
    readings = {"t_ns": [LAG_NS // 100 * t for t in times], "entity": ["gpu"] * 10}
    readings["gract"] = [0.9, 0.8, 0.2, 0.5, 1.0, 0.9, 0.7, 1.0, 0.9, 0.3]
    kinds = {"gract": {"kind": "rate"}}
    fields = [pa.field(n, pa.array(of).type, metadata=kinds.get(n)) for n, of in readings.items()]
    table = pa.table(readings, schema=pa.schema(fields, metadata={"origin_ns": "0"}))
    pq.write_table(table, tmp_path / "gpu.parquet")
    rows = {row.window: row for row in merged(cell).itertuples()}
    assert [list(rows[side].slices) for side in ("alone", "mps")] == [[900, 1100], [800, 0]]
    assert rows["alone"].samples_per_s == 1000 and rows["mps"].window_s == 8
    assert list(rows["alone"].gract_slices) == pytest.approx([0.4, 0.3])
    assert rows["naive"].gract_slices[0] == pytest.approx(0.7)
    assert rows["naive"].gract_slices[1] is None or np.isnan(rows["naive"].gract_slices[1])
    (tmp_path / "gpu.parquet").write_bytes(b"no table")
    _, problems = merge.merge([cell])
    assert [path for path, _ in problems] == [str(tmp_path / "gpu.parquet")]


def test_the_alone_side_is_what_losses_are_held_against():
    losses = [[7.0, 6.0, 5.0]] * 4 + [[9.0, 9.0, 9.0]]
    frame = merged(alternating(losses=losses), record("3x_a", "mps", rates=[1] * 3))
    assert frame["loss_check"].tolist() == [ITSELF] + [AGREES] * 3 + [DIFFERS] + [AGREES] * 3


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ([{"alone": [1, 2]}, *[{"window": 1}] * 4], "window are no sides of 2x_a--alternate"),
        ([{"alone": [1, -2]}], "slices is [1, -2]"),
        ([{"alone": [1, "x"]}], "slices is [1, 'x']"),
    ],
)
def test_sides_that_are_none_are_left_out(windows, said):
    bent = alternating()
    for member, own in zip(bent["members"], windows, strict=False):
        member["windows"] = {
            name: {"samples_per_s": 1.0, "slices": of if isinstance(of, list) else None}
            for name, of in own.items()
        }
    table, problems = merge.merge([bent, record("1x_a")])
    assert len(table) == 1 and said in problems[0][1]


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
    more = {"limits": limits, "sm_count": 18, "uuids": ["GPU-1"] * 2, "sitting": "s1"}
    unknown = {"provenance": {"versions": None}, "timing": None, "data": None}
    bare = record("2x_b", rates=[1, 1]) | unknown
    frame = merged(record("2x_a", "mps_small", rates=[1, 1], **more), bare)
    rows = frame.iloc[0]
    assert (rows["sm_percent"], rows["pinned_memory_mb"]) == (14.29, 2000)
    assert (rows["sm_count"], rows["device_uuid"], rows["session"]) == (18, "GPU-1", "s1")
    assert bool(rows["method_verified"]) and rows["machine"] == "m1" and rows["digest"] == "d1"
    assert frame["torch"].isna().tolist() == [False] * 2 + [True] * 2


def test_whole_epochs_give_training_time_apart_from_validation():
    epochs = [
        {"epoch": i, "train_s": s, "validation_s": 5.0, "samples": 49_984, "accuracy": 0.3 + i / 10}
        for i, s in enumerate([50.0, 54.0])
    ]
    row = merged(record("1x_a--epochs", rates=[1], epochs=epochs)).iloc[0]
    assert row["epoch_time_s"] == 52 and row["epoch_time_kind"] == "trained"
    assert row["samples_per_s"] == pytest.approx(2 * 49_984 / 104)
    assert row["accuracy"] == pytest.approx(0.4) and row["validation_s"] == 5
    small = [epochs[0] | {"samples": 5_000, "train_s": 5.0}]
    row = merged(record("1x_a--epochs", epochs=small)).iloc[0]
    assert row["epoch_time_s"] == 50 and row["epoch_time_kind"] == "trained_scaled"


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


def test_of_a_block_that_moved_to_another_gpu_the_job_alone_stays_on_both():
    first, second = {"gpu": "GPU-1"}, {"gpu": "GPU-2", "attempt": 2}
    frame = merged(
        record("1x_a", rates=[1000], **first),
        record("1x_a", rates=[500], **second),
        record("1x_a", arm="bf16", rates=[700], **first),
        record("1x_a", arm="bf16", rates=[350], **second),
        record("1x_b", rates=[90], **first),
        record("1x_b", rates=[80], **second),
        record("2x_a", "mps", rates=[900, 900], **first),
        record("3x_a", "mps", rates=[100] * 3, **first),
        record("3x_a", "mps", rates=[250] * 3, **second),
    )
    alone = frame[frame["n"] == 1].groupby("cell")["current"].agg(list)
    assert alone["1x_a/paper_step/naive/r1"] == [False, True]
    # Nothing of their arm, or with their job, was measured on the first GPU and still counts.
    assert alone["1x_a/bf16/naive/r1"] == alone["1x_b/paper_step/naive/r1"] == [True]
    rates = frame.groupby("cell")["samples_per_s"].agg(list)
    assert rates["1x_a/paper_step/naive/r1"] == [1000, 500]
    assert rates["3x_a/paper_step/mps/r1"] == [250] * 3


@pytest.mark.parametrize("later", [1, 2])
def test_of_a_cell_that_two_gpus_measured_the_one_that_began_last_counts(later):
    """Whichever of two hosts' folders was merged into the other."""
    tried = [record("2x_a", rates=[n, n], gpu=f"GPU-{n}", attempt=n) for n in (1, 2)]
    for each in tried:
        day = 2 if each["cell"]["attempt"] == later else 1
        each["provenance"]["started_at"] = f"2026-01-0{day}T00:00:00+00:00"
    assert set(merged(*tried)["samples_per_s"]) == {later}


def test_a_fault_on_another_gpu_hides_no_result():
    fault = record("1x_a", rates=[None], gpu="GPU-2", attempt=2, status="failed")
    frame = merged(record("1x_a"), fault, record("2x_a", rates=[500, 500], gpu="GPU-2"))
    assert set(frame["status"]) == {"completed"} and frame["current"].all()


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


def test_a_completed_cell_whose_method_was_not_proven_is_flagged_beside_the_runners_flags():
    frame = merged(
        record("1x_a", verified=True),
        record("2x_a", rates=[1, 1], verified=None, flags=["cores_shared"]),
        record("3x_a", rates=[1, 1, 1], verified=False),
        record("4x_a", rates=[1, 1, 1, None], status="out_of_memory", verified=None),
    )
    found = frame.groupby("n")["flags"].agg(set).tolist()
    assert found == [{""}, {"cores_shared;unverified"}, {"unverified"}, {""}]


@pytest.mark.parametrize(
    ("scenario", "method", "arm", "measure", "flag"),
    [
        ("1x_a", "naive", {"cuda_graph": True}, {}, "unvisited"),
        ("3x_a", "mps", {"cuda_graph": True}, {}, "unvisited"),
        ("3x_a", "mps", {"cuda_graph": True}, {"visit": True}, ""),
        ("3x_a", "naive", {"cuda_graph": True}, {}, ""),  # they make the GPU switch contexts
        ("2x_a--alternate", "alone-mps", {"cuda_graph": True}, {}, ""),
        ("1x_a", "naive", {"cuda_graph": False}, {}, ""),
        ("1x_a", "naive", {}, {}, ""),  # as the first records say it
    ],
)
def test_a_graph_that_had_the_gpu_to_itself_without_a_visit_is_flagged(
    scenario, method, arm, measure, flag
):
    turns = "alternate" in scenario
    rates = [{"alone": 1}, {"mps": 1}, {"mps": 1}] if turns else [{"window": 1}] * int(scenario[0])
    cell = record(scenario, method, windows=rates)
    cell["spec"] |= {"arm": arm, "measure": cell["spec"]["measure"] | measure}
    assert set(merged(cell)["flags"]) == {flag}
    assert set(merged(cell | {"status": "failed"})["flags"]) == {""}


@given(st.lists(st.lists(st.sampled_from(flags.KNOWN)).map(";".join) | st.none()))
def test_a_union_of_flags_has_each_once(columns):
    found = flags.split(flags.union(columns))
    assert found == sorted({flag for column in columns for flag in flags.split(column)})


def test_each_flag_can_be_said_in_words():
    assert len({flags.meaning(flag) for flag in flags.KNOWN} - {*flags.KNOWN}) == len(flags.KNOWN)
    assert flags.meaning("of_another_version") == "of_another_version"


# -- fixed work -----------------------------------------------------------------------------------


def with_steps(path, ends_s, measure="completion"):
    """A cell of fixed work on disk: ends_s are the times of each member's step ends (s)."""
    content = record(f"{len(ends_s)}x_a--{measure}", windows=[{measure: 10}] * len(ends_s))
    [path] = on_disk(path, content)
    no_loss = {"loss_step": np.array([], int), "loss": np.array([]), "first_step": 0}
    arrays = {
        member: {"end_ns": np.round(np.array(ends) * 1e9).astype(np.int64), **no_loss}
        for member, ends in enumerate(ends_s)
    }
    steps.write(path.with_name("steps.parquet"), arrays, origin_ns=0)
    return path


def alone_after(folder, path):
    note = merging(folder / "runs.parquet", [path])
    return pq.read_table(folder / "runs.parquet")["samples_per_s_alone_after"].to_pylist(), note


def test_the_member_that_ends_last_has_a_rate_of_its_own_after_the_others(tmp_path, capsys):
    fast = [*np.arange(1, 20), *np.arange(20, 31, 0.25)]  # four times as fast once it is alone
    path = with_steps(tmp_path, [np.arange(1, 11), fast, np.arange(1, 21)])
    found, note = alone_after(tmp_path, path)
    assert found == [None, pytest.approx(4 * 32), None] and note == []
    assert alone_after(tmp_path, with_steps(tmp_path, [[1, 2], range(1, 13)]))[0] == [None, 32]
    few = with_steps(tmp_path, [[1, 2], range(1, 12)])
    assert alone_after(tmp_path, few)[0] == [None, None]
    other = with_steps(tmp_path, [[1, 2], range(1, 30)], measure="window")
    assert alone_after(tmp_path, other)[0] == [None, None]


def test_steps_that_cannot_be_read_leave_the_rate_out_and_say_so(tmp_path, capsys):
    path = with_steps(tmp_path, [[1, 2], range(1, 30)])
    broken = path.with_name("steps.parquet")
    broken.write_bytes(broken.read_bytes()[:-9])
    found, note = alone_after(tmp_path, path)
    assert found == [None, None]
    assert [line.startswith(str(broken)) for line in note] == [True]


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
    assert found["1x_a/paper_step/naive"][0] == (AGREES if runs > 1 else ITSELF)


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


def test_a_stray_alone_run_is_no_reference():
    stray = [7.0, 7.2, 8.2]
    found = checks_of(*alone_runs(*[[7.0, 6.0, 5.0]] * 3, stray), pair(stray))
    assert found["1x_a/paper_step/naive/r4"][0] == DIFFERS
    assert found["2x_a/paper_step/mps"][0] == DIFFERS


def test_members_are_held_against_alone_runs_of_their_own_code_where_there_are_any():
    """Another version may draw other weights."""
    old = [*alone_runs(*[[7.0, 6.0, 5.0]] * 3), pair([7.0, 6.0, 5.0])]
    new = [record("1x_a", replicate=i, losses=[[6.0, 5.0, 4.0]], digest="new") for i in (4, 5)]
    new += [pair([6.0, 5.0, 4.0], replicate=2, digest="new")]
    found = checks_of(*old, *new)
    assert {verdict for verdict, _ in found.values()} == {AGREES}
    assert checks_of(*old, new[-1])["2x_a/paper_step/mps/r2"][0] == DIFFERS


@pytest.mark.parametrize("other", [{"arm": "bf16"}, {"source": "real"}, {"limits": {"seed": 1}}])
def test_only_members_of_a_kind_are_held_against_each_other(other):
    found = checks_of(*alone_runs([7.0, 6.0, 5.0], [7.0, 6.0, 5.0]), pair([1.0, 1.0, 1.0], **other))
    assert {verdict for verdict, _ in found.values()} == {AGREES, losses.NO_ALONE}


# -- what cannot be read --------------------------------------------------------------------------


def bent(**changes):
    """A record of cell 2x_a with some of its parts replaced."""
    return record("2x_a", rates=[500, 400]) | changes


def with_rate(rate):
    found = record("2x_a", rates=[500, 400])
    found["members"][1]["windows"]["window"]["samples_per_s"] = rate
    return found


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"schema_version": 1, "cell"',
        "[" * 100_000,
        json.dumps(bent(reason=0)).replace('"reason": 0', '"reason": ' + "[" * 900 + "]" * 900),
        bent(schema_version=0),
        bent(members=[]),
        bent(members=[{"member": 0, "windows": {}}]),
        bent(windows=[]),
        bent(study="elsewhere"),
        bent(cell=record("2x_a")["cell"] | {"scenario": "a"}),
        bent(reason="\ud800"),
        with_rate(-1),
        with_rate(float("nan")),
    ],
)
def test_a_record_that_cannot_be_is_left_out_and_named(tmp_path, capsys, content):
    good = record("1x_a")
    paths = on_disk(tmp_path, good, content)
    note = merging(tmp_path / "runs.parquet", paths)
    assert [line.startswith(str(paths[1])) for line in note] == [True]
    assert "left out of" in capsys.readouterr().err
    assert pq.read_table(tmp_path / "runs.parquet")["cell"].to_pylist() == [good["cell"]["id"]]
    assert merging(tmp_path / "runs.parquet", paths[:1]) == []


def _places(value, above=()):
    """Where the values of nested objects and lists stand, as the keys that lead there."""
    if not isinstance(value, dict | list):
        return [above]
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return [above, *(place for key, part in inside for place in _places(part, (*above, key)))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_whatever_one_value_of_a_record_is_no_other_record_is_lost(tmp_path, capsys, data):
    content = record("2x_a", rates=[500, 400], telemetry=telemetry(members=2))
    place = data.draw(st.sampled_from(_places(content)[1:]))
    odd = st.sampled_from([None, [], {}, "x", -1, 2**70, 1.5, True, [None], {"a": None}, [[1]]])
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = data.draw(odd)
    paths = on_disk(tmp_path, record("1x_a"), content)
    note = merging(tmp_path / "runs.parquet", paths)
    cells = set(pq.read_table(tmp_path / "runs.parquet")["cell"].to_pylist())
    assert len(cells) == 2 - len(note) and "1x_a/paper_step/naive/r1" in cells


def test_merging_is_reproducible_and_needs_nothing_of_an_earlier_output(tmp_path, capsys):
    records = [record("1x_a"), record("2x_a", rates=[500, 400])]
    records.append(record("2x_a", "mps", rates=[1, 1]))
    paths, output = on_disk(tmp_path, *records), tmp_path / "runs.parquet"
    assert "absent" in merging(output, [*paths, tmp_path / "absent.json"])[0]
    before = output.read_bytes()
    output.write_bytes(before[: len(before) // 2])
    assert merging(output, paths[::-1]) == []
    assert output.read_bytes() == before
    assert pq.read_table(output).schema.equals(schema.SCHEMA)
    assert merging(tmp_path / "none.parquet", []) == []
    assert len(pq.read_table(tmp_path / "none.parquet", schema=schema.SCHEMA)) == 0
    as_text = pd.read_csv(output.with_suffix(".csv"))
    assert as_text["samples_per_s"].tolist() == [1000, 1, 1, 500, 400]
