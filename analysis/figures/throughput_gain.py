"""Throughput gain (STP, Σ normalised progress) by method and count, and of mixes.

A panel per workload with gain against N on logarithmic axes, where the ideal y = N is a straight
line and equal ratios have equal lengths; methods stand side by side at N. Below, the mixes as
groups. Every replicate is a point, the larger mark their geometric mean, the bar its 95 % interval
(two replicates or more, unless it spans more than a factor of four). Signs of flags stand above
each other over their column.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from operator import itemgetter

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from analysis import flags, style
from analysis.cells import Study, dominant_status, is_baseline, small_first, summarise
from analysis.figures import marks, not_run
from analysis.figures.reported_gains import OLD, OLD_SAID, gains
from analysis.names import method_order, parse_scenario
from analysis.views import Key

TITLE = "Throughput gain"
CAPTION = (
    "Throughput gain by number of collocated instances and method: STP, the sum over members of "
    "throughput over throughput alone in the same block; for equal jobs, the time of N jobs one "
    "after the other over that of N together. Both axes are logarithmic; the dashed line is "
    "the ideal N, 1 is as fast as serial. Marks are geometric means over "
    "replicates, each of which is a point; 95 % intervals are on log ratios and pool the variance "
    "over a workload's cells. Large hollow marks are what the paper reports of the same job under "
    "the method of that shape (an A100 with 40 GB). Below, mixes of different jobs."
)
_COLUMNS = ["panel", "scenario", "n", "variant", "method", "block", "stp", "status"]
_COLUMNS += ["mean", "low", "high", "source"]
_ACROSS = 3
# Inches: a ladder's data, margins, and a lane of a mix.
_DATA, _LEFT, _BETWEEN, _GAP, _LANE = 1.5, 0.42, 0.4, 0.55, 0.095
_HOLE = 5.0  # points: text size of outcomes
_SIGN = 5.2  # points: of a flag's sign
_STACK = 0.8  # line spacing of signs above each other
_ASIDE = 16.0  # points: less than from N = 2 to 3
_FEWER = "fewer points than replicates: the others were not run or did not complete"
# Scenario and method → block, status, stp and whether it is a mix, of each replicate.
Cells = dict[tuple[str, str], list[dict]]


def draw(study: Study, arm: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; returns the figure and one row per point, or per status without one."""
    cells, runs = study.drawn(arm)
    cells = cells[~cells["variant"].str.contains("departure|all ?cores").astype(bool)]
    looks = style.looks(study.cells["method"], study.runs)
    groups = summarise(cells, study.cells)
    groups["look"] = [looks[method] for method in groups["method"]]
    panels = _panels(groups, small_first(cells))
    mixes = groups[groups["mixed"]]
    if not panels and mixes.empty:
        text = f"No collocated cells in arm {arm} yet."
        return style.sentence(TITLE, text), pd.DataFrame(columns=_COLUMNS)

    every, replicates = pd.concat([*panels.values(), mixes]), _by_set(cells)
    planned = cells[cells["scenario"].isin(every["scenario"])]
    # A panel of nothing but gains of 1 by construction would show nothing that was measured.
    constructed = is_baseline(planned) & (planned["status"] == "completed")
    absent, named = not_run.nothing_but(planned, constructed)
    panels = {t: data for t, data in panels.items() if not data["scenario"].isin(absent).any()}
    mixes = mixes[~mixes["scenario"].isin(absent)]
    measured = [data for data in panels.values() if data["stp"].notna().any()]
    said = _reported(study, arm, pd.concat(measured)) if measured else {}
    parts = [_drawn(every, replicates), _drawn_reported(every, said)]
    drawn = pd.concat(parts, ignore_index=True)
    if not panels and mixes.empty:
        but = "jobs alone" if constructed.any() else ""
        return style.sentence(TITLE, not_run.sentence(arm, but)), drawn

    shown = pd.concat([*panels.values(), mixes])
    # Only rows of panels in which something did not complete have a strip for it; a panel without
    # any gain needs none, its outcomes take the place of the data.
    titles = list(panels)
    lines = [titles[i : i + _ACROSS] for i in range(0, len(titles), _ACROSS)]
    strips = [max(_strip(panels[t]) for t in line) for line in lines]
    ladders = sum(_DATA + strip + _GAP for strip in strips)
    lane = _LANE * mixes.groupby("scenario").size().max() + 0.15 if len(mixes) else 0.0
    scenarios = sorted(mixes["scenario"].unique(), key=lambda s: (parse_scenario(s).n, s))
    partial = ((shown["completed"] > 0) & (shown["completed"] < shown["replicates"])).any()
    note = _FEWER if partial else ""
    unseen = marks.left_out(zip(shown["low"], shown["high"], strict=True))
    runs = runs[runs["scenario"].isin(shown["scenario"])]
    absence = not_run.phrase((s for s, _ in named), methods=not_run.under(named, cells, looks))
    fig, top = style.page(
        f"{TITLE} (STP), arm {arm}",
        "sum over members of throughput / throughput alone, within the block; 1: as fast as serial",
        _handles(shown, said, _any_single(shown, replicates)),
        ladders + (len(scenarios) * lane + 0.4 if scenarios else -0.1),
        [*style.footer_parts(runs), note, unseen, study.note, absence],
    )
    width = (style.PAGE_WIDTH - _LEFT - 0.1) / _ACROSS - _BETWEEN * (_ACROSS - 1) / _ACROSS
    for i, (panel, data) in enumerate(panels.items()):
        line, strip = i // _ACROSS, strips[i // _ACROSS]
        below = top + sum(_DATA + s + _GAP for s in strips[:line])
        place = (_LEFT + i % _ACROSS * (width + _BETWEEN), below, width, _DATA + strip)
        ax = style.place(fig, *place)
        empty = data["stp"].isna().all()
        strip = 1.0 if empty else strip / (_DATA + strip)
        _draw_ladder(ax, data, replicates, shown, said, strip)
        # Long names shrink: a bold character is about 0.67 of its size wide.
        size = min(style.TEXT, (width + _BETWEEN / 2) * 72 / (0.67 * len(panel)))
        ax.set_title(panel, loc="left", weight="bold", pad=4, size=size)
        if not empty and all(panels[t]["stp"].isna().all() for t in lines[line][: i % _ACROSS]):
            ax.set_ylabel("throughput gain (STP)", labelpad=2)
    if scenarios:
        place = (2.3, top + ladders, style.PAGE_WIDTH - 2.4, len(scenarios) * lane)
        _draw_mixes(style.place(fig, *place), scenarios, mixes, replicates)
    return fig, drawn


