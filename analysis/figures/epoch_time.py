"""The paper's F3: epoch time per instance by method and count, a panel per workload.

One bar per collocated instance (median over replicates), every replicate a point, grouped
1×/2×/3×/7× with the serial bar (N × alone); a group stands at the same place in every panel.
Groups of another variant (whole epochs, input from files, all cores) stand behind the default
ones. Mixes are not comparable bar by bar and are left to the throughput figure, as are
departures; so are workloads that were only measured alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import matplotlib.pyplot as plt
import pandas as pd

from analysis import flags, style
from analysis.cells import Study, dominant_status, small_first
from analysis.figures import marks, not_run
from analysis.names import method_order, parse_scenario
from analysis.words import significant

TITLE = "Epoch time per instance"
CAPTION = (
    "The paper's F3: time of one epoch of the nominal training set, by number of collocated "
    "instances and method. Every bar is an instance (median over replicates, each of which is a "
    "point), from its throughput in the window, or from whole epochs where the group says so; the "
    "number above is the median over instances and replicates. Serial is N times the job alone, "
    "computed: a method whose bars are lower gains throughput. A dashed box says how a set of jobs "
    "ended that gave no time."
)
_COLUMNS = ["panel", "n", "variant", "method", "member", "block", "epoch_time_s", "status"]
_UNITS = ((3 * 3600.0, 3600.0, "h"), (300.0, 60.0, "min"), (0.0, 1.0, "s"))
_PANEL, _GAP = 1.05, 0.45  # inches
_LABEL = 5.0  # points
# Units of the x axis: a single bar, an outcome in its place, between the methods of a group,
# between groups, and the least that a panel spans.
_BAR, _HOLE, _BESIDE, _APART, _NARROWEST = 2.0, 1.3, 0.35, 1.8, 20.0
_LEFT, _RIGHT = 0.48, 0.08  # inches beside the axes


@dataclass
class Block:
    """The bars of one method at one count: `points` has a row per member and replicate."""

    n: int
    variant: str
    method: str
    look: style.Look
    points: pd.DataFrame
    statuses: dict[str, int] = field(default_factory=dict)
    flags: str = ""

    @property
    def group(self) -> tuple[str, int]:
        return self.variant, self.n

    @cached_property
    def members(self) -> list[int]:
        return sorted(self.points["member"].unique())

    @property
    def width(self) -> float:
        """Grows slower than the number of bars, so that seven do not crush the others."""
        return _BAR * len(self.members) ** 0.3 if self.members else _HOLE

    @property
    def complete(self) -> bool:
        return set(self.statuses) <= {"completed"}


def draw(study: Study, arm: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and one row per point, or per status without one."""
    cells, runs = study.drawn(arm)
    cells = cells[~cells["mixed"] & ~cells["variant"].str.contains("departure").astype(bool)]
    looks = style.looks(study.cells["method"], study.runs)
    collocated = set(cells.loc[cells["n"] > 1, "family"]) or set(cells["family"])
    cells = cells[cells["family"].isin(collocated)]
    points = _points(runs)
    panels = {w: _blocks(cells[cells["family"] == w], points, looks) for w in small_first(cells)}
    if not panels:
        text = f"No cells of equal members in arm {arm} yet."
        return style.sentence(TITLE, text), pd.DataFrame(columns=_COLUMNS)

    drawn, absent = _drawn(panels), not_run.untouched(cells, ["family"])
    panels = {w: panel for w, panel in panels.items() if w not in set(absent["family"])}
    if not panels:
        return style.sentence(TITLE, not_run.sentence(arm)), drawn

    blocks = [b for panel in panels.values() for b in panel]
    methods = sorted({b.method for b in blocks if len(b.points)}, key=method_order)
    partial = not all(b.complete for b in blocks if len(b.points))
    note = marks.FEWER if partial else ""
    shown = runs[runs["scenario"].isin(cells["scenario"])]
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "one bar per collocated instance: its median over replicates; "
        "number: median over instances and replicates",
        [*(style.swatch(looks[m]) for m in methods), style.replicate_point()],
        len(panels) * (_PANEL + _GAP) - 0.15,
        [*style.footer_parts(shown), note, study.note, not_run.phrase(absent["scenario"])],
    )
    layouts, right = _layouts(panels)
    for i, (workload, panel) in enumerate(panels.items()):
        width = style.PAGE_WIDTH - _LEFT - _RIGHT
        place = (_LEFT, top + i * (_PANEL + _GAP), width, _PANEL)
        ax = style.place(fig, *place)
        ax.set_xlim(-0.8, right + 0.8)
        _draw_panel(ax, workload, panel, layouts[workload])
    return fig, drawn


def _points(runs: pd.DataFrame) -> dict[tuple | None, pd.DataFrame]:
    """Scenario and method → the times there are; None: without any."""
    runs = runs[(runs["status"] == "completed") & runs["epoch_time_s"].notna()]
    runs = runs[["scenario", "method", "member", "block", "epoch_time_s"]]
    return {None: runs.iloc[:0], **dict(iter(runs.groupby(["scenario", "method"])))}


def _blocks(
    cells: pd.DataFrame, points: dict[tuple | None, pd.DataFrame], looks: dict[str, style.Look]
) -> list[Block]:
    """The blocks of one workload, in drawing order, with serial blocks for N > 1."""
    blocks = []
    for (scenario, method), group in cells.groupby(["scenario", "method"]):
        parsed = parse_scenario(scenario)
        statuses = group["status"].value_counts().to_dict()
        marked = flags.union(group["flags"])
        place = (parsed.n, parsed.variant, method)
        own = points.get((scenario, method), points[None])
        blocks.append(Block(*place, looks[method], own, statuses, marked))
    blocks += [_serial(blocks, *group, looks["serial"]) for group in {b.group for b in blocks}]
    blocks = [block for block in blocks if block is not None]
    return sorted(blocks, key=lambda b: (*b.group, method_order(b.method)))


