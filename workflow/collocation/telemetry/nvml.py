"""Plain NVML readings of a card: gauges, the energy counter, and the processes on it.

A sampler asks ten times a second and each call goes to the driver, so the values that NVML offers
as fields are read in one call.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pynvml

from workflow.collocation.telemetry.base import Metric

METRICS = (
    Metric("gpu_util", "1", "gauge", "share of time in which any kernel ran"),
    Metric("memory_util", "1", "gauge", "share of time in which device memory was read or written"),
    Metric("memory_used", "B", "gauge", "device memory in use, by whomever"),
    Metric("power", "W", "gauge", "power of the board"),
    Metric("energy", "J", "counter", "energy of the board since the driver was loaded"),
    Metric("temperature", "C", "gauge", "temperature of the GPU"),
    Metric("sm_clock", "MHz", "gauge", "clock of the SMs"),
    Metric("memory_clock", "MHz", "gauge", "clock of the device memory"),
    Metric("throttle", "bitmask", "gauge", "clocks event reasons, what holds the clocks down"),
)
# Metric → NVML field id, and NVML's unit in ours.
FIELDS = {
    "power": (pynvml.NVML_FI_DEV_POWER_INSTANT, 1e-3),
    "energy": (pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 1e-3),
}
SENSOR = pynvml.NVML_TEMPERATURE_GPU
# Member of NVML's union that holds a field's value, by its type (NVML_VALUE_TYPE_…).
TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _utilization(card) -> dict[str, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(card)
    return {"gpu_util": rates.gpu / 100, "memory_util": rates.memory / 100}


# What is no field: values that one call gives are asked for once.
CALLS: tuple[Callable[..., dict[str, float]], ...] = (
    _utilization,
    lambda card: {"memory_used": pynvml.nvmlDeviceGetMemoryInfo(card).used},
    lambda card: {"temperature": pynvml.nvmlDeviceGetTemperature(card, SENSOR)},
    lambda card: {"sm_clock": pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM)},
    lambda card: {"memory_clock": pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_MEM)},
    lambda card: {"throttle": pynvml.nvmlDeviceGetCurrentClocksEventReasons(card)},
)
OLD_CALLS = (lambda card: {"power": pynvml.nvmlDeviceGetPowerUsage(card) / 1000},)
LISTS = {
    "compute": lambda card: pynvml.nvmlDeviceGetComputeRunningProcesses(card),
    "mps": lambda card: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(card),
}


class NvmlCard:
    """One GPU. Raises pynvml.NVMLError where NVML or the card is not there."""

    def __init__(self, uuid: str):
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read_values(self) -> dict[str, float | None]:
        """A value for each of METRICS, in its unit; None where the card does not answer."""
        values = dict.fromkeys(metric.name for metric in METRICS) | self._fields(*FIELDS)
        # Older drivers have no field of power.
        for call in CALLS if values["power"] is not None else CALLS + OLD_CALLS:
            with suppress(pynvml.NVMLError):
                values |= call(self.handle)
        return values

    def energy(self) -> float | None:
        """The counter of the board's energy (J), which moves in steps of some 20 to 100 ms."""
        return self._fields("energy").get("energy")

    def processes(self) -> dict[str, dict[int, int] | None]:
        """Device memory in bytes by PID, 0 where not given, of all processes ("compute") and of MPS
        clients ("mps"); None where NVML does not give the list.
        """
        memory: dict[str, dict[int, int] | None] = {}
        for kind, listing in LISTS.items():
            memory[kind] = None
            with suppress(pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
                entries, memory[kind] = listing(self.handle), Counter()
                for entry in entries:  # a process is there for each part of a partitioned card
                    memory[kind][entry.pid] += entry.usedGpuMemory or 0
        return memory

    def _fields(self, *names: str) -> dict[str, float]:
        """The fields among these that the card gives, in one call."""
        values: dict[str, float] = {}
        with suppress(pynvml.NVMLError):
            ids = [FIELDS[name][0] for name in names]
            answers = pynvml.nvmlDeviceGetFieldValues(self.handle, ids)
            for name, answer in zip(names, answers, strict=True):
                if answer.nvmlReturn == pynvml.NVML_SUCCESS:
                    value = getattr(answer.value, TYPES[answer.valueType])
                    values[name] = value * FIELDS[name][1]
        return values
