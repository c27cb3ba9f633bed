"""What goes wrong in a round, drawn from the seed and the round's number alone."""

from dataclasses import dataclass
from random import Random

IN_CELL = ("setup", "build", "warm", "window", "stop")
TRAINING = ("build", "warm", "window", "stop")
ANY = ("plan", "import", *IN_CELL, "figures")

# Who is hurt → by what, and when. STOP is followed by CONT after some seconds; HANG never is.
SIGNALS = {
    "snakemake": (("KILL", "TERM", "INT", "STOP"), ANY),
    "group": (("INT", "INT+INT", "TERM", "HUP"), ANY),
    "conductor": (("KILL", "TERM", "INT", "STOP"), IN_CELL),
    "preloaded": (("KILL", "TERM", "HANG"), ("import", *TRAINING)),
    "server": (("KILL", "STOP", "HANG"), TRAINING),  # one of the cell's own
    "member": (("KILL", "TERM", "INT", "SEGV", "STOP", "STOP", "HANG"), TRAINING),
    "sampler": (("KILL", "STOP", "HANG"), TRAINING),
    "analysis": (("KILL", "TERM", "STOP"), ("figures",)),
    "mps": (("KILL",), ("warm", "window")),
}
DISK = ("full", "full", "read_only")
TURNS = {"kind": "alternate", "slices": 10, "slice_s": 0.1, "drop_s": 0.02}
LADDERS = {
    "alone": {"counts": {1: ["naive"]}},
    "pair": {"counts": {2: ["naive", "mps", "mps_equal"]}},
    "three": {"counts": {3: ["mps"]}},
    "parts": {"counts": {2: ["mig"]}},
    "epochs": {"counts": {2: ["naive"]}, "measure": {"kind": "epochs", "epochs": 3}},
    "departure": {"counts": {2: ["mps"]}, "measure": {"kind": "departure"}},
    "turns": {"counts": {2: ["alone", "naive", "mps"]}, "measure": TURNS},
}


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong: at the first chance in `phase`, from the run's cell `cell` on,
    after `fraction` of the phase. seconds: until it is over; None: when the run has ended.
    """

    kind: str
    what: str
    cell: int
    phase: str
    fraction: float
    seconds: float | None
    member: int


@dataclass(frozen=True)
class Act:
    """A run of the command, with what goes wrong in it."""

    faults: tuple[Fault, ...]
    whole: bool  # tables and figures too


@dataclass(frozen=True)
class Round:
    seed: int
    number: int
    parts: tuple[str, ...]
    mount: str | None  # the folder that has a file system of its own
    acts: tuple[Act, ...]


def draw(seed: int, number: int) -> Round:
    """The round of this number: the same for the same seed, whatever happened before."""
    chance = Random(f"{seed}/{number}")
    acts = []
    for _ in range(chance.randint(2, 4)):
        faults = _signals(chance) if chance.random() < 0.75 else [_disk(chance)]
        whole = any(fault.phase == "figures" for fault in faults) or chance.random() < 0.3
        acts.append(Act(tuple(faults), whole))
    kinds = {fault.kind for act in acts for fault in act.faults}
    parts = {*chance.sample(sorted(LADDERS), 2), *(["pair"] if "mps" in kinds else [])}
    mount = chance.choice(("results", "results", ".")) if "disk" in kinds else None
    return Round(seed, number, tuple(sorted(parts)), mount, tuple(acts))


def _signals(chance: Random) -> list[Fault]:
    """One, or two in the same run."""
    found = []
    for victim in chance.sample(sorted(SIGNALS), chance.choice((1, 1, 1, 2))):
        if victim == "server":  # the cell starts its own where the common one is gone
            found.append(Fault("preloaded", "KILL", 0, "import", 0.0, None, 0))
        signals, phases = SIGNALS[victim]
        phase, what = chance.choice(phases), chance.choice(signals)
        seconds = round(chance.uniform(0.3, 4), 1) if what == "STOP" else None
        found.append(Fault(victim, what, *_when(chance, phase), seconds, chance.randrange(3)))
    return found


def _disk(chance: Random) -> Fault:
    what = chance.choice(DISK)
    phase = "before" if what == "read_only" else chance.choice(("before", *ANY))
    seconds = chance.choice((None, round(chance.uniform(1, 8), 1)))
    return Fault("disk", what, *_when(chance, phase), seconds, chance.randrange(3))


def _when(chance: Random, phase: str) -> tuple[int, str, float]:
    """Cell, phase and fraction."""
    return chance.randrange(2), phase, round(chance.uniform(0, 1.1), 2)
