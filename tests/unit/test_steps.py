"""From step times to rates: exact where the truth is known; and steps.parquet read back."""

from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.collocation.record import step_times as steps
from workflow.collocation.record.values import FileDigest, Window

MS = 1_000_000
ORIGIN = 5_000_000_000_000


def ends(*took_ms: float, origin: int = ORIGIN) -> np.ndarray:
    """Step ends from the steps' lengths; the first step ends at `origin`."""
    return origin + np.concatenate([[0], np.cumsum(took_ms) * MS]).astype(np.int64)


def arrays(end_ns, loss_step=(), loss=(), first_step=0) -> dict:
    return {
        "end_ns": np.asarray(end_ns, np.int64),
        "loss_step": np.asarray(loss_step, np.int64),
        "loss": np.asarray(loss, np.float32),
        "first_step": first_step,
    }


@pytest.mark.parametrize(
    ("step_ms", "still", "length", "told"),  # ms; when steps stood still; of the window
    [
        (10, (0, 0), 3000, False),
        (10, (1000, 1550), 3000, True),
        (10, (1000, 1550), 12000, False),  # less than a twentieth of it
        (10, (1000, 1700), 12000, True),
        (10, (-100, 700), 3000, True),
        (10, (2000, 9000), 3000, True),  # from then on
        (10, (1000, 1200), 3000, False),
        (900, (0, 0), 3000, False),  # as long as each step
    ],
)
def test_a_member_that_stood_still_for_a_part_of_the_window_is_told_of(
    step_ms, still, length, told
):
    end = ORIGIN + MS * np.arange(-5 * step_ms, 13000, step_ms, dtype=np.int64)
    since, until = (ORIGIN + MS * edge for edge in still)
    end = end[(end < since) | (end >= until)]
    ends = {"start_ns": ORIGIN, "end_ns": ORIGIN + length * MS, "seconds": length / 1e3}
    for kind in ("window", "before", "after", "completion"):
        expected = told and kind != "completion"  # where they wait for others
        assert steps.has_stalled(Window(name=kind, **ends), end) is expected


def turns(rates: list[float], condition: str = "naive", members=(0, 1)) -> Window:
    spans = [(ORIGIN + i * 1000 * MS, ORIGIN + (i * 1000 + 400) * MS) for i in range(len(rates))]
    about = {"start_ns": spans[0][0], "end_ns": spans[-1][1], "seconds": 0.4 * len(rates)}
    return Window(name=condition, **about, members=[*members], spans=spans)


PLAIN = Window(name="window", start_ns=ORIGIN, end_ns=ORIGIN + 3000 * MS, seconds=3.0)
STOPS = [10] * 140  # ms of each step, from the window's start
COLLAPSES = [  # steps of a window of 3 s, or rates of slices; flag; whether it stopped for good
    ([10] * 300, None, False),
    ([10] * 160 + [9000], "stalled", False),  # after its middle
    (STOPS, "stalled", True),
    ([], "stalled", True),
    ([10] * 150 + [100] * 20, "halves_differ", False),  # tenfold slower
    ([12.4] * 125 + [10] * 150, None, False),
    ([13] * 120 + [10] * 150, "halves_differ", False),
    ([10] * 100 + [560] + [10] * 150, "stalled", False),
    ([150] * 5 + [550] + [150] * 15, "stalled", False),
    ([10, 400, 10, 10, 400] * 4, "stalled", False),  # more than once
    ([650] * 6, None, False),  # each step takes long
    ([3.0, 3.1, 3.0, 2.9], None, False),
    ([3.0, 3.0, 2.0, 2.0], "halves_differ", False),
    ([3.0, 0.0, 3.0, 3.0], "stalled", False),
    ([3.0, 3.0, 0.0, 0.0], "stalled", True),
    ([3.0], None, False),
]


def window_of(made: list[float]) -> tuple:
    """A window, step ends, rates of slices: those are short of 10."""
    if made and max(made) < 10:
        return turns(made), np.array([], np.int64), made
    return PLAIN, ends(*made)[1:] if made else np.array([], np.int64), None


