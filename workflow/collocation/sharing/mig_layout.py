"""Which MIG instances a cell needs, and where on the card they lie. Pure: touches no card.

A GPU instance occupies a run of the card's memory slices (its placement), and each profile says
where it may start. Besides, the SM slices of all instances must not exceed the card's, and no
profile may be used more often than the card allows. SM counts are looked up, never derived from
slices: they are not proportional.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from workflow.collocation.sharing.evidence import Unsupported
from workflow.collocation.study.cell import CellSpec

# A GPU instance's slices → those of the compute instances it offers, as many as its slices hold.
COMPUTE = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}
Place = tuple[int, int, int]  # of a GPU instance: profile, start and size in memory slices


@dataclass(frozen=True)
class Profile:
    """One GPU-instance profile of a card.

    id: what nvidia-smi calls it by; name: such as "3g.71gb". slices: of SMs; sm_count: None where
    unknown. most: how many instances at once. placements: (start, size) in memory slices.
    """

    id: int
    name: str
    slices: int
    sm_count: int | None
    most: int
    placements: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Memory slices of an instance."""
        return max((size for _, size in self.placements), default=0)


@dataclass(frozen=True)
class Card:
    """A card's profile table."""

    name: str
    profiles: tuple[Profile, ...]

    @property
    def plain(self) -> list[Profile]:
        """Profiles without attributes such as +me, +gfx or -me; those with most SMs, then most
        memory, first. Raises Unsupported for the empty table of drivers that want MIG mode on.
        """
        if not self.profiles:
            unknown = f"which profiles {self.name} offers is not known until MIG mode is on"
            raise Unsupported(unknown)
        found = [profile for profile in self.profiles if not {"+", "-"} & set(profile.name)]
        return sorted(found, key=lambda profile: (profile.slices, profile.size), reverse=True)

    @property
    def slices(self) -> int:
        """SM slices of the whole card: 7, on an A30 4."""
        return self.plain[0].slices

    def short(self, profile: Profile) -> str:
        """As studies name it: 2g, or 1g2x with more than its share of the memory."""
        double = profile.slices == 1 and profile.size * self.slices > self.plain[0].size
        return f"{profile.slices}g{'2x' * double}"

    @property
    def offers(self) -> str:
        each = [f"{profile.most}x {profile.name}" for profile in reversed(self.plain)]
        return f"{', '.join(each)}, of {self.slices} SM slices in all"


@dataclass(frozen=True)
class Part:
    """A GPU instance, at (start, size) in memory slices, and in it compute instances of so many
    slices, largest first.
    """

    profile: Profile
    start: int
    size: int
    compute: tuple[int, ...]

    @property
    def place(self) -> Place:
        """No two GPU instances have the same."""
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


Wanted = tuple[Profile, int]  # what a member needs: a GPU instance, and compute slices of it


def plan(spec: CellSpec, card: Card) -> Layout:
    """How to divide the card as a cell's spec needs it: largest instances first, each as low as it
    goes. Raises Unsupported: one line with what was wanted, and what the card offers.
    """
    try:
        wanted, shared = _wanted(spec, card), spec.method == "mig_shared"

        # Largest first, each in a GPU instance of its own, or all in one.
        def first(index: int) -> tuple:
            profile, compute = wanted[index]
            return -profile.size, -profile.slices, -compute

        order = sorted(range(len(wanted)), key=first)
        packed = [order] if shared else [[index] for index in order]
        profiles = [wanted[inside[0]][0] for inside in packed]
        fits = not shared or (
            {profile for profile, _ in wanted} == {*profiles}
            and sum(slices for _, slices in wanted) <= profiles[0].slices
        )
        places = _places(profiles, card) if fits else None
        if places is None:
            said = tally(_said(profile, slices, card) for profile, slices in wanted)
            where = "in one GPU instance of" if shared else "on"
            raise Unsupported(f"{said} does not fit {where} {card.name}, with {card.offers}")
    except Unsupported as reason:
        raise Unsupported(f"{spec.method}: {reason}") from None
    parts = tuple(
        Part(profile, *place, tuple(wanted[index][1] for index in inside))
        for profile, place, inside in zip(profiles, places, packed, strict=True)
    )
    seats = {index: (p, n) for p, inside in enumerate(packed) for n, index in enumerate(inside)}
    return Layout(parts, tuple(seats[member] for member in range(len(wanted))))


def _wanted(spec: CellSpec, card: Card) -> list[Wanted]:
    """What each member needs."""
    _, _, how = spec.method.partition("_")  # mig: "", mig_shared: "shared", or a slice such as 7g
    count = len(spec.members)
    if spec.members[0].slice:  # of a mix each member says what it needs
        return [_profile(member.slice, card) for member in spec.members]
    if how == "shared":  # equal parts of the largest GPU instance, as large as they can be
        largest = card.plain[0]
        fit = [slices for slices in COMPUTE[largest.slices] if count * slices <= card.slices]
        return [(largest, max(fit, default=1))] * count
    if how:
        return [_profile(how, card)] * count
    fit = [one for one in card.plain if _places([one] * count, card)]
    best = fit[0] if fit else card.plain[-1]  # the best profile of which so many fit
    return [(best, best.slices)] * count


def _profile(text: str, card: Card) -> Wanted:
    """The plain profile that a slice such as 2g, 1g2x or 3c.7g names, and compute slices in it."""
    part, _, whole = text.rpartition("c.")
    slices = int(part or whole[0])
    for profile in card.plain:
        if card.short(profile) == whole and slices in COMPUTE[profile.slices]:
            return profile, slices
    raise Unsupported(f"{card.name} has no {text}; it has {card.offers}")


def _said(profile: Profile, slices: int, card: Card) -> str:
    """What `_profile` reads."""
    return card.short(profile) if slices == profile.slices else f"{slices}c.{card.short(profile)}"


def _places(profiles: list[Profile], card: Card) -> tuple[tuple[int, int], ...] | None:
    """(start, size) of each instance, in the order given; None if they do not fit."""
    crowded = any(count > profile.most for profile, count in Counter(profiles).items())
    if crowded or sum(profile.slices for profile in profiles) > card.slices:
        return None
    return _free_runs(profiles, taken=0, least=0)


def _free_runs(profiles: list[Profile], taken: int, least: int) -> tuple | None:
    """taken: the memory slices in use, as bits; least: where the first may start, for equal
    profiles lie in ascending order.
    """
    if not profiles:
        return ()
    first, rest = profiles[0], profiles[1:]
    for start, size in sorted(first.placements):
        run = (1 << start + size) - (1 << start)
        if start >= least and not run & taken:
            beyond = start + size if rest and rest[0] == first else 0
            places = _free_runs(rest, taken | run, beyond)
            if places is not None:
                return ((start, size), *places)
    return None


def tally(names: Iterable[str]) -> str:
    """'2x 2g.35gb + 1g.18gb'."""
    counts = Counter(names).items()
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counts)
