"""Heat map of slowdowns: workloads and mixes down, methods by count across.

The colour and the upper number of a cell are the slowdown of its slowest member, the lower number
is ANTT, the mean over members: geometric means over replicates. A cell that gave no number says
how it ended.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Patch, Rectangle

from analysis import flags, style
from analysis.cells import Study, dominant_status, is_baseline, small_first
from analysis.figures import marks, not_run
from analysis.names import method_order, parse_scenario
from analysis.pooling import pooled

TITLE = "Slowdown map"
CAPTION = (
    "What collocation costs each job. Rows are workloads (above) and mixes (below), columns are "
    "methods, of workloads at each number of collocated instances. The upper number of a cell, and "
    "its colour, is the slowdown of the member that suffers most against its run alone in the same "
    "block; the lower number is ANTT, the mean over members; both are geometric means over "
    "replicates. The job alone as a plain process is 1 by construction and not shown; cells that a "
    "member leaves stand in the figure of mixes."
)
_COLUMNS = ["row", "scenario", "n", "window", "method", "worst", "antt", "replicates", "status"]
_KEY = ["scenario", "method", "window"]
# What stands in a narrow cell, and in the legend behind it.
_CODES = {
    "out_of_memory": "OOM",
    "unsupported": "uns.",
    "failed": "fail",
    "timed_out": "t.o.",
    "postponed": "post.",
    "not_run": "–",
    "no_baseline": "n.b.",
}
# Inches: a cell's height and its width at most and at least, between counts, between blocks.
_TALL, _WIDEST, _NARROWEST, _APART, _BLOCKS = 0.3, 0.44, 0.2, 0.07, 0.16
_NUMBER, _MEAN, _LABEL, _SIGN = 5.6, 5.0, 5.8, 4.8  # points
_MAP = mpl.colormaps["Blues"]
_DARKEST = 0.85  # of the colour map


@dataclass(frozen=True)
class _Block:
    """Rows and columns of one grid; columns are (count, method), of mixes count is 0."""

    rows: list[str]
    columns: list[tuple[int, str]]
    cells: pd.DataFrame

    @property
    def left(self) -> float:
        """Inches that the names of the rows take."""
        return max(style.text_width(row, _LABEL) for row in self.rows) + 0.17

    def without(self, scenarios: set[str]) -> _Block:
        """Less these, and the rows and columns that are then empty."""
        cells = self.cells[~self.cells["scenario"].isin(scenarios)]
        rows, columns = set(cells["row"]), {_column(cell) for cell in cells.to_dict("records")}
        return _Block(
            [row for row in self.rows if row in rows],
            [column for column in self.columns if column in columns],
            cells,
        )


def draw(study: Study, arm: str | None) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and one row per cell of the map."""
    cells, runs = study.drawn(arm)
    cells = cells[~cells["variant"].str.contains("departure").astype(bool)]
    looks = style.looks(cells["method"], runs)
    table = _table(cells[~is_baseline(cells)], runs)
    blocks = [b for b in (_ladders(table, cells), _mixes(table)) if b]
    if not blocks:
        text = f"No collocated cells in arm {arm} yet."
        return style.sentence(TITLE, text), pd.DataFrame(columns=_COLUMNS)

    drawn = pd.concat([_drawn(block) for block in blocks], ignore_index=True)[_COLUMNS]
    own = pd.concat([block.cells for block in blocks])["scenario"]
    # The jobs alone as plain processes have no cell here.
    planned = cells[cells["scenario"].isin(own)]
    absent, named = not_run.nothing_but(planned, is_baseline(planned))
    blocks = [b for b in (block.without(absent) for block in blocks) if b.rows]
    if not blocks:
        return style.sentence(TITLE, not_run.sentence(arm)), drawn

    table = table[~table["scenario"].isin(absent)]
    head = max(style.text_width(looks[m].short, _NUMBER) for b in blocks for _, m in b.columns)
    head += 0.1
    width = min([_WIDEST, *map(_fitting, blocks)])
    tall = [
        head + _TALL * len(block.rows) + (0.16 if block.columns[0][0] else 0) for block in blocks
    ]
    most = max([2.0, *table["worst"][np.isfinite(table["worst"])]])
    shown = runs[runs["scenario"].isin(table["scenario"])]
    partial = (table["replicates"] > 0) & (table["replicates"] < table["planned"])
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "above: slowdown of the slowest member; below: ANTT, the mean over members",
        _handles(table, most),
        sum(tall) + _BLOCKS * (len(blocks) - 1) + 0.05,
        [
            *style.footer_parts(shown),
            marks.FEWER if partial.any() else "",
            study.note,
            not_run.phrase((s for s, _ in named), methods=not_run.under(named, cells, looks)),
        ],
    )
    for block, height in zip(blocks, tall, strict=True):
        ax = style.place(fig, block.left, top, style.PAGE_WIDTH - block.left, height)
        ax.set(xlim=(0, style.PAGE_WIDTH - block.left), ylim=(height, 0))
        _draw_block(ax, block, looks, width, height - _TALL * len(block.rows), most)
        top += height + _BLOCKS
    return fig, drawn


