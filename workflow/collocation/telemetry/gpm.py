"""Activity of the GPU from NVML's GPM counters (Hopper and newer): the card's, or an instance's.

A rate comes from two samples of the counters, however far apart, so a window has one exact value
beside its series. NVML refreshes the counters about every 100 ms. A closer pair says nothing: on an
H200 it read 0 in all metrics, with DRAMA NaN or 0 (driver 580). Such a pair gives no row; the older
sample is kept, so that the next row covers both times.
"""

import math
import time
import weakref
from contextlib import suppress

import pynvml

from workflow.collocation.telemetry.metrics import ACTIVITY, METRICS, Metric, Unavailable

FIRST_S = 0.2  # between the two samples that show whether the card answers
LEAST_NS = 100_000_000  # between two samples of a pair
DOUBT_S = 0.15  # a closer pair in which nothing happened was not refreshed: even asking is traffic
SCALES = {"1": 1 / 100, "B/s": 2**20, "1/s": 1}  # NVML's unit (%, MiB/s) in ours


class _Sample:
    """A sample of an entity's counters, and when it was taken (monotonic ns)."""

    def __init__(self, card, entity: str):
        self.buffer = pynvml.nvmlGpmSampleAlloc()
        weakref.finalize(self, pynvml.nvmlGpmSampleFree, self.buffer).atexit = False
        if entity == "gpu":
            pynvml.nvmlGpmSampleGet(card, self.buffer)
        else:
            pynvml.nvmlGpmMigSampleGet(card, int(entity.removeprefix("gi:")), self.buffer)
        self.t_ns = time.monotonic_ns()


class Gpm:
    """GPM of one card. Raises Unavailable where the card or NVML gives no metric of a pair; its
    other methods raise pynvml.NVMLError.

    entities: "gpu", or "gi:<id>" of a GPU instance under MIG.
    """

    name = "gpm"

    def __init__(self, uuid: str, entities: list[str]):
        self._entities, self._last = entities, {}
        self._request = pynvml.c_nvmlGpmMetricsGet_t(version=pynvml.NVML_GPM_METRICS_GET_VERSION)
        try:
            pynvml.nvmlInit()
            self._card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            if not pynvml.nvmlGpmQueryDeviceSupport(self._card).isSupportedDevice:
                raise Unavailable("the card has no GPM counters (Hopper and newer have)")
            begin = self.open()
            time.sleep(FIRST_S)
            end = self.open()
        except pynvml.NVMLError as error:
            raise Unavailable(f"GPM fails ({error})") from None
        self._metrics = [m for m in METRICS if m.gpm and self._knows(m, begin["gpu"], end["gpu"])]
        if not self.span(begin, end):
            raise Unavailable("GPM gives no metric of two samples")

    def tick(self) -> dict[str, dict[str, float | None]]:
        """Entity → rates since the tick before; {} at the first, an entity missing when unknown."""
        rates = {}
        for entity in self._entities:
            older = self._last.get(entity)
            if older is not None and time.monotonic_ns() - older.t_ns < LEAST_NS:
                continue
            newer = _Sample(self._card, entity)
            if older and (found := self._rates(older, newer)):
                rates[entity] = found
            if older is None or entity in rates:
                self._last[entity] = newer
        return rates

    def open(self) -> dict[str, _Sample]:
        """A sample of every entity: an end of spans."""
        return {entity: _Sample(self._card, entity) for entity in self._entities}

    def span(self, begin: dict[str, _Sample], end: dict[str, _Sample]) -> dict[str, dict]:
        """Entity → {"v", "start_ns", "end_ns"}: rates between two `open`s, from one pair."""
        return {
            entity: {"start_ns": begin[entity].t_ns, "end_ns": newer.t_ns, "v": found}
            for entity, newer in end.items()
            if (found := self._rates(begin[entity], newer))
        }

    def close(self) -> None:
        self._last = {}

    def _knows(self, metric: Metric, older: _Sample, newer: _Sample) -> bool:
        """Of a metric that it does not know, an older driver may refuse the whole call."""
        with suppress(pynvml.NVMLError):
            return bool(self._evaluate([metric], older, newer))
        return False

    def _rates(self, older: _Sample, newer: _Sample) -> dict | None:
        """All metrics of a pair; None where it says nothing."""
        rates = self._evaluate(self._metrics, older, newer)
        seconds = (newer.t_ns - older.t_ns) / 1e9
        if rates.get("ctxsw_requests") is not None:  # a count over the pair
            rates["ctxsw_requests"] /= seconds
        unknown = all(rates.get(name) is None for name in ACTIVITY)
        return None if unknown or (seconds < DOUBT_S and not any(rates.values())) else rates

    def _evaluate(self, metrics: list[Metric], older: _Sample, newer: _Sample) -> dict:
        """A value for each metric of this pair; None for one that NVML does not give, or as NaN."""
        request = self._request
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = older.buffer, newer.buffer
        for metric, asked in zip(metrics, request.metrics, strict=False):
            asked.metricId, asked.nvmlReturn = metric.gpm, pynvml.NVML_ERROR_UNKNOWN
        pynvml.nvmlGpmMetricsGet(request)
        rates = dict.fromkeys(metric.name for metric in metrics)
        for metric, told in zip(metrics, request.metrics, strict=False):
            if told.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(told.value):
                rates[metric.name] = told.value * SCALES[metric.unit]
        return rates
