"""The paper's F3: epoch time per instance by method and count, a panel per workload.

One bar per collocated instance (median over replicates), every replicate a point, grouped
1×/2×/3×/7× with the serial bar (N × alone). Groups of another variant (whole epochs, input from
files, all cores) stand behind the default ones. Mixes are not comparable bar by bar and are left
to the throughput figure, as are departures; so are workloads that were only measured alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import matplotlib.pyplot as plt
import pandas as pd

from analysis import style
from analysis.cells import Study, dominant_status, small_first
from analysis.names import method_order, parse_scenario

_TITLE = "Epoch time per instance"
_COLUMNS = ["panel", "n", "variant", "method", "member", "block", "epoch_time_s", "status"]
_UNITS = ((3 * 3600.0, 3600.0, "h"), (300.0, 60.0, "min"), (0.0, 1.0, "s"))
_PANEL, _GAP = 1.05, 0.45  # inches


@dataclass
class Block:
    """The bars of one method at one count: `points` has a row per member and replicate."""

    n: int
    variant: str
    method: str
    points: pd.DataFrame
    statuses: dict[str, int] = field(default_factory=dict)

    @property
    def members(self) -> list[int]:
        return sorted(self.points["member"].unique())

    @property
    def width(self) -> float:
        """Grows slower than the number of bars, so that seven do not crush the others."""
        bars = 1 if self.method == "serial" else self.n
        return 1.5 * bars**0.55

    @property
    def complete(self) -> bool:
        return set(self.statuses) <= {"completed"}


def draw(study: Study, arm: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and one row per point, or per status without one."""
    cells = study.cells[(study.cells["arm"] == arm) & ~study.cells["mixed"]]
    cells = cells[~cells["variant"].str.contains("departure").astype(bool)]
    runs = study.runs[study.runs["arm"] == arm]
    collocated = set(cells.loc[cells["n"] > 1, "family"]) or set(cells["family"])
    cells = cells[cells["family"].isin(collocated)]
    panels = {w: _blocks(cells[cells["family"] == w], runs, w) for w in small_first(cells)}
    if not panels:
        text = f"No cells of equal members in arm {arm} yet."
        return style.sentence(_TITLE, text), pd.DataFrame(columns=_COLUMNS)

    blocks = [b for panel in panels.values() for b in panel]
    methods = sorted({b.method for b in blocks}, key=method_order)
    handles = [*(style.swatch(m) for m in methods), style.replicate_point()]
    top = 0.62 + style.legend_height(len(handles))
    fig = style.new_figure(top + len(panels) * (_PANEL + _GAP) + 0.12)
    style.heading(
        fig,
        f"{_TITLE}, arm {arm}",
        "one bar per collocated instance: its median over replicates; number: median of the bars",
    )
    style.legend(fig, handles, 0.44)
    widest = max(_layout(panel)[1] for panel in panels.values())
    for i, (workload, panel) in enumerate(panels.items()):
        place = (0.48, top + i * (_PANEL + _GAP), style.PAGE_WIDTH - 0.56, _PANEL)
        _draw_panel(style.place(fig, *place), workload, panel, widest)
    partial = not all(b.complete for b in blocks if len(b.points))
    note = "* not every replicate completed" if partial else ""
    shown = runs[runs["scenario"].isin(cells["scenario"])]
    style.footer(fig, shown, "; ".join(part for part in (note, study.note) if part))
    return fig, _drawn(panels)


def _blocks(cells: pd.DataFrame, runs: pd.DataFrame, workload: str) -> list[Block]:
    """The blocks of one workload, in drawing order, with serial blocks for N > 1."""
    runs = runs[(runs["status"] == "completed") & runs["epoch_time_s"].notna()]
    runs = runs[["scenario", "method", "member", "block", "epoch_time_s"]]
    blocks = []
    for (scenario, method), group in cells.groupby(["scenario", "method"]):
        parsed = parse_scenario(scenario)
        points = runs[(runs["scenario"] == scenario) & (runs["method"] == method)]
        statuses = group["status"].value_counts().to_dict()
        blocks.append(Block(parsed.n, parsed.variant, method, points, statuses))
    alone = runs[(runs["scenario"] == f"1x_{workload}") & (runs["method"] == "naive")]
    for n in sorted({b.n for b in blocks if b.n > 1 and not b.variant}):
        serial = alone.assign(epoch_time_s=n * alone["epoch_time_s"])
        if len(serial):
            blocks.append(Block(n, "", "serial", serial))
    return sorted(blocks, key=lambda b: (b.variant, b.n, method_order(b.method)))


