"""A page of panels, one per workload or mix: counts along the x axis, and a slot for each method.

A group of slots stands at the same place in every panel; groups of another variant (whole epochs,
input from files, all cores) stand behind. In the panel of a mix `2+1` means two jobs of the first
workload in its title and one of the second, and `1+0` the first one alone. Lengths on the x axis
are inches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import matplotlib.pyplot as plt
import pandas as pd

from analysis import flags, style
from analysis.cells import Study, dominant_status, small_first
from analysis.figures import marks, not_run
from analysis.names import AFTER, method_order, parse_scenario, told_window

COLUMNS = ["panel", "scenario", "n", "variant", "window", "method"]
TEXT, _SMALLEST = 5.0, 4.5  # points: of numbers, and where slots are narrow
# Inches before a page is stretched or squeezed: a bar, between slots, between groups, the margin.
_BAR, _BESIDE, _APART, _MARGIN = 0.17, 0.05, 0.22, 0.06
_RIGHT = 0.05
_WIDEST = 2.6
_OF_A_CELL = ["scenario", "method", "family", "block", "status", "flags", "window"]


@dataclass(frozen=True)
class Slot:
    """A method of one set of jobs, in one window.

    group: sort key of its place, and label what stands below it. statuses: outcome → cells. rows:
    the members (of runs.parquet) in the window of completed cells, by block; none where none
    completed. What is missing in them is NaN or None.
    """

    scenario: str
    method: str
    window: str | None
    look: style.Look
    group: tuple
    label: str
    statuses: dict[str, int]
    flags: str
    rows: list[dict]

    @property
    def n(self) -> int:
        return parse_scenario(self.scenario).n

    @property
    def variant(self) -> str:
        return parse_scenario(self.scenario).variant

    @property
    def base(self) -> dict:
        """What each of its rows in the drawn data begins with, but the panel."""
        return {name: getattr(self, name) for name in COLUMNS[1:]}

    @property
    def cells(self) -> list[dict]:
        """A row per completed cell: the first of its members."""
        return list({row["block"]: row for row in reversed(self.rows)}.values())[::-1]

    def has(self, *columns: str) -> bool:
        """Whether anything is known of one of these."""
        return any(pd.notna(row[column]) for row in self.rows for column in columns)

    def outcome(self, missing: str) -> str:
        """What stands in the place of a value; `missing` where a cell completed without one."""
        status = dominant_status(self.statuses)
        return missing if status == "completed" else style.status_label(status)

    def marks(self) -> str:
        """`*` where not every replicate completed, and the marks of its flags."""
        partial = self.rows and set(self.statuses) != {"completed"}
        return ("*" if partial else "") + flags.marks(self.flags)


Panels = dict[str, list[Slot]]


def known(rows: list[dict], column: str) -> list[float]:
    """The values of a column, less what is missing."""
    return [float(row[column]) for row in rows if pd.notna(row[column])]


def middle(values: list[float]) -> float | None:
    """Their median; None of none."""
    return median(values) if values else None


def panels(study: Study, arm: str, columns: list[str], departures: bool = True) -> Panels:
    """Title → slots in drawing order, workloads with short epochs first, mixes last.

    columns: those of runs.parquet that rows have, besides `cell`, `block`, `member` and
    `workload`. Workloads that were only measured alone have no panel where any was collocated; the
    panel of a mix begins with its jobs alone.
    """
    cells, runs = study.drawn(arm)
    if not departures:
        cells = cells[~cells["variant"].str.contains("departure").astype(bool)]
    rows: dict[tuple, list[dict]] = {}
    wanted = dict.fromkeys(["cell", "block", "member", "workload", *columns])
    done = runs[runs["status"] == "completed"].sort_values(["block", "member"], kind="stable")
    places = done[["scenario", "method", "window"]].itertuples(index=False, name=None)
    for place, row in zip(
        places, done.reindex(columns=list(wanted)).to_dict("records"), strict=True
    ):
        rows.setdefault(place, []).append(row)
    looks = style.looks(study.cells["method"], study.runs)
    families = set(cells.loc[cells["n"] > 1, "family"]) or set(cells["family"])
    order = [family for family in small_first(cells) if family in families]
    by_set: dict[tuple, list[dict]] = {}  # plain rows: a frame for each set takes far longer
    for cell in cells[_OF_A_CELL].to_dict("records"):
        by_set.setdefault((cell["scenario"], cell["method"]), []).append(cell)
    found = {}
    for family in sorted(order, key=lambda family: "+" in family):
        names = family.split("+")
        alone = [(f"1x_{name}", "naive") for name in names] if len(names) > 1 else []
        slots = [
            slot
            for (scenario, method), own in sorted(by_set.items())
            if own[0]["family"] == family or (scenario, method) in alone
            for slot in _slots(scenario, names, looks[method], method, own, rows)
        ]
        found[" + ".join(names)] = sorted(slots, key=lambda s: (s.group, method_order(s.method)))
    return found


def shown(found: Panels) -> Panels:
    """The panels of which any cell was run."""
    return {title: found[title] for title, own in _own(found).items() if _ran(own)}


def _ran(slots: list[Slot]) -> bool:
    return not_run.ran(status for slot in slots for status in slot.statuses)


def _own(found: Panels) -> Panels:
    """Panels without the slots that stand in another one too: jobs alone, in that of a mix."""

    def home(slot: Slot) -> str:
        return parse_scenario(slot.scenario).family.replace("+", " + ")

    return {
        title: [slot for slot in slots if home(slot) == title or home(slot) not in found]
        for title, slots in found.items()
    }


def _slots(
    scenario: str,
    names: list[str],
    look: style.Look,
    method: str,
    cells: list[dict],
    rows: dict[tuple, list[dict]],
) -> list[Slot]:
    """A scenario's slots of one method: one per window, or one without."""
    parsed = parse_scenario(scenario)
    parts = dict(parsed.parts)
    counts = [parts.get(name, 0) for name in names]
    count = "+".join(map(str, counts)) if len(names) > 1 else f"{parsed.n}×"
    by_block: dict[int, str] = {}
    for cell in cells:
        by_block.setdefault(cell["block"], cell["status"])
    statuses = dict(Counter(by_block.values()).most_common())
    marked = flags.union(cell["flags"] for cell in cells)
    slots = []
    windows = dict.fromkeys(cell["window"] for cell in cells if pd.notna(cell["window"]))
    for window in windows or [None]:
        told = told_window(window) or parsed.variant
        group = parsed.variant, parsed.n, tuple(-count for count in counts), window == AFTER
        label = f"{count}\n{told}" if told else count
        place = scenario, method, window
        there = rows.get(place, [])
        slots.append(Slot(*place, look, group, label, statuses, marked, there))
    return slots


