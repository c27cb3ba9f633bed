"""The tables of a study's pages: which numbers stand in them, in what order."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from analysis import labels
from analysis.advice.study import Advice, Option
from analysis.choose import place, variant_of_mps, way
from analysis.estimates import table
from analysis.estimates.table import MEASURED, Row
from analysis.report.pages import spelling as as_
from analysis.report.pages.tables import Number
from workflow.collocation.study.names import (
    AFTER,
    BEFORE,
    COMPLETION,
    family_of,
    implementation_order,
    method_order,
    parse_scenario,
    scenario_id,
)

WINDOWS = {"": "", BEFORE: ", before others left", AFTER: ", after they left"}
# Of tables: title of a column → quantity, and how it is written.
Columns = Mapping[str, tuple[str, as_.Spell]]
ONE = {"alone, samples/s": ("rate", as_.bare), "SMACT alone": ("smact", as_.num)}
GAIN = {
    "STP": ("stp", as_.span),
    "S": ("s", as_.num),
    "slowest takes": ("slowdown_worst", as_.num),
    "over fastest": ("over_fastest", as_.span),
}
ALONE = {
    "samples/s": ("rate", as_.span),
    "GRACT": ("gract", as_.num),
    "SMACT": ("smact", as_.num),
    "DRAMA": ("drama", as_.num),
    "memory": ("memory", as_.num),
    "over fastest": ("over_fastest", as_.span),
    "waits for its host": ("waits", as_.share),
    "samples/s of busy GPU": ("device_rate", as_.bare),
    "measured in": ("rate", as_.how_many),
}
SET = {
    "samples/s": ("rate", as_.bare),
    "STP": ("stp", as_.span),
    "S": ("s", as_.span),
    "over fastest": ("over_fastest", as_.span),
    "slowest takes": ("slowdown_worst", as_.num),
    "GRACT": ("gract", as_.num),
    "SMACT": ("smact", as_.num),
    "memory": ("memory", as_.num),
    "mJ/sample": ("energy_per_sample", as_.millis),
    "edge error": ("energy_edge_error", as_.share),
}
LIMITED = {name: SET[name] for name in ("samples/s", "STP", "slowest takes", "GRACT", "SMACT")}
LIMITED["samples/s over MPS without limits"] = ("rate_over_mps", as_.span)
UNCHECKED = ", bound on memory not checked"
OPTION = {
    "samples/s": ("rate", as_.bare),
    "STP": ("stp", as_.span),
    "S": ("s", as_.num),
    "over fastest": ("over_fastest", as_.num),
    "slowest takes": ("slowdown_worst", as_.num),
    "memory": ("memory", as_.num),
}


def _rows(frame: pd.DataFrame) -> Iterator[Row]:
    return frame.itertuples(index=False, name="Row")


def _written(e: Row | Advice) -> str:
    return labels.implementation(e.implementation)


def named(e: Row) -> dict[str, str]:
    """The job of a set, and how it is written."""
    return {"job": labels.scenario(e.scenario, count=False), "written": _written(e)}


def _count(e: Row) -> str:
    return " + ".join(str(n) for _, n in parse_scenario(e.scenario).parts)


def numbers(estimates: pd.DataFrame, columns: Columns, **where: str) -> dict[str, Number]:
    """Those of one place, by title."""
    return {
        title: Number(table.get(estimates, quantity, **where), spell)
        for title, (quantity, spell) in columns.items()
    }


def gains(estimates: pd.DataFrame) -> pd.DataFrame:
    """The set of each job and way of writing that does most samples/s (of a mix: the highest STP),
    beside one such job alone.
    """
    stps = table.of(estimates, "stp", window="", job="")
    stps = stps[~stps["method"].map(variant_of_mps).astype(bool)]
    best: dict[tuple, list] = defaultdict(list)
    for e in _rows(stps[stps["jobs"] > 1]):
        parsed, rate = parse_scenario(e.scenario), table.get(estimates, "rate", **place(e))
        best[e.implementation, parsed.family, parsed.variant] += [
            (rate.value if rate else 0.0, e.value, e)
        ]
    chosen = [max(own, key=lambda found: found[:2])[2] for own in best.values()]
    rows = []
    for e in sorted(chosen, key=lambda e: (implementation_order(e.implementation), -e.value)):
        parsed = parse_scenario(e.scenario)
        one = "" if parsed.mixed else scenario_id({parsed.parts[0][0]: 1}, parsed.variant)
        alone = numbers(
            estimates, ONE, scenario=one, implementation=e.implementation, method="naive"
        )
        run = {"run": f"{_count(e)} {way(e.method)}"}
        rows.append(named(e) | alone | run | numbers(estimates, GAIN, **place(e)))
    return pd.DataFrame(rows)


def alone(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every job alone as a separate process, in each way in which it was written."""
    planned = table.of(estimates, "outcome", method="naive")
    planned = planned[planned["jobs"] == 1].sort_values("scenario", kind="stable")
    made = [
        {"job": labels.scenario(e.scenario), "written": _written(e)}
        | numbers(estimates, ALONE, **place(e))
        for e in _rows(planned)
        if table.get(estimates, "rate", **place(e))
    ]
    return pd.DataFrame(made)


