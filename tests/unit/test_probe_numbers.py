"""Numbers of a probe, from step times whose truth is known."""

import numpy as np
import pytest

from analysis.advice.job.numbers import Alone, Together, alone_numbers, together_numbers
from workflow.collocation.record.probe import AGAIN, ALONE, IN_TURNS, JobSet, ProbeRecord
from workflow.collocation.record.values import Window

SECOND = 10**9
MEMBER = {"member": 0, "workload": "t", "status": "completed"}
SET = JobSet(n=2, method="mps")


def steady(rate: float, start_s: float, stop_s: float, jitter: float = 0.0) -> np.ndarray:
    """Ends (ns) of steps at a rate, between two times; jitter: relative, of each step's time."""
    count = int((stop_s - start_s) * rate)
    noise = np.random.default_rng(int(start_s)).normal(1.0, jitter, count)
    return ((start_s + np.cumsum(noise) / rate) * SECOND).astype(np.int64)


def bursts(start_s: float, cycles: int) -> np.ndarray:
    """20 steps in a second, then a pause of 4 s."""
    one = np.arange(20) / 20
    times = np.concatenate([start_s + 5 * cycle + one for cycle in range(cycles)])
    return (times * SECOND).astype(np.int64)


def window(name: str, start_s: float, stop_s: float, members: list[int], spans=None) -> Window:
    pieces = [(round(a * SECOND), round(b * SECOND)) for a, b in spans or [(start_s, stop_s)]]
    seconds = sum(b - a for a, b in pieces) / SECOND
    kept = pieces if spans else None
    start, stop = round(start_s * SECOND), round(stop_s * SECOND)
    return Window(
        name=name, start_ns=start, end_ns=stop, seconds=seconds, members=members, spans=kept
    )


def record(*windows: Window) -> ProbeRecord:
    fields = dict.fromkeys(("gpu", "peak_bytes", "needed_s", "problem"))
    fields |= {"jobs": {}, "started_at": "", "host": {}, "provenance": {}}
    fields |= {"windows": list(windows), "members": [MEMBER], "sets": [SET], "flags": []}
    fields |= {"telemetry": {"status": "off"}, "evidence": {}}
    return ProbeRecord(**fields, seconds={}, files={})


def in_turns(alone: float, turns: float, of_set: float, again: float | None = None):
    """A probe of a steady job: its rates alone, in turns, of both jobs of a set, and again."""
    rounds = range(20, 80, 10)
    windows = [
        window(ALONE, 0, 10, [0]),
        window(IN_TURNS, 20, 80, [0], [(s, s + 5) for s in rounds]),
        window(SET.name, 20, 80, [1, 2], [(s + 5, s + 10) for s in rounds]),
    ]
    lone = [steady(alone, 0, 10)] + [steady(turns, s, s + 5, 0.02) for s in rounds]
    if again:
        windows.append(window(AGAIN, 90, 100, [0]))
        lone.append(steady(again, 90, 100))
    copy = np.concatenate([steady(of_set / 2, s + 5, s + 10, 0.02) for s in rounds])
    return record(*windows), {0: np.concatenate(lone), 1: copy, 2: copy}


def numbers_of(probe: ProbeRecord, ends: dict) -> tuple[Alone, Together]:
    together = probe.window(SET.name)
    alone = alone_numbers(probe, ends, member=0, beside=together)
    return alone, together_numbers(together, ends, [alone] * SET.n)


@pytest.mark.parametrize(
    ("rates", "stp", "doubt", "note"),
    [
        ({"alone": 50, "turns": 50, "of_set": 90}, 1.8, None, None),
        ({"alone": 50, "turns": 48, "of_set": 90}, 1.875, None, None),
        ({"alone": 70, "turns": 50, "of_set": 90}, 1.8, "alone was 70 and", None),
        ({"alone": 70, "turns": 50, "of_set": 90, "again": 51}, 1.8, None, "later ones count"),
        ({"alone": 70, "turns": 50, "of_set": 90, "again": 69}, 1.295, None, "by itself"),
        ({"alone": 70, "turns": 50, "of_set": 90, "again": 90}, 1.8, "70 and 90 and", None),
        ({"alone": 50, "turns": 50, "of_set": 150}, 2.0, "times the work of one alone", None),
        ({"alone": 50, "turns": 50, "of_set": 105}, 2.0, None, None),
    ],
)
def test_a_gain_has_one_truth(rates, stp, doubt, note):
    """Rates of the job alone that contradict each other are resolved, or leave a doubt."""
    alone, measured = numbers_of(*in_turns(**rates))
    assert measured.stp.value == pytest.approx(stp, rel=0.03)
    assert measured.stp.low <= measured.stp.value <= measured.stp.high <= 2
    true_gain = rates["of_set"] / rates.get("again" if note else "turns", rates["turns"])
    assert (measured.above or 0) == pytest.approx(true_gain if stp == 2 else 0, rel=0.03)
    assert measured.slowdown.value == pytest.approx(2 / (measured.above or stp), rel=0.05)
    assert measured.rate.value == pytest.approx(rates["of_set"], rel=0.02)
    assert (measured.doubt is None) if doubt is None else doubt in measured.doubt
    assert (not alone.notes) if note is None else note in " ".join(alone.notes)


@pytest.mark.parametrize(("cycles", "doubt"), [(8, None), (3, "fewer than 3 whole cycles")])
def test_a_job_that_pauses_is_counted_in_whole_cycles(cycles, doubt):
    """Wherever its windows begin: here in the middle of a burst."""
    probe = record(
        window(ALONE, 0.5, 30, [0]), window(SET.name, 50.5, 50 + 5 * cycles - 0.5, [1, 2])
    )
    ends = {0: bursts(0, 6), 1: bursts(50, cycles), 2: bursts(52, cycles)}
    alone, measured = numbers_of(probe, ends)
    assert alone.rate.value == pytest.approx(4.0) and alone.cycle_s == pytest.approx(5.0)
    assert measured.stp.value == pytest.approx(2.0) and measured.flags == ()
    assert measured.doubt is None if doubt is None else doubt in measured.doubt


def test_a_pause_in_turns_leaves_a_doubt():
    probe, ends = in_turns(alone=50, turns=50, of_set=90)
    held_up = (ends[1] > 45.5 * SECOND) & (ends[1] < 51 * SECOND)
    _, measured = numbers_of(probe, ends | {1: ends[1][~held_up]})
    assert "hardly stepped in one of its turns" in measured.doubt


def test_the_share_of_a_run_that_is_its_start():
    """A run of 10 s, of which 4 lie before its first step."""
    steps = [steady(10, start + 4, start + 10) for start in (0, 10, 20)]
    probe = record(window(ALONE, 0, 30, [0]))
    starts = [0, 10 * SECOND, 20 * SECOND]
    member = probe.members[0].model_copy(update={"starts_ns": starts})
    probe = probe.model_copy(update={"members": [member]})
    alone = alone_numbers(probe, {0: np.concatenate(steps)}, member=0)
    assert alone.start_share == pytest.approx(0.41, abs=0.01)
