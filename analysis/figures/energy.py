"""Energy per sample of a set, against the same samples one job after the other, and mean power."""

from __future__ import annotations

from statistics import geometric_mean

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D

from analysis import style
from analysis.cells import Study, is_baseline
from analysis.figures import marks, not_run, slots
from analysis.figures.slots import Place, Slot
from analysis.pooling import pooled
from analysis.statistics import Estimate
from analysis.words import fixed

TITLE = "Energy per sample"
CAPTION = (
    "Above, the GPU's energy in the window, idle power included, over the samples of all members "
    "(bar); it is the counter's of the whole card, for no counter splits it. The thick line is "
    "serial: what the same samples take one job after the other, by the alone runs of the block. "
    "Samples of different workloads are not alike, so the energy of a mix is in units of serial. "
    "Bars and lines are geometric means over replicates, each a point; the number is the bar "
    "against its line in per cent, below 0 where collocation saves energy. The interval (95 %, two "
    "replicates or more) is that of this ratio, on the log scale, with its baseline's error and a "
    "variance pooled over the cells of a workload, drawn in units of the line. Below, mean power "
    "of the GPU. Whole epochs have no energy per sample: theirs holds validation."
)
_KEY = ["scenario", "method", "window"]
_VALUES = ["energy_per_sample", "serial_energy_per_sample", "power"]
_COLUMNS = ["block", *_VALUES, "ratio", "low", "high"]
# Inches: height of the axes of energy and of power, between them, and of both with labels.
_ENERGY, _POWER, _BETWEEN, _LINE, _LEFT = 0.62, 0.3, 0.09, 1.39, 0.46
_SERIAL = {"color": style.INK, "lw": 1.4, "solid_capstyle": "butt"}
_BEHIND = {"color": "white", "lw": 2.2, "solid_capstyle": "butt"}


