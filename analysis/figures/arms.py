"""How much of the gain survives a well-written job: the arms of a study side by side.

A row per workload that was measured in more than one arm. Left: its throughput alone. Right: the
gain (STP) at each count, by method and arm, of every arm against its own job alone.
"""

from __future__ import annotations

import math
from statistics import geometric_mean

import matplotlib.pyplot as plt
import pandas as pd

from analysis import flags, style
from analysis.cells import Study, is_baseline, small_first, summarise
from analysis.figures import marks, not_run
from analysis.names import TWIN, method_order
from analysis.pooling import BLOCK, pooled
from analysis.statistics import Estimate
from analysis.words import significant

TITLE = "Gain by how well a job is written"
CAPTION = (
    "How much of the gain survives a well-written job. Left: throughput of the job alone, as the "
    "paper's jobs are written (faithful), with bf16, channels_last and no sync (tuned), and with "
    "the whole step in one CUDA graph besides (tuned_graph); the factor is over faithful, within "
    "the block. Right: throughput gain (STP) of each arm against its own job alone, of every count "
    "and method that two arms have; per cent: (STP − 1) / (faithful STP − 1), the share of the "
    "faithful arm's gain over serial that is left, where that gain is 25 % or more. Bars are "
    "geometric means over replicates, each of which is a point; 95 % intervals are on log ratios "
    "with a variance pooled over a workload's cells."
)
_COLUMNS = ["workload", "n", "method", "arm", "quantity", "block", "value", "mean", "low", "high"]
_COLUMNS += ["kept", "kept_blocks", "status"]
_ARMS = ("faithful", "tuned", "tuned_graph")
# Colour and hatch; arms are no methods and have a hue of their own.
_LOOKS = {
    "faithful": ("#A63D2F", ""),
    "tuned": ("#E39B7B", "////"),
    "tuned_graph": ("#F8E1D4", "...."),
}
# A gain below this is slight (config/claims.yaml): a share of it would be one of noise.
_LEAST = 0.25
_KEPT = "; per cent: share of the faithful arm's gain over serial that is left"
# Inches: a workload's panel and what is below it; left edges and widths of the two axes.
_DATA, _GAP, _ALONE, _GAINS = 0.95, 0.55, (0.57, 1.0), (1.98, 5.1)
_TEXT = 5.2  # points
_BESIDE, _APART = 0.6, 1.6  # bars' widths between methods and between counts


