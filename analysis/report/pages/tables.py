"""The tables of a study's pages: which estimates stand in their rows and columns.

Each function returns a DataFrame whose cells are texts or Numbers; `layout` writes it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import pandas as pd

from analysis import labels
from analysis.estimates import table
from analysis.estimates.coverage import CELLS, COVERED, HOSTS
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.table import MEASURED, Row, place
from analysis.report.pages import spelling
from analysis.report.pages.layout import Number
from workflow.collocation.study.names import (
    AFTER,
    ALONE_VARIANTS,
    BEFORE,
    COMPLETION,
    SHARED,
    family_of,
    implementation_order,
    method_order,
    parse_scenario,
    scenario_id,
)

WINDOWS = {"": "", BEFORE: ", before others left", AFTER: ", after they left"}
Columns = Mapping[str, tuple[str, spelling.Spelling]]  # title → quantity, and how it is written
ALONE_BESIDE_SET = {
    "alone, samples/s": ("rate", spelling.bare),
    "SMACT alone": ("smact", spelling.num),
}
GAIN = {
    "STP": ("stp", spelling.span),
    "overlap": ("s", spelling.num),
    "slowest takes": ("slowdown_worst", spelling.num),
    "over the fastest alone": ("over_fastest", spelling.span),
}
ALONE = {
    "samples/s": ("rate", spelling.span),
    "GRACT": ("gract", spelling.num),
    "SMACT": ("smact", spelling.num),
    "DRAMA": ("drama", spelling.num),
    "memory": ("memory", spelling.num),
    "over the fastest alone": ("over_fastest", spelling.span),
    "waits for its host": ("waits", spelling.share),
    "samples/s of busy GPU": ("device_rate", spelling.bare),
    "measured in": ("rate", spelling.how_many),
}
SET = {
    "samples/s": ("rate", spelling.bare),
    "STP": ("stp", spelling.span),
    "overlap": ("s", spelling.span),
    "over the fastest alone": ("over_fastest", spelling.span),
    "slowest takes": ("slowdown_worst", spelling.num),
    "GRACT": ("gract", spelling.num),
    "SMACT": ("smact", spelling.num),
    "memory": ("memory", spelling.num),
    "mJ/sample": ("energy_per_sample", spelling.millis),
    "edge error": ("energy_edge_error", spelling.share),
}
LIMITED = {name: SET[name] for name in ("samples/s", "STP", "slowest takes", "GRACT", "SMACT")}
LIMITED["samples/s over MPS without limits"] = ("rate_over_mps", spelling.span)
INPUT = {
    "samples/s": ("rate", spelling.span),
    "waits for data": ("data_wait", spelling.share),
    "CPU ms/sample": ("cpu_per_sample", spelling.millis),
    "GPU memory": ("memory", spelling.num),
    "host memory": ("host_memory", spelling.num),
    "samples a job": ("samples", spelling.count),
    "of them distinct": ("distinct", spelling.count),
}
SERVED = {
    "TTFT p99, ms": ("p99_ttft_ms", spelling.span),
    "TPOT p50, ms": ("p50_tpot_ms", spelling.bare),
    "TPOT p99, ms": ("p99_tpot_ms", spelling.span),
    "TPOT p99 over alone": ("tpot_over_alone", spelling.num),
    "ITL p99, ms": ("p99_itl_ms", spelling.bare),
    "E2EL p95, ms": ("p95_e2el_ms", spelling.span),
    "E2EL p95 over alone": ("e2el_over_alone", spelling.num),
    "answered": ("answered_share", spelling.share),
    "goodput": ("request_goodput", spelling.bare),
}


def _rows(frame: pd.DataFrame) -> Iterator[Row]:
    return frame.itertuples(index=False, name="Row")


def _job_and_implementation(estimate: Row) -> dict[str, str]:
    return {
        "job": labels.scenario(estimate.scenario, count=False),
        "written": labels.implementation(estimate.implementation),
    }


def _counts(estimate: Row) -> str:
    """How many of each job a set has: `7`, `1 + 3`."""
    return " + ".join(str(n) for _, n in parse_scenario(estimate.scenario).parts)


def _numbers(estimates: pd.DataFrame, columns: Columns, **where: str) -> dict[str, Number]:
    """A set's estimates by column title."""
    return {
        title: Number(table.get(estimates, quantity, **where), spell)
        for title, (quantity, spell) in columns.items()
    }


