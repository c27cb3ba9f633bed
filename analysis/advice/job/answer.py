"""From the job alone to predicted sets, which of them to measure, and what to advise."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import pandas as pd

from analysis.advice.job.request import CPU, Request
from analysis.advice.predict import AloneActivity, Prediction, predict_stp
from analysis.choose import NEAR, way
from analysis.estimates.quantities import DEMAND
from analysis.estimates.table import Row, get
from workflow.collocation.record.run_json import Record
from workflow.collocation.study.names import scenario_id

METHODS = tuple(DEMAND)  # those that can be predicted
SIMPLER = 0.97  # of the throughput under MPS: separate processes need no daemon
RIVAL = 0.85  # of the chosen set's throughput: near enough to be measured beside it
ROOM = 0.95  # of the card's memory
WAITS = 0.5  # GRACT alone below which a job waits for its host for most of the time
GB = 1e9


@dataclass(frozen=True)
class Job:
    """One job alone. rate: steps or samples/s. shares: GRACT and the like. memory_gb: beside what
    the card holds when idle, idle_gb. cores: busy, of those that it may use. watts: of the card.
    flags: of its record.
    """

    rate: float
    shares: dict[str, float]
    memory_gb: float
    idle_gb: float
    cores: float
    may_use: int
    watts: float | None
    card: str
    card_gb: float
    flags: Sequence[str] = ()

    @property
    def on_cpu(self) -> bool:
        return self.card == CPU


@dataclass(frozen=True)
class Option:
    """A set as predicted; without a GPU, or its counters, nothing is."""

    n: int
    method: str
    memory_gb: float
    prediction: Prediction | None

    @property
    def stp(self) -> float:
        return self.prediction.stp if self.prediction else self.n

    @property
    def named(self) -> str:
        return f"{self.n} {way(self.method)}"


@dataclass(frozen=True)
class Measured:
    """A set as measured. joules: of the card, a step or sample."""

    option: Option
    rate: Row
    stp: Row
    slowdown: Row
    memory_gb: float | None
    joules: float | None

    @property
    def decided(self) -> bool:
        """False where the interval holds no gain and no loss."""
        return not self.stp.low <= 1 <= self.stp.high


def job_of(record: Record) -> Job:
    """What the record of the job alone tells."""
    [member], telemetry = record.members, record.telemetry
    seen = telemetry.windows.get("window") if telemetry else None
    card = (seen.entities.get("gpu") if seen else None) or {}
    own = (seen.members.get("0") if seen else None) or {}
    idle = (telemetry.idle.get("memory_used") if telemetry else None) or 0
    names = ("gract", "smact", "drama")
    return Job(
        rate=member.windows["window"].samples_per_s,
        shares={name: card[name] for name in names if card.get(name) is not None},
        memory_gb=max(card.get("memory_used") or 0, idle) / GB - idle / GB,
        idle_gb=idle / GB,
        cores=own.get("cpu") or 0.0,
        may_use=len(member.cores),
        watts=card.get("power"),
        card=record.gpu.name if record.gpu else CPU,
        card_gb=(record.gpu.memory_bytes or 0) / GB if record.gpu else 0.0,
        flags=record.flags,
    )


def options(job: Job, request: Request) -> list[Option]:
    """All sets that memory has room for: n from 2 to the most, by each method."""
    most_gb = min(ROOM * job.card_gb or inf, request.memory_gb)
    alone = AloneActivity(job.shares.get("gract", 0.0), job.shares.get("smact", 0.0))
    known = {"gract", "smact"} <= job.shares.keys()
    found = []
    for n in range(2, request.most + 1):
        memory_gb = job.idle_gb + n * job.memory_gb
        for method in METHODS[:1] if job.on_cpu else METHODS:
            if memory_gb <= most_gb:
                told = predict_stp(method, [alone] * n) if known else None
                found.append(Option(n, method, memory_gb, told))
    return found


def best(sets: Sequence[Option], request: Request) -> Option | None:
    """The fewest jobs within a tenth of the most predicted throughput, within the bounds."""
    allowed = [each for each in sets if each.n / each.stp <= request.slowdown]
    if not allowed:
        return None
    most = max(each.stp for each in allowed)
    fewest = min(each.n for each in allowed if each.stp >= NEAR * most)
    same = {each.method: each for each in allowed if each.n == fewest}
    top = max(same.values(), key=lambda each: each.stp)
    plain = same.get("naive")
    return plain if plain and plain.stp >= SIMPLER * top.stp else top


def rival(sets: Sequence[Option], chosen: Option, request: Request) -> Option | None:
    """What is measured beside it: as many by the other method if that comes near, else the next
    best of more or fewer jobs.
    """
    allowed = [e for e in sets if e != chosen and e.n / e.stp <= request.slowdown]
    others = [e for e in allowed if e.n == chosen.n and e.stp >= RIVAL * chosen.stp]
    more = [e for e in allowed if e.method == chosen.method]
    return next(iter(others), None) or max(more, key=lambda e: (e.stp, -e.n), default=None)


def fits(job: Job, sets: Sequence[Option]) -> bool:
    """Whether the card holds these sets and the job alone at once; one set is part of a larger."""
    methods = {each.method for each in sets}
    jobs = 1 + sum(max(each.n for each in sets if each.method == m) for m in methods)
    return job.idle_gb + jobs * job.memory_gb <= (ROOM * job.card_gb or inf)


def measured(
    record: Record, estimates: pd.DataFrame, sets: Sequence[Option], request: Request
) -> list[Measured]:
    """What was measured of these sets; of some there may be nothing."""
    found = []
    for option in sets:
        place = {"scenario": scenario_id({request.job: option.n}), "method": option.method}
        place["implementation"] = request.implementation
        wanted = ("rate", "stp", "slowdown_worst")
        rate, stp, slowdown = (get(estimates, quantity, **place) for quantity in wanted)
        if rate and stp and slowdown:
            watts, memory_gb = _seen(record, option)
            joules = watts / rate.value if watts else None
            found.append(Measured(option, rate, stp, slowdown, memory_gb, joules))
    return found


def _seen(record: Record, option: Option) -> tuple[float | None, float | None]:
    """Power of the card (W) and its memory in use (GB), of a set's window or condition."""
    windows = record.telemetry.windows if record.telemetry else {}
    name = f"{option.n}x{option.method}"
    seen = windows.get(name) or windows.get("window")
    if not seen or "gpu" not in seen.entities:
        return None, None
    card = seen.entities["gpu"]
    if name not in windows:
        return card.get("power"), card["memory_used"] / GB
    held = [of.get("gpu_memory") for of in seen.members.values()]
    idle = record.telemetry.idle.get("memory_used") or 0
    known = held and None not in held
    return card.get("power"), (idle + sum(held)) / GB if known else None


def within(each: Measured, request: Request) -> bool:
    """Whether a set as measured respects the bounds."""
    memory_gb = each.memory_gb or each.option.memory_gb
    return each.slowdown.value <= request.slowdown and memory_gb <= request.memory_gb


def decide(found: Sequence[Measured], request: Request) -> Measured | None:
    """The fewest jobs within a tenth of the most measured throughput, one alone among them; None:
    one at a time. No set that breaks a bound here.
    """
    allowed = [each for each in found if within(each, request)]
    most = max((each.stp.value for each in allowed), default=1.0)
    if NEAR * most <= 1:
        return None
    near = [each for each in allowed if each.stp.value >= NEAR * most]
    return min(near, key=lambda each: (each.option.n, each.slowdown.value))
