"""What run.json says of a cell's windows and of what was seen in them."""

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

PERCENTILES = (50, 95, 99)  # of latencies
LATENCIES = [f"p{p}_{kind}_ms" for kind in ("ttft", "tpot", "itl", "e2el") for p in PERCENTILES]
REQUEST_METRICS = [
    *LATENCIES,
    "request_goodput",
    "answered_share",
]  # what a window says of a server


class RecordPart(BaseModel):
    """A part of a record: with these keys and no others."""

    model_config = ConfigDict(extra="forbid")


class Window(RecordPart):
    """A stretch of the monotonic clock (ns) in which every member named by the cell trained.

    Of an interleaved cell, one for each condition and named after it: `members` are the
    condition's, and `spans` what counts of its slices, a round each, which come to `seconds`.
    """

    name: str
    start_ns: int
    end_ns: int
    seconds: float
    members: list[int] | None = None
    spans: list[tuple[int, int]] | None = None

    @property
    def ends(self) -> tuple[int, int]:
        return self.start_ns, self.end_ns

    @property
    def pieces(self) -> list[tuple[int, int]]:
        return self.spans or [self.ends]

    def has(self, member: int) -> bool:
        return self.members is None or member in self.members


Values = dict[str, float | None]  # metric → value in the vocabulary's unit, null where missing


class Energy(RecordPart):
    """What the set used in a window, in J: the counter's mean power (W) between its two readings,
    `seconds` apart, times the window's length; power readings, integrated.
    """

    joules: float
    seconds: float
    mean_power: float
    integrated_joules: float | None = None
    idle_joules: float | None = None  # this and the next of results/ladder: no longer computed
    above_idle_joules: float | None = None


class WindowTelemetry(RecordPart):
    """What was seen in one window.

    entities: headline values by entity ("gpu", "gi:1"): of a rate the one pair of samples that
    spans the window, of a gauge the mean, of a counter the growth. series: the means of the series.
    members, host: means; a member's `entity` is where it ran, null without a GPU. whole_card, under
    MIG: means of the instances weighted by SMs, over `sm_count` SMs.
    """

    seconds: float
    entities: dict[str, Values] = {}
    series: dict[str, Values] = {}
    energy: Energy | None = None
    members: dict[str, dict[str, float | str | None]] = {}
    host: Values = {}
    whole_card: Values = {}


class Sampler(RecordPart):
    """What the sampler says of itself; records of results/ladder say more."""

    model_config = ConfigDict(extra="ignore")

    ticks: int | None = None
    cpu_s: float | None = None


class Telemetry(RecordPart):
    """What was seen from outside the members. `source` is null where there was no GPU to read.

    idle: means before the first member was built. disagree: sentences. throttled: reason → share of
    the windows' samples. strangers: who else computed on the card; null where nobody can tell.
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
    sha256: str
    bytes: int

    @classmethod
    def of(cls, path: Path) -> "FileDigest":
        content = path.read_bytes()
        return cls(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
