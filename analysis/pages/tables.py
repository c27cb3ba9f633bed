"""Tables of numbers: which stand in them, in what order. Nothing is computed here."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
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
        kept = [
            i for i in range(len(self.columns)) if any(row[i] not in ("", "–") for row in spelt)
        ]
        lines = [[self.columns[i] for i in kept], ["---" for _ in kept]]
        lines += [[row[i] for i in kept] for row in spelt]
        return Told("\n".join(f"| {' | '.join(line)} |" for line in lines))

    def csv(self) -> str:
        """As CSV: values in full, their spread where they have one, and the ids of each row."""
        numeric = [
            i
            for i in range(len(self.columns))
            if any(isinstance(row[i], Number) for row in self.rows)
        ]
        head = []
        for i, title in enumerate(self.columns):
            head += [title, f"{title} low", f"{title} high"] if i in numeric else [title]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*head, "id"])
        for row in self.rows:
            cells: list[object] = []
            for i, cell in enumerate(row):
                if not isinstance(cell, Number):
                    cells += [_safe(cell), "", ""] if i in numeric else [_safe(cell)]
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


def pairs(estimates: Estimates) -> list[tuple[Told, str, Table]]:
    """Mixes whose jobs ran to the end of fixed work: (title, scenario, ours beside the paper's)."""
    found: dict[str, list[Estimate]] = {}
    for e in estimates.of("saving", window=COMPLETION):
        found.setdefault(e.scenario, []).append(e)
    return [
        (plain(labels.scenario(scenario.split("--")[0])), scenario, _pair(estimates, scenario, of))
        for scenario, of in found.items()
    ]


def _pair(estimates: Estimates, fixed: str, savings: Sequence[Estimate]) -> Table:
    """One row for each method and quantity: ours, and what the paper's authors reported."""
    base = fixed.split("--")[0]
    table = Table(("method", "quantity", "ours", "the paper", "reported in"), by=0)
    arm = savings[0].arm
    methods = dict.fromkeys(
        e.method
        for name in ("saving", "memory")
        for scenario in (fixed, base)
        for e in estimates.of(name, scenario=scenario, arm=arm, window="*", source="*")
    )
    for method in methods:
        plain_set = {"scenario": base, "arm": arm, "method": method}
        fixed_set = {"scenario": fixed, "arm": arm, "method": method, "window": COMPLETION}
        rows = [
            ("time saved, both jobs run to the end of fixed work", "saving", fixed_set, "pct1"),
            ("time saved, computed from rates", "saving_by_rates", plain_set, "pct"),
            ("makespan of our fixed work", "makespan", fixed_set, "span"),
        ]
        for name, _ in parse_scenario(base).parts:
            job = {"job": name}
            title = f"slowdown of {labels.job(name)} while both run"
            rows.append((title, "slowdown", plain_set | job, "span"))
            title = f"speed of {labels.job(name)} after the other's end, over alone"
            rows.append((title, "survivor_over_alone", fixed_set | job, "span"))
        rows.append(("GPU memory", "memory", plain_set, "num"))
        for title, name, where, how in rows:
            ours = estimates.get(name, **where)
            paper = where | {"scenario": base, "window": "", "source": "*"}
            theirs = [e for e in estimates.of(name, **paper) if e.source != MEASURED]
            if ours or theirs:
                reported = theirs[0] if theirs else None
                numbers = (Number(ours, how), Number(reported, "share" if "pct" in how else "num"))
                label = labels.method(method)
                table.rows.append((label, title, *numbers, reported.source if reported else ""))
    return table


def together(tables: Iterable[tuple[str, str, Table]]) -> Table:
    """The tables of all pairs as one, for CSV."""
    found = Table(("pair", "method", "quantity", "ours", "the paper", "reported in"))
    for title, _, table in tables:
        found.rows.extend((str(title), *row) for row in table.rows)
    return found
