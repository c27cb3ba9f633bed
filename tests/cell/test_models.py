"""Training processes on the CPU: protocol, device, out of memory."""

import csv
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from models import device, train  # noqa: E402
from models.data import prepare  # noqa: E402
from models.fork_server import call_trainer  # noqa: E402
from models.jobs.vision import VisionJob  # noqa: E402
from models.member import is_out_of_memory  # noqa: E402
from tests.cell.test_processes import assert_gone  # noqa: E402
from tests.fakes.data import DLRM, TINY, FakeClicks, FakeImages  # noqa: E402
from tests.fakes.members import member_spec  # noqa: E402
from tests.studio import REPOSITORY  # noqa: E402
from workflow.collocation.member.protocol import Channel  # noqa: E402
from workflow.collocation.member.spec import (  # noqa: E402
    InputSpec,
    MemberSpec,
    TriggerSpec,
)
from workflow.collocation.plan.jobs import unknown_names  # noqa: E402
from workflow.collocation.study.load import load_workloads  # noqa: E402
from workflow.collocation.study.workloads import TrainedWorkload  # noqa: E402

ROOT = Path(__file__).parents[2]
ANSWERS = {"built": b"autotune\n", "autotuned": b"warm\n", "warm": b"go\n"}


def test_the_models_of_the_catalogue_are_there():
    """What `make study` asks before it runs anything."""
    catalogue = load_workloads(ROOT / "config" / "workloads.yaml")
    trained = {n: job for n, job in catalogue.items() if isinstance(job, TrainedWorkload)}
    assert {job.kind for job in trained.values()} == {"vision", "dlrm", "lm", "asr"}
    wrong = {name: unknown_names(job) for name, job in trained.items()}
    assert not any(wrong.values()), wrong


@pytest.fixture(autouse=True)
def fake_data(monkeypatch):
    real, fakes = train.open_dataset, {"fake": FakeImages, "clicks": FakeClicks}
    monkeypatch.setattr(
        train,
        "open_dataset",
        lambda name, path: fakes[name]() if name in fakes else real(name, path),
    )


@dataclass
class Quiet:
    """A channel without a conductor: `command` is told to who rests, `asked` to who asks."""

    emit: Callable
    command: Callable
    asked: Callable = lambda: None
    said: str | None = None

    def ready(self, seconds: float | None = 0.0) -> bool:
        if seconds is None:
            self.said = self.command()
        return self.said is not None

    def poll(self) -> str | None:
        said, self.said = self.said, None
        return said or self.asked()


MEMBER = """
import json, sys
from models import train
from models.fork_server import call_trainer
from workflow.collocation.member.protocol import Channel
from workflow.collocation.member.spec import MemberSpec

spec, events, commands = sys.argv[1:]
spec, channel = MemberSpec.from_json(json.loads(spec)), Channel(0, int(events), int(commands))
sys.exit(call_trainer(train, [spec], [channel]))
"""


def train_member(spec: MemberSpec, stop_at: str = "progress", process: bool = False):
    """main() over real pipes; (exit code, events, what steps.npz holds or None).

    In a thread, or in a process: one that forks workers must not be beside another thread, which
    may hold a lock (of logging, say) that the worker then waits for without end.
    """
    events_read, events_write = os.pipe()
    commands_read, commands_write = os.pipe()
    code, events = [], []

    def member() -> None:
        if process:
            words = [json.dumps(spec.to_json()), str(events_write), str(commands_read)]
            command = [sys.executable, "-c", MEMBER, *words]
            run = subprocess.run(command, cwd=ROOT, pass_fds=[events_write, commands_read])
            code.append(run.returncode)
        else:
            channel = Channel(spec.index, events_write, commands_read)
            code.append(call_trainer(train, [spec], [channel]))
        os.close(events_write)
        os.close(commands_read)

    thread = threading.Thread(target=member)
    thread.start()
    with os.fdopen(events_read) as lines:
        for line in lines:
            events.append(json.loads(line))
            name = events[-1]["event"]
            if name in ANSWERS:
                os.write(commands_write, ANSWERS[name])
            elif stop_at == name:
                os.write(commands_write, b"stop\n")
                stop_at = None
    thread.join()
    os.close(commands_write)
    steps = Path(spec.folder) / "steps.npz"
    return code[0], events, dict(np.load(steps)) if steps.exists() else None


def named(events: list[dict], name: str) -> dict:
    return next(event for event in events if event["event"] == name)


# -- protocol --------------------------------------------------------------------------------------


