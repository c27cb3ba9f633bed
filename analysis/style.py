"""One look for all figures: sizes, colours and hatches, footer, and files that are reproducible."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import flags

# Inches; a figure over both columns of a two-column paper.
PAGE_WIDTH = 7.16
FORMATS = ("png", "pdf")
SMALL, TEXT, TITLE = 6.0, 7.0, 8.5
INK, GREY, FAINT = "#222222", "#666666", "#DDDDDD"


@dataclass(frozen=True)
class Look:
    """How a method is drawn; lightness, hatch and marker differ, so greyscale is enough."""

    label: str
    short: str
    colour: str
    hatch: str
    marker: str


# Hues are safe for colour-blind readers (Okabe-Ito), lightness is spread.
LOOKS = {
    "serial": Look("serial (N × alone)", "serial", "#FFFFFF", "....", "_"),
    "naive": Look("naive", "naive", "#F2C14E", "////", "o"),
    "mps": Look("MPS", "MPS", "#0B5394", "", "s"),
    "mps_equal": Look("MPS, equal SM shares", "MPS eq.", "#8FB8DE", "\\\\\\\\", "<"),
    "mps_overlap": Look("MPS, overlapping SM shares", "MPS ov.", "#C9DDF0", "xxxx", ">"),
    "mig": Look("MIG, N equal", "MIG", "#5BB89A", "\\\\\\\\", "^"),
    "mig_7g": Look("MIG 7g", "7g", "#BFE5D8", "----", "v"),
    "mig_4g": Look("MIG 4g", "4g", "#2F7D63", "||||", "D"),
    "mig_shared": Look("MIG, shared memory", "MIG sh.", "#D9A6C2", "++++", "P"),
    "mig_mps": Look("MPS within MIG", "MIG+MPS", "#9A5B86", "oooo", "X"),
}
STATUS = {
    "completed": "completed",
    "out_of_memory": "out of memory",
    "unsupported": "unsupported",
    "failed": "failed",
    "timed_out": "timed out",
    "postponed": "postponed",
    "not_run": "not run",
    "no_baseline": "no baseline",
}

RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.linewidth": 0.6,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "hatch.linewidth": 0.4,
    "lines.linewidth": 1.0,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "figure.dpi": 100,
    "savefig.dpi": 250,
}
mpl.rcParams.update(RC)


def look(method: str) -> Look:
    """A method's look; one that is not known yet is drawn grey under its own name."""
    return LOOKS.get(method, Look(method, method, "#AAAAAA", "**", "*"))


def status_label(status: str) -> str:
    return STATUS.get(status, status.replace("_", " "))


def new_figure(height: float) -> plt.Figure:
    """A page-wide figure of `height` inches, white."""
    return plt.figure(figsize=(PAGE_WIDTH, height))


def place(fig: plt.Figure, left: float, top: float, width: float, height: float) -> plt.Axes:
    """Axes at a place given in inches from the left and the top of the figure."""
    w, h = fig.get_size_inches()
    return fig.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))


def heading(fig: plt.Figure, title: str, subtitle: str) -> None:
    """Title and a line below it, top left; takes the first 0.42 inches."""
    height = fig.get_size_inches()[1]
    fig.text(0.01, 1 - 0.05 / height, title, size=TITLE, weight="bold", va="top")
    fig.text(0.01, 1 - 0.22 / height, subtitle, size=TEXT, color=GREY, va="top")


def text_width(text: str, size: float) -> float:
    """About how many inches `text` takes at `size` points: a character is 0.56 of its size wide."""
    return 0.56 * size * len(text) / 72


def _legend_rows(handles: list) -> list[list]:
    """Handles line by line, as many as fit on the page."""
    rows, used = [[]], 0.0
    for handle in handles:
        width = text_width(handle.get_label(), SMALL) + 0.3
        if used + width > PAGE_WIDTH and rows[-1]:
            rows.append([])
            used = 0.0
        rows[-1].append(handle)
        used += width
    return rows


