"""A study as one HTML file that needs no network: choose a job, see what sharing does to it.

Reads estimates.parquet of the folder and computes no number. Altair describes the chart, Vega-Lite
draws it; its scripts are in the page.
"""

import html
import json
from pathlib import Path
from string import Template

import altair
import pandas as pd
import vl_convert

from analysis import labels
from analysis.advice import study as advice
from analysis.choose import on_cpu, scope
from analysis.estimates import table as estimates
from analysis.estimates.intervals import CONFIDENCE_TEXT
from analysis.estimates.quantities import QUANTITIES
from analysis.files import write_if_changed
from analysis.report.pages.spelling import how_many
from workflow.collocation.study.names import implementation_order, parse_scenario

HERE = Path(__file__).parent
DELAYS = ("p99_tpot_ms", "p95_tpot_ms", "p95_e2el_ms")  # of the one job of a set that has any
SHOWN = ("stp", "rate", *DELAYS, "slowdown_worst", "s", "over_fastest", "gract", "smact", "memory")
SHOWN += ("energy_per_sample",)
# README's first row: shown first where it has sets.
FIRST = ("resnet26_cifar10_b128", "paper_step")
WHOLE = "datum.value % 1 ? '' : datum.label"  # a tick between two numbers of jobs has no label


def rows(found: pd.DataFrame) -> list[dict]:
    """What is drawn and listed: the numbers of every set, by job, implementation and quantity."""
    some = found[found["quantity"].isin(SHOWN) & (found["host"] == "") & (found["window"] == "")]
    some = some[some["source"] == estimates.MEASURED]
    some = some[(some["job"] == "") | some["quantity"].isin(DELAYS)]
    some = some[some["value"].notna()]
    return [_row(e) for e in some.itertuples(index=False, name="Row")]


def _row(e: estimates.Row) -> dict:
    parsed = parse_scenario(e.scenario)
    low, high = (e.low, e.high) if e.low == e.low else (e.value, e.value)
    return {
        "job": parsed.family + (f"--{parsed.variant}" if parsed.variant else ""),
        "implementation": e.implementation,
        "quantity": e.quantity,
        "jobs": parsed.n,
        "count": " + ".join(str(n) for _, n in parsed.parts),
        "method": labels.method(e.method),
        "colour": labels.colour(e.method),
        "text": labels.span(e),
        "id": e.id,
        "of": how_many(e),
        "value": float(f"{e.value:.6g}"),
        "low": float(f"{low:.6g}"),
        "high": float(f"{high:.6g}"),
    }


def chart() -> altair.LayerChart:
    """Values over the number of jobs, a line for each method in the colour that its rows have."""
    legend = altair.Legend(orient="top", columns=3)
    colour = altair.Color("method:N", title=None, sort=None, legend=legend)
    x = altair.X("jobs:Q", title="jobs on the GPU").axis(
        tickMinStep=1, format="d", labelExpr=WHOLE, grid=False
    )
    x = x.scale(zero=False, nice=False, padding=12)
    y = altair.Y("value:Q", title=None).scale(zero=True)
    tips = [altair.Tooltip(f"{name}:N") for name in ("count", "method", "text", "of", "id")]
    base = altair.Chart(altair.NamedData("shown")).encode(x=x, y=y, color=colour)
    bars = base.mark_rule().encode(y="low:Q", y2="high:Q")
    points = base.mark_point(size=70, filled=True).encode(tooltip=tips)
    return (bars + base.mark_line() + points).properties(width="container", height=300)


def data(folder: Path) -> dict:
    """All that the page shows."""
    found = estimates.read_estimates(folder / "estimates.parquet")
    every = rows(found)
    named = {}
    for job in (row["job"] for row in every if row["quantity"] in ("stp", "rate", *DELAYS)):
        names, _, variant = job.partition("--")
        named[job] = " + ".join(map(labels.job, names.split("+"))) + f" ({variant})" * bool(variant)
    advised = [] if on_cpu(found) else advice.advise(found)
    titles = {name: QUANTITIES[name] for name in SHOWN}

    def crowd(row: dict) -> tuple[bool, int]:
        foremost = (row["job"], row["implementation"]) == FIRST
        return foremost and row["jobs"] > 1, row["jobs"]

    shown = [row for row in every if row["job"] in named]
    first = max(shown, key=crowd, default={"job": FIRST[0], "implementation": FIRST[1]})
    return {
        "study": folder.resolve().name,
        "said": scope(found),
        "rows": every,
        "jobs": dict(sorted(named.items(), key=lambda item: ("+" in item[1], item[1]))),
        "implementations": {
            a: labels.implementation(a)
            for a in sorted({row["implementation"] for row in every}, key=implementation_order)
        },
        "quantities": {n: q.title + (f", {q.unit}" if q.unit else "") for n, q in titles.items()},
        "meanings": {name: q.meaning for name, q in titles.items()},
        "first": [first["job"], first["implementation"]],
        "advice": {
            f"{a.job}/{a.implementation}": " ".join(a.sentences()) for a in advised if a.sets
        },
        "chart": chart().to_dict(),
    }


def page(held: dict) -> str:
    """The HTML file. No text of the data is markup: it is escaped, or set as text by the script."""
    compact = json.dumps(held, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        compact = compact.replace(sign, f"\\u{ord(sign):04x}")
    read = {name: (HERE / f"explorer.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    vega = vl_convert.javascript_bundle().replace("</script", "<\\/script")
    template = Template((HERE / "page.html").read_text(encoding="utf-8"))
    read |= {"study": html.escape(held["study"]), "confidence": CONFIDENCE_TEXT}
    return template.substitute(read, data=compact, vega=vega)


def write(folder: Path, output: Path) -> None:
    """Write the page of a study."""
    held = labels.of_script(folder, json.dumps(data(folder)))
    write_if_changed(output, page(json.loads(held)))
