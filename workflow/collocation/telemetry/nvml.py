"""What plain NVML tells of a card: gauges and counters, who computes on it, when its energy grew.

A sampler asks ten times a second and each call goes to the driver, so what NVML can give as field
values is read in one call, and less often where it changes slowly.
"""

import time
from contextlib import suppress

import pynvml

from workflow.collocation.telemetry.vocabulary import METRICS

COLUMNS = tuple(metric.name for metric in METRICS if metric.gpm is None)
# Column → field id, and what one of its units is in ours. The unit of the two violation counters is
# not documented; nvmlDeviceGetViolationStatus, which counts the same, gives nanoseconds.
FIELDS = {
    "power": (pynvml.NVML_FI_DEV_POWER_INSTANT, 1e-3),
    "energy": (pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 1e-3),
    "memory_temperature": (pynvml.NVML_FI_DEV_MEMORY_TEMP, 1),
    "power_violation": (pynvml.NVML_FI_DEV_PERF_POLICY_POWER, 1e-9),
    "thermal_violation": (pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, 1e-9),
}
SLOW = ("memory_temperature", "power_violation", "thermal_violation")
# Where a field's value lies in NVML's union, by its type (NVML_VALUE_TYPE_…).
TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


CALLS = {
    "power": lambda card: pynvml.nvmlDeviceGetPowerUsage(card) / 1000,  # older drivers: no field
    "memory_used": lambda card: pynvml.nvmlDeviceGetMemoryInfo(card).used,
    "temperature": lambda card: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU),
    "sm_clock": lambda card: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
    "memory_clock": lambda card: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_MEM),
    "throttle": pynvml.nvmlDeviceGetCurrentClocksEventReasons,
}
LISTS = {
    "compute": pynvml.nvmlDeviceGetComputeRunningProcesses,
    "mps": pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
}


class Card:
    """One GPU, asked through one handle; from several threads, if need be.

    Raises pynvml.NVMLError where NVML or the card is not there.
    """

    def __init__(self, uuid: str):
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._fields = list(self._read_fields(list(FIELDS)))  # those that the card has

    def read(self, slow: bool = True) -> dict[str, float | None]:
        """COLUMNS of the vocabulary, in its units; null where the card does not answer.

        slow: also those of SLOW, which are left out else.
        """
        values = dict.fromkeys(name for name in COLUMNS if slow or name not in SLOW)
        values |= self._read_fields([name for name in self._fields if name in values])
        for name, call in CALLS.items():
            if values[name] is None:
                with suppress(pynvml.NVMLError):
                    values[name] = call(self.handle)
        with suppress(pynvml.NVMLError):
            rates = pynvml.nvmlDeviceGetUtilizationRates(self.handle)
            values |= {"gpu_util": rates.gpu / 100, "memory_util": rates.memory / 100}
        return values

    def processes(self) -> dict[str, dict[int, int | None] | None]:
        """Who computes on the card, "compute" and "mps": PID → bytes, null where not told.

        A list is null where NVML does not give it. In a container PIDs may be the host's.
        """
        found: dict[str, dict | None] = dict.fromkeys(LISTS)
        for name, call in LISTS.items():
            with suppress(pynvml.NVMLError):
                memory: dict[int, int | None] = {}
                for entry in call(self.handle):  # once for each part of a partitioned card
                    parts = (memory.get(entry.pid), entry.usedGpuMemory)
                    memory[entry.pid] = sum(part or 0 for part in parts) or None
                found[name] = memory
        return found

    def edge(self, most_s: float = 0.15, poll_s: float = 0.002) -> tuple[int, float] | None:
        """When the energy counter next grew (monotonic ns, within a poll), and to what (J).

        The counter moves in steps of some 20 to 100 ms, so a window's energy is between two steps.
        Where it does not grow within `most_s`: now and its value. None where there is no counter.
        """
        first, before = self._energy(), time.monotonic_ns()
        deadline = before + int(most_s * 1e9)
        while first is not None:
            time.sleep(poll_s)
            joules, now = self._energy(), time.monotonic_ns()
            if joules is None:
                break
            if joules != first:
                return (before + now) // 2, joules
            if now >= deadline:
                return now, joules
            before = now
        return None

    def _energy(self) -> float | None:
        return self._read_fields(["energy"]).get("energy")

    def _read_fields(self, names: list[str]) -> dict[str, float | None]:
        """Those field values of these that the card gives, in one call."""
        ids = [FIELDS[name][0] for name in names]
        with suppress(pynvml.NVMLError):
            fields = pynvml.nvmlDeviceGetFieldValues(self.handle, ids)
            return {
                name: getattr(field.value, TYPES[field.valueType]) * FIELDS[name][1]
                for name, field in zip(names, fields, strict=True)
                if field.nvmlReturn == pynvml.NVML_SUCCESS
            }
        return {}