def _layout(blocks: list[Block]) -> tuple[list[float], float]:
    """Left edge of each block, and the total width, in units of the x axis."""
    edges, x, previous = [], 0.0, None
    for block in blocks:
        if previous is not None:
            x += 0.35 if (block.n, block.variant) == previous else 2.2
        edges.append(x)
        x += block.width
        previous = (block.n, block.variant)
    return edges, x


def _draw_panel(ax: plt.Axes, workload: str, blocks: list[Block], widest: float) -> None:
    edges, _ = _layout(blocks)
    top = max((b.points["epoch_time_s"].max() for b in blocks if len(b.points)), default=0.0)
    _, seconds, unit = next(u for u in _UNITS if top >= u[0])
    for edge, block in zip(edges, blocks, strict=True):
        if len(block.points):
            _draw_bars(ax, edge, block, seconds)
        else:
            _draw_hole(ax, edge, block)
    groups: dict[tuple, list[float]] = {}
    for edge, block in zip(edges, blocks, strict=True):
        groups.setdefault((block.n, block.variant), []).extend([edge, edge + block.width])
    ax.set_xticks(
        [(min(g) + max(g)) / 2 for g in groups.values()],
        [f"{n}×" + (f" ({variant})" if variant else "") for n, variant in groups],
    )
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.8, widest + 0.8)
    if top:
        ax.set_ylim(0, top / seconds * 1.16)
        ax.yaxis.set_major_locator(plt.MaxNLocator(4))
        ax.set_ylabel(f"epoch time ({unit})")
    else:
        ax.set_yticks([])
    ax.set_title(workload, loc="left", weight="bold", pad=3)


def _draw_bars(ax: plt.Axes, edge: float, block: Block, seconds: float) -> None:
    look, members = style.look(block.method), block.members
    width = block.width / len(members)
    highest = 0.0
    for i, member in enumerate(members):
        values = block.points[block.points["member"] == member].sort_values("block")
        heights = values["epoch_time_s"] / seconds
        centre = edge + (i + 0.5) * width
        ax.bar(
            centre,
            heights.median(),
            width,
            color=look.colour,
            hatch=look.hatch,
            edgecolor=style.INK,
            linewidth=0.4,
        )
        spread = [
            (k - (len(heights) - 1) / 2) * min(0.22 * width, 0.3) for k in range(len(heights))
        ]
        ax.plot(
            [centre + s for s in spread],
            heights,
            ls="",
            marker="o",
            ms=1.9,
            mfc="white",
            mec=style.INK,
            mew=0.4,
            zorder=4,
            clip_on=False,
        )
        highest = max(highest, heights.max())
    typical = (block.points["epoch_time_s"] / seconds).median()
    ax.annotate(
        f"{typical:.3g}" + ("" if block.complete else "*"),
        (edge + block.width / 2, highest),
        (0, 2.5),
        textcoords="offset points",
        ha="center",
        va="bottom",
        size=5.2,
        annotation_clip=False,
    )


def _draw_hole(ax: plt.Axes, edge: float, block: Block) -> None:
    """A dashed box with the outcome in the place of the bars."""
    status = dominant_status(block.statuses)
    outcome = "no epoch time" if status == "completed" else style.status_label(status)
    ax.bar(
        edge + block.width / 2,
        0.74,
        block.width,
        transform=ax.get_xaxis_transform(),
        facecolor="#F6F6F6",
        edgecolor="#999999",
        linewidth=0.5,
        linestyle=(0, (2, 2)),
    )
    ax.text(
        edge + block.width / 2,
        0.37,
        f"{style.look(block.method).short}\n{outcome}",
        transform=ax.get_xaxis_transform(),
        rotation=90,
        ha="center",
        va="center",
        ma="center",
        linespacing=1.0,
        size=5.2,
    )


def _drawn(panels: dict[str, list[Block]]) -> pd.DataFrame:
    rows = []
    for workload, blocks in panels.items():
        for block in blocks:
            base = {"panel": workload, "n": block.n, "variant": block.variant}
            base["method"] = block.method
            for point in block.points.to_dict("records"):
                keys = ("member", "block", "epoch_time_s")
                rows.append(base | {k: point[k] for k in keys} | {"status": "completed"})
            missing = {s: c for s, c in block.statuses.items() if s != "completed"}
            rows += [base | {"status": s} for s, count in missing.items() for _ in range(count)]
    return pd.DataFrame(rows, columns=_COLUMNS)
