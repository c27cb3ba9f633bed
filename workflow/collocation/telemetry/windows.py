"""From the sampler's lines to what a cell's record says: headline values, checks, flags.

Pure: nothing is read but the arguments. A value that is missing, or no number, is None.

A headline comes from one pair of GPM samples that spans the window; the series must agree with it.
Energy is the GPU's own counter, which moves in steps: its mean power between two readings at the
very time it changed, times the window's length; the power readings, integrated, must agree.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pynvml

from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.values import (
    Energy,
    Sampler,
    Telemetry,
    Values,
    Window,
    WindowTelemetry,
)
from workflow.collocation.telemetry.vocabulary import METRICS

PAIRED = ("gpm",)  # the sources of which a pair of samples spans a window
RATES = tuple(metric.name for metric in METRICS if metric.kind == "rate")
ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama")
WHOLE_CARD = (*ACTIVITY, "fp16", "fp32", "fp64", "integer")  # ratios, which SMs can weight
IDLE = ("power", "temperature", "sm_clock", "memory_used")
MEMBER_RATES = ("cpu", "read", "write")
MEMBER_GAUGES = ("rss", "gpu_memory")
HOST_RATES = ("cpu_busy", "cpu_stolen", "disk_read", "disk_write")
HOST_GAUGES = ("memory_used", "memory_available", "load1")

LEAST_GAP_S, GAP_TICKS = 0.5, 3  # a longer stretch without a row is a hole
NEAR_S = 0.5  # how far a pair or an edge may lie from its window's ends
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
THROTTLING = {
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
}


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

    @property
    def entities(self) -> list[str]:
        return ["gpu", *self.instances] if self.gpu else []


class Series:
    """Rows of one thing over time. Times are ns; a value that is missing is NaN in here.

    rates: the columns that are means since the row before that has any of them.
    """

    def __init__(self, rows: Iterable[dict], rates: Iterable[str] = ()):
        self.rows, self.rates = list(rows), tuple(rates)
        self.t = np.array([row["t"] for row in self.rows], np.int64)
        self._columns: dict[str, np.ndarray] = {}

    def column(self, name: str) -> np.ndarray:
        if name not in self._columns:
            values = [number(row["v"].get(name)) for row in self.rows]
            self._columns[name] = np.array(values, float)
        return self._columns[name]

    @cached_property
    def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows that have rates, by index, and what they are means over: from and to (ns)."""
        rows = np.flatnonzero(self.known(self.rates))
        since = np.concatenate([np.maximum(rows[:1] - 1, 0), rows[:-1]])
        return rows, self.t[since], self.t[rows]

    def known(self, any_of: Iterable[str]) -> np.ndarray:
        """Whether each row has any of these columns."""
        there = [np.isfinite(self.column(name)) for name in any_of]
        return np.any(there, axis=0) if there else np.zeros(len(self.t), bool)

    def inside(self, start: int, end: int) -> np.ndarray:
        return (self.t >= start) & (self.t < end)

    def mean(self, name: str, start: int, end: int) -> float | None:
        """Of the readings in [start, end)."""
        values = self.column(name)[self.inside(start, end)]
        values = values[np.isfinite(values)]
        return float(values.mean()) if len(values) else None

    def error(self, name: str, start: int, end: int) -> float | None:
        """Standard error of `mean`, as if the readings were independent; None of fewer than two."""
        values = self.column(name)[self.inside(start, end)]
        values = values[np.isfinite(values)]
        return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None

    def rate(self, name: str, start: int, end: int, known: float = 0.0) -> float | None:
        """Mean over [start, end); None where no more than `known` of that time is covered."""
        rows, since, until = self.spans
        values = self.column(name)[rows]
        overlap = np.minimum(until, end) - np.maximum(since, start)
        weights = np.where(np.isfinite(values), np.maximum(overlap, 0), 0)
        if weights.sum() <= known * (end - start):
            return None
        return float(np.average(np.nan_to_num(values), weights=weights))

    def growth(self, name: str, start: int, end: int) -> float | None:
        """Of a counter over [start, end), straight between readings."""
        found = self._around(name, start, end)
        return float(found[1][-1] - found[1][0]) if found else None

    def integral(self, name: str, start: int, end: int) -> float | None:
        """Of a reading over [start, end), by trapezoids, in its unit times s."""
        found = self._around(name, start, end)
        if found is None:
            return None
        t, values = found
        return float(np.sum(np.diff(t) / 1e9 * (values[1:] + values[:-1]) / 2))

    def _around(self, name: str, start: int, end: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The readings in (start, end) with one at each end, times since start; None unless there
        are some before or at both.
        """
        values = self.column(name)
        there = np.isfinite(values)
        t, values = self.t[there] - start, values[there]
        within = (t > 0) & (t < end - start)
        if not len(t) or (not within.any() and (t[0] > 0 or t[-1] < end - start)):
            return None
        at = np.concatenate([[0], t[within], [end - start]])
        return at, np.interp(at, t, values)

    def longest_gap(self, start: int, end: int, any_of: Iterable[str] = ()) -> float:
        """Most seconds in [start, end) without a row; with `any_of`, one that knows one of these.

        Where no row lies inside, those around it count; infinite where none was before, either.
        """
        t = self.t[self.known(any_of)] if any_of else self.t
        inside, before, after = t[(t >= start) & (t < end)], t[t < start], t[t >= end]
        if len(inside):
            points = [start, *inside, end]
        elif len(before):
            points = [before[-1], after[0] if len(after) else end]
        else:
            return math.inf
        return float(np.diff(points).max()) / 1e9


def number(value) -> float:
    """`value` as a float; NaN for what is missing or none."""
    return float(value) if isinstance(value, int | float) else math.nan


def summarise(lines: Lines, windows: list[Window], facts: Facts) -> tuple[Telemetry, list[str]]:
    """What the record says of these windows, and the flags that follow."""
    return Summary(lines, windows, facts).telemetry()


class Summary:
    """The lines of one cell, by what they are about."""

    def __init__(self, lines: Lines, windows: list[Window], facts: Facts):
        self.lines, self.windows, self.facts = lines, windows, facts
        self.head = lines.head or {}
        self.entities = {
            entity: Series((row for row in lines.gpu if row["e"] == entity), RATES)
            for entity in facts.entities
        }
        indices = sorted({row["m"] for row in lines.members})
        timed = [row for row in lines.members if "w" not in row]  # the others hold PSS only
        self.members = {
            m: Series((row for row in timed if row["m"] == m), MEMBER_RATES) for m in indices
        }
        self.host = Series(lines.host, HOST_RATES)
        self.phases = phases(lines)

    def telemetry(self) -> tuple[Telemetry, list[str]]:
        found = {window.name: self._window(window) for window in self.windows}
        activity = [said for window in self.windows for said in self._disagree(window)]
        energy = [said for window in self.windows for said in self._energy_apart(window, found)]
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
            source=self.head.get("source"),
            hz=self.head.get("hz"),
            idle=self._idle(),
            windows=found,
            disagree=activity + energy,
            throttled=throttled,
            strangers=strangers,
            sampler=self._sampler(),
        )
        return telemetry, [flag for flag, why in flags.items() if why]

    # -- values -------------------------------------------------------------------------------

    def _window(self, window: Window) -> WindowTelemetry:
        start, end = window.start_ns, window.end_ns
        series = {entity: self._series(entity, start, end) for entity in self.entities}
        headlines = {entity: self._headlines(entity, window, series[entity]) for entity in series}
        members = {m: self._member(m, window) for m in self.members}
        host = {name: self.host.rate(name, start, end) for name in HOST_RATES}
        host |= {name: self.host.mean(name, start, end) for name in HOST_GAUGES}
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

    def _series(self, entity: str, start: int, end: int) -> Values:
        """Means of the series. Of an instance there are rates only; a bitmask has no mean, and a
        counter none either.
        """
        series, values = self.entities[entity], {}
        for metric in METRICS:
            if metric.kind == "rate":
                values[metric.name] = series.rate(metric.name, start, end)
            elif metric.kind == "gauge" and metric.unit != "bitmask" and entity == "gpu":
                values[metric.name] = series.mean(metric.name, start, end)
        return values

    def _headlines(self, entity: str, window: Window, series: Values) -> Values:
        values = dict(series)
        if self.head.get("source") in PAIRED:
            pair = (self._pair(entity, window) or {"v": {}})["v"]
            values |= {name: _known(number(pair.get(name))) for name in RATES}
        if entity == "gpu":
            for metric in METRICS:
                if metric.kind == "counter" and metric.name != "energy":  # told by _energy
                    growth = self.entities["gpu"].growth(
                        metric.name, window.start_ns, window.end_ns
                    )
                    values[metric.name] = growth
        return values

    def _pair(self, entity: str, window: Window) -> dict | None:
        """The span line of this window, if it does span it."""
        for span in self.lines.spans:
            if (span["name"], span["e"]) == (window.name, entity):
                ends = (span["start_ns"], window.start_ns), (span["end_ns"], window.end_ns)
                if all(abs(one - other) / 1e9 <= NEAR_S for one, other in ends):
                    return span
        return None

    def _energy(self, window: Window) -> Energy | None:
        edges = [self._edge(window.name, "open", window.start_ns)]
        edges.append(self._edge(window.name, "close", window.end_ns))
        if None in edges:
            return None
        (began, low), (ended, high) = edges
        if ended <= began or high < low:
            return None
        power = (high - low) / ((ended - began) / 1e9)
        joules, idle = power * window.seconds, self._idle().get("power")
        idle_joules = None if idle is None else idle * window.seconds
        integrated = None
        if self.entities["gpu"].longest_gap(window.start_ns, window.end_ns) <= self._limit("hz"):
            integrated = self.entities["gpu"].integral("power", window.start_ns, window.end_ns)
        return Energy(
            joules=joules,
            seconds=(ended - began) / 1e9,
            mean_power=power,
            idle_joules=idle_joules,
            above_idle_joules=None if idle is None else joules - idle_joules,
            integrated_joules=integrated,
        )

    def _edge(self, name: str, which: str, near: int) -> tuple[int, float] | None:
        """Time (ns) and joules of the counter at a window's opening or close."""
        for mark in self.lines.marks:
            if mark["name"] == f"{name}:{which}" and mark.get("energy"):
                at, joules = mark["energy"]
                if math.isfinite(number(joules)) and abs(at - near) / 1e9 <= NEAR_S:
                    return at, joules
        return None

    def _member(self, member: int, window: Window) -> Values:
        series, ends = self.members[member], (window.start_ns, window.end_ns)
        values = {name: series.rate(name, *ends) for name in MEMBER_RATES}
        values |= {name: series.mean(name, *ends) for name in MEMBER_GAUGES}
        values["pss"] = None
        for row in self.lines.members:  # looked at once, after the window had closed
            if row["m"] == member and row.get("w") == window.name:
                values["pss"] = _known(number(row["v"].get("pss")))
        return values

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
            values[name] = (
                None
                if None in parts
                else sum(p * n for p, n in zip(parts, sms.values(), strict=True)) / total
            )
        return values

    def _idle(self) -> Values:
        """Means from the first row to the first member's building."""
        if "gpu" not in self.entities or not len(self.entities["gpu"].t):
            return {}
        series, until = self.entities["gpu"], {name: t for t, name in self.phases}
        start, end = int(series.t[0]), until.get("build", int(series.t[-1]))
        values = {name: series.mean(name, start, end) for name in IDLE}
        return {"seconds": (end - start) / 1e9} | values if _any(values) else {}

    # -- checks -------------------------------------------------------------------------------

    def _limit(self, which: str) -> float:
        """The longest gap (s) between rows taken at this rate ("hz", "slow_hz") that is none."""
        hz = self.head.get(which) or self.head.get("hz") or 1
        return max(LEAST_GAP_S, GAP_TICKS / hz)

    def _incomplete(self) -> str | None:
        """Why these telemetry values are not all that they should be, in one sentence, or None."""
        reasons = [self.lines.problem] if self.lines.problem else []
        if self.facts.gpu and not self.lines.problem and self.head.get("source") is None:
            reasons.append(f"the GPU could not be read: {self.head.get('why') or 'no reason told'}")
        for window in self.windows:
            reasons += self._holes(window)
        if reasons:
            errors = self.lines.errors[:ERRORS_TOLD]
            reasons += [f"{error.get('where')}: {error.get('message')}" for error in errors]
        return "; ".join(reasons) or None

    def _holes(self, window: Window) -> list[str]:
        name, ends = f"window '{window.name}'", (window.start_ns, window.end_ns)
        found = []
        if (gap := self.host.longest_gap(*ends)) > self._limit("slow_hz"):
            found.append(f"{name}: nothing of the host {_for(gap)}")
        source = self.head.get("source")
        if not self.facts.gpu or source is None:
            return found
        if (gap := self.entities["gpu"].longest_gap(*ends)) > self._limit("hz"):
            found.append(f"{name}: nothing of the GPU {_for(gap)}")
        elif source != "nvml":
            for entity in self.facts.instances or ["gpu"]:
                gap = self.entities[entity].longest_gap(*ends, any_of=ACTIVITY)
                if gap > self._limit("hz"):
                    found.append(f"{name}: no {source} values of {entity} {_for(gap)}")
                elif source in PAIRED and not self._pair(entity, window):
                    found.append(f"{name}: no pair of samples of {entity} spans it")
        return found

    def _disagree(self, window: Window) -> list[str]:
        """Sentences: where the pair and the mean of the series over the same time differ."""
        found = []
        for entity, series in self.entities.items():
            span = self._pair(entity, window)
            if span is None or window.seconds < CHECKED_S:
                continue
            for name in ACTIVITY:
                pair = _known(number(span["v"].get(name)))
                mean = series.rate(name, span["start_ns"], span["end_ns"], KNOWN)
                if None not in (pair, mean) and _apart(pair, mean, APART, APART_RATIO):
                    found.append(
                        f"{window.name}, {entity}: {name} is {pair:.4f} by the pair of samples and "
                        f"{mean:.4f} by the series"
                    )
        return found

    def _energy_apart(self, window: Window, found: dict[str, WindowTelemetry]) -> list[str]:
        """A sentence where the counter and the integrated power differ by more than ENERGY_APART
        and by more than ENERGY_ERRORS standard errors of the mean of the power readings: in a short
        window ten a second of a load that comes in spikes tell its mean less well.
        """
        energy = found[window.name].energy
        if energy is None or energy.integrated_joules is None or window.seconds < CHECKED_S:
            return []
        error = self.entities["gpu"].error("power", window.start_ns, window.end_ns) or 0.0
        scatter = ENERGY_ERRORS * error * window.seconds
        if not _apart(energy.joules, energy.integrated_joules, ENERGY_APART, scatter):
            return []
        return [
            f"{window.name}: {energy.joules:.1f} J by the GPU's counter and "
            f"{energy.integrated_joules:.1f} J by its power readings"
        ]

    def _throttled(self) -> dict[str, float]:
        """Reason → share of all windows' samples in which it held the clocks down."""
        if "gpu" not in self.entities:
            return {}
        series = self.entities["gpu"]
        inside = np.zeros(len(series.t), bool)
        for window in self.windows:
            inside |= series.inside(window.start_ns, window.end_ns)
        masks = series.column("throttle")[inside]
        masks = masks[np.isfinite(masks)].astype(np.int64)
        if not len(masks):
            return {}
        shares = {name: float(np.mean(masks & bit != 0)) for bit, name in REASONS.items()}
        return {name: share for name, share in shares.items() if share > 0}

    def _strangers(self) -> list[str] | None:
        """Who was on the card between the barrier and the end of the last window that are not ours;
        None where none of ours is recognised, as in a container that shows the host's PIDs.
        """
        if not self.windows:
            return None
        start = {name: t for t, name in self.phases}.get("window", self.windows[0].start_ns)
        end = self.windows[-1].end_ns
        before = [row for row in self.lines.seen if row["t"] < start]
        in_force = before[-1:] + [row for row in self.lines.seen if start <= row["t"] < end]
        listed = {pid for row in in_force for key in ("compute", "mps") for pid in row[key] or []}
        if not listed & self.facts.own:
            return None
        return [self.facts.owner(pid) for pid in sorted(listed - self.facts.own)]

    def _sampler(self) -> Sampler:
        end = self.lines.end or {}
        took = end.get("tick_ms") or {}
        main = self.entities["gpu"] if self.facts.gpu else self.host
        gaps = [main.longest_gap(window.start_ns, window.end_ns) for window in self.windows]
        return Sampler(
            ticks=end.get("ticks"),
            skipped=end.get("skipped"),
            longest_gap_s=_known(max(gaps, default=math.nan)),
            cpu_s=end.get("cpu_s"),
            tick_ms_p50=took.get("p50"),
            tick_ms_p95=took.get("p95"),
            tick_ms_max=took.get("max"),
        )


def phases(lines: Lines) -> list[tuple[int, str]]:
    """When each phase began (ns), in order."""
    marks = ((mark["t"], mark["name"]) for mark in lines.marks)
    return [(t, name.removeprefix("phase:")) for t, name in marks if name.startswith("phase:")]


def _apart(one: float, other: float, relative: float, absolute: float = 0.0) -> bool:
    difference = abs(one - other)
    return difference > relative * max(abs(one), abs(other)) and difference > absolute


def _for(seconds: float) -> str:
    return f"for {seconds:.1f} s" if math.isfinite(seconds) else "at all"


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _any(values: Values) -> bool:
    return any(value is not None for value in values.values())
