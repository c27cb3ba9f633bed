"""The drawing stage: one figure from its CSV alone. Imports matplotlib, no pandas, no pyarrow.

Settings of a figure: columns (of panels), height (inches of a row of panels) or row_height (inches
of a row with a name). Settings of a panel: title, xlabel, ylabel, xscale and yscale (log), format
and xformat (k, percent, time), ylim, xlim, zero (y from 0), xticks (at the points), rows (yes:
names of rows at the left, values across; share: the rows of the panel before), wide (over all
columns), aspect (square, with its diagonal), names (where ends are named: right of the panel, above
the end, or column: those of the left half in a column).
"""

from __future__ import annotations

import textwrap
from argparse import Namespace
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from analysis.figures.axes import finish
from analysis.figures.sheet import Sheet

WIDTH = 7.1  # inches: the text width of A4
TEXT, SMALL, TITLE = 8, 7, 9.5  # points in print
INK, PALE, SOFT = "#222222", "#888888", "#555555"
STYLE = {
    "font.family": "DejaVu Sans", "font.size": TEXT, "axes.labelsize": TEXT,
    "axes.titlesize": TEXT, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "xtick.labelsize": SMALL, "ytick.labelsize": SMALL, "axes.edgecolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
    "lines.linewidth": 1.4, "lines.markersize": 4.5, "svg.hashsalt": "figures", "pdf.fonttype": 42,
    "figure.constrained_layout.w_pad": 0.04, "figure.constrained_layout.h_pad": 0.05,
}  # fmt: skip
# No dates and no version: the same data give the same bytes.
METADATA = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    ".svg": {"Date": None, "Creator": None},
}
# Characters on a line, size, weight, colour and height of a line in inches.
TEXTS = {
    "title": (88, TITLE, "bold", INK, 0.196),
    "subtitle": (116, TEXT, "normal", INK, 0.165),
    "footer": (136, SMALL, "normal", SOFT, 0.14),
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
    rows, heights = _grid(sheet)
    lines = [
        (kind, text)
        for kind, (width, *_) in TEXTS.items()
        for row in sheet.of(kind)
        for text in textwrap.wrap(row["label"], width)
    ]
    foot = [TEXTS[kind][-1] for kind, _ in lines if kind == "footer"]
    below = 0.05 + sum(foot)
    above = 0.11 + sum(TEXTS[kind][-1] for kind, _ in lines) - sum(foot)
    height = above + below + sum(heights)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, below / height, 1, sum(heights) / height))
    y = height - 0.06
    for kind, text in lines:
        _, size, weight, colour, step = TEXTS[kind]
        y = min(y, below - 0.02) if kind == "footer" else y
        style = {"size": size, "weight": weight, "color": colour}
        figure.text(0.008, y / height, text, va="top", in_layout=False, **style)
        y -= step
    if rows:
        axes = figure.subplot_mosaic(rows, height_ratios=heights)
        ends = {name: _panel(axes, name, rows, sheet) for name in axes}
        figure.draw_without_rendering()
        for name, found in ends.items():
            _name(axes[name], sheet.settings(name).get("names", ""), found)
        figure.draw_without_rendering()
    figure.set_layout_engine("none")  # stays as it is, in each format
    return figure


def _grid(sheet: Sheet) -> tuple[list[list[str]], list[float]]:
    """Names of the panels row by row, "." where none is, and how high each row is, in inches."""
    settings, rows = sheet.settings(), []
    columns, each = int(settings.get("columns", 1)), float(settings.get("row_height", 0))
    for name in sheet.panels():
        if sheet.settings(name).get("wide"):
            rows.append([name] * columns)
        elif rows and "." in rows[-1]:
            rows[-1][rows[-1].index(".")] = name
        else:
            rows.append([name] + ["."] * (columns - 1))
    if not each:
        return rows, [float(settings["height"])] * len(rows)
    last = [max([tick["x"] for tick in sheet.of("tick", row[0])], default=1) for row in rows]
    return rows, [each * (place + 1) + 0.6 for place in last]


