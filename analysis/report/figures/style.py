"""How figures look: sizes, colours, bars of intervals, names of points, legends."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
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
from workflow.collocation.study.names import implementation_order, method_order

WIDTH = 7.1  # inches: the text width of A4
SMALL = 7  # points in print: nothing is smaller
INK, SOFT, PALE, PALER = "#222222", "#555555", "#999999", "#D9D9D9"
METHODS = ("naive", "mps", "streams", "mig")  # drawn; shares of SMs under MPS are in tables
NUMBERED = 8.5  # points: size of a mark that has a number in it
MARKS = (
    f"Marks: means. Bars: {CONFIDENCE_TEXT} interval of a new host; where one host measured, of "
    "its next measurement; where too few did, lowest to highest."
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
    """A context in which figures are made and saved in this style."""
    return mpl.rc_context({**mpl.rcParamsDefault, **STYLE})


def panels(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure and its panels row by row; height: of one row, in inches."""
    figure = Figure(figsize=(WIDTH, rows * height + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def panel(height: float) -> tuple[Figure, Axes]:
    """A figure with one panel; height: in inches."""
    figure, [axes] = panels(1, 1, height)
    return figure, axes


def by_method(axes: Axes, rows: pd.DataFrame, implementation: str) -> None:
    """Draw samples/s against jobs: a line for each method, each from one job alone on."""
    line_style = labels.line_style(implementation)
    is_set = rows["jobs"] > 1
    alone = rows[(rows["jobs"] == 1) & (rows["method"] == "naive")]
    for method in [name for name in METHODS if name in set(rows["method"][is_set])]:
        line = pd.concat([alone, rows[is_set & (rows["method"] == method)]]).sort_values("jobs")
        sets = np.flatnonzero(line["jobs"] > 1)
        points(axes, line["jobs"], line, linestyle=line_style, markevery=sets, **look(method))
    points(axes, alone["jobs"], alone, color=INK, marker="o", zorder=3)


def numbered(
    axes: Axes, x: float, y: float, number: object, fill: str = "white", **style: object
) -> None:
    """Draw a mark with a number in it, above all marks that are there."""
    axes.plot(x, y, linestyle="", markersize=NUMBERED, markerfacecolor=fill, zorder=3, **style)
    centre = {"ha": "center", "va": "center_baseline"}
    axes.text(x, y, str(number), size=SMALL, color=INK, zorder=3, **centre)


def counted(axes: Axes, x: float, row: tuple, fill: str = "white") -> None:
    """Draw an estimate at x with its bar, as a mark that has the number of jobs in it."""
    mark = look(row.method)
    axes.vlines(x, row.low, row.high, color=mark["color"], linewidth=0.8, zorder=1)
    numbered(axes, x, row.value, row.jobs, fill, **mark)


def explain(figure: Figure, methods: Iterable[str], implementations: Iterable[str] = ()) -> None:
    """Explain the colours of methods below the panels, and below them lines of implementations."""
    rows = [[], []]
    for name in sorted(set(methods), key=method_order):
        rows[0].append(Line2D([], [], linestyle="", label=labels.method(name), **look(name)))
    for name in sorted(set(implementations), key=implementation_order):
        line = {"color": INK, "linestyle": labels.line_style(name)}
        rows[1].append(Line2D([], [], label=labels.implementation(name), **line))
    if not rows[1]:
        legend(figure, rows[0])
        return
    columns = list(zip_longest(*rows, fillvalue=Line2D([], [], linestyle="", label=" ")))
    legend(figure, [handle for column in columns for handle in column], len(columns))


def points(axes: Axes, x: Sequence, rows: pd.DataFrame, **style: object) -> None:
    """Draw estimates at x, each with its bar; joined if the style has a linestyle."""
    axes.plot(x, rows["value"], **{"linestyle": "", "zorder": 2} | style)
    axes.vlines(x, rows["low"], rows["high"], color=style["color"], linewidth=0.8, zorder=1)


def dots(axes: Axes, y: Sequence, rows: pd.DataFrame, color: str, marker: str = "o", **style):
    """Draw estimates across, each in the panel's row at y, with its bar."""
    axes.plot(rows["value"], y, marker, color=color, **style)
    axes.hlines(y, rows["low"], rows["high"], color=color, linewidth=0.8, zorder=1)


def named_rows(names: Iterable[str]) -> tuple[Figure, Axes]:
    """A figure with one panel that has a row for each name."""
    names = list(names)
    figure, axes = panel(0.6 + 0.16 * len(names))
    name_rows(axes, names)
    return figure, axes


def set_names(rows: pd.DataFrame) -> list[str]:
    """Name of each set: `7 × ResNet26 b32, MPS`, or `1 × ResNet26 b32`."""
    names = []
    for row in rows.itertuples():
        name = f"{row.jobs} × {labels.job(row.workload, row.implementation)}"
        names.append(name if row.jobs == 1 else f"{name}, {labels.method(row.method)}")
    return names


def look(method: str) -> dict[str, str]:
    """The colour and the marker of a method."""
    return {"color": labels.colour(method), "marker": labels.marker(method)}


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, … of a panel, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def halo() -> list[withStroke]:
    """White around a text, so that it can be read in front of a line."""
    return [withStroke(linewidth=2, foreground="white")]


def name_point(axes: Axes, x: float, y: float, name: str, color: str) -> None:
    """Name a point. `save` moves all names of a panel, so that they do not overlap."""
    text = axes.text(x, y, name, color=color, size=SMALL, va="center", zorder=4)
    text.set_in_layout(False)
    text.set_path_effects(halo())
    figure = axes.figure
    figure.point_names = [*getattr(figure, "point_names", []), (axes, text)]


def legend(figure: Figure, handles: Sequence[Line2D], columns: int = 4) -> None:
    """Explain lines or marks below the panels, by their labels."""
    figure.legend_rows = math.ceil(len(handles) / columns)
    style = {"ncols": min(len(handles), columns), "columnspacing": 1.2, "borderpad": 0}
    figure.legend(handles=handles, loc="lower left", **style).set_in_layout(False)


def adaptable_texts(figure: Figure) -> list[Text]:
    """Texts that name units and implementations: labels of y axes, and legends."""
    texts = [axes.yaxis.label for axes in figure.axes]
    for legend in figure.legends:
        texts += legend.get_texts()
    return texts


def job_counts(axes: Axes, jobs: Iterable[int]) -> None:
    """Make the x axis jobs on the GPU, with a tick at each number of jobs."""
    ticks = sorted(set(jobs))
    axes.set(xlabel="jobs on the GPU", xscale="log", xlim=(0.85 * ticks[0], 1.4 * ticks[-1]))
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def ratios(axes: Axes, *which: str, line: bool = True) -> None:
    """Make axes (`x`, `y`) logarithmic, with ticks at round numbers; line: draw one at 1."""
    for name in which:
        axis = getattr(axes, f"{name}axis")
        axes.set(**{f"{name}scale": "log"})
        low, high = axis.get_view_interval()
        if line:
            low, high = min(low, 1), max(high, 1)
        ticks = (1, 2, 5)
        if high < 1.5 * low:
            ticks = (1, 1.05, 1.1, 1.2, 1.3, 1.4, 2, 2.5, 3, 4, 5, 6, 7, 8, 9, 9.5)
        elif high < 5 * low:
            ticks = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
        elif high < 20 * low:
            ticks = (1, 1.5, 2, 3, 4, 5, 7)
        axis.set_major_locator(LogLocator(subs=ticks))
        axis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:.3g}"))
        axis.set_minor_locator(NullLocator())
        if line:
            draw_line = axes.axvline if name == "x" else axes.axhline
            draw_line(1, color=PALE, linewidth=0.9, zorder=0)


def percent(axes: Axes) -> None:
    """Make the x axis a share."""
    axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")


def thousands(axes: Axes) -> None:
    """Write thousands on the y axis as k, millions as M."""

    def tick_label(number: float, _: int) -> str:
        if abs(number) >= 1_000_000:
            return f"{number / 1_000_000:g}M"
        return f"{number / 1000:g}k" if abs(number) >= 10_000 else f"{number:g}"

    axes.yaxis.set_major_formatter(FuncFormatter(tick_label))


def save(figure: Figure, title: str, caption: str, outputs: Sequence[Path]) -> None:
    """Write a figure with its title above and its caption below, in the formats of the outputs."""
    caption_lines = textwrap.wrap(f"{caption} {MARKS}", 130)
    width, height = figure.get_size_inches()
    caption_height = 0.15 * len(caption_lines) + 0.08
    legend_height = 0.06 + 0.16 * figure.legend_rows if figure.legends else 0.0
    total = height + caption_height + legend_height
    figure.set_size_inches(width, total)
    caption_top, panels_bottom = caption_height / total, (caption_height + legend_height) / total
    figure.get_layout_engine().set(rect=(0, panels_bottom, 1, 1 - panels_bottom))
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0.008, caption_top + 0.05 / total))
    figure.suptitle(title, x=0.008, ha="left", weight="bold", size=9.5)
    style = {"va": "top", "size": SMALL, "color": SOFT, "in_layout": False}
    figure.text(0.008, caption_top - 0.01, "\n".join(caption_lines), **style)
    _place_names(figure)
    for output in outputs:
        output.parent.mkdir(parents=True, exist_ok=True)
        ending, partial = output.suffix, output.with_name(f".{output.name}")
        figure.savefig(partial, dpi=200, metadata=METADATA[ending], format=ending[1:])
        if ending == ".png":  # 256 colours draw the same lines in a third of the bytes
            with Image.open(partial) as image:
                reduced = image.convert("RGB").quantize(dither=Image.Dither.NONE)
            reduced.save(partial, "PNG", optimize=True)
        partial.replace(output)


def _place_names(figure: Figure) -> None:
    """Lay out the panels, then move names of points away from each other and from the points."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    point_names = getattr(figure, "point_names", [])
    np.random.seed(1)  # adjust_text draws from it where two names are at one place
    for axes in dict.fromkeys(axes for axes, _ in point_names):
        texts = [text for panel_of_text, text in point_names if panel_of_text is axes]
        x, y = zip(*(text.get_position() for text in texts), strict=True)
        marked = [line.get_xydata() for line in axes.lines if line.get_marker() not in ("None", "")]
        points = np.vstack(marked) if marked else np.empty((0, 2))
        numbered_marks = [line for line in axes.lines if line.get_markersize() == NUMBERED]
        arrows = {"arrowstyle": "-", "color": PALE, "linewidth": 0.5, "shrinkB": 3}
        adjust_text(texts, points[:, 0], points[:, 1], target_x=x, target_y=y, ax=axes,
                    objects=numbered_marks or None, expand=(1.1, 1.4), iter_lim=300,
                    arrowprops=arrows)  # fmt: skip
