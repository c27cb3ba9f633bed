"""The gains that the paper reports against ours, set of jobs by set of jobs.

A lane per set and method: the reported gain, ours with its interval, and the two numbers. The
square beside it holds the same points, ours over reported, with the identity line. Sets that the
study does not have are left out; what did not complete on either side is said in words.
"""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D

from analysis import flags, style
from analysis.cells import NOT_RUN, Study
from analysis.figures import marks, not_run
from analysis.figures.reported_gains import OLD, OLD_SAID, SOURCES, Gains, gains
from analysis.names import method_order
from analysis.quantities import Measurements
from analysis.statistics import Estimate
from analysis.tables import pair as pair_of_jobs
from analysis.views import Key, views_of_runs

TITLE = "Reported against measured"
CAPTION = (
    "Throughput gains that the paper reports (an A100 with 40 GB) against ours, for every set of "
    "jobs that this study has too; ours over reported in the square, number by number beside it. "
    "Reported gains follow from published bars and labels by the functions that give ours: filled "
    "grey for the 2025 talk (SUIT25) and for T1 of the EuroMLSys'24 talk (SLIDES), hollow and in "
    "brackets for the 2022 lecture (LEC22), whose software is older and whose batch sizes are not "
    "stated. The gain is STP; of DLRM with ResNet152 it is the time of both jobs one after the "
    "other over that of the same work side by side. Bars are 95 % intervals on log ratios; the "
    "dashed line is identity."
)
ARM = "faithful"
_COLUMNS = ["group", "n", "method", "quantity", "source", "reported", "reported_status"]
_COLUMNS += ["mean", "low", "high", "block", "measured", "status"]
# Inches: a lane, a group's title, between groups; the square and what stands below it.
_LANE, _TITLE, _APART, _SQUARE, _BELOW = 0.125, 0.2, 0.24, 2.5, 0.5
# Inches: from column to column, to its lanes; their width; from their end to the two numbers.
_COLUMN, _LABELS, _LANES, _NUMBERS = 3.6, 0.6, 1.72, (0.06, 0.66)
_TEXT = 5.2  # points


@dataclass(frozen=True)
class Pair:
    """A set of jobs under a method: what is reported of it, by source, and ours."""

    key: Key
    reported: Gains
    ours: Estimate | None
    values: dict[int, float]  # block → number
    statuses: pd.Series  # by block
    marks: str

    @property
    def group(self) -> str:
        return " + ".join(name for name, _ in self.key.parts)

    @property
    def scenario(self) -> str:
        return "+".join(f"{count}x_{name}" for name, count in self.key.parts)


