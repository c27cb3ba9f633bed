"""Shipped against derived, value by value: tables and texts; numbers to a part in 10⁹.

Each comparison gives sentences, of at most MOST differences. Bytes are never compared: another
version of a library may write the same values in another way.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path

import pyarrow as pa

from release.contents import read_table, read_text

RELATIVE = 1e-9
MOST = 20
MOST_LINES = 3000  # of which difflib still finds the alignment soon
# Columns that name a row: all of these that a table has.
NAMES = ("id", "cell", "attempt", "member", "window", "entity", "t", "scenario", "arm", "method")
# The commit of the rules is git's to tell: an archive has none. Their SHA-256 stands beside it.
_COMMIT = re.compile(r"\bcommit (unknown|[0-9a-f]{7,40}(, changed since)?)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_CELL = re.compile(r"(?<![\w+.-])[\w+.-]+/\w+/\w+/r\d+")


def files(shipped: Path, derived: Path) -> list[str]:
    """Sentences of how two files of one kind differ; the kind is told by the ending."""
    read = {".parquet": _parquet, ".csv": _csv}.get(shipped.suffix)
    compare = partial(_tables, read) if read else _texts
    try:
        found = list(islice(compare(shipped, derived), MOST + 1))
    except (OSError, ValueError, RecursionError, pa.ArrowException, csv.Error) as error:
        return [f"cannot be read: {' '.join(str(error).split())[:200]}"]
    return found if len(found) <= MOST else [*found[:MOST], "and more"]


def same(one: object, other: object) -> bool:
    """Whether two values are one, but for the last digits of numbers in them; NaN is NaN."""
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other or abs(one - other) <= RELATIVE * max(abs(one), abs(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return one == other or _alike(one, other)
    return type(one) is type(other) and one == other


def _alike(one: str, other: str) -> bool:
    """Whether two texts are one but for the last digits of their numbers."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(a == b or ("." in a and same(float(a), float(b))) for a, b in pairs)


# -- tables -----------------------------------------------------------------------------------


def _parquet(path: Path) -> tuple[list[str], list[dict]]:
    table = read_table(path)
    return list(map(str, table.schema)), table.to_pylist()


def _csv(path: Path) -> tuple[list[str], list[dict]]:
    columns, *rows = list(csv.reader(io.StringIO(read_text(path), ""))) or [[]]
    return columns, [dict(zip_longest(columns, row, fillvalue="")) for row in rows]


def _tables(read: Callable, shipped: Path, derived: Path) -> Iterator[str]:
    """Row by row, one sentence each; rows are told by their id, or by the columns of NAMES."""
    (columns, ours), (others, theirs) = read(shipped), read(derived)
    if columns != others:
        yield f"columns differ: {', '.join(sorted({*columns} ^ {*others})) or 'their order'}"
        return
    there = ours[0] if ours else {}
    keys = ["id"] if "id" in there else [name for name in NAMES if name in there]
    named = [[[row.get(key) for key in keys] for row in rows] for rows in (ours, theirs)]
    if keys and not same(*named):
        yield from _lost(keys, *([tuple(key) for key in some] for some in named))
    elif len(ours) != len(theirs):
        yield f"{len(ours)} rows shipped, {len(theirs)} derived"
    else:
        for place, pair in enumerate(zip(ours, theirs, strict=True)):
            if pair[0] != pair[1] and (
                differing := [c for c in pair[0] if not same(pair[0][c], pair[1].get(c))]
            ):
                yield _said(_named(keys, named[0][place], place), differing, *pair)


def _lost(keys: list[str], ours: list[tuple], theirs: list[tuple]) -> Iterator[str]:
    """Rows that only one side has."""
    sides = set(ours), set(theirs)
    for key in sorted(sides[0] - sides[1], key=str):
        yield f"{_named(keys, key)} is not derived"
    for key in sorted(sides[1] - sides[0], key=str):
        yield f"{_named(keys, key)} is derived, and does not ship"
    if sides[0] == sides[1]:
        yield "rows are in another order" if len(ours) == len(theirs) else "rows are repeated"


def _named(keys: list[str], values: Sequence, row: int = -1) -> str:
    told = [f"{k} {v}" for k, v in zip(keys, values, strict=True) if v not in (None, "")]
    if any(name.startswith("cell ") for name in told):  # its id holds scenario, arm and method
        told = [name for name in told if name.split()[0] not in ("scenario", "arm", "method")]
    return ", ".join(told) or f"row {row + 1}"


def _said(name: str, columns: list[str], one: dict, other: dict) -> str:
    """A row's first difference, with the cell of its replicates in which it is."""
    column = columns[0]
    pair = f"{name}: {column} shipped {_short(one[column])}, derived {_short(other[column])}"
    parts = (one.get("replicates"), other.get("replicates"))
    if not all(isinstance(part, list) for part in parts):
        return pair
    apart = [a or b for a, b in zip_longest(*parts) if not same(a, b)]
    return f"{pair} (cell {apart[0]['cell']})" if apart else pair


def _short(value: object) -> str:
    text = "nothing" if value in (None, "") else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- texts ------------------------------------------------------------------------------------


def _texts(shipped: Path, derived: Path) -> Iterator[str]:
    yield from texts(read_text(shipped), read_text(derived))


def texts(shipped: str, derived: str) -> Iterator[str]:
    """Sentences of how two texts differ, each with its line."""
    ours, theirs = (_COMMIT.sub("commit", text).splitlines() for text in (shipped, derived))
    head = _common(ours, theirs)
    tail = _common(ours[head:][::-1], theirs[head:][::-1])
    one, other = ours[head : len(ours) - tail], theirs[head : len(theirs) - tail]
    spans = [("replace", 0, len(one), 0, len(other))]
    if len(one) != len(other) and max(len(one), len(other)) <= MOST_LINES:
        spans = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    for what, start, end, first, last in spans:
        if what != "equal":
            for place, pair in enumerate(zip_longest(one[start:end], other[first:last])):
                if None in pair or not same(*pair):
                    yield f"line {head + start + place + 1}{_parted(*pair)}"


def _common(one: list[str], other: list[str]) -> int:
    """How many lines two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _parted(mine: str | None, yours: str | None) -> str:
    """Both lines from where they part, and the last cell that they name before."""
    if mine is None or yours is None:
        return f": shipped {_short(mine)}, derived {_short(yours)}"
    start = _common(list(mine), list(yours))
    cells = [found[0] for found in _CELL.finditer(mine, 0, start)]
    at = max(start - 20, 0)
    pair = f": shipped {_short(mine[at:])}, derived {_short(yours[at:])}"
    return f", cell {cells[-1]}{pair}" if cells else pair
