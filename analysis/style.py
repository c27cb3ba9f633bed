"""One look for all figures: sizes, colours and hatches, footer, and files that are reproducible."""

from __future__ import annotations

import base64
import io
import textwrap
from functools import cache
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import typst
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import fonts
from analysis.looks import (  # noqa: F401  figures find all of their looks here
    FAINT,
    GREY,
    INK,
    LOOKS,
    STATUS,
    Look,
    footer_parts,
    looks,
    status_label,
)

# Inches; a figure over both columns of a two-column paper.
PAGE_WIDTH = 7.16
FORMATS = ("pdf", "svg", "png")
_DPI = 160  # of the PNG
SMALL, TEXT, TITLE = 6.0, 7.0, 8.5
# In typst's words; without a date, so that equal figures are equal files.
_PAGE = b"""#set document(date: none)
#set page(width: auto, height: auto, margin: 0pt)
#image(bytes(sys.inputs.picture), format: "svg")"""

RC = {
    "font.family": fonts.register(),
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
    "axes.titley": 1.0,  # where it is anyway, for there is nothing above: found without measuring
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
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "gpu-collocation-study",
    "figure.dpi": 100,
}
mpl.rcParams.update(RC)


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


def sentence(title: str, text: str) -> plt.Figure:
    """A figure that says in words why there is nothing to draw."""
    fig = new_figure(0.5)
    heading(fig, title, text)
    return fig


def files(stem: Path) -> list[Path]:
    """What `save` writes for a stem."""
    return [stem.with_name(f"{stem.name}.{kind}") for kind in (*FORMATS, "csv")]


def save(fig: plt.Figure, stem: Path, drawn: str) -> list[Path]:
    """Write STEM.png, .pdf, .svg and STEM.csv (the drawn data); equal input and equal versions of
    matplotlib and typst give equal bytes.

    Matplotlib draws once, the SVG; typst sets that as a PDF and as pixels, in a tenth of the time
    that it takes to draw again.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    for axes in fig.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if not axis.get_label_text():
                axis.set_label_coords(0, 0)  # or a place for nothing is sought in every drawing
    picture = _draw(fig)
    close(fig)
    contents = {
        "pdf": _typeset(picture, "pdf"),
        "svg": _with_fonts(picture).encode(),
        "png": _typeset(picture, "png"),
        "csv": drawn.encode(),
    }
    paths = files(stem)
    for path in paths:
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(contents[path.suffix[1:]])
        partial.replace(path)
    return paths


def _draw(fig: plt.Figure) -> str:
    """The figure as SVG, its text as text."""
    written = io.StringIO()
    fig.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    # Or XML makes one space of two.
    return written.getvalue().replace("<svg ", '<svg xml:space="preserve" ', 1)


def _typeset(picture: str, kind: str) -> bytes:
    """An SVG as a page of its size: PDF with the fonts that it uses, or PNG."""
    return _typesetter().compile(
        input=_PAGE, sys_inputs={"picture": picture}, format=kind, ppi=_DPI, pdf_tags=False
    )


@cache
def _typesetter() -> typst.Compiler:
    """Knows the figures' fonts and no others."""
    known = typst.Fonts(
        include_system_fonts=False, include_embedded_fonts=False, font_paths=[str(fonts.FOLDER)]
    )
    return typst.Compiler(font_paths=known)


def _with_fonts(picture: str) -> str:
    """The same SVG, with its fonts in it: it looks alike wherever it is shown."""
    head, found, rest = picture.partition("<defs>")
    if not found:
        raise ValueError("matplotlib wrote an SVG without <defs>, where its fonts would go")
    return f"{head}<defs><style>{_font_faces()}</style>{rest}"


@cache
def _font_faces() -> str:
    return "".join(
        f"@font-face{{font-family:'{fonts.FAMILY}';font-weight:{weight};src:url(data:font/ttf;"
        f"base64,{base64.b64encode((fonts.FOLDER / name).read_bytes()).decode()})}}"
        for name, weight in zip(fonts.FILES.values(), ("normal", "bold"), strict=True)
    )


def close(fig: plt.Figure) -> None:
    """Forget a figure."""
    plt.close(fig)