def _reported(study: Study, arm: str, shown: pd.DataFrame) -> dict[tuple[str, str], tuple]:
    """Scenario and method → source and gain that the paper reports of it, of the arm `faithful`.

    Also of sets of which ours did not complete; not of those that the figure does not have.
    """
    if study.reported is None or arm != "faithful":
        return {}
    told = {key: gain.first for key, gain in gains(study.reported).items() if len(key.parts) == 1}
    found = {}
    for scenario, method in set(zip(shown["scenario"], shown["method"], strict=True)):
        parsed = parse_scenario(scenario)
        source, gain = told.get(Key.of(parsed.parts, method, parsed.variant), (None, None))
        if gain:
            found[scenario, method] = (source, gain)
    return found


def _panels(groups: pd.DataFrame, families: list[str]) -> dict[str, pd.DataFrame]:
    """Title → summary rows of one workload and variant that has collocated cells."""
    panels = {}
    for (workload, variant), data in groups[~groups["mixed"]].groupby(["family", "variant"]):
        if (data["n"] > 1).any():
            panels[f"{workload} ({variant})" if variant else workload] = data
    return dict(sorted(panels.items(), key=lambda p: families.index(p[1]["family"].iloc[0])))


def _draw_ladder(
    ax: plt.Axes,
    data: pd.DataFrame,
    cells: Cells,
    shown: pd.DataFrame,
    said: dict[tuple[str, str], tuple],
    strip: float,
) -> None:
    """Gain against N; the lowest `strip` of the axes (1: all of it) is kept for outcomes."""
    ladders = shown[~shown["mixed"]]
    counts = sorted({int(n) for n in data["n"]})
    reported = [gain for _, gain in said.values()]
    low, tops = _reach(ladders, cells, [0.8, 2.0, *reported, *counts])
    low = low / 1.12
    high = _upper(low, ((top, _tall(sign) / (72 * _DATA)) for top, sign in tops)) * 1.12
    # Room for the methods that stand aside: a factor of 1.05 for each 5 points.
    pad = 1.25 * 1.05 ** (_spread(ladders["method"].nunique()) / 5)
    ax.set(xscale="log", yscale="log", xlim=(min(counts) / pad, max(counts) * pad))
    if strip < 1:
        ax.set_ylim(low / (high / low) ** (strip / (1 - strip)), high)
        _draw_ideal(ax)
        ax.axhline(1, color=style.GREY, lw=0.6, zorder=1)
    outcomes = _outcomes(data)
    if outcomes:
        ax.add_patch(Rectangle((0, 0), 1, strip, transform=ax.transAxes, fc="#F4F4F4", lw=0))
    rows = sorted(data.to_dict("records"), key=itemgetter("n"))
    shifts = _shifts(rows)
    if strip < 1:
        _keep_off(ax, rows, cells, said, shifts)
    for method, shift in shifts.items():
        line = [row for row in rows if row["method"] == method]
        known = [row for row in line if pd.notna(row["stp"])]
        for row in known:
            _draw_group(ax, row["n"], row, cells, (shift, 0.0))
        aside = marks.offset(ax, shift, 0.0)
        look = line[0]["look"]
        for row in line:
            if strip < 1 and (row["scenario"], method) in said:
                source, gain = said[row["scenario"], method]
                mark = _reported_mark(source, look.marker)
                ax.plot([row["n"]], [gain], transform=aside, **mark)
        drawn = {"color": look.colour, "ls": look.dashes, "lw": 1.1}
        ends = [row["n"] for row in known], [row["stp"] for row in known]
        ax.plot(*ends, **drawn, zorder=2, transform=aside)
    if strip == 1:
        _list_outcomes(ax, outcomes)
        outcomes = {}
    for n, lines in outcomes.items():
        ax.text(
            n,
            0.02,
            "\n".join(lines),
            transform=ax.get_xaxis_transform(),
            rotation=90,
            ha="center",
            va="bottom",
            ma="left",
            linespacing=1.05,
            size=_HOLE,
        )
    marks.plain_ticks(ax.xaxis, counts)
    marks.plain_ticks(ax.yaxis, [t for t in (0.5, 1, 2, 3, 5, 7, 10) if t > low and strip < 1])
    ax.set_xlabel("collocated instances (N)", labelpad=2)


