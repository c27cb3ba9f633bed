"""What one job can do to its neighbours, by method: facts from manuals and from drills.

No number of a study: each row names its source. tests/test_pages.py holds the drills' rows against
tests/test_faults.py.
"""

from __future__ import annotations

from analysis import labels
from analysis.estimates.table import Estimates
from analysis.pages.tables import Number, Table

MANUAL = "NVIDIA's MPS and MIG user guides"
DRILL = "drill, tests/test_faults.py"
_NEAR = 0.9  # of the card's memory: sets below it are no question of memory

_FACTS = (
    ("memory that a job can read", "its own", "its own (Volta and newer)", "its own", MANUAL),
    (
        "limit on a job's memory",
        "none: first come, first served until the card is full",
        "none by default; pinned_memory_mb of a variant sets one",
        "that of its instance",
        MANUAL,
    ),
    (
        "SMs that a job can use",
        "all, in turns",
        "all, at the same time; sm_percent of a variant caps them, and reserves none",
        "those of its instance",
        MANUAL,
    ),
    ("memory bandwidth", "shared", "shared", "that of its instance", MANUAL),
    ("a fatal GPU fault of one job reaches", "itself", "every client of the server", "itself", MANUAL),
    ("users at a time", "any", "one, unless an administrator allows more", "any", MANUAL),
    ("neighbour of a killed job", "completed", "completed", "completed (simulated card only)", DRILL),
    ("neighbour of an illegal memory access", "completed", "failed with the same error", "not tried", DRILL),
    ("neighbour of a device-side assert", "not tried", "completed", "not tried", DRILL),
    ("neighbour of a job that hangs", "not tried", "completed", "not tried", DRILL),
    ("jobs whose MPS server is killed", "", "all failed", "", DRILL),
    ("jobs beyond their memory limit", "", "out of memory", "not tried", DRILL),
)


def table() -> Table:
    """Fact by method, and where it is from."""
    return Table(("what", "plain processes", "MPS", "MIG", "source"), list(_FACTS))


def memory(estimates: Estimates) -> Table:
    """Sets of this study that came near the card's memory, and what became of them."""
    found = Table(("set", "written", "method", "memory of its jobs alone, over the card's", "became"))
    for e in estimates.of("parts_over_capacity"):
        place = {"scenario": e.scenario, "arm": e.arm, "method": e.method}
        outcome = estimates.get("outcome", **place)
        if e.value >= _NEAR or (outcome and outcome.status == "out_of_memory"):
            names = (labels.scenario(e.scenario), labels.arm(e.arm), labels.method(e.method))
            became = labels.status(outcome.status) if outcome else ""
            found.rows.append((*names, Number(e), became))
    return found
