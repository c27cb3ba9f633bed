"""The paper's F5: what each job of a mix gets, and what is reclaimed when one of them leaves.

A row per mix: normalised progress of every member as a bar, by workload and method; beside it STP
and ANTT. Below, cells in which a member leaves (figures/departures.py). Every replicate is a
point; bars and larger marks are geometric means.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from analysis import style
from analysis.cells import Study, gains
from analysis.figures import departures, marks, not_run
from analysis.figures.mix_data import COLUMNS, MixData, gather
from analysis.names import method_order, parse_scenario
from analysis.statistics import Estimate

TITLE = "Mixes of jobs"
CAPTION = (
    "What each job of a mix gets (the paper's F5; its numbers were not found). Bars: normalised "
    "progress of each member, its throughput over its throughput alone in the same block; beside "
    "them STP, their sum, with the ideal N as a dashed stroke, and ANTT, the mean slowdown. Below, "
    "one member leaves: its survivors' progress before (hollow) and after (filled), and their rate "
    "after over before, which is 1 where nothing of what became free can be used. Bars and large "
    "marks are geometric means over replicates, each of which is a point; 95 % intervals are on "
    "log ratios, with a variance pooled over the mix's cells (of rates after over before: over "
    "those of one method)."
)
# Inches: a mix's panel and what is below it; left edge and width of the bars, of STP, of ANTT.
_DATA, _GAP = 0.64, 0.32
_BARS, _STP, _ANTT = (0.42, 3.2), (4.12, 1.05), (5.68, 1.05)
_TEXT = 5.2  # points
# Units of the x axis, in which a single bar is 1.5 wide: between methods, between workloads, and
# the least that a panel spans.
_BESIDE, _APART, _NARROWEST = 0.35, 1.5, 13.0


def draw(study: Study, arm: str | None) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and one row per point, or per cell without one."""
    cells, runs = study.drawn(arm)
    leaving = cells["variant"].str.contains("departure").astype(bool)
    mixes, departing = _ordered(cells[cells["mixed"] & ~leaving]), _ordered(cells[leaving])
    if not (mixes or departing):
        text = f"No mixes and no departures in arm {arm} yet."
        return style.sentence(TITLE, text), pd.DataFrame(columns=COLUMNS)

    cells = cells[cells["scenario"].isin([*mixes, *departing])]
    runs = runs[runs["scenario"].isin(cells["scenario"])]
    stp = {key[1:]: found for key, found in gains(study.cells).items() if key[0] == arm}
    data = gather(cells, runs, style.looks(cells["method"], runs), stp)
    absent, order = not_run.untouched(cells, ["scenario"]), [*mixes, *departing]
    _note_absent(data, set(absent["scenario"]))
    mixes, departing = (
        [scenario for scenario in own if scenario not in set(absent["scenario"])]
        for own in (mixes, departing)
    )
    if not (mixes or departing):
        return style.sentence(TITLE, not_run.sentence(arm)), _drawn(data, order)

    heights = [departures.height(data, scenario) for scenario in departing]
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "progress: throughput / throughput alone, within the block; STP: their sum; "
        "ANTT: mean slowdown",
        _handles(data, bool(mixes), bool(departing)),
        len(mixes) * (_DATA + _GAP) + (0.2 if mixes else 0.0) + sum(heights),
        [
            *style.footer_parts(runs),
            _note(cells),
            marks.left_out((e.low, e.high) for e in _estimates(data)),
            study.note,
            not_run.phrase(absent["scenario"]),
        ],
    )
    limits = {name: _limits(data, name, mixes) for name in ("stp", "antt")}
    most = max([1.05, *(v for k, m in data.members.items() if k[0] in mixes for v in m.progress)])
    for i, scenario in enumerate(mixes):
        below, last = top + i * (_DATA + _GAP), scenario == mixes[-1]
        _draw_bars(style.place(fig, _BARS[0], below, _BARS[1], _DATA), scenario, data, most)
        for name, (left, width) in (("stp", _STP), ("antt", _ANTT)):
            ax = style.place(fig, left, below, width, _DATA)
            _draw_lanes(ax, scenario, data, name, limits[name])
            if i == 0:
                ax.set_title(name.upper(), loc="left", weight="bold", pad=3)
            ticks = marks.log_ticks(*limits[name], inches=width)
            marks.plain_ticks(ax.xaxis, ticks)
            ax.tick_params(axis="x", labelbottom=last)
    below = top + len(mixes) * (_DATA + _GAP) + (0.2 if mixes else 0.0)
    for scenario, height in zip(departing, heights, strict=True):
        departures.draw(fig, below, scenario, data)
        below += height
    return fig, _drawn(data, order)


