"""Flags of a cell: what a reader should know before trusting its numbers.

Those that a run sets itself are in run.json. `uneven` follows from its record (merge.py), the
others from several cells (runs.py, build.py).
"""

from collections.abc import Iterable

UNEVEN, UNSTEADY = "uneven", "unsteady"
NO_SECOND_CONTEXT, ABOVE_COUNT = "no_second_context", "above_count"
MIXED_CODE, MIXED_DATA = "mixed_code", "mixed_data"
LOSSES_DIFFER, POWER_CAPPED = "losses_differ", "power_capped"
STALLED, HALVES_DIFFER = "stalled", "halves_differ"
COLLAPSED = (STALLED, HALVES_DIFFER)  # of a window whose rate is not the job's rate
# Members that do the same on the same share of the GPU run alike. One that is this far from the
# median of the others was held up by something, or slept.
UNEVEN_FROM = 0.2
MEANINGS = {
    UNSTEADY: "throughput drifted during the window",
    UNEVEN: f"rates of like members differ by over {100 * UNEVEN_FROM:.0f} %",
    ABOVE_COUNT: "more than the number of jobs: the job alone ran slow",
    LOSSES_DIFFER: "losses are not those of the job alone: it may have done other work",
    MIXED_CODE: "measured by different code",
    MIXED_DATA: "measured on different data sources",
    "throttled": "GPU throttled by heat or hardware",
    POWER_CAPPED: "the GPU was held at its power limit, at times or always",
    STALLED: "a job made no step for over a twentieth of its window",
    HALVES_DIFFER: "a job made over 20 % less in one half of its window than in the other",
    NO_SECOND_CONTEXT: "no other process opened CUDA: a graph alone may be up to 10 % too slow, "
    "gains over it too high",
    "shared_gpu": "NVML listed another process on the GPU; with several GPUs at work it can be a "
    "job of the next one",
    "cores_shared": "members share CPUs",
    "hyperthreads_shared": "members share physical cores",
    "sampler_shares_cores": "telemetry was read on CPUs of the jobs: none was free",
    "telemetry_incomplete": "readings are missing for a while (run.json: telemetry, reason)",
    "telemetry_disagrees": "readings contradict each other or what can be: what cannot be right is "
    "missing (run.json: telemetry, disagree)",
    "energy_disagrees": "the energy counter fell, or it and integrated power differ",
}


def split(flags: object) -> list[str]:
    """Splits a value of the column `flags`; no flags where it is empty or missing."""
    return [flag for flag in flags.split(";") if flag] if isinstance(flags, str) else []


def union(columns: Iterable[object]) -> str:
    """Joins several values of the column `flags`: every flag once, in alphabetical order."""
    return ";".join(sorted({flag for column in columns for flag in split(column)}))


def meaning(flag: str) -> str:
    """Explains a flag in a phrase."""
    return MEANINGS.get(flag, flag)
