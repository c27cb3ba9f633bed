"""How figures look: sizes, colours, bars of spread, names, legends."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from PIL import Image

from analysis import labels
from analysis.estimates.intervals import CONFIDENCE_TEXT

WIDTH = 7.1  # inches: the text width of A4
SMALL = 7  # points in print: nothing is smaller
INK, SOFT, PALE = "#222222", "#555555", "#999999"
HUES = ("#0B5394", "#A1372D", "#2A9D8F", "#E0A224", "#7A5BA8", "#5C9BD5")
SIGNS = ("o", "s", "^", "D", "v", "P")
METHODS = ("naive", "mps", "streams", "mig")  # drawn; shares of SMs under MPS are in tables
DASHES = {"naive": "--", "mps": "-", "streams": ":", "mig": "-."}
MARKS = (
    f"Marks: means; bars: {CONFIDENCE_TEXT} interval of a new host, or, where too few are known, "
    "of the next cell on the only one, or lowest to highest."
)
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8,
    "axes.titlelocation": "left", "xtick.labelsize": SMALL, "ytick.labelsize": SMALL,
    "axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 1.4,
    "lines.markersize": 4.5, "svg.hashsalt": "figures", "pdf.fonttype": 42,
    "text.parse_math": False, "legend.fontsize": SMALL, "legend.frameon": False, "backend": "agg",
}  # fmt: skip
# No date and no version: the same data give the same bytes.
METADATA = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    ".svg": {"Date": None, "Creator": None},
}


def context() -> AbstractContextManager:
    """Within it figures are made and saved in this style."""
    return mpl.rc_context({**mpl.rcParamsDefault, **STYLE})


def panels(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure and its panels row by row; height: of one row, in inches."""
    figure = Figure(figsize=(WIDTH, rows * height + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def panel(height: float) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    figure, (axes,) = panels(1, 1, height)
    return figure, axes


def lines(axes: Axes, found: Mapping[tuple[str, str], pd.DataFrame], x: str = "jobs") -> None:
    """A colour for each (workload, implementation), named below, and its lines by method."""
    named = []
    for place, (key, rows) in enumerate(found.items()):
        look = {"color": HUES[place], "marker": SIGNS[place]}
        named.append(Line2D([], [], label=labels.job(key[0], key[1]), **look))
        by_method(axes, rows, x, **look)
    legend(axes.figure, named, columns=3)


def by_method(axes: Axes, rows: pd.DataFrame, x: str = "jobs", **look: object) -> None:
    """A line over a column for each method that sets of these rows were measured under, from one
    job alone on where that is among them.
    """
    sets, one = rows["jobs"] > 1, (rows["jobs"] == 1) & (rows["method"] == "naive")
    drawn = [method for method in METHODS if method in set(rows["method"][sets])]
    for method in drawn or ["naive"]:
        own = rows[one | (sets & (rows["method"] == method))]
        own = own.sort_values("jobs")
        points(axes, own[x], own, linestyle=DASHES[method], **look)


def points(axes: Axes, x: Sequence, rows: pd.DataFrame, **style: object) -> None:
    """Numbers at x, each with its bar; joined where there is a linestyle."""
    axes.plot(x, rows["value"], **{"linestyle": "", "zorder": 2} | style)
    axes.vlines(x, rows["low"], rows["high"], color=style["color"], linewidth=0.8, zorder=1)


def dots(axes: Axes, y: Sequence, rows: pd.DataFrame, color: str, marker: str = "o", **style):
    """Numbers across, each in a row of its own at y, with its bar."""
    axes.plot(rows["value"], y, marker, color=color, **style)
    axes.hlines(y, rows["low"], rows["high"], color=color, linewidth=0.8, zorder=1)


def rows(names: Iterable[str]) -> tuple[Figure, Axes]:
    """A figure with a panel of rows that have these names."""
    names = list(names)
    figure, axes = panel(0.6 + 0.16 * len(names))
    rows_named(axes, names)
    return figure, axes


def set_names(rows: pd.DataFrame) -> list[str]:
    """`ResNet26 b32, 7 MPS`, or `ResNet26 b32 alone`."""
    return [
        labels.job(e.workload, e.implementation)
        + (" alone" if e.jobs == 1 else f", {e.jobs} {labels.method(e.method)}")
        for e in rows.itertuples()
    ]


def look(method: str) -> dict[str, str]:
    """The colour and the marker of a method."""
    return {"color": labels.colour(method), "marker": labels.marker(method)}


def rows_named(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, … of a panel, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def halo() -> list[withStroke]:
    """White around a text, so that a line behind it leaves it readable."""
    return [withStroke(linewidth=2, foreground="white")]


def end(axes: Axes, x: float, y: float, name: str, color: str) -> None:
    """Name a point. `save` places all names of a panel, so that they do not overlap."""
    found = getattr(axes.figure, "names", [])
    text = axes.text(x, y, name, color=color, size=SMALL, va="center", zorder=4)
    text.set_in_layout(False)
    text.set_path_effects(halo())
    axes.figure.names = [*found, (axes, text)]


def legend(figure: Figure, handles: Sequence[Line2D], columns: int = 4) -> None:
    """Say below the panels what these lines or marks are, by their labels."""
    figure.legend_rows = -(-len(handles) // columns)
    columns = min(len(handles), columns)
    place = {"loc": "lower left", "ncols": columns, "columnspacing": 1.2, "borderpad": 0}
    figure.legend(handles=handles, **place).set_in_layout(False)


def names(figure: Figure) -> list[Text]:
    """What names units and ways of writing a job: labels of y axes, and legends."""
    named = [text for legend in figure.legends for text in legend.get_texts()]
    return [axes.yaxis.label for axes in figure.axes] + named


def counts(axes: Axes, found: Iterable[int]) -> None:
    """The x axis: jobs on the GPU, with a tick at each count that was measured."""
    found = sorted(set(found))
    axes.set(xlabel="jobs on the GPU", xscale="log", xlim=(0.85 * found[0], 1.4 * found[-1]))
    axes.xaxis.set_major_locator(FixedLocator(found))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def ratios(axes: Axes, *which: str, line: bool = True) -> None:
    """These axes (x, y) are ratios: logarithmic, with ticks at round numbers and a line at 1."""
    for name in which:
        axis = getattr(axes, f"{name}axis")
        axes.set(**{f"{name}scale": "log"})
        low, high = axis.get_view_interval()
        fine = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if high < 5 * low else (1, 1.5, 2, 3, 4, 5, 7)
        axis.set_major_locator(LogLocator(subs=fine if high < 20 * low else (1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        axis.set_minor_locator(NullLocator())
        if line:
            across = axes.axvline if name == "x" else axes.axhline
            across(1, color=PALE, linewidth=0.9, zorder=0)


def percent(axes: Axes) -> None:
    """The x axis is a share."""
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")


def thousands(axes: Axes) -> None:
    """The y axis has plain numbers, thousands as k, millions as M."""

    def spelt(value: float, _: int) -> str:
        for least, unit, sign in ((1_000_000, 1_000_000, "M"), (10_000, 1000, "k")):
            if abs(value) >= least:
                return f"{value / unit:g}{sign}"
        return f"{value:g}"

    axes.yaxis.set_major_formatter(FuncFormatter(spelt))


def save(figure: Figure, title: str, caption: str, outputs: Sequence[Path]) -> None:
    """Write a figure with its title above and its caption below, in the formats of the outputs."""
    lines = textwrap.wrap(f"{caption} {MARKS}", 130)
    width, height = figure.get_size_inches()
    below = 0.15 * len(lines) + 0.08
    named = 0.06 + 0.16 * figure.legend_rows if figure.legends else 0.0
    whole = height + below + named
    figure.set_size_inches(width, whole)
    share, first = below / whole, (below + named) / whole
    figure.get_layout_engine().set(rect=(0, first, 1, 1 - first))
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0.008, share + 0.05 / whole))
    figure.suptitle(title, x=0.008, ha="left", weight="bold", size=9.5)
    style = {"va": "top", "size": SMALL, "color": SOFT, "in_layout": False}
    figure.text(0.008, share - 0.01, "\n".join(lines), **style)
    _place_names(figure)
    for output in outputs:
        output.parent.mkdir(parents=True, exist_ok=True)
        kind, part = output.suffix, output.with_name(f".{output.name}")
        figure.savefig(part, dpi=200, metadata=METADATA[kind], format=kind[1:])
        if kind == ".png":  # 256 colours draw the same lines in a third of the bytes
            with Image.open(part) as image:
                few = image.convert("RGB").quantize(dither=Image.Dither.NONE)
            few.save(part, "PNG", optimize=True)
        part.replace(output)


def _place_names(figure: Figure) -> None:
    """Lay out the panels, then move names away from each other and from the points."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    named = getattr(figure, "names", [])
    np.random.seed(1)  # of which adjust_text makes use where two names are at one place
    for axes in dict.fromkeys(axes for axes, _ in named):
        texts = [text for of, text in named if of is axes]
        x, y = zip(*(text.get_position() for text in texts), strict=True)
        marked = [line.get_xydata() for line in axes.lines if line.get_marker() not in ("None", "")]
        points = np.vstack(marked) if marked else np.empty((0, 2))
        arrows = {"arrowstyle": "-", "color": PALE, "linewidth": 0.5, "shrinkB": 3}
        adjust_text(texts, points[:, 0], points[:, 1], target_x=x, target_y=y, ax=axes,
                    expand=(1.1, 1.4), iter_lim=300, arrowprops=arrows)  # fmt: skip