def _note_absent(data: MixData, scenarios: set[str]) -> None:
    """What drawing them would have told of them."""
    for scenario in scenarios:
        leaving = "departure" in parse_scenario(scenario).variant
        part, quantity = ("departure", "progress") if leaving else ("mix", "stp")
        for method in data.methods(scenario):
            data.note_outcomes(part, scenario, method, quantity)


def _drawn(data: MixData, order: list[str]) -> pd.DataFrame:
    rows = sorted(data.table, key=lambda row: order.index(row["scenario"]))
    return pd.DataFrame(rows, columns=COLUMNS)


def _ordered(cells: pd.DataFrame) -> list[str]:
    found = {s: parse_scenario(s) for s in cells["scenario"].unique()}
    return sorted(found, key=lambda s: (found[s].family, found[s].variant, found[s].n, s))


def _window(scenario: str) -> str:
    return "epochs" if "epochs" in parse_scenario(scenario).variant else "window"


def _limits(data: MixData, name: str, mixes: list[str]) -> tuple[float, float]:
    """Of the logarithmic axis that all mixes share."""
    ends = []
    for key, estimate in getattr(data, name).items():
        if key[0] in mixes:
            ends += [estimate.mean]
            ends += [] if marks.wide(estimate) else [estimate.low, estimate.high]
    if name == "stp":
        ends += [parse_scenario(scenario).n for scenario in mixes]
    return min([1.0, *ends]) / 1.1, max([2.0, *ends]) * 1.1


def _note(cells: pd.DataFrame) -> str:
    """What the star means, where there is one."""
    ended = cells.groupby(["scenario", "method"])["status"].agg(set)
    partial = any("completed" in found and len(found) > 1 for found in ended)
    return marks.FEWER if partial else ""


def _draw_bars(ax: plt.Axes, scenario: str, data: MixData, most: float) -> None:
    """A bar per member, by workload and then by method."""
    parsed, methods = parse_scenario(scenario), data.methods(scenario)
    window = _window(scenario)
    places, centres, edge, first = [], [], 0.0, 0
    for _, count in parsed.parts:
        width, start = 1.5 * count**0.55, edge
        for method in methods:
            places.append((method, edge, width, range(first, first + count)))
            edge += width + _BESIDE
        centres.append((start + edge - _BESIDE) / 2)
        edge += _APART - _BESIDE
        first += count
    edge -= _APART
    spare = max(0.0, _NARROWEST - edge) / 2
    ax.set(xlim=(-0.6 - spare, edge + 0.6 + spare), ylim=(0, most * 1.06))
    ax.axhline(1, color=style.GREY, lw=0.6, zorder=1)
    for method, left, width, members in places:
        drawn = [m for m in members if (scenario, method, window, m) in data.progress]
        for member in drawn:
            centre = left + (member - members[0] + 0.5) * width / len(members)
            _draw_member(ax, centre, width / len(members), data, (scenario, method), member)
        if not drawn:
            said = marks.outcome(data.statuses(scenario, method))
            size = min(_TEXT, marks.inches(ax, width) * 72 / 2.4)
            text = f"{data.looks[method].short}\n{said}"
            marks.hole(ax, left + width / 2, width, text, size)
    labels = [f"{count}× {name}" for name, count in parsed.parts]
    room = marks.inches(ax, min(np.diff(centres), default=np.inf)) - 0.06
    longest = max(style.text_width(label, style.SMALL) for label in labels)
    ax.set_xticks(centres, labels, size=style.SMALL * min(1.0, room / longest))
    ax.tick_params(axis="x", length=0, pad=2)
    ax.set_yticks([tick for tick in (0, 0.5, 1, 1.5, 2) if tick <= most * 1.06])
    ax.set_ylabel("progress")
    if parsed.variant:
        ax.set_title(f"({parsed.variant})", loc="left", pad=2, size=style.SMALL)


