"""From the sampler's lines to what a cell's record says: headline values, checks, flags.

Pure: nothing is read but the arguments. A value that is missing is None.

A headline comes from one pair of GPM samples that spans the window; the series must agree with it.
Of slices that alternate there is no such pair, and no energy: the series is all.
Energy is the GPU's own counter, which moves in steps: its mean power between two readings at the
very time it changed, times the window's length; the power readings, integrated, must agree.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pynvml

from workflow.collocation.record.values import (
    Energy,
    Sampler,
    Telemetry,
    Values,
    Window,
    WindowTelemetry,
)
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.series import Series
from workflow.collocation.telemetry.vocabulary import HOST_METRICS, MEMBER_METRICS, METRICS, Metric

ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama")
WHOLE_CARD = (*ACTIVITY, "fp16", "fp32", "fp64", "integer")  # ratios, which SMs can weight
IDLE = ("power", "temperature", "sm_clock", "memory_used")
RATES = [metric for metric in METRICS if metric.kind == "rate"]
MEANS = [m for m in METRICS if m.kind != "counter" and m.unit != "bitmask"]
MEMBER_MEANS = [m for m in MEMBER_METRICS if m.name not in ("threads", "processes")]

LEAST_GAP_S, GAP_TICKS = 0.5, 3  # a longer stretch without a row is a hole
NEAR_S = 0.5  # how far a pair or an edge may lie from its window's ends
STAY_S = 0.75  # more than one look at the card's processes (watch.SLOW_HZ)
CHECKED_S = 2.0  # in a shorter window, its ends weigh too much for a check
APART, APART_RATIO = 0.02, 0.002  # relative, and absolute for ratios
ENERGY_APART, ENERGY_ERRORS = 0.03, 3.0  # relative, and standard errors of the readings' mean
ERRORS_TOLD = 3
KNOWN = 0.9  # of the time, for a series to be held against a pair

# Bit of the clocks event reasons → its name.
REASONS = {
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "applications_clocks_setting",
    pynvml.nvmlClocksEventReasonSwPowerCap: "sw_power_cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal_slowdown",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake_slowdown",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display_clock_setting",
}
THROTTLING = {name for name in REASONS.values() if name.startswith("hw_") or "thermal" in name}


@dataclass(frozen=True)
class Facts:
    """What the lines do not say of a cell.

    gpu: whether it had one. sm_count: SMs of the whole card. instances: MIG entity → its SMs, {}
    without MIG; null where unknown. seats: member → the entity that it runs on. own: PIDs under
    which NVML may list what the cell started. owner: how sentences name the process of a PID.
    """

    gpu: bool
    sm_count: int | None = None
    instances: dict[str, int | None] = field(default_factory=dict)
    seats: dict[int, str] = field(default_factory=dict)
    own: frozenset[int] = frozenset()
    owner: Callable[[int], str] = "PID {}".format


class Summary:
    """The lines of one cell, by what they are about."""

    def __init__(self, lines: Lines, windows: list[Window], facts: Facts):
        self.lines, self.windows, self.facts = lines, windows, facts
        self.head = lines.head or {}
        self.source = self.head.get("source")
        self.entities = {
            entity: _series(RATES, lines.gpu, e=entity) for entity in ("gpu", *facts.instances)
        }
        self.gpu = self.entities["gpu"]
        self.members = {
            m: _series(MEMBER_METRICS, lines.members, m=m)
            for m in sorted({row["m"] for row in lines.members})
        }
        self.host = _series(HOST_METRICS, lines.host)
        self.phases = {name: t for t, name in lines.phases}
        self.energy = {mark["name"]: mark["energy"] for mark in lines.marks}
        self.pairs = {(span["name"], span["e"]): span for span in lines.spans}
        self.idle = self._idle()

    def telemetry(self) -> tuple[Telemetry, list[str]]:
        """What the record says of these windows, and the flags that follow."""
        found = {window.name: self._window(window) for window in self.windows}
        activity = [said for window in self.windows for said in self._disagree(window)]
        apart = (self._energy_apart(window, found[window.name].energy) for window in self.windows)
        energy = [said for said in apart if said]
        throttled, strangers = self._throttled(), self._strangers()
        reason = self._incomplete()
        flags = {
            "telemetry_incomplete": reason,
            "telemetry_disagrees": activity,
            "energy_disagrees": energy,
            "throttled": THROTTLING & throttled.keys(),
            "power_capped": "sw_power_cap" in throttled,
            "shared_gpu": strangers,
        }
        telemetry = Telemetry(
            status="incomplete" if reason else "complete",
            reason=reason,
            source=self.source,
            hz=self.head.get("hz"),
            idle=self.idle,
            windows=found,
            disagree=activity + energy,
            throttled=throttled,
            strangers=strangers,
            sampler=self._sampler(),
        )
        return telemetry, [flag for flag, why in flags.items() if why]

    # -- values -------------------------------------------------------------------------------

    def _window(self, window: Window) -> WindowTelemetry:
        entities = self.entities if self.facts.gpu else {}
        series = {
            # of an instance there are rates only
            entity: _means(self.entities[entity], MEANS if entity == "gpu" else RATES, window)
            for entity in entities
        }
        headlines = {entity: self._headlines(entity, window, series[entity]) for entity in series}
        theirs = {m: of for m, of in self.members.items() if window.has(m)}
        members = {m: _means(of, MEMBER_MEANS, window) for m, of in theirs.items()}
        host = _means(self.host, HOST_METRICS, window)
        return WindowTelemetry(
            seconds=window.seconds,
            entities=headlines,
            series=series,
            energy=self._energy(window) if self.facts.gpu else None,
            members={
                str(m): {"entity": self.facts.seats.get(m)} | values
                for m, values in members.items()
                if _any(values)
            },
            host=host if _any(host) else {},
            whole_card=self._whole_card(headlines),
        )

    def _headlines(self, entity: str, window: Window, series: Values) -> Values:
        values = dict(series)
        if window.spans:  # what only grows, and pairs of samples, are of all sides
            return values
        if self.source == "gpm":
            pair = self._pair(entity, window)
            values |= {metric.name: pair and pair["v"].get(metric.name) for metric in RATES}
        if entity == "gpu":
            for metric in METRICS:
                if metric.kind == "counter" and metric.name != "energy":  # told by _energy
                    values[metric.name] = self.gpu.growth(metric.name, *window.ends)
        return values

    def _pair(self, entity: str, window: Window) -> dict | None:
        """The span line of this window, if it does span it."""
        span = self.pairs.get((window.name, entity))
        if span is None:
            return None
        ends = zip((span["start_ns"], span["end_ns"]), window.ends, strict=True)
        return span if all(_near(one, other) for one, other in ends) else None

    def _energy(self, window: Window) -> Energy | None:
        opened = self._edge(f"{window.name}:open", window.start_ns)
        closed = self._edge(f"{window.name}:close", window.end_ns)
        if opened is None or closed is None or closed[0] <= opened[0] or closed[1] < opened[1]:
            return None
        (began, low), (ended, high) = opened, closed
        power = (high - low) / ((ended - began) / 1e9)
        joules, idle = power * window.seconds, self.idle.get("power")
        whole = self.gpu.longest_gap(*window.ends) <= self._limit("hz")
        return Energy(
            joules=joules,
            seconds=(ended - began) / 1e9,
            mean_power=power,
            idle_joules=None if idle is None else idle * window.seconds,
            above_idle_joules=None if idle is None else joules - idle * window.seconds,
            integrated_joules=self.gpu.integral("power", *window.ends) if whole else None,
        )

    def _edge(self, name: str, near: int) -> tuple[int, float] | None:
        """Time (ns) and joules of the counter at a window's opening or close."""
        found = self.energy.get(name)
        return found if found and _near(found[0], near) else None

    def _whole_card(self, headlines: dict[str, Values]) -> Values:
        """Σ value × SMs of the instance / SMs of the card, or of all instances where the card's are
        not known; a value that one of them lacks is missing.
        """
        sms = self.facts.instances
        if not sms or None in sms.values():
            return {}
        total = self.facts.sm_count or sum(sms.values())
        values: Values = {"sm_count": total}
        for name in WHOLE_CARD:
            parts = [headlines[entity].get(name) for entity in sms]
            known = None not in parts
            values[name] = float(np.dot(parts, [*sms.values()])) / total if known else None
        return values

    def _idle(self) -> Values:
        """Means from the first row to the first member's building."""
        if not len(self.gpu.t):
            return {}
        start, end = int(self.gpu.t[0]), self.phases.get("build", int(self.gpu.t[-1]))
        values = {name: self.gpu.mean(name, start, end) for name in IDLE}
        return {"seconds": (end - start) / 1e9} | values if _any(values) else {}

    # -- checks -------------------------------------------------------------------------------

    def _limit(self, which: str) -> float:
        """The longest gap (s) between rows taken at this rate ("hz", "slow_hz") that is none."""
        return max(LEAST_GAP_S, GAP_TICKS / self.head.get(which, 1))

    def _incomplete(self) -> str | None:
        """Why these telemetry values are not all that they should be, in one sentence, or None."""
        reasons = [self.lines.problem] if self.lines.problem else []
        if self.facts.gpu and not reasons and self.source is None:
            reasons.append(f"the GPU could not be read: {self.head.get('why')}")
        for window in self.windows:
            reasons += [f"window '{window.name}': {hole}" for hole in self._holes(window)]
        if reasons:
            errors = self.lines.errors[:ERRORS_TOLD]
            reasons += [f"{error['where']}: {error['message']}" for error in errors]
        return "; ".join(reasons) or None

    def _holes(self, window: Window) -> list[str]:
        found = []
        if (gap := self.host.longest_gap(*window.ends)) > self._limit("slow_hz"):
            found.append(f"nothing of the host {_for(gap)}")
        if not self.facts.gpu or self.source is None:
            return found
        if (gap := self.gpu.longest_gap(*window.ends)) > self._limit("hz"):
            return [*found, f"nothing of the GPU {_for(gap)}"]
        for entity in self.facts.instances or ["gpu"] if self.source != "nvml" else []:
            gap = self.entities[entity].longest_gap(*window.ends, any_of=ACTIVITY)
            if gap > self._limit("hz"):
                found.append(f"no {self.source} values of {entity} {_for(gap)}")
            elif self.source == "gpm" and not (window.spans or self._pair(entity, window)):
                found.append(f"no pair of samples of {entity} spans it")
        return found

    def _disagree(self, window: Window) -> list[str]:
        """Sentences: where the pair and the mean of the series over the same time differ."""
        found = []
        for entity, series in self.entities.items():
            span = self._pair(entity, window)
            if span is None or window.seconds < CHECKED_S:
                continue
            for name in ACTIVITY:
                pair = span["v"].get(name)
                mean = series.rate(name, span["start_ns"], span["end_ns"], KNOWN)
                if None not in (pair, mean) and _apart(pair, mean, APART, APART_RATIO):
                    found.append(
                        f"{window.name}, {entity}: {name} is {pair:.4f} by the pair of samples and "
                        f"{mean:.4f} by the series"
                    )
        return found

    def _energy_apart(self, window: Window, energy: Energy | None) -> str | None:
        """A sentence where the counter and the integrated power differ by more than ENERGY_APART
        and by more than ENERGY_ERRORS standard errors of the mean of the power readings: in a short
        window ten a second of a load that comes in spikes tell its mean less well.
        """
        if energy is None or energy.integrated_joules is None or window.seconds < CHECKED_S:
            return None
        readings = self.gpu.readings("power", *window.ends)
        error = readings.std(ddof=1) / len(readings) ** 0.5 if len(readings) > 1 else 0.0
        scatter = ENERGY_ERRORS * error * window.seconds
        if not _apart(energy.joules, energy.integrated_joules, ENERGY_APART, scatter):
            return None
        return (
            f"{window.name}: {energy.joules:.1f} J by the GPU's counter and "
            f"{energy.integrated_joules:.1f} J by its power readings"
        )

    def _throttled(self) -> dict[str, float]:
        """Reason → share of all windows' samples in which it held the clocks down."""
        pieces = [piece for window in self.windows for piece in window.pieces]
        parts = [self.gpu.readings("throttle", *piece) for piece in pieces]
        masks = np.concatenate([[], *parts]).astype(np.int64)
        if not len(masks):
            return {}
        shares = {name: float(np.mean(masks & bit != 0)) for bit, name in REASONS.items()}
        return {name: share for name, share in shares.items() if share > 0}

    def _strangers(self) -> list[str] | None:
        """Who stayed on the card between the barrier and the end of the last window that are not
        ours; None where none of ours is recognised, as in a container that shows the host's PIDs.

        For a single look, processes that start on another GPU can be in the list of this one.
        """
        if not self.windows:
            return None
        start = self.phases.get("window", self.windows[0].start_ns)
        end = max(window.end_ns for window in self.windows)
        before = [row for row in self.lines.seen if row["t"] < start]
        in_force = before[-1:] + [row for row in self.lines.seen if start <= row["t"] < end]
        stayed = Counter()  # PID → ns
        for row, until in zip(in_force, [*(row["t"] for row in in_force[1:]), end], strict=False):
            for pid in {*(row["compute"] or []), *(row["mps"] or [])}:
                stayed[pid] += until - row["t"]
        if not stayed.keys() & self.facts.own:
            return None
        strangers = (pid for pid in stayed.keys() - self.facts.own if stayed[pid] >= STAY_S * 1e9)
        return [self.facts.owner(pid) for pid in sorted(strangers)]

    def _sampler(self) -> Sampler:
        end = self.lines.end or {}
        took = {f"tick_ms_{rank}": ms for rank, ms in end.get("tick_ms", {}).items()}
        told = {name: end.get(name) for name in ("ticks", "skipped", "cpu_s")}
        main = self.gpu if self.facts.gpu else self.host
        gap = max((main.longest_gap(*window.ends) for window in self.windows), default=math.inf)
        return Sampler(longest_gap_s=gap if math.isfinite(gap) else None, **told, **took)


def _series(metrics: Iterable[Metric], rows: list[dict], **only: str | int) -> Series:
    """The rows that have these values in their keys."""
    found = [row for row in rows if all(row[key] == value for key, value in only.items())]
    return Series(found, [metric.name for metric in metrics if metric.kind == "rate"])


def _means(series: Series, metrics: Iterable[Metric], window: Window) -> Values:
    return {m.name: series.over(m.name, window.ends, window.spans) for m in metrics}


def _near(one: int, other: int) -> bool:
    return abs(one - other) / 1e9 <= NEAR_S


def _apart(one: float, other: float, relative: float, absolute: float) -> bool:
    difference = abs(one - other)
    return difference > relative * max(abs(one), abs(other)) and difference > absolute


def _for(seconds: float) -> str:
    return f"for {seconds:.1f} s" if math.isfinite(seconds) else "at all"


def _any(values: Values) -> bool:
    return any(value is not None for value in values.values())
