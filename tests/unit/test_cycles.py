"""Rates over whole cycles, of jobs whose truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.collocation.record.cycles import LEAST_CYCLES, cycle_ends, progress_in

SECOND = 10**9


def steps(*pattern: tuple[int, float, float], cycles: int) -> np.ndarray:
    """Ends (ns) of the steps of a job. pattern: bursts of (steps, seconds of each, pause after)."""
    gaps = []
    for count, step_s, pause_s in pattern * cycles:
        gaps += [step_s] * count
        gaps[-1] += pause_s
    return (np.cumsum(gaps) * SECOND).astype(np.int64)


@pytest.mark.parametrize(
    ("ends", "rate", "cycles"),
    [
        (steps((100, 0.01, 2.0), cycles=10), 100 / 3, 8),  # rollouts of PPO
        (steps((1500, 0.01, 15.0), cycles=5), 50, 3),  # long evaluations
        (steps((500, 0.02, 0.0), cycles=3), 50, None),
        (steps((500, 0.02, 0.1), cycles=3), 50, None),  # pauses too short to matter
        (steps((20, 2.0, 0.0), cycles=1), 0.5, None),  # slow steps are no pauses
        # Short pauses within long ones: cycles are the long ones.
        (steps(*[(10, 0.01, 0.4)] * 9, (10, 0.01, 6.0), cycles=6), 100 / 10.6, 4),
        # One checkpoint in a long run does not matter, the epochs do.
        (
            np.concatenate(
                [
                    steps((100, 0.01, 1.0), cycles=50),
                    steps((100, 0.01, 1.0), cycles=50) + 102 * SECOND,
                ]
            ),
            50,
            98,
        ),
    ],
)
def test_a_rate_is_that_of_whole_cycles(ends, rate, cycles):
    """Wherever the window begins and ends."""
    length = ends[-1] - ends[0]
    for early, late in ((0.0, 1.0), (0.013, 1.0), (0.0, 0.985)):
        window = int(ends[0] + early * length), int(ends[0] + late * length) + 1
        progress = progress_in(ends, *window)
        assert progress.rate == pytest.approx(rate, rel=0.02)
        assert progress.pauses is (cycles is not None)
        assert cycles is None or len(progress.steps) in range(cycles - 2, cycles + 3)


@pytest.mark.parametrize(
    "ends", [np.empty(0, np.int64), np.array([SECOND]), steps((1, 1.0, 0.0), cycles=2)]
)
def test_few_steps_are_no_cycles(ends):
    progress = progress_in(ends, 0, 10 * SECOND)
    assert len(progress.steps) <= 1 and np.isnan(progress.relative_error)


def test_a_pause_that_has_not_ended_is_known_to_be_one():
    """A steady beginning says nothing about the rate of a job that now evaluates."""
    ends = steps((1500, 0.01, 0.0), cycles=1)
    assert not progress_in(ends, 0, 15 * SECOND).pauses
    unfinished = progress_in(ends, 0, 25 * SECOND)
    assert unfinished.pauses and len(unfinished.steps) == 0


@given(
    st.integers(5, 200),
    st.floats(0.005, 0.05),
    st.floats(1.0, 20.0),
    st.integers(LEAST_CYCLES + 2, 12),
    st.floats(0.0, 1.0),
)
def test_where_a_window_begins_does_not_matter(count, step_s, pause_s, cycles, early):
    ends = steps((count, step_s, pause_s), cycles=cycles)
    cycle_s = count * step_s + pause_s
    start = int(ends[0] + early * cycle_s * SECOND)
    progress = progress_in(ends, start, int(ends[-1]) + 1)
    assert progress.pauses and len(cycle_ends(ends)) == cycles
    assert progress.rate == pytest.approx(count / cycle_s, rel=1e-3)
