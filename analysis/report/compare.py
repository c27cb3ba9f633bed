"""Two studies side by side: every number that both have, with its interval or range.

Reads estimates.parquet of both folders and computes no number. Writes compare.csv, with a row for
each number, and compare.md, with a table for each quantity.
"""

from pathlib import Path

import pandas as pd

from analysis import labels
from analysis.estimates import table
from analysis.estimates.intervals import CONFIDENCE_TEXT
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.table import NONE, Row
from analysis.report.pages import layout
from analysis.report.pages.spelling import plain

COMPARED = ("rate", "stp", "s", "gaps", "slowdown_worst", "gract", "memory", "energy_per_sample")
APART, UNKNOWN, OVERLAP = "apart", "no spread", "overlap"
UNTESTED = "not testable"  # a verdict; claims that neither study could test are left out
ORDER = (APART, "differs", UNKNOWN, OVERLAP, "same")  # what differs comes first
COLUMNS = ["value", "low", "high", "spread", "status"]  # of each study, in compare.csv


def common_numbers(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Numbers of sets, and verdicts on claims, that two studies have under the same id.

    Columns are those of study A, and those of B with the suffix `_b`; `a` and `b` are both as text.
    Column `word`, one of ORDER, says whether the two intervals (or ranges over hosts) overlap.
    Raises ValueError if the studies have no number in common.
    """
    sets = a[a["quantity"].isin(COMPARED)]
    sets = sets[(sets["window"] == "") & (sets["job"] == "") & (sets["host"] == "")]
    sets = sets[(sets["jobs"] > 1) | (sets["quantity"] != "stp")]
    common = pd.concat([sets, table.select(a, "claim")])
    common = common[common["source"] == table.MEASURED]
    spelt = [*COLUMNS, "n", "hosts", "replicates"]  # what the text of a number depends on
    common = common.join(b[spelt].add_suffix("_b"), how="inner")
    claims = common["quantity"] == "claim"
    if claims.all():
        raise ValueError("the two studies have no number in common: no jobs are in both")
    of_b = common.assign(**{name: common[f"{name}_b"] for name in spelt})
    common["a"] = [labels.span(estimate) for estimate in common.itertuples()]
    common["b"] = [labels.span(estimate) for estimate in of_b.itertuples()]
    common.loc[claims, ["a", "b"]] = common.loc[claims, ["status", "status_b"]].to_numpy()
    apart = (common["high"] < common["low_b"]) | (common["high_b"] < common["low"])
    common["word"] = apart.map({True: APART, False: OVERLAP})
    common.loc[(common["spread"] == NONE) | (common["spread_b"] == NONE), "word"] = UNKNOWN
    alike = (common["status"] == common["status_b"]).map({True: "same", False: "differs"})
    common["word"] = common["word"].mask(claims, alike)
    return common.sort_values("word", key=lambda words: words.map(ORDER.index), kind="stable")


def summary(common: pd.DataFrame) -> str:
    """`86 numbers in both: 12 apart, 4 no spread, 70 overlap; 48 verdicts: 1 differs, 47 same`."""
    parts = []
    for is_claim, rows in common.groupby(common["quantity"] == "claim"):
        words = rows["word"].value_counts()
        counts = ", ".join(f"{words[word]} {word}" for word in ORDER if word in words)
        parts.append(f"{len(rows)} {'verdicts' if is_claim else 'numbers in both'}: {counts}")
    return "; ".join(parts)


def markdown(common: pd.DataFrame, names: tuple[str, str]) -> str:
    """The content of compare.md: a table for each quantity, what differs first.

    common: from common_numbers. names: of the two studies.
    """
    parts = [
        f"# {names[0]} and {names[1]}, side by side",
        f"{summary(common)}.",
        f"In brackets: the {CONFIDENCE_TEXT} interval of a new host, or of the next measurement "
        "on the only one; in parentheses: least to most over hosts. Each study's gains are "
        "relative to its own jobs alone. *Apart*: the intervals or ranges have nothing in "
        "common; *overlap*: they have.",
    ]
    titles = {"a": f"A: {names[0]}", "b": f"B: {names[1]}", "word": " "}
    tested = common[(common[["a", "b"]] != UNTESTED).any(axis=1)]
    for quantity in (*COMPARED, "claim"):
        rows = tested[tested["quantity"] == quantity]
        if len(rows):
            texts = rows[[*titles]].rename(columns=titles)
            texts.insert(0, "", [_name(estimate) for estimate in rows.itertuples()])
            parts += [f"## {QUANTITIES[quantity].title.capitalize()}", layout.markdown(texts)]
    return "\n\n".join(parts) + "\n"


def _name(estimate: Row) -> str:
    """The set that a number is of, or the claim that a verdict is on."""
    if not estimate.scenario:
        return estimate.name
    method_title = labels.method(estimate.method)
    implementation_title = labels.implementation(estimate.implementation)
    return f"{labels.scenario(estimate.scenario)}, {method_title}, {implementation_title}"


def write_comparison(a: Path, b: Path, output: Path) -> str:
    """Compare two studies' folders; writes compare.md and compare.csv, returns what differs."""
    common = common_numbers(
        table.read_estimates(a / "estimates.parquet"), table.read_estimates(b / "estimates.parquet")
    )
    names = (plain(a.resolve().name), plain(b.resolve().name))
    output.mkdir(parents=True, exist_ok=True)
    page = output / "compare.md"
    page.write_text(markdown(common, names), encoding="utf-8")
    columns = ["id", *COLUMNS, *(f"{name}_b" for name in COLUMNS), "word"]
    page.with_suffix(".csv").write_text(layout.csv(common[columns]), encoding="utf-8")
    return f"{summary(common)}\n{page}"
