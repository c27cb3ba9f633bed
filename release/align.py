"""Which entries of two lists go together: what was put in or taken out moves nothing else."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from itertools import takewhile, zip_longest
from typing import Any

ABSENT = object()  # stands for an entry that the other list has alone


def apart(
    ours: Sequence, theirs: Sequence, key: Callable[[Any], Hashable]
) -> list[tuple[int, Any, Any]]:
    """What differs by its key: the place in `ours`, the entry there and that of `theirs`.

    Entries that changed side by side go together in their order.
    """
    one, other = ([key(entry) for entry in entries] for entries in (ours, theirs))
    if one == other:  # not the entries themselves, among which 1 is True
        return []
    found = [
        (start + place, *pair)
        for start, end, first, last in _spans(one, other)
        for place, pair in enumerate(
            zip_longest(ours[start:end], theirs[first:last], fillvalue=ABSENT)
        )
    ]
    if len(ours) == len(theirs):  # among entries that repeat, difflib may find more than there is
        places = (at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        return min(found, [(at, ours[at], theirs[at]) for at in places], key=len)
    return found


def _spans(one: list, other: list) -> list[tuple[int, int, int, int]]:
    """Where the lists differ: from and to in the one, from and to in the other."""
    # The same ends, which are most of it, go together whatever repeats between them.
    head = _alike(one, other)
    tail = _alike(one[head:][::-1], other[head:][::-1])
    middle = one[head : len(one) - tail], other[head : len(other) - tail]
    return [
        tuple(head + at for at in span)
        for what, *span in SequenceMatcher(None, *middle, autojunk=False).get_opcodes()
        if what != "equal"
    ]


def _alike(one: list, other: list) -> int:
    """How many entries the lists begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
