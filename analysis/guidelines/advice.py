"""What was measured of each workload, as options, and the best of them under a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from analysis import flags
from analysis.names import TWIN, method_order
from analysis.quantities import (
    Measurements,
    Quantity,
    energy_over_serial,
    quantity,
    reading,
    slowdown,
    worst_slowdown,
)
from analysis.statistics import Estimate
from analysis.views import Key, statuses

GAIN = quantity("gain")
_MEAN_SLOWDOWN = Quantity("mean slowdown", slowdown, relative=True)
_WORST_SLOWDOWN = Quantity("slowdown of the slowest job", worst_slowdown, relative=True)
_RESERVED = Quantity("memory reserved", reading("reserved"), "GB")
_ENERGY = Quantity("energy per sample", reading("energy"), "J")
_ENERGY_RATIO = Quantity("energy over serial", energy_over_serial)


@dataclass(frozen=True)
class Option:
    """A set of jobs under a method, as it was measured; None where a number is not known.

    memory_gb is what the GPU had in use in the window or, where that was not recorded, peak_gb
    (then memory_is_reserved): the sum of what the members' allocators reserved at most, at any
    time. energy_ratio is the energy per sample over that of the same jobs one after the other.
    Every completed replicate counts, whatever its flags.
    """

    key: Key
    replicates: int
    gain: Estimate
    mean_slowdown: float
    worst_slowdown: float
    memory_gb: float | None
    memory_is_reserved: bool
    peak_gb: float | None
    energy_per_sample: float | None
    energy_ratio: float | None
    flags: str = ""  # of its cells, as runs.parquet has them


@dataclass(frozen=True)
class Subject:
    """Workloads that share the GPU with themselves or each other: what they can choose from.

    `out` are sets that ran out of memory; `ways` says of each method how its cells ended.
    """

    family: tuple[str, ...]
    options: tuple[Option, ...]
    out: tuple[Key, ...]
    ways: dict[str, dict[str, int]]

    @property
    def name(self) -> str:
        return " + ".join(self.family)


def subjects(measured: Measurements) -> list[Subject]:
    """Every family of two jobs or more, those with most to gain first."""
    keys = [key for key in measured.cells() if key.n > 1 and not key.variant and key.method != TWIN]
    found = []
    for family in dict.fromkeys(key.family for key in keys):
        own = sorted(
            (key for key in keys if key.family == family),
            key=lambda key: (key.n, key.parts, method_order(key.method)),
        )
        ended = {key: statuses(measured.at(key)) for key in own}
        ways: dict[str, dict[str, int]] = {}
        for key, counts in ended.items():
            way = ways.setdefault(key.method, {})
            for status, count in counts.items():
                way[status] = way.get(status, 0) + count
        out = tuple(key for key in own if "out_of_memory" in ended[key])
        options = (_option(measured, key) for key in own if key not in out)
        found.append(Subject(family, tuple(filter(None, options)), out, ways))
    return sorted(found, key=lambda s: (-max((o.gain.mean for o in s.options), default=0), s.name))


def _option(measured: Measurements, key: Key) -> Option | None:
    """None unless its gain is known."""
    gain = measured.estimate(GAIN, key)
    if gain is None:
        return None
    used, peak = measured.mean(quantity("memory"), key), measured.mean(_RESERVED, key)
    return Option(
        key=key,
        replicates=gain.replicates,
        gain=gain,
        mean_slowdown=measured.mean(_MEAN_SLOWDOWN, key),
        worst_slowdown=measured.mean(_WORST_SLOWDOWN, key),
        memory_gb=peak if used is None else used,
        memory_is_reserved=used is None,
        peak_gb=peak,
        energy_per_sample=measured.mean(_ENERGY, key),
        energy_ratio=measured.mean(_ENERGY_RATIO, key),
        flags=flags.union(view.flags for view in measured.at(key) if view.completed),
    )


def most_gain(
    options: Iterable[Option], allowed: Callable[[Option], bool] = lambda option: True
) -> Option | None:
    """The allowed option with the highest gain; of equal ones the first."""
    return max(filter(allowed, options), key=lambda option: option.gain.mean, default=None)


def least_energy(options: Iterable[Option]) -> Option | None:
    """The option with the lowest energy over serial, of those where it is known."""
    known = (option for option in options if option.energy_ratio is not None)
    return min(known, key=lambda option: option.energy_ratio, default=None)


@dataclass(frozen=True)
class Compared:
    """The other options beside the best, by what blocks on one GPU tell of the ratio of gains.

    `close`: the best is not shown to gain more (95 %); `once`: one block, and so no interval;
    `unpaired`: no block.
    """

    close: list[Option]
    once: list[Option]
    unpaired: list[Option]


def compared(measured: Measurements, best: Option, options: Sequence[Option]) -> Compared:
    """Those that `best` is not told apart from, and why."""
    found = Compared([], [], [])
    for other in options:
        if other.key != best.key:
            ratio = measured.estimate(GAIN, best.key, other.key)
            if ratio is None:
                found.unpaired.append(other)
            elif ratio.low is None:
                found.once.append(other)
            elif ratio.low <= 1:
                found.close.append(other)
    return found
