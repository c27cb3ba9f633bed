"""Values of a window that cannot be right, whichever source they are from."""

from collections.abc import Iterator, Mapping

import numpy as np

from workflow.collocation.record.series import MAX_SHARE, SHARES
from workflow.collocation.telemetry.metrics import ACTIVITY

COMPARED = ("gract", "smact", "smocc", "tenso", "drama")
# With either a card is at work. A CUDA context at rest draws up to 1.6 times the idle power; at
# this utilisation one SM at work is an SMACT of 0.001, DCGM's last digit.
BUSY_UTIL, BUSY_POWER = 0.1, 2.0  # the latter: times the power when idle
# Readings stand still if so many are one value, a share's between these, while the middle half of
# another metric's spreads over more than this part of its median. Rounded to DCGM's three digits,
# honest ones stand still beside shares that spread over 0.01, and power over 0.07.
STILL, STILL_LOW, STILL_HIGH = 10, 0.01, 0.99
LEAST = 0.1  # of a median: below, the last digit is a move
MOVES = dict.fromkeys(COMPARED, 0.03) | {"power": 0.1}

ByMetric = Mapping[str, np.ndarray]
Pairs = Mapping[str, Mapping[str, float | None]]


def contradictions(
    readings: Mapping[str, ByMetric],
    pairs: Pairs,
    idle_power: float | None,
) -> dict[tuple[str, str], str]:
    """(entity, metric) → why its value cannot be right.

    readings: of a window, by entity. pairs: values of the pair of samples that spans it, if any.
    """
    wrong = {}
    for entity, of in readings.items():
        wrong |= {(entity, name): "stands still while others move" for name in _still(of)}
        for name in SHARES:
            values = np.append(of[name], pairs[entity].get(name) or 0.0)
            beyond = values[(values < 0) | (values > MAX_SHARE)]
            if len(beyond):
                said = f"reads {max(beyond, key=abs):.4f}, and a share lies between 0 and 1"
                wrong[entity, name] = said
    if "gpu" in readings and (why := _busy(readings["gpu"], idle_power)):
        for zero in _zeros(readings, pairs):
            wrong |= dict.fromkeys(zero, f"reads 0 all the time, and {why}")
    return wrong


def _still(of: ByMetric) -> Iterator[str]:
    """Metrics whose readings are one value while those of others move."""
    if not any(_spread(of[name]) > least for name, least in MOVES.items()):
        return
    for name in MOVES:
        values = of[name]
        if len(values) < STILL or (values != values[0]).any():
            continue
        if name not in SHARES or STILL_LOW < values[0] < STILL_HIGH:
            yield name


def _spread(values: np.ndarray) -> float:
    """The width of the middle half of these, over their median; 0 of too few."""
    low, median, high = np.percentile(values, (25, 50, 75)) if len(values) >= STILL else (0, 0, 0)
    return (high - low) / max(median, LEAST)


def _busy(card: ByMetric, idle_power: float | None) -> str | None:
    """By what NVML alone tells that the card is at work, in words."""
    util, power = (card[name].mean() if card[name].size else 0.0 for name in ("gpu_util", "power"))
    if util > BUSY_UTIL:
        return f"the card's utilisation is {util:.2f}"
    if idle_power and power > BUSY_POWER * idle_power:
        return f"the card draws {power:.0f} W, and {idle_power:.0f} W when idle"
    return None


def _zeros(readings: Mapping[str, ByMetric], pairs: Pairs) -> Iterator[set[tuple[str, str]]]:
    """What reads 0 all the time where GRACT or SMACT does: of the card, or of all its instances,
    one of which may rest while another works.
    """
    for group in ({"gpu"} & readings.keys(), readings.keys() - {"gpu"}):
        zero = {
            (entity, name)
            for entity in group
            for name in ACTIVITY
            if (len(readings[entity][name]) and not readings[entity][name].any())
            or pairs[entity].get(name) == 0
        }
        if any({(entity, name) for entity in group} <= zero for name in ("gract", "smact")):
            yield zero