def _serial(blocks: list[Block], variant: str, n: int, look: style.Look) -> Block | None:
    """N times the job alone of the same variant; None for one job, and where neither that nor
    anything to hold against it was measured.
    """
    beside = [b for b in blocks if b.group == (variant, n) and len(b.points)]
    alone = [b for b in blocks if b.group == (variant, 1) and b.method == "naive" and len(b.points)]
    if n == 1 or not (alone or beside):
        return None
    if not alone:
        return Block(n, variant, "serial", look, beside[0].points.iloc[:0], {"no_baseline": 1})
    points = alone[0].points
    times = points.assign(epoch_time_s=n * points["epoch_time_s"])
    return Block(n, variant, "serial", look, times, flags=alone[0].flags)


def _layouts(panels: dict[str, list[Block]]) -> tuple[dict[str, dict[tuple, float]], float]:
    """Workload → centre of each group; and where the widest panel ends."""
    right, letter = _NARROWEST, 0.0
    for _ in range(3):  # how many units a letter takes depends on how many the axis has
        common = _common_widths(panels, letter)
        found = {w: _layout(blocks, common, letter) for w, blocks in panels.items()}
        right = max([_NARROWEST, *(end for _, end in found.values())])
        inches = (style.PAGE_WIDTH - _LEFT - _RIGHT) / (right + 1.6)
        letter = style.text_width("x", style.SMALL) / inches
    return {w: centres for w, (centres, _) in found.items()}, right


def _common_widths(panels: dict[str, list[Block]], letter: float) -> dict[tuple, float]:
    """Groups of the default variant → width in the widest panel, by count."""
    groups = {b.group for blocks in panels.values() for b in blocks if not b.variant}
    return {g: max(_width(own, g, letter) for own in panels.values()) for g in sorted(groups)}


def _layout(
    blocks: list[Block], common: dict[tuple, float], letter: float
) -> tuple[dict[tuple, float], float]:
    """Centre of each group of a panel, those in `common` as in every panel; and the right end."""
    own = sorted({b.group for b in blocks})
    last = max((g for g in own if g in common), default=("", 0))
    groups = [g for g in common if g <= last] + [g for g in own if g not in common]
    centres, right = {}, -_APART
    for group in groups:
        width = common.get(group) or _width(blocks, group, letter)
        centres[group] = right + _APART + width / 2
        right += _APART + width
    return centres, right


def _width(blocks: list[Block], group: tuple, letter: float) -> float:
    """Of the group's bars, or of the word below them, of which a letter is so wide."""
    return max(_bars(blocks, group), letter * len(group[0]) - _APART / 2)


def _bars(blocks: list[Block], group: tuple) -> float:
    widths = [b.width for b in blocks if b.group == group]
    return sum(widths) + _BESIDE * (len(widths) - 1)


def _draw_panel(ax: plt.Axes, workload: str, blocks: list[Block], centres: dict) -> None:
    top = max((b.points["epoch_time_s"].max() for b in blocks if len(b.points)), default=0.0)
    _, seconds, unit = next(u for u in _UNITS if top >= u[0])
    groups = sorted({b.group for b in blocks})
    if top:
        ax.set_ylim(0, top / seconds * 1.4)
        ax.yaxis.set_major_locator(plt.MaxNLocator(4))
        ax.set_ylabel(f"epoch time ({unit})")
    else:
        ax.set_yticks([])
    for group in groups:
        edge = centres[group] - _bars(blocks, group) / 2
        for block in (b for b in blocks if b.group == group):
            if len(block.points):
                _draw_bars(ax, edge, block, seconds)
            else:
                _draw_hole(ax, edge, block)
            edge += block.width + _BESIDE
    ax.set_xticks(
        [centres[group] for group in groups],
        ["\n".join(filter(None, (f"{n}×", variant))) for variant, n in groups],
    )
    ax.tick_params(axis="x", length=0, labelsize=style.SMALL)
    ax.set_title(workload, loc="left", weight="bold", pad=3)


def _draw_bars(ax: plt.Axes, edge: float, block: Block, seconds: float) -> None:
    look, members = block.look, block.members
    width = block.width / len(members)
    highest = 0.0
    points = block.points.sort_values("block")
    heights: dict[int, list[float]] = {}
    for member, height in zip(points["member"], points["epoch_time_s"] / seconds, strict=True):
        heights.setdefault(member, []).append(height)
    for i, member in enumerate(members):
        values, centre = heights[member], edge + (i + 0.5) * width
        marks.filled(ax, centre, width, median(values), look)
        marks.replicates(ax, centre, width, values)
        highest = max(highest, *values)
    typical = median(value for values in heights.values() for value in values)
    number = significant(typical, 3 if typical >= 1 else 2)
    label = f"{'' if block.complete else '*'}{flags.marks(block.flags)}\n{number}".strip()
    marks.above(ax, (edge + block.width / 2, highest), label, _LABEL)


def _draw_hole(ax: plt.Axes, edge: float, block: Block) -> None:
    """A dashed box with the outcome in the place of the bars."""
    status = dominant_status(block.statuses)
    outcome = "no epoch time" if status == "completed" else style.status_label(status)
    size = min(_LABEL, marks.inches(ax, block.width) * 72 / 1.2)
    marks.hole(ax, edge + block.width / 2, block.width, f"{block.look.short} {outcome}", size)


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
