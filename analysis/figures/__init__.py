"""The figures of a study, each a function of a module in this folder.

To add one, write a module with a function of this kind, and a test of what it shows:

    @figure("What the figure shows, in one or two sentences.")
    def my_figure(estimates: pd.DataFrame) -> Drawing | None:
        ...
        return Drawing("The finding in at most 12 words", data, matplotlib_figure)

It takes the table that `analysis.estimates.read` gives, and returns None where a study has no data
for it: such a figure is not drawn. `data` is written beside the picture, with the ids of its rows.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

INDEX = "figures/index.csv"  # of a study: its figures; without a title where one is not drawn


class Drawing(NamedTuple):
    """A figure of one study. title: its finding. data: the rows of estimates that it shows."""

    title: str
    data: "pd.DataFrame"
    figure: "Figure"


Function = Callable[["pd.DataFrame"], Drawing | None]
_FIGURES: dict[str, tuple[str, Function]] = {}


def figure(caption: str) -> Callable[[Function], Function]:
    """Register a function as a figure of this name; the caption says what each mark is."""

    def register(function: Function) -> Function:
        _FIGURES[function.__name__] = caption, function
        return function

    return register


def registered() -> dict[str, tuple[str, Function]]:
    """Name → caption and function of every figure, sorted by name."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_FIGURES.items()))