def over(estimates: pd.DataFrame, quantity: str, method: str) -> pd.DataFrame:
    """A method's rate over another's: a row for each job, a column for each count."""
    rows = table.of(estimates, quantity, method=method, window="")
    mixed = rows["scenario"].map(lambda scenario: parse_scenario(scenario).mixed).astype(bool)
    rows = rows[(rows["jobs"] > 1) & ~mixed]
    found: dict[tuple[str, ...], dict[int, Row]] = defaultdict(dict)
    for e in _rows(rows):
        found[tuple(named(e).values())][e.jobs] = e
    counts = sorted(set(rows["jobs"]))
    made = [
        {"job": job, "written": written}
        | {f"{n} jobs": Number(own.get(n), as_.span) for n in counts}
        for (job, written), own in found.items()
    ]
    return pd.DataFrame(made)


def sets(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every set that was measured, and jobs alone under another method."""
    return _sets(estimates, table.of(estimates, "outcome"), SET)


def limited(estimates: pd.DataFrame) -> pd.DataFrame:
    """Of those, jobs that may use a part of the GPU only or that wait for others: MIG, MPS with
    limits of SMs or priorities.
    """
    found = table.of(estimates, "outcome")
    kept = [family_of(name) == "mig" or variant_of_mps(name) for name in found["method"]]
    return _sets(estimates, found[kept], LIMITED)


def _sets(estimates: pd.DataFrame, outcomes: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    rows = []
    for e in _rows(outcomes):
        for window, said in WINDOWS.items():
            where = place(e) | {"window": window}
            if any(table.get(estimates, name, **where) for name in ("stp", "rate")):
                texts = {"jobs": _count(e), "method": labels.method(e.method) + said}
                rows.append(named(e) | texts | numbers(estimates, columns, **where))
    return pd.DataFrame(rows)


def hosts(estimates: pd.DataFrame) -> pd.DataFrame:
    """Rates, STP and S of everything that several hosts measured, host by host."""
    rows = []
    for quantity in ("rate", "stp", "s", "device_rate"):
        overall = table.of(estimates, quantity, window="", job="")
        for e in _rows(overall[overall["hosts"] > 1]):
            on = {single.host: single for single in _rows(table.on_hosts(estimates, e))}
            texts = {"jobs": _count(e), "method": labels.method(e.method), "quantity": quantity}
            found = {"all": e, **{host: on.get(host) for host in table.hosts(estimates)}}
            found = {host: Number(number, as_.bare) for host, number in found.items()}
            rows.append(named(e) | texts | found)
    return pd.DataFrame(rows)


def machines(estimates: pd.DataFrame) -> pd.DataFrame:
    """What each host is, and how many cells it measured."""
    rows = _rows(table.of(estimates, "count", host="*", name="host_cells"))
    return pd.DataFrame(
        [{"host": e.host, "what it is": e.note, "cells": Number(e, as_.count)} for e in rows]
    )


def pair(estimates: pd.DataFrame) -> pd.DataFrame:
    """Mixes whose jobs ran to the end of fixed work: ours, and what the authors reported."""
    rows = []
    for saving in _rows(table.of(estimates, "saving", window=COMPLETION)):
        base = saving.scenario.split("--")[0]
        names = {"jobs": labels.scenario(base), "method": labels.method(saving.method)}
        both = place(saving) | {"scenario": base}
        end = place(saving) | {"window": COMPLETION}
        wanted = [
            ("time saved, both run to the end", "saving", end, as_.percent),
            ("GPU memory", "memory", both, as_.num),
        ]
        for job, _ in parse_scenario(base).parts:
            wanted.append(
                (f"slowdown of {labels.job(job)}", "slowdown", both | {"job": job}, as_.span)
            )
        for title, name, where, spell in wanted:
            ours = table.get(estimates, name, **where)
            paper = where | {"scenario": base, "window": "", "source": "*"}
            theirs = table.of(estimates, name, **paper)
            theirs = next(_rows(theirs[theirs["source"] != MEASURED]), None)
            if ours or theirs:
                cells = {"ours": Number(ours, spell), "the paper": Number(theirs, spell)}
                rows.append(names | {"quantity": title} | cells)
    shown = pd.DataFrame(rows)
    reported = any(row["the paper"].of for row in rows)
    return shown if reported else shown.drop(columns="the paper", errors="ignore")


def left(estimates: pd.DataFrame) -> pd.DataFrame:
    """Throughput of the jobs that stay after others left, over their throughput before."""
    made = [
        {"jobs": labels.scenario(e.scenario), "method": labels.method(e.method)}
        | {"speed after, over before": Number(e, as_.span)}
        for e in _rows(table.of(estimates, "reclaimed"))
    ]
    return pd.DataFrame(made)


def missing(estimates: pd.DataFrame) -> pd.DataFrame:
    """What was planned and has no result, alike ones in one row."""
    outcomes = table.of(estimates, "outcome")
    outcomes = outcomes[outcomes["value"].fillna(0) == 0]
    alike: dict[tuple, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for e in sorted(_rows(outcomes), key=lambda e: method_order(e.method)):
        reason = e.note.partition(". ")[0].rpartition("OutOfMemoryError: ")[2]
        alike[e.status, reason, e.method][", ".join(named(e).values())][_count(e)] = None
    made = [
        {"status": labels.status(status), "method": labels.method(method)}
        | {"jobs": "; ".join(f"{', '.join(ns)} × {named}" for named, ns in own.items())}
        | {"reason": reason}
        for (status, reason, method), own in alike.items()
    ]
    return pd.DataFrame(made)


def flagged(estimates: pd.DataFrame, flag: str) -> str:
    """Sets with a flag on their throughput or its gain, by name; empty without any."""
    rows = estimates[estimates["quantity"].isin(["rate", "stp"]) & (estimates["host"] == "")]
    rows = rows[rows["flags"].str.split(";").map(lambda found: flag in found).astype(bool)]
    names = (f"{labels.scenario(e.scenario)} {labels.method(e.method)}" for e in _rows(rows))
    return "; ".join(dict.fromkeys(names))


def _of_option(option: Option) -> dict[str, Number]:
    return {title: Number(option.numbers[name], spell) for title, (name, spell) in OPTION.items()}


def _chosen(of: Advice, option: Option) -> str:
    """`advised` or `undecided`, `most throughput`, both or neither; where there is a choice."""
    most = "most throughput" + " within the bounds" * of.any_bound
    named = {"undecided" if of.undecided else "advised": of.advised, most: of.best}
    return ", ".join(name for name, one in named.items() if one == option and of.sets)


def summary(found: Iterable[Advice]) -> pd.DataFrame:
    """What to run of each job that was measured in sets, on one line."""
    made = [
        {"job": labels.job(each.job), "written": _written(each)}
        | {"run": each.advised.label + ", undecided" * each.undecided + UNCHECKED * each.unbound}
        | _of_option(each.advised)
        | {"measured in": Number(each.advised.stp, as_.how_many)}
        for each in found
        if each.advised and each.sets
    ]
    return pd.DataFrame(made)


def alone_only(found: Iterable[Advice]) -> str:
    """Jobs of which no copies were measured together, by name."""
    names = (f"{labels.job(each.job)}, {_written(each)}" for each in found if not each.sets)
    return "; ".join(dict.fromkeys(names))


def options(of: Advice, shown: Sequence[Option] = ()) -> pd.DataFrame:
    """These options; by default those that no other beats in throughput, slowdown and memory
    together.
    """
    shown = shown or of.pareto
    return pd.DataFrame([{"run": o.label, "": _chosen(of, o)} | _of_option(o) for o in shown])


def advice(found: Iterable[Advice]) -> pd.DataFrame:
    """Every measured option of every job."""
    made = [
        {"job": each.job, "written": each.implementation, "run": option.label, "jobs": option.n}
        | {"method": option.method, "pareto": "yes" if option in each.pareto else ""}
        | {"chosen": _chosen(each, option)}
        | _of_option(option)
        for each in found
        for option in each.options
    ]
    return pd.DataFrame(made)
