"""Activity of the GPU from NVML's GPM counters (Hopper and newer): the card's, or an instance's.

A rate comes from two samples of the counters, however far apart, so a window has one exact value
beside its series. NVML refreshes the counters about every 100 ms. A closer pair says nothing: on an
H200 it read 0 in all metrics, with DRAMA NaN or 0 (driver 580). Such a pair gives no row; the older
sample is kept, so that the next row covers both times.
"""

import time
from collections.abc import Iterable
from contextlib import suppress

import pynvml

from workflow.collocation.telemetry.vocabulary import METRICS, Metric, SourceLost, Unavailable

REFRESH_S = 0.12  # a little more than the counters' own step
TRIES = 4  # for the first pair to answer
LEAST_S = 0.1005  # between two samples of a pair
LATE_S = 0.015  # how long a tick may wait for that
DOUBT_S = 0.15  # a closer pair in which nothing happened was not refreshed: even asking is traffic
PATIENCE = 20  # ticks in a row that may fail before the source is given up
METRICS_OF_GPM = tuple(metric for metric in METRICS if metric.gpm is not None)
ACTIVITY = {metric.name for metric in METRICS if metric.dcgm and metric.unit == "1"}  # ratios


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
    """GPM of one card. Raises Unavailable where the card or NVML gives no metric of a pair.

    entities: "gpu", or "gi:<id>" of a GPU instance under MIG; one that gives no sample at the
    beginning is left out.
    """

    name = "gpm"

    def __init__(self, uuid: str, entities: list[str]):
        self._last: dict[str, _Sample | None] = {}  # by entity; None before the first tick
        self._metrics: dict[str, list[Metric]] = {}  # those that NVML knows of an entity
        self._failed, self._said = 0, "without an error"  # ticks in a row, and NVML's last words
        self._request = pynvml.c_nvmlGpmMetricsGet_t(version=pynvml.NVML_GPM_METRICS_GET_VERSION)
        try:
            pynvml.nvmlInit()
            self._card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            supported = pynvml.nvmlGpmQueryDeviceSupport(self._card).isSupportedDevice
        except pynvml.NVMLError as error:
            raise Unavailable(f"NVML does not say whether the card has GPM ({error})") from None
        if not supported:
            raise Unavailable("the card has no GPM counters (Hopper and newer have)")
        self._last = self.open(entities)
        for _ in range(TRIES if self._last else 0):
            time.sleep(REFRESH_S)
            if self._answers(self._last, self.open()):
                break
        else:
            self.close()
            raise Unavailable(f"GPM gives no metric of two samples ({self._said})")
        self._last = dict.fromkeys(self._last)

    def tick(self) -> dict[str, dict[str, float | None]]:
        """Entity → rates since the tick before; {} at the first, an entity missing when unknown.

        Waits until it is late enough after the one before, if that takes LATE_S at most. Raises
        SourceLost once, when nothing has answered for PATIENCE ticks; then {}.
        """
        rates: dict[str, dict[str, float | None]] = {}
        failed = False
        for entity, older in self._last.items():
            if older is not None and not _refreshed(older):
                continue
            try:
                newer = _Sample(self._card, entity)
                found = self._rates(entity, older, newer) if older is not None else None
            except pynvml.NVMLError as error:
                failed, self._said = True, f"{entity}: {error}"
                continue
            if found is not None:
                rates[entity] = found
            if found is not None or older is None:
                self._last[entity] = newer
        self._failed = self._failed + 1 if failed and not rates else 0
        if self._failed >= PATIENCE:
            self.close()
            raise SourceLost(f"GPM failed {PATIENCE} times in a row: {self._said}")
        return rates

    def open(self, entities: Iterable[str] | None = None) -> dict[str, _Sample]:
        """A sample of every entity that gives one: an end of spans. entities: all that it has."""
        held: dict[str, _Sample] = {}
        for entity in self._last if entities is None else entities:
            try:
                held[entity] = _Sample(self._card, entity)
            except pynvml.NVMLError as error:
                self._said = f"{entity}: {error}"
        return held

    def span(self, begin: dict[str, _Sample], end: dict[str, _Sample]) -> dict[str, dict]:
        """Entity → {"metrics", "start_ns", "end_ns"} between two `open`s, from one pair."""
        spans = {}
        for entity, older in begin.items():
            with suppress(pynvml.NVMLError, KeyError):
                newer = end[entity]
                if (found := self._rates(entity, older, newer)) is not None:
                    times = {"start_ns": older.t_ns, "end_ns": newer.t_ns}
                    spans[entity] = {"metrics": found} | times
        return spans

    def close(self) -> None:
        """Look at nothing any more."""
        self._last = {}

    def _answers(self, begin: dict[str, _Sample], end: dict[str, _Sample]) -> bool:
        """Whether some entity has a metric now. Notes the metrics that NVML knows: of one that it
        does not know, older drivers may refuse the whole call.
        """
        for entity, newer in end.items():
            known = self._metrics[entity] = []
            for metric in METRICS_OF_GPM:
                try:
                    self._evaluate([metric], begin[entity], newer)
                    known.append(metric)
                except pynvml.NVMLError as error:
                    self._said = f"{entity}: {error}"
        return bool(self.span(begin, end))

    def _rates(self, entity: str, older: _Sample, newer: _Sample) -> dict | None:
        """Metric → value in our unit; None when the counters were not refreshed in between."""
        rates = self._evaluate(self._metrics[entity], older, newer)
        if rates.get("ctxsw_requests") is not None:  # a count over the pair
            rates["ctxsw_requests"] /= (newer.t_ns - older.t_ns) / 1e9
        unknown = all(rates.get(name) is None for name in ACTIVITY)
        doubtful = newer.t_ns - older.t_ns < DOUBT_S * 1e9 and not any(rates.values())
        return None if unknown or doubtful else rates

    def _evaluate(
        self, metrics: list[Metric], older: _Sample, newer: _Sample
    ) -> dict[str, float | None]:
        """A value for each metric of this pair; null for one that NVML does not give."""
        request = self._request
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = older.buffer, newer.buffer
        for index, metric in enumerate(metrics):
            request.metrics[index].metricId = metric.gpm
            request.metrics[index].nvmlReturn = pynvml.NVML_ERROR_UNKNOWN
        pynvml.nvmlGpmMetricsGet(request)
        rates: dict[str, float | None] = dict.fromkeys(metric.name for metric in metrics)
        for metric, answer in zip(metrics, request.metrics, strict=False):
            if answer.nvmlReturn == pynvml.NVML_SUCCESS:
                rates[metric.name] = metric.from_gpm(answer.value)
        return rates


def _refreshed(older: _Sample) -> bool:
    """Whether the counters are newer than that sample, after a short wait if need be."""
    left = (older.t_ns - time.monotonic_ns()) / 1e9 + LEAST_S
    if 0 < left <= LATE_S:
        time.sleep(left)
    return left <= LATE_S
