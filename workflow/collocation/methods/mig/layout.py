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
from workflow.collocation.methods.evidence import Unsupported

# A GPU instance's slices → those of the compute instances it offers, as many as its slices hold.
COMPUTE = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}
# Drivers up to R535 list no profiles before.
NOT_KNOWN = "which profiles {} offers is not known until MIG mode is on"
SLICE = re.compile(r"(?:(?P<compute>\d)c\.)?(?P<slices>\d)g|(?P<double>1g2x)")


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
        """Profiles without attributes; those with most SMs, then most memory, first."""
        found = [profile for profile in self.profiles if profile.plain]
        return sorted(found, key=lambda profile: (profile.slices, profile.size), reverse=True)

    @cached_property
    def slices(self) -> int:
        """SM slices of the whole card: 7, on an A30 4."""
        return max((profile.slices for profile in self.profiles), default=0)

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
    def place(self) -> tuple[int, int, int]:
        return self.profile.id, self.start, self.size

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


def layouts(spec: dict, card: Card) -> list[Layout]:
    """Every way to divide the card as a cell's spec needs it, at least one.

    Largest instances first, each as low as it goes. Raises Unsupported: one line with what was
    wanted, and what the card offers.
    """
    try:
        if not card.profiles:
            raise Unsupported(NOT_KNOWN.format(card.name))
        instances, claims = _needed(spec, card)
        instances.sort(key=lambda one: (-one.profile.size, -one.profile.slices, min(one.seats)))
        profiles = [instance.profile for instance in instances]
        placed = _placements(profiles, card)
        if not placed:
            wanted = tally(_written(profile) for profile in profiles)
            raise Unsupported(f"{wanted} does not fit on {card.name}: {_why(profiles, card)}")
    except Unsupported as reason:
        raise Unsupported(f"{spec['method']}: {reason}") from None
    # The driver chooses where compute instances lie, and may need the smallest first.
    divided = any(len({slices for _, slices in one.seats}) > 1 for one in instances)
    return [
        _layout(instances, claims, places, order)
        for order in ((1, -1) if divided else (1,))
        for places in placed
    ]


# -- what a cell needs ----------------------------------------------------------------------------


def _needed(spec: dict, card: Card) -> tuple[list[_Instance], list[int]]:
    """The GPU instances that a cell takes, and each member's claim to a seat in them.

    Only as clients of MPS do members have a claim in common.
    """
    method, members = named(spec["method"]), spec["members"]
    mixed = "slice" in members[0]  # each says what it needs, instead of all taking what fits
    claims, slices = list(range(len(members))), None
    if method.served and mixed:
        by_workload = {member["workload"]: member["slice"] for member in members}
        slices, names = list(by_workload.values()), list(by_workload)
        claims = [names.index(member["workload"]) for member in members]
    elif method.served:
        claims = [member % 2 for member in claims]
    elif method.slice or mixed:
        slices = [method.slice or member["slice"] for member in members]
    if slices is None:
        return (_equal_parts if method.shared else _alike)(max(claims) + 1, card), claims
    found = _mix(slices, card)
    if method.shared and len(found) > 1:
        raise Unsupported(f"{tally(slices)} do not fit in one GPU instance of {card.name}")
    return found, claims


def _alike(count: int, card: Card) -> list[_Instance]:
    """The best profile of which `count` fit, so many times."""
    for profile in card.plain:
        if _placements([profile] * count, card):
            return [_Instance(profile, [(claim, profile.slices)]) for claim in range(count)]
    raise Unsupported(
        f"{count} equal GPU instances do not fit on {card.name}: it offers {card.offers}"
    )


def _equal_parts(count: int, card: Card) -> list[_Instance]:
    """The largest GPU instance, divided into the largest equal compute instances."""
    largest = card.plain[0]
    for slices in reversed(largest.compute):
        if count * slices <= largest.slices:
            return [_Instance(largest, [(claim, slices) for claim in range(count)])]
    raise Unsupported(
        f"{count} equal compute instances do not fit in one GPU instance of {card.name}: "
        f"{largest.name} holds {largest.slices} slices"
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
    return found


def _profile(text: str, card: Card) -> tuple[Profile, int]:
    """The plain profile that a slice such as 2g, 1g2x or 3c.7g names, and compute slices in it."""
    match = SLICE.fullmatch(text)
    if not match:
        raise Unsupported(f"a slice is written as 2g, 1g2x or 3c.7g, not {text!r}")
    slices, double = int(match["slices"] or 1), bool(match["double"])
    found = [p for p in card.plain if (p.slices, p.double) == (slices, double)]
    if not found:
        name = "1g with double memory" if double else f"{slices}g"
        raise Unsupported(f"{card.name} has no {name}; it offers {card.offers}")
    compute = int(match["compute"] or slices)
    if compute not in found[0].compute:
        offered = ", ".join(f"{slices}c" for slices in found[0].compute)
        raise Unsupported(
            f"{text} is not possible on {card.name}: {found[0].name} offers {offered}"
        )
    return found[0], compute


def _written(profile: Profile) -> str:
    """As a slice."""
    return "1g2x" if profile.double else f"{profile.slices}g"


# -- where it can lie -----------------------------------------------------------------------------


def _placements(profiles: list[Profile], card: Card) -> list[tuple[tuple[int, int], ...]]:
    """All ways to place the instances, as (start, size) of each in the order given."""
    crowded = any(count > profile.most for profile, count in Counter(profiles).items())
    if crowded or sum(profile.slices for profile in profiles) > card.slices:
        return []
    return list(_free_runs(profiles, taken=0, least=0))


def _free_runs(profiles: list[Profile], taken: int, least: int) -> Iterator[tuple]:
    """taken: the memory slices in use, as bits; least: where the first may start.

    Equal profiles are interchangeable: they lie in ascending order, and no other.
    """
    if not profiles:
        yield ()
        return
    first, rest = profiles[0], profiles[1:]
    for start, size in sorted(first.placements):
        run = (1 << start + size) - (1 << start)
        if start >= least and not run & taken:
            beyond = start + size if rest and rest[0] == first else 0
            for places in _free_runs(rest, taken | run, beyond):
                yield ((start, size), *places)


def _layout(
    instances: list[_Instance], claims: list[int], places: Iterable[tuple[int, int]], order: int
) -> Layout:
    """claims: by member. order: -1 for compute instances with the smallest first."""
    parts, seat = [], {}
    for index, (instance, place) in enumerate(zip(instances, places, strict=True)):
        inside = instance.seats[::order]
        seat |= {claim: (index, number) for number, (claim, _) in enumerate(inside)}
        parts.append(Part(instance.profile, *place, tuple(slices for _, slices in inside)))
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


def _why(profiles: list[Profile], card: Card) -> str:
    """Why the instances cannot be placed."""
    counts = Counter(profiles)
    if crowded := [p for p, count in counts.items() if count > p.most]:
        return f"at most {', '.join(f'{p.most}x {p.name}' for p in crowded)}"
    slices = sum(profile.slices for profile in profiles)
    if slices > card.slices:
        return f"it takes {slices} SM slices, and the card has {card.slices}"
    places = ", ".join(f"{p.name} at {placement_text(p.placements)}" for p in counts)
    return f"the places overlap: {places}"
