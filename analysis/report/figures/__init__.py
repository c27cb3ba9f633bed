"""The figures of a study, each a function of a module in this folder.

To add one, write a module with a function of this kind, and a test of what it shows:

    @figure("What the figure shows, in one or two sentences.")
    def my_figure(estimates: pd.DataFrame) -> Drawing | None:
        ...
        return Drawing("The finding in at most 12 words", data, matplotlib_figure)

It takes the table that `read_estimates` gives, and returns None where a study has no data for it:
such a figure is not drawn. `data` is written beside the picture, with the ids of its rows.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from analysis import labels
from analysis.estimates import table as estimates
from analysis.files import write_if_changed
from analysis.report.figures import style
from analysis.report.pages import FIGURES
from analysis.report.pages.tables import csv

LEFT_OUT = ["replicates", "relative_to", "note"]  # of the data: estimates.csv has them


class Drawing(NamedTuple):
    """A figure of one study. title: its finding. data: the rows of estimates that it shows."""

    title: str
    data: pd.DataFrame
    figure: Figure


DrawFunction = Callable[[pd.DataFrame], Drawing | None]


def figure(caption: str) -> Callable[[DrawFunction], DrawFunction]:
    """Make a function a figure of its name; the caption says what each mark is."""

    def captioned(function: DrawFunction) -> DrawFunction:
        function.caption = caption
        return function

    return captioned


def figures(*more: ModuleType) -> dict[str, DrawFunction]:
    """Name → function of every figure of this folder, and of more modules, sorted by name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    functions = {}
    for module in (*modules, *more):
        for name, function in vars(module).items():
            if hasattr(function, "caption"):
                functions[name] = function
    return dict(sorted(functions.items()))


def draw(folder: Path, *more: ModuleType, data_only: bool = False) -> str:
    """Write CSV and pictures of each figure; those of figures that are not drawn go.

    more: modules with figures beside those of this folder. Gives the line that says which it drew.
    """
    found, index = estimates.read_estimates(folder / "estimates.parquet"), []
    with style.context():
        for name, function in figures(*more).items():
            drawing, caption = function(found), labels.of_script(folder, function.caption)
            index.append((name, drawing.title if drawing else "", caption))
            data = folder / f"figures/{name}.csv"
            pictures = [data.with_suffix(ending) for ending in style.METADATA]
            if drawing is None:
                for path in (data, *pictures):
                    path.unlink(missing_ok=True)
                continue
            write_if_changed(data, csv(drawing.data.drop(columns=LEFT_OUT, errors="ignore")))
            for text in style.names(drawing.figure):
                text.set_text(labels.of_script(folder, text.get_text()))
            if not data_only:
                style.save(drawing.figure, drawing.title, caption, pictures)
    index = pd.DataFrame(index, columns=["figure", "title", "caption"])
    write_if_changed(folder / FIGURES, csv(index))
    drawn = ", ".join(index["figure"][index["title"] != ""])
    return f"drawn: {drawn or 'nothing, for want of data'}"
