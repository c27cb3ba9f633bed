"""The GPU as NVML tells it, against a stand-in for pynvml, and by the process that asks it."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Named

import pynvml
import pytest

from tests.studio import alone, study, workload
from workflow.collocation import gpu
from workflow.collocation.gpu import nvidia, nvml_subprocess
from workflow.collocation.gpu.nvml_subprocess import DriverError, Silent
from workflow.collocation.record.run_json import Gpu
from workflow.collocation.spec.errors import ConfigError, NotInForce

UUIDS = ["GPU-aaaa-0000", "GPU-aaaa-1111", "GPU-bbbb-2222"]
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class FakeNvml:
    """Three cards, assumed to answer as nvidia-ml-py does. `failing`: what a call raises."""

    def __init__(self):
        self.uuids = list(UUIDS)
        self.failing: dict[str, Exception] = {}
        self.memory = Named(total=80 * 2**30, used=2**30, free=79 * 2**30)
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

    def calls(self) -> dict[str, Callable]:
        """By their names less `nvml`; those of a device less `nvmlDeviceGet`."""
        device = {
            "Count": lambda: len(self.uuids),
            "HandleByIndex": lambda index: index,
            "HandleByUUID": self.by_uuid,
            "UUID": lambda handle: self.uuids[handle],
            "Name": lambda handle: self.names[handle],
            "MemoryInfo": lambda handle: self.memory,
            "CudaComputeCapability": lambda handle: self.capability,
            "NumGpuCores": lambda handle: self.cores,
            "PciInfo": lambda handle: Named(busId=f"0000FFFF:{self.slots[handle]:02X}:00.0"),
            "ComputeMode": lambda handle: self.compute_mode,
            "ComputeRunningProcesses": lambda handle: [Named(pid=pid) for pid in self.compute],
            "MPSComputeRunningProcesses": lambda handle: [Named(pid=pid) for pid in self.mps],
            "DeviceHandleFromMigDeviceHandle": {"MIG-1": 1, "MIG-2": 2}.__getitem__,
            "MigMode": lambda handle: [self.mig, self.mig],
        }
        found = {"nvmlInit": lambda: None, "nvmlSystemGetDriverVersion": lambda: "580.1"}
        return found | {f"nvmlDeviceGet{name}": call for name, call in device.items()}


@pytest.fixture
def nvml(monkeypatch) -> FakeNvml:
    fake = FakeNvml()

    def answer(name, ask):
        def call(*arguments):
            if name in fake.failing:
                raise fake.failing[name]
            return ask(*arguments)

        return call

    for name, ask in fake.calls().items():
        monkeypatch.setattr(pynvml, name, answer(name, ask))
    monkeypatch.setattr(nvml_subprocess.CHILD, "inside", True)  # this process is asked
    monkeypatch.setattr(nvidia, "_LEFT_OUT", {})
    monkeypatch.setattr(gpu, "torch_build", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def first(wanted="auto") -> gpu.Device | None:
    return next(iter(gpu.find(wanted)), None)


def refusal(wanted) -> str:
    with pytest.raises(ConfigError) as caught:
        first(wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- which GPUs ------------------------------------------------------------------------------------


def test_what_is_known_of_a_device(nvml):
    device, memory = first(), 80 * 2**30
    assert device == gpu.Nvidia(UUIDS[0], "Card 0", 0, memory, "580.1", (9, 0), None, 132)
    told = {"uuid": UUIDS[0], "name": "Card 0", "memory_bytes": memory, "driver": "580.1"}
    assert Gpu.model_validate(device, from_attributes=True) == Gpu(**told, sm_count=132)


@pytest.mark.parametrize(
    ("capability", "cores", "count"),
    [
        ((8, 0), 6912, 108),  # A100
        ((9, 0), 16896, 132),  # H100, H200
        ((42, 0), 16896, None),  # a card of the future
        ((9, 0), 100, None),  # what no such card has
        ((9, 0), None, None),  # not readable
    ],
)
def test_sms_of_a_card_from_its_cores(nvml, capability, cores, count):
    nvml.capability, nvml.cores = list(capability), cores
    nvml.failing = {"nvmlDeviceGetNumGpuCores": NOT_SUPPORTED} if cores is None else {}
    assert first().sm_count == count


@pytest.mark.parametrize(
    ("visible", "wanted", "indices"),
    [
        (None, "auto", [0, 1, 2]),
        *((None, wanted, [1]) for wanted in ("1", UUIDS[1], "GPU-aaaa-1")),
        *((None, wanted, [index]) for wanted, index in ((0, 0), (2, 2), ("GPU-bbbb", 2))),
        (None, "0,2", [0, 2]),
        ("1,0", "auto", [1, 0]),
        ("1,9,0", "auto", [1]),  # as for CUDA, what is not there ends the list
        ("1,NoDevFiles,0", "auto", [1]),
        (" 1 ,2", "auto", [1, 2]),
        ("GPU-bbbb,0", "auto", [2, 0]),
        ("1", "2,2", [2]),  # asked for by name: that one
        *((hidden, "auto", []) for hidden in ("", "-1", "-1,0", "NoDevFiles", "none", "void")),
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


def test_a_name_that_is_no_gpu_is_told_with_those_that_are(nvml, monkeypatch):
    for wanted in (3, "GPU-cccc", "H200"):
        message = refusal(wanted)
        assert message.startswith(f"gpu: '{wanted}' is no GPU of this machine; allowed: 0 (GPU-a")
        assert all(uuid in message for uuid in UUIDS)
    assert refusal("GPU-aaaa").startswith("gpu: 'GPU-aaaa' names several GPUs; allowed: ")
    for part in ("MIG-1", f"MIG-{UUIDS[1]}/1/0"):  # such as Slurm gives: of the second card
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", part)
        assert "is no GPU, but a part of one" in refusal("auto")
    nvml.uuids = []
    assert refusal(0).endswith("is no GPU of this machine; allowed: auto, cpu, for there is none")


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (None, True),
        (UUIDS[1], True),
        (f"0, {UUIDS[1][:10]}", True),
        ("0,1", True),
        (f"9,{UUIDS[1]}", False),  # behind what names none
        *((part, True) for part in (f"MIG-{UUIDS[1]}/1/0", "MIG-1")),
        *((other, False) for other in ("MIG-2", UUIDS[0], "0", "", "-1")),
    ],
)
def test_whether_a_process_sees_a_card(nvml, visible, shown):
    nvml.names = ["Card"] * 3
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu.find(1)[0].shown_to(environment) is shown


# -- a driver that fails ---------------------------------------------------------------------------

INIT, COUNT, FIRST = "nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"


def test_without_nvidias_library_or_a_card_there_is_no_gpu(nvml):
    for nvml.uuids, nvml.failing in (([], {}), (UUIDS, {INIT: pynvml.NVMLError(12)})):
        assert gpu.find_devices("auto") == ([], "no CUDA machine")
        assert refusal("1").startswith("gpu: '1' is no GPU of this machine; allowed: auto, cpu")


@pytest.mark.parametrize("call", [INIT, COUNT, FIRST, "nvmlDeviceGetName"])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (18, "version mismatch. (NVML error 18); the driver was updated: restart the machine"),
        (9, "Driver Not Loaded (NVML error 9); load it"),
        (4, "Insufficient Permissions (NVML error 4)"),
        (15, "GPU is lost (NVML error 15); 'nvidia-smi' and 'dmesg' may say more"),
        (999, "Unknown Error (NVML error 999); 'nvidia-smi'"),
    ],
)
def test_a_driver_that_fails_is_told_in_its_words_and_is_no_machine_without_a_gpu(
    nvml, call, code, words
):
    nvml.failing = {call: pynvml.NVMLError(code)}
    for wanted in ("auto", "1", UUIDS[0]):
        with pytest.raises(DriverError) as caught:
            gpu.find_devices(wanted)
        assert words in str(caught.value) and "gpu=cpu" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert gpu.find_devices("cpu")[0] == []


@pytest.mark.parametrize("code", [18, 999])
def test_no_study_falls_back_to_the_cpu_where_the_driver_fails(studio, code):
    failing = {"call": "nvmlInitWithFlags", "at": 1, "error": code, "on": True}
    studio.with_card("h200_141", failures=[failing])
    of_one = {"ladders": alone("plain"), "replicates": 1}
    studio.write({"plain": workload()}, drill=study(**of_one), smoke=study(cpu=True, **of_one))
    for config in ({}, {"study": "auto"}):
        run = studio.measure(config=config)
        assert run.code == 1 and f"(NVML error {code})" in run.output, run.output
        assert "Traceback" not in run.output
    assert not studio.records()


def test_one_card_that_fails_is_left_out_and_named(nvml, monkeypatch):
    lost, ask = pynvml.NVMLError(15), pynvml.nvmlDeviceGetName
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda h: ask(h) if h != 1 else raise_(lost))
    devices, said = gpu.find_devices("auto")
    assert [device.index for device in devices] == [0, 2]
    assert said.startswith("GPU 1 is left out: the NVIDIA driver fails: GPU is lost")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # CUDA may count without it
    with pytest.raises(DriverError, match="'1' may be a GPU that fails: GPU 1 is left out"):
        gpu.find()


def raise_(error: Exception):
    raise error


# -- readings -------------------------------------------------------------------------------------


def test_readings(nvml):
    nvml.compute, nvml.mps, nvml.mig = [9, 3], [], 1
    device = first(1)
    assert device.processes() == {"compute": [3, 9], "mps": []}
    assert device.memory_free() == 79 * 2**30
    assert nvidia.mig_enabled(device) is True
    nvml.mig = 0
    assert nvidia.mig_enabled(device) is False


# As nvidia-ml-py raises where the driver is older than the call.
OLD = pynvml.NVMLLibraryMismatchError("Unversioned function called and the pyNVML version ...")


@pytest.mark.parametrize("error", [NOT_SUPPORTED, OLD])
def test_what_a_driver_does_not_tell_is_unknown(nvml, error):
    names = ("MemoryInfo", "ComputeRunningProcesses", "MPSComputeRunningProcesses", "MigMode")
    nvml.failing = {f"nvmlDeviceGet{name}": error for name in names}
    device = first(1)  # in MIG mode NVML tells a card's memory to administrators only
    assert (device.index, device.memory_bytes) == (1, None)
    assert Gpu.model_validate(device, from_attributes=True).memory_bytes is None
    assert device.processes() == {"compute": None, "mps": None}
    assert device.memory_free() is nvidia.mig_enabled(device) is None


def test_a_card_without_memory_of_its_own_has_an_unknown_size(nvml):
    """Such as a GB10, which shares the CPU's."""
    nvml.memory = Named(total=0, used=0, free=0)
    assert first().memory_bytes is first().memory_free() is None