def _column(cell: dict) -> tuple[int, str]:
    """Where a cell stands in its block."""
    return 0 if cell["mixed"] else int(cell["n"]), cell["method"]


def _table(cells: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per cell of the map: worst, antt, replicates, planned, status, flags."""
    done = runs[(runs["status"] == "completed") & runs["window"].notna()]
    slowest = done.groupby([*_KEY, "block"])["slowdown"].agg(lambda s: s.max(skipna=False))
    # Where no cell has a window, its column holds no text.
    cells = cells.astype({"window": object})
    cells = cells.join(slowest.rename("worst"), on=[*_KEY, "block"])
    worst, antt = (pooled(cells, column, _KEY) for column in ("worst", "antt"))
    windows = cells.groupby(["scenario", "method"])["window"].transform("first")
    # Replicates that did not complete have no window of their own.
    names = cells["window"].astype(object).fillna(windows.astype(object)).fillna("")
    cells = cells.assign(window=names)
    groups: dict[tuple, list[dict]] = {}
    used = [*_KEY, "n", "family", "variant", "mixed", "status", "antt", "flags", "block"]
    for cell in cells[used].sort_values(_KEY, kind="stable").to_dict("records"):
        groups.setdefault(tuple(cell[name] for name in _KEY), []).append(cell)
    rows = []
    for key, group in groups.items():
        base = {name: group[0][name] for name in (*_KEY, "n", "family", "variant", "mixed")}
        known = [cell["antt"] for cell in group if pd.notna(cell["antt"])]
        slow, mean = (found[key].mean if key in found else None for found in (worst, antt))
        if math.inf in known:  # a member stood still
            slow = mean = math.inf
        ended = dominant_status(Counter(marks.missing(cell["status"]) for cell in group))
        rows.append(
            base
            | {"worst": slow, "antt": mean, "flags": flags.union(cell["flags"] for cell in group)}
            | {"replicates": len(known), "planned": len({cell["block"] for cell in group})}
            | {"status": "completed" if known else ended}
        )
    columns = [*_KEY, "n", "family", "variant", "mixed", "worst", "antt", "replicates", "planned"]
    table = pd.DataFrame(rows, columns=[*columns, "flags", "status"])
    return table.astype({"worst": float, "antt": float, "mixed": bool})


def _ladders(table: pd.DataFrame, cells: pd.DataFrame) -> _Block | None:
    """Workloads that were collocated, and their variants; columns are counts and methods."""
    own = table[~table["mixed"]]
    own = own[own["family"].isin(own.loc[own["n"] > 1, "family"])]
    if own.empty:
        return None
    order = small_first(cells)
    named = zip(own["family"], own["variant"], strict=True)
    own = own.assign(
        row=[f"{name} ({variant})" if variant else name for name, variant in named],
        place=own["family"].map(order.index),
    )
    rows = own.sort_values(["place", "variant"], kind="stable")["row"].unique()
    columns = {(int(n), method) for n, method in zip(own["n"], own["method"], strict=True)}
    return _Block(list(rows), sorted(columns, key=lambda c: (c[0], method_order(c[1]))), own)


def _mixes(table: pd.DataFrame) -> _Block | None:
    """Mixes; columns are methods."""
    own = table[table["mixed"]]
    if own.empty:
        return None
    own = own.assign(row=[parse_scenario(scenario).label for scenario in own["scenario"]])
    rows = own.sort_values(["family", "variant", "n", "scenario"], kind="stable")["row"].unique()
    columns = [(0, method) for method in sorted(own["method"].unique(), key=method_order)]
    return _Block(list(rows), columns, own)


def _fitting(block: _Block) -> float:
    """Width of a cell that lets all columns of a block fit on the page."""
    apart = _APART * (len({count for count, _ in block.columns}) - 1)
    room = style.PAGE_WIDTH - block.left - 0.05 - apart
    return max(room / len(block.columns), _NARROWEST)


def _draw_block(
    ax: plt.Axes, block: _Block, looks: dict, width: float, head: float, most: float
) -> None:
    """A grid in inches: names of methods above it, counts above these, rows' names at its left."""
    ax.axis("off")
    lefts, left, before = {}, 0.0, None
    for column in block.columns:
        left += _APART if before is not None and column[0] != before else 0.0
        lefts[column], before = left, column[0]
        centre = left + width / 2
        name = {"rotation": 90, "ha": "center", "va": "bottom", "size": _NUMBER}
        ax.text(centre, head - 0.03, looks[column[1]].short, **name)
        left += width
    for count in sorted({count for count, _ in block.columns} - {0}):
        places = [lefts[column] for column in block.columns if column[0] == count]
        middle = (places[0] + places[-1] + width) / 2
        ax.plot(
            [places[0] + 0.02, places[-1] + width - 0.02], [0.14, 0.14], color=style.GREY, lw=0.6
        )
        ax.text(middle, 0.12, f"{count}×", ha="center", va="bottom", weight="bold", size=_LABEL)
    for i, row in enumerate(block.rows):
        down = head + i * _TALL
        ax.text(-0.06, down + _TALL / 2, row, ha="right", va="center", size=_LABEL)
        for cell in block.cells[block.cells["row"] == row].to_dict("records"):
            _draw_cell(ax, lefts[_column(cell)], down, width, cell, most)


def _draw_cell(
    ax: plt.Axes, left: float, down: float, width: float, cell: dict, most: float
) -> None:
    centre, seen = left + width / 2, pd.notna(cell["antt"])
    colour = _colour(cell["worst"], most) if seen else "#F6F6F6"
    edge = {"ec": "white", "lw": 0.8} if seen else {"ec": "#999999", "lw": 0.5, "ls": (0, (2, 2))}
    inset = 0.0 if seen else 0.015
    box = (left + inset, down + inset), width - 2 * inset, _TALL - 2 * inset
    ax.add_patch(Rectangle(*box, fc=colour, **edge))
    if not seen:
        ax.text(
            centre,
            down + _TALL / 2,
            _CODES.get(cell["status"], cell["status"]),
            ha="center",
            va="center",
            size=min(_MEAN, width * 72 / 2.6),
        )
        return
    red, green, blue = mpl.colors.to_rgb(colour)
    ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.55 else style.INK
    said = {"ha": "center", "va": "center", "color": ink}
    ax.text(
        centre,
        down + 0.43 * _TALL,
        _told(cell["worst"]),
        weight="bold",
        size=min(_NUMBER, width * 72 / 2.5),
        **said,
    )
    ax.text(
        centre, down + 0.79 * _TALL, _told(cell["antt"]), size=min(_MEAN, width * 72 / 2.8), **said
    )
    sign = "*" * (cell["replicates"] < cell["planned"]) + flags.marks(cell["flags"])
    if sign:
        # As large as the cell has room for: thin strokes vanish on a dark one.
        room = (width - 0.03) * 72 / marks.extent(sign, _SIGN)[0]
        look = {"weight": "bold", "size": _SIGN * min(1.0, room), "color": ink}
        ax.text(left + width - 0.01, down + 0.07, sign, ha="right", va="baseline", **look)


def _told(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def _colour(slowdown: float, most: float) -> tuple:
    """White at 1 and below, darker with the logarithm."""
    share = math.log(max(slowdown, 1.0)) / math.log(most)
    return _MAP(_DARKEST * min(share, 1.0)) if share > 0 else mpl.colors.to_rgba("white")


def _handles(table: pd.DataFrame, most: float) -> list:
    """The scale of the colours, and what the outcomes' letters mean."""
    steps = [s for s in (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0) if s <= most * 1.001]
    handles = [
        Patch(fc=_colour(step, most), ec=style.GREY, lw=0.4, label=f"{step:g}") for step in steps
    ]
    if handles:
        handles[0].set_label("slowdown 1")
    for status in _CODES:
        if (table["status"] == status).any():
            name = f"{_CODES[status]} {style.status_label(status)}"
            handles.append(Patch(fc="#F6F6F6", ec="#999999", lw=0.5, ls="--", label=name))
    return handles


def _drawn(block: _Block) -> pd.DataFrame:
    place = {row: i for i, row in enumerate(block.rows)}
    rows = block.cells.assign(
        place=block.cells["row"].map(place),
        column=block.cells["method"].map(method_order),
    )
    return rows.sort_values(["place", "n", "column"], kind="stable")
