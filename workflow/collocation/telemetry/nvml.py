"""What plain NVML tells of a card: gauges and counters, who computes on it, when its energy grew.

A sampler asks ten times a second and each call goes to the driver, so what NVML can give as field
values is read in one call, less often where it changes slowly, and what the card refuses for good
is not asked again.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import pynvml

from workflow.collocation.telemetry.vocabulary import METRICS

COLUMNS = tuple(metric.name for metric in METRICS if metric.gpm is None)
NEVER = {  # codes that asking again would not change
    pynvml.NVML_ERROR_INVALID_ARGUMENT,  # a field that this driver does not know
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_DEPRECATED,
}
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
QUICK = tuple(name for name in FIELDS if name not in SLOW)
TYPES = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


def _violation(policy: int) -> Callable:
    return lambda card: pynvml.nvmlDeviceGetViolationStatus(card, policy).violationTime / 1e9


# By column, calls that tell what a field does, and calls for what no field tells.
FALLBACKS = {
    "power": lambda card: pynvml.nvmlDeviceGetPowerUsage(card) / 1000,
    "energy": lambda card: pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1000,
    "power_violation": _violation(pynvml.NVML_PERF_POLICY_POWER),
    "thermal_violation": _violation(pynvml.NVML_PERF_POLICY_THERMAL),
}
CALLS = {
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

    readers: what a tick asks, as label → function giving its columns. refused: what the card said
    last when it did not answer, by label or column. Raises pynvml.NVMLError where NVML or the card
    is not there.
    """

    def __init__(self, uuid: str):
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._fields = tuple(FIELDS)  # those that the card answers
        self.refused: dict[str, str] = {}
        self.readers: dict[str, Callable[[], dict[str, float | None]]] = {
            "fields": lambda: self._read_fields(QUICK),
            "slow fields": lambda: self._read_fields(SLOW),
            "utilisation": self._utilisation,
        }
        for column, call in CALLS.items():
            self._add(column, call)
        self.read()  # what the card refuses for good shows now, and a fallback takes its place

    def describe(self) -> dict[str, str | float | None]:
        """Name, UUID, driver, and the power limit in force (W; null where not told)."""
        limit = None
        with suppress(pynvml.NVMLError):
            limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(self.handle) / 1000
        return {
            "name": pynvml.nvmlDeviceGetName(self.handle),
            "uuid": pynvml.nvmlDeviceGetUUID(self.handle),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "power_limit": limit,
        }

    def read(self, slow: bool = True) -> dict[str, float | None]:
        """COLUMNS of the vocabulary, in its units; null where the card does not answer.

        slow: also those of SLOW, which are left out else.
        """
        left_out = () if slow else (*SLOW, "slow fields")
        values = dict.fromkeys(name for name in COLUMNS if name not in left_out)
        for label, reader in list(self.readers.items()):
            if label not in left_out:
                values |= self._ask(label, reader)
        return values

    def processes(self) -> dict[str, list[dict[str, int | None]] | None]:
        """Who computes on the card, "compute" and "mps": [{"pid", "memory": bytes or null}].

        A list is null where NVML does not give it. In a container PIDs may be the host's.
        """
        found: dict[str, list | None] = dict.fromkeys(LISTS)
        for name, call in LISTS.items():
            try:
                entries = call(self.handle)
            except pynvml.NVMLError as error:
                self.refused[name] = str(error)
                continue
            found[name] = [{"pid": entry.pid, "memory": entry.usedGpuMemory} for entry in entries]
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

    def _ask(self, label: str, reader: Callable[[], dict]) -> dict[str, float | None]:
        """What the reader gives; nothing where NVML refuses."""
        try:
            return reader()
        except pynvml.NVMLError as error:
            self.refused[label] = str(error)
            if error.value in NEVER:
                self.readers.pop(label, None)
                if label.endswith("fields"):
                    self._without(self._fields)
            return {}

    def _add(self, column: str, call: Callable) -> None:
        self.readers[column] = lambda: {column: call(self.handle)}

    def _utilisation(self) -> dict[str, float]:
        rates = pynvml.nvmlDeviceGetUtilizationRates(self.handle)
        return {"gpu_util": rates.gpu / 100, "memory_util": rates.memory / 100}

    def _read_fields(self, wanted: tuple[str, ...]) -> dict[str, float | None]:
        """Those of these field values that the card answers, in one call."""
        names = [name for name in wanted if name in self._fields]
        if not names:
            return {}
        fields = pynvml.nvmlDeviceGetFieldValues(self.handle, [FIELDS[name][0] for name in names])
        values: dict[str, float | None] = {}
        for name, field in zip(names, fields, strict=True):
            values[name] = None
            if field.nvmlReturn == pynvml.NVML_SUCCESS:
                values[name] = getattr(field.value, TYPES[field.valueType]) * FIELDS[name][1]
                continue
            self.refused[name] = pynvml.nvmlErrorString(field.nvmlReturn)
            if field.nvmlReturn in NEVER:
                self._without((name,))
        return values

    def _without(self, names: tuple[str, ...]) -> None:
        """Ask for these fields no more, but by the calls that tell the same."""
        self._fields = tuple(name for name in self._fields if name not in names)
        for name in names:
            if name in FALLBACKS:
                self._add(name, FALLBACKS[name])

    def _energy(self) -> float | None:
        if "energy" in self._fields:
            return self._ask("energy", lambda: self._read_fields(("energy",))).get("energy")
        reader = self.readers.get("energy")
        return self._ask("energy", reader).get("energy") if reader else None