def _reported_mark(source: str, marker: str) -> dict:
    """Larger than ours, around or behind which it stands; grey if of the older source."""
    edge = style.GREY if source == OLD else style.INK
    return {
        "ls": "",
        "marker": marker,
        "ms": 5.8,
        "mfc": "none",
        "mec": edge,
        "mew": 0.7,
        "zorder": 3,
    }


def _draw_ideal(ax: plt.Axes) -> None:
    """y = N."""
    ends = ax.get_ylim()[0], ax.get_xlim()[1]
    ax.plot(ends, ends, ls=(0, (4, 2)), color=style.GREY, lw=0.8, zorder=1)


def _shifts(rows: list[dict]) -> dict[str, float]:
    """Points by which each method stands aside from N, so that marks do not hide each other.

    Methods of the ladder keep their place at every N; those of N = 1 alone take the free ones.
    """
    methods = sorted({row["method"] for row in rows}, key=method_order)
    together = {row["method"] for row in rows if row["n"] > 1}
    ladder = [m for m in methods if m in together]
    at_one = {row["method"] for row in rows if row["n"] == 1}
    free = [i for i, m in enumerate(ladder) if m not in at_one] + list(range(len(ladder), 99))
    places = {m: i for i, m in enumerate(ladder)}
    places |= {m: free[i] for i, m in enumerate(m for m in methods if m not in places)}
    step = _spread(len(ladder)) / max(len(ladder) - 1, 1)
    return {m: step * (place - (len(ladder) - 1) / 2) for m, place in places.items()}


