"""A study as one HTML file that needs no network: choose a job, see what sharing does to it.

It reads estimates.parquet and computes no number. Altair describes the chart and Vega-Lite, which
is in the page, draws it.
"""

import html
import json
from pathlib import Path
from string import Template

import altair
import pandas as pd
import vl_convert

from analysis import labels
from analysis.advice.study import advise
from analysis.estimates import table
from analysis.estimates.intervals import CONFIDENCE_TEXT
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.table import Row
from analysis.files import write_if_changed
from analysis.report.pages.spelling import how_many
from workflow.collocation.study.names import implementation_order, parse_scenario

FOLDER = Path(__file__).parent
DELAYS = ("p99_tpot_ms", "p95_tpot_ms", "p95_e2el_ms")  # of one job of a set
SHOWN = ("stp", "rate", *DELAYS, "slowdown_worst", "s", "over_fastest", "gract", "smact", "memory")
SHOWN += ("energy_per_sample",)
FIRST = ("resnet26_cifar10_b128", "paper_step")  # of README's first row: shown first if measured
WHOLE_NUMBERS = "datum.value % 1 ? '' : datum.label"  # labels of ticks


def chart_rows(estimates: pd.DataFrame) -> list[dict]:
    """The numbers of every set that the page shows, as rows of its chart and its table."""
    rows = estimates[estimates["quantity"].isin(SHOWN) & estimates["value"].notna()]
    rows = rows[(rows["host"] == "") & (rows["window"] == "")]
    rows = rows[rows["source"] == table.MEASURED]
    rows = rows[(rows["job"] == "") | rows["quantity"].isin(DELAYS)]
    return [_chart_row(estimate) for estimate in rows.itertuples(index=False, name="Row")]


def _chart_row(estimate: Row) -> dict:
    parsed = parse_scenario(estimate.scenario)
    has_ends = estimate.low == estimate.low
    low, high = (estimate.low, estimate.high) if has_ends else (estimate.value, estimate.value)
    return {
        "job": parsed.family + (f"--{parsed.variant}" if parsed.variant else ""),
        "implementation": estimate.implementation,
        "quantity": estimate.quantity,
        "jobs": parsed.n,
        "count": " + ".join(str(n) for _, n in parsed.parts),
        "method": labels.method(estimate.method),
        "colour": labels.colour(estimate.method),
        "text": labels.span(estimate),
        "id": estimate.id,
        "measuredIn": how_many(estimate),
        "value": float(f"{estimate.value:.6g}"),
        "low": float(f"{low:.6g}"),
        "high": float(f"{high:.6g}"),
    }


def chart() -> altair.LayerChart:
    """A quantity against the number of jobs, with a line for each method in its colour."""
    legend = altair.Legend(orient="top", columns=3)
    colour = altair.Color("method:N", title=None, sort=None, legend=legend)
    x = altair.X("jobs:Q", title="jobs on the GPU")
    x = x.axis(tickMinStep=1, format="d", labelExpr=WHOLE_NUMBERS, grid=False)
    x = x.scale(zero=False, nice=False, padding=12)
    y = altair.Y("value:Q", title=None).scale(zero=True)
    tips = ("count", "method", "text", "measuredIn", "id")
    base = altair.Chart(altair.NamedData("numbers")).encode(x=x, y=y, color=colour)
    bars = base.mark_rule().encode(y="low:Q", y2="high:Q")
    points = base.mark_point(size=70, filled=True)
    points = points.encode(tooltip=[altair.Tooltip(f"{name}:N") for name in tips])
    return (bars + base.mark_line() + points).properties(width="container", height=300)


def page_data(folder: Path) -> dict:
    """All that the page shows of a study's folder, for explorer.js."""
    estimates = table.read_estimates(folder / "estimates.parquet")
    rows = chart_rows(estimates)
    titles = {}
    for row in rows:
        if row["quantity"] in ("stp", "rate", *DELAYS):
            titles[row["job"]] = _job_title(row["job"])
    implementations = sorted({row["implementation"] for row in rows}, key=implementation_order)
    advice = {}
    for of_job in [] if labels.on_cpu(estimates) else advise(estimates):
        if of_job.sets:
            advice[f"{of_job.job}/{of_job.implementation}"] = " ".join(of_job.sentences())
    quantities = {name: QUANTITIES[name] for name in SHOWN}
    return {
        "name": folder.resolve().name,
        "scope": labels.scope(estimates),
        "rows": rows,
        "jobs": dict(sorted(titles.items(), key=lambda title: ("+" in title[1], title[1]))),
        "implementations": {name: labels.implementation(name) for name in implementations},
        "quantities": {
            name: f"{quantity.title}, {quantity.unit}" if quantity.unit else quantity.title
            for name, quantity in quantities.items()
        },
        "meanings": {name: quantity.meaning for name, quantity in quantities.items()},
        "first": _first([row for row in rows if row["job"] in titles]),
        "advice": advice,
        "chart": chart().to_dict(),
    }


def _job_title(job: str) -> str:
    """Title of a job, or of the jobs of a mix: `a+b--variant` → `A + B (variant)`."""
    names, _, variant = job.partition("--")
    title = " + ".join(labels.job(name) for name in names.split("+"))
    return f"{title} ({variant})" if variant else title


def _first(rows: list[dict]) -> list[str]:
    """Job and implementation to open with: FIRST if it has sets, else those of the largest set."""
    largest, chosen = 0, list(FIRST)
    for row in rows:
        if row["jobs"] > 1 and (row["job"], row["implementation"]) == FIRST:
            return list(FIRST)
        if row["jobs"] > largest:
            largest, chosen = row["jobs"], [row["job"], row["implementation"]]
    return chosen


def html_page(data: dict) -> str:
    """The HTML file. No text of the data is markup: it is escaped, or set as text by the script."""
    compact = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        compact = compact.replace(sign, f"\\u{ord(sign):04x}")
    return Template((FOLDER / "page.html").read_text(encoding="utf-8")).substitute(
        css=(FOLDER / "explorer.css").read_text(encoding="utf-8"),
        js=(FOLDER / "explorer.js").read_text(encoding="utf-8"),
        vega=vl_convert.javascript_bundle().replace("</script", "<\\/script"),
        data=compact,
        study=html.escape(data["name"]),
        confidence=CONFIDENCE_TEXT,
    )


def write_explorer(folder: Path, output: Path) -> None:
    """Write the page of a study's folder."""
    data = labels.for_script(folder, json.dumps(page_data(folder)))
    write_if_changed(output, html_page(json.loads(data)))
