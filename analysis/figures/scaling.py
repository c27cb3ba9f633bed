"""SM-scaling curves, and the gain under MPS that they predict beside what was measured.

Above a panel per workload: its progress alone under MPS against its share of the SMs, and what one
of N alike makes at 1/N. Below, each predictor's gain (tables.prediction) against the measured
one, and the paper's rule of thumb, which only says whether to collocate.
"""

from __future__ import annotations

import math
import textwrap

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from analysis import flags, style
from analysis.cells import NOT_RUN, Study, dominant_status, small_first
from analysis.figures import marks, not_run
from analysis.names import method_order, parse_scenario
from analysis.tables import prediction
from analysis.tables.prediction import PAYS, SATURATED, SMACT
from analysis.views import Key

TITLE = "Gain predicted from jobs alone"
CAPTION = (
    "Above: throughput of a job alone under MPS with a limited share of the SMs, over that alone "
    "on the whole GPU; the line joins geometric means over replicates (time per sample a + b / "
    "share between two points), the triangle below it is the share for 95 % of full speed, and "
    "marks at 1/N are members of N alike. Below: the gain (STP) that is predicted from such "
    "curves, each member on a fair share of the SMs that leaves none idle, or from SMACT alone, "
    "against the gain that was measured; on the diagonal both agree. The paper's rule of thumb "
    "(collocate where every job alone reads less than 80 % SMACT and their memory fits) only says "
    "whether a set gains. Errors are means of absolute log ratios; ``corrected`` is after one "
    "factor, and ``of the others' mean gain`` with the mean gain of sets with the same answer of "
    "the rule, both from sets of other workloads only."
)
_COLUMNS = ["part", "workload", "jobs", "method", "n", "block", "share", "sm_count", "progress"]
_COLUMNS += ["predictor", "predicted", "measured", "low", "high", "status"]
_COLUMNS += prediction.ERRORS[:1] + prediction.ERRORS[2:]
_ACROSS = 3
# Inches: margins, a curve's panel, a panel of predictions, and what is between them.
_LEFT, _BETWEEN, _CURVE, _GAIN, _GAP = 0.42, 0.36, 1.05, 1.75, 0.52
_NAMES = {"curves": "SM-scaling curves", "smact": "SMACT alone", "rule": "rule of thumb"}
_OFF = 1.1  # predictions that are further off than by this factor are named, where there is room
_NAME = 5.0  # points
_TICKS = (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50)
_PAYS = {"color": style.GREY, "lw": 0.7, "ls": (0, (3, 1, 1, 1))}
_NO_GAIN = {"marker": "x", "ms": 3.2, "mec": style.INK, "mew": 0.8, "ls": "", "clip_on": False}
_PROPORTIONAL = {"color": style.GREY, "lw": 0.8, "ls": (0, (1, 1.5))}
_DEMAND = {"marker": "^", "ms": 4.5, "mfc": style.INK, "mec": "white", "ls": ""}
_LINE = {"color": style.INK, "lw": 1.0}


