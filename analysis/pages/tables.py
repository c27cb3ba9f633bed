"""Tables of numbers: which stand in them, in what order. Nothing is computed here."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from analysis import labels
from analysis.estimates.schema import MEASURED, NONE, Estimate
from analysis.estimates.table import Estimates
from analysis.names import AFTER, ANCHOR, BEFORE, COMPLETION, parse_scenario
from analysis.pages.book import Book, Told, plain


@dataclass(frozen=True)
class Number:
    """A place in a table for a published number; `how` names the method of Book that spells it."""

    of: Estimate | None
    how: str = "num"


@dataclass(frozen=True)
class Table:
    """Columns, and rows of text or Numbers. `by`: leading columns that divide it into sections."""

    columns: tuple[str, ...]
    rows: list[tuple[str | Number, ...]] = field(default_factory=list)
    by: int = 0

    def sections(self) -> Iterator[tuple[Told, Table]]:
        """(heading, table without the leading columns), in the order of the rows."""
        for head, rows in groupby(self.rows, key=lambda row: row[: self.by]):
            heading = Told(", ".join(map(str, head)))
            yield heading, Table(self.columns[self.by :], [row[self.by :] for row in rows])

    def markdown(self, book: Book) -> Told:
        """As Markdown; columns without any entry are left out."""
        spelt = [
            [getattr(book, c.how)(c.of) if isinstance(c, Number) else plain(c) for c in row]
            for row in self.rows
        ]
        kept = sorted({i for row in spelt for i, text in enumerate(row) if text not in ("", "–")})
        lines = [[self.columns[i] for i in kept], ["---" for _ in kept]]
        lines += [[row[i] for i in kept] for row in spelt]
        return Told("\n".join(f"| {' | '.join(line)} |" for line in lines))

    def csv(self) -> str:
        """As CSV: values in full, their spread where they have one, and the ids of each row."""
        places = {i for row in self.rows for i, c in enumerate(row) if isinstance(c, Number)}
        head = []
        for i, title in enumerate(self.columns):
            head += [title, f"{title} low", f"{title} high"] if i in places else [title]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*head, "id"])
        for row in self.rows:
            cells: list[object] = []
            for i, cell in enumerate(row):
                if not isinstance(cell, Number):
                    cells += [_safe(cell), "", ""] if i in places else [_safe(cell)]
                elif cell.of is None or cell.of.value is None:
                    cells += ["", "", ""]
                else:
                    ends = (None, None) if cell.of.spread == NONE else (cell.of.low, cell.of.high)
                    factor = 1000 if cell.how == "milli" else 1
                    values = (cell.of.value, *ends)
                    if cell.how == "how_many":
                        values = (cell.of.n, None, None)
                    cells += ["" if v is None else f"{factor * v:.9g}" for v in values]
            of = (c.of for c in row if isinstance(c, Number))
            writer.writerow([*cells, " ".join(e.id for e in of if e is not None)])
        return out.getvalue()


def _safe(text: str) -> str:
    """No spreadsheet takes it for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _completed(estimates: Estimates) -> Iterable[tuple[Estimate, str]]:
    """(outcome, window) of every set that was measured, departures once for each window."""
    for outcome in estimates.of("outcome"):
        if not outcome.value or ANCHOR in parse_scenario(outcome.scenario).variant:
            continue
        where = {name: getattr(outcome, name) for name in ("scenario", "arm", "method")}
        for window in ("", BEFORE, AFTER, "epochs"):
            known = (
                estimates.get(q, **where, window=window) for q in ("stp", "rate", "epoch_time")
            )
            if any(known):
                yield outcome, window


def _job_of(scenario: str) -> str:
    parsed = parse_scenario(scenario)
    text = " + ".join(labels.job(name) for name, _ in parsed.parts)
    return f"{text} ({parsed.variant})" if parsed.variant else text


_WINDOWS = {BEFORE: ", before a job left", AFTER: ", after it left", "epochs": ", whole epochs"}


