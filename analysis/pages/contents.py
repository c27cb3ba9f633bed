"""The tables of a study's pages: which numbers stand in them, in what order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import pandas as pd

from analysis import estimates as table
from analysis import labels
from analysis.choose import way
from analysis.estimates import MEASURED, Row
from analysis.figures.select import place
from analysis.pages import spelling as as_
from analysis.pages.tables import Number, filled
from workflow.collocation.spec.names import (
    AFTER,
    BEFORE,
    COMPLETION,
    TWIN,
    arm_order,
    method_order,
    parse_scenario,
    scenario_id,
)

WINDOWS = {"": "", BEFORE: ", before others left", AFTER: ", after they left"}
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


def _rows(frame: pd.DataFrame) -> Iterator[Row]:
    return frame.itertuples(index=False, name="Row")


def _named(e: Row) -> dict[str, str]:
    return {"job": labels.scenario(e.scenario, count=False), "written": labels.arm(e.arm)}


def _count(e: Row) -> str:
    return " + ".join(str(n) for _, n in parse_scenario(e.scenario).parts)


def gains(estimates: pd.DataFrame) -> pd.DataFrame:
    """The set of each job and way of writing that does most samples/s (of a mix: the highest STP),
    beside one such job alone.
    """
    stps = table.of(estimates, "stp", window="", job="")
    stps = stps[(stps["jobs"] > 1) & (stps["method"] != TWIN)]

    def family(e: Row) -> tuple[str, str, str]:
        parsed = parse_scenario(e.scenario)
        return e.arm, parsed.family, parsed.variant

    def does(e: Row) -> tuple[float, float]:
        rate = table.get(estimates, "rate", **place(e))
        return rate.value if rate else 0.0, e.value

    best = [max(own, key=does) for _, own in groupby(_rows(stps), key=family)]
    best.sort(key=lambda e: (arm_order(e.arm), -e.value))
    alone, shared = [], []
    for e in best:
        parsed = parse_scenario(e.scenario)
        one = "" if parsed.mixed else scenario_id({parsed.parts[0][0]: 1}, parsed.variant)
        alone.append((place(e) | {"scenario": one, "method": "naive"}, _named(e)))
        shared.append((place(e), {"run": f"{_count(e)} {way(e.method)}"}))
    ones = {"alone, samples/s": ("rate", as_.bare), "SMACT alone": ("smact", as_.num)}
    several = {"STP": ("stp", as_.span), "S": ("s", as_.num)}
    several |= {"slowest takes": ("slowdown_worst", as_.num)}
    several |= {"over fastest": ("over_fastest", as_.span)}
    return filled(estimates, alone, ones).join(filled(estimates, shared, several))


def alone(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every job alone as a plain process, in each way in which it was written."""
    planned = table.of(estimates, "outcome", method="naive")
    planned = planned[planned["jobs"] == 1].sort_values("scenario", kind="stable")
    columns = {
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
    found = [
        (place(e), {"job": labels.scenario(e.scenario), "written": labels.arm(e.arm)})
        for e in _rows(planned)
        if table.get(estimates, "rate", **place(e))
    ]
    return filled(estimates, found, columns)


def over_separate(estimates: pd.DataFrame) -> pd.DataFrame:
    """MPS without limits over separate processes: a row for each job, a column for each count."""
    rows = table.of(estimates, "rate_over_naive", method="mps", window="")
    mixed = rows["scenario"].map(lambda scenario: parse_scenario(scenario).mixed).astype(bool)
    rows = rows[(rows["jobs"] > 1) & ~mixed]
    found: dict[tuple[str, ...], dict[int, Row]] = {}
    for e in _rows(rows):
        found.setdefault(tuple(_named(e).values()), {})[e.jobs] = e
    counts = sorted(set(rows["jobs"]))
    return pd.DataFrame(
        [
            {"job": job, "written": written}
            | {f"{n} jobs": Number(own.get(n), as_.span) for n in counts}
            for (job, written), own in found.items()
        ]
    )


def sets(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every set that was measured, and jobs alone under another method."""
    found = []
    for e in _rows(table.of(estimates, "outcome")):
        for window, said in WINDOWS.items():
            where = place(e) | {"window": window}
            if any(table.get(estimates, name, **where) for name in ("stp", "rate")):
                texts = {"jobs": _count(e), "method": labels.method(e.method) + said}
                found.append((where, _named(e) | texts))
    return filled(estimates, found, SET)


def hosts(estimates: pd.DataFrame) -> pd.DataFrame:
    """Rates, STP and S of everything that several machines measured, machine by machine."""
    known = table.hosts(estimates)
    rows = []
    for quantity in ("rate", "stp", "s", "device_rate"):
        overall = table.of(estimates, quantity, window="", job="")
        for e in _rows(overall[overall["hosts"] > 1]):
            on = {single.host: single for single in _rows(table.on_hosts(estimates, e))}
            texts = {"jobs": _count(e), "method": labels.method(e.method), "quantity": quantity}
            numbers = {"all": e, **{host: on.get(host) for host in known}}
            numbers = {host: Number(number, as_.bare) for host, number in numbers.items()}
            rows.append(_named(e) | texts | numbers)
    return pd.DataFrame(rows)


def machines(estimates: pd.DataFrame) -> pd.DataFrame:
    """What each machine is, and how many cells it measured."""
    rows = table.of(estimates, "count", host="*", name="host_cells")
    return pd.DataFrame(
        [
            {"machine": e.host, "what it is": e.note, "cells": Number(e, as_.count)}
            for e in _rows(rows)
        ]
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
            ("time saved, computed from rates", "saving_by_rates", both, as_.percent),
            ("GPU memory", "memory", both, as_.num),
        ]
        for job, _ in parse_scenario(base).parts:
            title = labels.job(job)
            own = {"job": job}
            wanted += [
                (f"slowdown of {title}", "slowdown", both | own, as_.span),
                (f"speed of {title} once alone", "survivor_over_alone", end | own, as_.span),
            ]
        for title, name, where, spell in wanted:
            ours = table.get(estimates, name, **where)
            paper = where | {"scenario": base, "window": "", "source": "*"}
            theirs = table.of(estimates, name, **paper)
            theirs = next(_rows(theirs[theirs["source"] != MEASURED]), None)
            if ours or theirs:
                cells = {"ours": Number(ours, spell), "the paper": Number(theirs, spell)}
                rows.append(names | {"quantity": title} | cells)
    return pd.DataFrame(rows)


def left(estimates: pd.DataFrame) -> pd.DataFrame:
    """Throughput of the jobs that stay after others left, over their throughput before."""
    return pd.DataFrame(
        [
            {"jobs": labels.scenario(e.scenario), "method": labels.method(e.method)}
            | {"speed after, over before": Number(e, as_.span)}
            for e in _rows(table.of(estimates, "reclaimed"))
        ]
    )


def missing(estimates: pd.DataFrame) -> pd.DataFrame:
    """What was planned and has no result, alike ones in one row."""
    outcomes = table.of(estimates, "outcome")
    outcomes = outcomes[outcomes["value"].fillna(0) == 0]
    alike: dict[tuple[str, str, str], list[Row]] = {}
    for e in sorted(_rows(outcomes), key=lambda e: method_order(e.method)):
        reason = e.note.partition(". ")[0].rpartition("OutOfMemoryError: ")[2]
        alike.setdefault((e.status, reason, e.method), []).append(e)
    return pd.DataFrame(
        [
            {"status": labels.status(status), "method": labels.method(method)}
            | {"jobs": _together(own), "reason": reason}
            for (status, reason, method), own in alike.items()
        ]
    )


def _together(rows: Iterable[Row]) -> str:
    """`2, 3, 7 × ResNet26 b32; 1, 2 × ResNet152 b32`."""
    counts: dict[str, dict[str, None]] = {}
    for e in rows:
        named = ", ".join(_named(e).values())
        counts.setdefault(named, {})[_count(e)] = None
    return "; ".join(f"{', '.join(own)} × {named}" for named, own in counts.items())


def agreement(estimates: pd.DataFrame) -> pd.DataFrame:
    """Comparisons of a set with itself, and of a machine's GPU beside busy ones: the ratio should
    be 1. Shown: the interval excludes a larger difference than the bound.
    """
    rows = []
    for title, quantity, where, bound in (
        ("the same set twice, each in a cell of its own", "rate_over_naive", {"method": TWIN}, 0.1),
        ("the same set twice, in turns in one cell", "aa", {}, 0.003),
        ("while another GPU of the machine was busy", "beside_busy", {"window": ""}, 0.1),
    ):
        for e in _rows(table.of(estimates, quantity, host="*", **where)):
            # A job alone changes its speed with its host.
            most = 10 * bound if quantity == "aa" and e.jobs == 1 else bound
            said = {"compared": title, "jobs": labels.scenario(e.scenario)}
            said |= {"written": labels.arm(e.arm), "machine": e.host}
            said |= {"ratio": Number(e, as_.precise), "of": Number(e, as_.how_many)}
            rows.append(said | {"within its bound": f"{_within(e, most)} ({100 * most:g} %)"})
    return pd.DataFrame(rows)


def _within(e: Row, most: float) -> str:
    """Whether the interval shows that a ratio differs from 1 by no more than so much."""
    if e.low != e.low or any(e.low < end < e.high for end in (1 - most, 1 + most)):
        return "not shown"
    return "yes" if 1 - most < e.low and e.high < 1 + most else "no"


def monitoring(estimates: pd.DataFrame) -> pd.DataFrame:
    """What `make bench` read for the study."""
    rows = _rows(table.of(estimates, "bench"))
    return pd.DataFrame([{"measured": e.note, "value": Number(e, labels.span)} for e in rows])


def flagged(estimates: pd.DataFrame, flag: str) -> str:
    """Sets with a flag on their throughput or its gain, by name; empty without any."""
    rows = estimates[estimates["quantity"].isin(["rate", "stp"]) & (estimates["host"] == "")]
    rows = rows[rows["flags"].str.split(";").map(lambda found: flag in found).astype(bool)]
    names = (f"{labels.scenario(e.scenario)} {labels.method(e.method)}" for e in _rows(rows))
    return "; ".join(dict.fromkeys(names))
