"""The paper's F4: how busy the GPU was, by workload, method and count.

Four answers to one question in a slot: GRACT (an engine was active) is the bar of the method,
SMACT (SMs that had a warp) the white bar within, SMOCC (resident warps over the most that fit) a
line across it, DRAMA (memory interface active) a diamond.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import style
from analysis.cells import Study
from analysis.figures import marks, not_run, reported_marks, slots
from analysis.figures.slots import Place, Slot
from analysis.words import percent

TITLE = "GPU activity"
CAPTION = (
    "Share of the window in which the GPU was active, by four counters (DCGM's names): GRACT, a "
    "graphics or compute engine was active (coloured bar); SMACT, an SM had a warp, mean over SMs "
    "(white bar); SMOCC, resident warps over the most that fit (line); DRAMA, the memory interface "
    "moved data (diamond). Bars are medians over replicates, each a point; the numbers above are "
    "GRACT and SMACT of the whole card, under MIG the mean over instances weighted by their SMs, "
    "where each instance has a bar of its own if it was read. A coloured bar much higher than the "
    "white one within is a GPU that looks busy and is not. Hollow marks are reported GPU "
    "utilisation, of an A100: LEC22 does not state the batch, and that it is GRACT is inferred; "
    "SLIDES does not state the counter; under MIG they are per instance."
)
_METRICS = ["gract", "smact", "smocc", "drama"]
_INSTANCE = {f"{metric}_instance": metric for metric in _METRICS}
_COLUMNS = ["instance", "block", *_METRICS, "reported_source", "reported_low", "reported_high"]
_OF_REPORTED = {"LEC22": "; batch not stated", "SLIDES": "; counter not stated"}
_HIGH, _LEFT = (0.85, 1.22), 0.46  # inches: axes and line of panels, labels of the y axis
_INSET = 0.56  # width of SMACT's bar over GRACT's
_DIAMOND = {"ls": "", "marker": "D", "ms": 2.8, "mfc": style.INK, "mec": "white", "mew": 0.3}
_DIAMOND |= {"zorder": 5}
_WITHIN = {"fc": "white", "ec": style.INK, "lw": 0.5, "zorder": 1.1}  # above all of GRACT


def draw(study: Study, arm: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and one row per slot and replicate (shares, 0 to 1).

    `instance` counts a cell's MIG instances in the order of its members, null is the whole card.
    """
    found = slots.panels(study, arm, ["entity", *_METRICS, *_INSTANCE])
    none = pd.DataFrame(columns=[*slots.COLUMNS, *_COLUMNS, "status"])
    if not found:
        return style.sentence(TITLE, f"No cells in arm {arm} yet."), none
    if cells := slots.nothing(found, *_METRICS):
        text = f"GPU activity was read in none of the {cells} completed cells of arm {arm}."
        return style.sentence(TITLE, text), none

    reported = reported_marks.values(study, arm, "gpu_util")
    table = slots.drawn(found, lambda slot: _rows(slot, reported), _COLUMNS)
    shown = slots.shown(found)
    if not shown:
        return style.sentence(TITLE, not_run.sentence(arm)), table

    placed = slots.layout(shown, _LEFT, lambda slot: max(len(_instances(slot)), 1))
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "share of the window; numbers: GRACT above SMACT of the whole card in per cent, median "
        "over replicates",
        [
            *slots.methods(shown, _seen),
            *_handles(),
            *slots.replicated(shown),
            *reported_marks.handles(shown, reported, _OF_REPORTED),
        ],
        placed.lines * _HIGH[1] - 0.2,
        slots.foot(study, found),
    )
    for title, places in placed.places.items():
        ax = placed.axes(fig, title, top, _LEFT, _HIGH)
        ax.set_ylim(0, 140)
        ax.set_yticks([0, 25, 50, 75, 100])
        ax.spines["left"].set_bounds(0, 100)
        ax.set_ylabel("share (%)", y=0.36)
        for place in places:
            _draw_slot(ax, place)
            reported_marks.draw(ax, place, reported, 100)
    return fig, table


def _seen(slot: Slot) -> bool:
    return slot.has(*_METRICS)


def _instances(slot: Slot) -> list[list[dict]]:
    """Of each MIG instance a row per replicate; none where that is not known.

    Instances have other ids in each cell: they are told apart by the first of their members.
    """
    cells: dict[int, dict[str, dict]] = {}
    for row in slot.rows:
        own = {metric: row[column] for column, metric in _INSTANCE.items()}
        if pd.notna(list(own.values())).any():
            instances = cells.setdefault(row["block"], {})
            instances.setdefault(row["entity"], {"block": row["block"], **own})
    found: dict[int, list[dict]] = {}
    for instances in cells.values():
        for order, own in enumerate(instances.values()):
            found.setdefault(order, []).append(own)
    return list(found.values())


def _draw_slot(ax: plt.Axes, place: Place) -> None:
    slot = place.slot
    if not _seen(slot):
        slots.hole(ax, place, "no telemetry")
        return
    parts = _instances(slot) or [slot.cells]
    for at, rows in zip(place.bars(len(parts)), parts, strict=True):
        _draw_bar(ax, at, rows, slot.look)
    told = [slots.middle(slots.known(slot.cells, metric)) for metric in ("gract", "smact")]
    slots.number(ax, place, 100, "\n".join([slot.marks(), *(percent(v) or "–" for v in told)]))


def _draw_bar(ax: plt.Axes, at: tuple[float, float], rows: list[dict], look: style.Look) -> None:
    """What the replicates in `rows` come to; at: centre and width."""
    percents = {metric: [100 * v for v in slots.known(rows, metric)] for metric in _METRICS}
    gract, smact, smocc, drama = (slots.middle(values) for values in percents.values())
    inner = _INSET * at[1]
    if gract is not None:
        slots.bar(ax, at, gract, look)
    if smact is not None:
        marks.box(ax, (at[0] - inner / 2, 0), inner, smact, **_WITHIN)
    if smocc is not None:
        ends = at[0] - inner / 2, at[0] + inner / 2
        marks.strokes(ax, ends, [smocc] * 2, color=style.INK, lw=1.1, zorder=4)
    if drama is not None:
        marks.strokes(ax, [at[0]], [drama], **(_DIAMOND | {"ms": min(2.8, 0.4 * at[1] * 72)}))
    for metric in ("gract", "smact"):
        slots.points(ax, at, percents[metric])


def _handles() -> list:
    return [
        Patch(fc="#BBBBBB", ec=style.INK, lw=0.5, label="GRACT (colour: method)"),
        Patch(fc="white", ec=style.INK, lw=0.5, label="SMACT"),
        Line2D([], [], color=style.INK, lw=1.1, label="SMOCC"),
        Line2D([], [], label="DRAMA", **_DIAMOND),
    ]


def _rows(slot: Slot, reported: reported_marks.Values) -> list[dict]:
    rows = [{key: row[key] for key in ("block", *_METRICS)} for row in slot.cells]
    for order, own in enumerate(_instances(slot)):
        rows += [row | {"instance": order} for row in own]
    for source, low, high in reported_marks.of(slot, reported):
        told = {"reported_source": source, "reported_low": low, "reported_high": high}
        rows.append(told | {"status": "reported"})
    return rows