def gains(estimates: pd.DataFrame) -> pd.DataFrame:
    """The best set of each job and implementation, beside one such job alone.

    The best has the most samples/s; of mixes, which have no common rate, the highest STP.
    """
    best: dict[tuple, tuple[tuple[float, float], Row]] = {}
    for stp in _rows(table.select(estimates, "stp", window="", job="")):
        if stp.jobs == 1 or labels.has_mps_limits(stp.method):
            continue
        rate = table.get(estimates, "rate", **place(stp))
        rank = (rate.value if rate else 0.0, stp.value)
        parsed = parse_scenario(stp.scenario)
        key = (stp.implementation, parsed.family, parsed.variant)
        if key not in best or rank > best[key][0]:
            best[key] = (rank, stp)
    rows = []
    chosen = [stp for _, stp in best.values()]
    for stp in sorted(chosen, key=lambda e: (implementation_order(e.implementation), -e.value)):
        parsed = parse_scenario(stp.scenario)
        alone = place(stp) | {"scenario": "", "method": "naive"}
        if not parsed.mixed:
            alone["scenario"] = scenario_id({parsed.parts[0][0]: 1}, parsed.variant)
        rows.append(
            _job_and_implementation(stp)
            | _numbers(estimates, ALONE_BESIDE_SET, **alone)
            | {"run": f"{_counts(stp)} {labels.method_phrase(stp.method)}"}
            | _numbers(estimates, GAIN, **place(stp))
        )
    return pd.DataFrame(rows)


