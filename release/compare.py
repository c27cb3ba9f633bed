"""Shipped against derived, value by value: tables, JSON and texts; numbers to a part in 10⁹.

Each comparison yields sentences, of at most MOST differences. Bytes are never compared: another
version of a library may write the same values in another way.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from release.align import ABSENT, apart

RELATIVE = 1e-9
MOST = 20
GONE, NEW = "is not derived", "is derived, and does not ship"
# The commit of the rules is git's to tell: an archive has none. Their SHA-256 stands beside it.
_COMMIT = re.compile(r"\bcommit (unknown|[0-9a-f]{7,40}(, changed since)?)")
_NOT_COMPARED = ("commit", "rules_commit")
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_CELL = re.compile(r"(?<![\w+.-])[\w+.-]+/\w+/\w+/r\d+")
_IN_A_CELL = ("scenario", "arm", "method")
_NAMES = ("cell", "attempt", "member", "window", *_IN_A_CELL, "claim", "t")


def equal(one: float, other: float) -> bool:
    """Whether two numbers are one; NaN is NaN."""
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or abs(one - other) <= RELATIVE * max(abs(one), abs(other))


def files(shipped: Path, derived: Path) -> list[str]:
    """Sentences of how two files of one kind differ; the kind is told by the ending."""
    try:
        compare = _BY_ENDING.get(shipped.suffix, _texts)
        found = list(islice(compare(shipped, derived), MOST + 1))
    except (OSError, ValueError, pa.ArrowException) as error:
        return [f"cannot be read: {' '.join(str(error).split())}"]
    return found if len(found) <= MOST else [*found[:MOST], "and more"]


def _csv(shipped: Path, derived: Path) -> Iterator[str]:
    with shipped.open(encoding="utf-8", newline="") as one:
        ours = list(csv.reader(one))
    with derived.open(encoding="utf-8", newline="") as other:
        theirs = list(csv.reader(other))
    columns, other_columns = (rows[0] if rows else [] for rows in (ours, theirs))
    if columns != other_columns:
        yield f"columns: {_pair(','.join(columns), ','.join(other_columns))}"
        return
    named = [{_key(_name(columns, row)): row for row in rows[1:]} for rows in (ours, theirs)]
    if all(len(of) == len(rows) - 1 for of, rows in zip(named, (ours, theirs), strict=True)):
        yield from _by_name(columns, *named)
    else:
        yield from _by_place(columns, ours[1:], theirs[1:])


def _by_name(columns: list[str], ours: dict, theirs: dict) -> Iterator[str]:
    """Of rows that are each of something else, which is their key."""
    for key, row in ours.items():
        name = _name(columns, row) or "row 1"
        if key not in theirs:
            yield f"{name} {GONE}"
        else:
            yield from _cells_of(name, columns, row, theirs[key])
    for key, row in theirs.items():
        if key not in ours:
            yield f"{_name(columns, row) or 'row 1'} {NEW}"
    if [key for key in ours if key in theirs] != [key for key in theirs if key in ours]:
        yield "rows are in another order"


def _by_place(columns: list[str], ours: list, theirs: list) -> Iterator[str]:
    """Of rows of which several may be of the same."""
    for place, row, other in apart(ours, theirs, lambda row: _key(",".join(row))):
        name = _name(columns, other if row is ABSENT else row) or f"row {place + 1}"
        if ABSENT in (row, other):
            yield f"{name}: {_pair(*('' if r is ABSENT else ','.join(r) for r in (row, other)))}"
        else:
            yield from _cells_of(name, columns, row, other)


def _cells_of(name: str, columns: list[str], row: list[str], other: list[str]) -> Iterator[str]:
    if row != other:
        for column, mine, yours in zip_longest(columns, row, other, fillvalue=""):
            if column not in _NOT_COMPARED and not _same_text(mine, yours):
                yield f"{name} column {column}: {_pair(mine, yours)}"


def _name(columns: list[str], row: list[str]) -> str:
    """What a row is of; empty where none of its columns says so."""
    return _called(dict(zip(columns, row, strict=False)))


def _called(values: dict) -> str:
    """The same of a row with these values. A cell's id holds scenario, arm and method."""
    names = [name for name in _NAMES if values.get(name) not in (None, "")]
    names = [name for name in names if "cell" not in names or name not in _IN_A_CELL]
    return ", ".join(f"{name} {values[name]}" for name in names)


def _pair(shipped: object, derived: object) -> str:
    return f"shipped {_short(shipped)}, derived {_short(derived)}"


def _short(value: object) -> str:
    text = "nothing" if value in (None, "") else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _key(text: str) -> str:
    """Equal for most texts that are one but for the last digits of their numbers."""
    return _NUMBER.sub(lambda number: f"{float(number[0]):.12g}", text)


def _same_text(one: str, other: str) -> bool:
    """Whether two texts are one but for the last digits of their numbers."""
    if one == other:
        return True
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(a == b or equal(float(a), float(b)) for a, b in pairs)


