"""Two studies side by side: every number that both have, with its spread.

python -m analysis compare results/h200 results/mine --output results/compare

Reads estimates.parquet of both folders and computes no number. `spreads` says whether the two
spreads overlap: intervals of one host or ranges over hosts; without a spread in both it says so.
Writes compare.md, compare.csv and compare.html.
"""

from __future__ import annotations

import argparse
import csv
import html
import io
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from analysis import labels
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.schema import NONE, Estimate
from analysis.estimates.table import Estimates
from analysis.names import TWIN, parse_scenario

COMPARED = ("rate", "stp", "s", "gaps", "slowdown_worst", "gract", "memory", "energy_per_sample")
PLACE = ("id", "quantity", "scenario", "arm", "method", "window", "job", "unit")
CLAIM = "claim"
OVERLAP, APART, UNKNOWN, SAME, OTHER = "overlap", "apart", "no spread", "same", "differs"
ORDER = (APART, OTHER, UNKNOWN, OVERLAP, SAME)  # what differs comes first
STYLE = """
:root{color-scheme:light dark}body{margin:1.5rem auto;max-width:70rem;padding:0 1rem;
font:15px/1.45 system-ui,sans-serif}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td:nth-child(n+2){white-space:nowrap}
th,td{padding:.2rem .6rem;border-bottom:1px solid #8886;text-align:left;vertical-align:top}
.wide{overflow-x:auto}@media print{.wide{overflow:visible}body{font-size:9pt}}
"""


class NothingInCommon(ValueError):
    """The two studies have no number in common; the message says what each has."""


@dataclass(frozen=True)
class Pair:
    """One number in both studies. word: how the two stand to each other, of ORDER."""

    a: Estimate
    b: Estimate

    @property
    def word(self) -> str:
        if self.a.quantity == CLAIM:
            return SAME if self.a.status == self.b.status else OTHER
        if NONE in (self.a.spread, self.b.spread) or None in (self.a.low, self.b.low):
            return UNKNOWN
        apart = self.a.high < self.b.low or self.b.high < self.a.low
        return APART if apart else OVERLAP

    @property
    def texts(self) -> tuple[str, str]:
        """Value and spread in both; of a claim the verdicts."""
        if self.a.quantity == CLAIM:
            return labels.status(self.a.status), labels.status(self.b.status)
        return labels.span(self.a), labels.span(self.b)


def pairs(a: Estimates, b: Estimates, quantities: Sequence[str]) -> list[Pair]:
    """Measured numbers over all hosts that stand under one id in both, in the order of their table.

    Raises NothingInCommon.
    """
    found = [
        Pair(e, b[e.id])
        for quantity in (*quantities, CLAIM)
        for e in a.of(quantity)
        if e.method != TWIN and e.id in b and _there(e) and _there(b[e.id])
    ]
    if not any(pair.a.quantity != CLAIM for pair in found):
        raise NothingInCommon(f"nothing in common: A has {_contents(a)}; B has {_contents(b)}")
    return found


def _there(e: Estimate) -> bool:
    return bool(e.status) if e.quantity == CLAIM else e.value is not None


def _contents(estimates: Estimates) -> str:
    """`ResNet26 b32, DLRM b2048 (plain, MPS; as in the paper)`, or that nothing completed."""
    completed = [e for e in estimates.of("outcome") if e.status == "completed"]
    if not completed:
        return "no completed set"
    parts = [name for e in completed for name, _ in parse_scenario(e.scenario).parts]
    jobs = _listed(labels.job(name) for name in parts)
    methods = _listed(labels.method(e.method) for e in completed if e.method != TWIN)
    return f"{jobs} ({methods}; {_listed(labels.arm(e.arm) for e in completed)})"


def _listed(names) -> str:
    return ", ".join(dict.fromkeys(names))


def hosts(estimates: Estimates) -> str:
    """`2 hosts: NVIDIA H200`, from the notes of the study's hosts."""
    found = estimates.of("count", host="*", name="host_cells")
    cards = _listed(
        part.split(":", 1)[-1].split(";")[0].strip() for part in (e.note for e in found)
    )
    return f"{len(found)} host{'' if len(found) == 1 else 's'}{f': {cards}' if cards else ''}"


# -- what is written ------------------------------------------------------------------------------


