"""What the gain under MPS is made of: launch gaps filled, context switches removed, kernels of
several jobs at a time; and what is missing to N: saturation, and the rest.

A row per workload and N on one logarithmic axis, where factors are lengths that add up
(decomposition_data): from 1 to the gain, and on to N.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis import flags, style
from analysis.cells import Study, small_first
from analysis.figures import decomposition_data as decomposition
from analysis.figures import marks, not_run
from analysis.figures.decomposition_data import PARTS
from analysis.names import ALONE_VARIANTS

TITLE = "What the gain under MPS is made of"
CAPTION = (
    "Lengths on the logarithmic axis are factors: from 1 to the square the gain of N jobs alike "
    "under MPS, first what plain processes gain by filling each other's launch gaps in turns "
    "(to the circle), then what MPS adds up to the most that one kernel at a time can give "
    "(1 / GRACT alone, thin line: context switches removed), then what only kernels of several "
    "jobs at a time explain. From the square to N is what is lost: beyond 1 / SMACT alone (dotted "
    "line) because the SMs are busy, before it for other reasons. The products are identities; "
    "that the cuts are what they are called rests on a sample's taking as much GPU time in "
    "company as alone; a circle right of the square: MPS gains less than plain processes."
)
_COLUMNS = ["workload", "variant", "n", "block", "status", "of", *decomposition.LEVELS, *PARTS]
_COLUMNS += ["low", "high"]
_ROW, _GROUP, _AXIS = 0.15, 0.09, 0.42  # inches: a row, between workloads, and below the axes
_LEFT, _WIDTH, _COLUMN = 1.6, 2.95, 0.41  # inches: names, the axes, and a column of numbers
_TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 48)
_LABELS = {
    "gaps": "launch gaps filled in turns (naive's gain)",
    "switches": "context switches removed",
    "overlap": "kernels of several jobs at a time",
    "other": "lost otherwise",
    "saturation": "lost to saturated SMs",
}
# Where other figures have the gain under MPS over more blocks.
_SOME = "means over blocks that have naive, MPS and alone"
# Heads of the numbers: gains and what they come to, then losses, which lead from there to N.
_HEADS = {"gaps": "gaps", "switches": "× switch.", "overlap": "× overlap", "mps": "= gain"}
_HEADS |= {"other": "other", "saturation": "× satur."}
_FILLS = {
    "gaps": {"facecolor": "#F2C14E", "hatch": "////"},
    "switches": {"facecolor": "#6AA5D8", "hatch": "\\\\\\\\"},
    "overlap": {"facecolor": "#0B5394"},
    "other": {"facecolor": "#DDDDDD", "hatch": "xxx"},
    "saturation": {"facecolor": "#FFFFFF", "hatch": "..."},
}
_EDGE = {"edgecolor": style.INK, "linewidth": 0.4}


def draw(study: Study, arm: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and one row per set and per block of it."""
    rows, blocks = decomposition.table(study, arm)
    if rows.empty:
        text = f"No jobs alike under MPS in arm {arm} yet."
        return style.sentence(TITLE, text), pd.DataFrame(columns=_COLUMNS)
    cells = study.cells[study.cells["arm"] == arm]
    order = small_first(cells)
    rows["place"] = [order.index(workload) for workload in rows["workload"]]
    rows = rows.sort_values(["place", "variant", "n"], ignore_index=True)
    drawn, absent = _drawn(rows, blocks), _absent(cells)
    gone = set(zip(absent["family"], absent["variant"], strict=True))
    names = zip(rows["workload"], rows["variant"], strict=True)
    rows = rows[[name not in gone for name in names]].reset_index(drop=True)
    if rows.empty:
        return style.sentence(TITLE, not_run.sentence(arm)), drawn

    heights = _heights(rows)
    used = rows[rows["status"] == "completed"]
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "factors of N jobs alike over one alone; lengths on the logarithmic axis add up",
        _handles(used, blocks),
        heights[-1] + _ROW + 0.16 + (_AXIS if len(used) else 0.0),
        [
            *style.footer_parts(study.runs[study.runs["arm"] == arm]),
            _SOME if any(_fewer(cells, row) for row in used.to_dict("records")) else "",
            marks.left_out(zip(used["low"], used["high"], strict=True)),
            study.note,
            not_run.phrase(absent["scenario"], "not run under MPS"),
        ],
    )
    ax = style.place(fig, _LEFT, top + 0.16, _WIDTH, heights[-1] + _ROW)
    ax.set_ylim(heights[-1] + _ROW / 2, -_ROW / 2)
    low, high = _bounds(used, blocks)
    ax.set(xscale="log", xlim=(low, high))
    if len(used):
        ax.axvline(1, color=style.GREY, lw=0.8, zorder=1)
        _heads(ax)
    for y, row in zip(heights, rows.to_dict("records"), strict=True):
        if row["status"] == "completed":
            own = (blocks[["workload", "variant", "n"]] == pd.Series(_key(row))).all(axis=1)
            _draw_row(ax, y, row, blocks[own], _sign(cells, row))
        else:
            _draw_hole(ax, y, row)
    _names(ax, heights, rows)
    ax.xaxis.set_major_locator(FixedLocator([t for t in _TICKS if low <= t <= high]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", visible=bool(len(used)))
    ax.spines["left"].set_visible(False)
    if len(used):
        ax.set_xlabel("throughput gain over one alone (STP)", labelpad=2)
    else:
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)
    return fig, drawn


def _absent(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells under MPS of workloads of which none of them was run."""
    own = (cells["method"] == "mps") & (cells["n"] > 1) & ~cells["mixed"]
    own &= cells["variant"].isin(ALONE_VARIANTS)
    return not_run.untouched(cells[own], ["family", "variant"])


def _key(row: dict) -> dict:
    return {name: row[name] for name in ("workload", "variant", "n")}


def _heights(rows: pd.DataFrame) -> list[float]:
    """Inches from the first row to each; workloads stand apart."""
    found, y, last = [], 0.0, None
    for key in zip(rows["workload"], rows["variant"], strict=True):
        y += 0.0 if last is None else _ROW + (_GROUP if key != last else 0.0)
        found.append(y)
        last = key
    return found


def _bounds(used: pd.DataFrame, blocks: pd.DataFrame) -> tuple[float, float]:
    intervals = zip(used["low"], used["high"], strict=True)
    ends = [end for interval in intervals if marks.narrow(*interval) for end in interval]
    values = pd.concat([used["n"], blocks["naive"], blocks["mps"]]).astype(float).dropna()
    return min([0.9, *values, *ends]) / 1.05, max([2.0, *values, *ends]) * 1.05


def _segments(row: dict) -> list[tuple[str, float, float]]:
    """(part, from, to) of the bar. A factor below 1 has none: the marks show that it is a loss."""
    naive, mps, n = row["naive"], row["mps"], row["n"]
    in_turns, possible = naive * row["switches"], mps * row["other"]
    ends = [("gaps", 1.0, min(naive, mps)), ("switches", naive, in_turns)]
    ends += [("overlap", in_turns, mps), ("other", max(mps, 1.0), possible)]
    ends += [("saturation", max(possible, 1.0), n)]
    return [(part, low, high) for part, low, high in ends if high > low * (1 + 1e-9)]


def _draw_row(ax: plt.Axes, y: float, row: dict, blocks: pd.DataFrame, sign: str) -> None:
    for part, low, high in _segments(row):
        ax.barh(y, high - low, 0.72 * _ROW, left=low, zorder=2, **_FILLS[part], **_EDGE)
    for level, dashes in (("filled", "-"), ("saturated", (0, (1, 1)))):
        ends = [y - 0.48 * _ROW, y + 0.48 * _ROW]
        ax.plot([row[level]] * 2, ends, color=style.INK, lw=0.9, ls=dashes, zorder=4)
    if marks.narrow(row["low"], row["high"]):
        ax.plot([row["low"], row["high"]], [y, y], color=style.INK, lw=0.9, zorder=5)
    for method in ("naive", "mps"):
        look = style.LOOKS[method]
        mark = {"marker": look.marker, "mfc": look.colour, "mec": style.INK, "mew": 0.5}
        ax.plot([row[method]], [y], ls="", ms=4.0, zorder=6, **mark)
        if len(blocks) > 1:
            point = {"marker": "o", "ms": 1.4, "mfc": "white", "mec": style.INK, "mew": 0.3}
            ax.plot(blocks[method], [y] * len(blocks), ls="", zorder=7, **point)
    for i, name in enumerate(_HEADS):
        text = f"{row[name]:.2f}" + (f" {sign}" if name == "mps" and sign else "")
        _number(ax, i, y, text, weight="bold" if name == "mps" else "normal")


def _number(ax: plt.Axes, column: int, y: float, text: str, **look) -> None:
    """A number right of the axes, aligned by its first characters."""
    x = (_WIDTH + 0.1 + column * _COLUMN + (0.14 if column > 3 else 0.0)) / _WIDTH
    place = {"transform": ax.get_yaxis_transform(), "clip_on": False}
    ax.text(x, y, text, va="center", **{"size": 5.6} | place | look)


def _heads(ax: plt.Axes) -> None:
    for i, head in enumerate(_HEADS.values()):
        _number(ax, i, -0.17, head, color=style.GREY, size=5.2)


def _draw_hole(ax: plt.Axes, y: float, row: dict) -> None:
    who = {"mps": "MPS", "naive": "naive", "alone": "alone"}[row["of"]]
    what = "no telemetry" if row["status"] == "no_telemetry" else style.status_label(row["status"])
    place = {"transform": ax.get_yaxis_transform()}
    look = {"facecolor": "#F6F6F6", "edgecolor": "#999999", "linewidth": 0.5}
    ax.barh(y, 1.0, 0.72 * _ROW, linestyle=(0, (2, 2)), **look, **place)
    ax.text(0.01, y, f"{who}: {what}", va="center", size=5.2, zorder=3, **place)


def _names(ax: plt.Axes, heights: list[float], rows: pd.DataFrame) -> None:
    """`2×` before each row, the workload before its first."""
    ax.set_yticks(heights, [f"{n}×" for n in rows["n"]])
    ax.tick_params(axis="y", length=0)
    names = {
        group.index[0]: workload + (f" ({variant})" if variant else "")
        for (workload, variant), group in rows.groupby(["workload", "variant"])
    }
    longest = max(len(name) for name in names.values())
    size = min(style.SMALL, (_LEFT - 0.26) * 72 / (0.66 * longest))
    look = {"transform": ax.get_yaxis_transform(), "va": "center", "weight": "bold", "size": size}
    for first, name in names.items():
        ax.text(-(_LEFT - 0.07) / _WIDTH, heights[first], name, **look)


def _under_mps(cells: pd.DataFrame, row: dict) -> pd.DataFrame:
    """The set's cells under MPS."""
    same = (cells["family"] == row["workload"]) & (cells["variant"] == row["variant"])
    same &= (cells["n"] == row["n"]) & (cells["method"] == "mps") & ~cells["mixed"]
    return cells[same]


def _sign(cells: pd.DataFrame, row: dict) -> str:
    """Marks of the flags of the set's cells under MPS."""
    return flags.marks(flags.union(_under_mps(cells, row)["flags"]))


def _fewer(cells: pd.DataFrame, row: dict) -> bool:
    """Whether the set has gains under MPS in blocks that the row is not made of."""
    return row["blocks"] < _under_mps(cells, row)["stp"].notna().sum()


def _handles(used: pd.DataFrame, blocks: pd.DataFrame) -> list:
    if used.empty:
        return []
    seen = {part for row in used.to_dict("records") for part, _, _ in _segments(row)}
    handles = [Patch(label=_LABELS[p], **_FILLS[p], **_EDGE) for p in PARTS if p in seen]
    for method in ("naive", "mps"):
        look = style.LOOKS[method]
        mark = {"marker": look.marker, "mfc": look.colour, "mec": style.INK, "mew": 0.5}
        handles.append(Line2D([], [], ls="", ms=4.0, label=f"{look.label}'s gain", **mark))
    line = {"color": style.INK, "lw": 0.9}
    upright = {"marker": "|", "ms": 7, "mec": style.INK, "mew": 0.9, "ls": ""}
    handles.append(Line2D([], [], label="1 / GRACT alone, at most N", **upright))
    handles.append(Line2D([], [], ls=(0, (1, 1)), label="1 / SMACT alone, at most N", **line))
    if any(map(marks.narrow, used["low"], used["high"])):
        handles.append(Line2D([], [], label="95 % interval (MPS)", **line))
    if len(blocks) > len(used):
        handles.append(style.replicate_point())
    return handles


def _drawn(rows: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """A row per set (block empty), then its blocks with their gains."""
    found = []
    for row in rows.to_dict("records"):
        found.append({name: row[name] for name in _COLUMNS if name in row})
        own = (blocks[["workload", "variant", "n"]] == pd.Series(_key(row))).all(axis=1)
        for block in blocks[own].to_dict("records"):
            found.append({name: block[name] for name in ("block", "naive", "mps")} | _key(row))
    return pd.DataFrame(found, columns=_COLUMNS)
