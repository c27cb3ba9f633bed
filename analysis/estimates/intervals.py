"""One host, one interval; several hosts, their points and the range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from scipy.special import stdtrit

from analysis.estimates.quantities import LOG, QUANTITIES, SHARE
from analysis.estimates.schema import BOTH, RANGE, Estimate, Replicate
from analysis.records import flags

CONFIDENCE = 0.95
FEW = 3  # of fewer cells a t interval says less than each of them does of itself


def interval(found: Sequence[float], scale: str) -> tuple[float, float | None, float | None]:
    """Mean and 95 % t interval of one host's replicates; low and high are None for a single one.

    On logs for scale `log` (values > 0), within 0 to 1 for `share`. Each cell speaks for itself:
    nothing is pooled with other cells.
    """
    logs = scale == LOG
    used = [math.log(value) for value in found] if logs else list(found)
    mean = math.fsum(used) / len(used)
    back: Callable[[float], float] = math.exp if logs else float
    if len(used) < 2:
        return found[0], None, None
    freedom = len(used) - 1
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in used) / freedom)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(len(used))
    low, high = back(mean - half), back(mean + half)
    if scale == SHARE:
        low, high = max(low, 0.0), min(high, 1.0)
    return back(mean), low, high


def of_cells(found: Sequence[Replicate], scale: str) -> tuple[float, float | None, float | None]:
    """Mean and 95 % interval of one host's cells, by what they tell of themselves.

    FEW cells or more: their t interval, which holds what differs from cell to cell. Of fewer that
    have batches: from the lowest to the highest end of the cells' own intervals, each the t
    interval of its batches around its value. That is one cell's own interval if there is one.
    """
    value, low, high = interval([each.value for each in found], scale)
    if len(found) >= FEW or not all(each.batches for each in found):
        return value, low, high
    own = [_own(each, scale) for each in found]
    low, high = min(low for low, _ in own), max(high for _, high in own)
    return value, low, high


def _own(cell: Replicate, scale: str) -> tuple[float, float]:
    middle, low, high = interval(cell.batches, scale)
    if scale == LOG:
        return cell.value * low / middle, cell.value * high / middle
    low, high = cell.value + low - middle, cell.value + high - middle
    return (max(low, 0.0), min(high, 1.0)) if scale == SHARE else (low, high)


def mean(found: Sequence[float], scale: str) -> float:
    """Geometric mean for scale `log` (values > 0), else the arithmetic one."""
    return interval(found, scale)[0]


def over_hosts(found: Sequence[Estimate]) -> Estimate:
    """One number from those of single hosts: of one host its interval, of several their range.

    The value is the mean over all replicates, each counting alike. Hosts are no replicates of each
    other, so no interval is made of them: low and high are the least and the most of their values.
    """
    first, scale = found[0], QUANTITIES[found[0].quantity].scale
    common = {
        "host": "",
        "n": sum(e.n for e in found),
        "hosts": len(found),
        "flags": flags.union(e.flags for e in found),
        "design": first.design if len({e.design for e in found}) == 1 else BOTH,
        "note": "; ".join(dict.fromkeys(e.note for e in found if e.note)),
        "replicates": tuple(r for e in found for r in e.replicates),
    }
    if len(found) == 1:
        return replace(first, **common)
    points = [e.value for e in found]
    span = {"low": min(points), "high": max(points), "spread": RANGE}
    value = mean([r.value for r in common["replicates"]], scale)
    value = min(max(value, min(points)), max(points))  # rounding
    return replace(first, value=value, **span, **common)