def page(
    title: str, subtitle: str, handles: list, content: float, foot: list[str]
) -> tuple[plt.Figure, float]:
    """A figure with heading, legend and footer around `content` inches; and where those begin.

    The second value is in inches from the top. `foot` holds phrases (see `footer_parts`).
    """
    rows = _legend_rows(handles)
    top = 0.66 + 0.16 * len(rows)
    width = int(PAGE_WIDTH * 72 / (SMALL * 0.52))
    lines = textwrap.wrap("; ".join(part for part in foot if part), width)
    fig = new_figure(top + content + 0.1 + 0.1 * len(lines))
    height = fig.get_size_inches()[1]
    heading(fig, title, subtitle)
    for i, row in enumerate(rows):
        fig.legend(
            handles=row,
            loc="upper left",
            bbox_to_anchor=(0.004, 1 - (0.44 + 0.16 * i) / height),
            ncols=len(row),
            frameon=False,
            handlelength=1.8,
            columnspacing=1.3,
            handletextpad=0.5,
            borderaxespad=0,
        )
    fig.text(0.01, 0.05 / height, "\n".join(lines), size=SMALL, color=GREY)
    return fig, top


def swatch(method: str) -> Patch:
    """A legend entry for a method's bars."""
    style = look(method)
    return Patch(
        facecolor=style.colour, hatch=style.hatch, edgecolor=INK, linewidth=0.5, label=style.label
    )


def line(method: str) -> Line2D:
    """A legend entry for a method's marks on a line."""
    style = look(method)
    marker = {"marker": style.marker, "ms": 4.6, "mfc": style.colour, "mec": INK, "mew": 0.5}
    return Line2D([], [], color=style.colour, lw=1.1, label=style.label, **marker)


def replicate_point() -> Line2D:
    """A legend entry for the points of single replicates."""
    look = {"mfc": "white", "mec": INK, "mew": 0.4}
    return Line2D([], [], marker="o", ms=2.2, ls="", label="a replicate", **look)


def footer_parts(rows: pd.DataFrame) -> list[str]:
    """What was measured on what, each as a phrase; `rows` are member rows of runs.parquet.

    Study, hardware, arm, data source, replicates, window length, and how many cells are flagged.
    """

    def distinct(column: str) -> list[str]:
        return sorted(str(v) for v in rows[column].dropna().unique())

    done = rows[rows["status"] == "completed"]
    parts = [f"Study {', '.join(distinct('study'))}" if distinct("study") else ""]
    parts.append(", ".join(sorted({str(v) for v in done["hardware"].dropna()})))
    if distinct("driver"):
        parts.append(f"driver {', '.join(distinct('driver'))}")
    parts.append(f"arm {', '.join(distinct('arm'))}" if distinct("arm") else "")
    for source, phrase in (("real", "real data"), ("synthetic", "generated (synthetic) data")):
        names = sorted(rows[rows["source"] == source]["dataset"].dropna().unique())
        parts.append(f"{phrase}: {', '.join(names)}" if names else "")
    blocks = done["block"].nunique()
    parts.append(f"{blocks} replicate{'s' if blocks != 1 else ''}" if blocks else "")
    seconds = done[done["window"] == "window"]["window_s"].dropna()
    if len(seconds):
        low, high = f"{seconds.min():.3g}", f"{seconds.max():.3g}"
        parts.append(f"windows of {low if low == high else f'{low} to {high}'} s")
    return [part for part in (*parts, *flags.counted(rows)) if part]


def sentence(title: str, text: str) -> plt.Figure:
    """A figure that says in words why there is nothing to draw."""
    fig = new_figure(0.5)
    heading(fig, title, text)
    return fig


def save(fig: plt.Figure, stem: Path, drawn: pd.DataFrame) -> list[Path]:
    """Write STEM.png, STEM.pdf and STEM.csv (the drawn data); the same input gives equal bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    metadata = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
    paths = []
    for kind in FORMATS:
        path = stem.with_name(f"{stem.name}.{kind}")
        partial = path.with_name(path.name + ".partial")
        fig.savefig(partial, format=kind, metadata=metadata[kind])
        partial.replace(path)
        paths.append(path)
    plt.close(fig)
    table = stem.with_name(stem.name + ".csv")
    drawn.to_csv(table, index=False)
    return [*paths, table]
