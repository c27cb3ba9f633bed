"""One look for all figures: sizes, colours and hatches, footer, and files that are reproducible."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from fontTools import subset
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import flags
from analysis.names import family_of, method_order

# Inches; a figure over both columns of a two-column paper.
PAGE_WIDTH = 7.16
FORMATS = ("png", "pdf", "svg")
SMALL, TEXT, TITLE = 6.0, 7.0, 8.5
INK, GREY, FAINT = "#222222", "#666666", "#DDDDDD"


@dataclass(frozen=True)
class Look:
    """How a method is drawn; lightness, hatch, marker and dashes differ: greyscale is enough."""

    label: str
    short: str
    colour: str
    hatch: str
    marker: str
    dashes: tuple | str = "-"


# Hues are safe for colour-blind readers (Okabe-Ito), lightness is spread; a family has one hue.
_LONG, _SHORT, _DOTS, _MIXED = (0, (6, 1.5)), (0, (3, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1))
LOOKS = {
    "serial": Look("serial (N × alone)", "serial", "#FFFFFF", "....", "_"),
    "naive": Look("naive", "naive", "#F2C14E", "////", "o"),
    "mps": Look("MPS", "MPS", "#0B5394", "", "s"),
    "mps_equal": Look("MPS, equal shares 100/N", "MPS eq.", "#7FB0DC", "..\\\\", "<", _LONG),
    "mps_overlap": Look("MPS, overlapping 200/N", "MPS ov.", "#A9CBEA", "xxxx", ">", _SHORT),
    "mig": Look("MIG, N equal", "MIG", "#5BB89A", "\\\\\\\\", "^"),
    "mig_7g": Look("MIG 7g", "7g", "#BFE5D8", "----", "v"),
    "mig_4g": Look("MIG 4g", "4g", "#2F7D63", "||||", "D"),
    "mig_1g2x": Look("MIG 1g, double memory", "1g2x", "#8FD0B8", "++++", "d", _LONG),
    "mig_shared": Look("MIG, shared memory", "MIG sh.", "#D9A6C2", "++++", "P", _SHORT),
    "mig_mps": Look("MPS within MIG", "MIG+MPS", "#9A5B86", "oooo", "X", _DOTS),
}
# What the variants of a study's own are drawn with, in turn: colour, hatch, marker, dashes.
_VARIANTS = (
    ("#3E7CB8", "++++", "p", _DOTS),
    ("#9AA8D6", "||||", "h", _MIXED),
    ("#123356", "....", "d", _SHORT),
    ("#4FA3C7", "oooo", "8", _LONG),
    ("#8093AD", "----", "*", _DOTS),
)
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
    "svg.hashsalt": "gpu-collocation-study",
    "figure.dpi": 100,
    "savefig.dpi": 250,
}
mpl.rcParams.update(RC)
# A PDF's text is laid out already: what fonts say of layout is of no use in it, and reading that is
# most of what embedding a font takes. Other versions of fontTools may lack the list.
getattr(subset.Options, "_drop_tables_default", []).extend(("GSUB", "GPOS", "GDEF", "kern"))


def looks(methods: Iterable[str], rows: pd.DataFrame) -> dict[str, Look]:
    """The look of each method, and of serial; `rows` are the study's (of runs.parquet).

    A study's own variants of MPS are told apart by their order, and named with the share of the
    SMs where it is one for all their members. Any other unknown method is grey.
    """
    found, own = {"serial": LOOKS["serial"]}, 0
    for method in sorted(set(methods), key=method_order):
        if method in LOOKS:
            found[method] = LOOKS[method]
        elif family_of(method) == "mps":
            percents = rows.loc[rows["method"] == method, "sm_percent"].dropna().unique()
            names = _variant(method.removeprefix("mps_").replace("_", " "), percents)
            found[method] = Look(*names, *_VARIANTS[own % len(_VARIANTS)])
            own += 1
        else:
            found[method] = Look(method, method, "#AAAAAA", "**", "*", _MIXED)
    return found


def _variant(name: str, percents: Sequence[float]) -> tuple[str, str]:
    """Label and short name of a variant of MPS: `MPS 14 %`, `MPS 14 % (small)`, `MPS small`."""
    share = f"{percents[0]:.3g}" if len(percents) == 1 else None
    if share is None:
        return f"MPS {name}", f"MPS {name}"
    if name == share:
        return f"MPS {share} %", f"MPS {share} %"
    return f"MPS {share} % ({name})", f"MPS {name}"


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
    width = int(PAGE_WIDTH * 72 / (SMALL * 0.55))
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


def swatch(look: Look) -> Patch:
    """A legend entry for a method's bars."""
    return Patch(
        facecolor=look.colour, hatch=look.hatch, edgecolor=INK, linewidth=0.5, label=look.label
    )


def line(look: Look) -> Line2D:
    """A legend entry for a method's marks on a line."""
    marker = {"marker": look.marker, "ms": 4.6, "mfc": look.colour, "mec": INK, "mew": 0.5}
    return Line2D([], [], color=look.colour, lw=1.1, ls=look.dashes, label=look.label, **marker)


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


def files(stem: Path) -> list[Path]:
    """What `save` writes for a stem."""
    return [stem.with_name(f"{stem.name}.{kind}") for kind in (*FORMATS, "csv")]


SAVED = {"png": {"pil_kwargs": {"compress_level": 3}}}  # 6 would be 4 % smaller, and slow


def save(fig: plt.Figure, stem: Path, drawn: pd.DataFrame) -> list[Path]:
    """Write STEM.png, .pdf, .svg and STEM.csv (the drawn data); equal input gives equal bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    metadata = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        "svg": {"Date": None, "Creator": None},
    }
    *pictures, table = files(stem)
    for kind, path in zip(FORMATS, pictures, strict=True):
        partial = path.with_name(path.name + ".partial")
        fig.savefig(partial, format=kind, metadata=metadata[kind], **SAVED.get(kind, {}))
        partial.replace(path)
    close(fig)
    drawn.to_csv(table, index=False)
    return [*pictures, table]


def close(fig: plt.Figure) -> None:
    """Forget a figure."""
    plt.close(fig)
