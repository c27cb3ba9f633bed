"""How many copies of a job should share a GPU, and by which method, from a study's estimates.

It chooses among measured options and computes no number. No flag or outcome rules an option out.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import pandas as pd

from analysis import labels
from analysis.advice import NEAR
from analysis.estimates import table
from analysis.estimates.records import flags
from analysis.estimates.table import Row, by_id, identity, place
from workflow.collocation.study.names import (
    IMPLEMENTATIONS,
    INTERLEAVED,
    method_order,
    parse_scenario,
)

MEMORY_UNREAD = (
    "Where GPU memory or energy is missing, the jobs took turns with others that were loaded at "
    "the same time."
)
BOUND_UNCHECKED = "GPU memory is not known here, so nothing was held against the bound on it."
COUNTS = (
    "Advice counts copies of one job with data on the GPU, without limits of SMs or priorities."
)
NUMBERS = ("stp", "rate", "slowdown_worst", "memory", "s", "over_fastest")  # of an option


@dataclass(frozen=True, eq=False)
class MeasuredOption:
    """One measured way to run a job: `n` copies at a time by a method.

    numbers: quantity, of NUMBERS → estimate over all hosts; None if not measured. work: what
    options are ranked by: samples/s, or the STP unless every option of the job has a throughput.
    The throughput of a set that fills the GPU repeats on other hosts; that of a job alone, which
    the STP is relative to, does not. hosts: where the STP was measured. highest_slowdown,
    highest_memory (GB): on the host that has most; infinite if unknown.
    """

    method: str
    n: int
    numbers: Mapping[str, Row | None]
    work: float
    hosts: tuple[str, ...]
    highest_slowdown: float
    highest_memory: float

    @property
    def stp(self) -> Row:
        """Throughput of the set relative to one job alone."""
        return self.numbers["stp"]

    @property
    def costs(self) -> tuple[float, float, float]:
        """(-work, slowdown of the slowest job, GB): less is better, unknown is infinite."""
        slowdown = 1.0 if self.n == 1 else _value(self.numbers["slowdown_worst"])
        return -self.work, slowdown, _value(self.numbers["memory"])

    @property
    def undecided(self) -> bool:
        """True if the interval (or range of hosts) of the STP has both no gain and a clear one."""
        return self.n > 1 and self.stp.low <= 1 and self.stp.high > 1 / NEAR

    def is_dominated_by(self, other: "MeasuredOption") -> bool:
        """True if another option is nowhere worse and somewhere better."""
        pairs = zip(other.costs, self.costs, strict=True)
        return other.costs != self.costs and all(theirs <= ours for theirs, ours in pairs)

    def is_within(self, max_slowdown: float, max_memory: float) -> bool:
        """True if no host breaks a bound; an unknown number breaks every finite one."""
        slow = self.n > 1 and self.highest_slowdown > max_slowdown
        return not slow and self.highest_memory <= max_memory

    @property
    def label(self) -> str:
        """`3 under MPS`, `7 as separate processes`, `one at a time`."""
        if self.n == 1 and self.method == "naive":
            return "one at a time"
        return f"{self.n} {labels.method_phrase(self.method)}"

    @property
    def description(self) -> str:
        """`3 under MPS: throughput gain 1.42 [1.33, 1.52], slowdown of the slowest job 2.1, 26 GB`.

        What was not measured is left out.
        """
        parts = [f"{self.label}: throughput gain {labels.span(self.stp)}"]
        slowdown, memory = self.numbers["slowdown_worst"], self.numbers["memory"]
        if slowdown:
            parts.append(f"slowdown of the slowest job {labels.number(slowdown.value)}")
        if memory:
            parts.append(labels.number(memory.value, memory.unit))
        return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class Advice:
    """What to do with a job that is written in one way.

    options: all, fewest jobs first. pareto: options that no other beats in work, slowdown and
    memory together. best: the most work within the bounds. advised: the fewest jobs that do nearly
    as much (NEAR). shared: the advised option, or if that is one job, the best set within the
    bounds. rewrite: a sentence that the job should be written better first, or "". any_bound: a
    bound was given that can be checked. unchecked_memory: a bound on memory was given, and no
    memory is known.
    """

    job: str
    implementation: str
    options: tuple[MeasuredOption, ...]
    pareto: tuple[MeasuredOption, ...]
    best: MeasuredOption | None
    advised: MeasuredOption | None
    shared: MeasuredOption | None
    rewrite: str
    any_bound: bool
    unchecked_memory: bool

    @property
    def sets(self) -> tuple[MeasuredOption, ...]:
        """Options of several jobs."""
        return tuple(option for option in self.options if option.n > 1)

    @property
    def undecided(self) -> bool:
        """True if the study cannot tell whether sharing gains."""
        return bool(self.shared and self.shared.undecided)

    @property
    def memory_unread(self) -> bool:
        """True if a set has no memory because it was measured in an interleaved cell."""
        interleaved = [option for option in self.sets if option.stp.design == INTERLEAVED]
        return not all(option.numbers["memory"] for option in interleaved)

    def sentences(self, exclude: Collection[str] = ()) -> list[str]:
        """The advice in sentences, most important first, without the caveats to exclude."""
        caveats = [caveat for caveat in self.caveats() if caveat not in exclude]
        return [*self._verdict(), *caveats, *filter(None, [self.rewrite])]

    def caveats(self) -> list[str]:
        """Sentences that say how far the advice can be trusted."""
        caveats, shared = [], self.shared
        if shared and len(shared.hosts) == 1:
            caveats.append("Measured on one host only.")
        # A gain is relative to the job alone on the same host, so it does not matter where else
        # that job was measured.
        if len({option.hosts for option in self.sets if option.hosts}) > 1:
            caveats.append(
                "The options were not all measured on the same hosts, and hosts differ: part of "
                "the difference may be the host."
            )
        if shared and flags.ABOVE_COUNT in flags.split(shared.stp.flags):
            meaning = flags.meaning(flags.ABOVE_COUNT)
            hint = "; read *overlap*" if shared.numbers["s"] else ""
            caveats.append(f"{labels.number(shared.stp.value)} times is {meaning}{hint}.")
        alone = [option for option in self.options if option.n == 1]
        for option in filter(None, [*alone, shared]):
            estimates = filter(None, option.numbers.values())
            flagged = flags.split(flags.union(estimate.flags for estimate in estimates))
            for flag in flags.COLLAPSED:
                if flag in flagged:
                    caveats.append(f"Beware of {option.label}: {flags.meaning(flag)}.")
        if self.memory_unread:
            caveats.append(MEMORY_UNREAD)
        if self.unchecked_memory:
            caveats.append(BOUND_UNCHECKED)
        return caveats

    def _verdict(self) -> list[str]:
        advised, best, shared = self.advised, self.best, self.shared
        respects = "is known to respect" if self.memory_unread else "respects"
        if advised is None:
            return [f"No measured option {respects} the bounds."]
        if not self.sets:
            return ["Sharing was not measured."]
        if shared is None:
            top = min(self.sets, key=lambda option: option.costs)
            return [f"Only one at a time {respects} the bounds; without them, {top.description}."]
        if self.undecided:
            wanted = "on more hosts" if len(shared.hosts) > 1 else "more replicates"
            return [f"Undecided: {shared.description}, which includes no gain. Measure {wanted}."]
        if advised.n == 1 and shared.stp.value <= 1:
            return [f"Run one at a time: sharing does no more. The best is {shared.description}."]
        if advised.n == 1:
            return [f"Run one at a time: that is within a tenth of the best, {shared.description}."]
        verdict = [f"Run {advised.description}."]
        if best != advised:
            within = " within the bounds" if self.any_bound else ""
            verdict.append(f"The most throughput{within}: {best.description}.")
        return verdict


def _value(estimate: Row | None) -> float:
    return inf if estimate is None else estimate.value


def measured_options(estimates: pd.DataFrame) -> dict[tuple[str, str], list[MeasuredOption]]:
    """(job, implementation) → its measured sets, and the job alone; fewest jobs first."""
    rows, hosts = by_id(estimates), table.hosts(estimates)

    def highest(estimate: Row | None) -> float:
        """The highest number of all hosts; a host without one counts with that over all hosts."""
        if estimate is None or not hosts:
            return _value(estimate)
        return max(rows.get(f"{estimate.id}@{host}", estimate).value for host in hosts)

    options: dict[tuple[str, str], list[MeasuredOption]] = {}
    stps = table.select(estimates, "stp", window="", job="")
    for stp in stps.itertuples(index=False, name="Row"):
        job = _copied_job(stp)
        if job is None:
            continue
        numbers = {name: rows.get(identity(name, **place(stp))) for name in NUMBERS}
        option = MeasuredOption(
            method=stp.method,
            n=stp.jobs,
            numbers=numbers,
            work=stp.value,
            hosts=tuple(host for host in hosts if f"{stp.id}@{host}" in rows),
            highest_slowdown=highest(numbers["slowdown_worst"]),
            highest_memory=highest(numbers["memory"]),
        )
        options.setdefault((job, stp.implementation), []).append(option)
    return {key: _ranked(alternatives) for key, alternatives in options.items()}


def _ranked(options: list[MeasuredOption]) -> list[MeasuredOption]:
    """Fewest jobs first; work is the throughput if every option has one."""
    if all(option.numbers["rate"] for option in options):
        options = [replace(option, work=option.numbers["rate"].value) for option in options]
    return sorted(options, key=lambda option: (option.n, method_order(option.method)))


def _copied_job(stp: Row) -> str | None:
    """The job that a set has copies of; a job alone counts only as a separate process."""
    scenario = parse_scenario(stp.scenario)
    if scenario.mixed or scenario.variant or labels.has_mps_limits(stp.method):
        return None
    return scenario.family if scenario.n > 1 or stp.method == "naive" else None


def advise(
    estimates: pd.DataFrame, job: str = "", max_slowdown: float = inf, max_memory: float = inf
) -> list[Advice]:
    """Advice for every job and implementation of a study, or for one job.

    max_slowdown: of the slowest job, times its duration alone. max_memory: of all jobs, GB.
    """
    options, advice = measured_options(estimates), []
    for name in [job] if job else table.workloads(estimates):
        for implementation in table.implementations(estimates):
            if (name, implementation) in options:
                chosen = _choose(options[name, implementation], max_slowdown, max_memory)
                rewrite = _rewrite(estimates, name, implementation)
                advice.append(Advice(name, implementation, rewrite=rewrite, **chosen))
    return advice


def _choose(
    options: Sequence[MeasuredOption], max_slowdown: float, max_memory: float
) -> dict[str, object]:
    """The fields of Advice that follow from options and bounds."""
    unchecked_memory = max_memory < inf and not any(o.numbers["memory"] for o in options)
    if unchecked_memory:
        max_memory = inf
    allowed = [option for option in options if option.is_within(max_slowdown, max_memory)]
    best = min(allowed, key=lambda option: option.costs, default=None)
    near = [option for option in allowed if option.work >= NEAR * best.work]
    advised = min(near, key=lambda option: (option.n, option.costs), default=None)
    shared = advised
    if advised is None or advised.n == 1:
        sets = [option for option in allowed if option.n > 1]
        shared = min(sets, key=lambda option: option.costs, default=None)
    pareto = [option for option in options if not any(map(option.is_dominated_by, options))]
    return {
        "options": tuple(options),
        "pareto": tuple(pareto),
        "best": best,
        "advised": advised,
        "shared": shared,
        "any_bound": min(max_slowdown, max_memory) < inf,
        "unchecked_memory": unchecked_memory,
    }


def _rewrite(estimates: pd.DataFrame, job: str, implementation: str) -> str:
    """A sentence if one job alone does over a tenth more in its fastest implementation, or ""."""
    alone = {"scenario": f"1x_{job}", "implementation": implementation, "method": "naive"}
    rate = table.get(estimates, "rate", **alone)
    over_fastest = table.get(estimates, "over_fastest", **alone)
    fastest_rates = table.select(estimates, "fastest_rate", scenario=alone["scenario"])
    fastest = next(fastest_rates.itertuples(), None)
    if not (rate and over_fastest and fastest) or over_fastest.value >= NEAR:
        return ""
    return (
        f"Write it better first: one job alone does {labels.number(rate.value, rate.unit)} in this "
        f"way, and {labels.number(fastest.value, fastest.unit)} in its fastest version "
        f"({labels.implementation(fastest.implementation)})."
    )


def common_caveats(advice: Iterable[Advice]) -> list[str]:
    """Caveats that every job with measured sets has, to be said once; none for a single job."""
    caveats = [job_advice.caveats() for job_advice in advice if job_advice.sets]
    if len(caveats) < 2:
        return []
    first, *later = caveats
    return [caveat for caveat in first if all(caveat in of_job for of_job in later)]


def unmeasured(estimates: pd.DataFrame, advice: Iterable[Advice]) -> str:
    """A warning that a job alone, in ways not measured here, may do more than sets do, or ""."""
    if labels.on_cpu(estimates):
        return ""
    rates = table.select(estimates, "rate", method="naive", window="")
    lacking = set()
    for job in {job_advice.job for job_advice in advice}:
        measured = set(rates.loc[rates["scenario"] == f"1x_{job}", "implementation"])
        lacking |= set(IMPLEMENTATIONS) - measured
    if not lacking:
        return ""
    ways = [labels.implementation(name) for name in IMPLEMENTATIONS if name in lacking]
    return (
        "Some or all of these jobs were not measured alone in these ways: "
        f"{'; '.join(ways)}. Written so, one job alone may do more than what is advised here: "
        "see docs/results.md."
    )
