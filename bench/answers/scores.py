"""True rates from the clocks of jobs, and what was stated beside what is true."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np


def step_ends(folder: Path) -> dict[int, np.ndarray]:
    """When the steps of processes ended, int64 ns, by PID; a line that is cut off does not count.

    folder: of files PID.txt, as jobs/truth.py writes them.
    """
    ends = {}
    for path in folder.glob("*.txt"):
        whole_lines = path.read_text("utf-8").rpartition("\n")[0]
        ends[int(path.stem)] = np.array(whole_lines.split(), np.int64)
    return ends


def rate_in(ends: Iterable[np.ndarray], start_ns: int, stop_ns: int) -> float:
    """Steps per second of all processes together, of steps that ended in [start_ns, stop_ns)."""
    count = sum(((each >= start_ns) & (each < stop_ns)).sum() for each in ends)
    return float(count / (stop_ns - start_ns) * 1e9)


def rate_of_runs(ends: Mapping[int, np.ndarray], seconds: Mapping[int, float]) -> float:
    """Steps per second of whole runs together, start and end of each included.

    ends, seconds: when the steps of each process ended, and how long it lived, by PID.
    """
    return float(sum(len(ends[pid]) / lived_s for pid, lived_s in seconds.items()))


def compare(stated: Sequence[float | None], true: float) -> dict:
    """A stated number beside the true one.

    stated: [value, low, high], None for what is not known. Returns these, the true value, their
    ratio (stated over true), and whether the interval holds the true value; None if it is unknown.
    """
    value, low, high = stated
    known = None not in (low, high)
    return {
        "stated": [value, low, high],
        "true": true,
        "ratio": value / true if value is not None and true > 0 else None,
        "holds": low <= true <= high if known else None,
    }


def set_to_start(advice: Mapping) -> tuple[int, str] | None:
    """The set to start afresh: the advised one; else the measured one with the highest STP."""
    if advice["jobs"] > 1:
        return advice["jobs"], advice["method"]
    measured = [each for each in advice["measured"] if each["stp"][0] is not None]
    highest = max(measured, key=lambda each: each["stp"][0], default=None)
    return highest and (highest["jobs"], highest["method"])


def score_set(advice: Mapping, jobs: int, method: str, rate: float, lone_rate: float) -> dict:
    """A measured set of an advice beside the true rates (steps/s) of the set and of one job."""
    [measured] = [m for m in advice["measured"] if (m["jobs"], m["method"]) == (jobs, method)]
    return {
        "jobs": jobs,
        "method": method,
        "advised": (jobs, method) == (advice["jobs"], advice["method"]),
        "rate": compare(measured["rate"], rate),
        "stp": compare(measured["stp"], rate / lone_rate),
    }


def score_pair(advice: Mapping, together: Mapping, rates: Sequence[float]) -> list[dict]:
    """What was stated of both jobs together beside their true rates, job by job.

    together: the set of the advice that was started afresh. rates: steps/s of each.
    """
    return [
        {"method": together["method"]} | compare([alone["rate"][0] / slowdown[0], None, None], rate)
        for alone, slowdown, rate in zip(advice["alone"], together["slowdowns"], rates, strict=True)
    ]


def score_predictions(advice: Mapping, rates: Mapping[tuple, float], lone_rate: float) -> list:
    """Predicted STPs of an advice beside the true ones.

    rates: true steps/s by (jobs, method); lone_rate: of one job. `rescaled` marks predictions that
    a measured set has corrected; the others were made from the job alone.
    """
    scores = []
    for predicted in advice["predicted"]:
        key = predicted["jobs"], predicted["method"]
        if key in rates:
            interval = [predicted[name] for name in ("stp", "low", "high")]
            score = compare(interval, rates[key] / lone_rate)
            names = ("jobs", "method", "rescaled")
            scores.append({name: predicted[name] for name in names} | score)
    return scores


def share_of_best(advice: Mapping, rates: Mapping[tuple, float]) -> float | None:
    """True rate of what was advised, relative to the highest; None if it was not measured.

    rates: steps/s by (jobs, method), that of one job among them.
    """
    advised = rates.get((advice["jobs"], advice["method"]))
    return None if advised is None else advised / max(rates.values())
