"""From the sampler's lines to what a cell's record says: values of windows, checks, flags.

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

from workflow.collocation.record.series import MOST, SHARES, Series
from workflow.collocation.record.values import (
    Energy,
    Sampler,
    Telemetry,
    Values,
    Window,
    WindowTelemetry,
)
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.metrics import HOST_METRICS, MEMBER_METRICS, METRICS, Metric

ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama")
WHOLE_CARD = (*ACTIVITY, "fp16", "fp32", "fp64", "integer")  # shares, which SMs can weight
IDLE = ("power", "temperature", "sm_clock", "memory_used")
RATES = [metric.name for metric in METRICS if metric.kind == "rate"]
COUNTERS = ("power_violation", "thermal_violation")  # energy has its own way
MEANS = [m.name for m in METRICS if m.kind != "counter" and m.name != "throttle"]

LEAST_GAP_S, GAP_TICKS = 0.5, 3  # a longer stretch without a row is a hole
NEAR_NS = 500_000_000  # how far a pair or an edge may lie from its window's ends
STAY_S = 0.75  # more than one look at the card's processes (watch.SLOW_HZ)
CHECKED_S = 2.0  # in a shorter window, its ends weigh too much for a check
APART, APART_SHARE = 0.02, 0.002  # relative, and absolute
ENERGY_APART = 0.03  # relative
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


def means(series: Series, names: Iterable[str], window: Window) -> Values:
    """Of these columns over a window, for the cell that measures and for whoever checks it."""
    return {name: series.over(name, window.ends, window.spans) for name in names}


class Summary:
    """The lines of one cell, by what they are about."""

    def __init__(self, lines: Lines, windows: list[Window], facts: Facts):
        self.lines, self.windows, self.facts = lines, windows, facts
        self.head = lines.head or {}
        self.source = self.head.get("source")
        names = [metric.name for metric in METRICS]
        self.entities = {
            entity: Series.of_rows([row for row in lines.gpu if row["e"] == entity], names, RATES)
            for entity in (("gpu", *facts.instances) if facts.gpu else ())
        }
        self.gpu = self.entities.get("gpu")
        self.members = {
            m: _series([row for row in lines.members if row["m"] == m], MEMBER_METRICS)
            for m in sorted({row["m"] for row in lines.members})
        }
        self.host = _series(lines.host, HOST_METRICS)
        self.pairs = {(span["name"], span["e"]): span for span in lines.spans}
        self.edges = {mark["name"]: mark["energy"] for mark in lines.marks}
        self.phases = {name: t for t, name in lines.phases}
        self.idle = self._idle()

    def telemetry(self) -> tuple[Telemetry, list[str]]:
        """What the record says of these windows, and the flags that follow."""
        found = {window.name: self._window(window) for window in self.windows}
        disagree = [said for window in self.windows for said in self._disagree(window)]
        energy = [said for w in self.windows for said in self._energy_apart(w, found[w.name])]
        throttled, strangers, reason = self._throttled(), self._strangers(), self._incomplete()
        flags = {
            "telemetry_incomplete": reason,
            "telemetry_disagrees": disagree,
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
            disagree=disagree + energy,
            throttled=throttled,
            strangers=strangers,
            sampler=self._sampler(),
        )
        return telemetry, [flag for flag, why in flags.items() if why]

    # -- values -------------------------------------------------------------------------------

    def _window(self, window: Window) -> WindowTelemetry:
        series = {
            # of an instance there are rates only
            entity: means(of, MEANS if entity == "gpu" else RATES, window)
            for entity, of in self.entities.items()
        }
        headlines = {
            entity: values | self._headlines(entity, window) for entity, values in series.items()
        }
        members = {m: means(of, of.columns, window) for m, of in self.members.items()}
        host = means(self.host, self.host.columns, window)
        return WindowTelemetry(
            seconds=window.seconds,
            entities=headlines,
            series=series,
            energy=self._energy(window),
            members={
                str(m): {"entity": self.facts.seats.get(m)} | values
                for m, values in members.items()
                if window.has(m) and _any(values)
            },
            host=host if _any(host) else {},
            whole_card=self._whole_card(headlines),
        )

    def _headlines(self, entity: str, window: Window) -> Values:
        """What is known better than by the mean of the series. Of slices nothing is: what only
        grows, and pairs of samples, are of all sides.
        """
        values: Values = {}
        if self.source == "gpm" and not window.spans:
            pair = (self._pair(entity, window) or {}).get("v", {})
            values |= {name: _possible(name, pair.get(name)) for name in RATES}
        if entity == "gpu" and not window.spans:
            values |= {name: self.gpu.growth(name, window.ends) for name in COUNTERS}
        return values

    def _pair(self, entity: str, window: Window) -> dict | None:
        """The span line of this window, if it does span it."""
        span = self.pairs.get((window.name, entity))
        near = span and _near((span["start_ns"], span["end_ns"]), window)
        return span if near else None

    def _energy(self, window: Window) -> Energy | None:
        opened = self.edges.get(f"{window.name}:open")
        closed = self.edges.get(f"{window.name}:close")
        if not (opened and closed):
            return None
        (began, low), (ended, high) = opened, closed
        if not _near((began, ended), window) or ended <= began or high < low:
            return None
        power = (high - low) / ((ended - began) / 1e9)
        joules, idle = power * window.seconds, self.idle.get("power")
        whole = self.gpu.longest_gap(window.ends) <= self._limit("hz")
        return Energy(
            joules=joules,
            seconds=(ended - began) / 1e9,
            mean_power=power,
            idle_joules=None if idle is None else idle * window.seconds,
            above_idle_joules=None if idle is None else joules - idle * window.seconds,
            integrated_joules=self.gpu.integral("power", window.ends) if whole else None,
        )

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
        if self.gpu is None or not len(self.gpu.t):
            return {}
        ends = int(self.gpu.t[0]), self.phases.get("build", int(self.gpu.t[-1]))
        values = {name: self.gpu.over(name, ends) for name in IDLE}
        return {"seconds": (ends[1] - ends[0]) / 1e9} | values if _any(values) else {}

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
            reasons += [f"{error['where']}: {error['message']}" for error in self.lines.errors[:3]]
        return "; ".join(reasons) or None

    def _holes(self, window: Window) -> list[str]:
        found = []
        if (gap := self.host.longest_gap(window.ends)) > self._limit("slow_hz"):
            found.append(f"nothing of the host {_for(gap)}")
        if self.gpu is None or self.source is None:
            return found
        told = ["power"] if self.source == "nvml" else ACTIVITY
        for entity in self.facts.instances or ["gpu"]:
            gap = self.entities[entity].longest_gap(window.ends, told)
            if gap > self._limit("hz"):
                found.append(f"no {self.source} values of {entity} {_for(gap)}")
            elif self.source == "gpm" and not (window.spans or self._pair(entity, window)):
                found.append(f"no pair of samples of {entity} spans it")
        return found

    def _disagree(self, window: Window) -> list[str]:
        """Sentences: shares above 1, and where the pair and the mean of the series over the same
        time differ.
        """
        found = []
        for entity, series in self.entities.items():
            place, span = f"{window.name}, {entity}", self._pair(entity, window)
            for name in SHARES:
                pair = span and span["v"].get(name)
                high = max(pair or 0.0, series.highest(name, window.ends, window.spans))
                if high > MOST:
                    found.append(f"{place}: {name} reads {high:.4f}, and no share is above 1")
                elif pair is not None and name in ACTIVITY and window.seconds >= CHECKED_S:
                    mean = series.over(name, (span["start_ns"], span["end_ns"]), known=KNOWN)
                    if mean is not None and abs(pair - mean) > max(APART * pair, APART_SHARE):
                        found.append(
                            f"{place}: {name} is {pair:.4f} by the pair of samples and "
                            f"{mean:.4f} by the series"
                        )
        return found

    def _energy_apart(self, window: Window, found: WindowTelemetry) -> list[str]:
        """A sentence where the counter and the integrated power readings differ by more than
        ENERGY_APART and by more than three standard errors of the readings' mean.
        """
        energy = found.energy
        if energy is None or energy.integrated_joules is None or window.seconds < CHECKED_S:
            return []
        joules, integrated = energy.joules, energy.integrated_joules
        readings = self.gpu.readings("power", [window.ends])
        scatter = 3 * readings.std() / len(readings) ** 0.5 * window.seconds
        if abs(joules - integrated) <= max(ENERGY_APART * joules, scatter):
            return []
        said = f"{joules:.1f} J by the GPU's counter and {integrated:.1f} J by its power readings"
        return [f"{window.name}: {said}"]

    def _throttled(self) -> dict[str, float]:
        """Reason → share of all windows' samples in which it held the clocks down."""
        if self.gpu is None or not self.windows:
            return {}
        pieces = [piece for window in self.windows for piece in window.pieces]
        masks = self.gpu.readings("throttle", pieces).astype(np.int64)
        held = {name: masks & bit != 0 for bit, name in REASONS.items()}
        return {name: float(there.mean()) for name, there in held.items() if there.any()}

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
        main = self.host if self.gpu is None else self.gpu
        gap = max((main.longest_gap(window.ends) for window in self.windows), default=math.inf)
        return Sampler(longest_gap_s=gap if math.isfinite(gap) else None, **told, **took)


def _series(rows: list[dict], metrics: tuple[Metric, ...]) -> Series:
    rates = [metric.name for metric in metrics if metric.kind == "rate"]
    return Series.of_rows(rows, [metric.name for metric in metrics], rates)


def _possible(name: str, value: float | None) -> float | None:
    """None for a share above 1."""
    return None if value is not None and name in SHARES and value > MOST else value


def _near(ends: tuple[int, int], window: Window) -> bool:
    return max(abs(ends[0] - window.start_ns), abs(ends[1] - window.end_ns)) <= NEAR_NS


def _for(seconds: float) -> str:
    return f"for {seconds:.1f} s" if math.isfinite(seconds) else "at all"


def _any(values: Values) -> bool:
    return any(value is not None for value in values.values())
