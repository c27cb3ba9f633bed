"""Values of a window that cannot be right, whichever source they are from."""

from collections.abc import Iterator, Mapping

import numpy as np

from workflow.collocation.record.series import MAX_SHARE, SHARES
from workflow.collocation.telemetry.sources import ACTIVITY_METRICS

COMPARED = ("gract", "smact", "smocc", "tenso", "drama")
# With more of either a card is at work. A CUDA context at rest draws up to 1.6 times the idle
# power; at this utilisation one SM at work is an SMACT of 0.001, DCGM's last digit.
BUSY_UTIL, BUSY_POWER = 0.1, 2.0  # the latter: times the power when idle
# Readings stand still if so many are one value (of a share: between these), while the middle half
# of another metric's spreads over more than this part of its median. Rounded to DCGM's three
# digits, honest ones stand still beside shares that spread over 0.01, and power over 0.07.
STILL, STILL_LOW, STILL_HIGH = 10, 0.01, 0.99
LEAST = 0.1  # of a median: below it, a change of the last digit would count as a move
MOVES = dict.fromkeys(COMPARED, 0.03) | {"power": 0.1}

Readings = Mapping[str, np.ndarray]  # by metric
Pairs = Mapping[str, Mapping[str, float | None]]  # values of a pair of samples, by entity


def contradictions(
    readings: Mapping[str, Readings], pairs: Pairs, idle_power: float | None
) -> dict[tuple[str, str], str]:
    """Why values of a window cannot be right, by (entity, metric).

    readings: of the window, by entity. pairs: values of the pair of samples that spans it, if any.
    idle_power: W, None where unknown.
    """
    reasons = {}
    for entity, of_entity in readings.items():
        for name in _standing_still(of_entity):
            reasons[entity, name] = "stands still while others move"
        for name in SHARES:
            values = np.append(of_entity[name], pairs[entity].get(name) or 0.0)
            beyond = values[(values < 0) | (values > MAX_SHARE)]
            if len(beyond):
                extreme = max(beyond, key=abs)
                reasons[entity, name] = f"reads {extreme:.4f}, and a share lies between 0 and 1"
    if "gpu" in readings and (busy := _busy(readings["gpu"], idle_power)):
        for values in _zeros(readings, pairs):
            reasons |= dict.fromkeys(values, f"reads 0 all the time, and {busy}")
    return reasons


def _standing_still(readings: Readings) -> Iterator[str]:
    """Metrics whose readings are one value while those of others move."""
    if not any(_spread(readings[name]) > spread for name, spread in MOVES.items()):
        return
    for name in MOVES:
        values = readings[name]
        if len(values) < STILL or (values != values[0]).any():
            continue
        if name not in SHARES or STILL_LOW < values[0] < STILL_HIGH:
            yield name


def _spread(values: np.ndarray) -> float:
    """The width of the values' middle half, over their median; 0 of too few."""
    if len(values) < STILL:
        return 0.0
    low, median, high = np.percentile(values, (25, 50, 75))
    return (high - low) / max(median, LEAST)


def _busy(card: Readings, idle_power: float | None) -> str | None:
    """By what NVML alone shows that the card is at work, in words; None if it does not."""
    util, power = (card[name].mean() if card[name].size else 0.0 for name in ("gpu_util", "power"))
    if util > BUSY_UTIL:
        return f"the card's utilisation is {util:.2f}"
    if idle_power and power > BUSY_POWER * idle_power:
        return f"the card draws {power:.0f} W, and {idle_power:.0f} W when idle"
    return None


def _zeros(readings: Mapping[str, Readings], pairs: Pairs) -> Iterator[set[tuple[str, str]]]:
    """Values (entity, metric) that read 0 all the time where GRACT or SMACT does: of the card, or
    of all its instances, for one may rest while another works.
    """
    for group in ({"gpu"} & readings.keys(), readings.keys() - {"gpu"}):
        zeros = set()
        for entity in group:
            for name in ACTIVITY_METRICS:
                values = readings[entity][name]
                always_zero = len(values) and not values.any()
                if always_zero or pairs[entity].get(name) == 0:
                    zeros.add((entity, name))
        if any({(entity, name) for entity in group} <= zeros for name in ("gract", "smact")):
            yield zeros
