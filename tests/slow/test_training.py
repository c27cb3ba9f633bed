"""What a member trains, on the CPU: inputs, clock, models."""

import os
import select
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from models import clock, inputs  # noqa: E402
from models.data.criteo import TABLE_ROWS  # noqa: E402
from models.graph import GraphedStep, NotCapturable  # noqa: E402
from models.jobs import class_of_kind, dlrm  # noqa: E402
from models.jobs.dlrm import DlrmJob  # noqa: E402
from models.jobs.vision import VisionJob, build_model  # noqa: E402
from tests.fakes.data import DLRM, FakeClicks, FakeImages  # noqa: E402
from tests.fakes.members import changed, member_spec  # noqa: E402
from workflow.collocation.member.spec import InputSpec  # noqa: E402

CPU = torch.device("cpu")

# -- inputs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "ahead"), [(0, 1), (1, 3)])
def test_files_are_read_ahead_over_the_end_of_a_pass(workers, ahead):
    (heard, told), each = os.pipe(), [4, 4]

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 9

        def __getitem__(self, index):
            os.write(told, bytes([index]))
            return torch.zeros(3, 4, 4, dtype=torch.uint8), index

    spec = member_spec("", input=InputSpec(mode="files", workers=workers), batch_size=4, seed=1)
    source = inputs.FileImages(Data(), spec, CPU)
    labels = [source.batch(step)[1].tolist() for step in range(len(each))]
    asked, expected = b"", sum(each) + sum((each * 2)[:ahead])
    while len(asked) < expected and select.select([heard], [], [], 20)[0]:
        asked += os.read(heard, 1000)
    assert len(asked) == expected  # and nothing is asked for in vain
    labels += [source.batch(step)[1].tolist() for step in range(len(each))]
    passes = labels[: len(each)], labels[len(each) :]
    assert [[len(batch) for batch in one] for one in passes] == [each, each]
    assert all(len(set(sum(one, []))) == sum(each) for one in passes)
    assert passes[0] != passes[1]
    os.close(heard)
    os.close(told)


def crops(size: int, margin: int, n: int, batch: int, seed: int) -> inputs.ResidentImages:
    condition = size + margin
    arrays = {"images": np.zeros((n, 3, condition, condition), np.uint8), "labels": np.arange(n)}
    spec = member_spec("", input_size=size, batch_size=batch, seed=seed)
    return inputs.ResidentImages(arrays, spec, CPU)


@given(*(st.integers(*ends) for ends in ((1, 40), (1, 16), (0, 2**31), (1, 12), (0, 5), (0, 200))))
def test_crops_lie_inside_and_depend_on_seed_and_step_alone(n, batch, seed, size, margin, step):
    source = crops(size, margin, n, batch, seed)
    sample, top, left, direction = source.row(step).unbind(1)
    assert len(sample) == batch and (sample >= 0).all() and (sample < n).all()
    last = left + direction * (size - 1)
    assert (top >= 0).all() and (top <= margin).all() and (direction.abs() == 1).all()
    for column in (left, last):
        assert (column >= 0).all() and (column < size + margin).all()
    source.row(0)
    assert torch.equal(crops(size, margin, n, batch, seed).row(step), source.row(step))


def test_a_pass_shows_each_sample_once_and_seeds_differ():
    source = crops(4, 2, 32, 8, 1)
    passes = [torch.cat([source.row(s)[:, 0] for s in range(p * 4, p * 4 + 4)]) for p in range(2)]
    assert all(sorted(samples.tolist()) == list(range(32)) for samples in passes)
    assert not torch.equal(*passes)
    assert not torch.equal(crops(4, 2, 32, 8, 2).row(0), source.row(0))
    drawn = source.plan  # all crops and both directions occur
    assert set(drawn[:, 1].tolist()) == {0, 1, 2} and set(drawn[:, 3].tolist()) == {-1, 1}
    assert set(drawn[drawn[:, 3] == 1, 2].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("channels_last", [False, True])
def test_resident_batch_is_the_crop_of_the_stored_image(channels_last):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 10, 10)).astype(np.uint8)
    arrays = {"images": images, "labels": np.arange(5)}
    spec = member_spec("", input_size=6, batch_size=8, seed=3, channels_last=channels_last)
    source = inputs.ResidentImages(arrays, spec, CPU)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    got, labels = source.batch(2)
    assert got.dtype == torch.float32 and got.is_contiguous(memory_format=layout)
    mean = np.array([0.485, 0.456, 0.406])[:, None, None]
    std = np.array([0.229, 0.224, 0.225])[:, None, None]
    for image, label, (sample, top, left, direction) in zip(
        got.numpy(), labels, source.row(2).tolist(), strict=True
    ):
        first = left if direction == 1 else left - 5
        crop = images[sample, :, top : top + 6, first : first + 6][:, :, ::direction]
        np.testing.assert_allclose(image, (crop / 255 - mean) / std, atol=1e-5)
        assert label == sample


