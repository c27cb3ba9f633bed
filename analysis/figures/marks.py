"""Marks that several figures draw: a mean with interval and replicates, a bar, a hole, ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation, Transform

from analysis import style
from analysis.statistics import Estimate

# An interval that spans a larger factor says too little for a line: it is in the table only.
WIDEST = 4.0
_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50)
_ROOM = 0.17  # inches from tick to tick
_TEXT = 5.2  # points
_HOLE = 0.74  # of the axes' height: a box with an outcome
_OVER = 4.0  # points that a text may stand out above its axes, below their title
# Of its size: how wide a character is that is no digit or letter.
_EMS = dict.fromkeys("~≠^+÷#↓×−–", 0.84) | dict.fromkeys(".,! ", 0.36) | {"*": 0.5, "%": 0.95}
_BOX = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
_REPLICATE = {"ls": "", "marker": "o", "mfc": "white", "mec": style.INK, "zorder": 5}
# What the star behind a number means: of a cell some replicates were not run, or did not complete.
FEWER = "* fewer replicates than planned"
# Where something stands on the page: left, low, right, high, in points.
Box = tuple[float, float, float, float]
LEFT, RIGHT, ABOVE, BELOW = (-1, 0), (1, 0), (0, 1), (0, -1)
# Of each axes: what is drawn alike is one artist, for thousands of them take seconds.
_shared: WeakKeyDictionary[plt.Axes, dict[tuple, Any]] = WeakKeyDictionary()


def _of(ax: plt.Axes, key: tuple, make: Callable[[], Any]) -> Any:
    """What the axes has under this key; made where it has nothing yet."""
    found = _shared.setdefault(ax, {})
    if key not in found:
        found[key] = make()
    return found[key]


def _reached(ax: plt.Axes, corners: Sequence[tuple[float, float]]) -> None:
    """Let automatic limits hold these places, from the next drawing on."""
    ax.update_datalim(corners)
    ax.autoscale(None)


def strokes(
    ax: plt.Axes, x: Sequence[float], y: Sequence[float], aside: Transform | None = None, **look
) -> None:
    """As `ax.plot`: those of one look are a line with gaps.

    aside: of `offset`; such marks do not move limits that are automatic.
    """

    def make() -> Line2D:
        placed = {} if aside is None else {"transform": aside}
        line = Line2D([], [], label="_strokes", **look, **placed)
        ax.add_artist(line)
        return line

    line = _of(ax, ("strokes", id(aside), *sorted(look.items())), make)
    gap = [math.nan] if len(line.get_xdata()) else []
    line.set_data([*line.get_xdata(), *gap, *x], [*line.get_ydata(), *gap, *y])
    if aside is None:
        _reached(ax, list(zip(x, y, strict=True)))


def box(ax: plt.Axes, corner: tuple[float, float], width: float, height: float, **look) -> None:
    """As a patch of `ax.bar`, from its lower left corner: those of one look are one path."""
    boxes = _of(
        ax,
        ("boxes", *sorted(look.items())),
        lambda: ax.add_artist(PathPatch(Path(np.empty((0, 2))), **look)),
    )
    (left, low), (right, high) = corner, (corner[0] + width, corner[1] + height)
    corners = [(left, low), (right, low), (right, high), (left, high), (left, low)]
    corners = [*boxes.get_path().vertices.tolist(), *corners]
    boxes.set_path(Path(corners, _BOX * (len(corners) // len(_BOX))))
    _reached(ax, [(left, low), (right, high)])


def offset(ax: plt.Axes, right: float, up: float, across: bool = False) -> Transform:
    """The axes' data, so many points aside; across: x counts in widths of the axes."""

    def make() -> Transform:
        base = ax.get_yaxis_transform() if across else ax.transData
        return base + ScaledTranslation(right / 72, up / 72, ax.figure.dpi_scale_trans)

    return _of(ax, ("offset", right, up, across), make)


def label(
    ax: plt.Axes, at: tuple[float, float], text: str, right: float, up: float, **look
) -> Text:
    """Text so many points aside from a place; `ax.annotate` takes twice the time."""
    return ax.text(*at, text, transform=offset(ax, right, up), **look)


def extent(text: str, size: float, linespacing: float = 0.95) -> tuple[float, float]:
    """About how wide and high a text of so many points is, in points."""
    lines = text.split("\n")
    wide = max(sum(map(_em, line)) for line in lines)
    return wide * size, (1 + (len(lines) - 1) * (0.24 + 0.76 * linespacing)) * size


def _em(letter: str) -> float:
    """How wide a character is, of its size."""
    return _EMS.get(letter) or (0.72 if letter.isupper() else 0.6 if letter.islower() else 0.64)


def spot(ax: plt.Axes, at: tuple[float, float]) -> tuple[float, float]:
    """Where on the page a place of the data is, in points; once the axes' limits are set."""
    x, y = ax.transData.transform(at) * 72 / ax.figure.dpi
    return x, y


def taken(ax: plt.Axes) -> list[Box]:
    """What `above` and `beside` have written in the axes, and what else they should keep off."""
    return _of(ax, ("taken",), list)


def _meet(one: Box, other: Box) -> bool:
    across = one[0] < other[2] and other[0] < one[2]
    return across and one[1] < other[3] and other[1] < one[3]