def alone(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every job alone as a separate process, in each implementation that was measured."""
    planned = table.select(estimates, "outcome", method="naive")
    planned = planned[planned["jobs"] == 1].sort_values("scenario", kind="stable")
    measured = [e for e in _rows(planned) if table.get(estimates, "rate", **place(e))]
    return pd.DataFrame(
        _job_and_implementation(e) | _numbers(estimates, ALONE, **place(e)) for e in measured
    )


def over(estimates: pd.DataFrame, quantity: str, method: str) -> pd.DataFrame:
    """A method's rate over that of another: a row for each job, a column for each count of jobs.

    quantity: the ratio, such as `rate_over_naive`.
    """
    by_job: dict[tuple[str, ...], dict[int, Row]] = defaultdict(dict)
    for ratio in _rows(table.select(estimates, quantity, method=method, window="")):
        if ratio.jobs > 1 and not parse_scenario(ratio.scenario).mixed:
            by_job[tuple(_job_and_implementation(ratio).values())][ratio.jobs] = ratio
    counts = sorted(set().union(*by_job.values()))
    rows = []
    for (job, implementation), ratios in by_job.items():
        numbers = {f"{n} jobs": Number(ratios.get(n), spelling.span) for n in counts}
        rows.append({"job": job, "written": implementation} | numbers)
    return pd.DataFrame(rows)


def sets(estimates: pd.DataFrame) -> pd.DataFrame:
    """Every set that was measured, and jobs alone under another method."""
    return _sets(estimates, table.select(estimates, "outcome"), SET)


def limited(estimates: pd.DataFrame) -> pd.DataFrame:
    """Jobs under MIG, or under MPS with limits of SMs or priorities."""
    outcomes = table.select(estimates, "outcome")
    methods = outcomes["method"]
    wanted = [family_of(name) == "mig" or labels.has_mps_limits(name) for name in methods]
    return _sets(estimates, outcomes[wanted], LIMITED)


def _sets(estimates: pd.DataFrame, outcomes: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    rows = []
    for outcome in _rows(outcomes):
        for window, remark in WINDOWS.items():
            where = place(outcome) | {"window": window}
            if table.get(estimates, "stp", **where) or table.get(estimates, "rate", **where):
                method = labels.method(outcome.method) + remark
                texts = {"jobs": _counts(outcome), "method": method}
                numbers = _numbers(estimates, columns, **where)
                rows.append(_job_and_implementation(outcome) | texts | numbers)
    return pd.DataFrame(rows)


def hosts(estimates: pd.DataFrame) -> pd.DataFrame:
    """Rates, STP and overlap of everything that several hosts measured, host by host."""
    rows, by_id, names = [], table.by_id(estimates), table.hosts(estimates)
    for quantity in ("rate", "stp", "s", "device_rate"):
        for overall in _rows(table.select(estimates, quantity, window="", job="")):
            if overall.hosts < 2:
                continue
            row = _job_and_implementation(overall) | {
                "jobs": _counts(overall),
                "method": labels.method(overall.method),
                "quantity": quantity,
                "all": Number(overall, spelling.bare),
            }
            for host in names:
                row[host] = Number(by_id.get(f"{overall.id}@{host}"), spelling.bare)
            rows.append(row)
    return pd.DataFrame(rows)


def machines(estimates: pd.DataFrame) -> pd.DataFrame:
    """What each host is, and how many cells it measured."""
    rows = []
    for cells in _rows(table.select(estimates, "count", host="*", name="host_cells")):
        count = Number(cells, spelling.count)
        rows.append({"host": cells.host, "what it is": cells.note, "measurements": count})
    return pd.DataFrame(rows)


def pair(estimates: pd.DataFrame) -> pd.DataFrame:
    """Mixes that ran to the end of fixed work: our numbers, and those that the paper reports."""
    rows = []
    for saving in _rows(table.select(estimates, "saving", window=COMPLETION)):
        mix = saving.scenario.split("--")[0]
        together = place(saving) | {"scenario": mix}
        to_the_end = place(saving) | {"window": COMPLETION}
        wanted = [
            ("time saved, both run to the end", "saving", to_the_end, spelling.percent),
            ("GPU memory", "memory", together, spelling.num),
        ]
        for job, _ in parse_scenario(mix).parts:
            title = f"slowdown of {labels.job(job)}"
            wanted.append((title, "slowdown", together | {"job": job}, spelling.span))
        for title, quantity, where, spell in wanted:
            ours = table.get(estimates, quantity, **where)
            in_paper = where | {"scenario": mix, "window": "", "source": "*"}
            reported = table.select(estimates, quantity, **in_paper)
            theirs = next(_rows(reported[reported["source"] != MEASURED]), None)
            if ours or theirs:
                rows.append(
                    {"jobs": labels.scenario(mix), "method": labels.method(saving.method)}
                    | {"quantity": title, "ours": Number(ours, spell)}
                    | {"the paper": Number(theirs, spell)}
                )
    if not any(row["the paper"].estimate for row in rows):
        return pd.DataFrame(rows).drop(columns="the paper", errors="ignore")
    return pd.DataFrame(rows)


def after_departure(estimates: pd.DataFrame) -> pd.DataFrame:
    """Throughput of the jobs that stay after others left, over their throughput before."""
    rows = []
    for ratio in _rows(table.select(estimates, "reclaimed")):
        texts = {"jobs": labels.scenario(ratio.scenario), "method": labels.method(ratio.method)}
        rows.append(texts | {"speed after, over before": Number(ratio, spelling.span)})
    return pd.DataFrame(rows)


def missing(estimates: pd.DataFrame) -> pd.DataFrame:
    """What was planned and has no result; sets that failed alike stand in one row."""
    outcomes = table.select(estimates, "outcome")
    outcomes = outcomes[outcomes["value"].fillna(0) == 0]
    alike: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for outcome in sorted(_rows(outcomes), key=lambda e: method_order(e.method)):
        reason = outcome.note.partition(". ")[0].rpartition("OutOfMemoryError: ")[2]
        jobs = alike.setdefault((outcome.status, reason, outcome.method), {})
        counts = jobs.setdefault(", ".join(_job_and_implementation(outcome).values()), [])
        if _counts(outcome) not in counts:
            counts.append(_counts(outcome))
    rows = []
    for (status, reason, method), jobs in alike.items():
        sets = [f"{', '.join(counts)} × {job}" for job, counts in jobs.items()]
        texts = {"status": labels.status(status), "method": labels.method(method)}
        rows.append(texts | {"jobs": "; ".join(sets), "reason": reason})
    return pd.DataFrame(rows)


def inputs(estimates: pd.DataFrame) -> pd.DataFrame:
    """The jobs that one loader feeds, and the same jobs with other input."""
    rows = []
    for outcome in _rows(table.select(estimates, "outcome")):
        parsed = parse_scenario(outcome.scenario)
        if parsed.variant != SHARED:
            continue
        for mode in ALONE_VARIANTS:
            where = place(outcome) | {"scenario": scenario_id(dict(parsed.parts), mode)}
            if table.get(estimates, "rate", **where):
                rows.append(
                    {"job": labels.scenario(outcome.scenario.split("--")[0], count=False)}
                    | {"written": labels.implementation(outcome.implementation)}
                    | {"jobs": str(parsed.n), "method": labels.method(outcome.method)}
                    | {"input": mode or "resident"}
                    | _numbers(estimates, INPUT, **where)
                )
    return pd.DataFrame(rows)


def served(estimates: pd.DataFrame) -> pd.DataFrame:
    """Latencies of jobs that answer requests or triggers, and the rate of the job beside them."""
    answered = table.select(estimates, "answered_share", job="*")
    several = answered["implementation"].nunique() > 1
    rows = []
    for estimate in _rows(answered):
        jobs = [name for name, _ in parse_scenario(estimate.scenario).parts]
        trained = [name for name in jobs if name != estimate.job] if len(jobs) == 2 else []
        beside = trained[0] if trained else ""
        rate = table.get(estimates, "job_rate", **place(estimate), job=beside) if beside else None
        texts = {"job": labels.job(estimate.job or jobs[0]), "beside": labels.job(beside)}
        if several:
            texts["written"] = labels.implementation(estimate.implementation)
        texts["method"] = labels.method(estimate.method)
        latencies = _numbers(estimates, SERVED, **place(estimate), job=estimate.job)
        rows.append(texts | latencies | {"training, samples/s": Number(rate, spelling.span)})
    return pd.DataFrame(rows)


def coverage(estimates: pd.DataFrame) -> pd.DataFrame:
    """How many cells and hosts lie in the interval made without them, by kind and quantity."""
    names, rows = set(table.select(estimates, "covered")["name"]), []
    for kind, title in labels.KINDS.items():
        for quantity in COVERED:
            of_cells, of_hosts = f"{CELLS}/{kind}/{quantity}", f"{HOSTS}/{kind}/{quantity}"
            if of_cells in names or of_hosts in names:
                cells = table.get(estimates, "covered", name=of_cells)
                new_hosts = table.get(estimates, "covered", name=of_hosts)
                rows.append(
                    {"jobs": title, "quantity": QUANTITIES[quantity].title}
                    | {"next measurements inside": Number(cells, spelling.share_of)}
                    | {"new hosts inside": Number(new_hosts, spelling.share_of)}
                )
    return pd.DataFrame(rows)


def agreement(estimates: pd.DataFrame) -> pd.DataFrame:
    """Comparisons of a set with itself, whose ratio should be 1, and whether it is near enough."""
    rows = []
    for ratio in _rows(table.select(estimates, "aa", host="*")):
        bound = 0.03 if ratio.jobs == 1 else 0.003  # a job alone changes its speed with its host
        rows.append(
            {"compared": "the same jobs twice, in turns"}
            | {"jobs": labels.scenario(ratio.scenario)}
            | {"written": labels.implementation(ratio.implementation), "host": ratio.host}
            | {"ratio": Number(ratio, spelling.precise), "of": Number(ratio, spelling.how_many)}
            | {"within its bound": f"{_is_within(ratio, bound)} ({100 * bound:g} %)"}
        )
    return pd.DataFrame(rows)


def _is_within(ratio: Row, bound: float) -> str:
    """Whether the interval shows that a ratio differs from 1 by no more than a bound."""
    low, high = ratio.low, ratio.high
    if low != low or low < 1 - bound < high or low < 1 + bound < high:
        return "not shown"
    return "yes" if 1 - bound < low and high < 1 + bound else "no"


def flagged(estimates: pd.DataFrame, flag: str) -> str:
    """Names of the sets with a flag on their throughput or its gain; empty without any."""
    names = {}
    for estimate in _rows(estimates[estimates["quantity"].isin(["rate", "stp"])]):
        if not estimate.host and flag in estimate.flags.split(";"):
            names[f"{labels.scenario(estimate.scenario)} {labels.method(estimate.method)}"] = None
    return "; ".join(names)
