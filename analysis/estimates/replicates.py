"""One number per block: what a run says by itself, and against other runs of its block and GPU."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.estimates import metrics, slices
from analysis.estimates.runs import COMPLETED, Run
from analysis.estimates.schema import Replicate
from workflow.collocation.spec.names import AFTER, BEFORE, COMPLETION, family_of

GB = 1e9
COUNTER_STEP_S = 0.1  # the energy counter of the GPUs seen moves ten times a second
_ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama")


@dataclass(frozen=True)
class Value:
    """A quantity of one run; `job` where it is of one workload of a mix."""

    quantity: str
    run: Run
    replicate: Replicate
    job: str = ""

    @property
    def of(self) -> tuple:
        """What it is of within its cell."""
        return self.quantity, self.run.side, self.run.window, self.job


class Company:
    """The runs of a study, and what each is held against: always of its own block and GPU. Of an
    alternating cell the runs are its sides.
    """

    def __init__(self, runs: Iterable[Run]):
        self._alone: dict[tuple, Run] = {}
        self._sets: dict[tuple, Run] = {}
        for run in runs:
            if run.status != COMPLETED or not run.window or run.again:
                continue
            if run.is_baseline:
                first = run.members[0]
                key = (run.block, run.device, run.arm, first["workload"], first["input_mode"])
                if key not in self._alone or run.current:
                    self._alone[key] = run
            if run.current:
                self._sets[self._key(run, run.scenario.id, run.method, run.window)] = run

    @staticmethod
    def _key(run: Run, scenario: str, method: str, window: str) -> tuple:
        return run.block, run.device, run.arm, scenario, method, window

    def alone(self, run: Run) -> list[Run] | None:
        """Each member's job alone; None where one is missing."""
        found = []
        for member in run.members:
            key = (run.block, run.device, run.arm, member["workload"], member["input_mode"])
            if (baseline := self._alone.get(key)) is None or baseline.rates is None:
                return None
            found.append(baseline)
        return found

    def beside(
        self, run: Run, *, scenario: str = "", method: str = "", window: str = ""
    ) -> Run | None:
        """The run of another scenario, method or window in the same block, on the same GPU."""
        return self._sets.get(
            self._key(run, scenario or run.scenario.id, method or run.method, window or run.window)
        )


def values(runs: Sequence[Run], work: Mapping[str, Mapping[str, float]]) -> Iterator[Value]:
    """Every quantity of every completed run, of alternating cells batch by batch besides.

    work: scenario → workload → what its job takes alone (any unit of time), of mixes whose fixed
    work is known from elsewhere (the paper's pair).
    """
    yield from _values([run for run in runs if not run.side], work)
    for cell in slices.cells(runs):
        parts = [
            {value.of: value.replicate.value for value in _values(batch, work)}
            for batch in slices.batches(cell)
        ]
        for value in _values(cell, work):
            found = tuple(part[value.of] for part in parts if value.of in part)
            # What no slice tells is the same in all batches, and so says nothing of its spread.
            told = len(found) == len(parts) > 1 and max(found) - min(found) > 1e-9 * abs(max(found))
            batches = found if told else ()
            yield replace(value, replicate=replace(value.replicate, batches=batches))


def _values(runs: Sequence[Run], work: Mapping[str, Mapping[str, float]]) -> Iterator[Value]:
    company = Company(runs)
    for run in runs:
        # A job alone that was measured again because its block went on elsewhere is one, too.
        counts = run.current or run.is_baseline
        if run.status != COMPLETED or not run.window or not counts:
            continue
        if run.again:
            yield from _same_again(run, company)
            continue
        if run.window == COMPLETION:
            yield from _fixed_work(run, company)
            yield from _readings(run)
            continue
        yield from _speed(run, company)
        yield from _readings(run)
        yield from _against(run, company)
        yield from _memory(run, company)
        if run.scenario.id in work:
            yield from _by_rates(run, company, work[run.scenario.id])
        if run.window == AFTER:
            yield from _reclaimed(run, company)


def _value(
    name: str,
    run: Run,
    value: float | None,
    over: Iterable[Run] = (),
    parts: tuple[float, float] | None = None,
    job: str = "",
) -> Iterator[Value]:
    """The value if there is one: finite, and a number of this run."""
    if value is None or not math.isfinite(value):
        return
    cells = " ".join(dict.fromkeys(other.cell for other in over))
    numerator, denominator = parts or (None, None)
    yield Value(name, run, Replicate(run.cell, value, numerator, denominator, cells), job)


