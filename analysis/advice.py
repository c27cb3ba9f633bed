"""How many of a job should share a GPU, and by which method, from the estimates of a study.

python -m analysis advise --folder results/h200 --job resnet152_imagenet_b32 --slowdown 2

Chooses among measured options and computes no number. No flag or outcome leaves an option out.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import inf
from operator import le

from analysis import choose, labels
from analysis.choose import place, scope, way
from analysis.estimates.schema import Estimate
from analysis.estimates.table import Estimates
from workflow.collocation.spec.names import ALTERNATE, TWIN, method_order, parse_scenario

GAIN = 1.05  # less is no gain
NEAR = 1.1  # the knee may lose this against the best: it is the least slowdown within a tenth of it
CLOSE = 1.05  # what loses so much more is mentioned, if it slows jobs less than the knee
UNTOLD = (
    "GPU memory and energy of these sets are not known: they took turns in one cell, all loaded at "
    "once."
)
REWRITE = 1.5  # times the work that another arm alone must do, to be advised first
MORE = 1.02  # times the advised set's work that a larger one must do, to be mentioned


@dataclass(frozen=True)
class Option:
    """One way to run a job: `n` at a time by a method, with its numbers over all hosts.

    work: what options are ranked by, samples/s; the STP where not every option of the job has a
    throughput. That of a set which fills the GPU repeats on other hosts; a job alone, which the STP
    is over, does not. None: not measured. hosts: where its gain was measured.
    """

    method: str
    n: int
    work: float
    stp: Estimate
    rate: Estimate | None = None
    slowdown: Estimate | None = None
    memory: Estimate | None = None
    s: Estimate | None = None
    over_fastest: Estimate | None = None
    hosts: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        numbers = (self.rate, self.stp, self.slowdown, self.memory, self.s, self.over_fastest)
        return tuple(number.id for number in numbers if number)

    @property
    def costs(self) -> tuple[float, float, float]:
        """(-work, slowdown of the slowest, memory in GB): less is better. Unknown is infinite, and
        a plain job alone is not slowed down.
        """
        return -self.work, 1.0 if self.n == 1 else _value(self.slowdown), _value(self.memory)

    @property
    def pays(self) -> bool:
        """True if it is a set that gains more than 5 %."""
        return self.n > 1 and self.stp.value > GAIN

    def dominated_by(self, other: Option) -> bool:
        """True if the other is nowhere worse and somewhere better."""
        return other.costs != self.costs and all(map(le, other.costs, self.costs))

    def within(self, slowdown: float, memory: float) -> bool:
        """True if it respects both bounds; an unknown value respects no finite one."""
        return self.costs[1] <= slowdown and self.costs[2] <= memory

    @property
    def label(self) -> str:
        """`3 under MPS`, `7 as plain processes`, `one at a time`."""
        one = self.n == 1 and self.method == "naive"
        return "one at a time" if one else f"{self.n} {way(self.method)}"

    @property
    def gains(self) -> str:
        return f"{self.label} has a throughput gain of {labels.span(self.stp)}"


@dataclass(frozen=True)
class Advice:
    """What to do with a job that is written in one way.

    options: all, fewest jobs first. pareto: those that no other beats in work, slowdown and memory
    together. best: the most work within the bounds. knee: the least slowdown within a tenth of it,
    as advised. close: what slows jobs less and just misses that tenth. shared: the knee, or where
    that is one job, the best set within the bounds. gains: the STP of `shared` by host. exceeding:
    numbers of the knee beyond a bound on one host. rewrite: (rate, fastest_rate, over_fastest)
    alone, where it should be written better. missing: outcomes of planned sets without numbers.
    wavers: true if more cells could change some of `gains`.
    """

    job: str
    arm: str
    options: tuple[Option, ...]
    pareto: tuple[Option, ...]
    best: Option | None
    knee: Option | None
    close: Option | None
    shared: Option | None
    gains: tuple[Estimate, ...]
    exceeding: tuple[Estimate, ...]
    rewrite: tuple[Estimate, ...]
    missing: tuple[Estimate, ...]
    wavers: bool

    @property
    def pays(self) -> bool:
        return self.knee is not None and self.knee.pays

    @property
    def sets(self) -> tuple[Option, ...]:
        return tuple(option for option in self.options if option.n > 1)

    @property
    def against(self) -> tuple[Estimate, ...]:
        """Gains of `shared` on hosts that do not say what it says over all hosts."""
        return tuple(e for e in self.gains if (e.value > GAIN) != self.shared.pays)

    @property
    def ragged(self) -> bool:
        """True if the sets compared were measured on different hosts. A gain is over the job alone
        on the same host, so where the job alone was measured besides makes no difference to it.
        """
        return len({o.hosts for o in self.sets if o.hosts}) > 1

    @property
    def untold(self) -> bool:
        """True if sets have no memory, because they were sides of alternating cells."""
        return any(o.stp.design == ALTERNATE and not o.memory for o in self.sets)

    @property
    def ids(self) -> tuple[str, ...]:
        numbers = (*self.gains, *self.exceeding, *self.rewrite, *self.missing)
        found = [*(i for option in self.options for i in option.ids), *(e.id for e in numbers)]
        return tuple(dict.fromkeys(found))

    def sentences(self, but: Collection[str] = ()) -> list[str]:
        """The advice in plain sentences, most important first; without caveats in `but`."""
        found = self._advised() if self.pays else [self._nothing()]
        found += (each for each in self.caveats() if each not in but)
        for e in self.exceeding:
            found.append(f"On {e.host} it exceeds the bound: {labels.number(e.value, e.unit)}.")
        if self.rewrite:
            alone, fastest, over = self.rewrite
            does, more = (labels.number(e.value, e.unit) for e in (alone, fastest))
            found.append(
                f"{rewriting(over, self.knee)}: one job alone does {does} in this way, and {more} "
                f"in the fastest way measured ({labels.arm(fastest.arm)})."
            )
        return found

    def caveats(self) -> list[str]:
        """Sentences that say how far the advice can be trusted."""
        found = []
        if len(self.gains) > 1:
            found.append(self._on_hosts())
        elif self.shared and self.shared.stp.n == 1 and self.shared.stp.low is None:
            found.append("Measured once, so part of it may be chance.")
        elif self.gains:
            found.append("Measured on one host only.")
        if self.wavers:
            cells = "one cell" if self.shared.stp.n == 1 else f"{self.shared.stp.n} cells"
            found.append(
                f"It rests on {cells}, and where a job waits for its host, cells differ by more "
                "than their intervals tell."
            )
        if self.pays and self.shared.stp.low is not None and self.shared.stp.low < 1:
            found.append("Its interval includes no gain at all.")
        if self.ragged:
            found.append(
                "The sets were not all measured on the same hosts, and hosts differ: part of what "
                "sets them apart may be the host."
            )
        if self.shared and (said := choose.above_count(self.shared.stp, self.shared.s)):
            found.append(f"{labels.number(self.shared.stp.value)} times is {said}.")
        if self.untold:
            found.append(UNTOLD)
        return found

    def _on_hosts(self) -> str:
        """On which hosts the gain of `shared` is one."""
        points = [f"{e.host} ({labels.number(e.value)})" for e in self.against]
        of, more = f"of {len(self.gains)} hosts", ", ".join(points)
        if self.shared.pays:
            said = f"each {of}" + (f", but not on {more}" if points else "")
        else:
            said = f"{more} only, {of}" if points else f"none {of}"
        return f"The gain is above {100 * (GAIN - 1):.0f} % on {said}."

    def _advised(self) -> list[str]:
        knee, best = self.knee, self.best
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
        if self.knee is None:
            known = "option is known to respect" if self.untold else "measured option respects"
            return f"No {known} the bounds."
        if not self.sets:
            return "Sharing was not measured."
        top, shared = min(self.sets, key=lambda option: option.costs), self.shared
        beyond = f"without the bounds {top.gains}" if top != shared and top.pays else ""
        if shared is None:
            known = "is known to respect" if self.untold else "respects"
            return f"Only one at a time {known} the bounds; {beyond or 'sharing gains nothing'}."
        said = f"Sharing gains {'little' if shared.pays else 'nothing'}: {shared.gains}"
        if shared.pays and shared.slowdown:
            times = labels.number(shared.slowdown.value)
            said += f", and its slowest job takes {times} times as long"
        return f"{'; '.join(filter(None, (said, beyond)))}."


def _value(e: Estimate | None) -> float:
    return inf if e is None or e.value is None else e.value


def options(estimates: Estimates, job: str, arm: str) -> list[Option]:
    """Every measured set of copies of a job, and the plain job alone; fewest jobs first."""
    found = []
    for stp in estimates.of("stp", arm=arm, window="", job=""):
        if stp.value is not None and _ours(stp, job):
            names = ("rate", "slowdown_worst", "memory", "s", "over_fastest")
            numbers = [estimates.get(name, **place(stp)) for name in names]
            hosts = tuple(e.host for e in estimates.on_hosts(stp))
            found.append(Option(stp.method, stp.jobs, stp.value, stp, *numbers, hosts))
    if all(option.rate and option.rate.value is not None for option in found):
        found = [replace(option, work=option.rate.value) for option in found]
    return sorted(found, key=lambda option: (option.n, method_order(option.method)))


def _ours(e: Estimate, job: str) -> bool:
    """True if it is of copies of the job; one alone is an option only as a plain process."""
    scenario = parse_scenario(e.scenario)
    if e.method == TWIN or (scenario.family, scenario.variant) != (job, ""):
        return False
    return scenario.n > 1 or e.method == "naive"


def advise(
    estimates: Estimates, job: str = "", slowdown: float = inf, memory: float = inf
) -> list[Advice]:
    """Advice for every job and way of writing it, or for one job.

    slowdown: the most that the slowest job may suffer. memory: the most that may be used, GB.
    """
    return [
        _advice(estimates, name, arm, mine, slowdown, memory)
        for name in ([job] if job else estimates.workloads())
        for arm in estimates.arms()
        if (mine := options(estimates, name, arm))
    ]


def _advice(
    estimates: Estimates, job: str, arm: str, mine: list[Option], slowdown: float, memory: float
) -> Advice:
    allowed = [option for option in mine if option.within(slowdown, memory)]
    best = min(allowed, key=lambda option: option.costs, default=None)
    near = [option for option in allowed if option.work * NEAR >= best.work]
    knee = min(near, key=lambda option: (option.costs[1], option.costs), default=None)
    nearly = (o for o in allowed if o.work * NEAR * CLOSE >= best.work)
    gentler = (o for o in nearly if o.costs[1] < knee.costs[1])
    close = max(gentler, key=lambda option: option.work, default=None)
    sets = [option for option in allowed if option.n > 1]
    shared = knee if knee in sets else min(sets, key=lambda o: o.costs, default=None)
    exceeding = []
    for e, bound in ((knee.slowdown, slowdown), (knee.memory, memory)) if knee else ():
        exceeding += [p for p in (estimates.on_hosts(e) if e else ()) if _value(p) > bound]
    measured = {(option.stp.scenario, option.method) for option in mine}
    outcomes = (e for e in estimates.of("outcome", arm=arm) if _ours(e, job))
    pareto = (a for a in mine if not any(a.dominated_by(b) for b in mine))
    gains = tuple(estimates.on_hosts(shared.stp)) if shared else ()
    return Advice(
        *(job, arm, tuple(mine), tuple(pareto), best, knee, close, shared),
        gains=gains,
        exceeding=tuple(exceeding),
        rewrite=_rewrite(estimates, job, arm, knee),
        missing=tuple(e for e in outcomes if (e.scenario, e.method) not in measured),
        wavers=any(choose.wavers(estimates, e) for e in gains),
    )


def _rewrite(estimates: Estimates, job: str, arm: str, knee: Option | None) -> tuple:
    """What it rests on that the job should be written better, or nothing."""
    one = {"scenario": f"1x_{job}", "arm": arm, "method": "naive"}
    alone, over = estimates.get("rate", **one), estimates.get("over_fastest", **one)
    fastest = estimates.of("fastest_rate", scenario=f"1x_{job}")
    if not (alone and over and fastest and rewriting(over, knee)):
        return ()
    return alone, fastest[0], over


def rewriting(alone: Estimate | None, knee: Option | None) -> str:
    """`Write it better first`, `Write it better` or "", where an option is advised, or none.

    alone: throughput of one job, written as it is, over one in the fastest way (`over_fastest`).
    First: where that way does far more, or one job in it does more than the option.
    """
    over = _value(alone)
    beaten = knee is not None and _value(knee.over_fastest) < 1
    if over * REWRITE < 1 or (beaten and over * GAIN < 1):
        return "Write it better first"
    return "Write it better" if over * GAIN < 1 and not (knee and knee.pays) else ""


def common(found: Iterable[Advice]) -> list[str]:
    """Caveats that hold for each of several jobs whose sets were measured: to be said once."""
    first, *rest = [each.caveats() for each in found if each.sets] or [[]]
    return [said for said in first if rest and all(said in each for each in rest)]


def unmeasured(estimates: Estimates, found: Iterable[Advice]) -> str:
    """That one job alone, in ways not measured here, may do more than sets do; or ""."""
    ways = choose.unmeasured(estimates, {each.job for each in found})
    if not ways or choose.on_cpu(estimates):
        return ""
    return (
        f"Some or all of these jobs were not measured alone in these ways: {ways}. Written so, one "
        "job alone may do more than a set that is advised here: see docs/arms.md."
    )


def table(advice: Advice, but: Collection[str] = ()) -> str:
    """One job for a terminal: what is advised, without caveats in `but`, then its options, with `*`
    on the Pareto set.
    """
    head = ("", "samples/s", "throughput gain", "slowest takes", "memory", "S", "over fastest")
    rows = [(*head, "hosts")]
    turned = choose.turned(option.stp for option in advice.options)
    for option in advice.options:
        rest = (option.slowdown, option.memory, option.s, option.over_fastest)
        cells = [labels.number(e.value, e.unit) if e else "–" for e in rest]
        cells.append(", ".join(option.hosts) if advice.ragged else "–")
        name = f"{'*' if option in advice.pareto else ' '} {option.label}"
        rate = labels.number(option.rate.value) if option.rate else "–"
        mark = choose.TURNS * (option.stp.id in turned)
        rows.append((name, rate, labels.span(option.stp) + mark, *cells))
    rows = list(zip(*(c for c in zip(*rows, strict=True) if {*c[1:]} != {"–"}), strict=True))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{labels.job(advice.job)}, {labels.arm(advice.arm)}"]
    lines += [f"  {sentence}" for sentence in advice.sentences(but)]
    for name, *cells in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  " + "  ".join([name.ljust(widths[0]), *numbers]).rstrip())
    lines += [f"  {choose.TURNED}"] * bool(turned)
    for option in advice.options:
        if option != advice.shared and (said := choose.above_count(option.stp, option.s)):
            lines.append(f"  {option.label}: {said}.")
    if advice.missing:
        name = "{0.jobs} {1} ({2})".format
        absent = (name(e, labels.method(e.method), labels.status(e.status)) for e in advice.missing)
        lines.append(f"  No numbers: {', '.join(absent)}.")
    return "\n".join(lines)


def run(given: Namespace) -> str:
    """The command: a short table for each job."""
    estimates = Estimates.read(given.folder / "estimates.parquet")
    known = estimates.workloads()
    if given.job and given.job not in known:
        raise ValueError(f"--job {given.job}: not in this study; there are: {', '.join(known)}")
    found = advise(estimates, given.job, given.slowdown, given.memory)
    legend = "* no other set is better in throughput, slowdown and memory."
    every = [option for each in found for option in each.options]
    if any(option.s for option in every):
        legend += " S: the factor that kernels side by side win; an idle GPU lowers it."
    if any(option.over_fastest for option in every):
        legend += "\nOver fastest: over one job alone in the fastest way it was written."
    said = common(found)
    head = (
        scope(estimates)[0],
        legend,
        unmeasured(estimates, found),
        "All advice: " * bool(said) + " ".join(said),
    )
    return "\n\n".join([*filter(None, head), *(table(each, said) for each in found)])
