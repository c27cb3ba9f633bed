"""Which MIG instances a cell needs, and where on the card they can lie. Pure: touches no card.

A GPU instance occupies a run of the card's memory slices (its placement), and each profile says
where it may start. Besides, the SM slices of all instances must not exceed the card's, and no
profile may be used more often than the card allows. SM counts are looked up, never derived from
slices: they are not proportional.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import ConfigDict

from workflow.collocation.methods.base import named

PLACEMENTS, ORDERS = 8, 12  # how many are worth trying, should the driver refuse the first

# A GPU instance's slices → those of the compute instances it offers, as many as its slices hold.
COMPUTE = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}
# Drivers up to R535 list no profiles before.
NOT_KNOWN = "which profiles {} offers is not known until MIG mode is on"
SLICE = re.compile(r"(?:(?P<compute>\d)c\.)?(?P<slices>\d)g|(?P<double>1g2x)")


class NoLayout(Exception):
    """The card cannot be divided as a cell needs it; one line: what was wanted, what it offers."""


@dataclass(frozen=True)
class Profile:
    """One GPU-instance profile of a card; unknown numbers are None.

    index: NVML_GPU_INSTANCE_PROFILE_*; id: what nvidia-smi calls it by; name: such as "3g.71gb".
    slices: of SMs; sm_count: SMs; memory_mib: MiB; most: how many instances at once.
    placements: (start, size) in memory slices. source: where the numbers come from.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    index: int
    id: int
    name: str
    slices: int
    sm_count: int | None
    memory_mib: int | None
    most: int
    placements: tuple[tuple[int, int], ...]
    source: str = field(default="", compare=False)

    @property
    def plain(self) -> bool:
        """Without an attribute such as +me, +gfx or -me."""
        return not {"+", "-"} & set(self.name)

    @property
    def double(self) -> bool:
        """One SM slice with the memory of two."""
        return self.plain and self.slices == 1 and self.size == 2

    @property
    def size(self) -> int:
        """Memory slices of an instance."""
        return max((size for _, size in self.placements), default=0)

    @property
    def compute(self) -> tuple[int, ...]:
        """Slices of the compute instances that it offers, ascending."""
        return COMPUTE.get(self.slices, (self.slices,))


