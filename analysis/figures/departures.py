"""What survivors reclaim when a member of a cell leaves: lanes in the figure of mixes."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib.pyplot as plt

from analysis import style
from analysis.figures import marks
from analysis.figures.mix_data import MixData
from analysis.names import AFTER, BEFORE, method_order, parse_scenario

# Inches: a lane, what stands above and below the lanes; left edge and width of the two axes.
_LANE, _ABOVE, _BELOW = 0.11, 0.36, 0.34
_PROGRESS, _RATES = (2.3, 2.5), (5.3, 1.35)
_TEXT = 5.2  # points
# A replicate's progress, before and after alike.
REPLICATE = {"ls": "", "marker": "|", "ms": 3.2, "mec": style.GREY, "mew": 0.6}


@dataclass(frozen=True)
class Lane:
    """A member under a method; member -1: a method without any number."""

    method: str
    member: int
    name: str
    leaves: bool = False


def lanes(data: MixData, scenario: str) -> list[Lane]:
    """Survivors first, by member and then by method; then who leaves; methods without numbers."""
    found = []
    for method in data.methods(scenario):
        own = {k[2:]: m for k, m in data.members.items() if k[:2] == (scenario, method)}
        survivors = {member for window, member in own if window == AFTER}
        names = {member: m.workload for (_, member), m in own.items()}
        found += [
            Lane(method, int(member), name, member not in survivors)
            for member, name in names.items()
        ] or [Lane(method, -1, "", leaves=True)]
    return sorted(found, key=_order)


def _order(lane: Lane) -> tuple:
    return lane.member < 0, lane.leaves, lane.member, method_order(lane.method)


def height(data: MixData, scenario: str) -> float:
    """Inches that `draw` takes."""
    return _ABOVE + _LANE * len(lanes(data, scenario)) + _BELOW


def draw(fig: plt.Figure, top: float, scenario: str, data: MixData) -> None:
    """Two axes, `top` inches from the figure's top: progress before and after; their ratio."""
    own = lanes(data, scenario)
    inches = _LANE * len(own)
    left = style.place(fig, _PROGRESS[0], top + _ABOVE, _PROGRESS[1], inches)
    right = style.place(fig, _RATES[0], top + _ABOVE, _RATES[1], inches)
    gone = next((lane.name for lane in own if lane.leaves and lane.name), "one")
    parts = parse_scenario(scenario).parts
    title = f"{' + '.join(f'{count}× {name}' for name, count in parts)}: {gone} leaves"
    fig.text(0.01, 1 - (top + 0.02) / fig.get_size_inches()[1], title, weight="bold", va="top")

    values = [v for k, m in data.members.items() if k[0] == scenario for v in m.progress]
    ends = [
        end
        for key, e in data.reclaimed.items()
        if key[0] == scenario
        for end in (e.mean, *((e.low, e.high) if not marks.wide(e) else ()))
    ]
    left.set_xlim(0, max([1.05, *values]) * 1.04)
    limits = min([0.95, *ends]) / 1.03, max([1.3, *ends]) * 1.05
    right.set(xscale="log", xlim=limits)
    for ax, said in ((left, "progress before → after"), (right, "rate after / before")):
        ax.set_ylim(len(own) - 0.4, -0.6)
        ax.axvline(1, color=style.GREY, lw=0.6, zorder=1)
        ax.set_title(said, loc="left", pad=3, size=style.SMALL)
        marks.lanes(ax)
    alike = [lane.name for lane in own if lane.method == own[0].method and not lane.leaves]
    for i, lane in enumerate(own):
        _draw_lane(left, right, i, lane, scenario, data)
        if lane.member >= 0 and (i == 0 or own[i - 1].member != lane.member):
            name = f"{lane.name}, member {lane.member}" if alike.count(lane.name) > 1 else lane.name
            _name(left, i, f"{lane.name} (leaves)" if lane.leaves else name)
            if i:
                for ax in (left, right):
                    ax.axhline(i - 0.5, color=style.FAINT, lw=0.6)
    left.set_yticks(range(len(own)), [data.looks[lane.method].short for lane in own])
    left.tick_params(axis="y", labelsize=_TEXT)
    right.set_yticks([])
    marks.plain_ticks(right.xaxis, marks.log_ticks(*limits, inches=_RATES[1]))


def _name(ax: plt.Axes, at: float, text: str) -> None:
    place = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
    ax.annotate(text, (0, at), (-34, 0), ha="right", va="center", size=_TEXT, **place)


def _draw_lane(
    left: plt.Axes, right: plt.Axes, at: int, lane: Lane, scenario: str, data: MixData
) -> None:
    """Progress before (hollow) and after (filled), and what was reclaimed; or the outcome."""
    cell = ("departure", scenario, lane.method)
    if lane.member < 0:
        marks.say(left, at, marks.outcome(data.statuses(scenario, lane.method)))
        data.note_outcomes(*cell, "progress")
        return
    look, told = data.looks[lane.method], {"member": lane.member, "workload": lane.name}
    means = []
    for window, fill in ((BEFORE, "white"), (AFTER, look.colour)):
        key = (scenario, lane.method, window, lane.member)
        if key not in data.progress:
            continue
        estimate, values = data.progress[key], data.members[key].progress
        if len(values) > 1:
            left.plot(values, [at] * len(values), **REPLICATE, zorder=3)
        mean = {"marker": look.marker, "ms": 4.2, "mfc": fill, "mec": style.INK, "mew": 0.5}
        left.plot([estimate.mean], [at], ls="", **mean, zorder=4)
        means.append(estimate.mean)
        data.note_all(values, estimate, *cell, "progress", **told, window=window)
    if len(means) == 2:
        left.plot(means, [at, at], color=look.colour, lw=1.1, zorder=2)
    elif not means:
        marks.say(left, at, style.status_label("no_baseline"))
        data.note(*cell, "progress", **told, status="no_baseline")
    if (scenario, lane.method, lane.member) in data.reclaimed:
        estimate = data.reclaimed[scenario, lane.method, lane.member]
        values = data.members[scenario, lane.method, AFTER, lane.member].ratio
        marks.level(right, at, estimate, values.tolist(), look)
        sign = data.sign(scenario, lane.method)
        marks.number(right, at, f"{estimate.mean:.2f} {sign}".rstrip())
        data.note_all(values, estimate, *cell, "reclaimed", **told)
