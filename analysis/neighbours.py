"""Do busy GPUs of a machine disturb each other? What studies' control cells say of that."""

from __future__ import annotations

from pathlib import Path

from analysis import labels
from analysis.estimates.table import Estimates


def disturb(results: Path, machine: str, bound: float) -> str | None:
    """Why cells must not run side by side on a machine (its alias), as any study found; or None.

    They must not where a set's speed beside a busy GPU differs for certain by more than `bound`
    (1: all of it) from its speed beside idle ones. Raises OSError or ValueError where an
    estimates.parquet is no such file.
    """
    for path in sorted(results.glob("*/estimates.parquet")):
        estimates = Estimates.read(path)
        for e in estimates.of("beside_busy", host="*", scenario="*", arm="*", method="*"):
            there = estimates.get("count", name="host_cells", host=e.host).note.split(": ")[0]
            if there == machine and e.low is not None and (e.low > 1 + bound or e.high < 1 - bound):
                what = f"{labels.scenario(e.scenario)} {labels.method(e.method)}"
                return (
                    f"a busy GPU of this machine disturbs the others: {what} runs at "
                    f"{labels.span(e)} of its speed beside it ({path}, {e.id}), and "
                    f"'disturbance' allows {bound:g}; use one GPU at a time, or allow more"
                )
    return None
