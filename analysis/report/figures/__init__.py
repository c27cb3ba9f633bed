"""The figures of a study, each a function of a module in this folder.

To add one, write a module with a function of this kind, and a test of what it shows:

    @figure("What the figure shows, in one or two sentences.")
    def my_figure(estimates: pd.DataFrame) -> Drawing | None:
        ...
        return Drawing("The finding in at most 12 words", data, matplotlib_figure)

It takes the table that `read_estimates` gives, and returns None where a study has no
data for it. Such a figure, or one of fewer than MIN_ROWS rows, is not drawn.
`data` is written beside the picture, with ids of its rows.
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
from analysis.estimates import table
from analysis.files import write_if_changed
from analysis.report.figures import style
from analysis.report.pages import FIGURES
from analysis.report.pages.layout import csv

MIN_ROWS = 2  # of a figure's data: one row is a number
LEFT_OUT = ["replicates", "relative_to", "note"]  # columns of estimates.csv, not of a figure's data


class Drawing(NamedTuple):
    """A figure of one study. title: its finding. data: the rows of estimates that it shows."""

    title: str
    data: pd.DataFrame
    figure: Figure


DrawFunction = Callable[[pd.DataFrame], Drawing | None]


def figure(caption: str) -> Callable[[DrawFunction], DrawFunction]:
    """Make a function a figure of that name; the caption says what each mark is."""

    def captioned(function: DrawFunction) -> DrawFunction:
        function.caption = caption
        return function

    return captioned


def figures(*modules: ModuleType) -> dict[str, DrawFunction]:
    """Name → function of every figure of this folder and of these modules, sorted by name."""
    of_folder = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    functions = {}
    for module in (*of_folder, *modules):
        for name, function in vars(module).items():
            if hasattr(function, "caption"):
                functions[name] = function
    return dict(sorted(functions.items()))


def draw(folder: Path, *modules: ModuleType, data_only: bool = False) -> str:
    """Write data and pictures of each figure; remove files of figures that are not drawn.

    modules: with figures beside those of this folder. data_only: no pictures. Returns a line that
    says which figures were drawn.
    """
    estimates, index = table.read_estimates(folder / "estimates.parquet"), []
    with style.context():
        for name, function in figures(*modules).items():
            drawing, caption = function(estimates), labels.for_script(folder, function.caption)
            if drawing is not None and len(drawing.data) < MIN_ROWS:
                drawing = None
            index.append((name, drawing.title if drawing else "", caption))
            data = folder / f"figures/{name}.csv"
            pictures = [data.with_suffix(ending) for ending in style.METADATA]
            if drawing is None:
                for path in (data, *pictures):
                    path.unlink(missing_ok=True)
                continue
            write_if_changed(data, csv(drawing.data.drop(columns=LEFT_OUT, errors="ignore")))
            for text in style.adaptable_texts(drawing.figure):
                text.set_text(labels.for_script(folder, text.get_text()))
            if not data_only:
                style.save(drawing.figure, drawing.title, caption, pictures)
    index = pd.DataFrame(index, columns=["figure", "title", "caption"])
    write_if_changed(folder / FIGURES, csv(index))
    drawn = ", ".join(index["figure"][index["title"] != ""])
    return f"drawn: {drawn or 'nothing, for want of data'}"