def test_a_member_trains_and_the_same_seed_gives_the_same_losses(tmp_path):
    runs = []
    for name, sync in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        code, events, steps = train_member(member_spec(tmp_path / name, sync=sync))
        told = [e["event"] for e in events if e["event"] != "progress"]
        assert (code, told) == (0, ["built", "autotuned", "warm", "started", "stopped"])
        runs.append((events, steps))
    events, steps = runs[0]
    times = [e["t"] for e in events]
    assert times == sorted(times)
    built, warm, stopped = (named(events, n) for n in ("built", "warm", "stopped"))
    assert built["parameters"] * 4 == built["parameter_bytes"] > 0
    assert built["resident_bytes"] == 96 * (3 * 40 * 40 + 8)
    assert built["cores"] == sorted(os.sched_getaffinity(0)) and built["threads"] == 1
    facts = ("device_uuid", "sm_count", "sm_source", "memory_free")
    assert [built[fact] for fact in facts] == [None] * 4 and "autotune" in built["commands"]
    assert warm["steps"] == 4
    n = stopped["steps"]
    assert len(steps["end_ns"]) == len(steps["wait_ns"]) == n > 0
    progress = named(events, "progress")
    assert progress["samples"] == progress["steps"] * 16 and 0 < progress["steps"] <= n
    assert stopped["data_wait_share"] is None
    assert (np.diff(steps["end_ns"]) > 0).all()
    assert named(events, "started")["t"] < steps["end_ns"][0] <= steps["end_ns"][-1] < stopped["t"]
    assert steps["loss_step"].tolist() == list(range(0, 4 + n, 2))
    common = min(len(run[1]["loss"]) for run in runs)
    assert common > 3
    np.testing.assert_allclose(*(run[1]["loss"][:common] for run in runs), rtol=1e-3)


def test_a_paced_member_begins_no_step_early(tmp_path):
    _, _, arrays = train_member(member_spec(tmp_path, pace_ms=60.0, warmup_steps=2, **TINY))
    took = np.diff(arrays["end_ns"]) / 1e6
    assert len(took) > 3 and took.mean() > 50


def test_a_member_is_retrained_whenever_it_is_triggered(tmp_path):
    triggers = TriggerSpec(per_s=100.0, steps=3)
    spec = member_spec(tmp_path, triggers=triggers, arrival_seed=7, warmup_steps=2, **TINY)
    code, events, arrays = train_member(spec)
    requests, ends = dict(np.load(tmp_path / "requests.npz")), arrays["end_ns"]
    n = len(ends) // 3
    came = len(requests["at_ns"])  # the last ones may be too late to be trained for
    assert code == 0 and n > 3 and requests["tokens"].tolist() == [1] * n + [0] * (came - n)
    gaps_ns = np.random.default_rng(7).exponential(1e7, came)
    at = named(events, "started")["t"] + np.cumsum(gaps_ns)
    np.testing.assert_allclose(requests["at_ns"], at, atol=2, rtol=0)
    assert requests["token_ns"].tolist() == ends[2 : 3 * n : 3].tolist()
    assert (ends[: 3 * n : 3] > requests["at_ns"][:n]).all()  # no step comes before its trigger


@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_member_rests_until_it_may_tune_and_until_all_have(tmp_path, monkeypatch, last):
    told, made, rested, step = [], [], [], VisionJob.step
    monkeypatch.setattr(VisionJob, "step", lambda *its: made.append(1) or step(*its))
    commands = iter([*["autotune", "warm"][:last], "stop"])

    def command() -> str:
        rested.append(len(made))
        return next(commands)

    channel = Quiet(lambda event, **_: told.append(event), command)
    assert train.main(member_spec(tmp_path), channel) == 0
    assert told == [*["built", "autotuned", "warm"][: last + 1], "stopped"]
    assert rested == [0, 1, 4][: last + 1] and len(made) == rested[-1]
    steps = np.load(tmp_path / "steps.npz")  # what came before `go` counts nothing
    assert len(steps["end_ns"]) == 0 and len(steps["loss"]) == (rested[-1] + 1) // 2


def test_a_member_that_is_held_makes_no_step_and_goes_on(tmp_path):
    made, held_at, commands = [], [], iter(["autotune", "warm", "go", "resume", "stop"])

    def emit(event, **told):
        if event == "held":
            held_at.append(told["steps"])
        made.append(event)

    polls = iter([None] * 15 + ["hold"] + [None] * 6)
    channel = Quiet(emit, lambda: next(commands), lambda: next(polls, "stop"))
    assert train.main(member_spec(tmp_path, **TINY), channel) == 0
    # It asks before each step, of which four come before `go`, and before each of four rests.
    assert held_at == [8] and len(np.load(tmp_path / "steps.npz")["end_ns"]) == 8 + 1 + 5


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