def alone(estimates: Estimates) -> Table:
    """Every job alone, as plain process: how fast, how busy the GPU, how much memory."""
    columns = ("job", "written", "samples/s", "GRACT", "SMACT", "GPU memory")
    table = Table((*columns, "over the fastest way alone", "replicates"))
    for outcome, window in _completed(estimates):
        if parse_scenario(outcome.scenario).n != 1 or outcome.method != "naive" or window:
            continue
        where = {"scenario": outcome.scenario, "arm": outcome.arm, "method": outcome.method}
        found = [estimates.get(q, **where) for q in ("rate", "gract", "smact", "memory")]
        over = estimates.get("over_fastest", **where)
        numbers = (Number(found[0], "bare_span"), *map(Number, found[1:]), Number(over))
        names = (labels.scenario(outcome.scenario), labels.arm(outcome.arm))
        table.rows.append((*names, *numbers, Number(found[0], "how_many")))
    return table


def sets(estimates: Estimates) -> Table:
    """Every set that was measured, and jobs alone under another method: the table of means."""
    columns = ("job", "written", "jobs", "method", "samples/s", "STP", "S", "gaps", "over fastest")
    columns += ("slowest takes", "GRACT", "memory", "mJ/sample", "edge error")
    table = Table(columns, by=2)
    for outcome, window in _completed(estimates):
        parsed = parse_scenario(outcome.scenario)
        if parsed.n == 1 and outcome.method == "naive" and window != "epochs":
            continue
        where = {"scenario": outcome.scenario, "arm": outcome.arm, "method": outcome.method}

        def of(name: str, how: str = "num", where=where, window=window) -> Number:
            return Number(estimates.get(name, **where, window=window), how)

        count = " + ".join(str(n) for _, n in parsed.parts)
        method = labels.method(outcome.method) + _WINDOWS.get(window, "")
        numbers = (
            of("rate", "bare"),
            of("stp", "span"),
            of("s", "span"),
            of("gaps"),
            of("over_fastest"),
        )
        numbers += (of("slowdown_worst"), of("gract"), of("memory"))
        numbers += (of("energy_per_sample", "milli"), of("energy_edge_error", "share"))
        names = (_job_of(outcome.scenario), labels.arm(outcome.arm), count, method)
        table.rows.append((*names, *numbers))
    return table


def hosts(estimates: Estimates) -> Table:
    """The same numbers host by host: rates and GRACT of jobs alone, STP and S of sets."""
    labelled = estimates.hosts()
    table = Table(("set", "written", "method", "quantity", "all hosts", *labelled))
    for outcome, window in _completed(estimates):
        single = parse_scenario(outcome.scenario).n == 1
        if window or outcome.hosts < 2 or (single and outcome.method != "naive"):
            continue
        where = {"scenario": outcome.scenario, "arm": outcome.arm, "method": outcome.method}
        for name in ("rate", "gract") if single else ("rate", "stp", "s"):
            overall = estimates.get(name, **where)
            if overall is None:
                continue
            on = {e.host: e for e in estimates.on_hosts(overall)}
            names = (labels.scenario(outcome.scenario), labels.arm(outcome.arm))
            names += (
                labels.method(outcome.method),
                "samples/s" if name == "rate" else name.upper(),
            )
            points = (Number(on.get(host), "bare") for host in labelled)
            table.rows.append((*names, Number(overall, "bare_span"), *points))
    return table


def pairs(estimates: Estimates) -> Table:
    """Mixes whose jobs ran to the end of fixed work: ours, and what the authors reported."""
    table = Table(("pair", "method", "quantity", "ours", "the paper", "reported in"), by=1)
    found = dict.fromkeys((e.scenario, e.arm) for e in estimates.of("saving", window=COMPLETION))
    for fixed, arm in found:
        base = fixed.split("--")[0]
        both = [
            e
            for name in ("saving", "memory")
            for scenario in (fixed, base)
            for e in estimates.of(name, scenario=scenario, arm=arm, window="*", source="*")
        ]
        for method in dict.fromkeys(e.method for e in both):
            names = (labels.scenario(base), labels.method(method))
            table.rows.extend((*names, *row) for row in _pair(estimates, fixed, arm, method))
    return table


def _pair(estimates: Estimates, fixed: str, arm: str, method: str) -> Iterator[tuple]:
    """(quantity, ours, theirs, their source) of a pair under one method."""
    base = fixed.split("--")[0]
    while_both = {"scenario": base, "arm": arm, "method": method}
    to_the_end = while_both | {"scenario": fixed, "window": COMPLETION}
    rows = [
        ("time saved, both jobs run to the end of fixed work", "saving", to_the_end, "pct1"),
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