def _spread(methods: int) -> float:
    """Points from the first to the last of the methods that stand aside: 5 each, up to _ASIDE."""
    return min(5.0 * (methods - 1), _ASIDE)


def _outcomes(data: pd.DataFrame) -> dict[int, list[str]]:
    """N → lines on what gave no gain: the methods it befell, then what; in turn per outcome."""
    found = {}
    for n, rows in data[data["stp"].isna()].groupby("n"):
        by_status: dict[str, list[str]] = {}
        for row in sorted(rows.to_dict("records"), key=lambda r: method_order(r["method"])):
            by_status.setdefault(_outcome(row), []).append(row["look"].short)
        everyone = len(rows) == (data["n"] == n).sum() and len(by_status) == 1 and len(rows) > 1
        found[n] = [
            line
            for status, methods in by_status.items()
            for line in ("all methods" if everyone else ", ".join(methods), status)
        ]
    return found


def _list_outcomes(ax: plt.Axes, outcomes: dict[int, list[str]]) -> None:
    """The same as a list, where a ladder has nothing to draw."""
    lines = []
    for n, pairs in outcomes.items():
        told = "; ".join(f"{who}: {what}" for who, what in zip(*[iter(pairs)] * 2, strict=True))
        lines += textwrap.wrap(told, 46, initial_indent=f"{n}×  ", subsequent_indent="      ")
    ax.text(
        0.04, 0.95, "\n".join(lines), transform=ax.transAxes, va="top", size=_HOLE, linespacing=1.4
    )


def _strip(data: pd.DataFrame) -> float:
    """Inches that the outcomes below a ladder take."""
    if data["stp"].isna().all():
        return 0.0
    lines = [line for lines in _outcomes(data).values() for line in lines]
    return max((style.text_width(line, _HOLE) + 0.08 for line in lines), default=0.0)


def _outcome(row: dict) -> str:
    return style.status_label(
        "no_baseline" if row["completed"] else dominant_status(row["statuses"])
    )


def _draw_group(
    ax: plt.Axes, at: float, row: dict, cells: Cells, shift: tuple, upright: bool = True
) -> None:
    """One method's replicates, mean and interval at N (or a mix's row), `shift` points aside."""
    look = row["look"]
    place = (lambda v: ([at] * len(v), v)) if upright else (lambda v: (v, [at] * len(v)))
    aside = marks.offset(ax, *shift)
    values = _gains(cells, row)
    if marks.narrow(row["low"], row["high"]):
        ends = place([row["low"], row["high"]])
        marks.strokes(ax, *ends, aside, color=style.INK, lw=0.9, zorder=3, marker="")
    # A single replicate is no mean: it must not look as certain as one.
    single = {"mfc": "white", "mec": look.colour, "mew": 1.0}
    several = {"mfc": look.colour, "mec": style.INK, "mew": 0.5}
    mark = {"ls": "", "marker": look.marker, "ms": 4.2, "zorder": 4}
    mark |= several if len(values) > 1 else single
    marks.strokes(ax, *place([row["stp"]]), aside, **mark)
    if sign := flags.marks(row["flags"]):
        end = max(_ends(row, cells))
        look = {"weight": "bold", "zorder": 6}
        if upright:
            marks.above(ax, (at, end), "\n".join(sign), _SIGN, shift[0], _STACK, **look)
        else:
            marks.label(ax, (end, at), sign, 4, shift[1], va="center", size=style.SMALL, **look)
    if len(values) > 1:
        marks.strokes(
            ax,
            *place(values),
            aside,
            ls="",
            marker="o",
            ms=1.5,
            mfc="white",
            mec=style.INK,
            mew=0.3,
            zorder=5,
        )


