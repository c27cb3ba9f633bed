"""Tables of numbers: which stand in them, in what order. Nothing is computed here."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby, product
from pathlib import Path

from analysis import labels
from analysis.choose import TURNED, TURNS, place, turned
from analysis.estimates.schema import MEASURED, NONE, Estimate
from analysis.estimates.table import Estimates
from analysis.pages.book import Book, Told, plain
from analysis.records import flags
from workflow.collocation.spec.names import (
    AFTER,
    BEFORE,
    COMPLETION,
    arm_order,
    no_formula,
    parse_scenario,
)

# tests/test_pages.py holds the rows of drills against tests/test_faults.py.
ISOLATION = Path(__file__).with_name("isolation.csv")
STAR = r"\*"  # in Markdown
SLOWER = "‡"
BY_IT = ("rate", "fastest_rate", "device_rate", "stp", "s", "over_fastest")  # it marks


@dataclass(frozen=True)
class Number:
    """A place in a table for a published number; `how` names the method of Book that spells it."""

    of: Estimate | None
    how: str = "num"

    def spelt(self, book: Book, turns: set[str]) -> Told:
        """As text, with `*` where it is a gain that no set can have, `‡` where graphs may have run
        slower than they can, and `†` if its id is given.
        """
        text = getattr(book, self.how)(self.of)
        if self.of is None or self.how == "how_many":
            return text
        found = flags.split(self.of.flags)
        slower = flags.UNVISITED in found and self.of.quantity in BY_IT
        text += STAR * (flags.ABOVE_COUNT in found) + SLOWER * slower
        return Told(text + TURNS * (self.of.id in turns))

    def full(self) -> list[str]:
        """Value, low and high with all their digits; "" for what is not there."""
        if self.of is None or self.how == "how_many":
            return [str(self.of.n) if self.of else "", "", ""]
        ends = (None, None) if self.of.spread == NONE else (self.of.low, self.of.high)
        factor = 1000 if self.how == "milli" else 1
        return ["" if v is None else f"{factor * v:.9g}" for v in (self.of.value, *ends)]


@dataclass(frozen=True)
class Table:
    """Columns, and rows of text or Numbers. `by`: leading columns that divide it into sections."""

    columns: tuple[str, ...]
    rows: list[tuple[str | Number, ...]] = field(default_factory=list)
    by: int = 0

    def sections(self) -> Iterator[tuple[Told, Table]]:
        """(heading, table without the leading columns), in the order of the rows."""
        for head, rows in groupby(self.rows, key=lambda row: row[: self.by]):
            heading = Told(", ".join(map(plain, head)))
            yield heading, Table(self.columns[self.by :], [row[self.by :] for row in rows])

    def markdown(self, book: Book) -> Told:
        """As Markdown; columns without any entry are left out. Lines below say what marks mean."""
        numbers = [c for row in self.rows for c in row if isinstance(c, Number)]
        turns = turned(number.of for number in numbers)
        spelt = [
            [c.spelt(book, turns) if isinstance(c, Number) else plain(c) for c in row]
            for row in self.rows
        ]
        kept = sorted({i for row in spelt for i, text in enumerate(row) if text not in ("", "–")})
        lines = [[self.columns[i] for i in kept], ["---" for _ in kept]]
        lines += [[row[i] for i in kept] for row in spelt]
        text = [f"| {' | '.join(line)} |" for line in lines]
        marks = "".join(chain(*spelt))
        if STAR in marks:
            read = "; read S" if "S" in lines[0] else ""
            text += ["", f"{STAR} {flags.meaning(flags.ABOVE_COUNT)}{read}."]
        if SLOWER in marks:
            text += ["", f"{SLOWER} {flags.meaning(flags.UNVISITED)}."]
        if turns:
            text += ["", TURNED]
        return Told("\n".join(text))

    def csv(self) -> str:
        """As CSV: values in full, their spread where they have one, and the ids of each row."""
        places = {i for row in self.rows for i, c in enumerate(row) if isinstance(c, Number)}
        head = [
            [title, f"{title} low", f"{title} high"] if i in places else [title]
            for i, title in enumerate(self.columns)
        ]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*chain(*head), "id"])
        for row in self.rows:
            cells = (
                c.full() if isinstance(c, Number) else [no_formula(c), *[""] * (2 * (i in places))]
                for i, c in enumerate(row)
            )
            ids = (c.of.id for c in row if isinstance(c, Number) and c.of)
            writer.writerow([*chain(*cells), " ".join(ids)])
        return out.getvalue()


def _completed(estimates: Estimates) -> Iterable[tuple[Estimate, str]]:
    """(outcome, window) of every set that was measured, departures once for each window."""
    for outcome in (e for e in estimates.of("outcome") if e.value):
        for window in ("", BEFORE, AFTER, "epochs"):
            where = place(outcome) | {"window": window}
            if any(estimates.get(q, **where) for q in ("stp", "rate", "epoch_time")):
                yield outcome, window


_WINDOWS = {BEFORE: ", before others left", AFTER: ", after they left", "epochs": ", whole epochs"}


def numbers(estimates: Estimates, where: dict[str, str], *names: str) -> Iterator[Number]:
    """Quantities of one place, each as its name, or `name:how`."""
    for each in names:
        name, _, how = each.partition(":")
        yield Number(estimates.get(name, **where), how or "num")


def alone(estimates: Estimates) -> Table:
    """Every job alone, as plain process, written in each way that was planned."""
    columns = ("job", "written", "samples/s", "GRACT", "SMACT", "GPU memory")
    table = Table((*columns, "over the fastest way alone", "replicates", "outcome"))
    names = ("rate:bare_span", "gract", "smact", "memory", "over_fastest:span", "rate:how_many")
    planned = [e for e in estimates.of("outcome", method="naive") if e.jobs == 1]
    for e in sorted(planned, key=by_job):
        rate = estimates.get("rate", **place(e))
        if rate or not e.value:
            found = numbers(estimates, place(e), *names)
            became = "" if rate else labels.status(e.status)
            table.rows.append((labels.scenario(e.scenario), labels.arm(e.arm), *found, became))
    return table


def by_job(e: Estimate) -> tuple:
    """To sort by: the ways in which a job is written stand together."""
    scenario = parse_scenario(e.scenario)
    return scenario.family, scenario.variant, arm_order(e.arm)


def sets(estimates: Estimates) -> Table:
    """Every set that was measured, and jobs alone under another method: the table of means."""
    columns = ("job", "written", "jobs", "method", "samples/s", "STP", "S", "gaps", "over fastest")
    columns += ("slowest takes", "GRACT", "memory", "mJ/sample", "edge error")
    names = ("rate:bare", "stp:span", "s:span", "gaps", "over_fastest:span", "slowdown_worst")
    names = (*names, "gract", "memory", "energy_per_sample:milli", "energy_edge_error:share")
    table = Table(columns, by=2)
    for e, window in _completed(estimates):
        if e.jobs > 1 or e.method != "naive" or window == "epochs":
            method = labels.method(e.method) + _WINDOWS.get(window, "")
            found = numbers(estimates, place(e) | {"window": window}, *names)
            job = labels.scenario(e.scenario, count=False)
            table.rows.append((job, labels.arm(e.arm), _count(e), method, *found))
    return table


def hosts(estimates: Estimates) -> Table:
    """Host by host: rates of jobs alone and what part the host has in them, STP and S of sets."""
    labelled = estimates.hosts()
    table = Table(("job", "written", "jobs", "method", "quantity", "all hosts", *labelled), by=2)
    alone = {"rate": "samples/s", "device_rate": "samples/s of busy GPU"}
    alone |= {"gaps": "1 / GRACT", "waits": "waits"}
    together = {"rate": "samples/s", "stp": "STP", "s": "S"}
    for e, window in _completed(estimates):
        if window or e.hosts < 2 or (e.jobs == 1 and e.method != "naive"):
            continue
        names = (labels.scenario(e.scenario, count=False), labels.arm(e.arm))
        names += (_count(e), labels.method(e.method))
        for name, title in (alone if e.jobs == 1 else together).items():
            if overall := estimates.get(name, **place(e)):
                on = {single.host: single for single in estimates.on_hosts(overall)}
                points = (Number(on.get(host), "bare") for host in labelled)
                table.rows.append((*names, title, Number(overall, "bare_span"), *points))
    return table


def _count(e: Estimate) -> str:
    return " + ".join(str(n) for _, n in parse_scenario(e.scenario).parts)


def pair(estimates: Estimates) -> Table:
    """Mixes whose jobs ran to the end of fixed work: ours, and what the authors reported."""
    table = Table(("pair", "method", "quantity", "ours", "the paper", "reported in"), by=1)
    found = dict.fromkeys((e.scenario, e.arm) for e in estimates.of("saving", window=COMPLETION))
    for fixed, arm in found:
        base = fixed.split("--")[0]
        both = [
            e.method
            for name, scenario in product(("saving", "memory"), (fixed, base))
            for e in estimates.of(name, scenario=scenario, arm=arm, window="*", source="*")
        ]
        for method in dict.fromkeys(both):
            names = (labels.scenario(base), labels.method(method))
            table.rows.extend((*names, *row) for row in _of_pair(estimates, fixed, arm, method))
    return table


def _of_pair(estimates: Estimates, fixed: str, arm: str, method: str) -> Iterator[tuple]:
    """(quantity, ours, theirs, their source) of a pair under one method."""
    base = fixed.split("--")[0]
    while_both = {"scenario": base, "arm": arm, "method": method}
    to_the_end = while_both | {"scenario": fixed, "window": COMPLETION}
    rows = [
        ("time saved, both jobs run to the end of fixed work", "saving", to_the_end, "pct"),
        ("time saved, computed from rates", "saving_by_rates", while_both, "pct"),
        ("makespan of our fixed work", "makespan", to_the_end, "span"),
    ]
    for job, _ in parse_scenario(base).parts:
        name, own = labels.job(job), {"job": job}
        rows.append((f"slowdown of {name} while both run", "slowdown", while_both | own, "span"))
        title = f"speed of {name} after the other's end, over alone"
        rows.append((title, "survivor_over_alone", to_the_end | own, "span"))
    rows.append(("GPU memory", "memory", while_both, "num"))
    for title, name, where, how in rows:
        ours = estimates.get(name, **where)
        paper = where | {"scenario": base, "window": "", "source": "*"}
        theirs = next((e for e in estimates.of(name, **paper) if e.source != MEASURED), None)
        if ours or theirs:
            spelt = "share" if "pct" in how else "num"
            yield title, Number(ours, how), Number(theirs, spelt), theirs.source if theirs else ""


def isolation(_: Estimates) -> Table:
    """What jobs do to their neighbours: facts from manuals and drills, no number of a study."""
    head, *rows = csv.reader(ISOLATION.read_text(encoding="utf-8").splitlines())
    return Table(tuple(head), [tuple(row) for row in rows])


def near_memory(estimates: Estimates) -> Table:
    """Sets that came near the card's memory, and what became of them."""
    columns = ("set", "written", "method", "memory of its jobs alone, over the card's", "became")
    table = Table(columns)
    for e in estimates.of("parts_over_capacity"):
        status = getattr(estimates.get("outcome", **place(e)), "status", "")
        if e.value >= 0.9 or status == "out_of_memory":
            names = (labels.scenario(e.scenario), labels.arm(e.arm), labels.method(e.method))
            table.rows.append((*names, Number(e), labels.status(status)))
    return table