@dataclass(frozen=True)
class Card:
    """A card's profile table. recorded: read from a card, not taken from documents."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    profiles: tuple[Profile, ...]
    recorded: bool = False
    source: str = field(default="", compare=False)

    @cached_property
    def plain(self) -> list[Profile]:
        """Profiles without attributes, those with most SMs, then most memory, first.

        Where a number is missing in the table, slices take its place for all.
        """
        found = [profile for profile in self.profiles if profile.plain]
        by_sms = all(profile.sm_count is not None for profile in found)
        by_memory = all(profile.memory_mib is not None for profile in found)

        def rank(profile: Profile) -> tuple:
            return (
                profile.sm_count if by_sms else profile.slices,
                profile.memory_mib if by_memory else profile.size,
            )

        return sorted(found, key=rank, reverse=True)

    @cached_property
    def slices(self) -> int:
        """SM slices of the whole card: 7, on an A30 4."""
        return max((profile.slices for profile in self.profiles), default=0)

    @cached_property
    def memory_slices(self) -> int:
        return max((sum(place) for p in self.profiles for place in p.placements), default=0)

    @property
    def offers(self) -> str:
        return ", ".join(f"{p.most}x {p.name}" for p in reversed(self.plain)) or "no profile"


@dataclass(frozen=True)
class Part:
    """A GPU instance to create at (start, size) in memory slices.

    compute: slices of each of its compute instances, in creation order; (profile.slices,) is one
    that fills it.
    """

    profile: Profile
    start: int
    size: int
    compute: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """One compute instance fills it."""
        return self.compute == (self.profile.slices,)

    def __str__(self) -> str:
        if self.whole:
            return self.profile.name
        return f"{tally(f'{slices}c' for slices in self.compute)} in {self.profile.name}"


@dataclass(frozen=True)
class Layout:
    """GPU instances in creation order; for each member its seat, (part, compute instance)."""

    parts: tuple[Part, ...]
    seats: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        first_used = dict.fromkeys(part for part, _ in self.seats)
        return tally(str(self.parts[index]) for index in first_used)


@dataclass(frozen=True)
class _Instance:
    """A GPU instance that a cell needs; seats: (claim, slices) of its compute instances."""

    profile: Profile
    seats: list[tuple[int, int]]

    def takes(self, slices: int) -> bool:
        return sum(taken for _, taken in self.seats) + slices <= self.profile.slices


def layouts(spec: dict, card: Card) -> Iterator[Layout]:
    """Every way worth trying to divide the card as a cell's spec needs it, in a fixed order.

    Largest instances first, each as low as it goes; then other placements, then other creation
    orders. There is at least one: where nothing fits, the call itself raises NoLayout.
    """
    if not card.profiles:
        raise NoLayout(f"{spec['method']}: {NOT_KNOWN.format(card.name)}")
    try:
        instances, claims = _needed(spec, card)
        profiles = [instance.profile for instance in instances]
        placed = list(_placements(profiles, card))
        if not placed:
            raise NoLayout(f"{_asked(spec)} does not fit on {card.name}: {_why(profiles, card)}")
    except NoLayout as reason:
        raise NoLayout(f"{spec['method']}: {reason}") from None
    divided = any(len({slices for _, slices in one.seats}) > 1 for one in instances)
    return (
        _layout(instances, claims, order, places, smallest_first)
        for smallest_first in ((False, True) if divided else (False,))
        for order in _from_both_ends(list(_orders(profiles)), ORDERS)
        for places in _from_both_ends(placed, PLACEMENTS)
    )


# -- what a cell needs ----------------------------------------------------------------------------


def _needed(spec: dict, card: Card) -> tuple[list[_Instance], list[int]]:
    """The GPU instances that a cell takes, and each member's claim to a seat in them.

    Only as clients of MPS do members have a claim in common.
    """
    method, members = named(spec["method"]), spec["members"]
    own = list(range(len(members)))
    if method.served:
        if not _mixed(spec):
            if len(members) < 3:
                raise NoLayout(f"it deals 3 or more members over two instances, not {len(members)}")
            return _alike(2, card), [member % 2 for member in own]
        names = list(dict.fromkeys(member["workload"] for member in members))
        return _mix(_slices(spec), card), [names.index(m["workload"]) for m in members]
    if method.shared:
        return [_shared(spec, card)], own
    if method.slice is None and not _mixed(spec):
        return _alike(len(members), card), own
    return _mix(_slices(spec), card), own


def _mixed(spec: dict) -> bool:
    """Whether each member says what it needs, instead of all taking alike what fits."""
    return "slice" in spec["members"][0]


def _slices(spec: dict) -> list[str]:
    """What is asked for, claim by claim."""
    method, members = named(spec["method"]), spec["members"]
    if method.slice is not None:
        return [method.slice] * len(members)
    if method.served:
        return list({member["workload"]: member["slice"] for member in members}.values())
    return [member["slice"] for member in members]


def _alike(count: int, card: Card) -> list[_Instance]:
    """The best profile of which `count` fit, so many times."""
    for profile in card.plain:
        if any(_placements([profile] * count, card)):
            return [_Instance(profile, [(claim, profile.slices)]) for claim in range(count)]
    raise NoLayout(
        f"{count} equal GPU instances do not fit on {card.name}: it offers {card.offers}"
    )


def _mix(slices: list[str], card: Card) -> list[_Instance]:
    """A GPU instance for each slice; compute instances share one as long as they fit."""
    wanted = [_profile(text, card) for text in slices]
    found: list[_Instance] = []
    # Largest first: among the sizes that there are, first fit then takes as few as possible.
    for claim in sorted(range(len(wanted)), key=lambda claim: -wanted[claim][1]):
        profile, compute = wanted[claim]
        takers = (one for one in found if one.profile == profile and one.takes(compute))
        if taker := next(takers, None):
            taker.seats.append((claim, compute))
        else:
            found.append(_Instance(profile, [(claim, compute)]))
    return sorted(found, key=lambda one: min(one.seats))


def _profile(text: str, card: Card) -> tuple[Profile, int]:
    """The plain profile that a slice such as 2g, 1g2x or 3c.7g names, and compute slices in it."""
    match = SLICE.fullmatch(text)
    if not match:
        raise NoLayout(f"a slice is written as 2g, 1g2x or 3c.7g, not {text!r}")
    slices, double = int(match["slices"] or 1), bool(match["double"])
    found = [p for p in card.plain if (p.slices, p.double) == (slices, double)]
    if not found:
        name = "1g with double memory" if double else f"{slices}g"
        raise NoLayout(f"{card.name} has no {name}; it offers {card.offers}")
    compute = int(match["compute"] or slices)
    if compute not in found[0].compute:
        offered = ", ".join(f"{slices}c" for slices in found[0].compute)
        raise NoLayout(f"{text} is not possible on {card.name}: {found[0].name} offers {offered}")
    return found[0], compute


def _shared(spec: dict, card: Card) -> _Instance:
    """The one GPU instance that all members divide into compute instances."""
    if _mixed(spec):
        found = _mix(_slices(spec), card)
        if len(found) == 1:
            return found[0]
        asked, largest = _asked(spec), found[0].profile
    else:
        count = len(spec["members"])
        largest = max(card.plain, key=lambda profile: profile.slices)
        for slices in reversed(largest.compute):
            if count * slices <= largest.slices:
                return _Instance(largest, [(claim, slices) for claim in range(count)])
        asked = f"{count} equal compute instances"
    holds = ", ".join(f"{largest.slices // slices}x {slices}c" for slices in largest.compute)
    raise NoLayout(
        f"{asked} do not fit in one GPU instance of {card.name}: "
        f"{largest.name} holds {largest.slices} slices, such as {holds}"
    )


# -- where it can lie -----------------------------------------------------------------------------


def _largest_first(profile: Profile) -> tuple:
    return -profile.size, -profile.slices, profile.name


def _placements(profiles: list[Profile], card: Card) -> Iterator[tuple[tuple[int, int], ...]]:
    """All ways to place the instances, as (start, size) of each in the order given.

    Equal profiles are interchangeable: they lie in ascending order, and no other.
    """
    crowded = any(count > profile.most for profile, count in Counter(profiles).items())
    if crowded or sum(profile.slices for profile in profiles) > card.slices:
        return
    order = sorted(range(len(profiles)), key=lambda index: _largest_first(profiles[index]))

    def extend(placed: dict[int, tuple[int, int]], taken: int) -> Iterator[dict]:
        if len(placed) == len(order):
            yield placed
            return
        index = order[len(placed)]
        before = order[len(placed) - 1] if placed else None
        least = 0
        if before is not None and profiles[before] == profiles[index]:
            least = sum(placed[before])
        for start, size in sorted(profiles[index].placements):
            run = (1 << start + size) - (1 << start)
            if start >= least and not run & taken:
                yield from extend({**placed, index: (start, size)}, taken | run)

    for placed in extend({}, 0):
        yield tuple(placed[index] for index in range(len(profiles)))


def _orders(profiles: list[Profile]) -> Iterator[tuple[int, ...]]:
    """All orders to create the instances in, largest first to smallest first; equals in turn."""

    def extend(done: tuple[int, ...], left: list[int]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield done
        tried: set[Profile] = set()
        for index in left:
            if profiles[index] not in tried:
                tried.add(profiles[index])
                yield from extend((*done, index), [other for other in left if other != index])

    everything = range(len(profiles))
    yield from extend((), sorted(everything, key=lambda index: _largest_first(profiles[index])))


def _from_both_ends(items: list, most: int) -> list:
    """The first, the last, the second, the last but one: alternatives that differ."""
    pairs = zip(items, reversed(items), strict=True)
    return list(dict.fromkeys(item for pair in pairs for item in pair))[:most]


def _layout(instances, claims, order, places, smallest_first: bool) -> Layout:
    """`order`: indices into instances and places, as created; `claims`: by member."""
    parts, seat = [], {}
    for index in order:
        inside = instances[index].seats[:: -1 if smallest_first else 1]
        for number, (claim, _) in enumerate(inside):
            seat[claim] = len(parts), number
        compute = tuple(slices for _, slices in inside)
        parts.append(Part(instances[index].profile, *places[index], compute))
    return Layout(tuple(parts), tuple(seat[claim] for claim in claims))


# -- words ----------------------------------------------------------------------------------------


def tally(names: Iterable[str]) -> str:
    """'2x 2g.35gb + 1g.18gb'."""
    counts = Counter(names).items()
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counts)


def placement_text(places: Iterable[tuple[int, int]]) -> str:
    """(start, size) of several instances as nvidia-smi writes it: '{0,2,4}:2'."""
    starts: dict[int, list[int]] = {}
    for start, size in places:
        starts.setdefault(size, []).append(start)
    return " ".join(f"{{{','.join(map(str, at))}}}:{size}" for size, at in starts.items())


def _asked(spec: dict) -> str:
    return tally(_slices(spec))


def _why(profiles: list[Profile], card: Card) -> str:
    """Why the instances cannot be placed."""
    counts = Counter(profiles)
    if crowded := [p for p, count in counts.items() if count > p.most]:
        return f"at most {', '.join(f'{p.most}x {p.name}' for p in crowded)}"
    slices = sum(profile.slices for profile in profiles)
    if slices > card.slices:
        return f"it takes {slices} SM slices, and the card has {card.slices}"
    memory = sum(profile.size for profile in profiles)
    if memory > card.memory_slices:
        return f"it takes {memory} memory slices, and the card has {card.memory_slices}"
    places = ", ".join(f"{p.name} at {placement_text(p.placements)}" for p in counts)
    return f"the places overlap: {places}"
