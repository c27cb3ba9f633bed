"""Metrics: their bounds and identities; the order of methods."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.estimates import metrics
from workflow.collocation.spec.names import method_order

rate = st.floats(1e-3, 1e6)
shares = st.lists(st.floats(0.01, 2.0), min_size=1, max_size=8)


@given(shares)
def test_bounds(p):
    assert metrics.antt([1.0] * len(p)) == metrics.jain([p[0]] * len(p)) == pytest.approx(1)
    assert 1 / len(p) - 1e-9 <= metrics.jain(p) <= 1 + 1e-9
    # Harmonic against arithmetic mean.
    assert metrics.antt(p) * sum(p) >= len(p) * (1 - 1e-9)


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=4))
def test_order_of_members_does_not_matter(p):
    for order in permutations(p):
        assert metrics.antt(order) == pytest.approx(metrics.antt(p))
        assert metrics.jain(order) == pytest.approx(metrics.jain(p))


@given(st.integers(2, 8), rate, st.floats(0.01, 1.0))
def test_equal_members_beat_serial_exactly_when_stp_exceeds_one(n, alone, p):
    work = [alone] * n  # one second each
    together = metrics.makespan(work, [p * alone] * n, [alone] * n)
    assert together == pytest.approx(1 / p)
    assert (together <= n * (1 + 1e-9)) == (n * p >= 1 - 1e-9)


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


def test_a_studys_own_variants_stand_with_their_family():
    methods = ["mig", "other", "mps_14", "naive", "mps", "mps_equal", "mps_tight", "naive_again"]
    expected = ["naive", "naive_again", "mps", "mps_equal", "mps_14", "mps_tight", "mig", "other"]
    assert sorted(methods, key=method_order) == expected
