"""Activity of the GPU from NVML's GPM counters (Hopper and newer): the card's, or an instance's.

A rate comes from two samples of the counters, however far apart, so a window has one exact value
beside its series. NVML refreshes the counters about every 100 ms. A closer pair says nothing: on an
H200 it read 0 in all metrics, with DRAMA NaN or 0 (driver 580). Such a pair gives no row; the older
sample is kept, so that the next row covers both times.
"""

import math
import time
import weakref

import pynvml

from workflow.collocation.telemetry.base import ActivitySource, Metric, Rates, Unavailable

FIRST_S = 0.2  # between the two samples that show whether the card answers
LEAST_NS = 100_000_000  # between two samples of a pair
# A closer pair in which nothing happened was not refreshed: even asking is traffic.
DOUBT_S = 0.15
SCALES = {"1": 1 / 100, "B/s": 2**20}  # NVML's unit (%, MiB/s) in ours
# Numbers of NVML_GPM_METRIC_… in nvidia-ml-py. Those of context switches (170 to 174) are left
# out: they read 0 also where time slices switch (findings/gpm_sees_no_context_switches.sh).
METRIC_IDS = {"gract": 1, "smact": 2, "smocc": 3, "tenso": 5, "drama": 10}
METRIC_IDS |= {"fp16": 13, "fp32": 12, "fp64": 11, "integer": 4}
METRIC_IDS |= {"pcie_tx": 20, "pcie_rx": 21, "nvlink_tx": 61, "nvlink_rx": 60}


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


class Gpm(ActivitySource):
    """GPM counters of one card. Its methods raise pynvml.NVMLError."""

    name = "gpm"
    METRICS = (
        Metric("gract", "1", "rate", "share of time with a graphics or compute engine active"),
        Metric("smact", "1", "rate", "share of time in which an SM had a warp, mean over SMs"),
        Metric("smocc", "1", "rate", "resident warps over the most that fit, mean over SMs"),
        Metric("tenso", "1", "rate", "share of cycles with the tensor pipes active"),
        Metric("drama", "1", "rate", "share of cycles in which device memory moved data"),
        Metric("fp16", "1", "rate", "share of cycles with the FP16 pipes active"),
        Metric("fp32", "1", "rate", "share of cycles with the FP32 pipes active"),
        Metric("fp64", "1", "rate", "share of cycles with the FP64 pipes active"),
        Metric("integer", "1", "rate", "share of cycles with the integer pipes active"),
        Metric("pcie_tx", "B/s", "rate", "sent by the GPU over PCIe"),
        Metric("pcie_rx", "B/s", "rate", "received by the GPU over PCIe"),
        Metric("nvlink_tx", "B/s", "rate", "sent by the GPU over NVLink"),
        Metric("nvlink_rx", "B/s", "rate", "received by the GPU over NVLink"),
    )

    def __init__(self, uuid: str, entities: list[str]):
        """Open the card and try two samples. entities: "gpu", and "gi:<id>" under MIG.

        Raises Unavailable where GPM gives nothing.
        """
        self._entities = entities
        self._last: dict[str, _Sample] = {}
        self._request = pynvml.c_nvmlGpmMetricsGet_t(version=pynvml.NVML_GPM_METRICS_GET_VERSION)
        self._request.numMetrics = len(self.METRICS)
        for metric, entry in zip(self.METRICS, self._request.metrics, strict=False):
            entry.metricId = METRIC_IDS[metric.name]
        try:
            pynvml.nvmlInit()
            self._card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            if not pynvml.nvmlGpmQueryDeviceSupport(self._card).isSupportedDevice:
                raise Unavailable("the card has no GPM counters (Hopper and newer have)")
            begin = self.sample()
            time.sleep(FIRST_S)
            spans = self.rates_between(begin, self.sample())
        except pynvml.NVMLError as error:
            raise Unavailable(f"GPM fails ({error})") from None
        if not spans:
            raise Unavailable("GPM gives no metric of two samples")

    def read_rates(self) -> dict[str, Rates]:
        rates = {}
        for entity in self._entities:
            older = self._last.get(entity)
            if older is not None and time.monotonic_ns() - older.t_ns < LEAST_NS:
                continue
            newer = _Sample(self._card, entity)
            if older and (pair := self._rates(older, newer)):
                rates[entity] = pair
            if older is None or entity in rates:
                self._last[entity] = newer
        return rates

    def sample(self) -> dict[str, _Sample]:
        return {entity: _Sample(self._card, entity) for entity in self._entities}

    def rates_between(self, begin: dict[str, _Sample], end: dict[str, _Sample]) -> dict[str, dict]:
        spans = {}
        for entity, newer in end.items():
            older = begin[entity]
            if rates := self._rates(older, newer):
                spans[entity] = {"start_ns": older.t_ns, "end_ns": newer.t_ns, "v": rates}
        return spans

    def close(self) -> None:
        self._last = {}

    def _rates(self, older: _Sample, newer: _Sample) -> Rates | None:
        """All metrics of a pair of samples, None for one that NVML does not give, or as NaN; None
        where the pair says nothing.
        """
        request = self._request
        request.sample1, request.sample2 = older.buffer, newer.buffer
        for _, entry in zip(self.METRICS, request.metrics, strict=False):
            entry.nvmlReturn = pynvml.NVML_ERROR_UNKNOWN
        pynvml.nvmlGpmMetricsGet(request)
        rates: Rates = dict.fromkeys(METRIC_IDS)
        for metric, entry in zip(self.METRICS, request.metrics, strict=False):
            if entry.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(entry.value):
                rates[metric.name] = entry.value * SCALES[metric.unit]
        if all(rates[metric.name] is None for metric in self.METRICS if metric.unit == "1"):
            return None
        close = (newer.t_ns - older.t_ns) / 1e9 < DOUBT_S
        return None if close and not any(rates.values()) else rates
