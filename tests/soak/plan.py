"""What goes wrong in a round, drawn from the seed and the round's number alone."""

from dataclasses import dataclass
from random import Random

# Who is hurt → by what. STOP is followed by CONT after some seconds; HANG never is.
FAULTS = {
    "snakemake": ("KILL", "TERM", "INT", "STOP"),
    "group": ("INT", "INT+INT", "TERM", "HUP"),
    "conductor": ("KILL", "TERM", "INT", "STOP"),
    "preloaded": ("KILL", "TERM", "HANG"),
    "server": ("KILL", "STOP", "HANG"),  # one of the cell's own
    "member": ("KILL", "TERM", "INT", "SEGV", "STOP", "STOP", "HANG"),
    "sampler": ("KILL", "STOP", "HANG"),
    "analysis": ("KILL", "TERM", "STOP"),
    "mps": ("KILL",),
    "disk": ("full", "full", "read_only"),
}
RUN_S = 14.0  # about what a run takes
TURNS = {"kind": "alternate", "slices": 10, "slice_s": 0.1, "drop_s": 0.02}
LADDERS = {
    "alone": {"counts": {1: ["naive"]}},
    "pair": {"counts": {2: ["naive", "mps", "mps_equal"]}},
    "three": {"counts": {3: ["mps"]}},
    "parts": {"counts": {2: ["mig"]}},
    "departure": {"counts": {2: ["mps"]}, "measure": {"kind": "departure"}},
    "turns": {"counts": {2: ["alone", "naive", "mps"]}, "measure": TURNS},
}


@dataclass(frozen=True)
class Fault:
    """What is done so many seconds after the run's beginning or, where its victim is not there yet,
    as soon as it is. member: which of several. seconds: until it is over; None: when the run is.
    """

    at_s: float
    victim: str
    what: str
    member: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class Round:
    """A study of these ladders; one run of the command for each tuple of faults."""

    seed: int
    number: int
    ladders: tuple[str, ...]
    mount: str | None  # the folder that has a file system of its own
    runs: tuple[tuple[Fault, ...], ...]


def draw(seed: int, number: int) -> Round:
    """The round of this number: the same for the same seed, whatever happened before."""
    chance = Random(f"{seed}/{number}")
    runs = tuple(_faults(chance) for _ in range(chance.randint(2, 4)))
    victims = {fault.victim for faults in runs for fault in faults}
    ladders = {*chance.sample(sorted(LADDERS), 2), *(["pair"] if "mps" in victims else [])}
    mount = chance.choice(("results", "results", ".")) if "disk" in victims else None
    return Round(seed, number, tuple(sorted(ladders)), mount, runs)


def _faults(chance: Random) -> tuple[Fault, ...]:
    """One, or two in the same run."""
    found = []
    for victim in chance.sample(sorted(FAULTS), chance.choice((1, 1, 1, 2))):
        if victim == "server":  # the cell starts its own where the common one is gone
            found.append(Fault(0.0, "preloaded", "KILL"))
        at_s, what = round(chance.uniform(0, RUN_S), 1), chance.choice(FAULTS[victim])
        seconds = round(chance.uniform(0.3, 4), 1) if what in ("STOP", "full") else None
        found.append(Fault(at_s, victim, what, chance.randrange(3), seconds))
    return tuple(found)