# -- clock -----------------------------------------------------------------------------------


class FakeDevice:
    """A GPU with a main stream, and an idle one, beside a host whose time passes as it is told to.

    Its clock is `slow` (a share), and counts elapsed times in float32 milliseconds. Assumed of the
    real one: an event on an idle stream happens when it is recorded (it may first wait for the
    process's turn), and elapsed times are told forwards.
    """

    Stream = object

    def __init__(self, slow: float):
        self.now = self.busy_until = 10**15  # ns, of the host
        self.slow = slow

    def look(self) -> int:
        self.now += 1_000
        return self.now

    def Event(self, enable_timing):
        return FakeEvent(self)

    def synchronize(self):
        self.now = max(self.now, self.busy_until)


class FakeEvent:
    def __init__(self, device):
        self.device = device

    def record(self, stream=None):
        device = self.device
        self.done = device.look() if stream else max(device.look(), device.busy_until)

    def query(self):
        return self.device.look() >= self.done

    def synchronize(self):
        self.device.now = max(self.device.now, self.done) + 10_000

    def elapsed_time(self, other):
        assert other.done >= self.done
        return float(np.float32((other.done - self.done) * (1 - self.device.slow) / 1e6))


@pytest.mark.parametrize("host_ns", [100_000, 15_000_000])  # the device lags behind, or waits
@pytest.mark.parametrize("slow", [2e-5, -2e-5])
def test_event_clock_does_not_drift_from_the_hosts(monkeypatch, slow, host_ns):
    device, true = FakeDevice(slow), []
    monkeypatch.setattr(torch, "cuda", device)
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic_ns=device.look))
    events = clock.EventClock(ring=8)
    for launched in range(1, 40_001):
        device.now += host_ns
        device.busy_until = max(device.now, device.busy_until) + 10_000_000
        true.append(device.busy_until)
        assert events.ready(None)
        events.mark()
        assert launched - 8 <= len(events.end_ns) <= launched
    events.finish()
    ends = np.array(events.end_ns)
    assert len(ends) == len(true) and (np.diff(ends) >= 0).all() and ends[-1] <= device.now
    late = ends - np.array(true)  # of seven to ten minutes
    assert abs(late).max() < 700_000  # what 20 ppm are in half a minute
    assert np.diff(ends).mean() == pytest.approx(np.diff(true).mean(), rel=2e-6)


@pytest.mark.parametrize(("step_ms", "most"), [(1, 20), (0.1, 64), (100, 2)])
def test_who_may_be_held_launches_little_ahead(monkeypatch, step_ms, most):
    """About 20 ms of work, but two steps at least; and a rest is no part of a step."""
    device = FakeDevice(0)
    monkeypatch.setattr(torch, "cuda", device)
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic_ns=device.look))
    events, ahead = clock.EventClock(ahead_s=0.02), []
    for launched in range(1, 401):
        if launched == 201:
            events.finish()
            device.now += 10**10
            events.resume()
        device.busy_until = max(device.now, device.busy_until) + int(step_ms * 1e6)
        assert events.ready(None)
        events.mark()
        ahead.append(launched - len(events.end_ns))
    # Where the host only launches, the device is always behind.
    assert max(ahead) == pytest.approx(most, rel=0.1)
    assert min(ahead[150:200] + ahead[300:]) >= most * 0.9 - 1


# -- models ----------------------------------------------------------------------------------


