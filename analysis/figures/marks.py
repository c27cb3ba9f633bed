"""Marks that several figures draw: a mean with interval and replicates, a bar, a hole, ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis import style
from analysis.statistics import Estimate

# An interval that spans a larger factor says too little for a line: it is in the table only.
WIDEST = 4.0
_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50)
_ROOM = 0.17  # inches from tick to tick
_TEXT = 5.2  # points
_REPLICATE = {"ls": "", "marker": "o", "mfc": "white", "mec": style.INK, "zorder": 5}


def plain_ticks(axis, ticks: Sequence[float]) -> None:
    """Ticks at these places only, told as plain numbers."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def log_ticks(low: float, high: float, inches: float = 99.0) -> list[float]:
    """Round numbers for a logarithmic axis from low to high; as many as `inches` have room for."""
    ticks: list[float] = []
    for tick in _TICKS:
        apart = math.log(tick / ticks[-1]) / math.log(high / low) * inches if ticks else inches
        if low <= tick <= high and apart > _ROOM:
            ticks.append(tick)
    return ticks


def wide(estimate: Estimate) -> bool:
    """No interval, or one that is not worth a line."""
    return estimate.low is None or estimate.high > WIDEST * estimate.low


def level(
    ax: plt.Axes, at: float, estimate: Estimate, values: Sequence[float], look: style.Look
) -> None:
    """A mean on the x axis at height `at`, its interval, and its replicates if more than one."""
    if not wide(estimate):
        ax.plot([estimate.low, estimate.high], [at, at], color=style.INK, lw=0.9, zorder=3)
    mean = {"mfc": look.colour, "mec": style.INK, "mew": 0.5}
    ax.plot([estimate.mean], [at], ls="", marker=look.marker, ms=4.2, **mean, zorder=4)
    if len(values) > 1:
        _points(ax, values, [at] * len(values), ms=1.5, mew=0.3)


def lanes(ax: plt.Axes) -> None:
    """A grid for marks that stand in lanes, one above the other."""
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", visible=True)


def say(ax: plt.Axes, lane: float, text: str) -> None:
    """An outcome in the place of a lane's mark."""
    ax.text(0.03, lane, text, transform=ax.get_yaxis_transform(), va="center", size=_TEXT)


def number(ax: plt.Axes, lane: float, text: str) -> None:
    """A lane's number, right of the axes."""
    ax.text(1.03, lane, text, transform=ax.get_yaxis_transform(), va="center", size=_TEXT)


def bar(
    ax: plt.Axes,
    centre: float,
    width: float,
    estimate: Estimate,
    values: Sequence[float],
    look: style.Look,
) -> None:
    """A bar as high as the mean, its interval, and its replicates side by side."""
    fill = {"color": look.colour, "hatch": look.hatch, "edgecolor": style.INK, "linewidth": 0.4}
    ax.bar(centre, estimate.mean, width, **fill)
    if not wide(estimate):
        ax.plot([centre] * 2, [estimate.low, estimate.high], color=style.INK, lw=0.9, zorder=3)
    if len(values) > 1:
        replicates(ax, centre, width, values)


def replicates(ax: plt.Axes, centre: float, width: float, values: Sequence[float]) -> None:
    """A point per replicate, side by side over a bar."""
    step, middle = min(0.22 * width, 0.3), (len(values) - 1) / 2
    places = [centre + (k - middle) * step for k in range(len(values))]
    _points(ax, places, values, ms=1.9, mew=0.4, clip_on=False)


def _points(ax: plt.Axes, x: Sequence[float], y: Sequence[float], **look) -> None:
    """Replicates' points; those of an axes are one line: thousands of artists take seconds."""
    there = next((line for line in ax.lines if line.get_label() == "_replicates"), None)
    if there is None:
        ax.plot(x, y, label="_replicates", **look, **_REPLICATE)
        return
    there.set_data([*there.get_xdata(), *x], [*there.get_ydata(), *y])
    ax.update_datalim(list(zip(x, y, strict=True)))
    ax.autoscale(None)  # at the next drawing, where limits are automatic


def hole(ax: plt.Axes, centre: float, width: float, text: str, size: float) -> None:
    """A dashed box with an outcome where bars would stand; `size`: of its text at most, points."""
    tall = ax.get_position().height * ax.figure.get_size_inches()[1]
    longest = max(style.text_width(line, size) for line in text.split("\n"))
    ax.bar(
        centre,
        0.74,
        width,
        transform=ax.get_xaxis_transform(),
        facecolor="#F6F6F6",
        edgecolor="#999999",
        linewidth=0.5,
        linestyle=(0, (2, 2)),
    )
    ax.text(
        centre,
        0.37,
        text,
        transform=ax.get_xaxis_transform(),
        rotation=90,
        ha="center",
        va="center",
        ma="center",
        linespacing=1.0,
        size=size * min(1.0, 0.74 * tall / longest),
    )


def inches(ax: plt.Axes, width: float) -> float:
    """A width on a linear x axis in inches."""
    left, right = ax.get_xlim()
    return width / (right - left) * ax.get_position().width * style.PAGE_WIDTH


def interval() -> Line2D:
    """A legend entry for intervals."""
    return Line2D([], [], color=style.INK, lw=0.9, label="95 % interval")


def missing(status: str) -> str:
    """The status that a figure tells of a cell without the number that it draws."""
    return "no_baseline" if status == "completed" else status


def outcome(statuses: pd.Series) -> str:
    """What stands for replicates (a status each) of which none gave a number, for people."""
    found = statuses.map(missing).value_counts()
    return style.status_label(max(sorted(found.index), key=lambda status: found[status]))
