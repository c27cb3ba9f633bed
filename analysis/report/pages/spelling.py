"""How a number of estimates.parquet is written in text: each takes its row, or None."""

import re
from collections.abc import Callable

from analysis import labels
from analysis.estimates.table import CELL, INTERVAL, PREDICTION, RANGE, Row

NOTHING = "–"
Spell = Callable[[Row | None], str]
_SPECIAL = re.compile(r"([\\`*_\[\]<>|$&~])")
_ENDS = dict.fromkeys((PREDICTION, INTERVAL, CELL), " [{:.1f}, {:.1f} %]")
_ENDS |= {RANGE: " ({:.1f} to {:.1f} %)"}


def plain(text: object) -> str:
    """Words from records and settings as Markdown that renders as they stand, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def known(e: Row | None) -> bool:
    """True if there is such a number. (NaN is not itself.)"""
    return e is not None and e.value is not None and e.value == e.value


def _spelling(spell: Callable[[Row], str]) -> Spell:
    """The same, but a dash where there is no number."""
    return lambda e: spell(e) if known(e) else NOTHING


@_spelling
def span(e: Row) -> str:
    """With its interval or its range over hosts; the unit stands in a column's title."""
    return labels.span(e).replace(f" {e.unit}", "", 1) if e.unit else labels.span(e)


@_spelling
def percent(e: Row) -> str:
    """A share with its spread where it has one: `6.5 % (2.6 to 8.4 %)`."""
    ends = _ENDS.get(e.spread, "").format(100 * e.low, 100 * e.high)
    return f"{100 * e.value:.1f} %{ends}"


@_spelling
def how_many(e: Row) -> str:
    """`3 replicates on 2 hosts`: what stands behind a number."""
    hosts = f" on {e.hosts} host{'s' if e.hosts != 1 else ''}" if e.hosts else ""
    return f"{e.n} replicate{'s' if e.n != 1 else ''}{hosts}"


@_spelling
def cells(e: Row) -> str:
    """`3 on 2`: the same in a table."""
    return f"{e.n} on {e.hosts}"


@_spelling
def precise(e: Row) -> str:
    """A ratio near one with its spread, three digits behind the point."""
    return f"{e.value:.3f}" + (f" [{e.low:.3f}, {e.high:.3f}]" if e.low == e.low else "")


num = _spelling(lambda e: labels.number(e.value, e.unit))  # `57.9k samples/s`, `1.64`
bare = _spelling(lambda e: labels.number(e.value))  # where the unit stands in a column's title
millis = _spelling(lambda e: labels.number(1000 * e.value))  # in thousandths of its unit: J as mJ
share = _spelling(lambda e: f"{100 * e.value:.0f} %")  # without its spread
share_of = _spelling(lambda e: f"{100 * e.value:.0f} % of {e.n} ({e.note})")
count = _spelling(lambda e: f"{e.value:,.0f}")