def rows(found: Sequence[Pair]) -> list[dict[str, object]]:
    """The rows of compare.csv."""
    return [
        {name: _cell(getattr(pair.a, name)) for name in PLACE}
        | {
            f"{side}_{name}": _cell(getattr(e, "status" if name == "verdict" else name))
            for side, e in (("a", pair.a), ("b", pair.b))
            for name in ("value", "low", "high", "spread", "n", "hosts", "verdict")
        }
        | {"spreads": pair.word}
        for pair in found
    ]


def _cell(value: object) -> object:
    """Text that a spreadsheet does not read as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@")) else value


def place(e: Estimate) -> str:
    """`7 × ResNet26 b32, MPS, bf16`; of a claim its name."""
    if e.quantity == CLAIM:
        return e.name
    named = [labels.scenario(e.scenario), labels.method(e.method), labels.arm(e.arm)]
    return ", ".join([*named, *filter(None, (e.window, e.job and labels.job(e.job)))])


def summary(found: Sequence[Pair]) -> str:
    """`86 numbers in both: spreads apart 12, no spread 4, overlap 70; 3 verdicts: differs 1, …`."""
    said = []
    for noun, some in (
        ("numbers in both; their spreads", [p for p in found if p.a.quantity != CLAIM]),
        ("verdicts in both", [p for p in found if p.a.quantity == CLAIM]),
    ):
        words = Counter(pair.word for pair in some)
        counts = ", ".join(f"{words[word]} {word}" for word in ORDER if words[word])
        said += [f"{len(some)} {noun}: {counts}"] if some else []
    return "; ".join(said)


def markdown(found: Sequence[Pair], names: tuple[str, str], about: tuple[str, str]) -> str:
    """compare.md: what the two are, then a table for each quantity, what differs first."""
    lines = [f"# {_plain(names[0])} and {_plain(names[1])}, side by side", ""]
    lines += [
        f"- {s}: {_plain(n)}, {_plain(h)}" for s, n, h in zip("AB", names, about, strict=True)
    ]
    lines += ["", f"{summary(found)}.", ""]
    lines += [
        "In parentheses: least to most over hosts; in brackets: the 95 % interval of one host. "
        "Each study's gains are relative to its own jobs alone."
    ]
    for quantity in dict.fromkeys(pair.a.quantity for pair in found):
        some = [pair for pair in found if pair.a.quantity == quantity]
        known = QUANTITIES[quantity]
        title = "verdicts of the claims" if quantity == CLAIM else known.title
        last = "verdicts" if quantity == CLAIM else "spreads"
        lines += ["", f"## {title[0].upper()}{title[1:]}", ""]
        lines += [f"{known.meaning[0].upper()}{known.meaning[1:]}.", ""] if known.meaning else []
        lines += [f"| | A | B | {last} |", "|---|---|---|---|"]
        for pair in sorted(some, key=lambda pair: ORDER.index(pair.word)):
            cells = (_plain(place(pair.a)), *map(_plain, pair.texts), pair.word)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text of the data, so that Markdown reads no markup into it."""
    return "".join(f"\\{sign}" if sign in r"\`*_[]<>|&!" else sign for sign in text)


def page(text: str, title: str) -> str:
    """compare.html from compare.md."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = body.replace("<table>", '<div class="wide"><table>').replace(
        "</table>", "</table></div>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n{body}</html>\n"
    )


def compare(a: Path, b: Path, output: Path) -> str:
    """Write the three files; the summary for the terminal. Raises OSError, ValueError."""
    names = (a.resolve().name, b.resolve().name)
    names = (str(a), str(b)) if names[0] == names[1] else names
    read = [Estimates.read(folder / "estimates.parquet") for folder in (a, b)]
    found = pairs(*read, COMPARED)
    text = markdown(found, names, (hosts(read[0]), hosts(read[1])))
    table = io.StringIO()
    written = rows(found)
    writer = csv.DictWriter(table, list(written[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(written)
    output.mkdir(parents=True, exist_ok=True)
    files = {"md": text, "csv": table.getvalue(), "html": page(text, " and ".join(names))}
    for suffix, content in files.items():
        (output / f"compare.{suffix}").write_text(content, encoding="utf-8")
    return f"{summary(found)}\n{output / 'compare.md'}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", type=Path, metavar="A", help="folder of a study: results/STUDY")
    parser.add_argument("b", type=Path, metavar="B")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER")
    given = parser.parse_args(argv)
    try:
        print(compare(given.a, given.b, given.output))
    except FileNotFoundError as error:
        sys.stderr.write(f"no study's numbers there: {error}\n")
        return 1
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