@pytest.mark.parametrize(("made", "expected", "stopped"), COLLAPSES)
def test_a_window_that_collapsed_is_flagged_or_none(made, expected, stopped):
    window, end, slices = window_of(made)
    assert steps.window_flag(window, end, slices) == expected
    paused = {(1, window.name): steps.pause_shares(window, end, slices)}
    assert steps.find_stopped_member([window], paused, ["a", "a"]) == (
        (1, window.name) if stopped else None
    )


@pytest.mark.parametrize(
    ("alone", "stopped"),
    [([3, 3, 3, 3, 3, 3], True), ([3, 0, 0, 0, 3, 3], False), ([3, 3, 3, 0, 0, 0], True)],
)
def test_a_job_may_pause_as_long_as_it_did_when_it_was_alone(alone, stopped):
    """But for a pause that nothing ended."""
    windows = [turns(alone, "alone", [0]), turns([2, 2, 2, 0, 0, 0])]
    none = np.array([], np.int64)
    paused = {(0, "alone"): steps.pause_shares(windows[0], none, alone)}
    paused[1, "naive"] = steps.pause_shares(windows[1], none, [2, 2, 2, 0, 0, 0])
    assert (steps.find_stopped_member(windows, paused, ["a", "a"]) is not None) is stopped
    if not stopped:  # of another job it says nothing
        assert steps.find_stopped_member(windows, paused, ["b", "a"]) == (1, "naive")


# -- rates ----------------------------------------------------------------------------------------


@given(
    took=st.lists(st.integers(0, 10**9), min_size=1, max_size=40),
    first=st.integers(1, 10**9),
    cuts=st.lists(st.floats(0, 1), max_size=6),
)
def test_slices_that_follow_each_other_have_each_step_once(took, first, cuts):
    """Whatever steps take, and wherever the cuts are; a step of no time at all is in one slice."""
    end = ORIGIN + first + np.concatenate([[0], np.cumsum(took)]).astype(np.int64)
    began = np.concatenate([[ORIGIN], end[:-1]])
    edges = sorted(ORIGIN + int(cut * (end[-1] - ORIGIN)) for cut in cuts)
    spans = [*pairwise([ORIGIN, *edges, int(end[-1])])]
    found = [steps.fractional_steps(began, end, *span) for span in spans]
    assert sum(found) == pytest.approx(len(end), rel=1e-9)
    assert all(share >= 0 for share in found)


