"""The command: draws what a study has data for, and says in `figures/index.csv` what that is."""

from __future__ import annotations

from argparse import Namespace

import pandas as pd

from analysis import estimates
from analysis.choose import update
from analysis.figures import INDEX, drawings, style
from analysis.pages.tables import csv

ENDINGS = ("png", "pdf", "svg")
LEFT_OUT = ["replicates", "relative_to", "note"]  # of the data: estimates.csv has them


def run(given: Namespace) -> str:
    """Write CSV and pictures of each figure, and remove those of figures that are not drawn."""
    found = estimates.read(given.folder / "estimates.parquet")
    index, drawn = [], []
    with style.context():
        for name, caption, drawing in drawings(found):
            index.append((name, drawing.title if drawing else "", caption))
            outputs = [given.folder / f"figures/{name}.{ending}" for ending in ENDINGS]
            data = outputs[0].with_suffix(".csv")
            if drawing is None:
                for path in (data, *outputs):
                    path.unlink(missing_ok=True)
                continue
            drawn.append(name)
            update(data, csv(drawing.data.drop(columns=LEFT_OUT, errors="ignore")))
            if not given.data_only:
                style.save(drawing.figure, drawing.title, caption, outputs)
    index = pd.DataFrame(index, columns=["figure", "title", "caption"])
    update(given.folder / INDEX, csv(index))
    return f"drawn: {', '.join(drawn) or 'nothing, for want of data'}"
