"""What the gain of N jobs alike under MPS over one alone is made of, and what it is lost to.

Measured within a block, all relative to the job alone: the gain V of N plain processes (naive), the
gain G under MPS, GRACT g and SMACT s of the job alone. Two bounds follow, if a sample keeps the GPU
busy for as long in company as alone:

    F = min(N, 1 / g)   with one job's kernels at a time: all that filling launch gaps can give
    S = min(N, 1 / s)   with every SM busy all the time

The parts are factors, so that they add up on a logarithmic scale:

    gaps            V                       one job's kernels in the gaps of others, in turns
    switches        min(G, max(F, V)) / V   what MPS adds that one kernel at a time could give
    overlap         G / min(G, max(F, V))   beyond: only with kernels of several jobs at a time
    other           max(G, S) / G           lost although SMs were left: host, caches, memory
    saturation      N / max(G, S)           lost because the SMs are busy

(where G < V: switches = G / V, overlap = 1; where G > N: other = N / G, saturation = 1.)

Identities, whatever g and s are: gaps · switches · overlap = G, switches · overlap = G / V (time
slicing removed), and with other · saturation the product is N. Interpretation: where F and S cut
them. `overlap` is the least that only concurrency explains; some of `switches` may be concurrency
as well. Naive's own switching makes V smaller, even below 1. SMs can hold kernels of two jobs at
once, so S is no hard bound. Without GRACT and SMACT of the job alone there are no parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.cells import NOT_RUN, Study, dominant_status
from analysis.names import ALONE_VARIANTS
from analysis.quantities import Measurements, quantity
from analysis.statistics import Estimate
from analysis.tables.prediction import not_run
from analysis.views import Key, statuses, views_of_runs

GAINS = ("gaps", "switches", "overlap")
LOSSES = ("other", "saturation")
PARTS = (*GAINS, *LOSSES)
LEVELS = ("naive", "mps", "filled", "saturated")  # V, G, F, S
COLUMNS = ["workload", "variant", "n", "blocks", "status", "of", "gract", "smact", *LEVELS, *PARTS]
COLUMNS += ["low", "high", "over_naive_low", "over_naive_high"]
BLOCKS = ["workload", "variant", "n", "block", "gract", "smact", *LEVELS]


def parts(n: int, naive: float, mps: float, gract: float, smact: float) -> dict[str, float]:
    """The levels and the parts (see the module) of N jobs with these gains and shares (0 to 1)."""
    filled, saturated = min(n, 1 / gract), min(n, 1 / smact)
    return _cut(n, naive, mps, filled, saturated)


def _cut(n: int, naive: float, mps: float, filled: float, saturated: float) -> dict[str, float]:
    in_turns = mps if mps < naive else min(mps, max(filled, naive))
    possible = n if mps > n else max(mps, saturated)
    return {
        "naive": naive,
        "mps": mps,
        "filled": filled,
        "saturated": saturated,
        "gaps": naive,
        "switches": in_turns / naive,
        "overlap": mps / in_turns,
        "other": possible / mps,
        "saturation": n / possible,
    }


def table(study: Study, arm: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row per workload, input and N ≥ 2: COLUMNS; and a row per block that it is made of: BLOCKS.

    Levels are geometric means over the blocks in which all four were measured, and the parts are
    those of the levels. low and high: 95 % interval of the gain under MPS, over_naive_*: of its
    ratio to naive's, both over all blocks. status: completed, or why there are no parts: an outcome
    of cells, no_baseline or no_telemetry; `of` says of which: mps, naive or alone.
    """
    measured = Measurements(views_of_runs(study.with_references, not_run(study), arm))
    keys = [
        key
        for key in measured.cells()
        if key.method == "mps" and key.n > 1 and len(key.parts) == 1
        if key.variant in ALONE_VARIANTS
    ]
    rows, blocks = [], []
    for key in sorted(keys, key=lambda key: (key.parts[0][0], key.variant, key.n)):
        base = {"workload": key.parts[0][0], "variant": key.variant, "n": key.n}
        found = _blocks(measured, key)
        blocks += [base | block for block in found]
        rows.append(base | _row(measured, key, found))
    return pd.DataFrame(rows, columns=COLUMNS), pd.DataFrame(blocks, columns=BLOCKS)


def _others(key: Key) -> tuple[Key, Key]:
    """The job alone, and the same set as plain processes."""
    [(name, _)] = key.parts
    return Key.of({name: 1}, "naive", key.variant), Key.of(key.parts, "naive", key.variant)


def _blocks(measured: Measurements, key: Key) -> list[dict]:
    """The levels of each block (and device) that has all of them."""
    single, plain = _others(key)
    gain = quantity("gain")
    values = {
        name: {view.place: value for view, value in measured.values(gain, where)}
        for name, where in (("mps", key), ("naive", plain))
    }
    jobs = measured.references(single)
    for name in ("gract", "smact"):
        read = ((place, quantity(name).of(job)) for place, job in jobs.items())
        values[name] = {place: value for place, value in read if value}
    found = []
    for place in sorted(set.intersection(*(set(of) for of in values.values()))):
        own = {name: of[place] for name, of in values.items()}
        levels = parts(key.n, **own)
        found.append({"block": place[0]} | own | {name: levels[name] for name in LEVELS})
    return found


def _row(measured: Measurements, key: Key, blocks: Sequence[dict]) -> dict:
    single, plain = _others(key)
    gain = quantity("gain")
    row = _interval("", measured.estimate(gain, key))
    row |= _interval("over_naive_", measured.estimate(gain, key, plain))
    if blocks:
        means = {
            name: math.exp(math.fsum(math.log(block[name]) for block in blocks) / len(blocks))
            for name in ("gract", "smact", *LEVELS)
        }
        row |= {"blocks": len(blocks), "status": "completed"} | means
        return row | _cut(key.n, *(means[name] for name in LEVELS))
    row["blocks"] = 0
    for name, where in (("mps", key), ("naive", plain), ("alone", single)):
        ended = statuses(measured.at(where)) or {NOT_RUN: 1}
        if "completed" not in ended:
            return row | {"status": dominant_status(ended), "of": name}
        if not measured.values(gain, where):
            return row | {"status": "no_baseline", "of": name}
    return row | {"status": "no_telemetry", "of": "alone"}


def _interval(name: str, estimate: Estimate | None) -> dict:
    ends = (None, None) if estimate is None else (estimate.low, estimate.high)
    return {f"{name}low": ends[0], f"{name}high": ends[1]}
