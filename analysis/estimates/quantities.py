"""What is estimated: each quantity's name, unit, scale and meaning, from quantities.csv.

docs/methods.md links to that list; `formulas.FORMULAS` computes most quantities of a run.
"""

import csv
from pathlib import Path
from typing import NamedTuple

LOG, SHARE = "log", "share"  # scales; the third is "plain"
AT_GRACT = "_at_gract"  # suffix of quantities read off a line at the paper's GRACT
# Method → the quantity that, summed over the jobs alone, tells how many GPUs a set asks for:
# separate processes take turns (GRACT), under MPS kernels run side by side (SMACT).
DEMAND = {"naive": "gract", "mps": "smact"}


class Quantity(NamedTuple):
    """A kind of number, a row of quantities.csv.

    name: as in ids. title: in figures and tables. unit: empty for a ratio. scale: how replicates
    are averaged: `log` by the geometric mean, `plain` by the arithmetic mean, `share` by the
    arithmetic mean within 0 to 1. relative_to: what it is divided by, empty for absolute values.
    """

    name: str
    title: str
    unit: str
    scale: str
    relative_to: str
    meaning: str


with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as _file:
    QUANTITIES = {row["name"]: Quantity(**row) for row in csv.DictReader(_file)}
