"""GPU memory against the card's: what the members' allocators held, and what was in use in all."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import style
from analysis.cells import Study
from analysis.figures import marks, not_run, reported_marks, slots
from analysis.figures.slots import Place, Slot
from analysis.words import percent, significant

TITLE = "GPU memory"
CAPTION = (
    "Memory of the set, a segment per member: the most that torch's allocator reserved over the "
    "whole run, the search for fast kernels in warm-up included; median over replicates. The data "
    "set that is kept on the device, which the paper's jobs read from files, stands apart on top "
    "(white). The thick line is what the card had in use, mean over the window, with what CUDA and "
    "anybody else took; the numbers say it in GB (1e9 B) and in per cent of the card's capacity, a "
    "dashed line where it lies within the panel. Peaks need not coincide in time, so a stack may "
    "stand above what was in use. Cells that ran out of memory have no bar. Hollow marks are "
    "reported, of an A100 with 42.9 GB."
)
GB = 1e9
_MEASURED = ["memory_peak_reserved", "gpu_memory_used"]
_COLUMNS = ["member", "block", "reserved_gb", "resident_gb", "used_gb", "capacity_gb"]
_COLUMNS += ["reported_source", "reported_gb"]
_HIGH, _LEFT = (0.95, 1.33), 0.46  # inches: axes and line of panels, labels of the y axis
_HEADROOM = 1.42  # for three lines of numbers
_FARTHEST = 2.0  # a capacity above so many times the data is off the axis, unless it was hit
_USED = {"color": style.INK, "lw": 1.4, "solid_capstyle": "butt"}
_BEHIND = {"color": "white", "lw": 2.6, "solid_capstyle": "butt"}
_EDGES = [  # of a member in a stack
    {"color": colour, "lw": width, "zorder": zorder, "solid_capstyle": "butt"}
    for colour, width, zorder in (("white", 1.2, 2), (style.INK, 0.4, 2.1))
]
_CAPACITY = {"color": style.INK, "lw": 0.9, "ls": (0, (5, 2))}


def draw(study: Study, arm: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and a row per member and replicate, and one per replicate of
    the card (`member` is null), in GB (1e9 B). reserved_gb has the resident data within it.
    """
    columns = [*_MEASURED, "resident_bytes", "gpu_memory_total"]
    found = slots.panels(study, arm, columns, departures=False)
    none = pd.DataFrame(columns=[*slots.COLUMNS, *_COLUMNS, "status"])
    if not found:
        return style.sentence(TITLE, f"No cells in arm {arm} yet."), none
    if cells := slots.nothing(found, *_MEASURED):
        text = f"GPU memory is known of none of the {cells} completed cells of arm {arm}."
        return style.sentence(TITLE, text), none

    reported = reported_marks.values(study, arm, "memory")
    table = slots.drawn(found, lambda slot: _rows(slot, reported), _COLUMNS)
    shown = slots.shown(found)
    if not shown:
        return style.sentence(TITLE, not_run.sentence(arm)), table

    capacity = _capacity(shown)
    placed = slots.layout(shown, _LEFT)
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "stack: peak that each member reserved; line: what the card had in use in the window; "
        "numbers: the latter, GB and % of capacity",
        [
            *slots.methods(shown, lambda slot: slot.has("memory_peak_reserved")),
            *_handles(capacity),
            *slots.replicated(shown),
            *reported_marks.handles(shown, reported, {}),
        ],
        placed.lines * _HIGH[1] - 0.2,
        slots.foot(study, found),
    )
    for title, places in placed.places.items():
        ax = placed.axes(fig, title, top, _LEFT, _HIGH)
        _draw_panel(ax, places, capacity, reported)
    return fig, table


def _peaks(slot: Slot) -> dict[int, tuple[float, float]]:
    """Member → median peak and median resident data in GB; empty unless all peaks are known."""
    rows: dict[int, list[dict]] = {}
    for row in slot.rows:
        rows.setdefault(int(row["member"]), []).append(row)
    found = {}
    for member, own in sorted(rows.items()):
        peak = slots.middle(slots.known(own, "memory_peak_reserved"))
        if peak is None:
            return {}
        resident = slots.middle(slots.known(own, "resident_bytes")) or 0.0
        found[member] = peak / GB, resident / GB
    return found