def draw(study: Study, arm: str | None = None) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw all arms; returns the figure and one row per replicate, or per cell without a number."""
    plain = ~study.cells["mixed"] & (study.cells["variant"] == "") & (study.cells["method"] != TWIN)
    cells = study.cells[plain]
    several = cells.groupby("family")["arm"].nunique() > 1
    planned = [w for w in small_first(cells[cells["arm"] == _ARMS[0]]) if several[w]]
    cells = cells[cells["family"].isin(planned)]
    absent = not_run.untouched(cells, ["family"])
    workloads = [w for w in planned if w not in set(absent["family"])]
    rows = _absent_rows(absent)
    if not workloads:
        text = "No workload was measured in arm faithful and in another one."
        return style.sentence(TITLE, text), pd.DataFrame(rows, columns=_COLUMNS)

    cells = cells[cells["family"].isin(workloads)]
    runs = study.runs[study.runs["cell"].isin(_shown(cells)["cell"])]
    shorts = {m: look.short for m, look in style.looks(cells["method"], runs).items()}
    shown, alone = _shown(summarise(cells, study.cells)), _alone(cells, study.with_references)
    gains = _with_kept(shown[shown["n"] > 1], cells)
    ratios = pooled(alone, "ratio", ["family", "arm"], fixed=alone["arm"] == _ARMS[0])
    arms = {
        w: sorted(own, key=_order) for w, own in cells.groupby("family")["arm"].agg(set).items()
    }
    partial = ((shown["completed"] > 0) & (shown["completed"] < shown["replicates"])).any()
    fig, top = style.page(
        TITLE,
        "gain (STP): of each arm against its own job alone"
        + (_KEPT if gains["kept"].notna().any() else ""),
        _handles(sorted(set(cells["arm"]), key=_order), shown),
        len(workloads) * (_DATA + _GAP) - 0.1,
        [
            *style.footer_parts(runs),
            marks.FEWER if partial else "",
            _of_blocks(alone, gains),
            marks.left_out(zip(gains["low"], gains["high"], strict=True)),
            study.note,
            not_run.phrase(absent["scenario"]),
        ],
    )
    for i, workload in enumerate(workloads):
        below = top + i * (_DATA + _GAP)
        ax = style.place(fig, _ALONE[0], below, _ALONE[1], _DATA)
        ax.set_title(workload, loc="left", weight="bold", pad=7)
        rows += _draw_alone(ax, workload, arms[workload], cells, alone, ratios)
        ax = style.place(fig, _GAINS[0], below, _GAINS[1], _DATA)
        rows += _draw_gains(ax, workload, gains[gains["family"] == workload], cells, shorts)
    rows.sort(key=lambda row: planned.index(row["workload"]))
    return fig, pd.DataFrame(rows, columns=_COLUMNS)


def _absent_rows(cells: pd.DataFrame) -> list[dict]:
    """What boxes of these cells, of which none was run, would have told of them."""
    rows = [
        {"workload": cell["family"], "quantity": "alone" if cell["n"] == 1 else "gain"}
        | {name: cell[name] for name in ("method", "arm", "block", "status")}
        | {"n": int(cell["n"])}
        for cell in _shown(cells).to_dict("records")
    ]
    return sorted(rows, key=lambda r: (r["n"], method_order(r["method"]), _order(r["arm"])))


def _shown(cells: pd.DataFrame) -> pd.DataFrame:
    """The jobs alone, and of the others what several arms have; also of summary rows."""
    arms = cells.groupby(["scenario", "method"])["arm"].transform("nunique")
    return cells[is_baseline(cells) | (cells["n"] > 1) & (arms > 1)]


def _order(arm: str) -> tuple[int, str]:
    return (_ARMS.index(arm) if arm in _ARMS else len(_ARMS)), arm


def _alone(cells: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Completed jobs alone, with their rate over that of the faithful arm in block and device.

    `runs` hold also those of the faithful arm that are references only.
    """
    own = cells[is_baseline(cells) & cells["samples_per_s"].notna()]
    faithful = runs[(runs["arm"] == _ARMS[0]) & (runs["status"] == "completed")]
    faithful = faithful[
        faithful["scenario"].isin(own["scenario"]) & (faithful["method"] == "naive")
    ]
    rates = faithful.dropna(subset=["samples_per_s"]).groupby(["scenario", "block", "device"])
    rates = rates["samples_per_s"].first().rename("faithful")
    own = own.join(rates, on=rates.index.names)
    return own.assign(ratio=own["samples_per_s"] / own["faithful"])


def _draw_alone(
    ax: plt.Axes,
    workload: str,
    arms: list[str],
    cells: pd.DataFrame,
    alone: pd.DataFrame,
    ratios: dict[tuple, Estimate],
) -> list[dict]:
    """A bar per arm: samples/s alone, and the factor over faithful."""
    rows, told = [], []
    ax.set_xlim(-0.7, max(len(arms), 2) - 0.3)
    baselines = cells[is_baseline(cells) & (cells["family"] == workload)]
    alone = alone[alone["family"] == workload]
    most = alone["arm"].value_counts().max()
    for at, arm in enumerate(arms):
        own = alone[alone["arm"] == arm].set_index("block")
        base = {"workload": workload, "n": 1, "method": "naive", "arm": arm}
        if own.empty:
            statuses = baselines[baselines["arm"] == arm].set_index("block")["status"]
            rows += _hole(ax, at, 0.8, arm, statuses, base | {"quantity": "alone"})
            continue
        found = pooled(own.reset_index(), "samples_per_s", ["arm"])[(arm,)]
        # Of a rate itself an interval says nothing: its ratio to the faithful arm's has one.
        rate, ratio = Estimate(found.mean, None, None, 1), ratios.get((workload, arm))
        values = own["samples_per_s"]
        marks.bar(ax, at, 0.8, rate, values.tolist(), _look(arm))
        marked = flags.marks(flags.union(own["flags"]))
        # Of one block, beside bars that are means over several, a factor would mislead.
        telling = ratio and arm != _ARMS[0] and (ratio.replicates > 1 or most == 1)
        lines = [f"{ratio.mean:.2f}×"] if telling else []
        told.append(((at, values.max()), [marked, significant(rate.mean), *lines]))
        rows += _rows(base | {"quantity": "alone"}, values, rate)
        if ratio and arm != _ARMS[0]:
            rows += _rows(base | {"quantity": "alone_ratio"}, own["ratio"].dropna(), ratio)
    _tell(ax, told)
    ax.set_xticks([])
    ax.set_ylabel("alone (samples/s)")
    return rows