def draw(study: Study, arm: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and one row per slot and replicate (J/sample, W).

    ratio, low and high are of the slot: energy over serial, geometric mean with its interval.
    """
    found = slots.panels(study, arm, _VALUES)
    none = pd.DataFrame(columns=[*slots.COLUMNS, *_COLUMNS, "status"])
    if not found:
        return style.sentence(TITLE, f"No cells in arm {arm} yet."), none
    if cells := slots.nothing(found, "energy_per_sample", "power"):
        text = f"Neither energy nor power was read in the {cells} completed cells of arm {arm}."
        return style.sentence(TITLE, text), none

    cells = study.drawn(arm)[0]
    cells = cells.assign(ratio=1 - cells["energy_saving"])
    ratios = pooled(cells, "ratio", _KEY, fixed=is_baseline(cells))
    table = slots.drawn(found, lambda slot: _rows(slot, ratios), _COLUMNS)
    shown = slots.shown(found)
    if not shown:
        return style.sentence(TITLE, not_run.sentence(arm)), table

    placed = slots.layout(shown, _LEFT)
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "energy of the GPU over the samples of all members; number: against serial in per cent; "
        "below: mean power",
        [
            *slots.methods(shown, lambda slot: slot.has(*_VALUES)),
            Line2D([], [], label="serial (N × alone)", **_SERIAL),
            *slots.replicated(shown),
            *([marks.interval()] if any(ratio.low for ratio in ratios.values()) else []),
        ],
        placed.lines * _LINE - 0.2,
        [*slots.foot(study, found), marks.left_out((r.low, r.high) for r in ratios.values())],
    )
    for title, places in placed.places.items():
        ax = placed.axes(fig, title, top, _LEFT, (_ENERGY, _LINE))
        _draw_energy(ax, title, places, ratios)
        below = placed.axes(fig, title, top + _ENERGY + _BETWEEN, _LEFT, (_POWER, _LINE))
        _draw_power(below, places)
        below.set_title("", loc="left")
        ax.tick_params(axis="x", labelbottom=False)
    return fig, table


def _draw_energy(ax: plt.Axes, title: str, places: list[Place], ratios: dict) -> None:
    mixed = " + " in title
    tops = [max(_energies(place.slot, mixed), default=0.0) for place in places]
    tops += [_serial(place.slot, mixed) or 0.0 for place in places]
    scale, unit = (1.0, "J/sample") if max(tops) >= 1 else (1000.0, "mJ/sample")
    scale, unit = (1.0, "× serial") if mixed else (scale, unit)
    if any(tops):
        ax.set_ylim(0, 1.45 * max(tops) * scale)
        ax.yaxis.set_major_locator(plt.MaxNLocator(3))
        ax.set_ylabel(unit)
    else:
        ax.set_yticks([])
    for place in places:
        slot = place.slot
        values = [scale * value for value in _energies(slot, mixed)]
        serial = _serial(slot, mixed)
        serial = None if serial is None else scale * serial
        _draw_slot(ax, place, values, serial, ratios.get(_place(slot)))


def _draw_slot(
    ax: plt.Axes, place: Place, values: list[float], serial: float | None, ratio: Estimate | None
) -> None:
    """values: a replicate each, and serial: in the axis' unit."""
    slot = place.slot
    if not values:
        slots.hole(ax, place, "no baseline" if slot.has("energy_per_sample") else "no energy")
        return
    at, told, ends = (place.centre, place.width), "", list(values)
    slots.bar(ax, at, geometric_mean(values), slot.look)
    if serial is not None:
        ends.append(serial)
        across = place.left - 0.1 * place.width, place.left + 1.1 * place.width
        for look in (_BEHIND, _SERIAL):
            marks.strokes(ax, across, [serial] * 2, zorder=3, **look)
    if ratio is not None and serial is not None:
        if not marks.wide(ratio):
            span = [serial * ratio.low, serial * ratio.high]
            ends.append(span[1])
            marks.strokes(ax, [place.centre] * 2, span, color=style.INK, lw=0.9, zorder=4)
        if ratio.error is not None or ratio.mean != 1:
            told = _percent(ratio.mean - 1)
    slots.points(ax, at, values)
    slots.number(ax, place, max(ends), f"{slot.marks()}\n{told}")


def _draw_power(ax: plt.Axes, places: list[Place]) -> None:
    top = max((w for place in places for w in slots.known(place.slot.cells, "power")), default=0.0)
    if top:
        ax.set_ylim(0, 1.45 * top)
        ax.yaxis.set_major_locator(plt.MaxNLocator(2))
        ax.set_ylabel("W")
    else:
        ax.set_yticks([])
    for place in places:
        values = slots.known(place.slot.cells, "power")
        if values:
            at = place.centre, place.width
            slots.bar(ax, at, slots.middle(values), place.slot.look)
            slots.points(ax, at, values)
            slots.number(ax, place, max(values), fixed(slots.middle(values), 0))


def _place(slot: Slot) -> tuple:
    return tuple(getattr(slot, name) for name in _KEY)


def _energies(slot: Slot, mixed: bool) -> list[float]:
    """Energy per sample of each replicate, J; of a mix in units of serial."""
    if not mixed:
        return slots.known(slot.cells, "energy_per_sample")
    pairs = ((row["energy_per_sample"], row["serial_energy_per_sample"]) for row in slot.cells)
    return [own / serial for own, serial in pairs if pd.notna(own) and pd.notna(serial)]


def _serial(slot: Slot, mixed: bool) -> float | None:
    """Serial energy per sample, J: geometric mean over replicates; of a mix 1."""
    values = slots.known(slot.cells, "serial_energy_per_sample")
    if not values:
        return None
    return 1.0 if mixed else geometric_mean(values)


def _percent(change: float) -> str:
    """A change in whole per cent, with its sign, without that of per cent."""
    text = f"{100 * change:+.0f}".replace("-", "−")
    return "0" if text[1:] == "0" else text


def _rows(slot: Slot, ratios: dict[tuple, Estimate]) -> list[dict]:
    ratio = ratios.get(_place(slot))
    told = {"ratio": ratio.mean, "low": ratio.low, "high": ratio.high} if ratio else {}
    return [{key: row[key] for key in ("block", *_VALUES)} | told for row in slot.cells]