# -- where it stands ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A slot with its left edge and width on the x axis, in inches."""

    slot: Slot
    left: float
    width: float

    @property
    def centre(self) -> float:
        return self.left + self.width / 2

    def bars(self, count: int) -> list[tuple[float, float]]:
        """Centre and width of so many bars side by side."""
        width = self.width / count
        return [(self.left + (i + 0.5) * width, width) for i in range(count)]


@dataclass(frozen=True)
class Layout:
    """Where the slots of each panel stand, and the panels on the page.

    width: of a panel, inches. places, ticks: by panel; a tick is (where, what it says).
    """

    width: float
    across: int
    places: dict[str, list[Place]]
    ticks: dict[str, list[tuple[float, str]]]
    tick_size: float

    @property
    def lines(self) -> int:
        """Panels below each other."""
        return -(-len(self.places) // self.across)

    def axes(self, fig: plt.Figure, title: str, top: float, left: float, high: tuple) -> plt.Axes:
        """A panel's axes. left: inches for the labels of its y axis; high: of axes and line."""
        line, column = divmod(list(self.places).index(title), self.across)
        at = (left + column * (self.width + left), top + line * high[1])
        ax = style.place(fig, *at, self.width, high[0])
        ax.set_xlim(0, self.width)
        ax.set_xticks([x for x, _ in self.ticks[title]], [text for _, text in self.ticks[title]])
        ax.tick_params(axis="x", length=0, labelsize=self.tick_size)
        ax.set_title(title, loc="left", weight="bold", pad=3)
        return ax


def layout(
    found: Panels, left: float, bars: Callable[[Slot], int] = lambda slot: 1, most_across: int = 2
) -> Layout:
    """Place all slots: two panels side by side where they fit.

    left: inches that the labels of a y axis take; bars: how many a slot has.
    """

    def wide(slot: Slot) -> float:
        # Slower than the number of bars, so that seven do not crush the others.
        return _BAR * max(bars(slot), 1) ** 0.55

    groups: dict[str, dict[tuple, list[Slot]]] = {}
    for title, slots in found.items():
        for slot in slots:
            groups.setdefault(title, {}).setdefault(slot.group, []).append(slot)
    needed = {title: {g: _needed(s, wide) for g, s in own.items()} for title, own in groups.items()}
    common: dict[tuple, float] = {}
    for title, own in needed.items():
        for group in (group for group in own if _is_common(title, group)):
            common[group] = max(common.get(group, 0.0), own[group])
    lines = {title: _line(title, own, common) for title, own in needed.items()}
    longest = max(sum(line.values()) + _APART * (len(line) - 1) for line in lines.values())
    for across in range(min(most_across, len(found)), 0, -1):
        width = (style.PAGE_WIDTH - _RIGHT) / across - left
        scale = min((width - 2 * _MARGIN) / longest, _WIDEST)
        if scale >= 1:
            break
    places: dict[str, list[Place]] = {}
    ticks: dict[str, list[tuple[float, str]]] = {}
    for title, line in lines.items():
        edge, places[title], ticks[title] = _MARGIN, [], []
        for group, inches in line.items():
            slots = groups[title].get(group, [])
            used = sum(map(wide, slots)) + _BESIDE * (len(slots) - 1)
            at = edge + scale * (inches - used) / 2
            for slot in slots:
                places[title].append(Place(slot, at, scale * wide(slot)))
                at += scale * (wide(slot) + _BESIDE)
            if slots:
                ticks[title].append((edge + scale * inches / 2, slots[0].label))
            edge += scale * (inches + _APART)
    return Layout(width, across, places, ticks, min(style.SMALL, scale * style.SMALL))


def _is_common(title: str, group: tuple) -> bool:
    """Whether a group stands at the same place in other panels: of a workload's default variant."""
    return " + " not in title and not group[0]


def _needed(slots: list[Slot], wide: Callable[[Slot], float]) -> float:
    """Inches of a group: of its slots, or of what stands below it."""
    label = max(style.text_width(line, style.SMALL) for line in slots[0].label.split("\n"))
    return max(sum(map(wide, slots)) + _BESIDE * (len(slots) - 1), label - _APART / 2)


def _line(title: str, own: dict[tuple, float], common: dict[tuple, float]) -> dict[tuple, float]:
    """Group → inches, in order: up to a panel's last common group all of these, then its own."""
    last = max((group for group in own if _is_common(title, group)), default=None)
    shared = {g: common[g] for g in sorted(common) if last is not None and g <= last}
    return shared | {g: own[g] for g in sorted(own) if g not in shared}


# -- drawing --------------------------------------------------------------------------------------


def bar(ax: plt.Axes, at: tuple[float, float], height: float, look: style.Look) -> None:
    """A bar of a method; at: its centre and width."""
    marks.filled(ax, *at, height, look)


def points(ax: plt.Axes, at: tuple[float, float], values: list[float]) -> None:
    """Replicates side by side within a bar; a single one is the bar itself."""
    if len(values) > 1:
        marks.replicates(ax, *at, values)


def number(ax: plt.Axes, place: Place, height: float, text: str) -> None:
    """Text above a slot, smaller where that is narrow, and higher where it would hide another's;
    lines behind it are interrupted.
    """
    if text := text.strip():
        around = {"fc": "white", "ec": "none", "pad": 0.2}
        size = TEXT * min(1.0, 72 * place.width / marks.extent(text, TEXT)[0])
        at, size = (place.centre, height), max(_SMALLEST, size)
        marks.above(ax, at, text, size, zorder=7, bbox=around)


def hole(ax: plt.Axes, place: Place, missing: str) -> None:
    """The outcome of a slot without a value; `missing` where a cell completed without one."""
    said = f"{place.slot.look.short}\n{place.slot.outcome(missing)}"
    marks.hole(ax, place.centre, place.width, said, min(TEXT, place.width * 72 / 2.4))


def methods(found: Panels, drawn: Callable[[Slot], bool]) -> list:
    """Legend entries of the methods of which something is drawn."""
    shown = {s.method: s.look for slots in found.values() for s in slots if drawn(s)}
    return [style.swatch(shown[m]) for m in sorted(shown, key=method_order)]


def replicated(found: Panels) -> list:
    """A legend entry for replicates, where a slot has several."""
    several = any(len(slot.cells) > 1 for slots in found.values() for slot in slots)
    return [style.replicate_point()] if several else []


def foot(study: Study, found: Panels) -> list[str]:
    """What the footer says: of the runs that are shown, the study's note, and what was not run."""
    panels = shown(found)
    slots = [slot for own in panels.values() for slot in own]
    cells = {row["cell"] for slot in slots for row in slot.rows}
    partial = any("*" in slot.marks() for slot in slots)
    absent = (own for title, own in _own(found).items() if title not in panels)
    return [
        *style.footer_parts(study.runs[study.runs["cell"].isin(cells)]),
        marks.FEWER if partial else "",
        "a+b: jobs of each workload of a mix" if any(" + " in title for title in panels) else "",
        study.note,
        not_run.phrase(slot.scenario for own in absent for slot in own),
    ]


def nothing(found: Panels, *columns: str) -> int:
    """How many cells completed, where none of them has anything in these columns; else 0."""
    slots = [slot for own in found.values() for slot in own]
    if any(slot.has(*columns) for slot in slots):
        return 0
    return len({row["cell"] for slot in slots for row in slot.rows})


def drawn(found: Panels, rows: Callable[[Slot], list[dict]], columns: list[str]) -> pd.DataFrame:
    """The table beside a figure: `rows` of each slot, and one per cell that did not complete.

    Rows are `completed` unless they have a status of their own.
    """
    table = []
    for title, slots in found.items():
        for slot in slots:
            base = {"panel": title} | slot.base
            table += [base | {"status": "completed"} | row for row in rows(slot)]
            missing = {s: c for s, c in slot.statuses.items() if s != "completed"}
            table += [base | {"status": s} for s, count in missing.items() for _ in range(count)]
    return pd.DataFrame(table, columns=[*COLUMNS, *columns, "status"])
