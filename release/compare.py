"""Shipped against derived, by value: numbers to a part in 10⁹, as libraries write them differently.

A table in Parquet is compared as a text, too, with a line for its columns and one for each row.
"""

import math
import re
from collections.abc import Iterator
from itertools import islice, zip_longest
from os.path import commonprefix
from pathlib import Path

from analysis.records.safe import MOST_ROWS, read_bytes, read_table, read_text
from release.contents import one_line

MOST = 20  # differences of a file that are told
_NUMBER = re.compile(r"([-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)")
_CELL = re.compile(r"(?<![\w+.-])[\w+.-]+/\w+/\w+/r\d+")


def files(shipped: Path, derived: Path) -> list[str]:
    """Sentences: how two files of one kind differ."""
    try:
        if read_bytes(shipped) == read_bytes(derived):
            return []
        return texts(_text(shipped), _text(derived))
    except Exception as error:  # whatever a file holds, it is named
        return [f"cannot be read: {one_line(error)}"]


def _text(path: Path) -> str:
    if path.suffix != ".parquet":
        return read_text(path)
    table = read_table(path, most=MOST_ROWS)
    return "\n".join([str([*map(str, table.schema)]), *map(repr, table.to_pylist())])


def texts(shipped: str, derived: str) -> list[str]:
    """Sentences: how two texts differ, between the lines that they begin and end with alike."""
    one, other = shipped.splitlines(), derived.splitlines()
    head = len(commonprefix([one, other]))
    one, other = one[head:], other[head:]
    tail = len(commonprefix([one[::-1], other[::-1]]))
    pairs = zip_longest(one[: len(one) - tail], other[: len(other) - tail], fillvalue="nothing")
    apart = ((n, *pair) for n, pair in enumerate(pairs, head + 1) if not same(*pair))
    return list(islice(_told(apart), MOST))


def _told(apart: Iterator[tuple[int, str, str]]) -> Iterator[str]:
    """How each line begins, the last cell that it names before the difference, and both ways."""
    for line, one, other in apart:
        start = len(commonprefix([one, other]))
        end = len(one) - len(commonprefix([one[start:][::-1], other[start:][::-1]]))
        cells = [f", cell {cell}" for cell in _CELL.findall(one, 0, end)[-1:]] or [""]
        at = max(start - 30, 0)
        both = f"shipped {one[at : at + 80]}, derived {other[at : at + 80]}"
        yield f"line {line}{cells[0]}{f', {one[: min(at, 80)]}' if at else ''}: {both}"


def same(one: str, other: str) -> bool:
    """Whether two texts are one, but for the last digits of numbers in them."""
    mine, yours = _NUMBER.split(one), _NUMBER.split(other)  # numbers at odd places
    return len(mine) == len(yours) and all(
        a == b or (n % 2 and "." in a and math.isclose(float(a), float(b), rel_tol=1e-9))
        for n, (a, b) in enumerate(zip(mine, yours, strict=True))
    )
