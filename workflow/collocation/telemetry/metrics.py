"""The names and units of what is read, whichever source reads it; columns.csv of the analysis
says what each means. A value that is missing is None, never 0 or -1.
"""

from dataclasses import dataclass
from typing import Literal


class Unavailable(ValueError):
    """A source cannot be used on this machine: one line that says why."""


@dataclass(frozen=True)
class Metric:
    """One column.

    kind: "gauge" is a value at a time, "rate" the mean since the row before, "counter" what only
    grows. gpm, dcgm: the source's number for it (NVML_GPM_METRIC_… of nvidia-ml-py, DCGM_FI_PROF_…
    of dcgm_fields.h), None where it has none.
    """

    name: str
    unit: str
    kind: Literal["gauge", "rate", "counter"] = "gauge"
    gpm: int | None = None
    dcgm: int | None = None


METRICS = (
    Metric("gract", "1", "rate", 1, 1001),
    Metric("smact", "1", "rate", 2, 1002),
    Metric("smocc", "1", "rate", 3, 1003),
    Metric("tenso", "1", "rate", 5, 1004),
    Metric("drama", "1", "rate", 10, 1005),
    Metric("fp16", "1", "rate", 13, 1008),
    Metric("fp32", "1", "rate", 12, 1007),
    Metric("fp64", "1", "rate", 11, 1006),
    Metric("integer", "1", "rate", 4, 1016),
    Metric("pcie_tx", "B/s", "rate", 20, 1009),
    Metric("pcie_rx", "B/s", "rate", 21, 1010),
    Metric("nvlink_tx", "B/s", "rate", 61, 1011),
    Metric("nvlink_rx", "B/s", "rate", 60, 1012),
    # Driver 580 gave 0 for these two on an H200, for two processes that run in turn as well.
    Metric("ctxsw_active", "1", "rate", 174),
    Metric("ctxsw_requests", "1/s", "rate", 172),
    Metric("gpu_util", "1"),
    Metric("memory_util", "1"),
    Metric("memory_used", "B"),
    Metric("power", "W"),
    Metric("energy", "J", "counter"),
    Metric("temperature", "C"),
    Metric("sm_clock", "MHz"),
    Metric("memory_clock", "MHz"),
    Metric("throttle", "bitmask"),
)
# Shares of the SMs' time or cycles, which the numbers of SMs can weight.
ACTIVITY = [metric.name for metric in METRICS if metric.dcgm and metric.unit == "1"]
# Of a member: its process and those that it started. cpu: cores in use.
MEMBER_METRICS = (
    Metric("cpu", "1", "rate"),
    Metric("rss", "B"),
    Metric("read", "B/s", "rate"),
    Metric("write", "B/s", "rate"),
    Metric("gpu_memory", "B"),
)
# Of the machine: cores in use.
HOST_METRICS = (Metric("cpu_busy", "1", "rate"), Metric("memory_used", "B"))
