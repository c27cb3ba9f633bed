"""What one job alone predicts about sets of it, which sets to measure, and which to advise."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from analysis import labels
from analysis.advice import NEAR
from analysis.advice.job.numbers import (
    Estimate,
    StepEnds,
    Together,
    alone_numbers,
    together_numbers,
)
from analysis.advice.job.request import CPU, Request
from analysis.advice.predict import AloneActivity, Prediction, predict_stp
from analysis.estimates.quantities import DEMAND
from workflow.collocation.record.probe import (
    ALONE,
    MEMORY_ROOM,
    JobSet,
    LoneReading,
    ProbeRecord,
    SetGroup,
)
from workflow.collocation.record.run_json import GpuRecord

METHODS = tuple(DEMAND)  # that can be predicted
SIMPLER = 0.97  # of the throughput under MPS: separate processes, which need no daemon, are chosen
RIVAL = 0.85  # of the chosen set's throughput: near enough to be measured beside it
WAITS = 0.5  # GRACT alone below which a job waits for its host for most of the time
GB = 1e9


@dataclass(frozen=True)
class LoneJob:
    """What was measured of one job alone.

    rate: steps/s or samples/s. shares: GRACT, SMACT and DRAMA, as far as the card tells them.
    memory_gb: beside idle_gb, what the card holds when idle. busy_cores: of usable_cores. watts:
    of the card. flags: of the job's record. methods: of sharing, that can be used here.
    """

    rate: float
    shares: dict[str, float]
    memory_gb: float
    idle_gb: float
    busy_cores: float
    usable_cores: int
    watts: float | None
    card: str
    card_gb: float
    flags: Sequence[str] = ()
    methods: Sequence[str] = METHODS

    @property
    def on_cpu(self) -> bool:
        return self.card == CPU


@dataclass(frozen=True)
class PredictedSet:
    """`n` copies of the job by a method. Nothing is predicted without a GPU that has counters."""

    n: int
    method: str
    memory_gb: float
    prediction: Prediction | None

    @property
    def stp(self) -> float:
        return self.prediction.stp if self.prediction else self.n

    @property
    def slowdown(self) -> float:
        """How many times as long as alone each job takes."""
        return self.n / self.stp

    @property
    def job_set(self) -> JobSet:
        return JobSet(n=self.n, method=self.method)

    @property
    def label(self) -> str:
        """`3 under MPS`."""
        return f"{self.n} {labels.method_phrase(self.method)}"


@dataclass(frozen=True)
class SetMeasurement:
    """A predicted set as it was measured.

    numbers: in steps. memory_gb: of all its jobs, None where it was not read. joules: of the card
    for a step or sample.
    """

    predicted: PredictedSet
    numbers: Together
    memory_gb: float | None = None
    joules: float | None = None

    @property
    def stp(self) -> Estimate:
        return self.numbers.stp

    @property
    def is_decided(self) -> bool:
        """False if its gain is in doubt, or the interval has both a gain and a loss."""
        is_known = self.numbers.doubt is None and isfinite(self.stp.low)
        return is_known and not self.stp.low <= 1 <= self.stp.high

    def is_within(self, request: Request) -> bool:
        """True if the set respects the bounds of a request."""
        memory_gb = self.memory_gb or self.predicted.memory_gb
        slowdown = self.numbers.slowdown.value
        return slowdown <= request.max_slowdown and memory_gb <= request.max_memory_gb


def lone_job(
    reading: LoneReading, gpu: GpuRecord | None, batch_size: int, flags: Sequence[str] = ()
) -> LoneJob:
    """What was measured of one job alone.

    gpu: None on a CPU. batch_size: samples of a step, 1 to count steps.
    """
    telemetry = reading.telemetry
    window = telemetry.windows.get(ALONE)
    card = window.entities.get("gpu") or {} if window else {}
    process = window.members.get("0") or {} if window else {}
    idle = telemetry.idle.get("memory_used") or 0
    names = ("gract", "smact", "drama")
    return LoneJob(
        rate=reading.rate * batch_size,
        shares={name: card[name] for name in names if card.get(name) is not None},
        memory_gb=(max(reading.peak_bytes or 0, idle) - idle) / GB,
        idle_gb=idle / GB,
        busy_cores=process.get("cpu") or 0.0,
        usable_cores=reading.cores,
        watts=card.get("power"),
        card=gpu.name if gpu else CPU,
        card_gb=(gpu.memory_bytes or 0) / GB if gpu else 0.0,
        flags=flags,
        methods=reading.methods,
    )


def predicted_sets(job: LoneJob, request: Request) -> list[PredictedSet]:
    """All sets that memory has room for: from 2 jobs to the most allowed, by each method."""
    room_gb = min(MEMORY_ROOM * job.card_gb or inf, request.max_memory_gb)
    methods = [method for method in METHODS if method in job.methods]
    alone = None
    if {"gract", "smact"} <= job.shares.keys():
        alone = AloneActivity(job.shares["gract"], job.shares["smact"])
    sets = []
    for n in range(2, request.max_jobs + 1):
        memory_gb = job.idle_gb + n * job.memory_gb
        for method in methods if memory_gb <= room_gb else ():
            prediction = predict_stp(method, [alone] * n) if alone else None
            sets.append(PredictedSet(n, method, memory_gb, prediction))
    return sets


def best_prediction(sets: Sequence[PredictedSet], request: Request) -> PredictedSet | None:
    """The set with the fewest jobs whose predicted throughput is near (NEAR) the highest.

    Sets over the request's bound on slowdown do not count. Returns None if none is left.
    """
    allowed = [option for option in sets if option.slowdown <= request.max_slowdown]
    if not allowed:
        return None
    highest = max(option.stp for option in allowed)
    fewest = min(option.n for option in allowed if option.stp >= NEAR * highest)
    by_method = {option.method: option for option in allowed if option.n == fewest}
    best = max(by_method.values(), key=lambda option: option.stp)
    separate = by_method.get("naive")
    return separate if separate and separate.stp >= SIMPLER * best.stp else best


def rival_of(
    chosen: PredictedSet, sets: Sequence[PredictedSet], request: Request
) -> PredictedSet | None:
    """The set to measure beside the chosen one, or None.

    It has as many jobs by the other method if that comes near, else more or fewer by the same.
    """
    allowed = [
        option for option in sets if option != chosen and option.slowdown <= request.max_slowdown
    ]
    for option in allowed:
        if option.n == chosen.n and option.stp >= RIVAL * chosen.stp:
            return option
    by_same_method = [option for option in allowed if option.method == chosen.method]
    return max(by_same_method, key=lambda option: (option.stp, -option.n), default=None)


def groups_to_start(job: LoneJob, sets: Sequence[PredictedSet], request: Request) -> list[SetGroup]:
    """The sets to measure, in groups that are loaded at once: the chosen set, and its rival.

    Those beside which the lone copy has no room come last, because it ends for them.
    """
    chosen = best_prediction(sets, request)
    if chosen is None:
        return []
    rival = rival_of(chosen, sets, request)
    both = [chosen, rival] if rival else [chosen]
    if fit_with_lone(job, both):
        return [SetGroup([option.job_set for option in both])]
    groups = [
        SetGroup([option.job_set], fit_with_lone(job, [option]), is_needed=option is chosen)
        for option in both
    ]
    return sorted(groups, key=lambda group: not group.with_lone)


def fit_with_lone(job: LoneJob, sets: Sequence[PredictedSet]) -> bool:
    """True if the card holds these sets and the job alone, all loaded at once.

    Sets by one method share their processes, and the job alone is one of the separate ones.
    """
    most_jobs = {"naive": 1}
    for option in sets:
        most_jobs[option.method] = max(option.n, most_jobs.get(option.method, 0))
    loaded = sum(most_jobs.values())
    return job.idle_gb + loaded * job.memory_gb <= (MEMORY_ROOM * job.card_gb or inf)


def set_measurements(
    record: ProbeRecord, ends: StepEnds, sets: Sequence[PredictedSet], job: LoneJob, batch_size: int
) -> list[SetMeasurement]:
    """What was measured, of the sets that were predicted. ends: of the steps of all members."""
    predicted = {(option.n, option.method): option for option in sets}
    measured = []
    for job_set in record.sets:
        window = record.window(job_set.name)
        if window is None:
            continue
        alone = alone_numbers(record, ends, member=0, beside=window)
        numbers = together_numbers(window, ends, [alone] * job_set.n)
        # It is none of those predicted if some copies ran out of memory.
        option = predicted.get((job_set.n, job_set.method))
        if option is None:
            memory_gb = job.idle_gb + job_set.n * job.memory_gb
            option = PredictedSet(job_set.n, job_set.method, memory_gb, None)
        watts, memory_gb = _power_and_memory(record, job_set)
        rate = numbers.rate.value * batch_size
        joules = watts / rate if watts and rate > 0 else None
        measured.append(SetMeasurement(option, numbers, memory_gb, joules))
    return measured


def _power_and_memory(record: ProbeRecord, job_set: JobSet) -> tuple[float | None, float | None]:
    """Power of the card (W), and memory (GB) of the jobs and of the idle card, while a set ran."""
    window = record.telemetry.windows.get(job_set.name)
    if not window or "gpu" not in window.entities:
        return None, None
    power = window.entities["gpu"].get("power")
    # The card holds other copies as well, so memory is the sum over the set's own jobs.
    of_jobs = [member.get("gpu_memory") for member in window.members.values()]
    if len(of_jobs) < job_set.n or None in of_jobs:
        return power, None
    idle = record.telemetry.idle.get("memory_used") or 0
    return power, (idle + sum(of_jobs)) / GB


def decide(sets: Sequence[SetMeasurement], request: Request) -> SetMeasurement | None:
    """The set with the fewest jobs whose throughput is near (NEAR) the highest measured.

    One job alone, whose throughput is 1, is among the candidates: None means one at a time. Sets
    that break a bound of the request, or whose gain is in doubt, do not count.
    """
    allowed = [measured for measured in sets if measured.is_within(request)]
    allowed = [measured for measured in allowed if measured.numbers.doubt is None]
    highest = max((measured.stp.value for measured in allowed), default=1.0)
    if NEAR * highest <= 1:
        return None
    near = [measured for measured in allowed if measured.stp.value >= NEAR * highest]
    return min(near, key=lambda each: (each.predicted.n, each.numbers.slowdown.value))