def _speed(run: Run, company: Company) -> Iterator[Value]:
    rates = run.rates
    if rates is None:
        return
    jobs = defaultdict(list)
    for place, member in enumerate(run.members):
        jobs[member["workload"]].append(place)
    total = math.fsum(rates)
    if run.alike:
        yield from _value("rate", run, total)
        if len(rates) > 1:
            yield from _value(
                "spread", run, max(rates) / min(rates), parts=(max(rates), min(rates))
            )
    for job, places in jobs.items():
        own = "" if run.alike else job
        if own:
            yield from _value("job_rate", run, _mean(rates[i] for i in places), job=own)
        times = [run.members[i]["epoch_time_s"] for i in places]
        if all(times):
            yield from _value("epoch_time", run, _mean(times), job=own)
    alone = company.alone(run)
    if alone is None:
        return
    alone_rates = [other.rates[0] for other in alone]
    progress = _progress(rates, alone)
    both = (total, alone_rates[0]) if run.alike else None
    stp = math.fsum(progress)
    yield from _value("stp", run, stp, alone, both)
    if run.scenario.n > 1 or run.method != "naive":
        worst = progress.index(min(progress))
        yield from _value("antt", run, metrics.antt(progress), alone)
        slowest = (alone_rates[worst], rates[worst])
        yield from _value("slowdown_worst", run, slowest[0] / slowest[1], [alone[worst]], slowest)
    if run.scenario.n > 1:
        yield from _value("jain", run, metrics.jain(progress), alone)
    if not run.alike:
        for job, places in jobs.items():
            slow = _mean(1 / progress[i] for i in places)
            yield from _value("slowdown", run, slow, [alone[places[0]]], job=job)
    busy = [other.reading("gract") for other in alone]
    if all(busy):
        device = math.fsum(p * g for p, g in zip(progress, busy, strict=True))
        parts = (total, alone_rates[0] / busy[0]) if run.alike else None
        yield from _value("s", run, device, alone, parts)
        yield from _value("gaps", run, stp / device, alone, (stp, device))


def _readings(run: Run) -> Iterator[Value]:
    for name in _ACTIVITY:
        yield from _value(name, run, run.reading(name))
    gract, smact = run.reading("gract"), run.reading("smact")
    if gract and smact:
        yield from _value("gract_over_smact", run, gract / smact, parts=(gract, smact))
    if gract and run.is_baseline:
        yield from _value("waits", run, max(1 - gract, 0.0))
        if run.rates:
            parts = (run.rates[0], gract)
            yield from _value("device_rate", run, parts[0] / gract, parts=parts)
    reserved = [member["memory_peak_reserved"] for member in run.members]
    if all(value is not None for value in reserved):
        yield from _value("memory_reserved", run, math.fsum(reserved) / GB)
    # The GPU's memory holds all sides; power is read as a mean over longer than a slice.
    if run.side:
        return
    yield from _value("power", run, run.reading("power"))
    if run.reading("gpu_memory_used"):
        yield from _value("memory", run, run.reading("gpu_memory_used") / GB)
    if (of_jobs := _of_jobs(run)) is not None:
        yield from _value("memory_of_jobs", run, of_jobs)
    if total := run.reading("gpu_memory_total"):
        yield from _value("capacity", run, total / GB)
        idle = run.reading("idle_memory") or 0.0
        yield from _value("capacity_for_jobs", run, (total - idle) / GB)


def _against(run: Run, company: Company) -> Iterator[Value]:
    """Ratios to other sets of the same block and GPU."""
    rates = run.rates
    if rates is None:
        return

    for quantity, method in (("rate_over_naive", "naive"), ("rate_over_mig", "mig")):
        other = company.beside(run, method=method) if run.method != method else None
        if other:
            yield from _over(quantity, run, other, company)
    if run.method == "naive" and (other := company.beside(run, method="mps")):
        pair = (run.reading("gract"), other.reading("gract"))
        if all(pair):
            yield from _value("gract_over_mps", run, pair[0] / pair[1], [other], pair)
    if run.alike:
        suffix = f"--{run.scenario.variant}" if run.scenario.variant else ""
        name = run.scenario.parts[0][0]
        for fewer in (2, 3):
            other = company.beside(run, scenario=f"{fewer}x_{name}{suffix}")
            if other is None or other.rates is None or run.scenario.n <= fewer:
                continue
            pair = (math.fsum(rates), math.fsum(other.rates))
            yield from _value(f"stp_over_{fewer}", run, pair[0] / pair[1], [other], pair)
        yield from _energy(run, company, math.fsum(rates))