def draw(study: Study, arm: str | None) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw the arm `faithful`; returns the figure and a row per source and replicate."""
    nothing = pd.DataFrame(columns=_COLUMNS)
    if arm != ARM:
        text = f"The paper's jobs are written as in arm {ARM}; no other is held against them."
        return style.sentence(TITLE, text), nothing
    if study.reported is None:
        return style.sentence(TITLE, "The reported values were not given."), nothing
    cells, runs = study.drawn(arm)
    found, lacking, unlike = pairs(cells, runs, study.reported)
    if not found:
        return style.sentence(TITLE, "No set of jobs of this study has a reported value."), nothing

    table = pd.DataFrame([row for pair in found for row in _rows(pair)], columns=_COLUMNS)
    looks = style.looks(cells["method"], runs)
    every: dict[str, list[Pair]] = {}
    for pair in found:
        every.setdefault(pair.group, []).append(pair)
    groups = {name: own for name, own in every.items() if _ran(own)}
    if not groups:
        return style.sentence(TITLE, not_run.sentence(arm)), table

    absent = [(pair.scenario, pair.key.method) for pair in found if pair.group not in groups]
    methods = not_run.under(absent, cells, looks)
    found = [pair for pair in found if pair.group in groups]
    places, content = _columns({name: len(own) for name, own in groups.items()})
    shown = runs[runs["cell"].isin(_cells(runs, found))]
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "throughput gain: STP, and of the mix serial time / time of fixed work; "
        "1: as fast as serial",
        _handles(found, looks),
        content,
        [
            *style.footer_parts(shown),
            unlike,
            _left_out(lacking),
            marks.left_out((pair.ours.low, pair.ours.high) for pair in found if pair.ours),
            study.note,
            not_run.phrase((s for s, _ in absent), "reported, but not run", methods),
        ],
    )
    limits = _limits(found)
    _draw_square(style.place(fig, 0.5, top + 0.05, _SQUARE, _SQUARE), found, looks, limits)
    for name, (column, below) in places.items():
        left, height = column * _COLUMN + _LABELS, _LANE * len(groups[name])
        ax = style.place(fig, left, top + below + _TITLE, _LANES, height)
        _draw_group(ax, groups[name], looks, limits)
    return fig, table


def pairs(
    cells: pd.DataFrame, runs: pd.DataFrame, values: pd.DataFrame
) -> tuple[list[Pair], int, str]:
    """Every reported set that the study has, in the order of the figure; how many it lacks; and
    why its mix is not comparable to the paper's, if it is not.

    cells and runs are of the arm `faithful`; values as analysis.reported.read gives them.
    """
    waiting = cells[cells["status"] == NOT_RUN].rename(columns={"block": "replicate"})
    measured = Measurements(views_of_runs(runs, waiting.to_dict("records"), ARM))
    told = gains(values)
    found = [_pair(key, told[key], measured) for key in told if measured.at(key)]
    groups = list(dict.fromkeys(pair.group for pair in found))
    found.sort(key=lambda p: (groups.index(p.group), p.key.n, method_order(p.key.method)))
    jobs = pair_of_jobs.find(runs, waiting["scenario"], values)
    apart = pair_of_jobs.unlike(jobs, measured)
    unlike = f"the mix is not comparable to the paper's: {apart}" if apart else ""
    return found, len(told) - len(found), unlike


def _ran(group: list[Pair]) -> bool:
    return not_run.ran(status for pair in group for status in pair.statuses)


def _pair(key: Key, told: Gains, measured: Measurements) -> Pair:
    views = measured.at(key)
    return Pair(
        key,
        told,
        measured.estimate(told.what, key),
        {view.block: value for view, value in measured.values(told.what, key)},
        pd.Series({view.block: view.status for view in views}),
        flags.marks(flags.union(view.flags for view in views)),
    )


def _cells(runs: pd.DataFrame, found: list[Pair]) -> set[str]:
    """The cells that the footer is about: those drawn, and their baselines."""
    wanted = {(pair.key.parts, pair.key.method) for pair in found}
    wanted |= {(((name, 1),), "naive") for pair in found for name, _ in pair.key.parts}
    views = views_of_runs(runs, (), ARM)
    return {view.cell for view in views if (view.key.parts, view.key.method) in wanted}


def _left_out(absent: int) -> str:
    return f"sets reported that this study does not have: {absent}" if absent else ""


def _columns(sizes: dict[str, int]) -> tuple[dict[str, tuple[int, float]], float]:
    """Group → column (0 below the square, 1 beside it) and inches from the top; and all inches."""
    ends = [_SQUARE + _BELOW, 0.0]
    places = {}
    for name, lanes in sizes.items():
        column = 1 if ends[1] <= ends[0] else 0
        places[name] = (column, ends[column])
        ends[column] += _TITLE + _LANE * lanes + _APART
    return places, max(ends)


def _limits(found: list[Pair]) -> tuple[float, float]:
    """Of all axes alike."""
    ends = [value for pair in found for value, _ in pair.reported.said.values() if value]
    ends += [value for pair in found for value in pair.values.values()]
    for pair in found:
        if pair.ours and not marks.wide(pair.ours):
            ends += [pair.ours.low, pair.ours.high]
    return min([0.9, *ends]) / 1.1, max([2.0, *ends]) * 1.1


def _draw_square(
    ax: plt.Axes, found: list[Pair], looks: dict[str, style.Look], limits: tuple[float, float]
) -> None:
    """Ours over reported, with the identity line."""
    ax.set(xscale="log", yscale="log", xlim=limits, ylim=limits)
    ax.plot(limits, limits, color=style.GREY, lw=0.8, ls=(0, (4, 2)), zorder=1)
    for pair in found:
        source, value = pair.reported.first
        if not (value and pair.ours):
            continue
        look = looks[pair.key.method]
        if not marks.wide(pair.ours):
            ends = [pair.ours.low, pair.ours.high]
            ax.plot([value] * 2, ends, color=style.INK, lw=0.7, zorder=2)
        fill = "white" if source == OLD else look.colour
        edge = {"mec": style.INK, "mew": 0.7}
        point = {"marker": look.marker, "ms": 4.2, "mfc": fill, "ls": ""}
        ax.plot([value], [pair.ours.mean], **point, **edge, zorder=3)
    ticks = marks.log_ticks(*limits, inches=_SQUARE)
    for axis in (ax.xaxis, ax.yaxis):
        marks.plain_ticks(axis, ticks)
    ax.grid(axis="x", visible=True)
    ax.set_xlabel("reported gain", labelpad=2)
    ax.set_ylabel("measured gain", labelpad=2)


def _draw_group(
    ax: plt.Axes, group: list[Pair], looks: dict[str, style.Look], limits: tuple[float, float]
) -> None:
    """A lane per count and method: reported, ours, and their numbers."""
    ax.set(xscale="log", xlim=limits, ylim=(len(group) - 0.4, -0.6))
    ax.axvline(1, color=style.GREY, lw=0.6, zorder=1)
    for at, pair in enumerate(group):
        values = [(source, value) for source, (value, _) in pair.reported.said.items() if value]
        if values and pair.ours:
            ends = [values[0][1], pair.ours.mean]
            ax.plot(ends, [at, at], color=style.GREY, lw=0.6, zorder=2)
        for source, value in values:
            ax.plot([value], [at], **_reported_look(source), zorder=3)
        if pair.ours:
            blocks = list(pair.values.values())
            marks.level(ax, at, pair.ours, blocks, looks[pair.key.method])
        for inches, text in zip(_NUMBERS, (_said(pair), _measured(pair)), strict=True):
            _beside(ax, at, inches, text)
    for inches, text in zip(_NUMBERS, ("reported", "ours"), strict=True):
        _beside(ax, -1.2, inches, text)
    counts = ["" if len(pair.key.parts) > 1 else f"{pair.key.n}× " for pair in group]
    shorts = [looks[pair.key.method].short for pair in group]
    names = [count + short for count, short in zip(counts, shorts, strict=True)]
    ax.set_yticks(range(len(group)), names, size=_TEXT)
    marks.plain_ticks(ax.xaxis, marks.log_ticks(*limits, inches=_LANES))
    marks.lanes(ax)
    title = {"transform": ax.get_yaxis_transform(), "weight": "bold", "va": "center"}
    name = group[0].group
    size = min(style.TEXT, (_LABELS + _LANES) * 72 / (0.67 * len(name)))
    ax.text(-(_LABELS - 0.07) / _LANES, -1.2, name, size=size, **title)


def _beside(ax: plt.Axes, at: float, inches: float, text: str) -> None:
    ax.text(
        1 + inches / _LANES, at, text, transform=ax.get_yaxis_transform(), va="center", size=_TEXT
    )


def _said(pair: Pair) -> str:
    """The reported numbers, that of LEC22 in brackets; or how the cell ended."""
    words = []
    for source, (value, status) in pair.reported.said.items():
        text = f"{value:.2f}" if value else style.status_label(status)
        words.append(f"({text})" if source == OLD else text)
    return " ".join(words if any(value for value, _ in pair.reported.said.values()) else words[:1])


def _measured(pair: Pair) -> str:
    if pair.ours is None:
        return marks.outcome(pair.statuses)
    partial = "" if (pair.statuses == "completed").all() else "*"
    return f"{pair.ours.mean:.2f} {partial}{pair.marks}".rstrip()


def _reported_look(source: str) -> dict:
    fill = "white" if source == OLD else "#A8A8A8"
    return {"ls": "", "marker": "D", "ms": 3.4, "mfc": fill, "mec": style.INK, "mew": 0.6}


def _handles(found: list[Pair], looks: dict[str, style.Look]) -> list:
    methods = {pair.key.method for pair in found if pair.ours}
    handles = [
        Line2D(
            [],
            [],
            ls="",
            marker=look.marker,
            ms=4.6,
            mfc=look.colour,
            mec=style.INK,
            mew=0.5,
            label=f"ours: {look.label}",
        )
        for look in (looks[m] for m in sorted(methods, key=method_order))
    ]
    sources = {source for pair in found for source in pair.reported.said}
    if named := [source for source in SOURCES if source in sources - {OLD}]:
        label = f"reported ({', '.join(named)})"
        handles.append(Line2D([], [], **_reported_look(named[0]), label=label))
    if OLD in sources:
        label = f"reported ({OLD}: {OLD_SAID}; in the square hollow)"
        handles.append(Line2D([], [], **_reported_look(OLD), label=label))
    if any(len(pair.values) > 1 for pair in found):
        handles.append(style.replicate_point())
    if any(pair.ours and not marks.wide(pair.ours) for pair in found):
        handles.append(marks.interval())
    look = {"color": style.GREY, "lw": 0.8, "ls": (0, (4, 2))}
    return [*handles, Line2D([], [], **look, label="identity")]


def _rows(pair: Pair) -> list[dict]:
    """A row per source and replicate."""
    base = {"group": pair.group, "n": pair.key.n, "method": pair.key.method}
    base |= {"quantity": pair.reported.what.name}
    if pair.ours:
        base |= {"mean": pair.ours.mean, "low": pair.ours.low, "high": pair.ours.high}
    rows = []
    for source, (value, status) in pair.reported.said.items():
        said = {"source": source, "reported": value, "reported_status": status}
        for block, ended in pair.statuses.items():
            number = pair.values.get(block)
            ended = marks.missing(ended) if number is None else ended
            rows.append(base | said | {"block": block, "measured": number, "status": ended})
    return rows
