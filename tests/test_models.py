"""Training processes on the CPU: protocol, inputs, models, clock, out of memory."""

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from models import clock, device, inputs, member, process, train  # noqa: E402
from models.data import DATASETS  # noqa: E402
from models.data.prepare import prepare  # noqa: E402
from models.fork_server import call_trainer  # noqa: E402
from models.jobs import dlrm, find  # noqa: E402
from models.jobs.dlrm import DlrmJob, table_rows  # noqa: E402
from models.jobs.vision import VisionJob, build_model  # noqa: E402
from models.protocol import Channel  # noqa: E402
from tests.fakes.data import FakeClicks, FakeImages  # noqa: E402
from tests.test_processes import assert_gone  # noqa: E402
from workflow.collocation.spec.cell import ArmSpec  # noqa: E402
from workflow.collocation.spec.study import ARMS  # noqa: E402

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")
SGD = {"name": "sgd", "lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 2e-5}
SGD |= {"schedule": "cosine", "schedule_epochs": 300}
DLRM = {"kind": "dlrm", "model": "dlrm", "batch_size": 128, "input_size": 0}
DLRM["model_args"] = {"dim": 8, "bottom": [32, 8], "top": [32, 1], "tables": [50, 3, 200]}
DLRM["optimizer"] = {"name": "sgd", "lr": 0.5}
TINY = {"model": f"{__name__}:tiny_net", "model_args": {"width": 8}}


def member_spec(folder: Path, /, **changes) -> dict:
    spec = {"member": 0, "workload": "tiny", "kind": "vision", "model": "test_resnet"}
    spec |= {"model_args": {}, "batch_size": 16, "input_size": 32, "classes": 10, "optimizer": SGD}
    spec |= {"label_smoothing": 0.1, "precision": "tf32", "channels_last": False, "sync": True}
    spec |= {"cuda_graph": False, "backward": "autograd", "compile": False, "seed": 42}
    spec |= {"cudnn_benchmark": True}
    spec |= {"data": {"name": "fake", "path": str(folder)}, "folder": str(folder)}
    spec |= {"input": {"mode": "resident", "samples": 10_000}, "device": "cpu", "threads": 1}
    spec |= {"cores": sorted(os.sched_getaffinity(0)), "environment": {}, "warmup_steps": 4}
    spec |= {"memory_limit_bytes": None, "loss_every": 2, "forked_s": time.monotonic()}
    return {**spec, **changes}


@pytest.fixture(autouse=True)
def fake_data(monkeypatch):
    real, fakes = member.open_dataset, {"fake": FakeImages, "clicks": FakeClicks}
    monkeypatch.setattr(
        member,
        "open_dataset",
        lambda name, path: fakes[name]() if name in fakes else real(name, path),
    )


def train_member(spec: dict, stop_at: str = "progress"):
    """main() over real pipes in a thread; (exit code, events, what steps.npz holds or None)."""
    events_read, events_write = os.pipe()
    commands_read, commands_write = os.pipe()
    code, events = [], []
    channel = Channel(spec["member"], events_write, commands_read)

    def member() -> None:
        code.append(call_trainer(train.main, spec, channel))
        os.close(events_write)
        os.close(commands_read)

    thread = threading.Thread(target=member)
    thread.start()
    with os.fdopen(events_read) as lines:
        for line in lines:
            event = json.loads(line)
            events.append(event)
            if answer := {"built": b"tune\n", "tuned": b"warm\n", "warm": b"go\n"}.get(
                event["event"]
            ):
                os.write(commands_write, answer)
            elif stop_at == event["event"]:
                os.write(commands_write, b"stop\n")
                stop_at = None
    thread.join()
    os.close(commands_write)
    steps = Path(spec["folder"]) / "steps.npz"
    return code[0], events, dict(np.load(steps)) if steps.exists() else None


def named(events: list[dict], name: str) -> dict:
    return next(event for event in events if event["event"] == name)


def tiny_net(num_classes: int, width: int) -> torch.nn.Module:
    body = torch.nn.Conv2d(3, width, 3, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    return torch.nn.Sequential(*body, torch.nn.Flatten(), torch.nn.Linear(width, num_classes))


# -- protocol --------------------------------------------------------------------------------


def test_a_member_trains_and_the_same_seed_gives_the_same_losses(tmp_path):
    runs = []
    for name, sync in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        spec = member_spec(tmp_path / name, sync=sync)
        code, events, steps = train_member(spec)
        assert code == 0
        told = [e["event"] for e in events if e["event"] != "progress"]
        assert told == ["built", "tuned", "warm", "started", "stopped"]
        times = [e["t"] for e in events]
        assert times == sorted(times)
        runs.append((events, steps))
    events, steps = runs[0]
    built, warm, stopped = (named(events, n) for n in ("built", "warm", "stopped"))
    assert built["parameters"] * 4 == built["parameter_bytes"] > 0
    assert built["resident_bytes"] == 96 * (3 * 40 * 40 + 8)
    assert built["cores"] == sorted(os.sched_getaffinity(0)) and built["threads"] == 1
    facts = ("device_uuid", "sm_count", "sm_source", "memory_free")
    assert [built[fact] for fact in facts] == [None] * 4 and "tune" in built["commands"]
    assert warm["steps"] == 4 and 0 < warm["input_share"] < 1
    n = stopped["steps"]
    assert len(steps["end_ns"]) == len(steps["wait_ns"]) == n > 0
    assert stopped["data_wait_share"] is None
    assert (np.diff(steps["end_ns"]) > 0).all()
    assert named(events, "started")["t"] < steps["end_ns"][0] <= steps["end_ns"][-1] < stopped["t"]
    assert steps["loss_step"].tolist() == list(range(0, 4 + n, 2))
    common = min(len(run[1]["loss"]) for run in runs)
    assert common > 3
    np.testing.assert_allclose(*(run[1]["loss"][:common] for run in runs), rtol=1e-3)


def test_a_paced_member_begins_no_step_early(tmp_path):
    _, _, arrays = train_member(member_spec(tmp_path, pace_ms=60.0, warmup_steps=2))
    took = np.diff(arrays["end_ns"]) / 1e6
    assert len(took) > 3 and took.mean() > 50


@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_member_rests_until_it_may_tune_and_until_all_have(tmp_path, monkeypatch, last):
    told, made, rested, step = [], [], [], VisionJob.step
    monkeypatch.setattr(VisionJob, "step", lambda *its: made.append(1) or step(*its))
    commands = iter([*["tune", "warm"][:last], "stop"])

    def wait():
        rested.append(len(made))
        return next(commands)

    channel = SimpleNamespace(
        emit=lambda event, **_: told.append(event), wait=wait, poll=lambda seconds: None
    )
    assert train.main(member_spec(tmp_path), channel) == 0
    assert told == [*["built", "tuned", "warm"][: last + 1], "stopped"]
    assert rested == [0, 1, 4][: last + 1] and len(made) == rested[-1]
    steps = np.load(tmp_path / "steps.npz")  # what came before `go` counts nothing
    assert len(steps["end_ns"]) == 0 and len(steps["loss"]) == (rested[-1] + 1) // 2


def test_warm_up_lasts_its_seconds_from_the_end_of_its_first_step(tmp_path, monkeypatch):
    ends, step = [], VisionJob.step

    def slow_at_first(job, batch):
        loss = step(job, batch)
        if not ends:
            time.sleep(0.5)  # as autotuning
        ends.append(time.monotonic_ns())
        return loss

    monkeypatch.setattr(VisionJob, "step", slow_at_first)
    code, events, steps = train_member(member_spec(tmp_path, warmup_s=0.4, **TINY))
    warm, n = named(events, "warm"), named(events, "stopped")["steps"]
    assert code == 0 and warm["steps"] > 4 and warm["t"] - ends[0] >= 400_000_000
    assert len(ends) == warm["steps"] + n
    assert steps["loss_step"].tolist() == list(range(0, warm["steps"] + n, 2))


@pytest.mark.parametrize("arm", ["paper_step", "paper_default"])
def test_cudnn_tries_kernels_out_if_the_arm_says_so(tmp_path, monkeypatch, arm):
    seen, step = set(), VisionJob.step

    def looked_at(job, batch):
        seen.add(torch.backends.cudnn.benchmark)
        return step(job, batch)

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", arm != "paper_step")
    monkeypatch.setattr(VisionJob, "step", looked_at)
    spec = member_spec(tmp_path, **ArmSpec(**ARMS[arm]).model_dump(), **TINY)
    code, *_ = train_member(spec)
    assert code == 0 and seen == {arm == "paper_step"}


def test_a_member_does_its_work_and_says_when(tmp_path):
    spec = member_spec(tmp_path, **DLRM, data={"name": "clicks", "path": ""}, work=60)
    code, events, steps = train_member(spec, stop_at="done")
    assert code == 0 and named(events, "stopped")["steps"] == len(steps["end_ns"]) == 60
    assert named(events, "done")["t"] == steps["end_ns"][-1]
    assert steps["loss"][-1] < steps["loss"][0]


def test_real_digits_from_files_in_bf16(tmp_path):
    data = {"name": "digits", "path": prepare(DATASETS["digits"], tmp_path)["path"]}
    read = {"data": data, "input": {"mode": "files", "workers": 2}, "precision": "bf16"}
    changes = {"model": "test_efficientnet", "channels_last": True, "batch_size": 128}
    spec = member_spec(tmp_path, **read, **changes, sync=False, work=20)  # more than a pass
    code, events, steps = train_member(spec, stop_at="done")
    assert code == 0 and np.isfinite(steps["loss"]).all()
    open_ns = named(events, "stopped")["t"] - named(events, "started")["t"]
    share = named(events, "stopped")["data_wait_share"]
    assert steps["wait_ns"].sum() / open_ns <= share < 1
    assert named(events, "built")["resident_bytes"] == 0
    assert named(events, "warm")["input_share"] is None
    assert (steps["wait_ns"] > 0).all()


@pytest.mark.parametrize(
    ("changes", "phase", "word"),
    [
        ({"model": "no_such_model"}, "build", "no_such_model"),
        ({"classes": 3}, "build", "classes"),
        ({"input_size": 64}, "build", "smaller"),
        ({"precision": "fp32"}, "build", "fp32"),
        ({"cuda_graph": True}, "warm", "cuda_graph"),
        ({"folder": "/nonexistent"}, "stop", "nonexistent"),
        ({"ballast_mb": 10**9}, "build", ""),
    ],
)
def test_errors_name_their_phase(tmp_path, changes, phase, word):
    code, events, _ = train_member(member_spec(tmp_path, **changes))
    error, memory = events[-1], "ballast_mb" in changes
    assert code == (3 if memory else 1) and error["event"] == "error"
    assert error["out_of_memory"] == memory
    assert error["phase"] == phase and word in error["message"]


# -- device ----------------------------------------------------------------------------------

UUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


class FakeDriver:
    """Of CUDA's driver what models/device.py calls.

    affinity: the SMs that it names, or the error that it answers; None: it is too old to know.
    """

    def __init__(self, affinity: int | str | None):
        self.affinity = affinity
        if affinity is not None:
            self.cuCtxGetExecAffinity = self._affinity

    def _affinity(self, found, kind):
        if self.affinity == "error":
            return 999
        found._obj.sm_count = self.affinity
        return 0

    def cuCtxGetDevice(self, handle):
        return 0

    def cuDeviceGetUuid_v2(self, raw, handle):
        raw[:] = UUID.bytes
        return 0


AFFINITY = {"sm_count": 18, "sm_source": "affinity"}


@pytest.mark.parametrize(
    ("driver", "visible", "uuid", "sms"),
    [
        (FakeDriver(18), "0", f"GPU-{UUID}", AFFINITY),
        (FakeDriver(18), f"MIG-{UUID}", f"MIG-{UUID}", AFFINITY),
        (FakeDriver(0), "0", f"GPU-{UUID}", {}),
        (FakeDriver("error"), "0", f"GPU-{UUID}", {}),
        (FakeDriver(None), "0", f"GPU-{UUID}", {}),
        (None, "0", "GPU-of-torch", {}),  # no driver library at all
    ],
)
def test_a_device_is_what_cuda_says_it_is(monkeypatch, driver, visible, uuid, sms):
    """Of a card of 132 SMs, as torch knows it; who cannot count his own SMs says none."""
    properties = SimpleNamespace(uuid="of-torch", multi_processor_count=132)
    monkeypatch.setattr(device, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (600, 1000))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    seen = {"device_uuid": uuid, "memory_free": 600}
    seen |= {"sm_count": None, "sm_source": None} | sms
    assert device.device_facts(torch.device("cuda")) == seen


def test_the_device_is_asked_before_anything_is_loaded(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(member, "device_facts", asked.append)
    monkeypatch.setattr(member, "open_input", lambda *_: 1 / 0)
    _, events, _ = train_member(member_spec(tmp_path))
    assert named(events, "error")["class"] == "ZeroDivisionError" and asked == [CPU]


# -- out of memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory is only mentioned"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert process.is_out_of_memory(error) is expected
    onednn = RuntimeError("could not create a primitive")  # which tells of a cap alone
    assert process.is_out_of_memory(onednn, capped=True) and not process.is_out_of_memory(onednn)


@pytest.mark.parametrize(  # GiB free of 141, None: the device does not answer
    ("free", "expected"), [(2.7, True), (40, False), (None, False)]
)
@pytest.mark.parametrize(
    "text",  # as torch 2.13 (CUDABlas, Conv_v8.cpp) and cuDNN 9 spell them
    [
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "FIND was unable to find an engine to execute this computation",
        "GET was unable to find an engine to execute this computation",
    ],
)
def test_a_library_fails_out_of_memory_only_where_none_is_free(monkeypatch, text, free, expected):
    def mem_get_info():
        if free is None:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return int(free * 2**30), 141 * 2**30

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    assert process.is_out_of_memory(RuntimeError(text)) is expected
    assert not process.says_out_of_memory(text)  # of a script, whose memory is free again by then
    assert not process.is_out_of_memory(RuntimeError("CUDNN_STATUS_EXECUTION_FAILED"))


FORKED = """
    import json, os, signal, time
    from multiprocessing import active_children
    import torch
    from models import member, train
    from models.inputs import FileImages
    from models.protocol import Channel
    from models.fork_server import call_trainer
    from tests.fakes.data import FakeImages

    if (capped := os.fork()) == 0:
        member.open_dataset = lambda name, path: FakeImages()
        commands, conductor = os.pipe()
        os.write(conductor, b"tune\\n")
        signal.alarm(100)  # it would wait for the next command
        os._exit(call_trainer(train.main, json.loads(os.environ["SPEC"]), Channel(0, 1, commands)))
    print(os.waitstatus_to_exitcode(os.waitpid(capped, 0)[1]), flush=True)

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return torch.zeros(3, 4, 4, dtype=torch.uint8), 0

    spec = {"input": {"workers": 2}, "batch_size": 4, "seed": 1,
            "channels_last": True}
    FileImages(Data(), spec, torch.device("cpu")).batch(0)
    source = FileImages(Data(), spec, torch.device("cpu"))
    images, labels = source.batch(0)
    assert images.shape == (4, 3, 4, 4) and images.is_contiguous(
        memory_format=torch.channels_last)
    print(*(each.pid for each in active_children()), flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """A process that has had a capped member, and loads files: what it imports takes the time."""
    capped = {"model": "resnet26", "batch_size": 256, "memory_limit_bytes": 200 << 20, "threads": 2}
    spec = member_spec(tmp_path_factory.mktemp("capped"), **capped)
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FORKED)],
        cwd=ROOT,
        env={**os.environ, "SPEC": json.dumps(spec)},
        stdout=subprocess.PIPE,
        text=True,
    )
    said = []
    while not said or said[-1].startswith("{"):
        said.append(child.stdout.readline())
    yield child, said
    child.kill()
    child.communicate()


def test_a_memory_cap_gives_a_real_out_of_memory(forked):
    *events, code = map(json.loads, forked[1])
    assert code == 3
    assert events[-1]["out_of_memory"] and events[-1]["phase"] == "warm"


# -- inputs ----------------------------------------------------------------------------------


def test_loader_workers_die_with_a_killed_member(forked):
    child, _ = forked
    workers = [int(pid) for pid in child.stdout.readline().split()]
    assert len(workers) >= 2
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert_gone(*workers)


@pytest.mark.parametrize(("workers", "ahead"), [(0, 1), (1, 3)])
def test_files_are_read_ahead_over_the_end_of_a_pass(workers, ahead):
    (heard, told), each = os.pipe(), [4, 4]

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 9

        def __getitem__(self, index):
            os.write(told, bytes([index]))
            return torch.zeros(3, 4, 4, dtype=torch.uint8), index

    spec = {"input": {"workers": workers}, "batch_size": 4, "seed": 1, "channels_last": False}
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


@given(*(st.integers(*ends) for ends in ((1, 40), (1, 16), (0, 2**31), (1, 12), (0, 5), (0, 200))))
def test_crops_lie_inside_and_depend_on_seed_and_step_alone(n, batch, seed, size, margin, step):
    plan = inputs.CropPlan(size, margin, n, batch, seed, CPU)
    sample, top, left, direction = plan.row(step).unbind(1)
    assert len(sample) == batch and (sample >= 0).all() and (sample < n).all()
    last = left + direction * (size - 1)
    assert (top >= 0).all() and (top <= margin).all() and (direction.abs() == 1).all()
    for column in (left, last):
        assert (column >= 0).all() and (column < size + margin).all()
    plan.row(0)
    other = inputs.CropPlan(size, margin, n, batch, seed, CPU)
    assert torch.equal(other.row(step), plan.row(step))


def test_a_pass_shows_each_sample_once_and_seeds_differ():
    plan = inputs.CropPlan(4, 2, 32, 8, 1, CPU)
    passes = [torch.cat([plan.row(s)[:, 0] for s in range(p * 4, p * 4 + 4)]) for p in range(2)]
    assert all(sorted(samples.tolist()) == list(range(32)) for samples in passes)
    assert not torch.equal(*passes)
    assert not torch.equal(inputs.CropPlan(4, 2, 32, 8, 2, CPU).row(0), plan.row(0))


@pytest.mark.parametrize("channels_last", [False, True])
def test_resident_batch_is_the_crop_of_the_stored_image(channels_last):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 10, 10)).astype(np.uint8)
    arrays = {"images": images, "labels": np.arange(5)}
    spec = {"input_size": 6, "batch_size": 8, "seed": 3, "channels_last": channels_last}
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
        events.mark()
        ahead.append(launched - len(events.end_ns))
    # Where the host only launches, the device is always behind.
    assert max(ahead) == pytest.approx(most, rel=0.1)
    assert min(ahead[150:200] + ahead[300:]) >= most * 0.9 - 1


# -- models ----------------------------------------------------------------------------------


def test_models_are_built_by_name_for_their_input_size():
    assert build_model("test_vit", 7, 32, {})(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    net = build_model(f"{__name__}:tiny_net", 5, 32, {"width": 4})
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


def test_published_tables_reach_the_papers_memory():
    assert len(table_rows()) == 26 and max(table_rows(10_000_000)) == 10_000_000
    assert sum(table_rows(10_000_000)) * 128 * 4 == pytest.approx(27.7e9, rel=0.002)


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
    before = job.model.tables[2].weight.detach().clone()
    job.loss((dense, ids, label)).backward()
    assert all(table.weight.grad.is_sparse for table in job.model.tables)
    job.optimizer.step()
    changed = (job.model.tables[2].weight != before).any(dim=1).nonzero().flatten()
    assert changed.tolist() == [0, 3, 7, 9]
    with pytest.raises(ValueError, match="bottom"):
        DlrmJob({**spec, "model_args": {**spec["model_args"], "dim": 4}}, CPU)


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
            job = find(kind)(spec, CPU)
            source = inputs.open_input(find(kind), dataset, spec, CPU)
            batches = [part for step in (0, 1, 7) for part in source.batch(step)]
            found.append([*job.model.state_dict().values(), *batches])
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *found)) and len(found[0]) > 10


def test_a_large_table_is_a_block_again_and_again(monkeypatch):
    monkeypatch.setattr(dlrm, "BLOCK", 101)
    torch.manual_seed(1)
    table = dlrm._fill(torch.empty(400, 8))
    assert table.shape == (400, 8) and table.abs().max() <= 400**-0.5
    assert torch.equal(table[0], table[101]) and torch.equal(table[298], table[399])
    assert len(table.unique(dim=0)) == 101  # no two rows are alike before that
    assert table.std().item() == pytest.approx(400**-0.5 / 3**0.5, rel=0.1)
    small = dlrm._fill(torch.empty(5, 8))
    assert len(small.unique()) == 40


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_dlrm_trains_the_same_with_its_tables_in_one(tmp_path, precision):
    """The step that can be captured, beside SGD with sparse gradients. Ids of a batch repeat."""
    spec, seen = member_spec(tmp_path, **DLRM, precision=precision), []
    source = inputs.ResidentRows(FakeClicks().resident(0, 4096), spec, CPU)
    for captured in (False, True):
        job = DlrmJob(spec | {"cuda_graph": captured}, CPU)
        losses = [job.step(source.batch(step)).item() for step in range(30)]
        tables = [job.model.weights] if captured else [t.weight for t in job.model.tables]
        seen.append((losses, torch.cat([t.detach() for t in tables])))
    for sparse, joined in zip(*seen, strict=True):
        np.testing.assert_allclose(joined, sparse, rtol=1e-4, atol=1e-5)
    assert not torch.equal(
        seen[0][1], torch.cat([t.weight for t in DlrmJob(spec, CPU).model.tables])
    )
