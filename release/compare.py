"""Shipped against derived, by value: numbers to a part in 10⁹, as libraries write them differently.

Each comparison gives sentences, of the first differences only.
"""

import csv
import io
import math
import re
from collections.abc import Iterator
from itertools import islice, zip_longest
from os.path import commonprefix
from pathlib import Path

from release.contents import one_line, read_bytes, read_table, read_text

MOST = 20
RELATIVE = 1e-9
KEYS = ("cell", "attempt", "member", "window", "entity", "t")  # name a row that has no id
_NUMBER = re.compile(r"([-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)")
_CELL = re.compile(r"(?<![\w+.-])[\w+.-]+/\w+/\w+/r\d+")


def files(shipped: Path, derived: Path) -> list[str]:
    """How two files of one kind differ; the kind is told by the ending."""
    try:
        if read_bytes(shipped) == read_bytes(derived):
            return []
        if shipped.suffix in (".parquet", ".csv"):
            found = rows(_table(shipped), _table(derived))
        else:
            found = texts(read_text(shipped), read_text(derived))
        return list(islice(found, MOST))
    except Exception as error:  # whatever a file holds, it is named
        return [f"cannot be read: {one_line(error)}"]


def same(one: object, other: object) -> bool:
    """Whether two values are one, but for the last digits of numbers in them; NaN is NaN."""
    if one == other or type(one) is not type(other):
        return one == other
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=RELATIVE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return [*one] == [*other] and same([*one.values()], [*other.values()])
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if not isinstance(one, str):
        return False
    mine, yours = _NUMBER.split(one), _NUMBER.split(other)  # numbers at odd places
    return len(mine) == len(yours) and all(
        a == b or (place % 2 and "." in a and same(float(a), float(b)))
        for place, (a, b) in enumerate(zip(mine, yours, strict=True))
    )


def _table(path: Path) -> list[dict]:
    """The rows of a table, below one with the names of its columns."""
    if path.suffix == ".parquet":
        table = read_table(path)
        return [{"columns": [*map(str, table.schema)]}, *table.to_pylist()]
    reader = csv.DictReader(io.StringIO(read_text(path), ""))
    return [{"columns": reader.fieldnames}, *reader]


def rows(ours: list[dict], theirs: list[dict]) -> Iterator[str]:
    """Two tables, a sentence for each row."""
    names, others = ([_name(*row) for row in enumerate(some)] for some in (ours, theirs))
    for name in sorted({*names} ^ {*others}):
        yield f"{name} {'is not derived' if name in names else 'is derived, and does not ship'}"
    if names != others and {*names} == {*others}:
        yield "rows are repeated, or in another order"
    for name, one, other in zip(names, ours, theirs, strict=False) if names == others else ():
        if not same(one, other):
            yield _apart(name, one, other)


def _name(place: int, row: dict) -> str:
    keys = ["id"] if row.get("id") else KEYS
    told = [f"{key} {row[key]}" for key in keys if row.get(key) not in (None, "")]
    return ", ".join(told) or f"row {place}"


def _apart(name: str, one: dict, other: dict) -> str:
    """A row's first difference; of an estimate also the cell in which it is."""
    column = next(key for key in {**one, **other} if not same(one.get(key), other.get(key)))
    parts = zip_longest(one.get("replicates") or [], other.get("replicates") or [])
    cells = [f" (cell {(a or b)['cell']})" for a, b in parts if not same(a, b)] or [""]
    return f"{name}: {column} {_pair(one.get(column), other.get(column))}{cells[0]}"


def _pair(*values: object) -> str:
    told = ["nothing" if value in (None, "") else str(value) for value in values]
    return "shipped {}, derived {}".format(*(t if len(t) <= 60 else f"{t[:57]}..." for t in told))


def texts(shipped: str, derived: str) -> Iterator[str]:
    """Two texts line by line, between what they begin and end with alike."""
    one, other = shipped.splitlines(), derived.splitlines()
    head = len(commonprefix([one, other]))
    one, other = one[head:], other[head:]
    tail = len(commonprefix([one[::-1], other[::-1]]))
    pairs = zip_longest(one[: len(one) - tail], other[: len(other) - tail])
    for line, (a, b) in enumerate(pairs, head + 1):
        if a is None or b is None:
            yield f"line {line}: {_pair(a, b)}"
        elif not same(a, b):  # from where they part, with the last cell that is named before
            at = len(commonprefix([a, b]))
            cell = [f", cell {found}" for found in _CELL.findall(a, 0, at)[-1:]] or [""]
            yield f"line {line}{cell[0]}: {_pair(a[max(at - 20, 0) :], b[max(at - 20, 0) :])}"
