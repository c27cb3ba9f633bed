"""GPM's readings under loads whose effect is known, on a real card; `-s` prints each of them.

Every load is a process of its own (tests/gpu_loads.py), and this one makes no CUDA context.
"""

import itertools
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.gpu_loading import Load, load, running, span_of, spinning
from workflow.collocation import gpu
from workflow.collocation.gpu import nvidia
from workflow.collocation.telemetry.metrics import Unavailable
from workflow.collocation.telemetry.nvml import Card
from workflow.collocation.telemetry.sampler import Source, open_source

CARD = next(iter(gpu.find()), None)
pytestmark = [
    pytest.mark.skipif(CARD is None, reason="no NVIDIA GPU"),
    pytest.mark.skipif(
        CARD is not None and bool(nvidia.mig_enabled(CARD)), reason="MIG mode is on"
    ),
]

ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama")
# Blocks of one each: the numbers of SMs that spin.
SPINNING = [max(CARD.sm_count // part, 1) for part in (8, 2, 1)] if CARD and CARD.sm_count else []


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    try:
        found, _ = open_source(CARD.uuid, ["gpu"], "gpm")
    except Unavailable as why:
        pytest.skip(str(why))
    yield found
    found.close()


@pytest.fixture(scope="module")
def matmul(tmp_path_factory) -> Iterator[Load]:
    if gpu.torch_build() != "cuda":
        pytest.skip("torch is no CUDA build")
    with load(CARD, "matmul", pipe=tmp_path_factory.mktemp("no-mps")) as process:
        yield process


def show(what: str, values: dict[str, float | None]) -> None:
    said = (
        f"{name} {'null' if value is None else f'{value:.4g}'}" for name, value in values.items()
    )
    print(f"\n{what}: {', '.join(said)}")


def test_idle_is_next_to_nothing(source):
    time.sleep(1.0)
    found = span_of(source, 2.0)
    show("idle", found)
    busy = {name: found[name] for name in ("gract", "smact", "tenso", "drama")}
    assert all(value < 0.02 for value in busy.values()), (busy, CARD.processes())


@pytest.mark.parametrize("blocks", SPINNING or [None])
def test_smact_is_the_share_of_sms_that_spin(source, blocks):
    if blocks is None:
        pytest.skip("how many SMs the card has is not known")
    found = spinning(source, CARD, blocks)
    show(f"{blocks} of {CARD.sm_count} SMs spin ({blocks / CARD.sm_count:.4f})", found)
    assert found["smact"] == pytest.approx(blocks / CARD.sm_count, abs=0.02)


def test_a_device_copy_keeps_memory_busy(source, tmp_path):
    with load(CARD, "copy", pipe=tmp_path) as process, running(1.5, process):
        found = span_of(source, 1.5)
    show("device copy", found)
    assert found["drama"] >= 0.70


def test_a_matrix_product_keeps_tensor_pipes_busy(source, matmul):
    with running(1.5, matmul):
        found = span_of(source, 1.5)
    show("bf16 matrix product", found)
    assert found["tenso"] >= 0.60


def test_a_span_and_the_mean_of_its_ticks_agree(source, matmul):
    ticks: list[tuple[float, dict]] = []  # seconds that a row covers, and the row
    with running(3.2, matmul):
        source.tick()
        before = began = time.monotonic()
        begin = source.open()
        for number in range(1, 31):
            time.sleep(max(0.0, began + number / 10 - time.monotonic()))
            rows, now = source.tick(), time.monotonic()
            if "gpu" in rows:  # else the next one covers this time, too
                ticks.append((now - before, rows["gpu"]))
                before = now
        span = source.span(begin, source.open())["gpu"]["v"]
    means = {
        name: sum(s * row[name] for s, row in ticks) / sum(s for s, _ in ticks) for name in ACTIVITY
    }
    show("one pair", {name: span[name] for name in ACTIVITY})
    show(f"mean of {len(ticks)} ticks", means)
    assert len(ticks) >= 12
    for name in ACTIVITY:
        assert means[name] == pytest.approx(span[name], rel=0.02, abs=0.002), name


def edge(card: Card) -> tuple[int, float]:
    """When the energy counter next moved (monotonic ns), and to what (J)."""
    before = card.energy()
    while (joules := card.energy()) == before:
        time.sleep(0.001)
    return time.monotonic_ns(), joules


def test_the_energy_counter_and_integrated_power_agree(matmul):
    card = Card(CARD.uuid)
    if card.energy() is None:
        pytest.skip("the card has no energy counter")
    with running(3.6, matmul):
        (began, first), readings = edge(card), []
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            readings.append((time.monotonic(), card.read()["power"]))
            time.sleep(0.1)
        ended, last = edge(card)
    seconds = (ended - began) / 1e9
    areas = [(b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(readings)]
    integrated = sum(areas) / (readings[-1][0] - readings[0][0])
    counted = (last - first) / seconds
    spread = statistics.stdev(power for _, power in readings)
    show(
        f"power over {seconds:.2f} s of matrix products, W",
        {"counter": counted, "readings": integrated, "their standard deviation": spread},
    )
    assert integrated == pytest.approx(counted, rel=0.03)
