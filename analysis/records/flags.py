"""Flags of a cell: what a reader should know before trusting its numbers.

The runner's own flags (cores_shared, throttled, ...) stand in run.json; three more follow from
what one cell measured, or was asked for. Others follow from several cells: analysis.estimates
sets those.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

# From one cell's own numbers and evidence (`of_cell`).
UNEVEN, UNVERIFIED = "uneven", "unverified"
# From a set's total, and from cells that are compared.
UNSTEADY, MIXED_CODE, MIXED_DATA = "unsteady", "mixed_code", "mixed_data"
ABOVE_COUNT = "above_count"
# Of the GPU while the cell ran: the numbers are right, and the conditions were not the others'.
THROTTLED, POWER_CAPPED, SHARED_GPU = "throttled", "power_capped", "shared_gpu"
# Of the host: the members had fewer cores, or less of them, than each would have had alone.
CORES_SHARED, HYPERTHREADS_SHARED = "cores_shared", "hyperthreads_shared"
# A member stood still once, for over a twentieth of the window: its rate is too low, or too high.
STALLED = "stalled"
# Graphs that had the GPU to themselves, where no other process opened CUDA before the window: none
# could, which the runner says, or the record is from before that was done (`visited`).
UNVISITED = "unvisited"
# Of what was seen of it.
INCOMPLETE, DISAGREES = "telemetry_incomplete", "telemetry_disagrees"
ENERGY_DISAGREES = "energy_disagrees"
TELEMETRY = (INCOMPLETE, DISAGREES, ENERGY_DISAGREES)
# A rate with one of these is not what the cell's name says.
SUSPECT = (UNSTEADY, UNEVEN, UNVERIFIED, MIXED_CODE, MIXED_DATA)
SUSPECT += (THROTTLED, SHARED_GPU, STALLED, UNVISITED)
KNOWN = (*SUSPECT, ABOVE_COUNT, POWER_CAPPED, CORES_SHARED, HYPERTHREADS_SHARED, *TELEMETRY)

# Members that do the same on the same share of the GPU run alike: one that is this far from the
# median of the others was held up by something, or slept.
SPREAD = 0.2

_MEANING = {
    UNSTEADY: "throughput drifted during the window",
    UNEVEN: f"rates of like members differ by over {100 * SPREAD:.0f} %",
    UNVERIFIED: "method not proven in force",
    ABOVE_COUNT: "more than the number of jobs: the job alone ran slow",
    MIXED_CODE: "measured by different code",
    MIXED_DATA: "measured on different data sources",
    THROTTLED: "GPU throttled by heat or hardware",
    POWER_CAPPED: "GPU held at its power limit",
    STALLED: "a job made no step for over a twentieth of the window",
    UNVISITED: "no other process opened CUDA: a graph alone may be up to 10 % too slow, gains over "
    "it too high",
    SHARED_GPU: "somebody else's process on the GPU",
    CORES_SHARED: "members share CPUs",
    HYPERTHREADS_SHARED: "members share physical cores",
    INCOMPLETE: "telemetry incomplete",
    DISAGREES: "telemetry contradicts itself",
    ENERGY_DISAGREES: "energy contradicts power",
}
_ALIKE = ("window", "workload", "input_mode", "sm_percent", "pinned_memory_mb")


def split(flags: object) -> list[str]:
    """The flags in a cell of the flags column; none where it is empty or missing."""
    return [f for f in flags.split(";") if f] if isinstance(flags, str) else []


def union(columns: Iterable[object]) -> str:
    """One cell of the flags column for several: each flag once, in alphabetical order."""
    return ";".join(sorted({flag for flags in columns for flag in split(flags)}))


def meaning(flag: str) -> str:
    """What a flag says, as a phrase."""
    return _MEANING.get(flag, flag)


def of_cell(rows: Sequence[Mapping]) -> str:
    """All flags of a cell, given its rows: the runner's own, and those that follow from its numbers
    and its evidence.
    """
    first, found = rows[0], [rows[0]["flags"]]
    if first["status"] == "completed":
        found += [UNEVEN] * _uneven(rows)
        found += [UNVERIFIED] * (first["method_verified"] is not True)
    return union(found)


def _uneven(rows: Sequence[Mapping]) -> bool:
    """Whether a member's rate is further than SPREAD from the median of the others like it.

    Alike: same workload, input, limits and window, and as many neighbours on its device, which is
    a part of the GPU under MIG.
    """
    crowd = Counter((row.get("window"), row.get("device_uuid")) for row in rows)
    alike: dict[tuple, list[float]] = defaultdict(list)
    for row in rows:
        if row.get("samples_per_s") is not None:
            company = crowd[row.get("window"), row.get("device_uuid")]
            alike[(*map(row.get, _ALIKE), company)].append(row["samples_per_s"])
    for rates in alike.values():
        for place, rate in enumerate(rates):
            others = rates[:place] + rates[place + 1 :]
            if others and abs(rate - median(others)) > SPREAD * median(others):
                return True
    return False