def test_models_are_built_by_name_for_their_input_size():
    assert build_model("test_vit", 7, 32, {})(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    net = build_model("tests.fakes.data:tiny_net", 5, 32, {"width": 4})
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    with torch.device("meta"):
        assert build_model("cait_xxs24_224", 1000, 64, {}).patch_embed.img_size == (64, 64)


def test_learning_rate_follows_the_cosine(tmp_path):
    job = VisionJob(member_spec(tmp_path), CPU)
    rates = []
    for epoch in (0, 150, 299):
        job.set_epoch(epoch)
        rates.append(job.optimizer.param_groups[0]["lr"])
    assert rates[:2] == pytest.approx([0.02, 0.01]) and 0 < rates[2] < 1e-5
    assert all(group["nesterov"] for group in job.optimizer.param_groups)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("CUDA error: operation not permitted when stream is capturing\nmore", NotCapturable),
        ("CUDA out of memory. Tried to allocate 2 MiB", RuntimeError),
    ],
)
def test_a_step_that_cannot_be_captured_is_unsupported(monkeypatch, said, kind):
    """It takes CUDA's and torch's words of a capture (errors 900 to 907) to have `captur`, and the
    end of a capture that failed to raise once more.
    """
    for name in ("Stream", "current_stream", "stream", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    end = RuntimeError("CUDA error: operation failed due to previous error in capture")
    torch.cuda.graph.return_value.__exit__.side_effect = end
    job = Mock(capturable=True, compiled=lambda function: function)
    job.optimizer.param_groups = []
    job.step.side_effect = [torch.zeros(()), torch.zeros(()), torch.zeros(()), RuntimeError(said)]
    source = SimpleNamespace(row=lambda step: torch.zeros(4), fetch=lambda row: row)
    graph = GraphedStep(job, source, SimpleNamespace(type="cuda"))
    for _ in range(2):
        graph.step(torch.zeros(4))
    with pytest.raises(RuntimeError) as caught:
        graph.step(torch.zeros(4))
    assert type(caught.value) is kind and said in str(caught.value)
    assert getattr(caught.value, "unsupported", False) is (kind is NotCapturable)


def test_published_tables_reach_the_papers_memory():
    rows = [min(number, 10_000_000) for number in TABLE_ROWS]
    assert len(rows) == 26 and sum(rows) * 128 * 4 == pytest.approx(27.7e9, rel=0.002)


def test_dlrm_shapes_sparse_gradients_and_ids_modulo_rows(tmp_path):
    spec = member_spec(tmp_path, **DLRM)
    job = DlrmJob(spec, CPU)
    tables = 253 * 8
    bottom, top = 13 * 32 + 32 + 32 * 8 + 8, (8 + 6) * 32 + 32 + 32 + 1
    assert sum(p.numel() for p in job.model.parameters()) == tables + bottom + top
    dense, label = torch.randn(4, 13), torch.ones(4)
    ids = torch.tensor([[1, 2, 3], [1, 0, 7], [4, 0, 9], [0, 0, 0]])
    same = ids + job.rows * 5
    assert torch.equal(job.loss((dense, ids, label)), job.loss((dense, same, label)))
    capped = DlrmJob(changed(spec, model_args=spec.job.model_args | {"max_rows": 60}), CPU)
    assert [len(table.weight) for table in capped.model.tables] == [50, 3, 60]
    before = job.model.tables[2].weight.detach().clone()
    job.loss((dense, ids, label)).backward()
    assert all(table.weight.grad.is_sparse for table in job.model.tables)
    job.optimizer.step()
    moved = (job.model.tables[2].weight != before).any(dim=1).nonzero().flatten()
    assert moved.tolist() == [0, 3, 7, 9]
    with pytest.raises(ValueError, match="bottom"):
        DlrmJob(changed(spec, model_args=spec.job.model_args | {"dim": 4}), CPU)


@pytest.mark.parametrize("kind", ["vision", "dlrm"])
def test_weights_and_order_do_not_depend_on_threads(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(dlrm, "BLOCK", 101)
    spec = member_spec(tmp_path, **(DLRM if kind == "dlrm" else {}))
    dataset = FakeClicks() if kind == "dlrm" else FakeImages()
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            torch.rand(count)  # what somebody else draws does not matter
            job = class_of_kind(kind)(spec, CPU)
            source = inputs.open_input(class_of_kind(kind), dataset, spec, CPU)
            batches = [part for step in (0, 1, 7) for part in source.batch(step)]
            found.append([*job.model.state_dict().values(), *batches])
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *found)) and len(found[0]) > 10


def test_a_large_table_is_its_first_rows_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(dlrm, "BLOCK", 101)
    table = DlrmJob(member_spec(tmp_path, **DLRM), CPU).model.tables[2].weight
    assert len(table) == 200 and torch.equal(table[:99], table[101:])
    assert len(table.unique(dim=0)) == 101  # no two rows are alike before that
    assert table.abs().max() <= 200**-0.5
    assert table.std().item() == pytest.approx(200**-0.5 / 3**0.5, rel=0.1)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_dlrm_trains_the_same_with_its_tables_in_one(tmp_path, precision):
    """The step that can be captured, beside SGD with sparse gradients. Ids of a batch repeat."""
    spec, seen = member_spec(tmp_path, **DLRM, precision=precision), []
    source = inputs.ResidentClicks(FakeClicks().resident(0, 4096), spec, CPU)
    for captured in (False, True):
        job = DlrmJob(changed(spec, cuda_graph=captured), CPU)
        losses = [job.step(source.batch(step)).item() for step in range(30)]
        tables = [job.model.weights] if captured else [t.weight for t in job.model.tables]
        seen.append((losses, torch.cat([t.detach() for t in tables])))
    for sparse, joined in zip(*seen, strict=True):
        np.testing.assert_allclose(joined, sparse, rtol=1e-4, atol=1e-5)
    assert not torch.equal(
        seen[0][1], torch.cat([t.weight for t in DlrmJob(spec, CPU).model.tables])
    )