def _totals(slot: Slot) -> list[float]:
    """The sum of the members' peaks of each replicate in which all are known, GB."""
    sums: dict[int, float] = {}
    for row in slot.rows:
        sums[row["block"]] = sums.get(row["block"], 0.0) + row["memory_peak_reserved"] / GB
    return [total for total in sums.values() if pd.notna(total)]


def _used(slot: Slot) -> float | None:
    """What the card had in use, GB: median over replicates."""
    used = slots.middle(slots.known(slot.cells, "gpu_memory_used"))
    return None if used is None else used / GB


def _capacity(found: slots.Panels) -> float | None:
    """Of the card, GB; None where it is not known."""
    rows = [row for own in found.values() for slot in own for row in slot.rows]
    known = slots.known(rows, "gpu_memory_total")
    return max(known) / GB if known else None


def _draw_panel(
    ax: plt.Axes, places: list[Place], capacity: float | None, reported: reported_marks.Values
) -> None:
    here = [place.slot for place in places]
    values = [high for slot in here for _, _, high in reported_marks.of(slot, reported)]
    values += [value for slot in here for value in (*_totals(slot), _used(slot)) if value]
    top = max(values, default=0.0)
    hit = any("out_of_memory" in slot.statuses for slot in here)
    if capacity and (hit or capacity <= _FARTHEST * top):
        ax.axhline(capacity, zorder=2, **_CAPACITY)
        top = max(top, capacity)
    if top:
        ax.set_ylim(0, _HEADROOM * top)
        ax.yaxis.set_major_locator(plt.MaxNLocator(4))
        ax.set_ylabel("GB")
    else:
        ax.set_yticks([])
    for place in places:
        _draw_slot(ax, place, capacity)
        reported_marks.draw(ax, place, reported, 1)


def _draw_slot(ax: plt.Axes, place: Place, capacity: float | None) -> None:
    slot = place.slot
    if not slot.has(*_MEASURED):
        slots.hole(ax, place, "not known")
        return
    highest = _draw_stack(ax, place, list(_peaks(slot).values()))
    slots.points(ax, (place.centre, place.width), _totals(slot))
    used, told = _used(slot), [slot.marks()]
    if used is not None:
        aside = 0.12 * place.width
        ends = place.left - aside, place.left + place.width + aside
        marks.strokes(ax, ends, [used] * 2, zorder=5, **_BEHIND)
        marks.strokes(ax, ends, [used] * 2, zorder=5.1, **_USED)
        told.append(significant(used))
        told += [f"{percent(used / capacity)} %"] if capacity else []
    slots.number(ax, place, max(highest, used or 0.0), "\n".join(told))


def _draw_stack(ax: plt.Axes, place: Place, peaks: list[tuple[float, float]]) -> float:
    """The members' peaks, and their resident data on top; returns where it ends, GB."""
    at, look, level = (place.centre, place.width), place.slot.look, 0.0
    own = sum(peak - resident for peak, resident in peaks)
    if peaks:
        slots.bar(ax, at, own, look)
    for peak, resident in peaks[:-1]:
        level += peak - resident
        # Edges that show on a dark colour as on a pale one.
        for edge in _EDGES:
            marks.strokes(ax, (place.left, place.left + place.width), [level] * 2, **edge)
    data = sum(resident for _, resident in peaks)
    if data:
        marks.box(ax, (place.left, own), place.width, data, fc="white", ec=style.INK, lw=0.4)
    return own + data


def _handles(capacity: float | None) -> list:
    entries = [
        Patch(fc="white", ec=style.INK, lw=0.5, label="data kept on the device"),
        Line2D([], [], label="in use on the card", **_USED),
    ]
    if capacity:
        said = f"capacity of the card, {significant(capacity, 4)} GB"
        entries.append(Line2D([], [], label=said, **_CAPACITY))
    return entries


def _rows(slot: Slot, reported: reported_marks.Values) -> list[dict]:
    rows = [
        {
            "member": row["member"],
            "block": row["block"],
            "reserved_gb": row["memory_peak_reserved"] / GB,
            "resident_gb": row["resident_bytes"] / GB,
        }
        for row in slot.rows
    ]
    rows += [
        {
            "block": row["block"],
            "used_gb": row["gpu_memory_used"] / GB,
            "capacity_gb": row["gpu_memory_total"] / GB,
        }
        for row in slot.cells
    ]
    for source, value, _ in reported_marks.of(slot, reported):
        rows.append({"reported_source": source, "reported_gb": value, "status": "reported"})
    return rows
