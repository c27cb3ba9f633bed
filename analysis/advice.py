"""How many of a job should share a GPU, and by which method, from the estimates of a study.

Chooses among measured options and computes no number. No flag or outcome leaves an option out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from operator import le

import pandas as pd

from analysis import estimates as table_of
from analysis import labels
from analysis.choose import host_bound, on_cpu, place, way
from analysis.estimates import RANGE, Row, by_id, identity
from analysis.records import flags
from workflow.collocation.spec.names import (
    CONTROL_IMPLEMENTATIONS,
    IMPLEMENTATIONS,
    INTERLEAVED,
    TWIN,
    method_order,
    parse_scenario,
)

GAIN = 1.05  # less is no gain
NEAR = 1.1  # the knee may lose this against the best: it is the least slowdown within a tenth of it
CLOSE = 1.05  # what loses so much more is mentioned, if it slows jobs less than the knee
REWRITE = 1.5  # times the work that another implementation alone must do, to be advised first
MORE = 1.02  # times the advised set's work that a larger one must do, to be mentioned
UNTOLD = (
    "GPU memory and energy of these sets are not known: they took turns in one cell, all loaded at "
    "once."
)
UNBOUND = "GPU memory is not known here, so no set was held against the bound on it."
# Numbers of an option besides its STP: field → quantity.
BESIDES = {"rate": "rate", "slowdown": "slowdown_worst", "memory": "memory"}
BESIDES |= {"s": "s", "over_fastest": "over_fastest"}


@dataclass(frozen=True, eq=False)
class Option:
    """One way to run a job: `n` at a time by a method, with its numbers over all hosts.

    work: what options are ranked by, samples/s; the STP where not every option of the job has a
    throughput. That of a set which fills the GPU repeats on other hosts; a job alone, which the STP
    is over, does not. None: not measured. hosts: where its gain was measured.
    """

    method: str
    n: int
    work: float
    stp: Row
    rate: Row | None = None
    slowdown: Row | None = None
    memory: Row | None = None
    s: Row | None = None
    over_fastest: Row | None = None
    hosts: tuple[str, ...] = ()

    @property
    def costs(self) -> tuple[float, float, float]:
        """(-work, slowdown of the slowest, memory in GB): less is better. Unknown is infinite, and
        a job alone is not slowed down.
        """
        return -self.work, 1.0 if self.n == 1 else _value(self.slowdown), _value(self.memory)

    @property
    def pays(self) -> bool:
        """True if it is a set that gains more than 5 %."""
        return self.n > 1 and self.stp.value > GAIN

    @property
    def undecided(self) -> bool:
        """True if its interval, or its hosts, include no gain as well as a gain of over 5 %."""
        return self.n > 1 and self.stp.low <= 1 and self.stp.high > GAIN

    def dominated_by(self, other: Option) -> bool:
        """True if the other is nowhere worse and somewhere better."""
        return other.costs != self.costs and all(map(le, other.costs, self.costs))

    def within(self, slowdown: float, memory: float) -> bool:
        """True if no host breaks either bound; an unknown value respects no finite one."""
        slowest = 1.0 if self.n == 1 else _most(self.slowdown)
        return slowest <= slowdown and _most(self.memory) <= memory

    @property
    def label(self) -> str:
        """`3 under MPS`, `7 as separate processes`, `one at a time`."""
        one = self.n == 1 and self.method == "naive"
        return "one at a time" if one else f"{self.n} {way(self.method)}"

    @property
    def gains(self) -> str:
        """`3 under MPS has a throughput gain of 1.42 [1.33, 1.52]`."""
        return f"{self.label} has a throughput gain of {labels.span(self.stp)}"


@dataclass(frozen=True, eq=False)
class Advice:
    """What to do with a job that is written in one way.

    options: all, fewest jobs first. pareto: those that no other beats in work, slowdown and memory
    together. best: the most work within the bounds. knee: the least slowdown within a tenth of it,
    as advised. close: what slows jobs less and just misses that tenth. shared: the knee, or where
    that is one job, the best set within the bounds. gains: the STP of `shared` by host. rewrite:
    that, and how much, the job should be written better, as a sentence. missing: outcomes of
    planned sets without numbers. host_bound: more cells could change some of `gains`. unbound: a
    bound on memory was given, and no memory is known.
    """

    job: str
    implementation: str
    options: tuple[Option, ...]
    pareto: tuple[Option, ...]
    best: Option | None
    knee: Option | None
    close: Option | None
    shared: Option | None
    gains: tuple[Row, ...]
    rewrite: str
    missing: tuple[Row, ...]
    host_bound: bool
    unbound: bool

    @property
    def sets(self) -> tuple[Option, ...]:
        """Options of several jobs."""
        return tuple(option for option in self.options if option.n > 1)

    @property
    def untold(self) -> bool:
        """True if sets have no memory, because they were conditions of interleaved cells."""
        return any(o.stp.design == INTERLEAVED and not o.memory for o in self.sets)

    def sentences(self, but: Collection[str] = ()) -> list[str]:
        """The advice in plain sentences, most important first; without caveats in `but`."""
        found = self._advised() if self.knee and self.knee.pays else [self._nothing()]
        found += (each for each in self.caveats() if each not in but)
        return found + [self.rewrite] * bool(self.rewrite)

    def caveats(self) -> list[str]:
        """Sentences that say how far the advice can be trusted."""
        found, shared = [], self.shared
        if len(self.gains) > 1:
            found.append(self._on_hosts())
        elif shared and shared.stp.n == 1 and pd.isna(shared.stp.low):
            found.append("Measured once, so part of it may be chance.")
        elif self.gains:
            found.append("Measured on one host only.")
        if self.host_bound:
            cells = "one cell" if shared.stp.n == 1 else f"{shared.stp.n} cells"
            found.append(
                f"It rests on {cells}, and where a job waits for its host, cells differ by more "
                "than their intervals tell."
            )
        # A gain is over the job alone on the same host, so where that was measured besides makes no
        # difference to it.
        if len({option.hosts for option in self.sets if option.hosts}) > 1:
            found.append(
                "The sets were not all measured on the same hosts, and hosts differ: part of what "
                "sets them apart may be the host."
            )
        if shared and flags.ABOVE_COUNT in flags.split(shared.stp.flags):
            said = flags.meaning(flags.ABOVE_COUNT) + "; read S" * bool(shared.s)
            found.append(f"{labels.number(shared.stp.value)} times is {said}.")
        return found + [UNTOLD] * self.untold + [UNBOUND] * self.unbound

    def _on_hosts(self) -> str:
        """On which hosts the gain of `shared` is one."""
        against = [e for e in self.gains if (e.value > GAIN) != self.shared.pays]
        points = [f"{e.host} ({labels.number(e.value)})" for e in against]
        hosts, more = f"of {len(self.gains)} hosts", ", ".join(points)
        if self.shared.pays:
            said = f"each {hosts}" + (f", but not on {more}" if points else "")
        else:
            said = f"{more} only, {hosts}" if points else f"none {hosts}"
        return f"The gain is above {100 * (GAIN - 1):.0f} % on {said}."

    def _advised(self) -> list[str]:
        knee, best = self.knee, self.best
        if knee.undecided:
            return [f"Undecided: {knee.gains}, which includes no gain. Measure more replicates."]
        said = f"Run {knee.label}: throughput gain {labels.span(knee.stp)}"
        if knee.slowdown:
            said += f", slowdown of the slowest job {labels.number(knee.slowdown.value)}"
        if knee.memory:
            said += f", {labels.number(knee.memory.value, knee.memory.unit)}"
        times = labels.number(knee.stp.value)
        found = [f"{said}.", f"One after the other, the same work takes {times} times as long."]
        if best.work > MORE * knee.work:
            found.append(f"The most throughput, with more slowdown: {best.gains}.")
        if close := self.close:
            what = close.gains if close.n > 1 else close.label
            below = "With less slowdown, but a little more than a tenth below the most throughput"
            found.append(f"{below}: {what}.")
        return found

    def _nothing(self) -> str:
        known = "is known to respect" if self.untold else "respects"
        if self.knee is None:
            return f"No measured option {known} the bounds."
        if not self.sets:
            return "Sharing was not measured."
        top, shared = min(self.sets, key=lambda option: option.costs), self.shared
        beyond = f"without the bounds {top.gains}" if top != shared and top.pays else ""
        if shared is None:
            return f"Only one at a time {known} the bounds; {beyond or 'sharing gains nothing'}."
        said = f"Sharing gains {'little' if shared.pays else 'nothing'}: {shared.gains}"
        if shared.undecided:
            said = f"Undecided: {shared.gains}, which includes no gain"
        elif shared.pays and shared.slowdown:
            times = labels.number(shared.slowdown.value)
            said += f", and its slowest job takes {times} times as long"
        return f"{'; '.join(filter(None, (said, beyond)))}."


def _value(e: Row | None) -> float:
    return inf if e is None else e.value


def _most(e: Row | None) -> float:
    """The highest value of any host."""
    return e.high if e is not None and e.spread == RANGE else _value(e)


def options(estimates: pd.DataFrame) -> dict[tuple[str, str], list[Option]]:
    """(job, implementation) → its measured sets, and the job alone; fewest jobs first."""
    numbers, hosts, found = by_id(estimates), table_of.hosts(estimates), {}
    for stp in table_of.of(estimates, "stp", window="", job="").itertuples(index=False, name="Row"):
        if (job := _job(stp)) is not None:
            where = place(stp)
            besides = {name: numbers.get(identity(q, **where)) for name, q in BESIDES.items()}
            on = tuple(host for host in hosts if f"{stp.id}@{host}" in numbers)
            option = Option(stp.method, stp.jobs, stp.value, stp, **besides, hosts=on)
            found.setdefault((job, stp.implementation), []).append(option)
    for key, mine in found.items():
        if all(option.rate for option in mine):
            mine = [replace(option, work=option.rate.value) for option in mine]
        found[key] = sorted(mine, key=lambda option: (option.n, method_order(option.method)))
    return found


def _job(e: Row) -> str | None:
    """The job that a set has copies of; one alone is an option only as a separate process."""
    scenario = parse_scenario(e.scenario)
    copies = e.method != TWIN and not scenario.mixed and not scenario.variant
    return scenario.family if copies and (scenario.n > 1 or e.method == "naive") else None


def advise(
    estimates: pd.DataFrame, job: str = "", slowdown: float = inf, memory: float = inf
) -> list[Advice]:
    """Advice for every job and way of writing it, or for one job.

    slowdown: the most that the slowest job may suffer. memory: the most that may be used, GB.
    """
    every, numbers = options(estimates), by_id(estimates)
    return [
        _advice(numbers, name, implementation, every[name, implementation], slowdown, memory)
        for name in ([job] if job else table_of.workloads(estimates))
        for implementation in table_of.implementations(estimates)
        if (name, implementation) in every
    ]


def _advice(
    numbers: Mapping[str, Row],
    job: str,
    implementation: str,
    mine: list[Option],
    slowdown: float,
    memory: float,
) -> Advice:
    unbound = memory < inf and not any(option.memory for option in mine)
    memory = inf if unbound else memory
    allowed = [option for option in mine if option.within(slowdown, memory)]
    best = min(allowed, key=lambda option: option.costs, default=None)
    near = [option for option in allowed if option.work * NEAR >= best.work]
    knee = min(near, key=lambda option: (option.costs[1], option.costs), default=None)
    nearly = (o for o in allowed if o.work * NEAR * CLOSE >= best.work)
    gentler = (o for o in nearly if o.costs[1] < knee.costs[1])
    close = max(gentler, key=lambda option: option.work, default=None)
    sets = [option for option in allowed if option.n > 1]
    shared = knee if knee in sets else min(sets, key=lambda o: o.costs, default=None)
    gains = [numbers[f"{shared.stp.id}@{host}"] for host in shared.hosts] if shared else []
    measured = {(option.stp.scenario, option.method) for option in mine}
    planned = [e for e in numbers.values() if e.quantity == "outcome" and e.source == "measured"]
    planned = [e for e in planned if e.implementation == implementation and _job(e) == job]
    pareto = (a for a in mine if not any(a.dominated_by(b) for b in mine))
    return Advice(
        *(job, implementation, tuple(mine), tuple(pareto), best, knee, close, shared, tuple(gains)),
        rewrite=_rewrite(numbers, job, implementation, knee),
        missing=tuple(e for e in planned if (e.scenario, e.method) not in measured),
        host_bound=any(host_bound(numbers, e) for e in gains),
        unbound=unbound,
    )


def _rewrite(numbers: Mapping[str, Row], job: str, implementation: str, knee: Option | None) -> str:
    """That one job alone does more in the fastest way measured: first, where that way does far
    more, or one job in it does more than the option that is advised; or "".
    """
    one = {"scenario": f"1x_{job}", "implementation": implementation, "method": "naive"}
    alone, over = (numbers.get(identity(name, **one)) for name in ("rate", "over_fastest"))
    every = (e for e in numbers.values() if e.quantity == "fastest_rate" and not e.host)
    fastest = next((e for e in every if e.scenario == f"1x_{job}"), None)
    if not (alone and over and fastest):
        return ""
    beaten, faster = knee and _value(knee.over_fastest) < 1, over.value * GAIN < 1
    first = over.value * REWRITE < 1 or (beaten and faster)
    if not first and not (faster and not (knee and knee.pays)):
        return ""
    does, more = (labels.number(e.value, e.unit) for e in (alone, fastest))
    return (
        f"Write it better{' first' * bool(first)}: one job alone does {does} in this way, and "
        f"{more} in the fastest way measured ({labels.implementation(fastest.implementation)})."
    )


def common(found: Iterable[Advice]) -> list[str]:
    """Caveats that hold for each of several jobs whose sets were measured: to be said once."""
    first, *rest = [each.caveats() for each in found if each.sets] or [[]]
    return [said for said in first if rest and all(said in each for each in rest)]


def unmeasured(estimates: pd.DataFrame, found: Iterable[Advice]) -> str:
    """That one job alone, in ways not measured here, may do more than sets do; or ""."""
    rates = table_of.of(estimates, "rate", method="naive", window="")
    jobs = {each.job for each in found}
    alone = [set(rates.loc[rates["scenario"] == f"1x_{job}", "implementation"]) for job in jobs]
    lacking = [
        implementation
        for implementation in IMPLEMENTATIONS
        if not all(implementation in known for known in alone)
    ]
    ways = "; ".join(
        labels.implementation(implementation)
        for implementation in lacking
        if implementation not in CONTROL_IMPLEMENTATIONS
    )
    if not ways or on_cpu(estimates):
        return ""
    return (
        f"Some or all of these jobs were not measured alone in these ways: {ways}. Written so, one "
        "job alone may do more than a set that is advised here: see docs/results.md."
    )