def _draw_gains(
    ax: plt.Axes,
    workload: str,
    groups: pd.DataFrame,
    cells: pd.DataFrame,
    shorts: dict[str, str],
) -> list[dict]:
    """Bars by count, method and arm."""
    rows, edge, ticks, before, told = [], 0.0, [], None, []
    drawn: dict[tuple[int, str], dict[str, dict]] = {}  # count and method → arm → its row
    for row in groups.to_dict("records"):
        drawn.setdefault((int(row["n"]), row["method"]), {}).setdefault(row["arm"], row)
    widths = {place: sorted(own, key=_order) for place, own in drawn.items() if len(own) > 1}
    replicates = dict(iter(cells.groupby(["scenario", "method", "arm"])))
    ordered = sorted(widths, key=lambda s: (s[0], method_order(s[1])))
    apart = len({n for n, _ in ordered}) - 1
    total = sum(map(len, widths.values())) + _BESIDE * (len(ordered) - 1)
    ax.set_xlim(-0.6, max(total + (_APART - _BESIDE) * apart, 14.0) - 0.4)
    ax.axhline(1, color=style.GREY, lw=0.6, zorder=1)
    for place in ordered:
        if before is not None:
            edge += _BESIDE if before == place[0] else _APART
        before = place[0]
        start = edge
        for arm in widths[place]:
            row = drawn[place][arm]
            own = replicates[row["scenario"], place[1], arm].set_index("block")
            base = {"workload": workload, "n": place[0], "method": place[1], "arm": arm}
            base |= {"quantity": "gain"}
            if pd.isna(row["stp"]):
                rows += _hole(ax, edge, 0.9, arm, own["status"], base)
            else:
                values = own["stp"].dropna()
                rows += _draw_gain(ax, edge, arm, row, values, base)
                told.append(((edge, _top(row, values)), _said(row)))
            edge += 1
        ticks.append(((start + edge - 1) / 2, f"{shorts[place[1]]}\n{place[0]}×"))
    ax.set_xticks([x for x, _ in ticks], [label for _, label in ticks])
    ax.tick_params(axis="x", length=0)
    _tell(ax, told)
    ax.set_ylabel("gain (STP)")
    return rows


