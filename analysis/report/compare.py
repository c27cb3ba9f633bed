"""Two studies side by side: every number that both have, with its spread.

Reads estimates.parquet of both folders and computes no number. Writes compare.csv, with a row for
each number, and compare.md, with a table for each quantity.
"""

from pathlib import Path

import pandas as pd

from analysis import labels
from analysis.estimates import table as estimates
from analysis.estimates.intervals import CONFIDENCE_TEXT
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.table import NONE
from analysis.report.pages import tables
from analysis.report.pages.spelling import plain

COMPARED = ("rate", "stp", "s", "gaps", "slowdown_worst", "gract", "memory", "energy_per_sample")
APART, UNKNOWN, OVERLAP = "apart", "no spread", "overlap"
UNTESTED = "not testable"  # a verdict, of which no line tells where both studies say so
ORDER = (APART, "differs", UNKNOWN, OVERLAP, "same")  # what differs comes first
BESIDE = ["value", "low", "high", "spread", "status"]
SPELT = [*BESIDE, "n", "hosts", "replicates"]  # what a number is written with


def pairs(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Measured numbers of whole sets over all hosts that stand under one id in both, and verdicts;
    columns of B end in `_b`. `word` says how the two stand to each other, of ORDER: whether their
    spreads (intervals, or ranges over hosts) have anything in common.

    Raises ValueError where the two have no number in common.
    """
    whole = a[a["quantity"].isin(COMPARED) & (a["window"] == "") & (a["job"] == "")]
    whole = whole[(whole["jobs"] > 1) | (whole["quantity"] != "stp")]
    found = pd.concat([whole[whole["host"].eq("")], estimates.select(a, "claim")])
    found = found[found["source"] == estimates.MEASURED]
    found = found.join(b[SPELT].add_suffix("_b"), how="inner")
    claims = found["quantity"] == "claim"
    if not (~claims).any():
        raise ValueError("the two studies have no number in common: no set is in both")
    found["a"] = [labels.span(e) for e in found.itertuples()]
    other = found.assign(**{name: found[f"{name}_b"] for name in SPELT})
    found["b"] = [labels.span(e) for e in other.itertuples()]
    apart = (found["high"] < found["low_b"]) | (found["high_b"] < found["low"])
    word = apart.map({True: APART, False: OVERLAP})
    word = word.mask((found["spread"] == NONE) | (found["spread_b"] == NONE), UNKNOWN)
    verdict = (found["status"] == found["status_b"]).map({True: "same", False: "differs"})
    found = found.assign(word=word.mask(claims, verdict))
    found.loc[claims, ["a", "b"]] = found.loc[claims, ["status", "status_b"]].to_numpy()
    found["rank"] = found["word"].map(ORDER.index)
    return found.sort_values("rank", kind="stable")


def summary(found: pd.DataFrame) -> str:
    """`86 numbers in both: 12 apart, 4 no spread, 70 overlap; 48 verdicts: 1 differs, 47 same`."""
    said = []
    for what, some in found.groupby(found["quantity"] == "claim"):
        words = some["word"].value_counts()
        counts = ", ".join(f"{words[word]} {word}" for word in ORDER if word in words)
        said.append(f"{len(some)} {'verdicts' if what else 'numbers in both'}: {counts}")
    return "; ".join(said)


def markdown(found: pd.DataFrame, names: tuple[str, str]) -> str:
    """compare.md: a table for each quantity, what differs first."""
    lines = [f"# {names[0]} and {names[1]}, side by side", "", f"{summary(found)}.", ""]
    lines += [
        f"In brackets: the {CONFIDENCE_TEXT} interval of a new host, or of the next cell of the "
        "only one; in parentheses: least to most over hosts. "
        "Each study's gains are relative to its own jobs alone. *Apart*: the spreads have nothing "
        "in common; *overlap*: they have."
    ]
    for quantity in (*COMPARED, "claim"):
        of = found[(found["quantity"] == quantity) & (found[["a", "b"]] != UNTESTED).any(axis=1)]
        if len(of):
            titles = {"a": f"A: {names[0]}", "b": f"B: {names[1]}", "word": " "}
            shown = of[[*titles]].rename(columns=titles)
            shown.insert(0, "", [_named(e) for e in of.itertuples()])
            title = QUANTITIES[quantity].title.capitalize()
            lines += ["", f"## {title}", "", tables.markdown(shown)]
    return "\n".join(lines) + "\n"


def _named(e: estimates.Row) -> str:
    if not e.scenario:
        return e.name
    how = f"{labels.method(e.method)}, {labels.implementation(e.implementation)}"
    return f"{labels.scenario(e.scenario)}, {how}"


def write(a: Path, b: Path, output: Path) -> str:
    """Write compare.md and compare.csv into a folder; gives in short what differs."""
    found = pairs(*(estimates.read_estimates(study / "estimates.parquet") for study in (a, b)))
    names = tuple(plain(study.resolve().name) for study in (a, b))
    output.mkdir(parents=True, exist_ok=True)
    page = output / "compare.md"
    page.write_text(markdown(found, names), encoding="utf-8")
    columns = ["id", *BESIDE, *(f"{name}_b" for name in BESIDE), "word"]
    page.with_suffix(".csv").write_text(tables.csv(found[columns]), encoding="utf-8")
    return f"{summary(found)}\n{page}"
