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


# What a member, or members with a claim in common, need: a GPU instance, and compute slices of it.
Wanted = tuple[Profile, int]


def layouts(spec: dict, card: Card) -> list[Layout]:
    """Every way to divide the card as a cell's spec needs it, at least one.

    Largest instances first, each as low as it goes. Raises Unsupported: one line with what was
    wanted, and what the card offers.
    """
    try:
        wanted, claims = _needed(spec, card)
        instances = _packed(wanted)
        if named(spec["method"]).shared and len(instances) > 1:
            raise Unsupported(f"{_said(wanted)} do not fit in one GPU instance of {card.name}")
        profiles = [wanted[claims[0]][0] for claims in instances]
        placed = _placements(profiles, card)
        if not placed:
            reason = _why(profiles, card)
            raise Unsupported(f"{_said(wanted)} does not fit on {card.name}: {reason}")
    except Unsupported as reason:
        raise Unsupported(f"{spec['method']}: {reason}") from None
    # The driver chooses where compute instances lie, and may need the smallest first.
    divided = any(len({wanted[claim] for claim in claims}) > 1 for claims in instances)
    found = []
    for order in (1, -1) if divided else (1,):
        inside = [claims[::order] for claims in instances]
        seats = {c: (i, n) for i, claims in enumerate(inside) for n, c in enumerate(claims)}
        compute = [tuple(wanted[claim][1] for claim in claims) for claims in inside]
        for places in placed:
            each = zip(profiles, places, compute, strict=True)
            parts = tuple(Part(profile, *place, slices) for profile, place, slices in each)
            found.append(Layout(parts, tuple(seats[claim] for claim in claims)))
    return found


def _needed(spec: dict, card: Card) -> tuple[list[Wanted], list[int]]:
    """What each claim is to, and each member's claim.

    Only as clients of MPS do members have a claim in common.
    """
    if not card.profiles:
        raise Unsupported(NOT_KNOWN.format(card.name))
    method, members = named(spec["method"]), spec["members"]
    mixed = "slice" in members[0]  # each says what it needs, instead of all taking what fits
    claims = list(range(len(members)))
    if method.served and mixed:
        slices = {member["workload"]: member["slice"] for member in members}
        claims = [list(slices).index(member["workload"]) for member in members]
        return [_profile(text, card) for text in slices.values()], claims
    if method.slice or mixed:
        return [_profile(method.slice or member["slice"], card) for member in members], claims
    if method.served:
        claims = [member % 2 for member in claims]
    return (_equal_parts if method.shared else _alike)(max(claims) + 1, card), claims


def _alike(count: int, card: Card) -> list[Wanted]:
    """The best profile of which `count` fit, so many times."""
    for profile in card.plain:
        if _placements([profile] * count, card):
            return [(profile, profile.slices)] * count
    raise Unsupported(
        f"{count} equal GPU instances do not fit on {card.name}: it offers {card.offers}"
    )


def _equal_parts(count: int, card: Card) -> list[Wanted]:
    """The largest GPU instance, divided into the largest equal compute instances."""
    largest = card.plain[0]
    for slices in reversed(largest.compute):
        if count * slices <= largest.slices:
            return [(largest, slices)] * count
    raise Unsupported(
        f"{count} equal compute instances do not fit in one GPU instance of {card.name}: "
        f"{largest.name} holds {largest.slices} slices"
    )


def _profile(text: str, card: Card) -> Wanted:
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


def _packed(wanted: list[Wanted]) -> list[list[int]]:
    """GPU instances, largest first, by the claims to them; compute instances share one as long as
    they fit.
    """
    found: list[list[int]] = []
    # Largest first: among the sizes that there are, first fit then takes as few as possible.
    for claim in sorted(range(len(wanted)), key=lambda claim: -wanted[claim][1]):
        profile, compute = wanted[claim]
        for claims in found:
            left = profile.slices - sum(wanted[other][1] for other in claims)
            if wanted[claims[0]][0] == profile and compute <= left:
                claims.append(claim)
                break
        else:
            found.append([claim])

    def largest_first(claims: list[int]) -> tuple:
        profile = wanted[claims[0]][0]
        return -profile.size, -profile.slices, min(claims)

    return sorted(found, key=largest_first)


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


# -- words ----------------------------------------------------------------------------------------


def tally(names: Iterable[str]) -> str:
    """'2x 2g.35gb + 1g.18gb'."""
    counts = Counter(names).items()
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counts)


def _said(wanted: list[Wanted]) -> str:
    """As slices: '2x 3c.7g + 1g2x'."""
    return tally(
        "1g2x" if p.double else f"{'' if c == p.slices else f'{c}c.'}{p.slices}g" for p, c in wanted
    )


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