def _parquet(shipped: Path, derived: Path) -> Iterator[str]:
    one, other = pq.read_table(shipped), pq.read_table(derived)
    if one.schema.names != other.schema.names or one.schema.types != other.schema.types:
        apart = set(zip(one.schema.names, map(str, one.schema.types), strict=True)) ^ set(
            zip(other.schema.names, map(str, other.schema.types), strict=True)
        )
        yield f"columns differ: {', '.join(sorted({name for name, _ in apart})) or 'in order'}"
        return
    if len(one) != len(other):
        yield f"{len(one)} rows shipped, {len(other)} derived{_cells_apart(one, other)}"
        return
    for place in one.schema.names:
        for row in _differing(one[place], other[place]):
            keys = [key for key in _NAMES if key in one.schema.names]
            named = {key: one[key][int(row)].as_py() for key in keys}
            pair = _pair(one[place][int(row)].as_py(), other[place][int(row)].as_py())
            yield f"{_called(named) or f'row {row + 1}'} column {place}: {pair}"


def _cells_apart(one: pa.Table, other: pa.Table) -> str:
    """Cells that have more or fewer rows on one side than on the other."""
    if "cell" not in one.schema.names:
        return ""
    counts = [
        dict(map(tuple, map(dict.values, t["cell"].value_counts().to_pylist())))
        for t in (one, other)
    ]
    apart = sorted(c for c in {*counts[0], *counts[1]} if counts[0].get(c) != counts[1].get(c))
    return f": cell {', '.join(apart[:3])}{' and more' if len(apart) > 3 else ''}"


def _differing(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    """The rows in which two columns of one type and length differ."""
    if pa.types.is_floating(one.type):
        there = [np.asarray(c.is_valid()) for c in (one, other)]
        a, b = (c.fill_null(0).to_numpy() for c in (one, other))
        with np.errstate(invalid="ignore"):
            near = (a == b) | (np.abs(a - b) <= RELATIVE * np.maximum(np.abs(a), np.abs(b)))
        near |= np.isnan(a) & np.isnan(b)
        return np.flatnonzero((there[0] != there[1]) | (there[0] & ~near))
    if one.equals(other):
        return np.array([], int)
    pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
    return np.array([row for row, (a, b) in enumerate(pairs) if a != b], int)


def _json(shipped: Path, derived: Path) -> Iterator[str]:
    values = (json.loads(path.read_text(encoding="utf-8")) for path in (shipped, derived))
    yield from differing(*values)


def differing(one: object, other: object, where: str = "") -> Iterator[str]:
    """Sentences of how two JSON values differ, each with its place."""
    if isinstance(one, dict) and isinstance(other, dict):
        named = {**other, **one}  # in the order of either
        for key in named:
            if key not in _NOT_COMPARED:
                yield from differing(one.get(key), other.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list):
        for index, mine, yours in apart(one, other, lambda entry: _key(json.dumps(entry))):
            place = f"{where}[{_label(yours if mine is ABSENT else mine, index)}]"
            if ABSENT in (mine, yours):
                yield f"{place} {GONE if yours is ABSENT else NEW}"
            else:
                yield from differing(mine, yours, place)
    elif not _same_value(one, other):
        yield f"{where}: {_pair(one, other)}"


def _label(value: object, index: int) -> str:
    """What an entry of a list calls itself, else its number."""
    if isinstance(value, dict):
        own = {k: value.get(k) for k in ("id", "cell", "member") if value.get(k) is not None}
        return " ".join(map(str, own.values())) or str(index)
    return str(index)


def _same_value(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return _same_text(one, other)
    if isinstance(one, bool) or isinstance(other, bool) or None in (one, other):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return equal(one, other)
    return one == other


def _texts(shipped: Path, derived: Path) -> Iterator[str]:
    yield from texts(*(path.read_text(encoding="utf-8") for path in (shipped, derived)))


def texts(shipped: str, derived: str) -> Iterator[str]:
    """Sentences of how two texts differ, each with its line."""
    lines = [_COMMIT.sub("commit", t).splitlines() for t in (shipped, derived)]
    for place, mine, yours in apart(*lines, _key):
        if ABSENT in (mine, yours) or not _same_text(mine, yours):
            yield f"line {place + 1}{_apart(mine, yours)}"


def _apart(mine: object, yours: object) -> str:
    """Both lines from where they part, and the last cell that they name before."""
    if ABSENT in (mine, yours):
        line, start = (yours if mine is ABSENT else mine), None
        pair = _pair(*("" if one is ABSENT else one or "an empty line" for one in (mine, yours)))
    else:
        pairs = enumerate(zip(mine, yours, strict=False))
        line, start = mine, next((i for i, (a, b) in pairs if a != b), min(len(mine), len(yours)))
        pair = _pair(*(one[max(start - 20, 0) :] for one in (mine, yours)))
    cells = [found[0] for found in _CELL.finditer(line, 0, len(line) if start is None else start)]
    return f", cell {cells[-1]}: {pair}" if cells else f": {pair}"


_BY_ENDING: dict[str, Callable[[Path, Path], Iterator[str]]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".json": _json,
}
