"""What one job can do to its neighbours, by method: facts from manuals and from drills.

No number of a study: each row names its source. tests/test_pages.py holds the drills' rows against
tests/test_faults.py.
"""

from __future__ import annotations

import csv
from pathlib import Path

from analysis import labels
from analysis.estimates.table import Estimates
from analysis.pages.tables import Number, Table

_NEAR = 0.9  # of the card's memory: sets below it are no question of memory


def table() -> Table:
    """Fact by method, and where it is from: isolation.csv beside this."""
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    head, *rows = csv.reader(text.splitlines())
    return Table(tuple(head), [tuple(row) for row in rows])


def memory(estimates: Estimates) -> Table:
    """Sets of this study that came near the card's memory, and what became of them."""
    found = Table(
        ("set", "written", "method", "memory of its jobs alone, over the card's", "became")
    )
    for e in estimates.of("parts_over_capacity"):
        place = {"scenario": e.scenario, "arm": e.arm, "method": e.method}
        outcome = estimates.get("outcome", **place)
        if e.value >= _NEAR or (outcome and outcome.status == "out_of_memory"):
            names = (labels.scenario(e.scenario), labels.arm(e.arm), labels.method(e.method))
            became = labels.status(outcome.status) if outcome else ""
            found.rows.append((*names, Number(e), became))
    return found
