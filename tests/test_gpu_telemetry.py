"""GPM's SM activity under a load whose effect is known, on a real card.

The load is a process of its own (tests/gpu_spin.py), and this one makes no CUDA context.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from workflow.collocation import ROOT, gpu
from workflow.collocation.gpu import nvidia
from workflow.collocation.sharing.evidence import PIPE_FOLDER
from workflow.collocation.telemetry.metrics import Unavailable
from workflow.collocation.telemetry.sampler import Source, open_source

CARD = next(iter(gpu.find()), None)
pytestmark = [
    pytest.mark.skipif(CARD is None, reason="no NVIDIA GPU"),
    pytest.mark.skipif(
        CARD is not None and bool(nvidia.mig_enabled(CARD)), reason="MIG mode is on"
    ),
]

LEAD_S = 0.4  # of the load before it is looked at: counters are refreshed every 100 ms
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


def span_of(source: Source, seconds: float) -> dict[str, float | None]:
    """What the card does meanwhile, from one pair: metric → value in the vocabulary's unit."""
    begin = source.open()
    time.sleep(seconds)
    return source.span(begin, source.open())["gpu"]["v"]


def test_idle_is_next_to_nothing(source):
    time.sleep(1.0)
    found = span_of(source, 2.0)
    busy = {name: found[name] for name in ("gract", "smact", "tenso", "drama")}
    assert all(value < 0.02 for value in busy.values()), (busy, CARD.processes())


@pytest.mark.parametrize("blocks", SPINNING or [None])
def test_smact_is_the_share_of_sms_that_spin(source, blocks, tmp_path):
    if blocks is None:
        pytest.skip("how many SMs the card has is not known")
    no_mps = {"CUDA_VISIBLE_DEVICES": CARD.uuid, PIPE_FOLDER: str(tmp_path)}
    command = [sys.executable, "-m", "tests.gpu_spin", str(blocks), "3"]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | no_mps, stdout=subprocess.PIPE, text=True
    ) as load:
        assert load.stdout.readline() == "spins\n"
        time.sleep(LEAD_S)
        found = span_of(source, 0.8)
        assert load.poll() is None, "it ended too early"
    assert found["smact"] == pytest.approx(blocks / CARD.sm_count, abs=0.02)
