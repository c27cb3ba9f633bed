"""What plain NVML tells of a card: gauges and counters, and who computes on it.

A sampler asks ten times a second and each call goes to the driver, so what NVML can give as field
values is read in one call.
"""

from contextlib import suppress

import pynvml

from workflow.collocation.telemetry.metrics import METRICS

COLUMNS = [metric.name for metric in METRICS if metric.gpm is None]
# Column → field id, and what one of its units is in ours.
FIELDS = {
    "power": (pynvml.NVML_FI_DEV_POWER_INSTANT, 1e-3),
    "energy": (pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 1e-3),
}
# Where a field's value lies in NVML's union, by its type (NVML_VALUE_TYPE_…).
TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
CALLS = {
    "power": lambda card: pynvml.nvmlDeviceGetPowerUsage(card) / 1000,  # older drivers: no field
    "memory_used": lambda card: pynvml.nvmlDeviceGetMemoryInfo(card).used,
    "gpu_util": lambda card: pynvml.nvmlDeviceGetUtilizationRates(card).gpu / 100,
    "memory_util": lambda card: pynvml.nvmlDeviceGetUtilizationRates(card).memory / 100,
    "temperature": lambda card: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU),
    "sm_clock": lambda card: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM),
    "memory_clock": lambda card: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_MEM),
    "throttle": lambda card: pynvml.nvmlDeviceGetCurrentClocksEventReasons(card),
}
LISTS = {
    "compute": lambda card: pynvml.nvmlDeviceGetComputeRunningProcesses(card),
    "mps": lambda card: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(card),
}


class Card:
    """One GPU. Raises pynvml.NVMLError where NVML or the card is not there."""

    def __init__(self, uuid: str):
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read(self) -> dict[str, float | None]:
        """COLUMNS, in our units; None where the card does not answer."""
        values = dict.fromkeys(COLUMNS) | self._fields(*FIELDS)
        for name, call in CALLS.items():
            if values[name] is None:
                with suppress(pynvml.NVMLError):
                    values[name] = call(self.handle)
        return values

    def energy(self) -> float | None:
        """The counter of the board's energy (J), which moves in steps of some 20 to 100 ms."""
        return self._fields("energy").get("energy")

    def processes(self) -> dict[str, dict[int, int] | None]:
        """Who computes on the card, "compute" and "mps": PID → bytes, 0 where not told.

        A list is None where NVML does not give it. In a container PIDs may be the host's.
        """
        found: dict[str, dict | None] = dict.fromkeys(LISTS)
        for name, call in LISTS.items():
            with suppress(pynvml.NVMLError):
                entries, memory = call(self.handle), {}
                for entry in entries:  # once for each part of a partitioned card
                    memory[entry.pid] = memory.get(entry.pid, 0) + (entry.usedGpuMemory or 0)
                found[name] = memory
        return found

    def _fields(self, *names: str) -> dict[str, float]:
        """Those of these field values that the card gives, in one call."""
        ids = [FIELDS[name][0] for name in names]
        with suppress(pynvml.NVMLError):
            answers = pynvml.nvmlDeviceGetFieldValues(self.handle, ids)
            return {
                name: getattr(answer.value, TYPES[answer.valueType]) * FIELDS[name][1]
                for name, answer in zip(names, answers, strict=True)
                if answer.nvmlReturn == pynvml.NVML_SUCCESS
            }
        return {}
