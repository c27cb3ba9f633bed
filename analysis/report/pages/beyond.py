"""The tables of what goes beyond the paper: one loader for all jobs, jobs that answer requests."""

import pandas as pd

from analysis import labels
from analysis.choose import place
from analysis.estimates import table
from analysis.report.pages import spelling as as_
from analysis.report.pages.contents import named, numbers
from analysis.report.pages.tables import Number
from workflow.collocation.study.names import ALONE_VARIANTS, SHARED, parse_scenario, scenario_id

INPUT = {
    "samples/s": ("rate", as_.span),
    "waits for data": ("data_wait", as_.share),
    "CPU ms/sample": ("cpu_per_sample", as_.millis),
    "GPU memory": ("memory", as_.num),
    "host memory": ("host_memory", as_.num),
    "samples a job": ("samples", as_.count),
    "of them distinct": ("distinct", as_.count),
}
SERVED = {
    "TTFT p99, ms": ("p99_ttft_ms", as_.span),
    "TPOT p50, ms": ("p50_tpot_ms", as_.bare),
    "TPOT p99, ms": ("p99_tpot_ms", as_.span),
    "TPOT p99 over alone": ("tpot_over_alone", as_.num),
    "ITL p99, ms": ("p99_itl_ms", as_.bare),
    "E2EL p95, ms": ("p95_e2el_ms", as_.span),
    "E2EL p95 over alone": ("e2el_over_alone", as_.num),
    "answered": ("answered_share", as_.share),
    "goodput": ("request_goodput", as_.bare),
}


def inputs(estimates: pd.DataFrame) -> pd.DataFrame:
    """The jobs that one loader feeds, and the same fed otherwise."""
    rows = []
    for e in table.select(estimates, "outcome").itertuples():
        parsed = parse_scenario(e.scenario)
        for mode in ALONE_VARIANTS if parsed.variant == SHARED else ():
            where = place(e) | {"scenario": scenario_id(dict(parsed.parts), mode)}
            if table.get(estimates, "rate", **where):
                plain = e.scenario.split("--")[0]
                texts = named(e._replace(scenario=plain)) | {"jobs": str(parsed.n)}
                texts |= {"method": labels.method(e.method), "input": mode or "resident"}
                rows.append(texts | numbers(estimates, INPUT, **where))
    return pd.DataFrame(rows)


def served(estimates: pd.DataFrame) -> pd.DataFrame:
    """Latencies of what answers requests or triggers, and the rate of what trains beside it."""
    rows, found = [], table.select(estimates, "answered_share", job="*")
    several = found["implementation"].nunique() > 1
    for e in found.itertuples():
        jobs = [name for name, _ in parse_scenario(e.scenario).parts]
        trained = next((name for name in jobs if len(jobs) == 2 and name != e.job), "")
        rate = trained and table.get(estimates, "job_rate", **place(e), job=trained)
        texts = {"job": labels.job(e.job or jobs[0]), "beside": labels.job(trained)}
        texts |= {"written": labels.implementation(e.implementation)} if several else {}
        texts |= {"method": labels.method(e.method)}
        beside = {"training, samples/s": Number(rate or None, as_.span)}
        rows.append(texts | numbers(estimates, SERVED, **place(e), job=e.job) | beside)
    return pd.DataFrame(rows)