def test_a_member_does_its_work_and_says_when(tmp_path):
    spec = member_spec(tmp_path, **DLRM, dataset="clicks", window_steps=60)
    code, events, steps = train_member(spec, stop_at="done")
    assert code == 0 and named(events, "stopped")["steps"] == len(steps["end_ns"]) == 60
    assert named(events, "done")["t"] == steps["end_ns"][-1]
    assert steps["loss"][-1] < steps["loss"][0]


def test_real_digits_from_files_in_bf16(tmp_path):
    spec = member_spec(
        tmp_path,
        dataset="digits",
        dataset_folder=prepare("digits", tmp_path)["path"],
        input=InputSpec(mode="files", workers=2),
        precision="bf16",
        model="test_efficientnet",
        channels_last=True,
        batch_size=128,
        sync=False,
        window_steps=20,  # more than a pass
    )
    code, events, steps = train_member(spec, stop_at="done", process=True)
    assert code == 0 and np.isfinite(steps["loss"]).all()
    open_ns = named(events, "stopped")["t"] - named(events, "started")["t"]
    share = named(events, "stopped")["data_wait_share"]
    assert steps["wait_ns"].sum() / open_ns <= share < 1 and (steps["wait_ns"] > 0).all()
    assert named(events, "built")["resident_bytes"] == 0


@pytest.mark.parametrize(
    ("changes", "phase", "word"),
    [
        ({"model": "no_such_model"}, "build", "no_such_model"),
        ({"classes": 3}, "build", "classes"),
        ({"input_size": 64}, "build", "smaller"),
        ({"precision": "fp32"}, "build", "fp32"),
        ({"cuda_graph": True}, "warm", "cuda_graph"),
        ({"folder": "/nonexistent"}, "stop", "nonexistent"),
        ({"reserved_memory_mb": 10**9}, "build", ""),
    ],
)
def test_errors_name_their_phase(tmp_path, changes, phase, word):
    code, events, _ = train_member(member_spec(tmp_path, **changes))
    error, memory = events[-1], "reserved_memory_mb" in changes
    assert code == (3 if memory else 1) and error["event"] == "error"
    assert error["out_of_memory"] == memory
    assert error["phase"] == phase and word in error["message"]


# -- device ----------------------------------------------------------------------------------------

UUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


class FakeDriver:
    """Of CUDA's driver what models/device.py calls.

    affinity: the SMs that it names, or "error".
    """

    def __init__(self, affinity: int | str):
        self.affinity = affinity

    def cuCtxGetExecAffinity(self, found, kind):
        if self.affinity == "error":
            return 999
        found._obj.sm_count = self.affinity
        return 0

    def cuCtxGetDevice(self, handle):
        return 0

    def cuDeviceGetUuid_v2(self, raw, handle):
        raw[:] = UUID.bytes
        return 0


@pytest.mark.parametrize(
    ("affinity", "visible", "uuid", "sms"),
    [
        (18, "0", f"GPU-{UUID}", 18),
        (18, f"MIG-{UUID}", f"MIG-{UUID}", 18),
        ("error", "0", f"GPU-{UUID}", None),
    ],
)
def test_a_device_is_what_cuda_says_it_is(monkeypatch, affinity, visible, uuid, sms):
    """Who cannot count his own SMs says none."""
    monkeypatch.setattr(device.ctypes, "CDLL", lambda name: FakeDriver(affinity))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (600, 1000))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    seen = {"device_uuid": uuid, "memory_free": 600, "sm_count": sms}
    seen["sm_source"] = "affinity" if sms else None
    assert device.device_facts(torch.device("cuda")) == seen
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "60")
    monkeypatch.setattr(device, "check_products", lambda _, formats: formats)
    limited = device.device_facts(torch.device("cuda"), ("bf16",))
    assert limited == seen | {"products": ("bf16",)}


PRODUCTS = [  # what a product of 128 x 128 comes out as, and whether it is wrong
    (lambda right: right, False),
    (lambda right: right + 0.01 * right.max(), False),  # rounding
    (lambda right: right + 0.05 * right.max(), True),
    (lambda right: torch.where(right == right.max(), torch.nan, right), True),
    (lambda right: torch.where(right == right.max(), torch.inf, right), True),
]


