"""The drawing stage: one figure from its CSV alone. Imports matplotlib, no pandas, no pyarrow.

Settings of a figure: columns (of panels), height (inches of a row of panels) or row_height (inches
of a row with a name). Settings of a panel: title, xlabel, ylabel, xscale and yscale (log), format
and xformat (k, percent, times, time), ylim, xlim, zero (y from 0), xticks (at the points), rows
(yes: names of rows at the left, values across; share: the rows of the panel before), wide (over all
columns), aspect (square, with its diagonal), names (where ends are named: right of the panel, above
the end, or column: those of the left half in a column).
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke

from analysis.figures.axes import limits, ticks
from analysis.figures.sheet import Sheet

WIDTH = 7.1  # inches: the text width of A4
TEXT, SMALL, TITLE = 8, 7, 9.5  # points in print
LINE = 0.165  # inches of a line of text
WIDE = -2  # the column of a panel over all columns
INK, PALE = "#222222", "#888888"
STYLE = {
    "font.family": "DejaVu Sans", "font.size": TEXT, "axes.labelsize": TEXT,
    "axes.titlesize": TEXT, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "xtick.labelsize": SMALL, "ytick.labelsize": SMALL, "axes.edgecolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
    "lines.linewidth": 1.4, "lines.markersize": 4.5, "svg.hashsalt": "figures", "pdf.fonttype": 42,
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
    for kind, width, size, weight in (
        ("title", 88, TITLE, "bold"),
        ("subtitle", 124, TEXT, "normal"),
    ):
        for row in sheet.of(kind):
            for text in textwrap.wrap(row["label"], width):
                head.append((y, text, size, weight))
                y += LINE * size / TEXT
    foot = [text for row in sheet.of("footer") for text in textwrap.wrap(row["label"], 142)]
    above, below = y + 0.05, 0.05 + LINE * 0.85 * len(foot)
    names = sheet.panels()
    places, heights = _grid(sheet, names, settings)
    height = above + below + sum(heights)
    figure = Figure(figsize=(WIDTH, height))
    if names:
        rect = (0, below / height, 1, 1 - (above + below) / height)
        engine = ConstrainedLayoutEngine(
            w_pad=0.04, h_pad=0.05, wspace=0.02, hspace=0.02, rect=rect
        )
        figure.set_layout_engine(engine)
    for y, text, size, weight in head:
        figure.text(
            0.008,
            1 - y / height,
            text,
            va="top",
            size=size,
            weight=weight,
            color=INK,
            in_layout=False,
        )
    for number, text in enumerate(reversed(foot)):
        at = (0.05 + LINE * 0.85 * number) / height
        figure.text(0.008, at, text, va="bottom", size=SMALL, color="#555555", in_layout=False)
    grid = figure.add_gridspec(
        max(len(heights), 1), int(settings.get("columns", 1)), height_ratios=heights or [1]
    )
    ends, axes = [], None
    for name in names:
        panel, (row, column) = sheet.settings(name), places[name]
        _said_once(panel, row, column, {place: sheet.settings(n) for n, place in places.items()})
        axes = figure.add_subplot(
            grid[row, :] if column == WIDE else grid[row, column],
            sharey=axes if panel.get("rows") == "share" else None,
        )
        ends.append((axes, panel, _panel(axes, sheet, name, panel)))
    if names:
        figure.draw_without_rendering()
        for axes, panel, found in ends:
            _spread(axes, panel.get("names", ""), found)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # stays as it is, in each format
    return figure


def _said_once(panel: dict, row: int, column: int, others: dict) -> None:
    """Leave out the label of an axis that the panel at the left, or the one below, has too."""
    for label, there in (("ylabel", (row, column - 1)), ("xlabel", (row + 1, column))):
        if column != WIDE and others.get(there, {}).get(label) == panel.get(label):
            panel[label] = ""


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
            heights.append(
                each * (max(at, default=1) + 1) + 0.6 if each else float(settings["height"])
            )
        places[name] = (row, WIDE if wide else column)
        column += columns if wide else 1
    return places, heights


def _panel(axes: Axes, sheet: Sheet, name: str, panel: dict) -> list[tuple]:
    """Draw lines and points; returns the ends to be named: text, x, value, colour."""
    rows, ends = bool(panel.get("rows")), []
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
    for each in series.values():
        _series(axes, each, rows)
        for row in each:
            at = (row["value"], row["x"]) if rows else (row["x"], row["value"])
            if row["label"] and row["line"] == "bar":
                axes.annotate(
                    row["label"],
                    ((each[0]["value"] + row["value"]) / 2, row["x"]),
                    ha="center",
                    va="center",
                    size=SMALL,
                    color="white" if row["colour"] == "#0B5394" else INK,
                )
            elif row["label"]:
                axes.annotate(
                    row["label"],
                    at,
                    (3, 4),
                    textcoords="offset points",
                    size=SMALL,
                    color=row["colour"],
                )
            if row["end"]:
                ends.append((row["end"], *at, row["colour"]))
    ticks(axes, panel, points, list(sheet.of("tick", name)))
    axes.set_title(panel.get("title", ""))
    axes.set_xlabel(panel.get("xlabel", ""))
    axes.set_ylabel(panel.get("ylabel", ""))
    return ends


def _series(axes: Axes, each: list[dict], rows: bool) -> None:
    """A line, its signs, and a bar at each."""
    colour, pale, style = each[0]["colour"], each[0]["fill"] == "reported", each[0]["line"]
    x, y = [row["x"] for row in each], [row["value"] for row in each]
    if rows:
        x, y = y, x
    if style == "bar":
        axes.plot(x, y, color=colour, linewidth=11, solid_capstyle="butt")
        return
    alpha = 0.6 if pale else 1
    axes.plot(
        x,
        y,
        color=colour,
        linestyle=style or "none",
        linewidth=0.9 if pale else 1.4,
        alpha=alpha,
        zorder=2,
    )
    crossed = any(row["x_low"] is not None for row in each)
    bars = {"colors": colour, "linewidth": 0.8, "alpha": 0.35 if crossed else alpha, "zorder": 1}
    for of, low, high in (("value", "low", "high"), ("x", "x_low", "x_high")):
        there = [row for row in each if row[low] is not None and row[high] is not None]
        if there:
            along = axes.hlines if rows or of == "x" else axes.vlines
            across = "x" if of == "value" else "value"
            along(*([row[name] for row in there] for name in (across, low, high)), **bars)
    for face, chosen in (("white", True), (colour, False)):
        at = [(p, q) for row, p, q in zip(each, x, y, strict=True) if bool(row["fill"]) is chosen]
        if at and each[0]["marker"]:
            look = {
                "color": colour,
                "alpha": alpha,
                "markerfacecolor": face,
                "markeredgewidth": 0.9,
                "zorder": 3,
            }
            axes.plot(*zip(*at, strict=True), each[0]["marker"], **look)


def _spread(axes: Axes, names: str, ends: list[tuple]) -> None:
    """Write the ends' names, at least a line's height apart: in a column, or above the ends; joined
    to the end by a thin line where they are away from it.
    """
    point = axes.figure.dpi / 72
    gap, box = (SMALL + 1.5) * point, axes.get_window_extent()
    inverse = axes.transAxes.inverted().transform
    found = [(*axes.transData.transform((x, y)), text, colour) for text, x, y, colour in ends]
    left = [px for px, *_ in found if names == "column" and px < box.x0 + 0.6 * box.width]
    column = box.x1 + 8 * point if names == "right" else max(left, default=0) + 25 * point
    lifted = [  # place that each name would have, on its own
        (py, column, px, py, text, colour)
        if names == "right" or px in left
        else (py + 6 * point, px + 3 * point, px, py, text, colour)
        for px, py, text, colour in found
    ]
    lifted.sort()
    places = apart([wanted for wanted, *_ in lifted], gap, box.y0 + gap / 2, box.y1 + 6 * point)
    for (wanted, x, px, py, text, colour), y in zip(lifted, places, strict=True):
        away = abs(y - wanted) > gap / 3 or x - px > 20 * point
        to_left = names == "column" and px not in left
        arrow = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6}
        arrow |= {"shrinkA": 0, "shrinkB": 3, "relpos": (to_left, 0.5)}
        axes.annotate(
            text, inverse((px, py)), inverse((x, y)), "axes fraction", "axes fraction", size=SMALL,
            color=_dark(colour), va="center", ha="right" if to_left else "left",
            annotation_clip=False, arrowprops=arrow if away else None,
            path_effects=[withStroke(linewidth=2, foreground="white")], zorder=4,
        )  # fmt: skip


def _dark(colour: str) -> tuple[float, float, float]:
    """The colour of a sign, dark enough for text."""
    return tuple(0.75 * part for part in to_rgb(colour))


def apart(places: list[float], gap: float, low: float, high: float) -> list[float]:
    """Sorted places moved as little as it takes to be a gap apart and within low and high:
    neighbours too near are centred on their mean.
    """

    def middle(group: list[float]) -> float:
        half = gap * (len(group) - 1) / 2
        return max(min(sum(group) / len(group), high - half), low + half)

    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1:
            lower, upper = groups[-2:]
            if middle(upper) - middle(lower) >= gap * (len(lower) + len(upper)) / 2:
                break
            groups[-2:] = [lower + upper]
    return [
        middle(group) + gap * (number - (len(group) - 1) / 2)
        for group in groups
        for number in range(len(group))
    ]