def _draw_mixes(ax: plt.Axes, scenarios: list[str], groups: pd.DataFrame, cells: Cells) -> None:
    """Mixes from top to bottom, gain to the right; a dashed tick marks the ideal N."""
    counts = [parse_scenario(s).n for s in scenarios]
    low, tops = _reach(groups, cells, [0.9, *counts])
    low, across = low / 1.1, 72 * style.PAGE_WIDTH * ax.get_position().width
    # Room for outcomes, at the left.
    room = (max(top for top, _ in tops) / low) ** 0.35 if groups["stp"].isna().any() else 1.0
    signs = ((top, (4 + marks.extent(s, style.SMALL)[0]) / across if s else 0) for top, s in tops)
    high = _upper(low / room, signs) * 1.08
    ax.set(xscale="log", xlim=(low / room, high))
    ax.set_ylim(len(scenarios) - 0.5, -0.5)
    for y, scenario in enumerate(scenarios):
        ax.plot([counts[y]] * 2, [y - 0.4, y + 0.4], color=style.GREY, lw=0.8, ls=(0, (4, 2)))
        if y % 2:
            ax.axhspan(y - 0.5, y + 0.5, color="#F4F4F4", lw=0, zorder=0)
        rows = groups[groups["scenario"] == scenario].to_dict("records")
        rows.sort(key=lambda r: method_order(r["method"]))
        for i, row in enumerate(rows):
            up = 72 * _LANE * ((len(rows) - 1) / 2 - i)
            if pd.isna(row["stp"]):
                text = f"{row['look'].short}: {_outcome(row)}"
                place = marks.offset(ax, 4, up, across=True)
                ax.text(0, y, text, va="center", size=5.4, transform=place)
            else:
                _draw_group(ax, y, row, cells, (0.0, up), upright=False)
    ax.axvline(1, color=style.GREY, lw=0.6, zorder=1)
    marks.plain_ticks(ax.xaxis, marks.log_ticks(low, high))
    ax.set_yticks(range(len(scenarios)), [_two_lines(parse_scenario(s).label) for s in scenarios])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", visible=True)
    ax.set_xlabel("throughput gain (STP) of mixes", labelpad=2)


def _two_lines(label: str) -> str:
    parts = label.split(" + ")
    return " +\n".join([parts[0], " + ".join(parts[1:])])


def _any_single(shown: pd.DataFrame, cells: Cells) -> bool:
    """Whether a gain is drawn of which there is one replicate."""
    return any(len(_gains(cells, row)) == 1 for row in shown.to_dict("records"))


def _handles(shown: pd.DataFrame, said: dict[tuple[str, str], tuple], single: bool) -> list[Line2D]:
    looks = shown.set_index("method")["look"].to_dict()
    measured = set(shown.loc[shown["stp"].notna(), "method"])
    handles = [style.line(looks[m]) for m in sorted(measured, key=method_order)]
    for m in sorted({method for _, method in said} - measured, key=method_order):
        mark = _reported_mark("", looks[m].marker)
        handles.append(Line2D([], [], **mark, label=f"{looks[m].label}, reported only"))
    handles.append(Line2D([], [], color=style.GREY, lw=0.8, ls=(0, (4, 2)), label="ideal (N)"))
    if (shown["completed"] > 1).any():
        handles.append(style.replicate_point())
    if single:
        look = {"marker": "s", "ms": 4.2, "mfc": "white", "mec": style.GREY, "mew": 1.0}
        handles.append(Line2D([], [], ls="", label="hollow: one replicate", **look))
    if shown["low"].notna().any():
        handles.append(marks.interval())
    for source in sorted({source for source, _ in said.values()}, key=lambda s: (s == OLD, s)):
        label = f"reported ({source}{f': {OLD_SAID}' if source == OLD else ''})"
        handles.append(Line2D([], [], **_reported_mark(source, "o"), label=label))
    return handles


