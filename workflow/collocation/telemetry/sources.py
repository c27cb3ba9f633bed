"""All telemetry sources, the columns that they declare, and the choice of one."""

from workflow.collocation.telemetry import nvml
from workflow.collocation.telemetry.base import ActivitySource, Metric, Unavailable
from workflow.collocation.telemetry.dcgm import Dcgm
from workflow.collocation.telemetry.gpm import Gpm

# Sources of a card's activity by their name in config, best first; plain NVML has none.
SOURCES: dict[str, type[ActivitySource]] = {source.name: source for source in (Gpm, Dcgm)}

# Columns of gpu.parquet, each name once, though several sources may have it.
_BY_NAME = {metric.name: metric for source in SOURCES.values() for metric in source.METRICS}
GPU_METRICS: tuple[Metric, ...] = (*_BY_NAME.values(), *nvml.METRICS)
# Shares of the SMs' time or cycles, which can be averaged over GPU instances by their SMs.
ACTIVITY_METRICS = [metric.name for metric in Gpm.METRICS if metric.unit == "1"]


def choose_source(
    uuid: str, entities: list[str], wanted: str = "auto"
) -> tuple[ActivitySource | None, str]:
    """The source to read a card's activity with, None for plain NVML, and a sentence that says why.

    wanted: "auto", "nvml", or the name of a source; raises Unavailable, with one line, where that
    cannot be had. It may wait a second or two for the first values.
    """
    if wanted == "nvml":
        return None, "plain NVML was asked for"
    reasons = ""
    for name in SOURCES if wanted == "auto" else [wanted]:
        try:
            return SOURCES[name](uuid, entities), f"{name} answers{reasons}"
        except Unavailable as reason:
            if wanted == name:
                raise Unavailable(f"telemetry source {name}: {reason}") from None
            reasons += f"; not {name}: {reason}"
    return None, f"plain NVML is all there is{reasons}"
