"""What is estimated: each quantity's name, unit, scale and meaning, in quantities.csv beside this.

docs/methods.md prints that list; `formulas.FORMULAS` says how each is computed of a run.
"""

import csv
from pathlib import Path
from typing import NamedTuple

LOG, PLAIN, SHARE = "log", "plain", "share"
AT_GRACT = "_at_gract"  # ends the name of what is read off a line in GRACT


class Quantity(NamedTuple):
    """A kind of number.

    name: as in ids. title: in figures and tables. unit: empty for a ratio. scale: how replicates
    are averaged; `log` geometric mean, `plain` arithmetic mean, `share` arithmetic and within 0 to
    1. relative_to: what it is normalised by, empty for absolute values.
    """

    name: str
    title: str
    unit: str
    scale: str
    relative_to: str
    meaning: str


with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    QUANTITIES = {row["name"]: Quantity(**row) for row in csv.DictReader(_file)}
