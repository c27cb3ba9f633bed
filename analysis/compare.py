"""Two studies side by side: every number that both have, with its spread.

python -m analysis compare results/h200 results/mine --output results/compare

Reads estimates.parquet of both folders and computes no number. `spreads` says whether the two
spreads overlap: intervals of one host or ranges over hosts; without a spread in both it says so.
Writes compare.md, compare.csv and compare.html.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis import labels
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.schema import BLOCKS, BOTH, NONE, Estimate
from analysis.estimates.table import Estimates
from analysis.pages import html
from analysis.pages.spelling import plain
from analysis.pages.tables import Number, csv
from analysis.rules import Verdict
from workflow.collocation.spec.names import ALTERNATE, TWIN

CLAIM = "claim"
COMPARED = ("rate", "stp", "s", "gaps", "slowdown_worst", "gract", "memory", "energy_per_sample")
OVERLAP, APART, UNKNOWN, SAME, OTHER = "overlap", "apart", "no spread", "same", "differs"
OPEN = "open"  # of a claim that is not decided in both
ORDER = (APART, OTHER, UNKNOWN, OPEN, OVERLAP, SAME)  # what differs comes first
DECIDED = {Verdict.HOLDS, Verdict.CONTRADICTED, Verdict.DEPENDS}


@dataclass(frozen=True)
class Pair:
    """One number in both studies. word: how the two stand to each other, of ORDER."""

    a: Estimate
    b: Estimate

    @property
    def verdicts(self) -> set[str]:
        return {self.a.status, self.b.status}

    @property
    def word(self) -> str:
        if self.a.quantity == CLAIM:
            both = self.verdicts
            return SAME if len(both) == 1 else OTHER if both <= DECIDED else OPEN
        if NONE in (self.a.spread, self.b.spread):
            return UNKNOWN
        if labels.span(self.a) == labels.span(self.b):
            return SAME
        apart = self.a.high < self.b.low or self.b.high < self.a.low
        return APART if apart else OVERLAP

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """Of what, value and spread in both (of a claim the verdicts), and the word."""
        a, b = self.a, self.b
        if a.quantity == CLAIM:
            return a.name, labels.status(a.status), labels.status(b.status), self.word
        names = (labels.scenario(a.scenario), labels.method(a.method), labels.arm(a.arm))
        return ", ".join(names), labels.span(a), labels.span(b), self.word


def pairs(a: Estimates, b: Estimates, quantities: Sequence[str] = COMPARED) -> list[Pair]:
    """Measured numbers of whole sets over all hosts that stand under one id in both, and verdicts
    that at least one has; no gain of a job alone over itself.

    Raises ValueError where the two have no number in common.
    """
    found = [
        Pair(e, b[e.id])
        for quantity in quantities
        for e in a.of(quantity, window="", job="")
        if e.method != TWIN
        and e.id in b
        and None not in (e.value, b[e.id].value)
        and not (e.over_itself and b[e.id].over_itself)
    ]
    if not found:
        raise ValueError(f"nothing in common: A has {_contents(a)}; B has {_contents(b)}")
    claims = [Pair(e, b[e.id]) for e in a.of(CLAIM) if e.id in b]
    return found + [pair for pair in claims if pair.verdicts != {Verdict.NOT_TESTABLE}]


def _contents(estimates: Estimates) -> str:
    """`ResNet26 b32, DLRM b2048 (paper style)`, or that nothing completed."""
    done = Estimates(e for e in estimates.of("outcome") if e.status == "completed")
    jobs, arms = map(labels.job, done.workloads()), map(labels.arm, done.arms())
    return f"{', '.join(jobs)} ({', '.join(arms)})" if len(done) else "no completed set"


def about(estimates: Estimates) -> str:
    """`2 hosts (NVIDIA H200), sets in turns`: from the notes of the study's hosts, and designs."""
    count = len(estimates.hosts())
    found = {e.design for e in estimates.of("rate", window="", job="") if e.jobs > 1}
    ways = {ALTERNATE: "sets in turns", BLOCKS: "sets in cells of their own"}
    told = " and ".join(text for way, text in ways.items() if found & {way, BOTH})
    where = f"{count} host{'' if count == 1 else 's'} ({', '.join(estimates.hardware())})"
    return ", ".join(filter(None, (where, told)))


