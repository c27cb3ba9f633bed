"""The drawing stage: one figure from its CSV alone. Imports matplotlib, no pandas, no pyarrow.

Settings of a figure: columns (of panels), height (inches of a row of panels) or row_height (inches
of a row with a name). Settings of a panel: title, xlabel, ylabel, xscale and yscale (log), format
and xformat (k, percent, times, time), ylim, xlim, zero (y from 0), xticks (at the points), rows
(yes: names of rows at the left, values across; share: the rows of the panel before), wide (over all
columns), aspect (square, with its diagonal), legend, names (where ends are named: right, beside,
sides).
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from analysis.figures.axes import limits, ticks
from analysis.figures.sheet import Sheet

WIDTH = 7.1  # inches: the text width of A4
TEXT, SMALL, TITLE = 8, 7, 9.5  # points in print
LINE = 0.165  # inches of a line of text
INK, PALE = "#222222", "#888888"
STYLE = {
    "font.family": "DejaVu Sans", "font.size": TEXT, "axes.titlesize": TEXT, "axes.titleweight": "bold",
    "axes.labelsize": TEXT, "xtick.labelsize": SMALL, "ytick.labelsize": SMALL, "axes.edgecolor": INK,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.8, "lines.linewidth": 1.4, "lines.markersize": 4.5, "axes.axisbelow": True,
    "axes.unicode_minus": False, "svg.hashsalt": "figures", "svg.fonttype": "path", "pdf.fonttype": 42,
}  # fmt: skip
# No dates and no version: the same data give the same bytes.
METADATA = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    ".svg": {"Date": None, "Creator": None},
}


def save(sheet: Sheet, outputs: list[Path]) -> None:
    """Draw a sheet and write it in the formats of the outputs' names."""
    with mpl.rc_context({**mpl.rcParamsDefault, **STYLE, "backend": "agg"}):
        figure = draw(sheet)
        for output in outputs:
            output.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(output, dpi=200, metadata=METADATA.get(output.suffix))


def draw(sheet: Sheet) -> Figure:
    """The figure of a sheet: sentences above and below, panels between."""
    settings = sheet.settings()
    head, y = [], 0.06
    for kind, width, size, weight in (("title", 84, TITLE, "bold"), ("subtitle", 112, TEXT, "normal")):
        for row in sheet.of(kind):
            for text in textwrap.wrap(row["label"], width):
                head.append((y, text, size, weight))
                y += LINE * size / TEXT
    foot = [text for row in sheet.of("footer") for text in textwrap.wrap(row["label"], 126)]
    above, below = y + 0.05, 0.05 + LINE * 0.85 * len(foot)
    names = sheet.panels()
    places, heights = _grid(sheet, names, settings)
    height = above + below + sum(heights)
    figure = Figure(figsize=(WIDTH, height))
    if names:
        rect = (0, below / height, 1, 1 - (above + below) / height)
        engine = ConstrainedLayoutEngine(w_pad=0.04, h_pad=0.05, wspace=0.02, hspace=0.02, rect=rect)
        figure.set_layout_engine(engine)
    for y, text, size, weight in head:
        figure.text(0.008, 1 - y / height, text, va="top", size=size, weight=weight, color=INK, in_layout=False)
    for number, text in enumerate(reversed(foot)):
        at = (0.05 + LINE * 0.85 * number) / height
        figure.text(0.008, at, text, va="bottom", size=SMALL, color="#555555", in_layout=False)
    grid = figure.add_gridspec(max(len(heights), 1), int(settings.get("columns", 1)), height_ratios=heights or [1])
    ends, axes = [], None
    for name in names:
        panel, (row, column) = sheet.settings(name), places[name]
        axes = figure.add_subplot(grid[row, column], sharey=axes if panel.get("rows") == "share" else None)
        ends.append((axes, panel, _panel(axes, sheet, name, panel)))
    if names:
        figure.draw_without_rendering()
        for axes, panel, found in ends:
            _spread(axes, panel.get("names", ""), found)
        figure.draw_without_rendering()
    return figure


def _grid(sheet: Sheet, names: list[str], settings: dict) -> tuple[dict, list[float]]:
    """Where each panel stands in the grid, and how high its rows are, in inches."""
    columns = int(settings.get("columns", 1))
    places, heights, row, column = {}, [], -1, columns
    for name in names:
        wide = bool(sheet.settings(name).get("wide")) or columns == 1
        if column + (columns if wide else 1) > columns:
            row, column = row + 1, 0
            at = [tick["x"] for tick in sheet.of("tick", name)]
            each = float(settings.get("row_height", 0))
            heights.append(each * (max(at, default=1) + 1) + 0.6 if each else float(settings["height"]))
        places[name] = (row, slice(0, columns) if wide else column)
        column += columns if wide else 1
    return places, heights