@pytest.mark.parametrize("name", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize(("comes_out", "is_wrong"), PRODUCTS)
def test_a_product_is_wrong_if_it_is_far_from_the_one_in_float64(
    monkeypatch, name, comes_out, is_wrong
):
    matmul = torch.matmul

    def computed(first, second):
        product = matmul(first, second)
        is_hit = len(product) == 128 and product.dtype != torch.float64
        return comes_out(product) if is_hit else product

    shapes = (64, 64, 64), (128, 32, 64), (128, 256, 64)
    monkeypatch.setattr(device, "SHAPES", shapes)
    monkeypatch.setattr(torch, "matmul", computed)
    wrong = device.wrong_shapes(torch.device("cpu"), name)
    assert wrong == [*shapes[1:]] * is_wrong


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, RuntimeError])
def test_products_that_cannot_be_made_are_not_known(monkeypatch, error):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert device.check_products(torch.device("cpu"), ("bf16",))["bf16"]["wrong"] == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert device.check_products(torch.device("cpu"), ("bf16",)) is None

    def fail(*matrices):
        raise error("no room")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch, "matmul", fail)
    assert device.check_products(torch.device("cpu"), ("bf16",)) is None


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_each_limit_that_was_seen_wrong_has_a_wrong_product_among_those_that_are_checked(card):
    squares = {rows for rows, inner, columns in device.SHAPES if rows == inner == columns}
    layers = {columns for rows, inner, columns in device.SHAPES if rows != inner}
    checked = {"matmul": squares, "linear backward": layers}
    with (REPOSITORY / "results" / f"sm_limits_{card}.csv").open() as file:
        wrong = [row for row in csv.DictReader(file) if row["wrong_repeats"] != "0"]
    limits = {row["percent"] for row in wrong}
    caught = {
        row["percent"] for row in wrong if int(row["size"]) in checked.get(row["operation"], ())
    }
    assert limits == caught and "30" in limits


def test_numerics_are_those_of_the_implementation(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    train_member(member_spec(tmp_path, window_steps=1, **TINY), stop_at="done")
    assert torch.backends.cudnn.benchmark
    assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32


# -- out of memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),  # as torch 2.13 (CUDABlas, Conv_v8.cpp) and cuDNN 9 spell them
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory is only mentioned"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cubl"), "starved"),
        (RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), "starved"),
        (RuntimeError("GET was unable to find an engine to execute this"), "starved"),
        (RuntimeError("could not create a primitive"), "capped"),  # oneDNN
    ],
)
@pytest.mark.parametrize("free", [2.7, 40, None])  # GiB of 141; None: the device does not answer
def test_what_counts_as_out_of_memory(monkeypatch, error, expected, free):
    def mem_get_info():
        if free is None:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return int(free * 2**30), 141 * 2**30

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    right = free == 2.7 if expected == "starved" else expected is True
    assert is_out_of_memory(error) is right
    assert is_out_of_memory(error, capped=True) is (right or expected == "capped")


FORKED = """
    import json, os, signal, time
    from multiprocessing import active_children
    import torch
    from models import train
    from models.inputs import FileImages
    from workflow.collocation.member.protocol import Channel
    from models.fork_server import call_trainer
    from tests.fakes.data import FakeImages
    from tests.fakes.members import member_spec
    from workflow.collocation.member.spec import InputSpec, MemberSpec

    if (capped := os.fork()) == 0:
        train.open_dataset = lambda name, path: FakeImages()
        commands, conductor = os.pipe()
        os.write(conductor, b"autotune\\n")
        signal.alarm(100)  # it would wait for the next command
        told = [MemberSpec.from_json(json.loads(os.environ["SPEC"]))], [Channel(0, 1, commands)]
        os._exit(call_trainer(train, *told))
    print(os.waitstatus_to_exitcode(os.waitpid(capped, 0)[1]), flush=True)

    data = [(torch.zeros(3, 4, 4, dtype=torch.uint8), 0)] * 8
    files = InputSpec(mode="files", workers=2)
    spec = member_spec("", input=files, batch_size=4, seed=1, channels_last=True)
    source = FileImages(data, spec, torch.device("cpu"))
    images, labels = source.batch(0)
    assert images.shape == (4, 3, 4, 4) and images.is_contiguous(
        memory_format=torch.channels_last)
    print(*(each.pid for each in active_children()), flush=True)
    time.sleep(600)
"""


def test_a_memory_cap_is_out_of_memory_and_workers_die_with_a_killed_member(tmp_path):
    """In one process: what it imports takes the time."""
    capped = {"model": "resnet26", "batch_size": 256, "memory_limit_bytes": 200 << 20, "threads": 2}
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FORKED)],
        cwd=ROOT,
        env={**os.environ, "SPEC": json.dumps(member_spec(tmp_path, **capped).to_json())},
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        said = [child.stdout.readline()]
        while said[-1].startswith("{"):
            said.append(child.stdout.readline())
        *_, error, code = map(json.loads, said)
        assert (code, error["out_of_memory"], error["phase"]) == (3, True, "warm")
        workers = [int(pid) for pid in child.stdout.readline().split()]
        assert len(workers) == 2
        child.send_signal(signal.SIGKILL)
    assert_gone(*workers)