def draw(study: Study, arm: str) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm; one row per point of a curve, per member of N alike, and per prediction."""
    points = prediction.points(study, arm)
    curves = prediction.curves(points)
    sets = _with_cells(prediction.table(study, arm), study.cells[study.cells["arm"] == arm])
    predictors = [p for p in prediction.PREDICTORS if sets.loc[_known(sets), p].notna().any()]
    limited = set(points["method"]) - {"mps", "mps_equal", "mps_overlap"}
    tried = points[points["method"].isin(limited)]["workload"]
    order = small_first(study.cells[study.cells["arm"] == arm])
    planned = [w for w in order if w in curves or w in set(tried)]
    shown, members = points[points["workload"].isin(planned)], _members(study, arm, set(planned))
    absent = set(not_run.untouched(shown, ["workload"])["workload"]) - set(members["workload"])
    panels = [w for w in planned if w not in absent]
    errors = prediction.errors(sets)
    drawn = _drawn(shown, curves, members, sets, predictors, errors)
    if not planned and not predictors:
        text = f"No job alone at a limited share of the SMs, and nothing to predict, in arm {arm}."
        return style.sentence(TITLE, text), pd.DataFrame(columns=_COLUMNS)
    if not panels and not predictors:
        return style.sentence(TITLE, not_run.sentence(arm)), drawn

    looks = style.looks(study.cells["method"], study.runs)
    ran = sets[sets["status"] != NOT_RUN]
    letters = _letters(ran, order)
    key = textwrap.wrap("; ".join(f"{x}\u00a0{name}" for name, x in letters.items()), 165)
    lines = -(-len(panels) // _ACROSS)
    below = lines * (_CURVE + _GAP)
    rows = study.runs[study.runs["arm"] == arm]
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "above: jobs alone at a share of the SMs; below: predicted and measured gain of sets",
        _handles(points[points["workload"].isin(panels)], curves, ran, predictors, members, looks),
        below + ((_GAIN + 0.5 + 0.1 * len(key)) if predictors else -0.1),
        [
            *style.footer_parts(rows),
            _missing(panels, sets),
            marks.left_out(zip(sets["low"], sets["high"], strict=True)) if predictors else "",
            study.note,
            *_not_run(sets, [w for w in planned if w in absent], looks),
        ],
    )
    width = (style.PAGE_WIDTH - _LEFT - 0.1 - _BETWEEN * (_ACROSS - 1)) / _ACROSS
    for i, workload in enumerate(panels):
        place = (_LEFT + i % _ACROSS * (width + _BETWEEN), top + i // _ACROSS * (_CURVE + _GAP))
        ax = style.place(fig, *place, width, _CURVE)
        own = points[points["workload"] == workload]
        _draw_curve(ax, own, curves.get(workload), members[members["workload"] == workload], looks)
        _title(ax, f"{letters[workload]}  {workload}" if workload in letters else workload, width)
        if i % _ACROSS == 0:
            ax.set_ylabel("progress (%)", labelpad=2)
    width = (style.PAGE_WIDTH - _LEFT - 0.1 + _BETWEEN) / max(len(predictors), 2) - _BETWEEN
    for i, predictor in enumerate(predictors):
        place = (_LEFT + i * (width + _BETWEEN), top + below + 0.05, width, _GAIN)
        ax = style.place(fig, *place)
        told = ran[ran[predictor].notna()]
        _tell(ax, _told(errors, predictor))
        draw_one = _draw_rule if predictor == "rule" else _draw_gains
        draw_one(ax, told, predictor, _bounds(sets, predictors), letters, looks)
        _title(ax, _NAMES[predictor], width)
        if i == 0:
            ax.set_ylabel("measured gain (STP)", labelpad=2)
    if predictors:
        at = (0.01, 1 - (top + below + _GAIN + 0.42) / fig.get_size_inches()[1])
        fig.text(*at, "\n".join(key), size=5.6, va="top", linespacing=1.2)
    return fig, drawn


def _tell(ax: plt.Axes, text: str) -> None:
    """Text in the upper left corner, over lines, and nothing to write a name upon."""
    size, spacing, around = 5.4, 1.25, {"fc": "white", "lw": 0, "pad": 1.0}
    place = {"transform": ax.transAxes, "va": "top", "zorder": 3.5}
    ax.text(0.03, 0.97, text, size=size, linespacing=spacing, bbox=around, **place)
    left, top = ax.transAxes.transform((0.03, 0.97)) * 72 / ax.figure.dpi
    wide, tall = marks.extent(text, size, spacing)
    marks.taken(ax).append((left, top - tall, left + wide, top))


def _known(sets: pd.DataFrame) -> pd.Series:
    return sets["measured"].notna()


def _with_cells(sets: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """`sets` with scenario, the gain of each replicate (values: by block), marks of their flags."""
    cells = cells[cells["variant"] == ""]
    by_set: dict[tuple, list[dict]] = {}
    for cell in cells[["scenario", "method", "block", "stp", "flags"]].to_dict("records"):
        by_set.setdefault((_jobs(cell["scenario"]), cell["method"]), []).append(cell)
    found = [by_set[key] for key in zip(sets["jobs"], sets["method"], strict=True)]
    values = [{c["block"]: c["stp"] for c in own if pd.notna(c["stp"])} for own in found]
    marked = [flags.marks(flags.union(cell["flags"] for cell in own)) for own in found]
    return sets.assign(scenario=[own[0]["scenario"] for own in found], values=values, marks=marked)


def _jobs(scenario: str) -> str:
    return prediction.label(Key.of(parse_scenario(scenario).parts, ""))


def _members(study: Study, arm: str, workloads: set[str]) -> pd.DataFrame:
    """N alike under MPS: a row per cell with its members' mean progress, at share 1/N."""
    cells = study.cells[(study.cells["arm"] == arm) & (study.cells["n"] > 1)]
    cells = cells[~cells["mixed"] & (cells["variant"] == "") & cells["stp"].notna()]
    cells = cells[cells["method"].isin(["mps", "mps_equal"]) & cells["family"].isin(workloads)]
    found = cells[["family", "method", "n", "block"]].rename(columns={"family": "workload"})
    return found.assign(share=1 / cells["n"], progress=cells["stp"] / cells["n"])


