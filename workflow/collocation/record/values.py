"""The parts of run.json on a cell's windows and telemetry."""

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

PERCENTILES = (50, 95, 99)  # of latencies and step times
LATENCIES = [f"p{p}_{kind}_ms" for kind in ("ttft", "tpot", "itl", "e2el") for p in PERCENTILES]
REQUEST_METRICS = [*LATENCIES, "request_goodput", "answered_share"]


class RecordPart(BaseModel):
    """A part of a record; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class Window(RecordPart):
    """The time in which a cell is measured, in ns of the monotonic clock.

    An interleaved cell has one for each condition, named after it, with the condition's `members`.
    spans: the parts of its slices that count, one per round; `seconds` is their sum.
    """

    name: str
    start_ns: int
    end_ns: int
    seconds: float
    members: list[int] | None = None
    spans: list[tuple[int, int]] | None = None

    @property
    def ends(self) -> tuple[int, int]:
        """Start and end in ns."""
        return self.start_ns, self.end_ns

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The [start, end) in ns that count."""
        return self.spans or [self.ends]

    def has(self, member: int) -> bool:
        return self.members is None or member in self.members


Values = dict[str, float | None]  # metric → value in the metric's unit, null if missing


class Energy(RecordPart):
    """Energy in a window.

    joules: `mean_power` times the window's length. mean_power: in W, from two readings of the
    energy counter, `seconds` apart. integrated_joules: integral of the power readings.
    """

    model_config = ConfigDict(extra="ignore")  # older records hold more

    joules: float
    seconds: float
    mean_power: float
    integrated_joules: float | None = None


class WindowTelemetry(RecordPart):
    """Telemetry of one window.

    entities: entity ("gpu", "gi:1") → metrics: a rate between two samples that span the window, the
    mean of a gauge, the growth of a counter. series: means of the time series. members, host:
    means; a member's `entity` is where it ran, null without a GPU. whole_card: under MIG, means of
    the instances weighted by their SMs, over `sm_count` SMs.
    """

    seconds: float
    entities: dict[str, Values] = {}
    series: dict[str, Values] = {}
    energy: Energy | None = None
    members: dict[str, dict[str, float | str | None]] = {}
    host: Values = {}
    whole_card: Values = {}


class Sampler(RecordPart):
    """Load of the sampling process."""

    model_config = ConfigDict(extra="ignore")  # older records hold more

    ticks: int | None = None
    cpu_s: float | None = None


class Telemetry(RecordPart):
    """What was measured from outside the members.

    source: of the GPU's counters, null without a GPU. idle: means before the first member was
    built. disagree: sentences on contradictions. throttled: reason → share of the windows' samples.
    strangers: other users' processes on the card, null if they cannot be listed.
    """

    status: Literal["complete", "incomplete", "off"]
    reason: str | None = None
    source: str | None = None
    hz: float | None = None
    idle: Values = {}
    windows: dict[str, WindowTelemetry] = {}
    disagree: list[str] = []
    throttled: dict[str, float] = {}
    strangers: list[str] | None = None
    sampler: Sampler = Sampler()


class FileDigest(RecordPart):
    """Digest and size of a file."""

    sha256: str
    bytes: int

    @classmethod
    def of(cls, path: Path) -> "FileDigest":
        content = path.read_bytes()
        return cls(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