def _draw_member(
    ax: plt.Axes, centre: float, width: float, data: MixData, cell: tuple[str, str], member: int
) -> None:
    key = (*cell, _window(cell[0]), member)
    estimate, own = data.progress[key], data.members[key]
    marks.bar(ax, centre, width, estimate, own.progress.tolist(), data.looks[cell[1]])
    told = {"member": member, "workload": own.workload, "window": key[2]}
    data.note_all(own.progress, estimate, "mix", *cell, "progress", **told)


def _draw_lanes(
    ax: plt.Axes, scenario: str, data: MixData, name: str, limits: tuple[float, float]
) -> None:
    """STP or ANTT: a lane per method, and the number at the right."""
    methods = data.methods(scenario)
    ax.set(xscale="log", xlim=limits, ylim=(len(methods) - 0.45, -0.55))
    ax.axvline(1, color=style.GREY, lw=0.6, zorder=1)
    if name == "stp":
        ideal = parse_scenario(scenario).n
        ax.axvline(ideal, color=style.GREY, lw=0.8, ls=(0, (4, 2)), zorder=1)
    found: dict[tuple, Estimate] = getattr(data, name)
    for lane, method in enumerate(methods):
        estimate = found.get((scenario, method, _window(scenario)))
        if estimate is not None:
            values = data.cells[scenario, method][name].dropna()
            marks.level(ax, lane, estimate, values.tolist(), data.looks[method])
            sign = data.sign(scenario, method) if name == "stp" else ""
            marks.number(ax, lane, f"{estimate.mean:.2f} {sign}".rstrip())
            told = {"window": _window(scenario)}
            data.note_all(values, estimate, "mix", scenario, method, name, **told)
        elif name == "stp":
            marks.say(ax, lane, marks.outcome(data.statuses(scenario, method)))
            data.note_outcomes("mix", scenario, method, name)
    names = [data.looks[method].short if name == "stp" else "" for method in methods]
    ax.set_yticks(range(len(methods)), names)
    marks.lanes(ax)


def _estimates(data: MixData) -> list[Estimate]:
    """All that are drawn."""
    kinds = data.progress, data.stp, data.antt, data.reclaimed
    return [estimate for found in kinds for estimate in found.values()]


def _handles(data: MixData, mixes: bool, departing: bool) -> list:
    measured = {key[1] for key in data.members}
    handles = [style.swatch(data.looks[m]) for m in sorted(measured, key=method_order)]
    if mixes:
        look = {"color": style.GREY, "lw": 0.8, "ls": (0, (4, 2))}
        handles.append(Line2D([], [], **look, label="ideal STP (N)"))
    every = _estimates(data)
    if any(estimate.replicates > 1 for estimate in every):
        handles.append(style.replicate_point())
    if any(not marks.wide(estimate) for estimate in every):
        handles.append(marks.interval())
    if departing:
        look = {"mfc": "white", "mec": style.INK, "mew": 0.5, "ms": 4.2, "marker": "o"}
        handles.append(Line2D([], [], ls="", **look, label="hollow: before; filled: after"))
        handles.append(Line2D([], [], **departures.REPLICATE, label="a replicate of these"))
    return handles
