"""Activity of the GPU from NVML's GPM counters (Hopper and newer): the card's, or an instance's.

A rate comes from two samples of the counters, however far apart, so a window has one exact value
beside its series. NVML refreshes the counters about every 100 ms. A closer pair says nothing: on an
H200 it read 0 in all metrics, with DRAMA NaN or 0 (driver 580). Such a pair gives no row; the older
sample is kept, so that the next row covers both times.
"""

import math
import time
from contextlib import suppress

import pynvml

from workflow.collocation.telemetry.metrics import METRICS, Metric, Unavailable

FIRST_S = 0.2  # between the two samples that show whether the card answers
LEAST_NS = 100_000_000  # between two samples of a pair
DOUBT_S = 0.15  # a closer pair in which nothing happened was not refreshed: even asking is traffic
ACTIVITY = [metric.name for metric in METRICS if metric.dcgm and metric.unit == "1"]


class _Sample:
    """A sample of an entity's counters, and when it was taken (monotonic ns)."""

    buffer = None

    def __init__(self, card, entity: str):
        self.buffer = pynvml.nvmlGpmSampleAlloc()
        if entity == "gpu":
            pynvml.nvmlGpmSampleGet(card, self.buffer)
        else:
            pynvml.nvmlGpmMigSampleGet(card, int(entity.removeprefix("gi:")), self.buffer)
        self.t_ns = time.monotonic_ns()

    def __del__(self):
        if self.buffer is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(self.buffer)


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
            found = older and self._rates(older, newer)
            if found:
                rates[entity] = found
            if found or older is None:
                self._last[entity] = newer
        return rates

    def open(self) -> dict[str, _Sample]:
        """A sample of every entity: an end of spans."""
        return {entity: _Sample(self._card, entity) for entity in self._entities}

    def span(self, begin: dict[str, _Sample], end: dict[str, _Sample]) -> dict[str, dict]:
        """Entity → {"metrics", "start_ns", "end_ns"} between two `open`s, from one pair."""
        pairs = {entity: (begin[entity], newer) for entity, newer in end.items()}
        return {
            entity: {"metrics": found, "start_ns": older.t_ns, "end_ns": newer.t_ns}
            for entity, (older, newer) in pairs.items()
            if (found := self._rates(older, newer))
        }

    def close(self) -> None:
        """Look at nothing any more."""
        self._last = {}

    def _knows(self, metric: Metric, older: _Sample, newer: _Sample) -> bool:
        """Of a metric that it does not know, an older driver may refuse the whole call."""
        with suppress(pynvml.NVMLError):
            return bool(self._evaluate([metric], older, newer))
        return False

    def _rates(self, older: _Sample, newer: _Sample) -> dict | None:
        """Metric → value in our unit; None when the counters were not refreshed in between."""
        rates, seconds = (
            self._evaluate(self._metrics, older, newer),
            (newer.t_ns - older.t_ns) / 1e9,
        )
        if rates.get("ctxsw_requests") is not None:  # a count over the pair
            rates["ctxsw_requests"] /= seconds
        unknown = all(rates.get(name) is None for name in ACTIVITY)
        return None if unknown or (seconds < DOUBT_S and not any(rates.values())) else rates

    def _evaluate(self, metrics: list[Metric], older: _Sample, newer: _Sample) -> dict:
        """A value for each metric of this pair; None for one that NVML does not give, or as NaN."""
        request = self._request
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = older.buffer, newer.buffer
        for index, metric in enumerate(metrics):
            request.metrics[index].metricId = metric.gpm
            request.metrics[index].nvmlReturn = pynvml.NVML_ERROR_UNKNOWN
        pynvml.nvmlGpmMetricsGet(request)
        rates = dict.fromkeys(metric.name for metric in metrics)
        for metric, answer in zip(metrics, request.metrics, strict=False):
            if answer.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(answer.value):
                rates[metric.name] = answer.value * metric.gpm_scale
        return rates