def above(
    ax: plt.Axes,
    at: tuple[float, float],
    text: str,
    size: float,
    right: float = 0.0,
    linespacing: float = 0.95,
    **look,
) -> None:
    """Text centred above a place, and above all that it would hide while that is in the axes."""
    (wide, tall), (x, y), up = extent(text, size, linespacing), spot(ax, at), 2.5
    half = wide / 2 + 0.3  # or numbers side by side read as one
    edges = x + right - half, x + right + half
    there = taken(ax)
    for other in sorted(there, key=lambda box: box[1]):
        if _meet((edges[0], y + up, edges[1], y + up + tall), other):
            up = other[3] - y
    if y + up + tall > ax.bbox.y1 * 72 / ax.figure.dpi + _OVER:
        up = 2.5  # rather upon another text than not at all: it may be a warning
    there.append((edges[0], y + up, edges[1], y + up + tall))
    place = {"ha": "center", "va": "bottom", "linespacing": linespacing, "size": size}
    label(ax, at, text, right, up, **place, **look)


def beside(
    ax: plt.Axes, at: tuple[float, float], text: str, size: float, sides: Sequence[tuple[int, int]]
) -> None:
    """Text on the first of these sides of a place where it hides nothing; none where all would."""
    (wide, tall), (x, y) = extent(text, size), spot(ax, at)
    frame = [edge * 72 / ax.figure.dpi for edge in ax.bbox.extents]
    for across, up in sides:
        right, high = across * (3.0 + wide / 2), up * (3.0 + tall / 2)
        box = x + right - wide / 2, y + high - tall / 2, x + right + wide / 2, y + high + tall / 2
        held = frame[0] < box[0] and frame[1] < box[1] and box[2] < frame[2] and box[3] < frame[3]
        if held and not any(_meet(box, other) for other in taken(ax)):
            taken(ax).append(box)
            label(ax, at, text, right, high, ha="center", va="center", size=size, zorder=6)
            return


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


def narrow(low: float | None, high: float | None) -> bool:
    """Whether there is an interval, and one that is worth a line."""
    return pd.notna(low) and high <= WIDEST * low


def wide(estimate: Estimate) -> bool:
    """No interval, or one that is not worth a line."""
    return not narrow(estimate.low, estimate.high)


def left_out(intervals: Iterable[tuple[float | None, float | None]]) -> str:
    """What a footer says where there are intervals, from low to high, that have no line."""
    some = any(pd.notna(low) and not narrow(low, high) for low, high in intervals)
    return f"95 % intervals wider than a factor of {WIDEST:g} are not drawn" if some else ""


def level(
    ax: plt.Axes, at: float, estimate: Estimate, values: Sequence[float], look: style.Look
) -> None:
    """A mean on the x axis at height `at`, its interval, and its replicates if more than one."""
    if not wide(estimate):
        strokes(ax, [estimate.low, estimate.high], [at, at], color=style.INK, lw=0.9, zorder=3)
    mean = {"mfc": look.colour, "mec": style.INK, "mew": 0.5}
    strokes(ax, [estimate.mean], [at], ls="", marker=look.marker, ms=4.2, **mean, zorder=4)
    if len(values) > 1:
        strokes(ax, values, [at] * len(values), ms=1.5, mew=0.3, **_REPLICATE)


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
    filled(ax, centre, width, estimate.mean, look)
    if not wide(estimate):
        strokes(ax, [centre] * 2, [estimate.low, estimate.high], color=style.INK, lw=0.9, zorder=3)
    if len(values) > 1:
        replicates(ax, centre, width, values)


def filled(
    ax: plt.Axes, centre: float, width: float, height: float, look: style.Look, base: float = 0.0
) -> None:
    """A bar of a method, without a value's error."""
    fill = {"fc": look.colour, "hatch": look.hatch, "ec": style.INK, "lw": 0.4}
    box(ax, (centre - width / 2, base), width, height, **fill)


def replicates(ax: plt.Axes, centre: float, width: float, values: Sequence[float]) -> None:
    """A point per replicate, side by side over a bar."""
    step, middle = min(0.22 * width, 0.3), (len(values) - 1) / 2
    places = [centre + (k - middle) * step for k in range(len(values))]
    strokes(ax, places, values, ms=1.9, mew=0.4, clip_on=False, **_REPLICATE)


def hole(ax: plt.Axes, centre: float, width: float, text: str, size: float) -> None:
    """A dashed box with an outcome where bars would stand; `size`: of its text at most, points."""
    tall = ax.get_position().height * ax.figure.get_size_inches()[1]
    longest = extent(text, size)[0] / 72
    dashed = {"fc": "#F6F6F6", "ec": "#999999", "lw": 0.5, "ls": (0, (2, 2))}
    left, whole = centre - width / 2, ax.get_xaxis_transform()
    ax.add_artist(Rectangle((left, 0), width, _HOLE, transform=whole, **dashed))
    ax.update_datalim([(left, 0), (left + width, 0)], updatey=False)
    ax.text(
        centre,
        _HOLE / 2,
        text,
        transform=ax.get_xaxis_transform(),
        rotation=90,
        ha="center",
        va="center",
        ma="center",
        linespacing=1.0,
        size=size * min(1.0, 0.97 * _HOLE * tall / longest),
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
