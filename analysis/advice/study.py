"""How many of a job should share a GPU, and by which method, from the estimates of a study.

Chooses among measured options and computes no number. No flag or outcome leaves an option out.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from operator import le
from typing import Self

import pandas as pd

from analysis import labels
from analysis.choose import NEAR, on_cpu, place, variant_of_mps, way
from analysis.estimates import table as table_of
from analysis.estimates.records import flags
from analysis.estimates.table import Row, by_id, identity
from workflow.collocation.study.names import (
    IMPLEMENTATIONS,
    INTERLEAVED,
    method_order,
    parse_scenario,
)

UNTOLD = (
    "Where a set has no GPU memory or energy here, it took turns with others in one cell, all "
    "loaded at once."
)
UNBOUND = "GPU memory is not known here, so no set was held against the bound on it."
COUNTS = (
    "Advice counts copies of one job with data on the GPU, without limits of SMs or priorities."
)
NUMBERS = ("stp", "rate", "slowdown_worst", "memory", "s", "over_fastest")  # of an option
COSTS = ("slowdown_worst", "memory")


@dataclass(frozen=True, eq=False)
class Option:
    """One way to run a job: `n` at a time by a method.

    numbers: over all hosts, by quantity, those of NUMBERS; None: not measured. work: what options
    are ranked by, samples/s; the STP where not every option of the job has a throughput. That of a
    set which fills the GPU repeats on other hosts; a job alone, which the STP is over, does not.
    hosts: where its gain was measured. most: COSTS of the host that has most; infinite if unknown.
    """

    method: str
    n: int
    numbers: Mapping[str, Row | None]
    work: float
    hosts: tuple[str, ...]
    most: tuple[float, float]

    @property
    def stp(self) -> Row:
        return self.numbers["stp"]

    @property
    def costs(self) -> tuple[float, float, float]:
        """(-work, slowdown of the slowest, memory in GB): less is better. Unknown is infinite, and
        a job alone is not slowed down.
        """
        slowdown, memory = (_value(self.numbers[name]) for name in COSTS)
        return -self.work, 1.0 if self.n == 1 else slowdown, memory

    @property
    def undecided(self) -> bool:
        """True if its interval, or its hosts, hold no gain as well as one that would count."""
        return self.n > 1 and self.stp.low <= 1 and self.stp.high > 1 / NEAR

    def dominated_by(self, other: Self) -> bool:
        """True if the other is nowhere worse and somewhere better."""
        return other.costs != self.costs and all(map(le, other.costs, self.costs))

    def within(self, slowdown: float, memory: float) -> bool:
        """True if no host breaks either bound; an unknown value respects no finite one."""
        slowest, largest = self.most
        return (self.n == 1 or slowest <= slowdown) and largest <= memory

    @property
    def label(self) -> str:
        """`3 under MPS`, `7 as separate processes`, `one at a time`."""
        one = self.n == 1 and self.method == "naive"
        return "one at a time" if one else f"{self.n} {way(self.method)}"

    @property
    def told(self) -> str:
        """`3 under MPS: throughput gain 1.42 [1.33, 1.52], slowdown of the slowest job 2.1, 26 GB`:
        what it costs as far as it is known.
        """
        parts = [f"{self.label}: throughput gain {labels.span(self.stp)}"]
        slowdown, memory = (self.numbers[name] for name in COSTS)
        if slowdown:
            parts.append(f"slowdown of the slowest job {labels.number(slowdown.value)}")
        if memory:
            parts.append(labels.number(memory.value, memory.unit))
        return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class Advice:
    """What to do with a job that is written in one way.

    options: all, fewest jobs first. pareto: those that no other beats in work, slowdown and memory
    together. best: the most work within the bounds. advised: the fewest jobs within a tenth of it.
    shared: what is advised, or where that is one job, the best set within the bounds. rewrite:
    that, and how much, the job should be written better, as a sentence. any_bound: one was
    given that can be checked. unbound: one on memory was, and no memory is known.
    """

    job: str
    implementation: str
    options: tuple[Option, ...]
    pareto: tuple[Option, ...]
    best: Option | None
    advised: Option | None
    shared: Option | None
    rewrite: str
    any_bound: bool
    unbound: bool

    @property
    def sets(self) -> tuple[Option, ...]:
        """Options of several jobs."""
        return tuple(option for option in self.options if option.n > 1)

    @property
    def undecided(self) -> bool:
        """True if it is not known whether what is shared gains."""
        return bool(self.shared and self.shared.undecided)

    @property
    def untold(self) -> bool:
        """True if sets have no memory, because they were conditions of interleaved cells."""
        return any(o.stp.design == INTERLEAVED and not o.numbers["memory"] for o in self.sets)

    def sentences(self, but: Collection[str] = ()) -> list[str]:
        """The advice in plain sentences, most important first; without caveats in `but`."""
        found = [*self._said(), *(each for each in self.caveats() if each not in but)]
        return found + [self.rewrite] * bool(self.rewrite)

    def caveats(self) -> list[str]:
        """Sentences that say how far the advice can be trusted."""
        found, shared = [], self.shared
        if shared and len(shared.hosts) == 1:
            found.append("Measured on one host only.")
        # A gain is over the job alone on the same host, so where that was measured besides makes no
        # difference to it.
        if len({option.hosts for option in self.sets if option.hosts}) > 1:
            found.append(
                "The sets were not all measured on the same hosts, and hosts differ: part of what "
                "sets them apart may be the host."
            )
        if shared and flags.ABOVE_COUNT in flags.split(shared.stp.flags):
            said = flags.meaning(flags.ABOVE_COUNT) + "; read S" * bool(shared.numbers["s"])
            found.append(f"{labels.number(shared.stp.value)} times is {said}.")
        alone = (option for option in self.options if option.n == 1)
        for option in filter(None, (*alone, shared)):
            known = flags.split(flags.union(e.flags for e in option.numbers.values() if e))
            for flag in filter(known.__contains__, flags.COLLAPSED):
                found.append(f"Beware of {option.label}: {flags.meaning(flag)}.")
        return found + [UNTOLD] * self.untold + [UNBOUND] * self.unbound

    def _said(self) -> list[str]:
        advised, best, shared = self.advised, self.best, self.shared
        known = "is known to respect" if self.untold else "respects"
        if advised is None:
            return [f"No measured option {known} the bounds."]
        if not self.sets:
            return ["Sharing was not measured."]
        if shared is None:
            top = min(self.sets, key=lambda option: option.costs)
            return [f"Only one at a time {known} the bounds; without them, {top.told}."]
        if self.undecided:
            more = "on more hosts" if len(shared.hosts) > 1 else "more replicates"
            return [f"Undecided: {shared.told}, which includes no gain. Measure {more}."]
        if advised.n == 1 and shared.stp.value <= 1:
            return [f"Run one at a time: no set does more. The best is {shared.told}."]
        if advised.n == 1:
            told = "Run one at a time: that is within a tenth of the best set, "
            return [f"{told}{shared.told}."]
        within = " within the bounds" * self.any_bound
        more = [f"The most throughput{within}: {best.told}."] * (best != advised)
        return [f"Run {advised.told}.", *more]


def _value(e: Row | None) -> float:
    return inf if e is None else e.value


def options(estimates: pd.DataFrame) -> dict[tuple[str, str], list[Option]]:
    """(job, implementation) → its measured sets, and the job alone; fewest jobs first."""
    numbers, hosts, found = by_id(estimates), table_of.hosts(estimates), {}

    def most(e: Row | None) -> float:
        on = [numbers.get(f"{e.id}@{host}", e) for host in hosts] if e else []
        return max(map(_value, on), default=_value(e))

    for stp in table_of.select(estimates, "stp", window="", job="").itertuples(
        index=False, name="Row"
    ):
        if (job := _job(stp)) is not None:
            own = {name: numbers.get(identity(name, **place(stp))) for name in NUMBERS}
            on = tuple(host for host in hosts if f"{stp.id}@{host}" in numbers)
            bounded = tuple(most(own[name]) for name in COSTS)
            option = Option(stp.method, stp.jobs, own, stp.value, on, bounded)
            found.setdefault((job, stp.implementation), []).append(option)
    for key, mine in found.items():
        if all(option.numbers["rate"] for option in mine):
            mine = [replace(option, work=option.numbers["rate"].value) for option in mine]
        found[key] = sorted(mine, key=lambda option: (option.n, method_order(option.method)))
    return found


def _job(e: Row) -> str | None:
    """The job that a set has copies of; one alone is an option only as a separate process."""
    scenario = parse_scenario(e.scenario)
    copies = not (scenario.mixed or scenario.variant or variant_of_mps(e.method))
    return scenario.family if copies and (scenario.n > 1 or e.method == "naive") else None


def advise(
    estimates: pd.DataFrame, job: str = "", slowdown: float = inf, memory: float = inf
) -> list[Advice]:
    """Advice for every job and way of writing it, or for one job.

    slowdown: the most that the slowest job may suffer. memory: the most that may be used, GB.
    """
    every, bounds = options(estimates), (slowdown, memory)
    return [
        _advice(name, written, every[name, written], *bounds, _rewrite(estimates, name, written))
        for name in ([job] if job else table_of.workloads(estimates))
        for written in table_of.implementations(estimates)
        if (name, written) in every
    ]


def _advice(
    job: str, written: str, mine: list[Option], slowdown: float, memory: float, rewrite: str
) -> Advice:
    unbound = memory < inf and not any(option.numbers["memory"] for option in mine)
    memory = inf if unbound else memory
    allowed = [option for option in mine if option.within(slowdown, memory)]
    best = min(allowed, key=lambda option: option.costs, default=None)
    near = [option for option in allowed if option.work >= NEAR * best.work]
    advised = min(near, key=lambda option: (option.n, option.costs), default=None)
    sets = [option for option in allowed if option.n > 1]
    shared = advised if advised in sets else min(sets, key=lambda o: o.costs, default=None)
    pareto = (a for a in mine if not any(a.dominated_by(b) for b in mine))
    chosen = (tuple(mine), tuple(pareto), best, advised, shared)
    return Advice(job, written, *chosen, rewrite, min(slowdown, memory) < inf, unbound)


def _rewrite(estimates: pd.DataFrame, job: str, implementation: str) -> str:
    """That one job alone does over a tenth more in the fastest implementation measured; or ""."""
    one = {"scenario": f"1x_{job}", "implementation": implementation, "method": "naive"}
    alone, over = (table_of.get(estimates, name, **one) for name in ("rate", "over_fastest"))
    every = table_of.select(estimates, "fastest_rate", scenario=f"1x_{job}")
    fastest = next(every.itertuples(), None)
    if not (alone and over and fastest) or over.value >= NEAR:
        return ""
    does, more = (labels.number(e.value, e.unit) for e in (alone, fastest))
    return (
        f"Write it better first: one job alone does {does} in this way, and {more} in the fastest "
        f"way measured ({labels.implementation(fastest.implementation)})."
    )


def common(found: Iterable[Advice]) -> list[str]:
    """Caveats that hold for each of several jobs whose sets were measured: to be said once."""
    first, *rest = [each.caveats() for each in found if each.sets] or [[]]
    return [said for said in first if rest and all(said in each for each in rest)]


def unmeasured(estimates: pd.DataFrame, found: Iterable[Advice]) -> str:
    """That one job alone, in ways not measured here, may do more than sets do; or ""."""
    rates = table_of.select(estimates, "rate", method="naive", window="")
    jobs = {each.job for each in found}
    alone = [set(rates.loc[rates["scenario"] == f"1x_{job}", "implementation"]) for job in jobs]
    lacking = [each for each in IMPLEMENTATIONS if not all(each in known for known in alone)]
    ways = "; ".join(map(labels.implementation, lacking))
    if not ways or on_cpu(estimates):
        return ""
    return (
        f"Some or all of these jobs were not measured alone in these ways: {ways}. Written so, one "
        "job alone may do more than a set that is advised here: see docs/results.md."
    )