def _over(quantity: str, run: Run, other: Run, company: Company) -> Iterator[Value]:
    """Throughput over throughput; of a mix, whose samples do not add up, STP over STP."""
    rates, others = run.rates, other.rates
    if rates is None or others is None or len(others) != len(rates):
        return
    pair = (math.fsum(rates), math.fsum(others))
    if not run.alike:
        alone = company.alone(run)
        if alone is None:
            return
        pair = tuple(math.fsum(_progress(of, alone)) for of in (rates, others))
    yield from _value(quantity, run, pair[0] / pair[1], [other], pair)


def _same_again(run: Run, company: Company) -> Iterator[Value]:
    """The second of two equal sides against the first."""
    if first := company.beside(run):
        yield from _over("aa", run, first, company)


def _energy(run: Run, company: Company, total: float) -> Iterator[Value]:
    """Per sample, of the whole set: no counter splits a GPU's energy among processes.

    Not of whole epochs: their energy holds validation, and members that are early train on.
    """

    def per_sample(of: Run, rate: float) -> float | None:
        counted = of.reading("energy_j") is not None and of.reading("power")
        return of.reading("power") / rate if counted else None

    own = per_sample(run, total)
    if own is None or run.window == "epochs" or run.side:
        return
    yield from _value("energy_per_sample", run, own)
    if seconds := run.members[0]["window_s"]:
        yield from _value("energy_edge_error", run, min(COUNTER_STEP_S / seconds, 1.0))
    if run.scenario.n > 1 and (alone := company.alone(run)):
        base = per_sample(alone[0], alone[0].rates[0])
        if base:
            yield from _value("energy_over_serial", run, own / base, alone, (own, base))


def _memory(run: Run, company: Company) -> Iterator[Value]:
    """A set's memory over that of its jobs alone, without what the GPU holds when idle."""
    alone = company.alone(run)
    if not alone or run.scenario.n == 1 or run.side:
        return
    own, *parts = (_of_jobs(each) for each in (run, *alone))
    if own and all(parts):
        pair = (own, math.fsum(parts))
        yield from _value("memory_over_parts", run, pair[0] / pair[1], alone, pair)


def _of_jobs(run: Run) -> float | None:
    """GPU memory in use less what was in use before the members were built, GB."""
    used = run.reading("gpu_memory_used")
    return (used - (run.reading("idle_memory") or 0.0)) / GB if used else None


def _reclaimed(run: Run, company: Company) -> Iterator[Value]:
    """What the jobs that stay make of the share of the one that left."""
    before = company.beside(run, window=BEFORE)
    if before is None:
        return
    earlier = {m["member"]: m["samples_per_s"] for m in before.members}
    ratios = [
        m["samples_per_s"] / earlier[m["member"]]
        for m in run.members
        if m["samples_per_s"] and earlier.get(m["member"])
    ]
    if ratios:
        mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
        yield from _value("reclaimed", run, mean, [before])


def _fixed_work(run: Run, company: Company) -> Iterator[Value]:
    """Of jobs that ran to the end of fixed work: how long it took, against one after the other."""
    took, alone = run.members[0]["window_s"], company.alone(run)
    if not took:
        return
    yield from _value("makespan", run, took)
    if alone is None:
        return
    work = [(m["steps"] or 0) * (m["batch_size"] or 0) for m in run.members]
    if all(work):
        serial = math.fsum(w / base.rates[0] for w, base in zip(work, alone, strict=True))
        yield from _value("time_over_serial", run, took / serial, alone, (took, serial))
        yield from _value("saving", run, 1 - took / serial, alone)
    for member, base in zip(run.members, alone, strict=True):
        if later := member["samples_per_s_alone_after"]:
            pair = (later, base.rates[0])
            job = "" if run.alike else member["workload"]
            yield from _value("survivor_over_alone", run, pair[0] / pair[1], [base], pair, job)


def _by_rates(run: Run, company: Company, work: Mapping[str, float]) -> Iterator[Value]:
    """What rates alone would promise of fixed work: the rule that `saving` tries."""
    alone, rates = company.alone(run), run.rates
    if alone is None or rates is None:
        return
    progress = _progress(rates, alone)
    jobs = [work[member["workload"]] for member in run.members]
    # An instance of MIG does not grow when its neighbour leaves.
    left = progress if family_of(run.method) == "mig" else [1.0] * len(jobs)
    time = metrics.makespan(jobs, progress, left)
    yield from _value("saving_by_rates", run, 1 - time / math.fsum(jobs), alone)


def _progress(rates: Iterable[float], alone: Iterable[Run]) -> list[float]:
    """Each member's rate over that of its job alone."""
    return [rate / base.rates[0] for rate, base in zip(rates, alone, strict=True)]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)
