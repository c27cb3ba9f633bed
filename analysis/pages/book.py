"""How a number gets onto a page: by its id, spelt by analysis.labels, and written down as used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import replace

from jinja2 import Undefined

from analysis import choose, labels
from analysis.advice import Advice
from analysis.claims import Judged
from analysis.estimates.schema import INTERVAL, RANGE, Estimate
from analysis.estimates.table import Estimates

_SPECIAL = re.compile(r"([\\`*_\[\]<>|$&~])")


class PageError(ValueError):
    """A page asks for a number that is not published, or would print one that is not."""


class Told(str):
    """Text that a page may print: a published number, a name, or words from the records."""

    __slots__ = ()


def plain(text: object) -> Told:
    """Words from records and settings as Markdown that renders as they stand, on one line."""
    return Told(_SPECIAL.sub(r"\\\1", " ".join(str(text).split())))


class Book:
    """Spells numbers for one page, and keeps their ids."""

    def __init__(self, estimates: Estimates):
        self.estimates = estimates
        self.used: dict[str, Estimate] = {}

    def look(self, of: Estimate | str | None) -> Estimate | None:
        """The number of an id, noted as used. Raises PageError where there is no such id."""
        if isinstance(of, str):
            if of not in self.estimates:
                raise PageError(f"no number has the id {of!r}")
            of = self.estimates[of]
        if of is not None and of.value is not None:
            self.used[of.id] = of
        return of

    def _spelt(self, of: Estimate | str | None, spell: Callable[[Estimate], str]) -> Told:
        e = self.look(of)
        return Told("–" if e is None or e.value is None else spell(e))

    def num(self, of: Estimate | str | None) -> Told:
        """`57.9k samples/s`, `1.64`."""
        return self._spelt(of, lambda e: labels.number(e.value, e.unit))

    def span(self, of: Estimate | str | None) -> Told:
        """The number with its interval, or its range over hosts."""
        return self._spelt(of, labels.span)

    def bare(self, of: Estimate | str | None) -> Told:
        """As `num`, where the unit stands elsewhere: in a column's title."""
        return self._spelt(of, lambda e: labels.number(e.value))

    def bare_span(self, of: Estimate | str | None) -> Told:
        """As `span`, where the unit stands elsewhere."""
        return self._spelt(of, lambda e: labels.span(replace(e, unit="")))

    def val(self, of: Estimate | str | None, digits: int = 2) -> Told:
        """The value alone, with so many digits behind the point."""
        return self._spelt(of, lambda e: f"{e.value:,.{digits}f}")

    def precise(self, of: Estimate | str | None) -> Told:
        """A ratio near one with its spread, three digits behind the point."""

        def spell(e: Estimate) -> str:
            return f"{e.value:.3f}" + ("" if e.low is None else f" [{e.low:.3f}, {e.high:.3f}]")

        return self._spelt(of, spell)

    def share(self, of: Estimate | str | None) -> Told:
        """A share in whole per cent, without its spread."""
        return self._spelt(of, lambda e: f"{100 * e.value:.0f} %")

    def pct(self, of: Estimate | str | None) -> Told:
        """A share with its spread where it has one: `6.5 % (2.6 to 8.4 %)`."""

        def spell(e: Estimate) -> str:
            ends = {INTERVAL: " [{:.1f}, {:.1f} %]", RANGE: " ({:.1f} to {:.1f} %)"}.get(e.spread)
            return f"{100 * e.value:.1f} %" + (
                ends.format(100 * e.low, 100 * e.high) if ends else ""
            )

        return self._spelt(of, spell)

    def milli(self, of: Estimate | str | None) -> Told:
        """The value in thousandths of its unit: J as mJ."""
        return self._spelt(of, lambda e: labels.number(1000 * e.value))

    def how_many(self, of: Estimate | str | None) -> Told:
        """`3 replicates on 2 hosts`: what stands behind a number."""

        def spell(e: Estimate) -> str:
            hosts = f" on {e.hosts} host{'s' if e.hosts != 1 else ''}" if e.hosts else ""
            return f"{e.n} replicate{'s' if e.n != 1 else ''}{hosts}"

        return self._spelt(of, spell)

    def scope(self) -> Told:
        """What the study was measured on, and what it can and cannot answer."""
        said, numbers = choose.scope(self.estimates)
        for e in numbers:
            self.look(e)
        return plain(said)

    def advised(self, advice: Advice, but: Collection[str] = ()) -> Told:
        """The sentences of an advice, less caveats in `but`, and the numbers behind them."""
        for identity in advice.ids:
            self.look(identity)
        return plain(" ".join(advice.sentences(but)))

    def reason(self, judged: Judged) -> Told:
        """Why a claim has its verdict, and the numbers that it rests on."""
        cells = [cell.ids[0] for test in judged.tests for cell in test.cells if cell.ids]
        for identity in (*cells, *(need.id for need in judged.needs if need.id)):
            self.look(identity)
        return plain(judged.note)

    def sources(self) -> Told:
        """The ids used, alike ones on a line, as the shell's braces write them: `{rate,stp}:…`."""
        rows = {tuple(re.split("([:/@])", identity)) for identity in self.used}
        for at in range(max(map(len, rows), default=0)):
            alike: dict[tuple, list[str]] = defaultdict(list)
            for row in rows:
                alike[row[:at], row[at + 1 :]] += row[at : at + 1]
            rows = set()
            for (before, after), parts in alike.items():
                braced = ["{" + ",".join(sorted(parts)) + "}"] if len(parts) > 1 else parts
                rows.add((*before, *braced, *after))
        return Told("\n".join(sorted(" ".join("".join(row).split()) for row in rows)))


def only_published(value: object) -> object:
    """Jinja's finalize: a template prints nothing with a digit but what a book has spelt.

    Raises PageError for any other text with a digit, and jinja2's error for what is undefined.
    """
    if isinstance(value, Undefined):
        return str(value)
    if not isinstance(value, Told) and any(c.isdigit() for c in str(value)):
        raise PageError(f"{str(value)[:80]!r} is printed and is no published number")
    return value