def _by_set(cells: pd.DataFrame) -> Cells:
    """Rows of `cells`, by block."""
    found: Cells = {}
    columns = ["scenario", "method", "block", "status", "stp", "mixed"]
    for row in cells[columns].sort_values("block").to_dict("records"):
        found.setdefault((row["scenario"], row["method"]), []).append(row)
    return found


def _gains(cells: Cells, row: dict) -> list[float]:
    """The replicates' of a summary row."""
    found = cells.get((row["scenario"], row["method"]), [])
    return [cell["stp"] for cell in found if pd.notna(cell["stp"])]


def _ends(row: dict, cells: Cells) -> list[float]:
    """All of a summary row that is drawn: mean, replicates, and the ends of its interval."""
    interval = [row["low"], row["high"]] if marks.narrow(row["low"], row["high"]) else []
    return [row["stp"], *_gains(cells, row), *interval]


def _reach(
    shown: pd.DataFrame, cells: Cells, values: list[float]
) -> tuple[float, list[tuple[float, str]]]:
    """The least of these values and all gains that are drawn, and how far up each goes: (value,
    the sign beyond it).
    """
    rows = shown[shown["stp"].notna()].to_dict("records")
    ends = [_ends(row, cells) for row in rows]
    signs = [flags.marks(row["flags"]) for row in rows]
    tops = [(max(own), sign) for own, sign in zip(ends, signs, strict=True)]
    return min([*values, *map(min, ends)]), [*tops, (max(values), "")]


def _upper(low: float, tops: Iterable[tuple[float, float]]) -> float:
    """Where a logarithmic axis from `low` ends that has room for each value and, beyond it, for a
    sign that takes this share of the axis.
    """
    return low * math.exp(max(math.log(top / low) / (1 - sign) for top, sign in tops))


def _tall(sign: str) -> float:
    """Points that a column's sign takes above it."""
    return 2.5 + marks.extent("\n".join(sign), _SIGN, _STACK)[1] if sign else 0.0


def _keep_off(
    ax: plt.Axes,
    rows: list[dict],
    cells: Cells,
    said: dict[tuple[str, str], tuple],
    shifts: dict[str, float],
) -> None:
    """Columns and reported marks are nothing to write a sign upon."""
    for row in rows:
        shift, ends = shifts[row["method"]], _ends(row, cells) if pd.notna(row["stp"]) else []
        if ends:
            (x, low), (_, high) = (
                marks.spot(ax, (row["n"], end)) for end in (min(ends), max(ends))
            )
            marks.taken(ax).append((x + shift - 2, low, x + shift + 2, high))
        if (row["scenario"], row["method"]) in said:
            x, y = marks.spot(ax, (row["n"], said[row["scenario"], row["method"]][1]))
            marks.taken(ax).append((x + shift - 3, y - 3, x + shift + 3, y + 3))


def _drawn(shown: pd.DataFrame, cells: Cells) -> pd.DataFrame:
    rows = []
    for row in shown.to_dict("records"):
        base = {k: row[k] for k in ("scenario", "n", "variant", "method", "low", "high")}
        base |= {"panel": "mixes" if row["mixed"] else row["family"], "mean": row["stp"]}
        for cell in cells.get((row["scenario"], row["method"]), []):
            status = cell["status"]
            if status == "completed" and pd.isna(cell["stp"]):
                status = "no_baseline"
            rows.append(base | {"block": cell["block"], "stp": cell["stp"], "status": status})
    return pd.DataFrame(rows, columns=_COLUMNS)


def _drawn_reported(shown: pd.DataFrame, said: dict[tuple[str, str], tuple]) -> pd.DataFrame:
    rows = []
    for row in shown.to_dict("records"):
        if (row["scenario"], row["method"]) in said:
            source, gain = said[row["scenario"], row["method"]]
            base = {k: row[k] for k in ("scenario", "n", "variant", "method")}
            base |= {"panel": row["family"], "stp": gain, "status": "reported", "source": source}
            rows.append(base)
    return pd.DataFrame(rows, columns=_COLUMNS)
