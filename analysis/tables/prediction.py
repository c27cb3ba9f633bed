"""What a set of jobs gains under MPS, predicted from its jobs alone, beside what was measured.

python -m analysis.tables.prediction --runs results/paper/runs.parquet \\
    --output results/paper/prediction

Writes STEM.csv (a row per set) and STEM.md. Three predictors, in a growing order of what they need:

rule
    The paper's rule of thumb (SUIT25 p.17): collocate if the jobs' memory fits and SMACT is below
    80 %. Read as claim C15 does: every job's SMACT alone, and "pays" means a gain above 1.1. It
    says whether, not how much.
smact
    The rule as a number. If a sample keeps as many SMs busy in company as alone, N jobs cannot
    keep busy more than all: all run at progress min(1, 1 / Σ SMACT alone).
curves
    SM-scaling curves: T(s), a job's throughput alone under MPS at a share s of the SMs. A member
    with share s makes progress T(s) / T(1). Shares are those of a fair scheduler that leaves no SM
    idle (max-min): all members get the same, but none more than it can use, which is the share
    that gives it 95 % of its speed under MPS without a limit; what it leaves goes to the others,
    and what nobody needs to all alike. A member never gets more than its own limit. For N alike
    that is 1/N each: the gain of a hard partition. What the model leaves out: members that find
    SMs idle in each other's gaps (it predicts too little), and that they share memory bandwidth,
    caches and the host (too much).

Neither `smact` nor `curves` is fitted to collocated cells. To be held against the rule, which needs
a gain for each of its two answers, all are also corrected by what the other families of sets show:
left out is a whole family (the same workloads in any number), for its sets are alike.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis.cells import NOT_RUN, Study, dominant_status, read_study
from analysis.names import family_of, method_order, parse_scenario
from analysis.quantities import Measurements, quantity
from analysis.views import Key, alone, statuses, views_of_runs
from analysis.words import fixed, percent, told

PREDICTORS = ("curves", "smact", "rule")
SMACT = 0.8  # the rule's bound
PAYS = 1.1  # as in claim C15
SATURATED = 0.95  # of its full speed: a job that runs at it needs no more SMs
POINTS = ["workload", "method", "block", "share", "sm_count", "progress", "status"]
SETS = ["jobs", "workloads", "method", "n", "limited", "replicates", "status"]
SETS += ["measured", "low", "high", "curves", "smact", "rule", "fits"]
ERRORS = ["limited", "predictor", "sets", "error", "left_out_error", "called", "right"]


@dataclass(frozen=True)
class Curve:
    """Progress of a job alone against its share of the SMs; shares rise, and progress with them."""

    shares: tuple[float, ...]
    progress: tuple[float, ...]

    def at(self, share: float) -> float | None:
        """Progress at a share; None below the smallest that was measured.

        Between two points time per sample is a + b / share (Amdahl's law).
        """
        if share < self.shares[0] * (1 - 1e-9):
            return None
        if share >= self.shares[-1]:
            return self.progress[-1]
        upper = next(i for i, s in enumerate(self.shares) if s > share)
        (s0, s1), (p0, p1) = (
            self.shares[upper - 1 : upper + 1],
            self.progress[upper - 1 : upper + 1],
        )
        part = (1 / s0 - 1 / share) / (1 / s0 - 1 / s1)
        return 1 / ((1 - part) / p0 + part / p1)

    def demand(self) -> float:
        """The share at which it has SATURATED of its full speed, or the smallest measured one."""
        enough = SATURATED * self.progress[-1]
        upper = next(i for i, p in enumerate(self.progress) if p >= enough)
        if upper == 0:
            return self.shares[0]
        (s0, s1), (p0, p1) = (
            self.shares[upper - 1 : upper + 1],
            self.progress[upper - 1 : upper + 1],
        )
        part = (1 / p0 - 1 / enough) / (1 / p0 - 1 / p1)
        return 1 / ((1 - part) / s0 + part / s1)


def points(study: Study, arm: str) -> pd.DataFrame:
    """One row per replicate of a job alone under MPS: POINTS. Of the default input and measure.

    share is of the SMs that an unlimited job finds; without a limit it is 1. Cells that did not
    complete have their status, and no share.
    """
    columns = ["scenario", "method", "block", "sm_count", "progress", "status"]
    runs = study.runs[(study.runs["n"] == 1) & (study.runs["status"] == "completed")]
    ended = study.cells[(study.cells["n"] == 1) & (study.cells["status"] != "completed")]
    done = runs[columns].assign(share=_shares(runs, study.runs))
    found = pd.concat(
        [done[runs["arm"] == arm], ended.loc[ended["arm"] == arm].reindex(columns=done.columns)]
    )
    under_mps = found["method"].map(family_of) == "mps"
    found = found[
        under_mps & ~found["scenario"].map(lambda s: parse_scenario(s).variant).astype(bool)
    ]
    found["workload"] = [parse_scenario(s).family for s in found["scenario"]]
    return found[POINTS].sort_values(["workload", "share", "method", "block"], ignore_index=True)


def _shares(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """The share of the SMs of each member in completed `rows`: as counted by it, else as asked."""
    counts = runs[(runs["status"] == "completed") & runs["sm_count"].notna()]
    whole = counts.loc[counts["method"].map(family_of).isin(["naive", "mps"]), "sm_count"]
    counted = rows["sm_count"].astype(float) / whole.astype(float).max()
    return counted.fillna(rows["sm_percent"] / 100).where(rows["sm_percent"].notna(), 1.0)


def curves(found: pd.DataFrame) -> dict[str, Curve]:
    """Workload → curve through the geometric means of `points`, where a limited one is known.

    The point at share 1 is the job under MPS without a limit or, where that was not measured,
    naive (1 by definition). Where more SMs would make a job slower, the points are averaged.
    """
    result = {}
    for workload, rows in found[found["progress"] > 0].groupby("workload"):
        logs = rows["progress"].map(math.log).groupby(rows["share"]).mean()
        if logs.index[0] < 1:
            logs.loc[1.0] = logs.get(1.0, 0.0)
            result[workload] = Curve(tuple(logs.index), tuple(map(math.exp, _rising(list(logs)))))
    return result


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence (least squares) that never falls: neighbours that do are averaged."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        block = (value, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, count = blocks.pop()
            block = ((mean * count + block[0] * block[1]) / (count + block[1]), count + block[1])
        blocks.append(block)
    return [mean for mean, count in blocks for _ in range(count)]


def fill(demands: Sequence[float], limits: Sequence[float]) -> list[float]:
    """Shares of the SMs (see the module): max-min fair up to the demands, the rest to all alike."""
    needed = _level([min(d, m) for d, m in zip(demands, limits, strict=True)], 1.0)
    room = [limit - got for limit, got in zip(limits, needed, strict=True)]
    more = _level(room, 1.0 - math.fsum(needed))
    return [got + extra for got, extra in zip(needed, more, strict=True)]


def _level(caps: Sequence[float], amount: float) -> list[float]:
    """Deal out an amount: the same to all, to none more than its cap, until it or they are full."""
    given, left = [0.0] * len(caps), amount
    order = sorted(range(len(caps)), key=lambda i: caps[i])
    for rank, i in enumerate(order):
        given[i] = max(min(caps[i], left / (len(caps) - rank)), 0.0)
        left -= given[i]
    return given


def gain_by_curves(members: Sequence[Curve], limits: Sequence[float]) -> float | None:
    """Σ progress at the shares that `fill` deals out; None where a curve does not reach so low."""
    shares = fill([curve.demand() for curve in members], limits)
    progress = [curve.at(share) for curve, share in zip(members, shares, strict=True)]
    return None if None in progress else math.fsum(progress)


def gain_by_smact(smact: Sequence[float]) -> float:
    """N jobs at progress min(1, 1 / Σ SMACT alone)."""
    return len(smact) * min(1.0, 1 / math.fsum(smact))


def table(study: Study, arm: str) -> pd.DataFrame:
    """A row per set of two jobs or more under MPS: SETS.

    measured, low and high are the gain (STP) with its 95 % interval; rule: whether the paper's
    would collocate; fits: whether the memory that the jobs take alone adds up to less than there
    is, None where it was not recorded (then the rule goes by SMACT). smact and rule are of jobs
    without limits only.
    """
    runs = study.runs
    measured = Measurements(views_of_runs(runs, not_run(study), arm))
    known = curves(points(study, arm))
    limits = _limits(runs, arm)
    rows = []
    for key in measured.cells():
        if key.n < 2 or key.variant or family_of(key.method) != "mps":
            continue
        names = [name for name, count in key.parts for _ in range(count)]
        ended = statuses(measured.at(key))
        gain = measured.estimate(quantity("gain"), key)
        own = limits.get(key) or ([1.0] * key.n if key.method == "mps" else None)
        row = {"jobs": label(key)}
        row |= {"workloads": "+".join(key.family), "method": key.method, "n": key.n}
        row |= {"limited": None if own is None else min(own) < 1, "status": dominant_status(ended)}
        if gain:
            row |= {"replicates": gain.replicates, "status": "completed"}
            row |= {"measured": gain.mean, "low": gain.low, "high": gain.high}
        elif "completed" in ended:
            row["status"] = "no_baseline"
        if own and all(name in known for name in names):
            row["curves"] = gain_by_curves([known[name] for name in names], own)
        if row["limited"] is False:
            row |= _from_telemetry(measured, names)
        rows.append(row)
    rows.sort(key=_place)
    found = pd.DataFrame(rows, columns=SETS)
    numbers = ["replicates", "measured", "low", "high", "curves", "smact"]
    return found.astype(dict.fromkeys(numbers, float) | dict.fromkeys(("limited", "rule"), object))


def label(key: Key) -> str:
    """A set of jobs for people, whatever its method: `2× a + 1× b`."""
    return " + ".join(f"{count}× {name}" for name, count in key.parts)


def _place(row: dict) -> tuple:
    mixed = "+" in row["workloads"]
    return method_order(row["method"]), mixed, row["workloads"], row["n"], row["jobs"]


def not_run(study: Study) -> list[dict]:
    """The planned cells without a record, as read_expected gives them."""
    cells = study.cells[study.cells["status"] == NOT_RUN].rename(columns={"block": "replicate"})
    return cells[["scenario", "arm", "method", "replicate"]].to_dict("records")


def _limits(runs: pd.DataFrame, arm: str) -> dict[Key, list[float]]:
    """Set → its members' limits as shares of the SMs, in the order of the key's parts."""
    rows = runs[(runs["arm"] == arm) & (runs["n"] > 1) & (runs["status"] == "completed")]
    rows = rows.assign(share=_shares(rows, runs)).dropna(subset=["share"])
    result = {}
    for (scenario, method), members in rows.groupby(["scenario", "method"]):
        parsed = parse_scenario(scenario)
        key = Key.of(parsed.parts, method, parsed.variant)
        each = members.groupby("workload")["share"].median()
        if set(each.index) >= set(key.family):
            result[key] = [float(each[name]) for name, count in key.parts for _ in range(count)]
    return result


def _from_telemetry(measured: Measurements, names: Sequence[str]) -> dict:
    """What SMACT and memory of the jobs alone say of them together."""
    result: dict = {}
    sizes = [measured.mean(quantity("memory"), alone(name)) for name in names]
    there = measured.mean(quantity("capacity"), alone(names[0]))
    if there is not None and None not in sizes:
        result["fits"] = math.fsum(sizes) <= there
    smact = [measured.mean(quantity("smact"), alone(name)) for name in names]
    if None not in smact:
        result["smact"] = gain_by_smact(smact)
        result["rule"] = max(smact) < SMACT and result.get("fits", True)
    return result


def errors(sets: pd.DataFrame) -> pd.DataFrame:
    """How far each predictor is off: ERRORS, apart for sets with and without limits.

    error: mean of |log(predicted / measured)| as a factor less 1, over sets that all predictors
    which predict any have a prediction for. left_out_error: the same after a correction by the
    other families, None with one family: one factor for all or, of the rule, the mean gain of sets
    with the same answer. called and right: sets with a verdict, pays or not (gain above PAYS; out
    of memory does not pay), and how many are as measured.
    """
    rows = []
    for limited, group in sets.dropna(subset=["limited"]).groupby("limited"):
        used = [p for p in PREDICTORS if group[p].notna().any()]
        group = group.dropna(subset=used)
        both = group[group["measured"].notna()]
        for name in used:
            row = {"limited": bool(limited), "predictor": name, "sets": len(both)}
            if name != "rule":
                row["error"] = _factor(both[name], both["measured"])
            row["left_out_error"] = _factor(_left_out(both, name), both["measured"])
            judged = group[group["measured"].notna() | (group["status"] == "out_of_memory")]
            row |= {
                "called": len(judged),
                "right": int((pays(judged, name) == _paid(judged)).sum()),
            }
            rows.append(row)
    return pd.DataFrame(rows, columns=ERRORS)


def pays(sets: pd.DataFrame, predictor: str) -> pd.Series:
    """Whether collocation is predicted to pay; never where the memory does not fit."""
    if predictor == "rule":
        return sets["rule"].astype(bool)
    return (sets[predictor] > PAYS) & ~sets["fits"].isin([False])


def _paid(sets: pd.DataFrame) -> pd.Series:
    return sets["measured"] > PAYS


def _factor(predicted: pd.Series, measured: pd.Series) -> float | None:
    """Mean absolute error of the logs, as a factor less 1."""
    logs = [abs(math.log(p / m)) for p, m in zip(predicted, measured, strict=True) if p == p]
    return math.expm1(math.fsum(logs) / len(logs)) if logs else None


def _left_out(sets: pd.DataFrame, predictor: str) -> pd.Series:
    """Each set's prediction, corrected by sets of other families only; NaN where there is none."""
    result = pd.Series(math.nan, index=sets.index)
    for place, row in sets.iterrows():
        others = sets[sets["workloads"] != row["workloads"]]
        if predictor == "rule":
            others = others[others["rule"] == row["rule"]]
        logs = others["measured"].map(math.log)
        if predictor != "rule":
            logs -= others[predictor].map(math.log)
        if len(logs):
            start = 0.0 if predictor == "rule" else math.log(row[predictor])
            result[place] = math.exp(start + logs.mean())
    return result


def markdown(study: Study) -> tuple[str, pd.DataFrame]:
    """The page, and its sets (arms apart)."""
    parts, tables = ["# Predicted gain"], []
    for arm in study.arms():
        sets = table(study, arm).assign(arm=arm)
        tables.append(sets)
        parts.append(f"## Arm `{arm}`")
        if sets.empty:
            parts.append("No set of two jobs or more under MPS.")
            continue
        if sets["curves"].isna().all():
            parts.append("No job was measured alone at limited shares of the SMs: no curves.")
        off = [_error_line(row) for row in errors(sets).to_dict("records")]
        if off:
            parts.append(tabulate(told(off), "keys", "github", disable_numparse=True))
        lines = [_set_line(row) for row in sets.to_dict("records")]
        parts.append(tabulate(told(lines), "keys", "github", disable_numparse=True))
    parts.append(_LEGEND if tables else "The study holds no cell.")
    found = pd.concat(tables) if tables else pd.DataFrame(columns=["arm", *SETS])
    return "\n\n".join(parts) + "\n", found[["arm", *SETS]]


_LABELS = {"curves": "SM-scaling curves", "smact": "SMACT alone", "rule": "rule of thumb"}
_LEGEND = (
    "Gain: STP under MPS. SM-scaling curves: each job at its share of the SMs, as alone under MPS; "
    "SMACT alone: all jobs at progress min(1, 1 / Σ SMACT); rule of thumb: collocate where every "
    f"job alone reads less than {SMACT:.0%} SMACT and their memory fits. ".replace("%", " %")
    + "Error: mean absolute error of the logs, as a percentage; corrected: after one factor (for "
    "the rule: the mean gain of sets with its answer) from the sets of other workloads. Pays: a "
    f"gain above {PAYS}."
)


def _error_line(row: dict) -> dict[str, str]:
    return {
        "predictor": _LABELS[row["predictor"]] + (", limited shares" if row["limited"] else ""),
        "sets": str(row["sets"]),
        "error %": percent(row["error"]),
        "corrected, left out %": percent(row["left_out_error"]),
        "pays or not: right": f"{row['right']} of {row['called']}",
    }


def _set_line(row: dict) -> dict[str, str]:
    interval = "" if pd.isna(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
    measured = f"{row['measured']:.2f}{interval}"
    rule = {True: "collocate", False: "do not"}.get(row["rule"], "")
    return {
        "jobs": row["jobs"],
        "method": row["method"],
        "measured gain": row["status"].replace("_", " ") if pd.isna(row["measured"]) else measured,
        "by curves": fixed(row["curves"], 2),
        "by SMACT": fixed(row["smact"], 2),
        "rule": rule,
        "memory fits": {True: "yes", False: "no"}.get(row["fits"], "not recorded"),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.tables.prediction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--expected", type=Path, metavar="CELLS.json", help="planned cells")
    parser.add_argument("--hardware", help="GPU model, where the study holds several")
    parser.add_argument("--output", required=True, type=Path, metavar="STEM")
    arguments = parser.parse_args(argv)
    study = read_study(arguments.runs, arguments.expected, arguments.hardware)
    text, sets = markdown(study)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    sets.to_csv(arguments.output.with_name(arguments.output.name + ".csv"), index=False)
    arguments.output.with_name(arguments.output.name + ".md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
