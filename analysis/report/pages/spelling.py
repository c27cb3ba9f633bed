"""How an estimate is written in a page: each function takes its row, or None, and returns text."""

import re
from collections.abc import Callable

from analysis import labels
from analysis.estimates.table import CELL, INTERVAL, PREDICTION, RANGE, Row

NOTHING = "–"
Spelling = Callable[[Row | None], str]
_MARKUP = re.compile(r"([\\`*_\[\]<>|$&~])")


def plain(text: object) -> str:
    """Escape words from records and settings for Markdown, on one line."""
    return _MARKUP.sub(r"\\\1", " ".join(str(text).split()))


def is_known(estimate: Row | None) -> bool:
    """True if there is an estimate with a number."""
    # NaN is not equal to itself.
    return estimate is not None and estimate.value is not None and estimate.value == estimate.value


def _or_dash(spell: Callable[[Row], str]) -> Spelling:
    """The same spelling, with a dash for what is not known."""
    return lambda estimate: spell(estimate) if is_known(estimate) else NOTHING


@_or_dash
def span(estimate: Row) -> str:
    """Without its unit, with its interval or range over hosts: `1.30 [1.28, 1.33]`."""
    text = labels.span(estimate)
    return text.replace(f" {estimate.unit}", "", 1) if estimate.unit else text


@_or_dash
def percent(estimate: Row) -> str:
    """A share with its interval or range over hosts: `6.5 % (2.6 to 8.4 %)`."""
    text = f"{100 * estimate.value:.1f} %"
    if estimate.spread in (PREDICTION, INTERVAL, CELL):
        return f"{text} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f} %]"
    if estimate.spread == RANGE:
        return f"{text} ({100 * estimate.low:.1f} to {100 * estimate.high:.1f} %)"
    return text


@_or_dash
def how_many(estimate: Row) -> str:
    """What stands behind a number: `3 replicates on 2 hosts`."""
    text = f"{estimate.n} replicate{'s' if estimate.n != 1 else ''}"
    if estimate.hosts:
        text += f" on {estimate.hosts} host{'s' if estimate.hosts != 1 else ''}"
    return text


@_or_dash
def cells(estimate: Row) -> str:
    """The same in short: `3 on 2`."""
    return f"{estimate.n} on {estimate.hosts}"


@_or_dash
def precise(estimate: Row) -> str:
    """A ratio near one, with three decimals: `1.002 [0.999, 1.005]`."""
    text = f"{estimate.value:.3f}"
    if estimate.low == estimate.low:
        text += f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    return text


num = _or_dash(lambda e: labels.number(e.value, e.unit))  # with its unit: `57.9k samples/s`
bare = _or_dash(lambda e: labels.number(e.value))  # without its unit
millis = _or_dash(lambda e: labels.number(1000 * e.value))  # in thousandths of its unit: J as mJ
share = _or_dash(lambda e: f"{100 * e.value:.0f} %")
share_of = _or_dash(lambda e: f"{100 * e.value:.0f} % of {e.n} ({e.note})")
count = _or_dash(lambda e: f"{e.value:,.0f}")
