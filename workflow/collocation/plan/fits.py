"""What will not fit a card or a MIG slice, by the memory that jobs took where measured."""

from collections.abc import Callable, Iterable, Iterator
from statistics import median_high

from workflow.collocation.plan.duration import Attempts
from workflow.collocation.sharing.evidence import Unsupported
from workflow.collocation.sharing.mig_layout import Card, plan
from workflow.collocation.spec.grid import Cell
from workflow.collocation.spec.methods import divides

GIB = 2**30
# Of the card's memory for a process on it, beside what torch reserves: an H200's.
CONTEXT = GIB // 2
HEADING = "will not fit if jobs take what they took where measured (some can do with less):"

Peaks = dict[tuple[str, str], int]  # (workload, arm) → bytes that a job takes
Place = tuple[list[int], str, int | None]  # members, where they are together, and its bytes


def peaks(attempts: Attempts) -> Peaks:
    found: dict[tuple[str, str], list[int]] = {}
    for tried in attempts.values():
        for content in filter(None, (attempt.content for attempt in tried)):
            for member in content.get("members", []):
                if member["status"] == "completed" and (most := member["memory_peak_reserved"]):
                    found.setdefault((member["workload"], content["cell"]["arm"]), []).append(most)
    return {job: CONTEXT + median_high(each) for job, each in found.items()}


def whole(memory: int | None) -> Callable[[Cell], list[Place]]:
    """Where members of cells that do not divide the card are: together on the whole of it."""
    return lambda cell: [] if divides(cell.method) else [([*range(cell.n)], "the card", memory)]


def divided(card: Card) -> Callable[[Cell], list[Place]]:
    """The same on a card with a profile table, whose largest instance has its memory; and where
    members of MIG cells are.
    """
    known = {profile: (profile.memory_mib or 0) << 20 for profile in card.profiles}
    all_of_it = whole(max(known.values(), default=0) or None)

    def places(cell: Cell) -> Iterator[Place]:
        yield from all_of_it(cell)
        if divides(cell.method):
            layout = plan(cell.spec, card)
            for index, part in enumerate(layout.parts):
                members = [m for m, seat in enumerate(layout.seats) if seat[0] == index]
                yield members, part.profile.name, known[part.profile] or None

    return places


def lines(
    cells: Iterable[Cell], taken: Peaks, places: Callable[[Cell], Iterable[Place]]
) -> list[str]:
    """What does not fit, a line for each set and place, and of what that is not known."""
    found: dict[str, dict[str, None]] = {}
    unknown: dict[str, None] = {}
    for cell in cells:
        needs = [taken.get((member.workload, cell.arm)) for member in cell.spec.members]
        for member, need in zip(cell.spec.members, needs, strict=True):
            if need is None:
                unknown[f"{member.workload}/{cell.arm}"] = None
        try:
            for members, where, memory in places(cell):
                need = sum(needs[member] or 0 for member in members)
                if memory and need > memory:
                    set_of = f"{cell.scenario}/{cell.arm}"
                    turns = ", all sides at once," * (cell.spec.measure.kind == "alternate")
                    jobs = f"{len(members)} jobs{turns} take" if len(members) > 1 else "a job takes"
                    said = f"{jobs} {need / GIB:.1f} GiB, {where} has {memory / GIB:.1f}"
                    found.setdefault(f"{set_of}: {said}", {})[cell.method] = None
        except Unsupported:
            continue  # the layout's own lines say why
    told = [f"{what} ({', '.join(methods)})" for what, methods in found.items()]
    if told:
        told.insert(0, HEADING)
    if unknown:
        told.append(f"how much memory is not known of: {', '.join(unknown)}")
    return told