def _letters(sets: pd.DataFrame, order: list[str]) -> dict[str, str]:
    """Workload → the letter that stands for it beside a point."""
    used = {name for jobs in sets["workloads"] for name in jobs.split("+")}
    names = [name for name in order if name in used] + sorted(used - set(order))
    return {name: chr(ord("a") + i) for i, name in enumerate(names)}


def _short(row: dict, letters: dict[str, str]) -> str:
    """`2× a + 1× b` in letters, with the marks of its flags: `2a+b`."""
    parts = [part.split("× ", 1) for part in row["jobs"].split(" + ")]
    return "+".join(f"{'' if n == '1' else n}{letters[x]}" for n, x in parts) + row["marks"]


def _keep_off(ax: plt.Axes, x: float, row: dict) -> None:
    """A set's mark, its replicates and its interval are nothing to write a name upon."""
    ends = [row["measured"], *row["values"].values(), *_interval(row)]
    (across, low), (_, high) = (marks.spot(ax, (x, end)) for end in (min(ends), max(ends)))
    middle = marks.spot(ax, (x, row["measured"]))[1]
    marks.taken(ax).append((across - 1, low, across + 1, high))
    marks.taken(ax).append((across - 2.5, middle - 2.5, across + 2.5, middle + 2.5))


def _draw_curve(
    ax: plt.Axes,
    points: pd.DataFrame,
    curve: prediction.Curve | None,
    members: pd.DataFrame,
    looks: dict[str, style.Look],
) -> None:
    """One workload's curve, replicates, and members of N alike; in words what did not complete."""
    known = points[points["progress"].notna()]
    top = max([1.0, *known["progress"], *members["progress"]])
    ax.set(xlim=(0, 1.04), ylim=(0, 1.12 * top))
    ax.plot((0, 1), (0, 1), zorder=1, **_PROPORTIONAL)
    ax.axhline(1, color=style.GREY, lw=0.6, zorder=1)
    if curve is not None:
        _draw_fit(ax, curve)
    for (_, method), rows in members.groupby(["n", "method"]):
        ax.plot(rows["share"], rows["progress"], zorder=4, **_mark(looks[method]))
    _plot_replicates(ax, known["share"], known["progress"])
    if outcomes := _outcomes(points, looks):
        ax.text(0.97, 0.05, outcomes, transform=ax.transAxes, ha="right", size=5.2, linespacing=1.1)
    ax.xaxis.set_major_locator(FixedLocator([0, 1 / 7, 1 / 3, 1 / 2, 1]))
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"1/{1 / value:.0f}" if 0 < value < 1 else f"{value:.0f}")
    )
    ax.yaxis.set_major_locator(plt.MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(PercentFormatter(1, 0, symbol=""))
    ax.set_xlabel("share of the SMs", labelpad=2)


def _draw_fit(ax: plt.Axes, curve: prediction.Curve) -> None:
    first, steps = curve.shares[0], 80
    shares = [first + (1 - first) * i / steps for i in range(steps + 1)]
    ax.plot(shares, [curve.at(s) for s in shares], zorder=3, **_LINE)
    place = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
    ax.plot([curve.demand()], [0.0], **_DEMAND, **place)


def _plot_replicates(ax: plt.Axes, x: pd.Series, y: pd.Series) -> None:
    look = {"mfc": "white", "mec": style.INK, "mew": 0.4}
    ax.plot(x, y, ls="", marker="o", ms=2.2, zorder=5, clip_on=False, **look)


def _outcomes(points: pd.DataFrame, looks: dict[str, style.Look]) -> str:
    """A line per method without any progress: what became of it."""
    lines = []
    for method, rows in points.groupby("method"):
        if rows["progress"].isna().all():
            status = dominant_status(rows["status"].value_counts().to_dict())
            status = "no_baseline" if status == "completed" else status
            lines.append(
                (method_order(method), f"{looks[method].short}: {style.status_label(status)}")
            )
    return "\n".join(line for _, line in sorted(lines))


def _bounds(sets: pd.DataFrame, predictors: list[str]) -> tuple[float, float]:
    """The range of gains, measured and predicted, that all panels share."""
    known = sets[_known(sets)]
    numbers = [p for p in predictors if p != "rule"]
    values = pd.concat([known["measured"], *(known[p] for p in numbers)]).dropna()
    ends = [end for row in known.to_dict("records") for end in _interval(row)]
    return min([0.9, *values, *ends]) / 1.08, max([2.0, *values, *ends]) * 1.12


def _draw_gains(
    ax: plt.Axes,
    sets: pd.DataFrame,
    predictor: str,
    bounds: tuple[float, float],
    letters: dict[str, str],
    looks: dict[str, style.Look],
) -> None:
    """Measured against predicted gain; sets that are far off are named."""
    ax.set(xscale="log", yscale="log", xlim=bounds, ylim=bounds)
    ax.plot(bounds, bounds, color=style.GREY, lw=0.8, ls=(0, (4, 2)), zorder=1)
    ax.axhline(PAYS, zorder=1, **_PAYS)
    ax.axvline(PAYS, zorder=1, **_PAYS)
    rows = sets.to_dict("records")
    for row in rows:
        _draw_set(ax, row[predictor], row, looks[row["method"]])
    found = [row for row in rows if pd.notna(row["measured"])]
    for row in sorted(found, key=lambda row: _off(row, predictor), reverse=True):
        if _off(row, predictor) > math.log(_OFF):
            higher = row["measured"] > row[predictor]
            away = (marks.LEFT, marks.ABOVE) if higher else (marks.RIGHT, marks.BELOW)
            at = row[predictor], row["measured"]
            marks.beside(ax, at, _short(row, letters), _NAME, away)
    ticks = [t for t in _TICKS if bounds[0] <= t <= bounds[1]]
    for axis in (ax.xaxis, ax.yaxis):
        _plain(axis, ticks)
    ax.grid(axis="x", visible=True)
    ax.set_xlabel("predicted gain (STP)", labelpad=2)


def _off(row: dict, predictor: str) -> float:
    """By what log ratio a prediction is off."""
    return abs(math.log(row["measured"] / row[predictor]))


def _draw_rule(
    ax: plt.Axes,
    sets: pd.DataFrame,
    predictor: str,
    bounds: tuple[float, float],
    letters: dict[str, str],
    looks: dict[str, style.Look],
) -> None:
    """Measured gain by the rule's answer; sets that it is wrong about are named."""
    ax.set(yscale="log", ylim=bounds, xlim=(-0.5, 1.5))
    ax.axhline(PAYS, zorder=1, **_PAYS)
    for answer, rows in sets.groupby(sets[predictor].astype(bool)):
        rows = rows.sort_values("measured").to_dict("records")
        places = [answer + 0.62 * ((i + 0.5) / len(rows) - 0.5) for i in range(len(rows))]
        for x, row in zip(places, rows, strict=True):
            _draw_set(ax, x, row, looks[row["method"]])
        for x, row in zip(places, rows, strict=True):
            if pd.notna(row["measured"]) and answer != (row["measured"] > PAYS):
                sides = marks.ABOVE, marks.BELOW, marks.LEFT, marks.RIGHT
                marks.beside(ax, (x, row["measured"]), _short(row, letters), _NAME, sides)
    _plain(ax.yaxis, [t for t in _TICKS if bounds[0] <= t <= bounds[1]])
    ax.set_xticks([0, 1], ["do not", "collocate"])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel(f"all SMACT alone < {SMACT:.2g}, memory fits", labelpad=2)


def _draw_set(ax: plt.Axes, x: float, row: dict, look: style.Look) -> None:
    """A set's gain, interval and replicates; on the lower edge where it has none."""
    if pd.isna(row["measured"]):
        ax.plot([x], [0.02], transform=ax.get_xaxis_transform(), zorder=4, **_NO_GAIN)
        return
    _keep_off(ax, x, row)
    if interval := _interval(row):
        ax.plot([x, x], interval, color=style.INK, lw=0.7, zorder=3)
    ax.plot([x], [row["measured"]], zorder=4, **_mark(look))
    if len(row["values"]) > 1:
        point = {"marker": "o", "ms": 1.4, "mfc": "white", "mec": style.INK, "mew": 0.3}
        values = list(row["values"].values())
        ax.plot([x] * len(values), values, ls="", zorder=5, **point)


def _interval(row: dict) -> list[float]:
    """Its ends; none where it is not worth a line."""
    return [row["low"], row["high"]] if marks.narrow(row["low"], row["high"]) else []


def _plain(axis, ticks: list[float]) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _title(ax: plt.Axes, text: str, width: float) -> None:
    """Long names shrink: a bold character is about 0.67 of its size wide."""
    size = min(style.TEXT, (width + _BETWEEN / 2) * 72 / (0.67 * len(text)))
    ax.set_title(text, loc="left", weight="bold", pad=3, size=size)


def _told(errors: pd.DataFrame, predictor: str) -> str:
    """What a predictor's error is, a line for sets without limits and one for those with."""
    lines = []
    for row in errors[errors["predictor"] == predictor].to_dict("records"):
        words = []
        if pd.notna(row["error"]):
            words.append(f"error {row['error']:.0%}")
        if pd.notna(row["left_out_error"]):
            how = "of the others' mean gain" if predictor == "rule" else "corrected"
            words.append(
                f"{'error ' if predictor == 'rule' else ''}{how} {row['left_out_error']:.0%}"
            )
        if words:
            lines.append(", ".join(words) + (" (limited)" if row["limited"] else ""))
        if row["called"]:
            lines.append(f"pays or not: {row['right']} of {row['called']} right")
    return "\n".join(lines).replace("%", " %")


def _missing(panels: list[str], sets: pd.DataFrame) -> str:
    """What there is nothing of: curves, the memory of jobs alone, and gains of sets that ran."""
    told = [] if panels else ["no job was measured alone at a limited share of the SMs: no curves"]
    if sets["rule"].notna().any() and sets["fits"].isna().all():
        told.append("memory of the GPU not recorded: the rule goes by SMACT alone")
    gone = [
        f"{row['jobs']}, {row['method']}: {style.status_label(row['status'])}"
        for row in sets[~_known(sets) & (sets["status"] != NOT_RUN)].to_dict("records")
    ]
    return "; ".join([*told, f"no gain of {'; '.join(gone)}"] if gone else told)


def _not_run(sets: pd.DataFrame, alone: list[str], looks: dict[str, style.Look]) -> list[str]:
    """The jobs alone, and by method the sets, of which nothing was run."""
    found: dict[str, list[str]] = {}
    for row in sets[sets["status"] == NOT_RUN].to_dict("records"):
        found.setdefault(row["method"], []).append(row["scenario"])
    return [
        f"not run alone under MPS at any share of the SMs: {', '.join(alone)}" if alone else "",
        *(
            not_run.phrase(scenarios, f"not run under {looks[method].short}")
            for method, scenarios in found.items()
        ),
    ]


def _handles(
    points: pd.DataFrame,
    curves: dict[str, prediction.Curve],
    sets: pd.DataFrame,
    predictors: list[str],
    members: pd.DataFrame,
    looks: dict[str, style.Look],
) -> list[Line2D]:
    """A legend entry for each thing that is drawn."""

    def entry(label: str, **look) -> Line2D:
        return Line2D([], [], label=label.replace("%", " %"), **look)

    handles, known = [], sets[_known(sets)]
    if curves:
        handles.append(entry("alone under MPS", **_LINE))
        handles.append(entry(f"share for {SATURATED:.0%} of full speed", **_DEMAND))
    if points["progress"].notna().any() or (known["replicates"] > 1).any():
        handles.append(style.replicate_point())
    if len(points):
        handles.append(entry("in proportion", **_PROPORTIONAL))
    for method in sorted({*known["method"], *members["method"]}, key=method_order):
        handles.append(entry(f"N jobs, {looks[method].label}", **_mark(looks[method])))
    if len(known):
        handles.append(entry(f"a gain of {PAYS}: pays", **_PAYS))
    if sets.loc[~_known(sets), predictors].notna().any(axis=None):
        handles.append(entry("no gain measured", **_NO_GAIN))
    if any(map(marks.narrow, known["low"], known["high"])):
        handles.append(Line2D([], [], color=style.INK, lw=0.7, label="95 % interval"))
    return handles


def _mark(look: style.Look) -> dict:
    """How a set's gain, or its members' progress, is marked."""
    edge = {"mec": style.INK, "mew": 0.4}
    return {"marker": look.marker, "ms": 3.8, "mfc": look.colour, "ls": ""} | edge


def _drawn(
    points: pd.DataFrame,
    curves: dict[str, prediction.Curve],
    members: pd.DataFrame,
    sets: pd.DataFrame,
    predictors: list[str],
    errors: pd.DataFrame,
) -> pd.DataFrame:
    """part: alone (a replicate), curve, demand (the share for 95 % of full speed), member (of N
    alike), gain (of a set, by a predictor), replicate (of a set), error (of a predictor).

    The rule predicts True (collocate) or False.
    """
    rows = [row | {"part": "alone", "n": 1} for row in points.to_dict("records")]
    for workload, curve in curves.items():
        base = {"workload": workload, "n": 1, "method": "mps"}
        for share, progress in zip(curve.shares, curve.progress, strict=True):
            rows.append(base | {"part": "curve", "share": share, "progress": progress})
        rows.append(base | {"part": "demand", "share": curve.demand()})
    rows += [row | {"part": "member"} for row in members.to_dict("records")]
    for row in sets.to_dict("records"):
        base = {c: row[c] for c in ("jobs", "method", "n", "measured", "low", "high", "status")}
        for predictor in (p for p in predictors if pd.notna(row[p])):
            predicted = {"predictor": predictor, "predicted": row[predictor]}
            rows.append(base | predicted | {"part": "gain"})
        for block, gain in row["values"].items():
            own = {c: row[c] for c in ("jobs", "method", "n", "status")}
            rows.append(own | {"part": "replicate", "block": block, "measured": gain})
    rows += [row | {"part": "error"} for row in errors.to_dict("records")]
    return pd.DataFrame(rows, columns=_COLUMNS)