@pytest.mark.parametrize(
    ("mode", "most"),
    [
        (pynvml.NVML_COMPUTEMODE_DEFAULT, 99),
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD, 1),
        (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, 1),  # NVIDIA's advice for MPS
        (pynvml.NVML_COMPUTEMODE_PROHIBITED, 0),
        (None, 99),  # not readable
    ],
)
def test_a_compute_mode_that_lets_fewer_compute_is_an_administrators(nvml, mode, most):
    nvml.compute_mode = mode
    nvml.failing = {"nvmlDeviceGetComputeMode": NOT_SUPPORTED} if mode is None else {}
    for processes in (1, 2):
        reason = first(1).too_many(processes)
        assert (reason is None) == (processes <= most)
        assert reason is None or reason.endswith(f"'nvidia-smi -i {UUIDS[1]} -c DEFAULT'")


# -- the process that asks -------------------------------------------------------------------------


@nvml_subprocess.in_subprocess(seconds=0.5)
def stuck() -> None:
    signal.pause()


@nvml_subprocess.in_subprocess(seconds=60)
def answer(text: str, then=None, wait: float = 0) -> str:
    time.sleep(wait)
    if then:
        raise then
    return text


@pytest.fixture
def child(monkeypatch):
    made = nvml_subprocess.Child()
    monkeypatch.setattr(nvml_subprocess, "CHILD", made)
    yield made
    made.end()


