"""Scales, limits and ticks of a panel's axes, once all is drawn: matplotlib's own where they do."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, MaxNLocator, NullLocator

ROUND = [1, 2, 2.5, 5, 10]  # what ticks are multiples of


def finish(axes: Axes, panel: dict, points: list[dict], rows: list[dict]) -> None:
    """Set both axes; `rows`: the names of rows, of a panel that has such."""
    for name in ("x", "y"):
        if name == "x" or not panel.get("rows"):
            _axis(axes, name, panel, points)
    if panel.get("aspect") == "square":
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        both = min(left, bottom), max(right, top)
        axes.set(box_aspect=1, xlim=both, ylim=both)
        axes.axline((1, 1), (2, 2), color="#888888", linewidth=0.9, zorder=0)
    if panel.get("rows"):
        if panel["rows"] == "yes":
            axes.set_ylim(max(row["x"] for row in rows) + 0.7, 0.3)
            axes.set_yticks([row["x"] for row in rows], [row["label"] for row in rows])
        axes.tick_params(axis="y", length=0, labelleft=panel["rows"] == "yes")
        axes.spines["left"].set_visible(False)


def _axis(axes: Axes, name: str, panel: dict, points: list[dict]) -> None:
    """Ticks at round numbers, or at the counts that were measured."""
    axis = axes.xaxis if name == "x" else axes.yaxis
    kind = panel.get("format" if name == "y" else "xformat", "")
    axes.set(**{f"{name}scale": panel.get(f"{name}scale", "linear")})
    if given := panel.get(f"{name}lim"):
        axes.set(**{f"{name}lim": tuple(map(float, given.split(",")))})
    elif name == "y" and panel.get("zero"):
        # room above the highest sign, which the margin of a narrow range does not give
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.04 * axes.dataLim.y1))
    low, high = axis.get_view_interval()
    if panel.get(f"{name}ticks") == "points":
        axis.set_major_locator(FixedLocator(sorted({row["x"] for row in points})))
    elif axis.get_scale() == "log":
        decades = math.log10(high / low)
        wide = (1, 2, 5) if decades < 2.3 else (1, 3)
        narrow = (1, 1.5, 2, 3, 4, 5, 7) if decades < 1 else (1, 1.5, 2, 3, 5, 7)
        locator = LogLocator(subs=narrow if decades < 1.3 else wide)
        axis.set_major_locator(MaxNLocator(4, steps=ROUND) if decades < 0.3 else locator)
    else:
        axis.set_major_locator(MaxNLocator(5, steps=ROUND))
    axis.set_minor_locator(NullLocator())
    if kind == "time":
        unit, of = (3600, "h") if high > 7200 else (60, "min") if high > 300 else (1, "s")
        ticks = MaxNLocator(4, steps=ROUND).tick_values(low / unit, high / unit)
        axis.set_major_locator(FixedLocator([unit * tick for tick in ticks]))
        axis.set_major_formatter(lambda v, _: f"{v / unit:g} {of}")
    elif kind == "percent":
        axis.set_major_formatter(lambda v, _: f"{100 * v:g} %")
    else:
        axis.set_major_formatter(EngFormatter(sep="") if kind == "k" else lambda v, _: f"{v:g}")
