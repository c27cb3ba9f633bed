"""Estimates of a table's column: replicates → geometric mean and interval, with pooled variance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.statistics import Estimate, pooled_estimates

# What shares a baseline: a replicate on one device.
BLOCK = ["block", "device"]


def pooled(
    rows: pd.DataFrame,
    column: str,
    keys: Sequence[str],
    within: Sequence[str] = ("family",),
    fixed: pd.Series | None = None,
) -> dict[tuple, Estimate]:
    """Keys → the estimate of `column` (> 0, a row per replicate) over the rows that share them.

    The variance is pooled over rows that share `within`; those of a BLOCK share a baseline
    (analysis.statistics). `fixed` marks rows that are 1 by construction. Values that are missing,
    infinite or not above 0 do not count.
    """
    values = rows[column].astype(float)
    usable = rows[np.isfinite(values) & (values > 0)]
    ratios: dict[tuple, dict[tuple, dict[tuple, float]]] = defaultdict(lambda: defaultdict(dict))
    for pool, key, block, value in zip(
        usable[list(within)].itertuples(index=False, name=None),
        usable[list(keys)].itertuples(index=False, name=None),
        usable[BLOCK].itertuples(index=False, name=None),
        usable[column],
        strict=True,
    ):
        ratios[pool][key][block] = value
    itself = set()
    if fixed is not None:
        itself = set(usable.loc[fixed[usable.index], list(keys)].itertuples(index=False, name=None))
    found: dict[tuple, Estimate] = {}
    for pool in ratios.values():
        found |= pooled_estimates(pool, itself)
    return found