@given(*(st.integers(*e) for e in ((10**6, 10**9), (0, 10**8), (10**8, 10**9), (1, 8))))
def test_slices_of_steady_steps_have_the_exact_rate_however_long_these_are(
    period, drop, counted, count
):
    """Each slice is resumed, ends in the midst of a step, and is followed by a rest."""
    spans, end, now = [], [], ORIGIN
    for _ in range(count):
        span = now + drop, now + drop + counted
        made = -(-(span[1] - now) // period)
        end += [now + period * (index + 1) for index in range(made)]
        spans.append(span)
        now = end[-1] + 10**8
    end = np.array(end, np.int64)
    found = steps.slices_rate(end, spans, drop, 32)
    assert found.slices == pytest.approx([32e9 / period] * count, rel=1e-9)
    assert found.samples_per_s == pytest.approx(32e9 / period, rel=1e-9)
    assert found.steps == sum(a < e <= b for a, b in spans for e in end.tolist())
    window = Window(name="naive", start_ns=0, end_ns=1, seconds=1.0, members=[0], spans=spans)
    assert steps.member_rate(window, end, 32, drop / 1e9) == found
    rest = end[end > spans[0][1] + period]
    assert steps.slices_rate(rest, spans, drop, 32).slices[0] == 0  # it stood still


@given(*(st.integers(*e) for e in ((10**4, 10**9), (0, 10**9), (0, 10**10), (0, 300), (1, 4096))))
def test_equidistant_steps_give_the_exact_rate_wherever_the_window_opens(
    period, offset, length, count, batch
):
    end = ORIGIN + period * np.arange(count, dtype=np.int64)
    start = ORIGIN + offset
    found = steps.window_rate(end, start, start + length, batch)
    assert found.steps == sum(start <= int(e) < start + length for e in end)
    if found.steps < 2:
        assert found.samples_per_s is found.step_ms_p50 is found.drift is None
        return
    assert found.samples_per_s == pytest.approx(batch * 1e9 / period, rel=1e-9)
    for percentile in (found.step_ms_p50, found.step_ms_p95, found.step_ms_p99):
        assert percentile == pytest.approx(period / 1e6, rel=1e-9)
    if found.steps > 3:
        assert found.drift == pytest.approx(0, abs=1e-9)


def test_percentiles_and_drift_of_the_last_third_against_the_first():
    found = steps.window_rate(ends(*range(1, 101)), 0, 2 * ORIGIN, 1)
    percentiles = found.step_ms_p50, found.step_ms_p95, found.step_ms_p99
    assert percentiles == pytest.approx((50.5, 95.05, 99.01))
    found = steps.window_rate(ends(10, 10, 1000, 1000, 11, 11), 0, 2 * ORIGIN, 1)
    assert found.drift == pytest.approx(0.1)
    assert steps.window_rate(ends(10, 20), 0, 2 * ORIGIN, 1).drift is None
    assert steps.window_rate(ends(10, 10), ORIGIN, ORIGIN + 20 * MS, 1).steps == 2  # [start, stop)


def test_noise_of_thirds_that_do_not_differ_is_within_its_standard_errors():
    """Steps of one length but for noise, some of it slow: drift is real beyond two errors, and a
    third of a window that is 5 % slower is.
    """
    random, drifts = np.random.default_rng(5), []
    for _ in range(300):
        slow = np.repeat(random.normal(0, 0.02, 100), 9)  # noise that lasts for some steps
        took = 10 * (1 + slow + random.normal(0, 0.05, 900))
        found = steps.window_rate(ends(*took), 0, 2 * ORIGIN, 1)
        drifts.append((found.drift, found.drift_error))
    drift, error = np.array(drifts).T
    assert np.mean(abs(drift) > 2 * error) < 0.1
    assert np.mean(error) == pytest.approx(np.std(drift), rel=0.2)
    took[600:] *= 1.05
    slower = steps.window_rate(ends(*took), 0, 2 * ORIGIN, 1)
    assert slower.drift > 2 * slower.drift_error
    few = steps.window_rate(ends(*[10, 10, 11] * 3), 0, 2 * ORIGIN, 1)
    assert few.drift == pytest.approx(0) and few.drift_error is None


# -- losses ---------------------------------------------------------------------------------------


def test_the_first_losses_stand_in_the_record_and_those_that_are_none_are_null():
    found = steps.first_losses(
        arrays([], range(0, 5000, 10), [2.5, np.nan, np.inf, *[1 / 3] * 497])
    )
    assert len(found.step) == len(found.value) == 100
    assert found.step[:4] == [0, 10, 20, 30]
    assert found.value[:4] == [2.5, None, None, 0.333333]


# -- files ----------------------------------------------------------------------------------------


def test_steps_parquet_is_read_back(tmp_path):
    first = ends(10, 10, 10) - 15 * MS  # two steps ended before the window opened
    second = ends(7, 7)
    members = {
        1: arrays(second + 9_999, [20, 30, 32], [3.0, np.nan, 1.0], first_step=30),
        0: arrays(first, [0, 10, 12], [9.0, 2.0, 1.5], first_step=10),
    }
    found = steps.write_steps(tmp_path / "steps.parquet", members, ORIGIN)
    table = pq.read_table(tmp_path / "steps.parquet")
    assert table.to_pydict() == {
        "member": [0, 0, 0, 0, 1, 1, 1],
        "tick": [-1500, -500, 500, 1500, 0, 700, 1400],  # 10 µs each
        "loss": [2.0, None, 1.5, None, None, None, 1.0],  # of warm-up steps none, NaN is null
    }
    assert [str(column.type) for column in table.schema] == ["int16", "int64", "float"]
    assert table.schema.metadata[b"tick_ns"] == b"10000"
    assert int(table.schema.metadata[b"origin_ns"]) == ORIGIN
    assert table.schema.field("tick").metadata[b"unit"] == b"10 us"
    assert found == FileDigest.of(tmp_path / "steps.parquet")
    read = steps.read_steps(table)
    assert read.keys() == {0, 1} and read[1][0].tolist() == second.tolist()
    assert read[0][1].tolist()[2] == 1.5 and np.isnan(read[0][1][1])
