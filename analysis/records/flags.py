"""Flags of a cell: what a reader should know before trusting its numbers.

The runner's own flags (cores_shared, throttled, ...) stand in run.json; three more follow from the
numbers, and one from the evidence of the method.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from statistics import median

import pandas as pd

from analysis.names import parse_scenario
from analysis.statistics import pooled_estimates

UNSTEADY, SUSPECT_BASELINE, UNEVEN = "unsteady", "suspect_baseline", "uneven"
UNVERIFIED = "unverified"
# Of the GPU while the cell ran: the numbers are right, and the conditions were not the others'.
THROTTLED, POWER_CAPPED, SHARED_GPU = "throttled", "power_capped", "shared_gpu"
# Of the host: the members had fewer cores than each would have had alone.
CORES_SHARED, HYPERTHREADS_SHARED = "cores_shared", "hyperthreads_shared"
# Of what was seen of it.
INCOMPLETE, DISAGREES = "telemetry_incomplete", "telemetry_disagrees"
ENERGY_DISAGREES = "energy_disagrees"
TELEMETRY = (INCOMPLETE, DISAGREES, ENERGY_DISAGREES)
# A rate with one of these is not what the cell's name says.
SUSPECT = (UNSTEADY, SUSPECT_BASELINE, UNEVEN, UNVERIFIED, THROTTLED, SHARED_GPU)
KNOWN = (*SUSPECT, POWER_CAPPED, CORES_SHARED, HYPERTHREADS_SHARED, *TELEMETRY)

# A window whose last third is this much faster or slower than its first was not in a steady state,
# unless thirds that noisy may differ by as much: so many standard errors.
DRIFT, DRIFT_ERRORS = 0.01, 2.0
# Collocation cannot make a member faster: beyond this, its alone run was slow.
PROGRESS = 1.05
# Members that do the same on the same share of the GPU run alike: one that is this far from the
# median of the others was held up by something, or slept.
SPREAD = 0.2

_MEANING = {
    UNSTEADY: f"unsteady (drift beyond {DRIFT:.0%} and noise)".replace("%", " %"),
    SUSPECT_BASELINE: f"progress above {PROGRESS}, suspect baseline",
    UNEVEN: f"like members' rates differ by over {SPREAD:.0%}".replace("%", " %"),
    UNVERIFIED: "method not proven in force",
    THROTTLED: "GPU throttled by heat or hardware",
    POWER_CAPPED: "GPU held at its power limit",
    SHARED_GPU: "somebody else's process on the GPU",
    CORES_SHARED: "members share CPUs",
    HYPERTHREADS_SHARED: "members share physical cores",
    INCOMPLETE: "telemetry incomplete",
    DISAGREES: "telemetry contradicts itself",
    ENERGY_DISAGREES: "energy contradicts power",
}
_MARKS = {UNSTEADY: "~", SUSPECT_BASELINE: "!", UNEVEN: "≠", UNVERIFIED: "?"}
_MARKS |= {THROTTLED: "↓", SHARED_GPU: "#", POWER_CAPPED: "^"}
_MARKS |= {CORES_SHARED: "÷", HYPERTHREADS_SHARED: "÷"}
_OTHER = "+"


def split(flags: object) -> list[str]:
    """The flags in a cell of the flags column; none where it is empty or missing."""
    return [f for f in flags.split(";") if f] if isinstance(flags, str) else []


def union(columns: Iterable[object]) -> str:
    """One cell of the flags column for several: each flag once, in alphabetical order."""
    return ";".join(sorted({flag for flags in columns for flag in split(flags)}))


def marks(flags: object) -> str:
    """A sign per flag, to stand behind a number: ~ unsteady, ! suspect baseline, ≠ uneven,
    ? unverified, ↓ throttled, # shared GPU, ^ power-capped, ÷ shared cores, + any other.
    """
    return "".join(dict.fromkeys(_MARKS.get(flag, _OTHER) for flag in _ordered(split(flags))))


def legend(columns: Iterable[object]) -> list[str]:
    """What each mark means, a phrase per flag that occurs: `? method not proven in force`."""
    return [_phrase(flag) for flag in _ordered(split(union(columns)))]


def meaning(flag: str) -> str:
    """What a flag says, as a phrase."""
    return _MEANING.get(flag, flag)


def counted(rows: pd.DataFrame) -> list[str]:
    """The legend of the completed cells in `rows` (of runs.parquet), with the number of each."""
    done = rows[rows["status"] == "completed"].drop_duplicates(["cell", "attempt"])["flags"]
    found = [flag for flags in done for flag in split(flags)]
    return [
        # A line must not break between a mark and its meaning.
        f"{_phrase(flag)}: {found.count(flag)} of {len(done)} cells".replace(" ", "\u00a0", 1)
        for flag in _ordered(set(found))
    ]


def _phrase(flag: str) -> str:
    return f"{marks(flag)} {meaning(flag)}"


def _ordered(flags: Iterable[str]) -> list[str]:
    return sorted(flags, key=lambda f: ([*_MARKS, f].index(f), f))


def add_flags(rows: list[dict]) -> None:
    """Add flags that follow from numbers and evidence to the rows' in place, the same for a whole
    cell.

    A baseline is suspect if a member's progress exceeds PROGRESS or, with two replicates or more,
    if the interval of its progress lies above 1.
    """
    lows = _lowest_progress(rows)
    cells: dict[tuple, list[dict]] = defaultdict(list)
    for row in rows:
        cells[row["cell"], row["attempt"]].append(row)
    for members in cells.values():
        found = [members[0]["flags"]]
        if any(_unsteady(row) for row in members):
            found.append(UNSTEADY)
        if any(
            (row.get("progress") or 0.0) > PROGRESS or (lows.get(_place(row)) or 0.0) > 1
            for row in members
        ):
            found.append(SUSPECT_BASELINE)
        if members[0]["status"] == "completed":
            found += [UNEVEN] * _uneven(members)
            found += [UNVERIFIED] * (members[0]["method_verified"] is not True)
        for row in members:
            row["flags"] = union(found)


def _unsteady(row: dict) -> bool:
    """Old records have no standard error."""
    noise = DRIFT_ERRORS * (row.get("drift_error") or 0.0)
    return abs(row.get("drift") or 0.0) >= max(DRIFT, noise)


def _uneven(rows: list[dict]) -> bool:
    """Whether a member's rate is further than SPREAD from the median of the others like it.

    Alike: same workload, input, limits and window, and as many neighbours on its device, which is
    a part of the GPU under MIG.
    """
    crowd = Counter((row.get("window"), row.get("device_uuid")) for row in rows)
    alike: dict[tuple, list[float]] = defaultdict(list)
    for row in rows:
        if row.get("samples_per_s") is not None:
            same = ("window", "workload", "input_mode", "sm_percent", "pinned_memory_mb")
            company = crowd[row.get("window"), row.get("device_uuid")]
            alike[(*(row.get(key) for key in same), company)].append(row["samples_per_s"])
    return any(
        abs(rate - typical) > SPREAD * typical
        for rates in alike.values()
        if len(rates) > 1
        for rate, typical in _against_others(rates)
    )


def _against_others(rates: list[float]) -> Iterator[tuple[float, float]]:
    """Each of two rates or more, with the median of the others."""
    for i, rate in enumerate(rates):
        yield rate, median(rates[:i] + rates[i + 1 :])


def _place(row: dict) -> tuple:
    """A member's place over the replicates."""
    return tuple(row.get(k) for k in ("arm", "scenario", "method", "window", "device", "member"))


def _lowest_progress(rows: list[dict]) -> dict[tuple, float | None]:
    """Lower end of each place's 95 % interval; variances pooled as for STP, per arm and family."""
    families: dict[tuple, dict[tuple, dict]] = defaultdict(lambda: defaultdict(dict))
    itself = set()
    for row in rows:
        if row.get("progress") and row["current"]:
            family = parse_scenario(row["scenario"]).family
            block = row["block"], row["device"]
            families[row["arm"], family][_place(row)][block] = row["progress"]
            if row["baseline_cell"] == row["cell"]:
                itself.add(_place(row))
    return {
        place: estimate.low
        for ratios in families.values()
        for place, estimate in pooled_estimates(ratios, itself).items()
    }
