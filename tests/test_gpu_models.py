"""Training on CUDA: the graph's step equals the eager one, and step times are true."""

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from models import train  # noqa: E402
from models.clock import EventClock  # noqa: E402
from models.dlrm import DlrmJob  # noqa: E402
from models.graph import GraphedStep  # noqa: E402
from models.inputs import ResidentImages  # noqa: E402
from models.vision import VisionJob  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SPEC = {
    "kind": "vision",
    "model": "resnet26",
    "batch_size": 128,
    "input_size": 32,
    "classes": 1000,
    "optimizer": {
        "name": "sgd",
        "lr": 0.05,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 2e-5,
        "schedule": "cosine",
        "schedule_epochs": 300,
    },
    "label_smoothing": 0.1,
    "precision": "bf16",
    "channels_last": True,
    "seed": 42,
    "device": "cuda",
    "threads": 2,
}


def job_and_source() -> tuple[VisionJob, ResidentImages, torch.device]:
    device = train.set_up(SPEC)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 4096)
    images = rng.integers(0, 56, (4096, 3, 38, 38)) + labels[:, None, None, None] * 20
    source = ResidentImages({"images": images.astype(np.uint8), "labels": labels}, SPEC, device)
    return VisionJob(SPEC, device), source, device


def test_graph_step_equals_eager_step():
    job, source, _ = job_and_source()
    eager = [job.step(source.batch(step)).item() for step in range(8)]
    job, source, device = job_and_source()
    graph = GraphedStep(job, source, device)
    graphed = [graph.step(graph.batch(step)).item() for step in range(8)]
    np.testing.assert_allclose(graphed, eager, rtol=0.02)
    assert len(set(graphed)) == 8
    batches = [m.num_batches_tracked for m in job.model.modules() if hasattr(m, "running_mean")]
    assert all(int(n) == 8 for n in batches)


def test_input_of_a_graph_alone_leaves_memory_and_training_as_they_are():
    losses = []
    for measured in (False, True):
        job, source, device = job_and_source()
        graph = GraphedStep(job, source, device)
        graph.step(graph.batch(0))
        if measured:
            reserved = torch.cuda.memory_reserved()
            produce = graph.input_alone()
            for step in range(10):
                produce(step)
            torch.cuda.synchronize()
            del produce
            assert torch.cuda.memory_reserved() <= reserved
        losses.append([graph.step(graph.batch(step)).item() for step in range(1, 8)])
    np.testing.assert_allclose(*losses, rtol=0.02)


def test_a_graphed_members_input_share(monkeypatch):
    job, source, device = job_and_source()
    member = train.Member({"cuda_graph": True}, channel=None)
    member.device, member.input = device, source
    member.stepper = GraphedStep(job, source, device)
    monkeypatch.delattr(ResidentImages, "batch")  # the eager way
    torch.cuda.synchronize()
    began = time.monotonic()
    seconds = member.input_seconds()
    assert 0 < seconds < time.monotonic() - began


def test_event_clock_agrees_with_the_host():
    device = train.set_up(SPEC)
    busy = torch.randn(4096, 4096, device=device)
    clock = EventClock(ring=16)
    began = time.monotonic_ns()
    for _ in range(100):
        busy @ busy
        clock.mark()
    clock.finish()
    ended = time.monotonic_ns()
    ends = np.array(clock.end_ns)
    assert len(ends) == 100 and (np.diff(ends) > 0).all()
    assert began - 100_000 < ends[0] and ends[-1] <= ended
    assert ended - ends[-1] < 5_000_000


def test_losses_are_readable_without_waiting():
    device = train.set_up(SPEC)
    losses = train.Losses(2, device)
    for step in range(600):
        losses.keep(step, torch.full((), float(step), device=device))
    torch.cuda.synchronize()
    assert losses.between(0, 600) == [float(step) for step in range(0, 600, 2)]
    assert losses.latest(11) == 10.0 and losses.latest(0) is None


def test_dlrm_trains_on_the_device():
    device = train.set_up(SPEC)
    args = {"dim": 64, "bottom": [64], "top": [32, 1], "tables": [1_000_000, 10]}
    spec = {**SPEC, "model_args": args, "optimizer": {"name": "sgd", "lr": 0.1}}
    job = DlrmJob(spec, device)
    assert all(p.is_cuda for p in job.model.parameters()) and job.model.pairs.is_cuda
    weight = job.model.tables[0].weight
    assert weight.abs().max().item() <= 1.001e-3
    assert weight.std().item() == pytest.approx(1e-3 / 3**0.5, rel=0.01)
    dense = torch.randn(512, 13, device=device)
    batch = (dense, torch.randint(2**32, (512, 26), device=device), (dense[:, 0] > 0).float())
    losses = [job.step(batch).item() for _ in range(50)]
    assert losses[-1] < losses[0] and job.evaluate(batch).item() > 0
