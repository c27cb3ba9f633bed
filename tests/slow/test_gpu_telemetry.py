"""GPM's readings under loads whose effect is known, on a real card.

Every load is a process of its own (tests/gpu_loads.py), and this one makes no CUDA context.
"""

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.gpu_loading import Load, load, running, span_of, spinning
from workflow.collocation import gpu
from workflow.collocation.gpu import nvidia
from workflow.collocation.telemetry.base import ActivitySource, Unavailable
from workflow.collocation.telemetry.nvml import NvmlCard
from workflow.collocation.telemetry.sources import choose_source

CARD = next(iter(gpu.find()), None)
pytestmark = [
    pytest.mark.skipif(CARD is None, reason="no NVIDIA GPU"),
    pytest.mark.skipif(
        CARD is not None and bool(nvidia.mig_enabled(CARD)), reason="MIG mode is on"
    ),
]

# Blocks of one each: the numbers of SMs that spin.
SPINNING = [max(CARD.sm_count // part, 1) for part in (8, 2, 1)] if CARD and CARD.sm_count else []


@pytest.fixture(scope="module")
def source() -> Iterator[ActivitySource]:
    try:
        found, _ = choose_source(CARD.uuid, ["gpu"], "gpm")
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


def test_idle_is_next_to_nothing(source):
    if {pid for found in CARD.processes().values() for pid in found} - {os.getpid()}:
        pytest.skip("other processes are on the card")
    time.sleep(1.0)
    found = span_of(source, 2.0)
    busy = {name: found[name] for name in ("gract", "smact", "tenso", "drama")}
    assert all(value < 0.02 for value in busy.values()), (busy, CARD.processes())


@pytest.mark.parametrize("blocks", SPINNING or [None])
def test_smact_is_the_share_of_sms_that_spin(source, blocks):
    if blocks is None:
        pytest.skip("how many SMs the card has is not known")
    found = spinning(source, CARD, blocks)
    assert found["smact"] == pytest.approx(blocks / CARD.sm_count, abs=0.02)


def test_a_device_copy_keeps_memory_busy(source, tmp_path):
    with load(CARD, "copy", pipe=tmp_path) as process, running(1.5, process):
        found = span_of(source, 1.5)
    assert found["drama"] >= 0.70


def test_a_matrix_product_keeps_tensor_pipes_busy(source, matmul):
    with running(1.5, matmul):
        found = span_of(source, 1.5)
    assert found["tenso"] >= 0.60


def test_the_energy_counter_and_integrated_power_agree(matmul):
    card = NvmlCard(CARD.uuid)
    if card.energy() is None:
        pytest.skip("the card has no energy counter")

    def edge() -> tuple[float, float]:
        """When the counter next moved (s), and to what (J)."""
        before = card.energy()
        while (joules := card.energy()) == before:
            time.sleep(0.001)
        return time.monotonic(), joules

    with running(3.6, matmul):
        (began, first), readings = edge(), []
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            readings.append((time.monotonic(), card.read_values()["power"]))
            time.sleep(0.1)
        ended, last = edge()
    integrated = np.trapezoid(*np.array(readings).T[::-1]) / (readings[-1][0] - readings[0][0])
    assert integrated == pytest.approx((last - first) / (ended - began), rel=0.03)
