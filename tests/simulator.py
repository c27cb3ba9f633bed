"""Studies with known truth: rows as runs.parquet has them, the plan, and what is true of them.

The model of a GPU is that of measuring.md: a job alone trains at `rate` and keeps the GPU busy for
`gract` of the time, so samples per second of busy GPU are `rate / gract`, on every host. A host
slows launch-bound jobs alone by a factor of its own; N jobs train at N times the rate alone, until
the GPU is full: then at `gains[method]` times the rate of a busy GPU.

In an interleaved cell a launch-bound job alone wavers by `slice_alone` from slice to slice, and is
like itself for some 0.8 s; sets by `slice_set`; the host drifts under all conditions alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from analysis.estimates.records.schema import SCHEMA
from workflow.collocation.study.names import (
    AFTER,
    BEFORE,
    COMPLETION,
    INTERLEAVED,
    conditions_of,
    parse_scenario,
)

IMPLEMENTATION, WINDOW, WINDOW_S, BATCH = "paper_step", "window", 6.0, 32
CARD, MEMORY = "Simulated GPU", 80e9
_ACTIVITY = {"smact": 0.8, "smocc": 0.3, "tenso": 0.1, "drama": 0.2}
FULL = 0.9999  # GRACT of a full GPU
PLAIN_GAINS = {"naive": 0.92, "mps": 1.6, "mig": 1.2}
BUSY_GAINS = {"naive": 0.92, "mps": 1.15, "mig": 1.05}


@dataclass(frozen=True)
class Job:
    """A workload: samples/s and GRACT alone, how much S it wins by each method on a full GPU, its
    memory (GB), and by implementation how much faster it is alone than in the first.
    """

    name: str
    rate: float = 3000.0
    gract: float = 0.2
    gains: Mapping[str, float] = field(default_factory=lambda: PLAIN_GAINS)
    memory: float = 2.0
    implementations: Mapping[str, float] = field(default_factory=lambda: {IMPLEMENTATION: 1.0})

    @property
    def launch_bound(self) -> bool:
        return self.gract < 0.9

    @property
    def device_rate(self) -> float:
        """Samples per second of busy GPU."""
        return self.rate / self.gract


@dataclass(frozen=True)
class Noise:
    """Standard deviations of logs. replicate: of the rate alone, with all cells of a replicate;
    alone: of the cells of jobs alone (only launch-bound ones, a tenth for others); cell: of sets;
    device: of the rate of a busy GPU, as read in a cell; member: how unlike a set's members are;
    slice_gract: of GRACT against the rate in a slice, as readings do not end with it; drift: how
    far the host goes in an interleaved cell.
    """

    host: float = 0.22
    replicate: float = 0.03
    alone: float = 0.10
    cell: float = 0.01
    device: float = 0.005
    member: float = 0.01
    gract: float = 0.005
    slice_alone: float = 0.12
    slice_set: float = 0.005
    slice_gract: float = 0.04
    drift: float = 0.03


@dataclass(frozen=True)
class Design:
    """What a study holds.

    jobs alone and in sets of `counts` by `methods`; mixes: scenario ids, those that end in
    --departure or --completion too. ends: (scenario, method) → status of all its cells.
    failing: share of sets' cells that fail. unsteady: share of them whose rate drifts. split: the
    last replicate of each host was begun on one device and ended on another one, with jobs alone on
    both. turns: (set, conditions) of each host's interleaved cells, of so many rounds.
    """

    jobs: Sequence[Job]
    counts: Sequence[int] = (2, 7)
    methods: Sequence[str] = ("naive", "mps")
    mixes: Sequence[str] = ()
    hosts: int = 1
    replicates: int = 5
    noise: Noise = Noise()
    ends: Mapping[tuple[str, str], str] = field(default_factory=dict)
    failing: float = 0.0
    unsteady: float = 0.0
    split: bool = False
    turns: Sequence[tuple[str, str]] = ()
    rounds: int = 60


@dataclass(frozen=True)
class Simulated:
    """Rows of runs.parquet, cells of plan.json, and (quantity, scenario, implementation, method,
    host) → value without noise; of host "" the geometric mean over hosts.
    """

    rows: list[dict]
    plan: list[dict]
    true: dict[tuple[str, str, str, str, str], float]


_ROW = (
    dict.fromkeys(SCHEMA.names)
    | {"study": "simulated", "attempt": 1, "current": True, "seed": 42, "input_mode": "resident"}
    | {"dataset": "images", "source": "synthetic", "batch_size": BATCH, "measure": WINDOW}
    | {"gpu_name": CARD, "hardware": CARD, "gpu_memory_total": MEMORY, "flags": "", "digest": "d"}
    | {"loss_check": "agrees", "loss_distance": 0.001}
)


class At(NamedTuple):
    host: int
    replicate: int
    device: int = 0


def simulate(design: Design, seed: int) -> Simulated:
    """One study; the same seed gives the same study."""
    return _Study(design, np.random.default_rng(seed)).run()


class _Study:
    def __init__(self, design: Design, random: np.random.Generator):
        self.design, self.random = design, random
        self.jobs = {job.name: job for job in design.jobs}
        self.implementations = list(
            dict.fromkeys(i for j in design.jobs for i in j.implementations)
        )
        factors = np.exp(random.normal(0, design.noise.host, design.hosts))
        self.host = [float(each) for each in factors]
        self.rows: list[dict] = []
        self.plan: list[dict] = []
        self.true: dict[tuple[str, str, str, str, str], float] = {}

    def run(self) -> Simulated:
        """Every replicate of every host: jobs alone, then the sets."""
        design = self.design
        scenarios = [f"{n}x_{name}" for n in design.counts for name in self.jobs]
        sets = [(s, m) for s in (*scenarios, *design.mixes) for m in design.methods]
        for replicate in range(1, design.hosts * design.replicates + 1):
            host = (replicate - 1) // design.replicates
            last = replicate % design.replicates == 0
            for implementation in self.implementations:
                devices = [0, 1] if design.split and last else [0]
                ats = [At(host, replicate, device) for device in devices]
                alone = [self._alone(implementation, at, at is ats[-1]) for at in ats]
                know = {n for n, job in self.jobs.items() if implementation in job.implementations}
                cells = [(s, m) for s, m in sets if know.issuperset(_names(s))]
                for place, (scenario, method) in enumerate(cells):
                    half = len(ats) * place // len(cells)
                    self._set(scenario, implementation, method, ats[half], alone[half])
        for host in range(design.hosts):
            for scenario, conditions in design.turns:
                self._turns(scenario, conditions, host, host + 1)
        for key in {(*key[:4], "") for key in self.true}:
            hosts = [(*key[:4], f"h{h}") for h in range(1, design.hosts + 1)]
            logs = [math.log(self.true[host]) for host in hosts if host in self.true]
            self.true[key] = math.exp(math.fsum(logs) / len(logs))
        return Simulated(self.rows, self.plan, self.true)

    def _true_alone(self, job: Job, implementation: str, host: int) -> float:
        """Its rate alone without noise; a GPU is never more than busy."""
        factor = self.host[host] if job.launch_bound else 1.0
        return min(job.rate * job.implementations[implementation] * factor, job.device_rate)

    def _noise(self, deviation: float) -> float:
        return math.exp(self.random.normal(0, deviation))

    def _alone(self, implementation: str, at: At, current: bool) -> dict:
        """Cells of one job each; name → its rate alone there."""
        noise, found = self.design.noise, {}
        for name, job in self.jobs.items():
            if implementation not in job.implementations:
                continue
            scale, place = 1.0 if job.launch_bound else 0.1, (f"1x_{name}", implementation, "naive")
            true = self._true_alone(job, implementation, at.host)
            rate = true * self._noise(scale * noise.replicate) * self._noise(scale * noise.alone)
            gract = min(rate / job.device_rate * self._noise(noise.device), FULL)
            cell = self._cell(*place, at, current)
            self._row(cell, 0, name, rate, gract=gract, gpu_memory_used=job.memory * 1e9)
            found[name] = rate
            busy = true / job.device_rate
            self._truth(*place, at.host, rate=true, gract=busy, stp=1.0)
        return found

    def true_rates(self, scenario: str, implementation: str, method: str, host: int) -> list[float]:
        """Each member's samples/s without noise: equal shares of a busy GPU, at most as alone."""
        jobs = [self.jobs[name] for name in _names(scenario)]
        alone = [self._true_alone(job, implementation, host) for job in jobs]
        if len(jobs) == 1:
            return alone
        wanted = [rate / job.device_rate for rate, job in zip(alone, jobs, strict=True)]
        gain = math.fsum(job.gains[method] for job in jobs) / len(jobs)
        share = min(1.0, gain / math.fsum(wanted))
        return [rate * share for rate in alone]

    def _set(self, scenario: str, implementation: str, method: str, at: At, alone: dict) -> None:
        design, noise, names = self.design, self.design.noise, _names(scenario)
        status = design.ends.get((scenario, method), "completed")
        if status == "completed" and self.random.random() < design.failing:
            status = "failed"
        if status == "not_run":
            self._planned(scenario, implementation, method, at.replicate)
            return
        cell = self._cell(scenario, implementation, method, at, status=status)
        if status != "completed":
            self.rows.append(cell | {"member": None, "window": None, "reason": f"it {status}"})
            return
        true = self.true_rates(scenario, implementation, method, at.host)
        shares = [self._noise(noise.member) for _ in names]
        even = len(names) / math.fsum(shares)
        factor = self._noise(noise.cell)
        rates = [t * s * even * factor for t, s in zip(true, shares, strict=True)]
        drift = {}
        if self.random.random() < design.unsteady:
            drift = {"drift": 0.03, "drift_error": 0.002}
        demand = math.fsum(r / self.jobs[n].device_rate for r, n in zip(true, names, strict=True))
        gract = min(demand / (1.6 if method.startswith("mps") else 0.9), FULL)
        gpu = {
            "gract": min(max(gract + self.random.normal(0, noise.gract), 0.0), 1.0),
            "gpu_memory_used": 1e9 * math.fsum(self.jobs[n].memory for n in names) * 0.9,
        } | drift
        windows = {"departure": (BEFORE, AFTER), "completion": (COMPLETION,)}
        windows = windows.get(parse_scenario(scenario).variant, (WINDOW,))
        for member, (name, rate) in enumerate(zip(names, rates, strict=True)):
            for window in windows:
                if window == AFTER and member == len(names) - 1:
                    continue  # it left
                own = rate * len(names) / (len(names) - 1) if window == AFTER else rate
                more = dict(gpu)
                if window == COMPLETION:  # a minute of work alone each
                    steps = [int(60 * alone[n] / BATCH) for n in names]
                    took = max(k * BATCH / r for k, r in zip(steps, rates, strict=True))
                    more |= {"steps": steps[member], "window_s": took}
                self._row(cell, member, name, own, window=window, **more)
        place = scenario, implementation, method, at.host
        self._set_truth(*place)
        if len(set(names)) == 1:
            self._truth(*place, rate=math.fsum(true), gract=gract)

    def _set_truth(self, scenario: str, implementation: str, method: str, host: int) -> None:
        names, true = _names(scenario), self.true_rates(scenario, implementation, method, host)
        demand = math.fsum(r / self.jobs[n].device_rate for r, n in zip(true, names, strict=True))
        bases = [self._true_alone(self.jobs[n], implementation, host) for n in names]
        stp = math.fsum(r / b for r, b in zip(true, bases, strict=True))
        worst = max(b / r for r, b in zip(true, bases, strict=True))
        self._truth(scenario, implementation, method, host, stp=stp, s=demand, slowdown_worst=worst)
        plain = self.true_rates(scenario, implementation, "naive", host)
        if method != "naive":
            over = math.fsum(r / b for r, b in zip(plain, bases, strict=True))
            self._truth(scenario, implementation, method, host, rate_over_naive=stp / over)

    def _turns(self, scenario: str, method: str, host: int, replicate: int) -> None:
        """An interleaved cell: half-second slices of each condition in random order, round by
        round.
        """
        noise, rounds = self.design.noise, self.design.rounds
        implementation, of_turns = self.implementations[0], f"{scenario}--{INTERLEAVED}"
        conditions = conditions_of(of_turns, method)
        cell = self._cell(of_turns, implementation, method, At(host, replicate))
        cell |= {"measure": INTERLEAVED, "window_s": 0.4 * rounds}
        cell["n"] = sum(len(_names(s.scenario)) for s in conditions.values())
        order = np.argsort(self.random.random((rounds, len(conditions))), axis=1)
        at = 0.5 * (np.arange(rounds)[:, None] * len(conditions) + order)
        phase = self.random.uniform(0, 2 * np.pi)
        drift = np.exp(noise.drift * np.sin(2 * np.pi * at / at.max() + phase))
        device, member = self._noise(noise.device), 0
        for place, (name, condition) in enumerate(conditions.items()):
            names = _names(condition.scenario)
            true = self.true_rates(condition.scenario, implementation, condition.method, host)
            alone = len(names) == 1
            scale = noise.slice_set
            if alone:
                scale = noise.slice_alone * (1.0 if self.jobs[names[0]].launch_bound else 0.1)
            wavers = self._like_itself(at[:, place]) if alone else self.random.normal(size=rounds)
            total = np.exp(scale * wavers - scale**2 / 2) * drift[:, place]
            asked = (r / self.jobs[n].device_rate for r, n in zip(true, names, strict=True))
            demand = math.fsum(asked)
            if alone:
                misread = np.exp(self.random.normal(0, noise.slice_gract, rounds))
                busy = np.clip(demand * total * device * misread, 0, 1)
            else:
                busy = min(demand / (1.6 if condition.method.startswith("mps") else 0.9), FULL)
                busy = np.clip(busy + self.random.normal(0, noise.gract, rounds), 0, 1)
            for own, rate in zip(names, true, strict=True):
                slices = rate * total
                more = {"window": name, "slices": slices.tolist(), "gract_slices": busy.tolist()}
                more |= {"window_s": 0.4 * rounds, "gract": float(busy.mean()), "drift": None}
                self._row(cell, member, own, float(slices.mean()), **more)
                member += 1
            place = condition.scenario, implementation, condition.method, host
            self._truth(*place, rate=math.fsum(true), aa=1.0)
            self._set_truth(*place)

    def _like_itself(self, at: np.ndarray) -> np.ndarray:
        """Standard normal noise whose correlation at a distance of 0.8 s is 0.05."""
        found, last = np.empty(len(at)), 0.0
        for place, time in enumerate(at):
            kept = math.exp(-(time - at[place - 1]) / 0.27) if place else 0.0
            last = kept * last + math.sqrt(1 - kept**2) * self.random.normal()
            found[place] = last
        return found

    def _truth(
        self, scenario: str, implementation: str, method: str, host: int, **values: float
    ) -> None:
        for quantity, value in values.items():
            self.true[quantity, scenario, implementation, method, f"h{host + 1}"] = value

    def _planned(self, scenario: str, implementation: str, method: str, replicate: int) -> dict:
        cell = {"scenario": scenario, "implementation": implementation, "method": method}
        cell["replicate"] = replicate
        cell["id"] = f"{scenario}/{implementation}/{method}/r{replicate}"
        cell["n"] = parse_scenario(scenario).n
        self.plan.append(cell)
        return cell

    def _cell(
        self, scenario: str, implementation: str, method: str, at: At,
        current: bool = True, status: str = "completed",
    ) -> dict:  # fmt: skip
        """What the rows of a cell have in common; a cell that is not current is planned once."""
        host, replicate, device = at
        if current:
            self._planned(scenario, implementation, method, replicate)
        done, uuid = status == "completed", f"GPU-{host + 1}-{device}"
        return (
            _ROW
            | {"cell": f"{scenario}/{implementation}/{method}/r{replicate}", "scenario": scenario}
            | {"implementation": implementation, "method": method}
            | {"replicate": replicate, "n": parse_scenario(scenario).n, "status": status}
            | {"current": current, "attempt": 2 if device and scenario[:2] == "1x" else 1}
            | {"device": uuid, "gpu_uuid": uuid, "machine": f"m{host + 1}"}
            | {"started_at": f"2026-01-{host + 1:02}T00:00:{replicate % 60:02}Z"}
            | {"session": f"m{host + 1} day 1", "method_verified": done or None}
        )

    def _row(self, cell: dict, member: int, name: str, rate: float, **more: object) -> None:
        power = 120.0 + 500.0 * float(more["gract"])
        self.rows.append(
            cell
            | {"member": member, "member_status": "completed", "workload": name, "model": name}
            | {"window": WINDOW, "window_s": WINDOW_S, "samples_per_s": rate}
            | {"steps": int(WINDOW_S * rate / BATCH), "drift": 0.001, "drift_error": 0.002}
            | {"power": power, "energy_j": power * WINDOW_S}
            | {name: share * float(more["gract"]) for name, share in _ACTIVITY.items()}
            | more
        )


def _names(scenario: str) -> list[str]:
    """The workload of each member."""
    return [name for name, count in parse_scenario(scenario).parts for _ in range(count)]
