"""What goes wrong in a round, drawn from the seed and the round's number alone."""

from dataclasses import asdict, dataclass
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
    "worker": (("KILL", "STOP", "HANG"), ("window",)),
    "script": (("KILL", "TERM", "STOP"), ("window",)),
    "sampler": (("KILL", "STOP", "HANG"), TRAINING),
    "analysis": (("KILL", "TERM", "STOP"), ("figures",)),
    "mps": (("KILL",), ("warm", "window")),
}
DISK = ("full", "full", "read_only")
COMPANY = ("stranger", "stranger", "daemon", "lost")
FILES = (
    *("torn_record", "torn_temporary", "no_tables", "torn_tables", "no_plan", "no_jobs"),
    *("no_snakemake", "no_figures", "no_complete", "empty_attempt", "old_locks"),
)

# Part of a study → its ladder or mix, and who is there to be hurt. `work` needs no torch.
CPU = {
    "window": {"workloads": ["tiny_resnet_digits_b32"], "counts": {1: ["naive"], 2: ["naive"]}},
    "epochs": {
        "workloads": ["tiny_resnet_digits_b32"],
        "measure": {"kind": "epochs", "epochs": 3},
        "counts": {2: ["naive"]},
    },
    "departure": {
        "workloads": ["tiny_resnet_digits_b32"],
        "measure": {"kind": "departure"},
        "counts": {2: ["naive"]},
    },
    "files": {"workloads": ["tiny_resnet_imagenet_b8"], "counts": {1: ["naive"], 2: ["naive"]}},
    "memory": {"workloads": ["tiny_resnet_digits_starved"], "counts": {1: ["naive"]}},
    "rows": {"members": {"tiny_dlrm_criteo_b256": 1, "tiny_resnet_digits_b32": 1}},
    "completion": {
        "members": {"tiny_dlrm_criteo_b256": 1, "tiny_resnet_digits_b32": 1},
        "measure": {"kind": "completion"},
        "work": {"tiny_dlrm_criteo_b256": 200, "tiny_resnet_digits_b32": 20},
    },
    "script": {"workloads": ["script"], "counts": {1: ["naive"], 2: ["naive"]}},
}
CARD = {
    "alone": {"workloads": ["work"], "counts": {1: ["naive"]}},
    "pair": {"workloads": ["work"], "counts": {2: ["naive", "mps", "mps_equal"]}},
    "three": {"workloads": ["work"], "counts": {3: ["mps"]}},
    "parts": {"workloads": ["work"], "counts": {2: ["mig"]}},
}
NEEDS = {"worker": "files", "script": "script", "mps": "pair"}


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

    def __str__(self) -> str:
        when = self.phase if self.phase not in IN_CELL else f"cell {self.cell} {self.phase}"
        lasts = f" for {self.seconds} s" if self.seconds is not None else ""
        return f"{self.kind} {self.what} at {when}+{self.fraction}{lasts}"


@dataclass(frozen=True)
class Act:
    """A run of the command, with what goes wrong in it; `files` before it."""

    files: tuple[str, ...]
    faults: tuple[Fault, ...]
    whole: bool  # tables and figures too


@dataclass(frozen=True)
class Round:
    seed: int
    number: int
    machine: str  # cpu: real training; card: a fake GPU, without torch
    parts: tuple[str, ...]
    mount: str | None  # the folder that has a file system of its own
    fresh_data: bool
    acts: tuple[Act, ...]

    def lines(self) -> list[str]:
        where = f", {self.mount} on a disk of its own" if self.mount else ""
        data = ", data made anew" if self.fresh_data else ""
        lines = [f"round {self.number}: {self.machine}, {' '.join(self.parts)}{where}{data}"]
        for number, act in enumerate(self.acts, 1):
            told = [*(f"files {name}" for name in act.files), *map(str, act.faults)]
            run = "all" if act.whole else "cells"
            lines.append(f"  run {number} ({run}): {'; '.join(told) or 'nothing'}")
        return lines

    def to_json(self) -> dict:
        return asdict(self)


def draw(seed: int, number: int) -> Round:
    """The round of this number: the same for the same seed, whatever happened before."""
    chance = Random(f"{seed}/{number}")
    machine = chance.choices(("cpu", "card"), (0.6, 0.4))[0]
    kinds = chance.choices(
        ("signal", "disk", "company"), (0.75, 0.25, 0) if machine == "cpu" else (0.5, 0.1, 0.4), k=4
    )
    acts = []
    for kind in kinds[: chance.randint(2, 4)]:
        faults = _signals(chance, machine) if kind == "signal" else [_other(chance, kind)]
        damaged = tuple(chance.sample(FILES, chance.randint(1, 2))) if chance.random() < 0.3 else ()
        whole = any(fault.phase == "figures" for fault in faults) or chance.random() < 0.3
        acts.append(Act(damaged, tuple(faults), whole))
    faults = [fault for act in acts for fault in act.faults]
    pieces = CPU if machine == "cpu" else CARD
    parts = {NEEDS[fault.kind] for fault in faults if fault.kind in NEEDS}
    parts |= set(chance.sample(sorted(pieces), chance.randint(1, 2)))
    return Round(
        seed,
        number,
        machine,
        tuple(sorted(parts)),
        chance.choice(("results", "results", ".")) if _disk(faults) else None,
        machine == "cpu" and chance.random() < 0.1,
        tuple(acts),
    )


def _disk(faults: list[Fault]) -> bool:
    return any(fault.kind == "disk" for fault in faults)


def _signals(chance: Random, machine: str) -> list[Fault]:
    """One, or two in the same run."""
    absent = ("worker", "script") if machine == "card" else ("mps",)
    victims = [victim for victim in SIGNALS if victim not in absent]
    found = []
    for victim in chance.sample(victims, chance.choice((1, 1, 1, 2))):
        if victim == "server":  # the cell starts its own where the common one is gone
            found.append(Fault("preloaded", "KILL", 0, "import", 0.0, None, 0))
        signals, phases = SIGNALS[victim]
        phase = chance.choice(phases)
        what = chance.choice(signals)
        seconds = round(chance.uniform(0.3, 4), 1) if what == "STOP" else None
        found.append(Fault(victim, what, *_when(chance, phase), seconds, chance.randrange(3)))
    return found


def _other(chance: Random, kind: str) -> Fault:
    what = chance.choice(DISK if kind == "disk" else COMPANY)
    phase = "before" if what == "read_only" else chance.choice(("before", *ANY))
    seconds = chance.choice((None, round(chance.uniform(1, 8), 1)))
    return Fault(kind, what, *_when(chance, phase), seconds, 0)


def _when(chance: Random, phase: str) -> tuple[int, str, float]:
    """Cell, phase and fraction."""
    return chance.randrange(2), phase, round(chance.uniform(0, 1.1), 2)
