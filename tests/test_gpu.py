"""The GPU as NVML tells it, against a stand-in for pynvml; and what methods make of it."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Named

import psutil
import pynvml
import pytest

from workflow.collocation import gpu
from workflow.collocation import sharing as methods
from workflow.collocation.gpu import nvidia
from workflow.collocation.gpu import nvml_subprocess as apart
from workflow.collocation.record.run_json import Gpu
from workflow.collocation.sharing import evidence, mps_daemon
from workflow.collocation.sharing.evidence import Company, NotInForce, Report
from workflow.collocation.spec.load import ConfigError

UUIDS = ["GPU-aaaa-0000", "GPU-aaaa-1111", "GPU-bbbb-2222"]
NAIVE = {"method": "naive", "members": [{"workload": "a"}]}
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class FakeNvml:
    """Three cards; `missing` names the calls that this driver does not know."""

    def __init__(self):
        self.uuids = list(UUIDS)
        self.missing: set[str] = set()
        self.capability = [9, 0]
        self.cores = 132 * 128
        self.mig = 0
        self.names = [f"Card {index}" for index in range(3)]
        self.slots = [0, 1, 2]  # on the bus
        self.compute_mode = pynvml.NVML_COMPUTEMODE_DEFAULT
        self.compute: list[int] = []
        self.mps: list[int] = []

    def by_uuid(self, uuid):
        if uuid not in ("MIG-1", "MIG-2", *self.uuids):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid if uuid.startswith("MIG-") else self.uuids.index(uuid)

    def profile(self, handle, index):
        raise NOT_SUPPORTED

    def calls(self) -> dict[str, Callable]:
        """By their names less `nvml`; those of a device less `nvmlDeviceGet`."""
        clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}
        memory = Named(total=80 * 2**30, used=2**30, free=79 * 2**30)
        device = {
            "Count": lambda: len(self.uuids),
            "HandleByIndex": lambda index: index,
            "HandleByUUID": self.by_uuid,
            "UUID": lambda handle: self.uuids[handle],
            "Name": lambda handle: self.names[handle],
            "MemoryInfo": lambda handle: memory,
            "CudaComputeCapability": lambda handle: self.capability,
            "NumGpuCores": lambda handle: self.cores,
            "PciInfo": lambda handle: Named(busId=f"0000FFFF:{self.slots[handle]:02X}:00.0"),
            "ComputeMode": lambda handle: self.compute_mode,
            "Temperature": lambda handle, sensor: 41,
            "PowerUsage": lambda handle: 123_456,
            "ClockInfo": lambda handle, clock: clocks[clock],
            "CurrentClocksEventReasons": lambda handle: 4,
            "ComputeRunningProcesses": lambda handle: [Named(pid=pid) for pid in self.compute],
            "MPSComputeRunningProcesses": lambda handle: [Named(pid=pid) for pid in self.mps],
            "DeviceHandleFromMigDeviceHandle": {"MIG-1": 1, "MIG-2": 2}.__getitem__,
            "MigMode": lambda handle: [self.mig, self.mig],
            "GpuInstanceProfileInfo": self.profile,
        }
        found = {"nvmlInit": lambda: None, "nvmlSystemGetDriverVersion": lambda: "580.1"}
        return found | {f"nvmlDeviceGet{name}": call for name, call in device.items()}


@pytest.fixture
def nvml(monkeypatch) -> FakeNvml:
    fake = FakeNvml()

    def answer(name, ask):
        def call(*arguments):
            if name in fake.missing:
                raise NOT_SUPPORTED
            return ask(*arguments)

        return call

    for name, ask in fake.calls().items():
        monkeypatch.setattr(pynvml, name, answer(name, ask))
    monkeypatch.setattr(apart.CHILD, "inside", True)  # this process is asked, which is the fake's
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def first(wanted="auto") -> gpu.Device | None:
    return next(iter(gpu.find(wanted)), None)


def refusal(wanted) -> str:
    with pytest.raises(ConfigError) as caught:
        first(wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- find -----------------------------------------------------------------------------------------


def test_what_is_known_of_a_device(nvml):
    device, memory = first(), 80 * 2**30
    assert device == gpu.Nvidia(UUIDS[0], "Card 0", 0, memory, "580.1", (9, 0), None, 132)
    told = {"uuid": UUIDS[0], "name": "Card 0", "memory_bytes": memory, "driver": "580.1"}
    assert Gpu.model_validate(device, from_attributes=True) == Gpu(**told, sm_count=132)


@pytest.mark.parametrize(
    ("capability", "cores", "count"),
    [
        ((7, 0), 5120, 80),  # V100
        ((8, 0), 6912, 108),  # A100
        ((8, 0), 3584, 56),  # A30
        ((8, 6), 10752, 84),  # A40
        ((9, 0), 16896, 132),  # H100, H200
        ((10, 0), 18944, 148),  # B200
        ((42, 0), 16896, None),  # a card of the future
        ((9, 0), 100, None),  # what no such card has
        ((9, 0), 0, None),
        ((9, 0), None, None),  # not readable
    ],
)
def test_sms_of_a_card_from_its_cores(nvml, capability, cores, count):
    nvml.capability, nvml.cores = list(capability), cores
    nvml.missing = {"nvmlDeviceGetNumGpuCores"} if cores is None else set()
    assert first().sm_count == count


@pytest.mark.parametrize(
    ("visible", "wanted", "indices"),
    [
        (None, "auto", [0, 1, 2]),
        *((None, wanted, [1]) for wanted in ("1", UUIDS[1], "GPU-aaaa-1")),
        *((None, wanted, [index]) for wanted, index in ((0, 0), (2, 2), ("GPU-bbbb", 2))),
        (None, "0,2", [0, 2]),
        ("2", "auto", [2]),
        ("1,0", "auto", [1, 0]),
        ("1,9,0", "auto", [1]),  # as for CUDA, what is not there ends the list
        (" 1 ,2", "auto", [1, 2]),
        (UUIDS[2], "auto", [2]),
        ("GPU-bbbb,0", "auto", [2, 0]),
        ("1", "2,2", [2]),  # asked for by name: that one
        *((hidden, "auto", []) for hidden in ("", "-1", "-1,0")),
    ],
)
@pytest.mark.parametrize("along", [True, False])  # the bus, or cards are of one model
def test_find(nvml, monkeypatch, visible, wanted, indices, along):
    if along:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    else:
        nvml.names = ["Card"] * 3
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = gpu.find(wanted)
    assert [(device.index, device.uuid) for device in found] == [(i, UUIDS[i]) for i in indices]


def test_an_index_that_cuda_counts_is_not_nvmls(nvml, monkeypatch):
    """CUDA's default is the fastest first, and NVML's order need not be that of the bus."""
    nvml.slots = [2, 0, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    message = refusal("auto")
    assert message.startswith("CUDA_VISIBLE_DEVICES: '0' may be any GPU, ")
    assert message.endswith(f"; allowed: {', '.join(UUIDS)}")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert first().uuid == UUIDS[1]
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    nvml.names = ["Card"] * 3
    assert first().uuid == UUIDS[1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUIDS[2])
    nvml.names = ["Card", "another", "a third"]
    assert first().uuid == UUIDS[2]


def test_one_that_is_not_there(nvml, monkeypatch):
    for wanted in (3, "7", "GPU-cccc", "H200"):
        message = refusal(wanted)
        assert message.startswith(f"gpu: '{wanted}' is no GPU of this machine; allowed: 0 (GPU-a")
        assert all(uuid in message for uuid in UUIDS)
    assert refusal("GPU-aaaa").startswith("gpu: 'GPU-aaaa' names several GPUs; allowed: ")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert refusal("auto").startswith("CUDA_VISIBLE_DEVICES: 'MIG-1234' is no GPU")
    for part in ("MIG-1", f"MIG-{UUIDS[1]}/1/0"):  # such as Slurm gives: of the second card
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", part)
        assert "is no GPU, but a part of one" in refusal("auto")
        assert refusal(part).startswith(f"gpu: '{part}' is no GPU, but a part of one")


def test_no_cards_and_no_driver(nvml):
    nvml.uuids = []
    assert first() is None
    assert refusal(0) == "gpu: '0' is no GPU of this machine; allowed: none is there"
    nvml.missing = {"nvmlInit"}
    assert first() is None
    said = "gpu: '1' was asked for, but there is no NVIDIA driver here; allowed: auto, cpu"
    assert refusal("1") == said


# -- readings -------------------------------------------------------------------------------------


def test_readings_and_what_a_driver_does_not_tell(nvml):
    nvml.compute, nvml.mps, nvml.mig = [9, 3], [], 1
    device = first(1)
    assert device.processes() == {"compute": [3, 9], "mps": []}
    assert nvidia.memory_free(UUIDS[1]) == nvidia.memory_free("MIG-1") == 79 * 2**30
    assert (nvidia.card_of("MIG-2"), nvidia.mig_enabled(device)) == (UUIDS[2], True)
    nvml.mig = 0
    assert nvidia.mig_enabled(device) is False
    names = ("MemoryInfo", "MPSComputeRunningProcesses", "MigMode")
    nvml.missing = {f"nvmlDeviceGet{name}" for name in names}
    device = first(1)  # in MIG mode NVML tells a card's memory to administrators only
    assert (device.index, device.memory_bytes) == (1, None)
    assert Gpu.model_validate(device, from_attributes=True).memory_bytes is None
    assert device.processes() == {"compute": [3, 9], "mps": None}
    assert nvidia.memory_free(device.uuid) is nvidia.mig_enabled(device) is None
    nvml.missing = {"nvmlDeviceGetHandleByUUID"}
    assert nvidia.card_of("MIG-2") is None


# -- the process that asks -------------------------------------------------------------------------


@apart.apart(seconds=0.5)
def stuck() -> None:
    signal.pause()


@apart.apart(seconds=60)
def answer(text: str, then=None, wait: float = 0) -> str:
    time.sleep(wait)
    if then:
        raise then
    return text


@pytest.fixture
def child(monkeypatch):
    made = apart.Child()
    monkeypatch.setattr(apart, "CHILD", made)
    yield made
    made.end()


@pytest.fixture
def hanging(nvml, child, monkeypatch) -> set[int]:
    """Cards of which the driver never tells anything, to who asks for one by index."""
    monkeypatch.setattr(apart, "ANSWER_S", 0.3)
    found = set()
    ask = pynvml.nvmlDeviceGetHandleByIndex
    hang = lambda index: signal.pause() if index in found else ask(index)  # noqa: E731
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", hang)
    return found


SILENT = "the NVIDIA driver does not answer for GPU 1, which is left out"


def test_a_card_that_is_silent_is_left_out_and_named(hanging, monkeypatch):
    monkeypatch.setattr(gpu, "torch_build", lambda: None)
    hanging.add(1)
    for wanted, indices in (("auto", [0, 2]), (UUIDS[2], [2]), ("1,2", [2]), (0, [0])):
        devices, said = gpu.find_devices(wanted)
        assert [device.index for device in devices] == indices and said == SILENT
    assert [device.index for device in gpu.find(None)] == [0, 2]
    for wanted in (1, UUIDS[1]):  # a job of its own
        with pytest.raises(apart.Silent, match=SILENT):
            gpu.find_devices(wanted)
    assert refusal(3).startswith("gpu: '3' is no GPU of this machine")
    assert first().processes() == {"compute": [], "mps": []}  # the others are asked on
    # What CUDA counts is another number where a card is missing.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(apart.Silent, match="'1' may be any GPU: the NVIDIA driver does not answer"):
        gpu.find()
    assert nvidia.shows({"CUDA_VISIBLE_DEVICES": "0"}, first(0)) is False
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{UUIDS[1]},{UUIDS[2]}")
    assert [device.index for device in gpu.find()] == [2]


def test_a_driver_that_is_silent_on_all_cards_is_asked_no_more(hanging, child, monkeypatch):
    hanging |= {0, 1, 2}
    for _ in range(2):
        with pytest.raises(apart.Silent, match="does not answer: nothing on '_device'"):
            gpu.find()
    assert len(child.left_out) == 3


def test_what_the_driver_says_and_refuses_comes_back_as_it_is(child):
    assert answer("a") == "a"
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    for error in (lost, ConfigError("one line"), NotInForce("a sentence")):
        with pytest.raises(type(error), match=str(error)):
            answer("b", error)
    assert answer("c") == "c" and child.pid != os.getpid()


@pytest.mark.parametrize("ends", [True, False])
def test_a_question_without_an_answer_is_given_up_and_no_other_is_asked(child, monkeypatch, ends):
    """One that is stuck in the kernel is not ended by SIGKILL; here, nobody hears of its end."""
    assert answer("a") == "a"
    pid = child.pid
    monkeypatch.setattr(apart, "END_S", 60 if ends else 0.1)
    if not ends:
        monkeypatch.setattr(apart.os, "waitpid", lambda pid, options: (0, 0))
    for question in (stuck, lambda: answer("never asked")):
        with pytest.raises(apart.Silent) as caught:
            question()
        said = "the NVIDIA driver does not answer: nothing on 'stuck' within 0 s"
        assert str(caught.value) == said + ("" if ends else f"; PID {pid} is stuck in it")
    monkeypatch.undo()


def test_an_answer_that_comes_late_is_not_the_next_ones(child):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            answer("late", None, 1.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert answer("next") == "next"


def test_a_child_that_was_killed_is_told_and_the_next_question_has_another(child):
    assert answer("a") == "a"
    first = child.pid
    os.kill(first, signal.SIGKILL)
    with pytest.raises(apart.Silent, match="the process that asks the NVIDIA driver ended at 'ans"):
        answer("b")
    assert answer("c") == "c" and child.pid != first


def test_the_child_holds_nothing_of_its_parents(child):
    """A pipe that somebody reads to its end, a lock that dies with its holder."""
    reading, writing = os.pipe()
    assert answer("a") == "a"
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)
    ours, its = (
        {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
        for pid in (os.getpid(), child.pid)
    )
    # A driver has some of its own; what is anonymous or of a device has one name for all.
    same = {link for link in ours & its if not link.startswith(("/dev/", "anon_inode:"))}
    assert not same and "/dev/null" in its


def test_who_is_forked_asks_by_a_child_of_its_own(child):
    assert answer("a") == "a"
    if (forked := os.fork()) == 0:
        os._exit(answer("b") != "b" or child.owner != os.getpid())
    assert os.waitpid(forked, 0)[1] == 0 and answer("c") == "c"


# -- naive ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_daemons(monkeypatch):
    """Whatever MPS daemons there are on this machine do not concern these cards."""
    monkeypatch.setattr(mps_daemon, "sweep", lambda: None)
    monkeypatch.setattr(evidence, "_daemons", lambda: iter(()))


@pytest.fixture
def naive(nvml, tmp_path):
    with methods.enter(NAIVE, first(1), tmp_path) as sharing:
        yield sharing


def said(*pids: int, **changes) -> dict[int, Report]:
    """What naive members with these PIDs report when all is as it should be, but for `changes`."""
    report = Report(pid=0, device_uuid=UUIDS[1], sm_count=132, memory_free=2**30)
    return {member: replace(report, pid=pid, **changes) for member, pid in enumerate(pids)}


def test_naive_is_verified_when_nvml_lists_exactly_the_members(nvml, naive):
    environment = naive.environment(0)
    assert environment["CUDA_VISIBLE_DEVICES"] == UUIDS[1]
    with pytest.raises(OSError):  # nobody can make this one, so no kill leaves one behind
        Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).mkdir()
    nvml.compute = [30, 10, 20]
    assert naive.witness(said(20, 30, 10)) == {
        "verified": True,
        "members": [10, 20, 30],
        "devices": dict.fromkeys(range(3), UUIDS[1]),
        "compute": [10, 20, 30],
        "mps": [],
    }


@pytest.mark.parametrize(
    ("compute", "missing", "members", "verified"),
    [
        ([], None, [20, 10], None),  # NVML shows nobody
        ([], "nvmlDeviceGetComputeRunningProcesses", [20, 10], None),
        ([4001, 4002], None, [20, 10], True),  # other PIDs, as many
        ([10, 20], "nvmlDeviceGetMPSComputeRunningProcesses", [20, 10], None),
        ([4001], None, [], None),  # nobody left
    ],
)
def test_what_nvml_does_not_tell_proves_nothing(nvml, naive, compute, missing, members, verified):
    nvml.compute, nvml.missing = compute, {missing}
    assert naive.witness(said(*members))["verified"] is verified


HIDDEN = 2**22 + 1  # beyond the kernel's largest PID
US = os.getpid()
CLIENTS = (
    "^naive: NVML lists MPS clients on the card: member 0 .PID 20., "
    f"PID {HIDDEN} .owner not visible from here.$"
)
STRANGER = rf"others compute on it: PID {US} \(.*, owner "
# What NVML lists, as processes and as MPS clients, beside the members 20 and 10; what is wrong.
WRONG = [
    *((compute, [20, HIDDEN], NotInForce, CLIENTS) for compute in ([10, 20], [4001, 4002], [])),
    ([4001, 4002], [4003], NotInForce, "^naive: NVML lists MPS clients on the card: PID 4003 "),
    ([4001, 4002, 4003], [], Company, "^naive: NVML lists 3 processes, the cell has 2 members$"),
    ([4001], [], NotInForce, "^naive: NVML lists 1 process, the cell has 2 members$"),
    ([20], [], NotInForce, r"^naive: member 1 \(PID 10\) is not among NVML's processes \[20\]$"),
    *(([10, 20, US], clients, Company, STRANGER) for clients in ([], [US])),
]


@pytest.mark.parametrize(("compute", "clients", "error", "sentence"), WRONG, ids=range(len(WRONG)))
def test_naive_is_not_in_force(nvml, naive, monkeypatch, compute, clients, error, sentence):
    monkeypatch.setattr(evidence, "GRACE_S", 0.0)
    nvml.compute, nvml.mps = compute, clients
    with pytest.raises(error, match=sentence):
        naive.witness(said(20, 10))


def test_naive_is_not_in_force_where_a_member_is_elsewhere(nvml, naive):
    nvml.compute = [10, 20]
    sentence = rf"^naive: member 0 \(PID 20\) runs on {UUIDS[0]}, not on {UUIDS[1]}$"
    with pytest.raises(NotInForce, match=sentence):
        naive.witness({**said(20, 10), **said(20, device_uuid=UUIDS[0])})


def test_what_a_member_started_itself_is_nobody_elses(nvml, naive, monkeypatch):
    """Else its cell would be measured again for ever."""
    monkeypatch.setattr(evidence, "GRACE_S", 0.0)
    nvml.compute = [4001, 4002]
    with subprocess.Popen(["sleep", "60"]) as own:
        with pytest.raises(NotInForce, match="NVML lists 2 processes, the cell has 1 member"):
            naive.witness(said(os.getpid()))
        own.kill()


def test_naive_one_that_is_leaving_the_card_is_given_time(nvml, naive, monkeypatch):
    monkeypatch.setattr(evidence, "GRACE_S", 60.0)
    answers = iter([[4001, 4002, 4003]] * 2)
    monkeypatch.setattr(
        gpu.Nvidia, "processes", lambda device: {"compute": next(answers, [4001, 4002]), "mps": []}
    )
    assert naive.witness(said(20, 10))["compute"] == [4001, 4002]


def test_a_strangers_name_cannot_move_the_cursor(tmp_path):
    program = tmp_path / "\x1b[2Jbad\u202e"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "60"]) as process:
        while psutil.Process(process.pid).name() != program.name:  # not yet
            time.sleep(0.01)
        assert f"PID {process.pid} (?[2Jbad?, owner " in evidence.owner(process.pid)
        process.kill()


def test_naive_on_a_machine_without_a_gpu(tmp_path):
    assert methods.refusal(NAIVE, None) is None
    with methods.enter(NAIVE, None, tmp_path) as sharing:
        assert sharing.environment(0) == {"CUDA_VISIBLE_DEVICES": ""}
        found = sharing.witness(said(5, device_uuid=None, sm_count=None))
        assert found == {"verified": True, "device": "cpu", "members": [5]}


@pytest.mark.parametrize(
    ("mode", "runs"),  # of these members: plain, plain, as MPS clients
    [
        (pynvml.NVML_COMPUTEMODE_DEFAULT, (True, True, True)),
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD, (True, False, True)),
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, (True, False, True)),  # NVIDIA's advice for MPS
        (pynvml.NVML_COMPUTEMODE_PROHIBITED, (False, False, False)),
        (None, (True, True, True)),  # not readable
    ],
)
def test_a_compute_mode_that_lets_fewer_compute_is_an_administrators(nvml, monkeypatch, mode, runs):
    monkeypatch.setattr("shutil.which", lambda name: name)
    nvml.compute_mode, nvml.missing = mode, {"nvmlDeviceGetComputeMode"} if mode is None else set()
    for members, method, fine in zip((1, 2, 2), ("naive", "naive_again", "mps"), runs, strict=True):
        spec = {"method": method, "members": [{"workload": "a"}] * members}
        reason = methods.refusal(spec, first(1))
        assert (reason is None) == fine, reason
        assert fine or reason.endswith(f"'nvidia-smi -i {UUIDS[1]} -c DEFAULT'")


# -- who may ask ----------------------------------------------------------------------------------


def test_nvidias_library_is_asked_in_three_rooms_only():
    rooms = ("gpu", "methods", "telemetry")
    for module in (Path(gpu.__file__).parents[1]).rglob("*.py"):
        if module.relative_to(Path(gpu.__file__).parents[1]).parts[0] not in rooms:
            assert "pynvml" not in module.read_text(), module
