"""Step latency by workload, method and count: its median, and how far its tail reaches."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D

from analysis import style
from analysis.cells import Study
from analysis.figures import marks, not_run, slots
from analysis.figures.slots import Place, Slot
from analysis.words import fixed, significant

TITLE = "Step latency"
CAPTION = (
    "Time from the end of one training step to the end of the next, as the GPU finished them: the "
    "median (bar), the 95th percentile (dash) and the 99th (end of the line) over the steps of the "
    "window. Each is the median over members that train the same, then over replicates; the points "
    "are the replicates of the median and of the 99th percentile. Numbers are the 99th percentile "
    "above the median. Of a window with fewer than 20 steps the 95th is not shown, with fewer than "
    "100 not the 99th. In the panel of a mix each workload has a bar of its own, in the order of "
    "the title, and the unit is the median step of that workload alone."
)
_QUANTILES = ["step_ms_p50", "step_ms_p95", "step_ms_p99"]
# Steps of a window from which on they tell more than its slowest step would.
_LEAST = {"step_ms_p50": 1, "step_ms_p95": 20, "step_ms_p99": 100}
_COLUMNS = ["workload", "member", "block", "steps", *_QUANTILES]
_HIGH, _LEFT = (0.9, 1.27), 0.46  # inches: axes and line of panels, labels of the y axis
_LINE = {"color": style.INK, "lw": 0.8, "zorder": 4}
_INK = {"mfc": style.INK, "mec": style.INK, "mew": 0.2}


def draw(study: Study, arm: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and one row per member, window and replicate (ms)."""
    found = slots.panels(study, arm, ["steps", *_QUANTILES])
    none = pd.DataFrame(columns=[*slots.COLUMNS, *_COLUMNS, "status"])
    if not found:
        return style.sentence(TITLE, f"No cells in arm {arm} yet."), none
    if cells := slots.nothing(found, *_QUANTILES):
        text = f"None of the {cells} completed cells of arm {arm} holds step times."
        return style.sentence(TITLE, text), none

    table, shown = slots.drawn(found, _rows, _COLUMNS), slots.shown(found)
    if not shown:
        return style.sentence(TITLE, not_run.sentence(arm)), table

    placed = slots.layout(shown, _LEFT, lambda slot: max(len(_workloads(slot)), 1))
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "bar: median, dash: 95th, end of the line: 99th percentile of the steps of a window; "
        "numbers: 99th above median",
        [
            *slots.methods(shown, lambda slot: slot.has(*_QUANTILES)),
            Line2D([], [], ls="", marker=r"$\ddag$", ms=5.5, label="95th, 99th", **_INK),
            *slots.replicated(shown),
        ],
        placed.lines * _HIGH[1] - 0.2,
        slots.foot(study, found),
    )
    for title, places in placed.places.items():
        ax = placed.axes(fig, title, top, _LEFT, _HIGH)
        _draw_panel(ax, places, _units(shown[title]) if " + " in title else None)
    return fig, table


def _workloads(slot: Slot) -> dict[str, dict[str, list[float]]]:
    """Workload → percentile → a value per replicate, ms: the median over members alike."""
    alike: dict[str, dict[int, list[dict]]] = {}
    for row in slot.rows:
        alike.setdefault(row["workload"], {}).setdefault(row["block"], []).append(row)
    return {
        workload: {
            name: [v for rows in blocks.values() if (v := slots.middle(_told(rows, name)))]
            for name in _QUANTILES
        }
        for workload, blocks in sorted(alike.items())
    }


def _told(rows: list[dict], quantile: str) -> list[float]:
    """Its values, of windows with steps enough."""
    return slots.known([row for row in rows if row["steps"] >= _LEAST[quantile]], quantile)


def _units(found: list[Slot]) -> dict[str, float]:
    """Workload → its median step alone, ms."""
    units = {}
    for slot in found:
        if slot.n == 1:
            for workload, quantiles in _workloads(slot).items():
                units[workload] = slots.middle(quantiles["step_ms_p50"])
    return units


def _bars(slot: Slot, units: dict[str, float] | None) -> list[dict[str, list[float]]]:
    """Percentile → a value per replicate, of each workload; in `units`, without any in ms."""
    bars = []
    for workload, quantiles in _workloads(slot).items():
        unit = 1.0 if units is None else units.get(workload)
        bars.append({q: [v / unit for v in own] if unit else [] for q, own in quantiles.items()})
    return bars


def _draw_panel(ax: plt.Axes, places: list[Place], units: dict[str, float] | None) -> None:
    shown = [own for place in places for bar in _bars(place.slot, units) for own in bar.values()]
    top = max((value for own in shown for value in own), default=0.0)
    if top:
        ax.set_ylim(0, 1.45 * top)
        ax.yaxis.set_major_locator(plt.MaxNLocator(4))
        ax.set_ylabel("step (ms)" if units is None else "step (× alone)")
    else:
        ax.set_yticks([])
    for place in places:
        bars = _bars(place.slot, units)
        if not any(own for bar in bars for own in bar.values()):
            missing = "no baseline" if place.slot.has(*_QUANTILES) else "no steps"
            slots.hole(ax, place, missing)
            continue
        several, signs, ends = len(bars) > 1, place.slot.marks(), []
        for at, quantiles in zip(place.bars(len(bars)), bars, strict=True):
            _draw_bar(ax, at, quantiles, place.slot.look)
            middle, _, last = map(slots.middle, quantiles.values())
            told = [
                significant(v) if units is None else fixed(v, 1)
                for v in (last, middle)
                if v is not None
            ]
            highest = max((value for own in quantiles.values() for value in own), default=0.0)
            own = Place(place.slot, at[0] - at[1] / 2, at[1])
            slots.number(ax, own, highest, "\n".join(told if several else [signs, *told]))
            ends.append(highest)
        if several:
            slots.number(ax, place, max(ends), signs)


def _draw_bar(
    ax: plt.Axes, at: tuple[float, float], quantiles: dict[str, list[float]], look: style.Look
) -> None:
    """The percentiles of one workload in a slot; at: centre and width."""
    middle, late, last = map(slots.middle, quantiles.values())
    if middle is not None:
        slots.bar(ax, at, middle, look)
    end = late if last is None else last
    if middle is not None and end is not None:
        marks.strokes(ax, [at[0]] * 2, [middle, end], **_LINE)
    for value, wide in ((late, 0.4), (last, 0.6)):
        if value is not None:
            ends = at[0] - wide * at[1] / 2, at[0] + wide * at[1] / 2
            marks.strokes(ax, ends, [value] * 2, **_LINE)
    for name in ("step_ms_p50", "step_ms_p99"):
        slots.points(ax, at, quantiles[name])


def _rows(slot: Slot) -> list[dict]:
    return [{key: row[key] for key in _COLUMNS} for row in slot.rows]
