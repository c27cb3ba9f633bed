"""The one vocabulary of GPU telemetry: whichever source read a value, its name and unit are these.

GPM ids are NVML_GPM_METRIC_… of nvidia-ml-py; DCGM ids the profiling fields of dcgm_fields.h
(DCGM_FI_PROF_…). Missing is None, never 0 or -1. The two ways in which a source fails are said
here too, for all sources.
"""

import math
from dataclasses import dataclass
from typing import Literal

MIB = 2**20


class Unavailable(ValueError):
    """A source cannot be used on this machine: one line that says why."""


class SourceLost(Exception):
    """A source that worked is gone for good: one sentence that says how."""


@dataclass(frozen=True)
class Metric:
    """One column.

    kind: "gauge" is a value at a time, "rate" the mean since the row before (or over a span),
    "counter" what only grows. gpm, dcgm: the source's number for it, None where it has none.
    gpm_scale: what one unit of GPM's value is in ours; DCGM's fields come in ours.
    """

    name: str
    unit: str
    kind: Literal["gauge", "rate", "counter"]
    description: str
    gpm: int | None = None
    dcgm: int | None = None
    gpm_scale: float = 1.0

    def from_gpm(self, value: float) -> float | None:
        """GPM's value in our unit; None for NaN, which is how GPM says that it has none."""
        return value * self.gpm_scale if math.isfinite(value) else None


def _ratio(name: str, description: str, gpm: int, dcgm: int | None) -> Metric:
    return Metric(name, "1", "rate", description, gpm, dcgm, gpm_scale=1 / 100)


def _traffic(name: str, description: str, gpm: int, dcgm: int) -> Metric:
    return Metric(name, "B/s", "rate", description, gpm, dcgm, gpm_scale=MIB)


METRICS = (
    _ratio("gract", "share of time in which a graphics or compute engine was active", 1, 1001),
    _ratio("smact", "share of time in which an SM had a warp, mean over SMs", 2, 1002),
    _ratio("smocc", "resident warps over the most that fit, mean over SMs and time", 3, 1003),
    _ratio("tenso", "share of cycles in which the tensor pipes were active", 5, 1004),
    _ratio("drama", "share of cycles in which device memory moved data", 10, 1005),
    _ratio("fp16", "share of cycles in which the FP16 pipes were active", 13, 1008),
    _ratio("fp32", "share of cycles in which the FP32 pipes were active", 12, 1007),
    _ratio("fp64", "share of cycles in which the FP64 pipes were active", 11, 1006),
    _ratio("integer", "share of cycles in which the integer pipes were active", 4, 1016),
    _traffic("pcie_tx", "sent by the GPU over PCIe", 20, 1009),
    _traffic("pcie_rx", "received by the GPU over PCIe", 21, 1010),
    _traffic("nvlink_tx", "sent by the GPU over all NVLinks", 61, 1011),
    _traffic("nvlink_rx", "received by the GPU over all NVLinks", 60, 1012),
    # Driver 580 gave 0 for these two on an H200, for two processes that run in turn as well.
    _ratio("ctxsw_active", "share of time in which engine GR0 switched contexts", 174, None),
    Metric("ctxsw_requests", "1/s", "rate", "context switches asked of engine GR0", gpm=172),
    Metric("gpu_util", "1", "gauge", "NVML utilisation: share of time in which a kernel ran"),
    Metric("memory_util", "1", "gauge", "NVML utilisation: share of time in which memory was used"),
    Metric("memory_used", "B", "gauge", "device memory in use, by whomever"),
    Metric("power", "W", "gauge", "power of the board, instantaneous where the card tells it"),
    Metric("energy", "J", "counter", "total energy of the board since the driver was loaded"),
    Metric("temperature", "C", "gauge", "of the GPU die"),
    Metric("memory_temperature", "C", "gauge", "of the device memory"),
    Metric("sm_clock", "MHz", "gauge", "clock of the SMs"),
    Metric("memory_clock", "MHz", "gauge", "clock of the device memory"),
    Metric("throttle", "bitmask", "gauge", "why clocks are below their most: NVML event reasons"),
    Metric("power_violation", "s", "counter", "time in which a power limit held the clocks down"),
    Metric("thermal_violation", "s", "counter", "time in which heat held the clocks down"),
)

MEMBER_METRICS = (
    Metric("cpu", "1", "rate", "CPU cores in use, by the member and its children"),
    Metric("rss", "B", "gauge", "resident memory; pages that they share count once for each"),
    Metric("read", "B/s", "rate", "read from storage"),
    Metric("write", "B/s", "rate", "written to storage"),
    Metric("threads", "1", "gauge", "threads"),
    Metric("processes", "1", "gauge", "processes: the member and its children"),
    Metric("gpu_memory", "B", "gauge", "device memory of these processes, as NVML lists them"),
)
HOST_METRICS = (
    Metric("cpu_busy", "1", "rate", "CPU cores in use, by whomever"),
    Metric("cpu_stolen", "1", "rate", "CPU cores that the hypervisor gave to others; null: untold"),
    Metric("memory_used", "B", "gauge", "memory in use"),
    Metric("memory_available", "B", "gauge", "memory that can be had without swapping"),
    Metric("disk_read", "B/s", "rate", "read from the physical disks"),
    Metric("disk_write", "B/s", "rate", "written to the physical disks"),
    Metric("load1", "1", "gauge", "load average of one minute"),
)
