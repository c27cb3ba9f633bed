"""What advice, claims and pages choose alike: what to call a set, and how far a study carries."""

from collections.abc import Iterable

import pandas as pd

from analysis import labels
from analysis.estimates.table import NONE, REPLICATES, Row, get, hardware
from workflow.collocation.study.names import family_of

NEAR = 0.9  # of the best throughput: the fewest jobs that reach it are advised
# What a ratio of two cells needs besides its own.
PARTNER = {"rate_over_naive": "naive", "rate_over_mig": "mig", "rate_over_mps": "mps"}
PARTNER |= {"gract_over_mps": "mps"}
TURNS = "†"
TURNED = (
    f"{TURNS} the sets compared took turns in one cell (on one host at least); elsewhere each had "
    "a cell of its own, and the host may have changed in between."
)


def place(e: Row) -> dict[str, str]:
    """The set that a number is of: where its other quantities are."""
    return {"scenario": e.scenario, "implementation": e.implementation, "method": e.method}


def way(method: str) -> str:
    """`under MPS`, `as separate processes`."""
    if method == "streams":
        return "on CUDA streams of one process"
    return "as separate processes" if method == "naive" else f"under {labels.method(method)}"


def variant_of_mps(method: str) -> bool:
    """True of MPS with limits of SMs or priorities: no recipe sets them, and few hosts had them."""
    return method != "mps" and family_of(method) == "mps"


def turned(found: Iterable[Row | None]) -> set[str]:
    """Ids of gains that interleaved cells gave, where other gains are of cells of their own."""
    gains = [e for e in found if e and e.quantity in ("stp", "rate_over_naive") and e.jobs > 1]
    several = len({e.design for e in gains}) > 1
    return {e.id for e in gains if e.design != REPLICATES and several}


def on_cpu(estimates: pd.DataFrame) -> bool:
    """True if the study's cells ran without a GPU."""
    return "count:software_gpu_none" in estimates.index


def scope(estimates: pd.DataFrame) -> str:
    """What a study was measured on, and what it can and cannot answer."""
    names = ("hosts", "window_s", "replicates", "replicates_interleaved")
    hosts, window, sets, turns = [get(estimates, "count", name=name) for name in names]
    if not (hosts and (sets or turns)):
        return "No set has been measured yet, so this study answers nothing."
    said = f"Measured on {'a CPU, no GPU' if on_cpu(estimates) else 'a GPU'}"
    machines = ", ".join([*hardware(estimates), f"{hosts.value:.0f} host"])
    said += f" ({machines}{'' if hosts.value == 1 else 's'})"
    apart = "sets in windows"
    if window:
        same = labels.number(window.low) == labels.number(window.high)
        spelt = labels.number(window.value, window.unit) if same else labels.span(window)
        apart += f" of {spelt}"
    often = ((turns, "sets that take turns in a cell"), (sets, apart))
    said += f": {', and '.join(f'{what} {_times(e)}' for e, what in often if e)}. "
    known = (estimates["host"].ne("") & estimates["spread"].ne(NONE)).any()
    if on_cpu(estimates):
        said += (
            "This tries out the workflow. It says nothing about sharing a GPU, and its rates, "
            "gains and slowdowns are no results."
        )
    elif not known:
        said += (
            "With so few replicates only large differences mean something; how much a number "
            "would change if it were measured again is hardly known."
        )
    else:
        said += (
            "It tells how fast these jobs train side by side on this GPU. It does not tell how "
            "they converge, what happens in hours of training, or what other GPUs do."
        )
    return said


def _times(e: Row) -> str:
    """`once`, `3 times`, `1 to 9 times (median 3)`."""
    if e.low < e.high:
        return f"{e.low:.0f} to {e.high:.0f} times (median {e.value:g})"
    return "once" if e.value == 1 else f"{e.value:.0f} times"
