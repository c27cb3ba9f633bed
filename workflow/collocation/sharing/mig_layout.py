"""Which MIG instances a cell needs, and where on the card they lie. Touches no card.

A GPU instance occupies a run of the card's memory slices (its placement), and each profile says
where it may start. Besides, the SM slices of all instances must not exceed the card's, and no
profile may be used more often than the card allows. SM counts are looked up, never computed from
slices: they are not proportional.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from workflow.collocation.sharing.evidence import Unsupported
from workflow.collocation.study.cell import CellSpec

# SM slices of a GPU instance → of the compute instances that it offers, as many as fit in it.
COMPUTE_SLICES = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}
PartitionKey = tuple[int, int, int]  # profile id, start and size in memory slices
Placement = tuple[int, int]  # start and size in memory slices


@dataclass(frozen=True)
class Profile:
    """One GPU-instance profile of a card.

    id: by which nvidia-smi calls it; name: such as "3g.71gb". slices: SM slices; sm_count: None
    where unknown. max_count: how many instances at once.
    """

    id: int
    name: str
    slices: int
    sm_count: int | None
    max_count: int
    placements: tuple[Placement, ...]

    @property
    def size(self) -> int:
        """Memory slices of an instance."""
        return max((size for _, size in self.placements), default=0)


@dataclass(frozen=True)
class MigCard:
    """A card's table of GPU-instance profiles."""

    name: str
    profiles: tuple[Profile, ...]

    @property
    def plain(self) -> list[Profile]:
        """Profiles without attributes (+me, +gfx, -me), most SMs first, then most memory.

        Raises Unsupported for the empty table of drivers that want MIG mode on.
        """
        if not self.profiles:
            unknown = f"which profiles {self.name} offers is not known until MIG mode is on"
            raise Unsupported(unknown)
        plain = [profile for profile in self.profiles if not {"+", "-"} & set(profile.name)]
        return sorted(plain, key=lambda profile: (profile.slices, profile.size), reverse=True)

    @property
    def slices(self) -> int:
        """SM slices of the whole card: 7, on an A30 4."""
        return self.plain[0].slices

    def slice_name(self, profile: Profile) -> str:
        """The profile as studies name it: 2g, or 1g2x with more than its share of the memory."""
        double = profile.slices == 1 and profile.size * self.slices > self.plain[0].size
        return f"{profile.slices}g{'2x' * double}"

    @property
    def offers(self) -> str:
        """All plain profiles in a sentence's words, smallest first."""
        profiles = [f"{profile.max_count}x {profile.name}" for profile in reversed(self.plain)]
        return f"{', '.join(profiles)}, of {self.slices} SM slices in all"


@dataclass(frozen=True)
class Partition:
    """A GPU instance at `start` with `size` memory slices; compute: the SM slices of the compute
    instances in it, largest first.
    """

    profile: Profile
    start: int
    size: int
    compute: tuple[int, ...]

    @property
    def key(self) -> PartitionKey:
        """What no two GPU instances of a card have in common."""
        return self.profile.id, self.start, self.size

    @property
    def whole(self) -> bool:
        """Whether one compute instance fills it."""
        return self.compute == (self.profile.slices,)

    def __str__(self) -> str:
        if self.whole:
            return self.profile.name
        return f"{tally(f'{slices}c' for slices in self.compute)} in {self.profile.name}"


@dataclass(frozen=True)
class Layout:
    """GPU instances in the order of their creation; seats: by member, the index of its partition
    and of the compute instance in it.
    """

    partitions: tuple[Partition, ...]
    seats: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        in_order_of_members = dict.fromkeys(partition for partition, _ in self.seats)
        return tally(str(self.partitions[index]) for index in in_order_of_members)