@pytest.fixture
def hanging(nvml, child, monkeypatch) -> set[int]:
    """Cards of which the driver never tells anything, to who asks for one by index."""
    monkeypatch.setattr(nvml_subprocess, "ANSWER_S", 0.3)
    found = set()
    ask = pynvml.nvmlDeviceGetHandleByIndex
    hang = lambda index: signal.pause() if index in found else ask(index)  # noqa: E731
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", hang)
    return found


def test_a_card_that_is_silent_is_left_out_and_named(nvml, hanging):
    nvml.names = ["Card"] * 3
    hanging.add(1)
    said = "GPU 1 is left out: the NVIDIA driver does not answer: nothing on '_device' within 0 s"
    for wanted, indices in (("auto", [0, 2]), (UUIDS[2], [2]), (0, [0])):
        devices, told = gpu.find_devices(wanted)
        assert [device.index for device in devices] == indices and told.startswith(said)
    for wanted in (1, UUIDS[1]):  # a job of its own
        with pytest.raises(DriverError, match=said):
            gpu.find_devices(wanted)
    assert first().processes() == {"compute": [], "mps": []}  # the others are asked on
    assert first(0).shown_to({"CUDA_VISIBLE_DEVICES": "0"}) is False  # CUDA may count it


def test_a_driver_that_is_silent_on_all_cards_is_asked_no_more(hanging):
    hanging |= {0, 1, 2}
    for _ in range(2):
        with pytest.raises(Silent, match="does not answer: nothing on '_device'"):
            gpu.find()


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
    monkeypatch.setattr(nvml_subprocess, "END_S", 60 if ends else 0.1)
    if not ends:
        monkeypatch.setattr(nvml_subprocess.os, "waitpid", lambda pid, options: (0, 0))
    for question in (stuck, lambda: answer("never asked")):
        with pytest.raises(Silent) as caught:
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
    with pytest.raises(Silent, match="the process that asks the NVIDIA driver ended at 'ans"):
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


# -- who may ask ----------------------------------------------------------------------------------


def test_nvidias_library_is_asked_in_three_rooms_only():
    rooms = ("gpu", "sharing", "telemetry")
    for module in (Path(gpu.__file__).parents[1]).rglob("*.py"):
        if module.relative_to(Path(gpu.__file__).parents[1]).parts[0] not in rooms:
            assert "pynvml" not in module.read_text(), module
