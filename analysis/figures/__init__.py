"""The figures of a study, each a function of a module in this folder.

To add one, write a module with a function of this kind, and a test of what it shows:

    @figure("What the figure shows, in one or two sentences.")
    def my_figure(estimates: pd.DataFrame) -> Drawing | None:
        ...
        return Drawing("The finding in at most 12 words", data, matplotlib_figure)

It takes the table that `analysis.estimates.read` gives, and returns None where a study has no data
for it: such a figure is not drawn. `data` is written beside the picture, with the ids of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

INDEX = "figures/index.csv"  # of a study: its figures; without a title where one is not drawn


@dataclass(frozen=True)
class Drawing:
    """A figure of one study. title: its finding. data: the rows of estimates that it shows."""

    title: str
    data: pd.DataFrame
    figure: Figure


Function = Callable[["pd.DataFrame"], Drawing | None]
_CAPTIONS: dict[Function, str] = {}


def figure(caption: str) -> Callable[[Function], Function]:
    """Register a function as a figure of this name; the caption says what each mark is."""

    def register(function: Function) -> Function:
        _CAPTIONS[function] = caption
        return function

    return register


def registered() -> dict[str, tuple[str, Function]]:
    """Name → caption and function of every figure, sorted by name."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return {f.__name__: (caption, f) for f, caption in sorted(_CAPTIONS.items(), key=_name)}


def _name(item: tuple[Function, str]) -> str:
    return item[0].__name__


def drawings(estimates: pd.DataFrame) -> Iterator[tuple[str, str, Drawing | None]]:
    """Name, caption and drawing of every figure; None where the study has no data for it."""
    for name, (caption, function) in registered().items():
        yield name, caption, function(estimates)
