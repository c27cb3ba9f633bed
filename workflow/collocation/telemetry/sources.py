"""Which source tells what a GPU does: the card is asked, best first.

`python -m workflow.collocation.telemetry.sources` prints which one, why, what answers and what a
look costs.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Protocol

import pynvml

from workflow.collocation.telemetry.dcgm import Dcgm
from workflow.collocation.telemetry.gpm import Gpm
from workflow.collocation.telemetry.nvml import FALLBACKS, Card
from workflow.collocation.telemetry.vocabulary import BY_NAME, SourceLost, Unavailable

BEST_FIRST = {"gpm": Gpm, "dcgm": Dcgm}
PERIOD_S = 0.1  # between two looks of the command below


class Source(Protocol):
    """Activity metrics of a card and its GPU instances ("gpu", "gi:<id>")."""

    name: str

    def wait(self) -> None:
        """Until a tick can tell something, if that is a few ms away."""

    def tick(self) -> dict[str, dict[str, float | None]]:
        """Entity → rates since the tick before. {} at the first; an entity missing when unknown.

        Raises SourceLost once, when the source is gone for good; then {}.
        """

    def open(self) -> object:
        """The beginning or the end of a span, with its time."""

    def span(self, begin: object, end: object) -> dict[str, dict]:
        """Entity → {"metrics", "start_ns", "end_ns"}; {} of a source that has no such thing."""

    def close(self) -> None: ...


def open_source(uuid: str, entities: list[str], wanted: str = "auto") -> tuple[Source | None, str]:
    """The source to use, None for plain NVML, and a sentence that says why that one.

    wanted: "auto", "gpm", "dcgm" or "nvml". Raises Unavailable, a ValueError with one line, where
    the one that was asked for cannot be had. It may wait a second or two for the first values.
    """
    if wanted == "nvml":
        return None, "plain NVML was asked for"
    if wanted in BEST_FIRST:
        try:
            return BEST_FIRST[wanted](uuid, entities), f"{wanted} was asked for, and answers"
        except Unavailable as why:
            raise Unavailable(f"telemetry source {wanted}: {why}") from None
    if wanted != "auto":
        allowed = ", ".join(["auto", *BEST_FIRST, "nvml"])
        raise Unavailable(f"telemetry source {wanted!r} is unknown; allowed: {allowed}")
    not_these = ""
    for name, make in BEST_FIRST.items():
        try:
            return make(uuid, entities), f"{name} answers{not_these}"
        except Unavailable as why:
            not_these += f"; not {name}: {why}"
    return None, f"plain NVML is all there is{not_these}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--gpu", default="0", help="index or UUID")
    parser.add_argument("--entity", action="append", help="gpu (default) or gi:<id>; repeatable")
    parser.add_argument("--source", default="auto", help="auto, gpm, dcgm or nvml")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to look")
    given = parser.parse_args(argv)
    try:
        uuid = _uuid(given.gpu)
        card = Card(uuid)
        source, why = open_source(uuid, given.entity or ["gpu"], given.source)
    except (pynvml.NVMLError, Unavailable) as error:
        print(error, file=sys.stderr)
        return 1
    print(" · ".join(f"{key} {value}" for key, value in card.describe().items()))
    print(f"source: {source.name if source else 'nvml'} ({why})")
    try:
        _show(source, card, max(2, round(given.seconds / PERIOD_S)))
    except SourceLost as lost:
        print(lost, file=sys.stderr)
        return 1
    finally:
        if source:
            source.close()
    return 0


def _uuid(gpu: str) -> str:
    pynvml.nvmlInit()
    if not gpu.isdecimal():
        return gpu
    return pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(int(gpu)))


def _show(source: Source | None, card: Card, looks: int) -> None:
    """Print what each entity's values were, and what each look cost."""
    series: dict[str, list[dict]] = {}
    costs: dict[str, list[float]] = {}
    start = time.monotonic()
    begin = source.open() if source else None
    for look in range(looks):
        time.sleep(max(0.0, start + look * PERIOD_S - time.monotonic()))
        if source:
            for entity, rates in _timed(costs, f"{source.name} tick", source.tick).items():
                series.setdefault(entity, []).append(rates)
        for label, reader in list(card.readers.items()):
            _timed(costs, f"nvml {label}", lambda reader=reader: _quietly(reader))
        _timed(costs, "nvml read, all of it", card.read)
        _timed(costs, "nvml processes", card.processes)
    spans = source.span(begin, source.open()) if source else {}
    for entity, rows in series.items():
        print(f"\n{entity}: rows at {len(rows)} of {looks} looks, {PERIOD_S * 1000:g} ms apart")
        _show_rates(rows, spans.get(entity), getattr(source, "units", {}))
    for entity, words in getattr(source, "silent", {}).items():
        print(f"{entity} did not answer: {words}")
    print("\ncard")
    for name, value in card.read().items():
        print(f"  {name:20} {_words(value):>16} {BY_NAME[name].unit}")
    for name in ("power_violation", "thermal_violation"):  # the fields' unit is not documented
        value = _quietly(lambda name=name: FALLBACKS[name](card.handle))
        print(f"  {name:20} {_words(value):>16} s by nvmlDeviceGetViolationStatus")
    for name, words in card.refused.items():
        print(f"  {name:20} refused: {words}")
    print(f"  processes            {card.processes()}")
    _show_energy(card)
    print("\nms a look: median, most")
    for label, times in costs.items():
        print(f"  {label:28} {sorted(times)[len(times) // 2]:8.3f} {max(times):8.3f}")


def _show_rates(rows: list[dict], span: dict | None, units: dict) -> None:
    """A line for each metric: last row, mean of the rows, and one pair that spans them all."""
    seconds = f"{(span['end_ns'] - span['start_ns']) / 1e9:.2f} s" if span else "none"
    print(f"  {'':20} {'last row':>16} {'mean of rows':>16} {f'one pair, {seconds}':>16}")
    for name in rows[-1]:
        known = [row[name] for row in rows if row.get(name) is not None]
        mean = sum(known) / len(known) if known else None
        whole = span["metrics"].get(name) if span else None
        given = f"(given in {units[name]!r})" if name in units else ""
        shown = " ".join(f"{_words(value):>16}" for value in (rows[-1][name], mean, whole))
        print(f"  {name:20} {shown} {BY_NAME[name].unit} {given}".rstrip())


def _show_energy(card: Card) -> None:
    """How often the energy counter grows, and by how much."""
    edges = [edge for edge in (card.edge() for _ in range(6)) if edge]
    steps = [(b[0] - a[0]) / 1e6 for a, b in zip(edges, edges[1:], strict=False)]
    if steps:
        watts = (edges[-1][1] - edges[0][1]) / (edges[-1][0] - edges[0][0]) * 1e9
        print(
            f"  energy grew every {', '.join(f'{step:.0f}' for step in steps)} ms, by {watts:.1f} W"
        )


def _timed(costs: dict[str, list[float]], label: str, look: Callable):
    start = time.perf_counter()
    found = look()
    costs.setdefault(label, []).append((time.perf_counter() - start) * 1000)
    return found


def _quietly(look: Callable):
    """What it gives; None where NVML refuses."""
    try:
        return look()
    except pynvml.NVMLError:
        return None


def _words(value: float | None) -> str:
    return "null" if value is None else f"{value:,.4f}".rstrip("0").rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
