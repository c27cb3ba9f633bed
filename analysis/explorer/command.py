"""A study as one HTML file: how many of a job, by which method? Needs no network.

python -m analysis explorer --folder results/h200 --output results/h200/explorer.html

Reads estimates.parquet of the folder and computes no number.
"""

from __future__ import annotations

import html
import json
from argparse import Namespace
from pathlib import Path
from string import Template

from analysis import advice, labels
from analysis.choose import on_cpu, place, scope, way
from analysis.estimates.schema import BLOCKS, Estimate
from analysis.estimates.table import Estimates
from analysis.quantities import QUANTITIES
from workflow.collocation.spec.names import TWIN, arm_order, family_of, method_order, parse_scenario

HERE = Path(__file__).parent
TABLE = ("rate", "stp", "s", "over_fastest", "slowdown_worst", "memory", "gract")
CHART = ("rate", "stp", "s", "slowdown_worst", "gract", "memory", "energy_per_sample")
CARD = "capacity"  # the same on all hosts
SHOWN = dict.fromkeys((*TABLE, *CHART, CARD))
DASHES = {"naive": "", "mps": "", "mps_equal": "6 3", "mps_overlap": "2 3", "mig": "8 3 2 3"}


def number(e: Estimate, on: list[Estimate]) -> dict:
    """What the page holds of a number: floats of six digits, and its text as labels spell it."""
    text = labels.number(e.value, e.unit)
    found = {"id": e.id, **_place(e), "text": text, "span": labels.span(e)}
    found["spread"] = found["span"].removeprefix(text).strip(" ()")
    found |= {"n": e.n, "hosts": e.hosts, "cells": len(set(e.cells))}
    if e.design not in ("", BLOCKS):
        found["design"] = e.design
    if e.flags:
        found["flags"] = e.flags.replace("_", " ").replace(";", ", ")
    found["on"] = [[h.host, float(f"{h.value:.6g}"), labels.span(h)] for h in on]
    return found


def _place(e: Estimate) -> dict:
    ends = {"low": e.low, "high": e.high} if e.low is not None else {}
    return {name: float(f"{x:.6g}") for name, x in {"value": e.value, **ends}.items()}


def sets(estimates: Estimates) -> dict[tuple[str, str], list[dict]]:
    """The sets of jobs of each job (workloads, variant), those without a number among them."""
    found: dict[tuple[str, str], list[dict]] = {}
    for outcome in estimates.of("outcome"):
        scenario = parse_scenario(outcome.scenario)
        if outcome.method == TWIN:
            continue
        where, numbers = place(outcome), {}
        for quantity in SHOWN:
            e = estimates.get(quantity, **where)
            if e is not None and e.value is not None:
                on = [] if quantity == CARD else estimates.on_hosts(e)
                numbers[quantity] = number(e, on)
        found.setdefault((scenario.family, scenario.variant), []).append(
            where
            | {"n": scenario.n, "title": labels.scenario(outcome.scenario)}
            | {"status": labels.status(outcome.status), "why": outcome.note, "numbers": numbers}
        )
    return found


def jobs(estimates: Estimates) -> list[dict]:
    """Jobs in the order of their list: alike ones, their variants, mixes. Those without a number
    are left out, and variants that were measured alone only.
    """
    every = sets(estimates)
    found = []
    for (family, variant), some in every.items():
        measured = [s["n"] for s in some if s["numbers"]]
        if not measured or (variant and max(measured) == 1):
            continue
        names = [name for name, _ in parse_scenario(some[0]["scenario"]).parts]
        for s in some:
            counts = dict(parse_scenario(s["scenario"]).parts)
            s["count"] = " + ".join(str(counts[name]) for name in names)
        label = " + ".join(labels.job(name) for name in names)
        label += f" ({variant.replace('_', ' ')})" if variant else ""
        key = family + (f"--{variant}" if variant else "")
        fastest = [
            number(e, []) | {"arm": labels.arm(e.arm)}
            for e in estimates.of("fastest_rate", scenario=f"1x_{key}")
        ]
        arms = sorted({s["arm"] for s in some if s["numbers"]}, key=arm_order)
        gained = [s for s in some if "stp" in s["numbers"]]
        unrated = {s["arm"] for s in gained if "rate" not in s["numbers"]}
        by = {arm: "stp" if arm in unrated else "rate" for arm in arms}  # as analysis.advice ranks
        for s in some:
            s["by"] = by.get(s["arm"], "rate")
            s["rewrite"] = _rewriting(estimates, s, f"1x_{key}") if fastest else ""
        found.append(
            {
                "id": key,
                "label": label,
                "mixed": len(names) > 1,
                "sets": some,
                "arms": arms,
                "by": by,
            }
            | {"parts": [labels.job(name) for name in names], "fastest": (*fastest, None)[0]}
        )
    return sorted(found, key=lambda job: (job["mixed"], "(" in job["label"], job["label"]))


def _rewriting(estimates: Estimates, a_set: dict, one: str) -> str:
    """What analysis.advice says of rewriting the job (`one` of it), if this set is advised."""
    where = {name: a_set[name] for name in ("scenario", "arm", "method")}
    alone = estimates.get("over_fastest", scenario=one, arm=a_set["arm"], method="naive")
    stp, over = (estimates.get(quantity, **where) for quantity in ("stp", "over_fastest"))
    if stp is None or stp.value is None:
        return ""
    option = advice.Option(a_set["method"], a_set["n"], stp.value, stp, over_fastest=over)
    return advice.rewriting(alone, option)


def data(estimates: Estimates, folder: Path) -> dict:
    """All that the page shows."""
    counts = {e.name: int(e.value) for e in estimates.of("count") if e.value is not None}
    some = jobs(estimates)
    methods = sorted({s["method"] for job in some for s in job["sets"]}, key=method_order)
    completed, planned = counts.get("cells_completed", 0), counts.get("cells", 0)
    said = f"{completed} of {planned} planned cells completed. {scope(estimates)[0]}"
    return {
        "study": folder.name,
        "folder": f"results/{folder.name}",
        "said": said,
        "advises": not on_cpu(estimates),
        "table": TABLE,
        "chart": CHART,
        "quantities": {
            q: {"title": k.title, "unit": k.unit, "meaning": k.meaning, "over": k.relative_to}
            for q, k in ((q, QUANTITIES[q]) for q in SHOWN)
        },
        "methods": {
            m: {"label": labels.method(m), "phrase": phrase(m), "colour": labels.colour(m)}
            | {"marker": labels.marker(m), "dash": DASHES.get(m, "1 3")}
            for m in methods
        },
        "arms": {arm: labels.arm(arm) for arm in estimates.arms()},
        "jobs": some,
        "untold": advice.UNTOLD,
        "near": advice.NEAR,
    }


def phrase(method: str) -> str:
    """How a sentence says the method: `as plain processes`, `under MPS, equal shares`."""
    return f"in {labels.method(method)} instances" if family_of(method) == "mig" else way(method)


def page(held: dict) -> str:
    """The HTML file. No text of the data is markup: it is escaped, or set as text by the script."""
    compact = json.dumps(held, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        compact = compact.replace(sign, f"\\u{ord(sign):04x}")
    read = {name: (HERE / f"explorer.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    template = Template((HERE / "page.html").read_text(encoding="utf-8"))
    return template.substitute(read, data=compact, study=html.escape(held["study"]))


def run(given: Namespace) -> None:
    """The command: writes the page."""
    held = data(Estimates.read(given.folder / "estimates.parquet"), given.folder.resolve())
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(page(held), encoding="utf-8")