class Need(NamedTuple):
    """What a member needs: a GPU instance of this profile, and so many SM slices of it."""

    profile: Profile
    slices: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key: largest first."""
        return -self.profile.size, -self.profile.slices, -self.slices


def plan_layout(spec: CellSpec, card: MigCard) -> Layout:
    """How to divide the card as a cell needs it: largest instances first, each as low as it goes.

    Raises Unsupported: one line with what the cell needs, and what the card offers.
    """
    try:
        needs, shared = _needs(spec, card), spec.method == "mig_shared"
        members = sorted(range(len(needs)), key=lambda member: needs[member].rank)
        groups = [members] if shared else [[member] for member in members]
        profiles = [needs[group[0]].profile for group in groups]
        placements = None
        if not shared or _fit_together(needs):
            placements = _placements(profiles, card)
        if placements is None:
            wanted = tally(_need_name(need, card) for need in needs)
            where = "in one GPU instance of" if shared else "on"
            raise Unsupported(f"{wanted} does not fit {where} {card.name}, with {card.offers}")
    except Unsupported as reason:
        raise Unsupported(f"{spec.method}: {reason}") from None
    partitions, seats = [], {}
    for index, group in enumerate(groups):
        start, size = placements[index]
        compute = tuple(needs[member].slices for member in group)
        partitions.append(Partition(profiles[index], start, size, compute))
        for number, member in enumerate(group):
            seats[member] = index, number
    return Layout(tuple(partitions), tuple(seats[member] for member in range(len(needs))))


def _fit_together(needs: list[Need]) -> bool:
    """Whether one GPU instance has all these slices."""
    profile = needs[0].profile
    if any(need.profile != profile for need in needs):
        return False
    return sum(need.slices for need in needs) <= profile.slices


def _needs(spec: CellSpec, card: MigCard) -> list[Need]:
    """What each member needs, by the method's name: mig, mig_shared, or a slice (mig_7g)."""
    _, _, variant = spec.method.partition("_")
    count = len(spec.members)
    if spec.members[0].slice:  # in a mix each member says what it needs
        return [_parse_need(member.slice, card) for member in spec.members]
    if variant == "shared":  # equal parts of the largest GPU instance, as large as they can be
        largest = card.plain[0]
        fitting = [n for n in COMPUTE_SLICES[largest.slices] if count * n <= card.slices]
        return [Need(largest, max(fitting, default=1))] * count
    if variant:
        return [_parse_need(variant, card)] * count
    fitting = [profile for profile in card.plain if _placements([profile] * count, card)]
    best = fitting[0] if fitting else card.plain[-1]
    return [Need(best, best.slices)] * count


def _parse_need(text: str, card: MigCard) -> Need:
    """The need that a slice such as 2g, 1g2x or 3c.7g names."""
    compute, _, slice_name = text.rpartition("c.")
    slices = int(compute or slice_name[0])
    for profile in card.plain:
        fits = slices in COMPUTE_SLICES[profile.slices]
        if fits and card.slice_name(profile) == slice_name:
            return Need(profile, slices)
    raise Unsupported(f"{card.name} has no {text}; it has {card.offers}")


def _need_name(need: Need, card: MigCard) -> str:
    """The text that `_parse_need` reads."""
    name = card.slice_name(need.profile)
    return name if need.slices == need.profile.slices else f"{need.slices}c.{name}"


def _placements(profiles: list[Profile], card: MigCard) -> tuple[Placement, ...] | None:
    """Where instances of these profiles lie, in the same order; None if they do not fit."""
    counts = Counter(profiles)
    if any(count > profile.max_count for profile, count in counts.items()):
        return None
    if sum(profile.slices for profile in profiles) > card.slices:
        return None
    return _search(profiles, occupied=0, lowest=0)


def _search(profiles: list[Profile], occupied: int, lowest: int) -> tuple[Placement, ...] | None:
    """Place the first profile as low as it goes, and the others after it.

    occupied: memory slices in use, as bits. lowest: where the first may start, for equal profiles
    lie in ascending order.
    """
    if not profiles:
        return ()
    first, later = profiles[0], profiles[1:]
    for start, size in sorted(first.placements):
        bits = (1 << start + size) - (1 << start)
        if start < lowest or bits & occupied:
            continue
        next_lowest = start + size if later and later[0] == first else 0
        placements = _search(later, occupied | bits, next_lowest)
        if placements is not None:
            return ((start, size), *placements)
    return None


def tally(names: Iterable[str]) -> str:
    """Names with their counts: '2x 2g.35gb + 1g.18gb'."""
    counts = Counter(names).items()
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counts)
