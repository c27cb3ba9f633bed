"""The names and units of what is read, whichever source reads it; analysis/records/columns.csv
says what each means. A value that is missing is None, never 0 or -1.
"""

from dataclasses import dataclass
from typing import Literal

MIB = 2**20


class Unavailable(ValueError):
    """A source cannot be used on this machine: one line that says why."""


@dataclass(frozen=True)
class Metric:
    """One column.

    kind: "gauge" is a value at a time, "rate" the mean since the row before, "counter" what only
    grows. gpm, dcgm: the source's number for it (NVML_GPM_METRIC_… of nvidia-ml-py, DCGM_FI_PROF_…
    of dcgm_fields.h), None where it has none. gpm_scale: what one unit of GPM's is in ours.
    """

    name: str
    unit: str
    kind: Literal["gauge", "rate", "counter"] = "gauge"
    gpm: int | None = None
    dcgm: int | None = None
    gpm_scale: float = 1.0


METRICS = (
    Metric("gract", "1", "rate", 1, 1001, 1 / 100),
    Metric("smact", "1", "rate", 2, 1002, 1 / 100),
    Metric("smocc", "1", "rate", 3, 1003, 1 / 100),
    Metric("tenso", "1", "rate", 5, 1004, 1 / 100),
    Metric("drama", "1", "rate", 10, 1005, 1 / 100),
    Metric("fp16", "1", "rate", 13, 1008, 1 / 100),
    Metric("fp32", "1", "rate", 12, 1007, 1 / 100),
    Metric("fp64", "1", "rate", 11, 1006, 1 / 100),
    Metric("integer", "1", "rate", 4, 1016, 1 / 100),
    Metric("pcie_tx", "B/s", "rate", 20, 1009, MIB),
    Metric("pcie_rx", "B/s", "rate", 21, 1010, MIB),
    Metric("nvlink_tx", "B/s", "rate", 61, 1011, MIB),
    Metric("nvlink_rx", "B/s", "rate", 60, 1012, MIB),
    # Driver 580 gave 0 for these two on an H200, for two processes that run in turn as well.
    Metric("ctxsw_active", "1", "rate", 174, None, 1 / 100),
    Metric("ctxsw_requests", "1/s", "rate", 172),
    Metric("gpu_util", "1"),
    Metric("memory_util", "1"),
    Metric("memory_used", "B"),
    Metric("power", "W"),
    Metric("energy", "J", "counter"),
    Metric("temperature", "C"),
    Metric("memory_temperature", "C"),
    Metric("sm_clock", "MHz"),
    Metric("memory_clock", "MHz"),
    Metric("throttle", "bitmask"),
    Metric("power_violation", "s", "counter"),
    Metric("thermal_violation", "s", "counter"),
)
# Of a member: its process and those that it started. cpu: cores in use.
MEMBER_METRICS = (
    Metric("cpu", "1", "rate"),
    Metric("rss", "B"),
    Metric("read", "B/s", "rate"),
    Metric("write", "B/s", "rate"),
    Metric("gpu_memory", "B"),
)
# Of the machine: cores in use, and cores that a hypervisor gave to others.
HOST_METRICS = (
    Metric("cpu_busy", "1", "rate"),
    Metric("cpu_stolen", "1", "rate"),
    Metric("memory_used", "B"),
    Metric("memory_available", "B"),
)
