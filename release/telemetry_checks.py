"""Whether a record's telemetry follows from the series of readings beside it."""

from collections.abc import Iterator
from math import isclose
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from analysis.files import read_table
from workflow.collocation.record.run_json import Record
from workflow.collocation.record.series import SHARES, Series
from workflow.collocation.record.values import Energy, WindowTelemetry
from workflow.collocation.study.layout import RUN

CARD = "gpu"
SERIES_TOLERANCE = 1e-5  # relative: means of single-precision readings
# A share of the GPU's time comes from the pair of samples at a window's ends. In the shipped
# records it is within 0.0142, and within 4 % and 0.0003, of the mean of its series.
SHARE_TOLERANCE, SHARE_RELATIVE, SHARE_LEAST = 0.02, 0.06, 0.0005
# The energy counter moves every 0.1 s, so it knows each end of a window no better.
COUNTER_S = 0.2
ONCE = "pss"  # read once after each window, in older records
SeriesOf = dict[tuple[str, str], Series]  # by file (gpu, member, host) and entity


def read_series(folder: Path, record: Record) -> SeriesOf:
    """The series of all that a record has means of, from the files in an attempt's folder."""
    windows = record.telemetry.windows.values() if record.telemetry else ()
    series = {}
    for file, column in ((CARD, "entity"), ("member", "member"), ("host", None)):
        entities = dict.fromkeys(entity for window in windows for entity in _means(window, file))
        if not entities:
            continue
        table = read_table(folder / f"{file}.parquet")
        if "window" in table.schema.names:  # read once after a window: no part of the series
            table = table.filter(table["window"].is_null())
        for entity in entities:
            rows = table
            if column:
                rows = table.filter(pc.equal(table[column].cast("string"), entity))
            series[file, entity] = Series.of_table(rows)
    return series


def energy_readings(series: SeriesOf) -> np.ndarray:
    """Readings of the card's energy counter in J, in order; empty without one."""
    values = series[CARD, CARD].columns.get("energy", ()) if (CARD, CARD) in series else ()
    return np.asarray(values)[np.isfinite(values)]


def telemetry_problems(record: Record, series: SeriesOf) -> Iterator[str]:
    """Sentences on means, shares and energies over windows that the series does not give."""
    if record.telemetry is None:
        return
    windows = {window.name: window for window in record.windows}
    for name, telemetry in record.telemetry.windows.items():
        window, place = windows[name], f"{RUN}: telemetry.windows.{name}"
        for (file, entity), readings in series.items():
            for metric, mean in _means(telemetry, file).get(entity, {}).items():
                if metric not in readings.columns or metric == ONCE:
                    continue
                computed = readings.over(metric, window.ends, window.spans)
                if not _close(mean, computed):
                    yield f"{place}.{entity}.{metric} is {mean}, {file}.parquet gives {computed}"
        for entity, headline in telemetry.entities.items():
            means = telemetry.series.get(entity, {})
            rates = series[CARD, entity].rates if means else ()
            for metric in headline.keys() & means.keys():
                value, mean = headline[metric], means[metric]
                is_mean = bool(window.spans) or metric not in rates
                if None not in (value, mean) and not _agree(metric, value, mean, is_mean):
                    yield f"{place}: {metric} of {entity} is {value}, its series has {mean}"
        if telemetry.energy:
            card = series[CARD, CARD]
            for problem in _energy_problems(telemetry.energy, card, window.ends, window.seconds):
                yield f"{place}: {problem}"
    if (np.diff(energy_readings(series)) < 0).any():
        yield "gpu.parquet: the energy counter falls"


def _agree(metric: str, value: float, mean: float, is_mean: bool) -> bool:
    """Whether what stands for a window agrees with the mean of its series.

    is_mean: it was computed from the series, and not from two samples.
    """
    if is_mean:
        return _close(value, mean)
    if metric not in SHARES:  # bytes per second come in bursts, which two samples cut off
        return True
    return abs(value - mean) <= min(SHARE_TOLERANCE, SHARE_RELATIVE * mean + SHARE_LEAST)


def _energy_problems(
    energy: Energy, card: Series, ends: tuple[int, int], seconds: float
) -> Iterator[str]:
    """What of a window's energy neither the counter nor the power readings give."""
    if not isclose(energy.joules, energy.mean_power * seconds, rel_tol=1e-6):
        yield f"energy is {energy.joules} J, {energy.mean_power} W in {seconds} s"
    if energy.integrated_joules:
        joules = card.integral("power", ends)
        if not _close(energy.integrated_joules, joules):
            yield f"integrated_joules is {energy.integrated_joules}, readings give {joules}"
    counter = card.columns.get("energy", np.empty(0))
    is_read = np.isfinite(counter)
    if is_read.any():
        first, last = np.interp(ends, card.t[is_read], counter[is_read])
        power = float(last - first) / (ends[1] - ends[0]) * 1e9
        if not isclose(energy.mean_power, power, rel_tol=COUNTER_S / seconds):
            yield f"mean_power is {energy.mean_power}, the energy counter gives {power}"


def _means(window: WindowTelemetry, file: str) -> dict[str, dict]:
    """Means over a window that come from a series file, by entity."""
    if file == "host":
        return {"host": window.host} if window.host else {}
    return window.series if file == CARD else window.members


def _close(recorded: float | None, computed: float | None) -> bool:
    if recorded is None or computed is None:
        return recorded is computed
    return isclose(recorded, computed, rel_tol=SERIES_TOLERANCE, abs_tol=1e-12)