def _panel(axes: Axes, sheet: Sheet, name: str, panel: dict) -> list[tuple]:
    """Draw lines and points; returns the ends to be named: text, x, value, colour."""
    rows, ends, handles = bool(panel.get("rows")), [], {}
    points = list(sheet.of("point", name))
    limits(axes, panel, points, list(sheet.of("line", name)), list(sheet.of("tick", name)))
    for row in sheet.of("line", name):
        line = axes.axvline if rows else axes.axhline
        line(row["value"], color=PALE, linewidth=0.9, zorder=0)
        if row["end"]:
            ends.append((row["end"], axes.get_xlim()[1], row["value"], "#555555"))
    if panel.get("aspect") == "square":
        axes.axline((1, 1), (2, 2), color=PALE, linewidth=0.9, zorder=0)
    series = defaultdict(list)
    for row in points:
        series[row["series"]].append(row)
    for label, each in series.items():
        handles[label] = _series(axes, each, rows)
        for row in each:
            at = (row["value"], row["x"]) if rows else (row["x"], row["value"])
            if row["label"] and row["line"] == "bar":
                axes.annotate(
                    row["label"], ((each[0]["value"] + row["value"]) / 2, row["x"]), ha="center", va="center",
                    size=SMALL, color="white" if row["colour"] == "#0B5394" else INK,
                )
            elif row["label"]:
                axes.annotate(row["label"], at, (3, 4), textcoords="offset points", size=SMALL, color=row["colour"])
            if row["end"]:
                ends.append((row["end"], *at, row["colour"]))
    ticks(axes, panel, points, list(sheet.of("tick", name)))
    axes.set_title(panel.get("title", ""))
    axes.set_xlabel(panel.get("xlabel", ""))
    axes.set_ylabel(panel.get("ylabel", ""))
    if panel.get("legend"):
        axes.legend(handles.values(), handles, loc="upper right", frameon=False, fontsize=SMALL, handletextpad=0.1)
    return ends


def _series(axes: Axes, each: list[dict], rows: bool):
    """A line, its signs, and a bar at each; returns what a legend shows."""
    first = each[0]
    colour, pale = first["colour"], first["fill"] == "reported"
    x, y = [row["x"] for row in each], [row["value"] for row in each]
    if rows:
        x, y = y, x
    if first["line"] == "bar":
        return axes.plot(x, y, color=colour, linewidth=11, solid_capstyle="butt")[0]
    alpha = 0.6 if pale else 1
    width = 0.9 if pale else 1.4
    axes.plot(x, y, color=colour, linestyle=first["line"] or "none", linewidth=width, alpha=alpha, zorder=2)
    shown = None
    for row, a, b in zip(each, x, y, strict=True):
        across = _bar(row, "x") if not rows else _bar(row, "")
        up = _bar(row, "") if not rows else None
        face = "white" if row["fill"] else colour
        shown = axes.errorbar(
            [a], [b], xerr=across, yerr=up, fmt=row["marker"] or "none", color=colour, ecolor=colour,
            elinewidth=0.8, alpha=alpha, markerfacecolor=face, markeredgewidth=0.9, zorder=3,
        )
    return shown


def _bar(row: dict, of: str) -> list[list[float]] | None:
    """Lengths of a bar to both sides, as matplotlib takes them."""
    low, middle, high = (row[f"{of}_{end}" if of else end] for end in ("low", of or "value", "high")) if not of else (
        row["x_low"], row["x"], row["x_high"])
    if low is None or high is None or middle is None:
        return None
    return [[max(middle - low, 0)], [max(high - middle, 0)]]


def _spread(axes: Axes, names: str, ends: list[tuple]) -> None:
    """Write the ends' names, apart from each other by a line's height at least.

    right: in a column beside the panel, joined to the end by a thin line. beside: right of the end.
    sides: left of it in the left half, right of it in the right half.
    """
    gap = (SMALL + 1.5) / 72 * axes.figure.dpi
    to_pixels, box = axes.transData.transform, axes.get_window_extent()
    sides = defaultdict(list)
    for text, x, y, colour in ends:
        px, py = to_pixels((x, y))
        left = names == "sides" and px < box.x0 + box.width * 0.45
        sides[left].append((py, px, text, colour))
    for left, found in sides.items():
        found.sort()
        for (py, px, text, colour), at in zip(found, apart([f[0] for f in found], gap), strict=True):
            if names == "right":
                place = (box.x1 + 8 / 72 * axes.figure.dpi, at)
            else:
                place = (px + (-7 if left else 7) / 72 * axes.figure.dpi, at)
            moved = abs(at - py) > gap / 3 or place[0] - px > 20
            inverse = axes.transAxes.inverted().transform
            axes.annotate(
                text, inverse((px, py)), inverse(place), "axes fraction", "axes fraction", size=SMALL,
                color=colour, va="center", ha="right" if left else "left", annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6,
                            "shrinkA": 0, "shrinkB": 3} if moved else None,
            )  # fmt: skip


def apart(places: list[float], gap: float) -> list[float]:
    """Sorted places moved as little as it takes to be a gap apart: neighbours too near are centred
    on their mean.
    """
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1:
            upper, lower = groups[-1], groups[-2]
            middle = [sum(g) / len(g) for g in (lower, upper)]
            if middle[1] - middle[0] >= gap * (len(lower) + len(upper)) / 2:
                break
            groups[-2:] = [lower + upper]
    return [
        sum(group) / len(group) + gap * (number - (len(group) - 1) / 2)
        for group in groups
        for number in range(len(group))
    ]
