"""The command: draws what a study has data for, and says in `figures/index.csv` what that is."""

from argparse import Namespace

import pandas as pd

from analysis import estimates, labels
from analysis.choose import update
from analysis.figures import INDEX, registered, style
from analysis.pages.tables import csv

LEFT_OUT = ["replicates", "relative_to", "note"]  # of the data: estimates.csv has them


def run(given: Namespace) -> str:
    """Write CSV and pictures of each figure, and remove those of figures that are not drawn."""
    found, index = estimates.read(given.folder / "estimates.parquet"), []
    with style.context():
        for name, (caption, function) in registered().items():
            drawing = function(found)
            index.append((name, drawing.title if drawing else "", caption))
            data = given.folder / f"figures/{name}.csv"
            pictures = [data.with_suffix(ending) for ending in style.METADATA]
            if drawing is None:
                for path in (data, *pictures):
                    path.unlink(missing_ok=True)
                continue
            update(data, csv(drawing.data.drop(columns=LEFT_OUT, errors="ignore")))
            for axes in drawing.figure.axes:
                axes.set_ylabel(labels.of_script(given.folder, axes.get_ylabel()))
            if not given.data_only:
                style.save(drawing.figure, drawing.title, caption, pictures)
    index = pd.DataFrame(index, columns=["figure", "title", "caption"])
    update(given.folder / INDEX, csv(index))
    drawn = ", ".join(index["figure"][index["title"] != ""])
    return f"drawn: {drawn or 'nothing, for want of data'}"
