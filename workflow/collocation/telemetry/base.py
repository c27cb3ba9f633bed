"""The interface of a telemetry source: the columns that it declares, and how it is read.

A value that is missing is None, never 0 or -1.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

Rates = dict[str, float | None]  # metric → mean over a time


class Unavailable(ValueError):
    """A source cannot be used on this machine, with one line that says why."""


@dataclass(frozen=True)
class Metric:
    """One column of telemetry.

    kind: "gauge" is a value at a time, "rate" the mean since the row before, "counter" only grows.
    """

    name: str
    unit: str
    kind: Literal["gauge", "rate", "counter"]
    meaning: str


class ActivitySource(ABC):
    """A reader of what a card's engines do, of the whole card or of its GPU instances under MIG.

    Made of the card's UUID and a list of entities: "gpu", or "gi:<id>" with NVML's id. Raises
    Unavailable where the card or the machine does not have it. METRICS: the columns that it fills.
    """

    name: ClassVar[str]
    METRICS: ClassVar[tuple[Metric, ...]]

    @abstractmethod
    def read_rates(self) -> dict[str, Rates]:
        """Rates since the call before, by entity; one without a new reading is left out."""

    def sample(self) -> dict:
        """One end of a span of time, by entity; {} for a source that has only rates."""
        return {}

    def rates_between(self, begin: dict, end: dict) -> dict[str, dict]:
        """Rates "v" from "start_ns" to "end_ns", of two samples, by entity."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Stop reading."""
