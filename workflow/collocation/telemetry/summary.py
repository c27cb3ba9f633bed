"""From the sampler's lines to what a cell's record says: values of windows, checks, flags.

Pure: nothing is read but the arguments. A value that is missing is None.

A headline comes from one pair of GPM samples that spans the window; the series must agree with it.
Of interleaved slices there is no such pair, and no energy: the series is all.
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
from workflow.collocation.telemetry.contradictions import COMPARED, contradictions
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.metrics import ACTIVITY, HOST_METRICS, MEMBER_METRICS, METRICS

IDLE = ("power", "temperature", "sm_clock", "memory_used")
RATES = [metric.name for metric in METRICS if metric.kind == "rate"]
MEANS = [m.name for m in METRICS if m.kind != "counter" and m.name != "throttle"]

LEAST_GAP_S, GAP_TICKS = 0.5, 3  # a longer stretch without a row is a hole
NEAR_NS = 500_000_000  # how far a pair or an edge may lie from its window's ends
STAY_S = 2.0  # several looks at the card's processes (watch.SLOW_HZ), also where one comes late
CHECKED_S = 2.0  # in a shorter window, its ends weigh too much for a check
APART, APART_SHARE = 0.02, 0.002  # relative, and absolute
ENERGY_APART = 0.03  # relative
KNOWN = 0.9  # of the time, for a series to be held against a pair

# Of the clocks event reasons, nvmlClocksEventReason…, from bit 1 on.
REASONS = ("applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost")
REASONS += ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
REASONS += ("display_clock_setting",)
THROTTLING = {name for name in REASONS if name.startswith("hw_") or "thermal" in name}


@dataclass
class Summary:
    """The lines of one cell, by what they are about.

    has_gpu: whether the cell had one. sm_count: SMs of the whole card. instances: MIG entity → its
    SMs, {} without MIG; null where unknown. seats: member → the entity that it runs on. own: PIDs
    under which NVML may list what the cell started. owner: how sentences name the process of a PID.
    """

    lines: Lines
    windows: list[Window]
    has_gpu: bool
    sm_count: int | None = None
    instances: dict[str, int | None] = field(default_factory=dict)
    seats: dict[int, str] = field(default_factory=dict)
    own: Set[int] = frozenset()
    owner: Callable[[int], str] = "PID {}".format

    def __post_init__(self):
        self.head, self.source = self.lines.head, self.lines.head.get("source")
        entities = ("gpu", *self.instances) if self.has_gpu else ()
        self.entities = {entity: _series(self.lines.gpu, METRICS, e=entity) for entity in entities}
        self.gpu = self.entities.get("gpu", _series([], METRICS))
        self.host = _series(self.lines.host, HOST_METRICS)
        self.phases = {name: t for t, name in self.lines.phases}
        self.idle = self._idle()

    def telemetry(self) -> tuple[record.Telemetry, list[str]]:
        """What the record says of these windows, and the flags that follow."""
        wrong = {window.name: self._wrong(window) for window in self.windows}
        found = {window.name: self._window(window, wrong[window.name]) for window in self.windows}
        disagree = [
            f"{window.name}, {entity}: {name} {why}"
            for window in self.windows
            for (entity, name), why in (self._apart(window) | wrong[window.name]).items()
        ]
        energy = [said for w in self.windows for said in self._energy_apart(w, found[w.name])]
        throttled, strangers, reason = self._throttled(), self._strangers(), self._incomplete()
        flags = {"telemetry_incomplete": reason, "telemetry_disagrees": disagree}
        flags |= {"energy_disagrees": energy, "throttled": THROTTLING & throttled.keys()}
        flags |= {"power_capped": "sw_power_cap" in throttled, "shared_gpu": strangers}
        account = {name: value for name, value in self.lines.end.items() if name != "t"}
        about = {"source": self.source, "hz": self.head.get("hz"), "idle": self.idle}
        about |= {"status": "incomplete" if reason else "complete", "reason": reason}
        about |= {"windows": found, "disagree": disagree + energy, "throttled": throttled}
        telemetry = record.Telemetry(strangers=strangers, sampler=account, **about)
        return telemetry, [flag for flag, why in flags.items() if why]

    def _window(self, window: Window, wrong: Iterable[tuple[str, str]]) -> record.WindowTelemetry:
        series = {  # of an instance there are rates only
            entity: _means(of, MEANS if entity == "gpu" else RATES, window)
            for entity, of in self.entities.items()
        }
        heads = {entity: dict(values) for entity, values in series.items()}
        # Of slices nothing is known better: what only grows, and pairs, are of all conditions.
        for entity, values in heads.items() if not window.spans else ():
            if self.source == "gpm":
                pair = self._pair(entity, window).get("v", {})
                values |= {name: pair.get(name) for name in RATES}
        for entity, name in wrong:
            heads[entity][name] = None
        values = {"energy": self._energy(window), "whole_card": self._whole_card(heads)}
        values |= {"host": _known(_means(self.host, self.host.columns, window)), "members": {}}
        for m in sorted({row["m"] for row in self.lines.members if window.has(row["m"])}):
            of = _series(self.lines.members, MEMBER_METRICS, m=m)
            if known := _known(_means(of, of.columns, window)):
                values["members"][str(m)] = {"entity": self.seats.get(m)} | known
        about = {"seconds": window.seconds, "entities": heads, "series": series}
        return record.WindowTelemetry(**about, **values)

    def _pair(self, entity: str, window: Window) -> dict:
        """The span line of this window, {} unless one does span it."""
        for span in self.lines.spans:
            if (span["name"], span["e"]) == (window.name, entity):
                return span if _near((span["start_ns"], span["end_ns"]), window) else {}
        return {}

    def _edges(self, window: Window) -> list[tuple[int, float] | None]:
        """When the energy counter moved at the window's ends, and what it read then."""
        marks = {mark["name"]: mark["energy"] for mark in self.lines.marks}
        return [marks.get(f"{window.name}:{end}") for end in ("open", "close")]

    def _counter_fell(self, window: Window) -> bool:
        """Whether the energy counter did what no counter does."""
        ends = [joules for _, joules in filter(None, self._edges(window))]
        readings = self.gpu.readings("energy", window.pieces)
        return any((np.diff(values) < 0).any() for values in (ends, readings))

    def _energy(self, window: Window) -> record.Energy | None:
        edges = self._edges(window)
        if None in edges:
            return None
        (began, low), (ended, high) = edges
        seconds = (ended - began) / 1e9
        if not _near((began, ended), window) or seconds <= 0 or self._counter_fell(window):
            return None
        power = (high - low) / seconds
        energy = record.Energy(joules=power * window.seconds, seconds=seconds, mean_power=power)
        if self.gpu.longest_gap(window.ends) <= self._limit("hz"):
            energy.integrated_joules = self.gpu.integral("power", window.ends)
        return energy

    def _whole_card(self, heads: dict[str, Values]) -> Values:
        """Σ value × SMs of the instance / SMs of the card, or of all instances where the card's are
        not known; a value that one of them lacks is missing.
        """
        sms = self.instances
        if not sms or None in sms.values():
            return {}
        total = self.sm_count or sum(sms.values())
        values: Values = {"sm_count": total} | dict.fromkeys(ACTIVITY)
        for name in ACTIVITY:
            if None not in (parts := [heads[entity].get(name) for entity in sms]):
                values[name] = float(np.dot(parts, [*sms.values()])) / total
        return values

    def _idle(self) -> Values:
        """Means from the first row to the first member's building."""
        if not len(self.gpu.t):
            return {}
        ends = int(self.gpu.t[0]), self.phases.get("build", int(self.gpu.t[-1]))
        values = _known({name: self.gpu.over(name, ends) for name in IDLE})
        return values and {"seconds": (ends[1] - ends[0]) / 1e9} | values

    def _limit(self, which: str) -> float:
        """The longest gap (s) between rows taken at this rate ("hz", "slow_hz") that is none."""
        return max(LEAST_GAP_S, GAP_TICKS / self.head.get(which, 1))

    def _incomplete(self) -> str | None:
        """Why these telemetry values are not all that they should be, in one sentence, or None."""
        reasons = [self.lines.problem] if self.lines.problem else []
        if self.has_gpu and not reasons and self.source is None:
            reasons.append(f"the GPU could not be read: {self.head.get('why')}")
        for window in self.windows:
            reasons += [f"window '{window.name}': {hole}" for hole in self._holes(window)]
        if reasons:
            reasons += [f"{error['where']}: {error['message']}" for error in self.lines.errors[:3]]
        return "; ".join(reasons) or None

    def _holes(self, window: Window) -> Iterator[str]:
        if (gap := self.host.longest_gap(window.ends)) > self._limit("slow_hz"):
            yield f"nothing of the host {_for(gap)}"
        if self.source is None:
            return
        told = ["power"] if self.source == "nvml" else COMPARED
        for entity in self.instances or self.entities:
            gap = self.entities[entity].longest_gap(window.ends, told)
            if gap > self._limit("hz"):
                yield f"no {self.source} values of {entity} {_for(gap)}"
            elif self.source == "gpm" and not (window.spans or self._pair(entity, window)):
                yield f"no pair of samples of {entity} spans it"

    def _wrong(self, window: Window) -> dict[tuple[str, str], str]:
        """(entity, metric) → why its value cannot be right."""
        readings, pairs = {}, {}
        for entity, series in self.entities.items():
            pairs[entity] = self._pair(entity, window).get("v", {})
            readings[entity] = {
                name: series.weighted_values(name, window.ends, window.spans)[0]
                for name in (*SHARES, "power")
            }
        return contradictions(readings, pairs, self.idle.get("power"))

    def _apart(self, window: Window) -> dict[tuple[str, str], str]:
        """(entity, metric) → how the pair and the mean of the series over the same time differ."""
        found = {}
        for entity, series in self.entities.items():
            span = self._pair(entity, window)
            for name in COMPARED if span and window.seconds >= CHECKED_S else ():
                pair = span["v"].get(name)
                mean = series.over(name, (span["start_ns"], span["end_ns"]), min_coverage=KNOWN)
                if None not in (pair, mean) and abs(pair - mean) > max(APART * pair, APART_SHARE):
                    by = f"{pair:.4f} by the pair of samples and {mean:.4f} by the series"
                    found[entity, name] = f"is {by}"
        return found

    def _energy_apart(self, window: Window, found: record.WindowTelemetry) -> Iterator[str]:
        """Where the counter and the integrated power readings differ by more than ENERGY_APART and
        by more than three standard errors of the readings' mean.
        """
        if self._counter_fell(window):
            yield f"{window.name}: the GPU's energy counter fell"
        integrated = found.energy and found.energy.integrated_joules
        if integrated is None or window.seconds < CHECKED_S:
            return
        joules, readings = found.energy.joules, self.gpu.readings("power", [window.ends])
        scatter = 3 * readings.std() / len(readings) ** 0.5 * window.seconds
        if abs(joules - integrated) > max(ENERGY_APART * joules, scatter):
            by = f"{joules:.1f} J by the GPU's counter and {integrated:.1f} J by its power readings"
            yield f"{window.name}: {by}"

    def _throttled(self) -> dict[str, float]:
        """Reason → share of all windows' samples in which it held the clocks down."""
        pieces = [piece for window in self.windows for piece in window.pieces]
        masks = self.gpu.readings("throttle", pieces).astype(np.int64)
        held = {name: masks & 2 << bit != 0 for bit, name in enumerate(REASONS)}
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
        stayed = Counter()  # PID → ns
        untils = [*(row["t"] for row in self.lines.seen[1:]), end]
        for row, until in zip(self.lines.seen, untils, strict=False):
            if row["t"] < end and until >= start:
                for pid in {*(row["compute"] or []), *(row["mps"] or [])}:
                    stayed[pid] += min(until, end) - row["t"]
        if not stayed.keys() & self.own:
            return None
        strangers = (pid for pid in stayed.keys() - self.own if stayed[pid] >= STAY_S * 1e9)
        return [self.owner(pid) for pid in sorted(strangers)]


def _series(rows: list[dict], metrics: tuple, **of) -> Series:
    """Of the rows in which these fields have these values."""
    rates = [metric.name for metric in metrics if metric.kind == "rate"]
    rows = [row for row in rows if of.items() <= row.items()]
    return Series.of_rows(rows, [metric.name for metric in metrics], rates)


def _means(series: Series, names, window: Window) -> Values:
    return {name: series.over(name, window.ends, window.spans) for name in names}


def _known(values: Values) -> Values:
    """{} where none of them is."""
    return values if any(value is not None for value in values.values()) else {}


def _near(ends: tuple[int, int], window: Window) -> bool:
    return max(abs(ends[0] - window.start_ns), abs(ends[1] - window.end_ns)) <= NEAR_NS


def _for(seconds: float) -> str:
    return f"for {seconds:.1f} s" if math.isfinite(seconds) else "at all"