def _panel(found: dict[str, Axes], name: str, rows: list[list[str]], sheet: Sheet) -> list[tuple]:
    """Draw lines and points; returns the ends to be named: text, x, value, colour."""
    axes, panel = found[name], sheet.settings(name)
    points, ends = list(sheet.of("point", name)), []
    at, row = next((at, row) for at, row in enumerate(rows) if name in row)
    column = row.index(name)
    left = row[column - 1] if column else ""
    below = rows[at + 1][column] if at + 1 < len(rows) else ""
    # The label of an axis is said once, by the panel at the left or below that has it too.
    for label, other in (("ylabel", left), ("xlabel", below)):
        if panel.get(label) != (sheet.settings(other).get(label) if other else ""):
            axes.set(**{label: panel.get(label, "")})
    axes.set_title(panel.get("title", ""))
    if panel.get("rows") == "share":
        axes.sharey(found[left])
    series = defaultdict(list)
    for row in points:
        series[row["series"]].append(row)
    for each in series.values():
        ends += _series(axes, each, bool(panel.get("rows")))
    for row in sheet.of("line", name):
        line = axes.axvline if panel.get("rows") else axes.axhline
        line(row["value"], color=PALE, linewidth=0.9, zorder=0)
    finish(axes, panel, points, list(sheet.of("tick", name)))
    lines = (row for row in sheet.of("line", name) if row["end"])
    return ends + [(row["end"], axes.get_xlim()[1], row["value"], SOFT) for row in lines]


def _series(axes: Axes, each: list[dict], rows: bool) -> list[tuple]:
    """A line, its signs, and a bar at each; returns its named end."""
    colour, pale = each[0]["colour"], each[0]["fill"] == "reported"
    alpha, ends = 0.6 if pale else 1, []
    x, y = [row["x"] for row in each], [row["value"] for row in each]
    x, y = (y, x) if rows else (x, y)
    if each[0]["line"]:
        style = {"linestyle": each[0]["line"], "linewidth": 0.9 if pale else 1.4}
        axes.plot(x, y, color=colour, alpha=alpha, zorder=2, **style)
    for row, at, of in zip(each, x, y, strict=True):
        crossed = row["x_low"] is not None
        bar = {"color": colour, "linewidth": 0.8, "alpha": 0.35 if crossed else alpha, "zorder": 1}
        if row["low"] is not None:
            (axes.hlines if rows else axes.vlines)(row["x"], row["low"], row["high"], **bar)
        if crossed:
            axes.hlines(row["value"], row["x_low"], row["x_high"], **bar)
        if row["marker"]:
            face = "white" if row["fill"] else colour
            style = {"markerfacecolor": face, "markeredgewidth": 0.9, "zorder": 3}
            axes.plot(at, of, row["marker"], color=colour, alpha=alpha, **style)
        if row["end"]:
            ends.append((row["end"], at, of, colour))
    return ends


def _name(axes: Axes, names: str, ends: list[tuple]) -> None:
    """Write the ends' names, at least a line's height apart: right of the panel, or above the ends;
    joined to the end by a thin line where they are away from it.
    """
    point = axes.figure.dpi / 72
    gap, box = (SMALL + 1.5) * point, axes.get_window_extent()
    inverse = axes.transAxes.inverted().transform
    signs = [(*axes.transData.transform((x, y)), text, colour) for text, x, y, colour in ends]
    found = []  # the height that a name would have on its own, and its place across
    for px, py, text, colour in signs:
        own = (py, box.x1 + 8 * point) if names == "right" else (py + 6 * point, px + 3 * point)
        found.append((*own, px, py, text, colour))
    found.sort()
    places = apart([wanted for wanted, *_ in found], gap, box.y0 + gap / 2, box.y1 + 6 * point)
    for (wanted, x, px, py, text, colour), y in zip(found, places, strict=True):
        arrow = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6}
        arrow |= {"shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)}
        away = abs(y - wanted) > gap / 3 or x - px > 20 * point
        axes.annotate(
            text, inverse((px, py)), inverse((x, y)), "axes fraction", "axes fraction", size=SMALL,
            color=[0.75 * part for part in to_rgb(colour)], va="center",
            annotation_clip=False,
            arrowprops=arrow if away else None,
            path_effects=[withStroke(linewidth=2, foreground="white")], zorder=4,
        )  # fmt: skip


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


def run(given: Namespace) -> None:
    """The command: one figure, from its data alone."""
    save(Sheet.read(given.data), given.output)
