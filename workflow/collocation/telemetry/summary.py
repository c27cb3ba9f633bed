"""From the sampler's output to the record of a cell: values of windows, checks, flags.

Reads nothing but its arguments. A value that is missing is None.

A headline comes from one pair of GPM samples that spans the window; the series must agree with it.
Interleaved slices have no such pair, and no energy: for them the series is all.
Energy is the GPU's own counter, which moves in steps: its mean power between two readings at the
very time it changed, times the window's length; the power readings, integrated, must agree.
A headline that cannot be right is missing, and a sentence says why; the series stay as read.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field

import numpy as np

from workflow.collocation.record import values as record
from workflow.collocation.record.series import SHARES, Series
from workflow.collocation.record.values import Values, Window
from workflow.collocation.telemetry import host
from workflow.collocation.telemetry.base import Metric
from workflow.collocation.telemetry.contradictions import COMPARED, contradictions
from workflow.collocation.telemetry.lines import SamplerOutput
from workflow.collocation.telemetry.sources import ACTIVITY_METRICS, GPU_METRICS

IDLE = ("power", "temperature", "sm_clock", "memory_used")
RATES = [metric.name for metric in GPU_METRICS if metric.kind == "rate"]
MEANS = [m.name for m in GPU_METRICS if m.kind != "counter" and m.name != "throttle"]

LEAST_GAP_S, GAP_TICKS = 0.5, 3  # a longer stretch without a row is a hole
NEAR_NS = 500_000_000  # how far a pair or an edge may lie from its window's ends
STAY_S = 2.0  # several looks at the card's processes (watch.SLOW_HZ), also where one comes late
CHECKED_S = 2.0  # in a shorter window, its ends weigh too much for a check
APART, APART_SHARE = (
    0.02,
    0.002,
)  # of a pair's value and its series' mean: relative, and absolute
ENERGY_APART = 0.03  # relative
COVERED = 0.9  # of the time, for a series to be held against a pair

# NVML's clocks event reasons (nvmlClocksEventReason…), from bit 1 on.
REASONS = ("applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost")
REASONS += ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
REASONS += ("display_clock_setting",)
THROTTLING = {name for name in REASONS if name.startswith("hw_") or "thermal" in name}

Reasons = dict[tuple[str, str], str]  # by (entity, metric)


@dataclass
class TelemetrySummary:
    """The telemetry of one cell, from what its sampler wrote.

    has_gpu: whether the cell had one. sm_count: SMs of the whole card. instances: SMs by MIG
    entity, {} without MIG; None where unknown. seats: the entity that each member runs on. own:
    PIDs under which NVML may list what the cell started. owner: a PID's process, in words.
    """

    output: SamplerOutput
    windows: list[Window]
    has_gpu: bool
    sm_count: int | None = None
    instances: dict[str, int | None] = field(default_factory=dict)
    seats: dict[int, str] = field(default_factory=dict)
    own: Set[int] = frozenset()
    owner: Callable[[int], str] = "PID {}".format

    def __post_init__(self):
        self.head, self.source = self.output.head, self.output.head.get("source")
        names = ("gpu", *self.instances) if self.has_gpu else ()
        self.entities = {name: _series(self.output.gpu, GPU_METRICS, e=name) for name in names}
        self.gpu = self.entities.get("gpu", _series([], GPU_METRICS))
        self.host = _series(self.output.host, host.HOST_METRICS)
        # The first of each name: a probe builds members more than once.
        self.phases = {name: start_ns for start_ns, name in reversed(self.output.phases)}
        self.idle = self._idle()

    def telemetry(self) -> tuple[record.Telemetry, list[str]]:
        """The record's `telemetry`, and the flags that follow from it."""
        windows, disagree, energy_disagrees = {}, [], []
        for window in self.windows:
            wrong = self._wrong(window)
            windows[window.name] = self._window(window, wrong)
            for (entity, name), reason in (self._apart(window) | wrong).items():
                disagree.append(f"{window.name}, {entity}: {name} {reason}")
            energy_disagrees += self._energy_problems(window, windows[window.name].energy)
        throttled, strangers, reason = self._throttled(), self._strangers(), self._incomplete()
        flags = {
            "telemetry_incomplete": reason,
            "telemetry_disagrees": disagree,
            "energy_disagrees": energy_disagrees,
            "throttled": THROTTLING & throttled.keys(),
            "power_capped": "sw_power_cap" in throttled,
            "shared_gpu": strangers,
        }
        telemetry = record.Telemetry(
            status="incomplete" if reason else "complete",
            reason=reason,
            source=self.source,
            hz=self.head.get("hz"),
            idle=self.idle,
            windows=windows,
            disagree=disagree + energy_disagrees,
            throttled=throttled,
            strangers=strangers,
            sampler={name: value for name, value in self.output.end.items() if name != "t"},
        )
        return telemetry, [flag for flag, reason in flags.items() if reason]

    def _window(self, window: Window, wrong: Reasons) -> record.WindowTelemetry:
        """wrong: values that cannot be right, which become None."""
        means, headlines = {}, {}
        for entity, series in self.entities.items():
            # An instance has rates only.
            means[entity] = _means(series, MEANS if entity == "gpu" else RATES, window)
            headlines[entity] = dict(means[entity])
            # Pairs of samples are of all conditions, so slices have none.
            if self.source == "gpm" and not window.spans:
                pair = self._pair(entity, window).get("v", {})
                headlines[entity] |= {name: pair.get(name) for name in RATES}
        for entity, name in wrong:
            headlines[entity][name] = None
        return record.WindowTelemetry(
            seconds=window.seconds,
            entities=headlines,
            series=means,
            energy=self._energy(window),
            members=self._members(window),
            host=_if_any(_means(self.host, self.host.columns, window)),
            whole_card=self._whole_card(headlines),
        )

    def _members(self, window: Window) -> dict[str, dict]:
        """Means of each member that a window is of, and where it ran."""
        members = {}
        for member in sorted({row["m"] for row in self.output.members}):
            series = _series(self.output.members, host.MEMBER_METRICS, m=member)
            means = _if_any(_means(series, series.columns, window))
            if means and window.has(member):
                members[str(member)] = {"entity": self.seats.get(member)} | means
        return members

    def _pair(self, entity: str, window: Window) -> dict:
        """The line of the pair of samples that spans the window; {} without one."""
        for span in self.output.spans:
            if (span["name"], span["e"]) == (window.name, entity):
                return span if _near((span["start_ns"], span["end_ns"]), window) else {}
        return {}

    def _whole_card(self, headlines: dict[str, Values]) -> Values:
        """Means of the instances' activity, weighted by their SMs over those of the card, or of all
        instances where the card's are not known. A value that one of them lacks is missing.
        """
        sms = self.instances
        if not sms or None in sms.values():
            return {}
        total = self.sm_count or sum(sms.values())
        values: Values = {"sm_count": total}
        for name in ACTIVITY_METRICS:
            parts = [headlines[entity].get(name) for entity in sms]
            known = None not in parts
            values[name] = float(np.dot(parts, [*sms.values()])) / total if known else None
        return values

    def _idle(self) -> Values:
        """Means from the first row to the first member's building."""
        if not len(self.gpu.t):
            return {}
        ends = int(self.gpu.t[0]), self.phases.get("build", int(self.gpu.t[-1]))
        values = _if_any({name: self.gpu.over(name, ends) for name in IDLE})
        return values and {"seconds": (ends[1] - ends[0]) / 1e9} | values

    def _edges(self, window: Window) -> list[tuple[int, float] | None]:
        """(time, J) at which the energy counter changed at the window's start and end."""
        marks = {mark["name"]: mark["energy"] for mark in self.output.marks}
        return [marks.get(f"{window.name}:{end}") for end in ("open", "close")]

    def _counter_fell(self, window: Window) -> bool:
        """Whether the energy counter did what no counter does."""
        ends = [edge[1] for edge in self._edges(window) if edge]
        readings = self.gpu.readings("energy", window.pieces)
        return any((np.diff(values) < 0).any() for values in (ends, readings))

    def _energy(self, window: Window) -> record.Energy | None:
        edges = self._edges(window)
        if None in edges:
            return None
        (start_ns, before), (end_ns, after) = edges
        seconds = (end_ns - start_ns) / 1e9
        if not _near((start_ns, end_ns), window) or seconds <= 0 or self._counter_fell(window):
            return None
        power = (after - before) / seconds
        energy = record.Energy(joules=power * window.seconds, seconds=seconds, mean_power=power)
        if self.gpu.longest_gap(window.ends) <= self._longest_gap("hz"):
            energy.integrated_joules = self.gpu.integral("power", window.ends)
        return energy

    def _energy_problems(self, window: Window, energy: record.Energy | None) -> Iterator[str]:
        """Sentences: the counter fell, or it and the integrated power readings differ by more than
        ENERGY_APART and by more than three standard errors of the readings' mean.
        """
        if self._counter_fell(window):
            yield f"{window.name}: the GPU's energy counter fell"
        if not energy or energy.integrated_joules is None or window.seconds < CHECKED_S:
            return
        joules, integrated = energy.joules, energy.integrated_joules
        readings = self.gpu.readings("power", [window.ends])
        scatter = 3 * readings.std() / len(readings) ** 0.5 * window.seconds
        if abs(joules - integrated) > max(ENERGY_APART * joules, scatter):
            yield (
                f"{window.name}: {joules:.1f} J by the GPU's counter and {integrated:.1f} J by its "
                "power readings"
            )

    def _longest_gap(self, rate: str) -> float:
        """The longest time (s) between rows at this rate ("hz", "slow_hz") that is no hole."""
        return max(LEAST_GAP_S, GAP_TICKS / self.head.get(rate, 1))

    def _incomplete(self) -> str | None:
        """Why telemetry is not all that it should be, in one sentence, or None."""
        reasons = [self.output.problem] if self.output.problem else []
        if self.has_gpu and not reasons and self.source is None:
            reasons.append(f"the GPU could not be read: {self.head.get('why')}")
        for window in self.windows:
            reasons += [f"window '{window.name}': {hole}" for hole in self._holes(window)]
        if reasons:
            reasons += [f"{error['where']}: {error['message']}" for error in self.output.errors[:3]]
        return "; ".join(reasons) or None

    def _holes(self, window: Window) -> Iterator[str]:
        gap = self.host.longest_gap(window.ends)
        if gap > self._longest_gap("slow_hz"):
            yield f"nothing of the host {_duration(gap)}"
        if self.source is None:
            return
        names = ["power"] if self.source == "nvml" else COMPARED
        for entity in self.instances or self.entities:
            gap = self.entities[entity].longest_gap(window.ends, names)
            if gap > self._longest_gap("hz"):
                yield f"no {self.source} values of {entity} {_duration(gap)}"
            elif self.source == "gpm" and not (window.spans or self._pair(entity, window)):
                yield f"no pair of samples of {entity} spans it"

    def _wrong(self, window: Window) -> Reasons:
        """Why values cannot be right."""
        readings, pairs = {}, {}
        for entity, series in self.entities.items():
            pairs[entity] = self._pair(entity, window).get("v", {})
            readings[entity] = {
                name: series.weighted_values(name, window.ends, window.spans)[0]
                for name in (*SHARES, "power")
            }
        return contradictions(readings, pairs, self.idle.get("power"))

    def _apart(self, window: Window) -> Reasons:
        """How a pair's value and the mean of its series over the same time differ."""
        reasons = {}
        for entity, series in self.entities.items():
            span = self._pair(entity, window)
            if not span or window.seconds < CHECKED_S:
                continue
            for name in COMPARED:
                pair = span["v"].get(name)
                mean = series.over(name, (span["start_ns"], span["end_ns"]), min_coverage=COVERED)
                if None in (pair, mean) or abs(pair - mean) <= max(APART * pair, APART_SHARE):
                    continue
                reasons[entity, name] = (
                    f"is {pair:.4f} by the pair of samples and {mean:.4f} by the series"
                )
        return reasons

    def _throttled(self) -> dict[str, float]:
        """Share of all windows' samples in which a reason held the clocks down, by reason."""
        pieces = [piece for window in self.windows for piece in window.pieces]
        masks = self.gpu.readings("throttle", pieces).astype(np.int64)
        shares = {}
        for bit, name in enumerate(REASONS, start=1):
            active = masks & 1 << bit != 0
            if active.any():
                shares[name] = float(active.mean())
        return shares

    def _strangers(self) -> list[str] | None:
        """Who stayed on the card between the barrier and the end of the last window and is not
        ours; None where none of ours is recognised, as in a container that shows the host's PIDs.

        For a single look, processes that start on another GPU can be in the list of this one.
        """
        if not self.windows:
            return None
        start = self.phases.get("window", self.windows[0].start_ns)
        end = max(window.end_ns for window in self.windows)
        looks = self.output.seen
        stayed_ns = Counter()  # by PID
        next_looks = [*(look["t"] for look in looks[1:]), end]
        for look, next_look_ns in zip(looks, next_looks, strict=False):
            if look["t"] < end and next_look_ns >= start:
                for pid in {*(look["compute"] or []), *(look["mps"] or [])}:
                    stayed_ns[pid] += min(next_look_ns, end) - look["t"]
        if not stayed_ns.keys() & self.own:
            return None
        strangers = [pid for pid, ns in stayed_ns.items() if ns >= STAY_S * 1e9]
        return [self.owner(pid) for pid in sorted(strangers) if pid not in self.own]


def _series(rows: list[dict], metrics: tuple[Metric, ...], **fields) -> Series:
    """The series of the rows in which these fields have these values."""
    rates = [metric.name for metric in metrics if metric.kind == "rate"]
    rows = [row for row in rows if fields.items() <= row.items()]
    return Series.of_rows(rows, [metric.name for metric in metrics], rates)


def _means(series: Series, names: Iterable[str], window: Window) -> Values:
    return {name: series.over(name, window.ends, window.spans) for name in names}


def _if_any(values: Values) -> Values:
    """The values, or {} where none of them is known."""
    return values if any(value is not None for value in values.values()) else {}


def _near(ends: tuple[int, int], window: Window) -> bool:
    return max(abs(ends[0] - window.start_ns), abs(ends[1] - window.end_ns)) <= NEAR_NS


def _duration(seconds: float) -> str:
    return f"for {seconds:.1f} s" if math.isfinite(seconds) else "at all"