def table(found: Sequence[Pair]) -> pd.DataFrame:
    """compare.csv."""
    rows = []
    for pair in found:
        name, a, b, word = pair.texts
        cells = (Number(pair.a), Number(pair.b), "", "")
        if pair.a.quantity == CLAIM:
            cells = (Number(None), Number(None), a, b)
        rows.append((pair.a.quantity, name, *cells, word))
    columns = ["quantity", "of", "A", "B", "verdict in A", "verdict in B", "spreads"]
    return pd.DataFrame(rows, columns=columns)


def summary(found: Sequence[Pair]) -> str:
    """`86 numbers in both: 12 apart, 4 no spread, 70 overlap; 3 verdicts: 1 differs, 2 same`."""
    said = []
    for what in ("numbers in both", "verdicts"):
        some = [pair for pair in found if (pair.a.quantity == CLAIM) == (what == "verdicts")]
        words = Counter(pair.word for pair in some)
        counts = ", ".join(f"{words[word]} {word}" for word in ORDER if words[word])
        said += [f"{len(some)} {what}: {counts}"] * bool(some)
    return "; ".join(said)


def markdown(found: Sequence[Pair], names: Sequence[str], studies: Sequence[str]) -> str:
    """compare.md: what the two are, then a table for each quantity, what differs first."""
    lines = [f"# {plain(names[0])} and {plain(names[1])}, side by side", ""]
    lines += [
        f"- {s}: {plain(n)}, {plain(h)}" for s, n, h in zip("AB", names, studies, strict=True)
    ]
    lines += ["", f"{summary(found)}.", ""]
    lines += [
        "In parentheses: least to most over hosts; in brackets: the 95 % interval of one host. "
        "Each study's gains are relative to its own jobs alone. *Apart*: the spreads have nothing "
        "in common; *overlap*: they have; *same*: they read alike. "
        "Of verdicts, *differs* says that both studies decide the claim, *open* that they do not."
    ]
    for quantity in dict.fromkeys(pair.a.quantity for pair in found):
        some = [pair for pair in found if pair.a.quantity == quantity]
        known, claims = QUANTITIES[quantity], quantity == CLAIM
        title = "verdicts of the claims" if claims else known.title
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", f"{known.meaning}".strip(), ""]
        lines += [f"| | A | B | {'verdicts' if claims else 'spreads'} |", "|---|---|---|---|"]
        some.sort(key=lambda pair: ORDER.index(pair.word))
        lines += [f"| {' | '.join(map(plain, pair.texts))} |" for pair in some]
    return "\n".join(lines) + "\n"


def compare(a: Path, b: Path, output: Path) -> str:
    """Write the three files; the summary for the terminal. Raises OSError, ValueError."""
    names = (a.resolve().name, b.resolve().name)
    names = (str(a), str(b)) if names[0] == names[1] else names
    read = [Estimates.read(folder / "estimates.parquet") for folder in (a, b)]
    found = pairs(*read)
    text = markdown(found, names, [about(each) for each in read])
    page = html.page(text, " and ".join(names), {})
    output.mkdir(parents=True, exist_ok=True)
    for suffix, content in (("md", text), ("csv", csv(table(found))), ("html", page)):
        (output / f"compare.{suffix}").write_text(content, encoding="utf-8")
    return f"{summary(found)}\n{output / 'compare.md'}"


def run(given: Namespace) -> str:
    """The command: says what differs in short."""
    return compare(given.a, given.b, given.output)
