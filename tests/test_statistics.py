"""Intervals: closed forms, and how often they hold the truth where it is known."""

import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from analysis.statistics import APART, pooled_estimates, t_cdf, t_quantile


@pytest.mark.parametrize(
    ("p", "df", "value"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 5, 2.57058), (0.95, 10, 1.81246)]
    + [(0.975, 30, 2.04227), (0.995, 3, 5.84091), (0.5, 4, 0.0), (0.025, 5, -2.57058)],
)
def test_t_quantile_against_the_printed_table(p, df, value):
    assert t_quantile(p, df) == pytest.approx(value, abs=2e-4)


@given(st.floats(0.5, 0.999), st.integers(1, 60))
def test_t_quantile_inverts_the_distribution(p, df):
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)


def estimated(logs, **options):
    """Estimates of cells whose log ratios are the rows; the columns are blocks."""
    return pooled_estimates(
        {k: {b: math.exp(v) for b, v in enumerate(row)} for k, row in enumerate(logs)}, **options
    )


def test_intervals_pool_the_variance_and_never_invent_one():
    ratios = {"a": {1: 1.0, 2: math.e**2}, "b": {1: 2.0 * math.e, 2: 2.0}, "one": {1: 3.0}}
    found = pooled_estimates(ratios | {"self": {1: 1.0, 2: 1.0}, "none": {}}, fixed={"self"})
    # Squares 2 + 0.5 over 2 degrees of freedom, and nothing in common: half width t(2) s / √2.
    half = 4.302653 * math.sqrt(1.25 / 2)
    assert found["a"].mean == pytest.approx(math.e)
    assert math.log(found["a"].low) == pytest.approx(1 - 12.7062, rel=1e-4)  # apart: t(1) √2 / √2
    assert math.log(found["b"].high / 2) == pytest.approx(0.5 + half, rel=1e-5)
    assert (found["b"].df, found["a"].df) == (2, 1)
    assert found["one"].low is None and found["one"].mean == pytest.approx(3)
    assert found["self"].low is found["self"].error is None
    assert "none" not in found


def test_no_variance_is_no_width():
    found = pooled_estimates({k: dict.fromkeys(range(3), 2.0) for k in range(3)})
    assert (found[0].low, found[0].high) == pytest.approx((2, 2))


tables = st.integers(2, 6).flatmap(
    lambda blocks: st.lists(
        st.lists(st.floats(-0.2, 0.2), min_size=blocks, max_size=blocks), min_size=2, max_size=6
    )
)


@given(tables)
def test_a_balanced_pool_has_satterthwaite_s_degrees_of_freedom(logs):
    cells, blocks = len(logs), len(logs[0])
    off = [[value - fmean(row) for value in row] for row in logs]
    squares = sum(value * value for row in off for value in row)
    assume(squares > 1e-6)
    effects = [fmean(column) for column in zip(*off, strict=True)]
    between = cells * sum(e * e for e in effects) / (blocks - 1)
    rest = sum((v - e) ** 2 for row in off for v, e in zip(row, effects, strict=True))
    rest /= (cells - 1) * (blocks - 1)
    pooled = (between + (cells - 1) * rest) / cells
    assert pooled == pytest.approx(squares / cells / (blocks - 1))
    df = cells * (blocks - 1)  # where nothing is common
    if between > rest:
        spread = (between / cells) ** 2 + (cells - 1) * (rest / cells) ** 2
        df = pooled**2 * (blocks - 1) / spread
    quiet = min(range(cells), key=lambda k: sum(v * v for v in off[k]))
    found = estimated(logs)[quiet]
    assert found.df in (math.floor(df - 1e-5), math.floor(df + 1e-5))
    assert found.error == pytest.approx(math.sqrt(pooled / blocks))


def test_cells_that_share_all_noise_are_worth_one():
    wave = [0.0, 0.1, -0.05, 0.02]
    assert estimated([wave] * 9)[0].df == 3
    assert estimated([wave])[0].df == 3
    # Cells that share one block only: nothing tells their common noise from their own.
    chain = pooled_estimates({"a": {1: 1.0, 2: 1.1}, "b": {2: 1.0, 3: 1.2}})
    assert chain["b"].df == 1
    apart = pooled_estimates({"a": {1: 1.0, 2: 1.1}, "b": {3: 1.0, 4: 1.1}})
    assert apart["b"].df == 2


def test_one_replicate_more_elsewhere_changes_no_more_than_it_must():
    """Blocks that are not complete: of the same noise about the same degrees of freedom."""
    random = np.random.default_rng(3)
    logs = random.normal(0, 0.02, (8, 5)) + random.normal(0, 0.08, 5)
    whole = estimated(logs)
    holes = {k: {b: math.exp(logs[k, b]) for b in range(5) if (k, b) != (7, 4)} for k in range(8)}
    found = pooled_estimates(holes)
    assert found[0].df == pytest.approx(whole[0].df, abs=1)
    assert found[0].high / found[0].low == pytest.approx(whole[0].high / whole[0].low, rel=0.1)


def covered(cells, blocks, common, own, trials=1000, drop=0.0):
    """How often the intervals hold the truth, cell by cell; `common` and `own` are s.d. of logs."""
    random = np.random.default_rng(7)
    hits, told = np.zeros(cells), np.zeros(cells)
    for _ in range(trials):
        logs = random.normal(0, 1, (cells, blocks)) * np.reshape(own, (-1, 1))
        logs -= random.normal(0, common, blocks)
        kept = random.random((cells, blocks)) >= drop
        ratios = {
            k: {b: math.exp(logs[k, b]) for b in range(blocks) if kept[k, b]} for k in range(cells)
        }
        for k, found in pooled_estimates(ratios).items():
            if found.low is not None:
                told[k] += 1
                hits[k] += found.low <= 1 <= found.high
    return hits / told


@pytest.mark.parametrize(
    ("blocks", "cells", "common", "own", "drop"),
    [
        (3, 8, 0.08, 0.02, 0.0),
        (5, 7, 0.08, 0.02, 0.0),
        (3, 13, 0.08, 0.01, 0.0),
        (5, 7, 0.05, 0.05, 0.0),
        (3, 8, 0.0, 0.02, 0.0),
        (5, 7, 0.08, 0.02, 0.2),
    ],
)
def test_intervals_hold_the_truth_where_ratios_share_a_baseline(blocks, cells, common, own, drop):
    """The noise of the baseline is in all ratios of a block: not so many independent deviations."""
    assert 0.93 <= covered(cells, blocks, common, [own], drop=drop).mean() <= 0.985


@pytest.mark.parametrize("blocks", [3, 5])
def test_a_noisy_cell_is_not_hidden_by_quiet_ones(blocks):
    found = covered(6, blocks, 0.0, [0.08] + [0.002] * 5)
    assert found[0] >= 0.93 and found[1:].min() >= 0.93


@pytest.mark.parametrize(("factor", "df"), [(APART - 0.1, 6), (APART + 0.1, 2)])
def test_a_cell_is_apart_beyond_a_factor_only(factor, df):
    size = 0.01 * math.sqrt(factor)
    # Each row has the variance 1e-4; rows that turn have no block effect in common.
    quiet = [[0.01, -0.01, 0.0], [0.0, 0.01, -0.01]]
    found = estimated([*quiet, [-size, 0.0, size]])
    assert (found[2].df, found[0].df) == (df, 6)