def _with_kept(groups: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """`groups` with the share of the faithful arm's gain that is left in another one.

    It is of the blocks that both have, as many as `kept_blocks`; 0: they share none.
    """
    rows = groups[["scenario", "method", "arm", "stp", "low"]].to_dict("records")
    measured = cells[cells["stp"] > 0].groupby(["scenario", "method", "arm"])
    gains = {key: own.set_index(BLOCK)["stp"] for key, own in measured}
    bases = {
        (row["scenario"], row["method"]): gains[row["scenario"], row["method"], _ARMS[0]]
        for row in rows
        if row["arm"] == _ARMS[0] and _surely_gains(row)
    }
    kept = []
    for row in rows:
        place = row["scenario"], row["method"]
        own, base = gains.get((*place, row["arm"])), bases.get(place)
        other = row["arm"] != _ARMS[0] and own is not None and base is not None
        kept.append(_left(own, base) if other else (math.nan, 0))
    return groups.assign(kept=[share for share, _ in kept], kept_blocks=[n for _, n in kept])


def _left(own: pd.Series, faithful: pd.Series) -> tuple[float, int]:
    """Share of the faithful gain that is left, and of how many blocks: all where none is shared,
    if there are several of both.
    """
    shared = own.index.intersection(faithful.index)
    if len(shared):
        own, faithful = own[shared], faithful[shared]
    gain = geometric_mean(faithful) - 1
    telling = gain >= _LEAST and (len(shared) or min(len(own), len(faithful)) > 1)
    share = (geometric_mean(own) - 1) / gain if telling else math.nan
    return share, len(shared)


def _surely_gains(row: dict) -> bool:
    """Whether there is a gain of which a share can be left."""
    if pd.isna(row["stp"]) or row["stp"] < 1 + _LEAST:
        return False
    return pd.isna(row["low"]) or row["low"] > 1


def _of_blocks(alone: pd.DataFrame, gains: pd.DataFrame) -> str:
    """For the footer: where a number is not of the blocks that the bars beside it are of."""
    left = gains[gains["kept"].notna()]
    measured = gains.groupby(["scenario", "method"])["completed"].max()
    most = left.join(measured.rename("most"), on=measured.index.names)["most"]
    some = {
        "factors": any(_partly_shared(own) for _, own in alone.groupby("family")),
        "per cent": left["kept_blocks"].between(1, most - 1).any(),
    }
    within = " and ".join(name for name, true in some.items() if true)
    apart = (left["kept_blocks"] == 0).any()
    said = [
        f"{within} within blocks that both arms have" if within else "",
        "( ): arms not measured in one block" if apart else "",
    ]
    return "; ".join(filter(None, said))


def _partly_shared(alone: pd.DataFrame) -> bool:
    """Whether a factor of a workload's alone rates is of fewer blocks than one of the rates."""
    places = {arm: set(own.index) for arm, own in alone.set_index(BLOCK).groupby("arm")}
    known = alone[alone["ratio"].notna() & (alone["arm"] != _ARMS[0])]
    return any(
        not set(own.index) == places[arm] == places.get(_ARMS[0])
        for arm, own in known.set_index(BLOCK).groupby("arm")
    )


def _draw_gain(
    ax: plt.Axes,
    at: float,
    arm: str,
    row: dict,
    values: pd.Series,
    base: dict,
) -> list[dict]:
    low, high = (None if pd.isna(row[end]) else row[end] for end in ("low", "high"))
    estimate = Estimate(row["stp"], low, high, len(values))
    marks.bar(ax, at, 0.9, estimate, values.tolist(), _look(arm))
    shared = {name: row[name] for name in ("kept", "kept_blocks")}
    return _rows(base | shared, values, estimate)


def _top(row: dict, values: pd.Series) -> float:
    """Where the text above a gain's bar begins."""
    return max(values.max(), row["high"] if marks.narrow(row["low"], row["high"]) else row["stp"])


def _said(row: dict) -> list[str]:
    """Signs, the gain, and what is left of the faithful arm's."""
    partial = "" if row["completed"] == row["replicates"] else "*"
    lines = [partial + flags.marks(row["flags"]), f"{row['stp']:.2f}"]
    if pd.isna(row["kept"]):
        return lines
    share = f"{100 * row['kept']:.0f} %"
    return [*lines, share if row["kept_blocks"] else f"({share})"]


def _rows(base: dict, values: pd.Series, estimate: Estimate) -> list[dict]:
    numbers = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
    told = base | numbers | {"status": "completed"}
    return [told | {"block": block, "value": value} for block, value in values.items()]


def _hole(
    ax: plt.Axes, at: float, width: float, arm: str, statuses: pd.Series, base: dict
) -> list[dict]:
    """How the cells of an arm ended; nothing where it has none."""
    if statuses.empty:
        return []
    size = min(_TEXT, marks.inches(ax, width) * 72 / 2.4)
    marks.hole(ax, at, width, f"{arm}\n{marks.outcome(statuses)}", size)
    return [base | {"block": b, "status": marks.missing(s)} for b, s in statuses.items()]


def _tell(ax: plt.Axes, told: list[tuple[tuple[float, float], list[str]]]) -> None:
    """Lines of text above each bar, and room for those above the highest."""
    ax.set_ylim(0, max(ax.get_ylim()[1], ax.dataLim.y1) * 1.3)
    ax.yaxis.set_major_locator(plt.MaxNLocator(4, steps=[1, 2, 5, 10]))
    for at, lines in told:
        text = "\n".join(filter(None, lines)).replace("-", "−")
        around = {"fc": "white", "ec": "none", "pad": 0.2}
        marks.above(ax, at, text, _TEXT - 0.2, bbox=around, zorder=4)


def _look(arm: str) -> style.Look:
    return style.Look(arm, arm, *_LOOKS.get(arm, ("#AAAAAA", "**")), "o")


def _handles(arms: list[str], groups: pd.DataFrame) -> list:
    handles: list = [style.swatch(_look(arm)) for arm in arms]
    if (groups["completed"] > 1).any():
        handles.append(style.replicate_point())
    if groups["low"].notna().any():
        handles.append(marks.interval())
    return handles
