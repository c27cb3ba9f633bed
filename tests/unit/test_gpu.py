"""The GPU as NVML tells it, against a stand-in for pynvml, and by the process that asks it."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace as Named

import pynvml
import pytest

from tests.studio import alone, study, workload
from workflow.collocation import gpu
from workflow.collocation.gpu import nvidia, nvml_subprocess
from workflow.collocation.gpu.nvml_subprocess import DriverError, DriverSilent
from workflow.collocation.record.run_json import GpuRecord
from workflow.collocation.study.errors import ConfigError

UUIDS = ["GPU-aaaa-0000", "GPU-aaaa-1111", "GPU-bbbb-2222"]
ORDER, VISIBLE = "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
# As nvidia-ml-py raises where the driver is older than the call.
OLD = pynvml.NVMLLibraryMismatchError("Unversioned function called and the pyNVML version ...")


def entry_of(pid: int) -> Named:
    return Named(pid=pid, usedGpuMemory=None)


class FakeNvml:
    """Three cards, assumed to answer as nvidia-ml-py does. `failing`: what a call raises, by its
    name less `nvmlDeviceGet`, for all cards or for (name, index).
    """

    def __init__(self):
        self.uuids, self.slots = list(UUIDS), [0, 1, 2]  # slots: on the bus
        self.names = [f"Card {index}" for index in range(3)]
        self.memory = Named(total=80 * 2**30, used=2**30, free=79 * 2**30)
        self.capability, self.cores, self.mig = [9, 0], 132 * 128, 0
        self.compute, self.mps, self.failing = [], [], {}
        self.calls = {
            "Count": lambda: len(self.uuids),
            "HandleByIndex": lambda index: index,
            "HandleByUUID": self.by_uuid,
            "UUID": lambda handle: self.uuids[handle],
            "Name": lambda handle: self.names[handle],
            "MemoryInfo": lambda handle: self.memory,
            "CudaComputeCapability": lambda handle: self.capability,
            "NumGpuCores": lambda handle: self.cores,
            "PciInfo": lambda handle: Named(busId=f"0000FFFF:{self.slots[handle]:02X}:00.0"),
            "ComputeRunningProcesses": lambda handle: [entry_of(pid) for pid in self.compute],
            "MPSComputeRunningProcesses": lambda handle: [entry_of(pid) for pid in self.mps],
            "MigMode": lambda handle: [self.mig, self.mig],
        }

    def by_uuid(self, uuid):
        if uuid not in self.uuids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.uuids.index(uuid)

    def call(self, name: str, *arguments):
        for key in (name, (name, *arguments)):
            if key in self.failing:
                raise self.failing[key]
        return self.calls[name](*arguments)


@pytest.fixture
def nvml(monkeypatch) -> FakeNvml:
    fake = FakeNvml()
    fake.calls["Init"], fake.calls["Version"] = lambda: None, lambda: "580.1"
    real = {"Init": "nvmlInit", "Version": "nvmlSystemGetDriverVersion"}
    for name in fake.calls:
        call = lambda *arguments, name=name: fake.call(name, *arguments)  # noqa: E731
        monkeypatch.setattr(pynvml, real.get(name, f"nvmlDeviceGet{name}"), call)
    monkeypatch.setattr(nvml_subprocess.CHILD, "inside", True)  # this process is asked
    monkeypatch.setattr(nvidia, "_FAILING", {})
    monkeypatch.setattr(gpu, "torch_build", lambda: None)
    monkeypatch.delenv(VISIBLE, raising=False)
    return fake


def first(wanted="auto") -> gpu.Device:
    return gpu.find(wanted)[0]


def refusal(wanted) -> str:
    with pytest.raises(ConfigError) as caught:
        first(wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- which GPUs ------------------------------------------------------------------------------------


def test_what_is_known_of_a_device(nvml):
    nvml.compute, nvml.mps, nvml.mig = [9, 3], [], 1
    device, memory = first(), 80 * 2**30
    assert device == gpu.Device(UUIDS[0], "Card 0", 0, memory, "580.1", (9, 0), None, 132)
    told = {"uuid": UUIDS[0], "name": "Card 0", "memory_bytes": memory, "driver": "580.1"}
    assert GpuRecord.model_validate(device, from_attributes=True) == GpuRecord(**told, sm_count=132)
    assert device.processes() == {"compute": [3, 9], "mps": []}
    assert (device.memory_free(), nvidia.mig_enabled(device)) == (79 * 2**30, True)


@pytest.mark.parametrize("error", [NOT_SUPPORTED, OLD])
def test_what_a_driver_does_not_tell_is_unknown(nvml, error):
    names = ("MemoryInfo", "ComputeRunningProcesses", "MPSComputeRunningProcesses", "MigMode")
    nvml.failing = dict.fromkeys(names, error)
    device = first(1)  # in MIG mode NVML tells a card's memory to administrators only
    assert (device.index, device.memory_bytes) == (1, None)
    assert device.processes() == {"compute": None, "mps": None}
    assert device.memory_free() is nvidia.mig_enabled(device) is None
    nvml.failing, nvml.memory = {}, Named(total=0, used=0, free=0)  # as of a GB10: the CPU's
    assert first().memory_bytes is first().memory_free() is None


COUNTED_OTHERWISE = [  # what of three cards makes their indices unclear
    {"slots": [1, 0, 2]},  # NVML does not count along the bus
    {"mig": 1},
    {"failing": {("HandleByIndex", 0): NOT_SUPPORTED}},
]


@pytest.mark.parametrize(
    ("visible", "unclear", "names"),
    [
        (None, {}, ["0", "1", "2"]),
        ("2,1", {}, ["2", "1"]),  # of those that the driver shows, whatever this shell hides
        *((None, unclear, UUIDS) for unclear in COUNTED_OTHERWISE),
    ],
)
def test_a_card_is_named_by_its_index_where_that_is_clear(
    nvml, monkeypatch, visible, unclear, names
):
    vars(nvml).update(unclear)
    if visible:
        monkeypatch.setenv(VISIBLE, visible)
        monkeypatch.setenv(ORDER, "PCI_BUS_ID")
    devices = gpu.find()
    assert [device.cuda_name() for device in devices] == names[-len(devices) :]


SMS = [((8, 0), 6912, 108), ((9, 0), 16896, 132)]  # A100, H100
SMS += [((42, 0), 16896, None), ((9, 0), 100, None)]  # a card of the future, an odd number


@pytest.mark.parametrize(("capability", "cores", "count"), SMS)
def test_sms_of_a_card_from_its_cores(nvml, capability, cores, count):
    nvml.capability, nvml.cores = list(capability), cores
    assert first().sm_count == count


@pytest.mark.parametrize(
    ("visible", "wanted", "indices"),
    [
        (None, "auto", [0, 1, 2]),
        *((None, wanted, [1]) for wanted in ("1", 1, UUIDS[1], "GPU-aaaa-1")),
        (None, "0,2", [0, 2]),
        ("1,0", "auto", [1, 0]),
        ("1,9,0", "auto", [1]),  # as for CUDA, what is not there ends the list
        ("1,NoDevFiles,0", "auto", [1]),
        ("GPU-bbbb, 0", "auto", [2, 0]),
        ("1", "2,2", [2]),  # asked for by name: that one
        *((hidden, "auto", []) for hidden in ("", "-1,0", "NoDevFiles", "none")),
    ],
)
@pytest.mark.parametrize("along", [True, False])  # the bus, or cards are of one model
def test_find(nvml, monkeypatch, visible, wanted, indices, along):
    if along:
        monkeypatch.setenv(ORDER, "PCI_BUS_ID")
    else:
        nvml.names = ["Card"] * 3
    if visible is not None:
        monkeypatch.setenv(VISIBLE, visible)
    found = gpu.find(wanted)
    assert [(device.index, device.uuid) for device in found] == [(i, UUIDS[i]) for i in indices]


def test_an_index_that_cuda_counts_is_not_nvmls(nvml, monkeypatch):
    """CUDA's default is the fastest first, and NVML's order need not be that of the bus."""
    nvml.slots = [2, 0, 1]
    monkeypatch.setenv(VISIBLE, "0")
    message = refusal("auto")
    assert "'0' may be any GPU" in message and all(uuid in message for uuid in UUIDS)
    monkeypatch.setenv(ORDER, "PCI_BUS_ID")
    assert first().uuid == UUIDS[1]
    monkeypatch.delenv(ORDER)
    nvml.names = ["Card"] * 3
    assert first().uuid == UUIDS[1]


def test_a_name_that_is_no_gpu_is_told_with_those_that_are(nvml, monkeypatch):
    for wanted in (3, "GPU-cccc", "GPU-aaaa"):  # the last one is two
        message = refusal(wanted)
        assert f"gpu: '{wanted}'" in message and all(uuid in message for uuid in UUIDS)
    for part in ("MIG-1", f"MIG-{UUIDS[1]}/1/0"):  # such as Slurm gives: of the second card
        monkeypatch.setenv(VISIBLE, part)
        assert "is no GPU of this machine" in refusal("auto")


SHOWN = [None, UUIDS[1], f"0, {UUIDS[1][:10]}", "0,1"]
HIDDEN = [f"9,{UUIDS[1]}", "MIG-2", UUIDS[0], "0", "", "-1"]  # the first: behind what is none


@pytest.mark.parametrize("visible", SHOWN + HIDDEN)
def test_whether_a_process_sees_a_card(nvml, visible):
    nvml.names = ["Card"] * 3
    environment = {} if visible is None else {VISIBLE: visible}
    assert first(1).shown_to(environment) is (visible in SHOWN)


# -- a driver that fails ---------------------------------------------------------------------------


def test_without_nvidias_library_or_a_card_there_is_no_gpu(nvml):
    for nvml.uuids, nvml.failing in (([], {}), (UUIDS, {"Init": pynvml.NVMLError(12)})):
        assert gpu.find_devices("auto")[0] == []
        assert "'1' is no GPU of this machine" in refusal("1")


@pytest.mark.parametrize("call", ["Init", "Count", "HandleByIndex", "Name"])
@pytest.mark.parametrize(
    ("code", "words"),
    [(18, "version mismatch. (NVML error 18)"), (15, "GPU is lost (NVML error 15)")],
)
def test_a_driver_that_fails_is_told_in_its_words_and_is_no_machine_without_a_gpu(
    nvml, call, code, words
):
    nvml.failing = {call: pynvml.NVMLError(code)}
    for wanted in ("auto", UUIDS[0]):
        with pytest.raises(DriverError) as caught:
            gpu.find_devices(wanted)
        assert words in str(caught.value) and "\n" not in str(caught.value)
    assert gpu.find_devices("cpu")[0] == []


def test_no_study_falls_back_to_the_cpu_where_the_driver_fails(studio):
    failing = {"call": "nvmlInitWithFlags", "at": 1, "error": 18, "on": True}
    studio.with_card("h200_141", failures=[failing])
    of_one = {"ladders": alone("plain"), "replicates": 1}
    studio.write({"plain": workload()}, drill=study(**of_one), smoke=study(cpu=True, **of_one))
    for config in ({}, {"study": "auto"}):
        run = studio.measure(config=config)
        assert run.code == 1 and "(NVML error 18)" in run.output, run.output
        assert "Traceback" not in run.output
    assert not studio.records()


def test_one_card_that_fails_is_left_out_and_named(nvml, monkeypatch):
    nvml.failing = {("Name", 1): pynvml.NVMLError(15)}
    devices, said = gpu.find_devices("auto")
    assert [device.index for device in devices] == [0, 2]
    assert "GPU 1 is left out" in said and "GPU is lost" in said
    monkeypatch.setenv(VISIBLE, "1")  # CUDA may count without it
    assert "'1' may be any GPU" in (said := refusal("auto")) and "GPU 1 is left out" in said


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
    made = nvml_subprocess.NvmlProcess()
    monkeypatch.setattr(nvml_subprocess, "CHILD", made)
    yield made
    made.end()


def test_a_driver_that_is_silent_on_a_card_is_asked_no_more(nvml, child, monkeypatch):
    monkeypatch.setattr(nvml_subprocess, "ANSWER_S", 0.3)
    nvml.calls["HandleByIndex"] = lambda index: signal.pause() if index == 1 else index
    for _ in range(2):
        with pytest.raises(DriverSilent, match="does not answer"):
            gpu.find()


def test_what_the_driver_says_and_refuses_comes_back_as_it_is(child):
    assert answer("a") == "a"
    lost = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    for error in (lost, ConfigError("one line")):
        with pytest.raises(type(error), match=str(error)):
            answer("b", error)
    assert answer("c") == "c" and child.pid != os.getpid()
    if (forked := os.fork()) == 0:  # who asks by a child of its own
        os._exit(answer("b") != "b" or child.owner != os.getpid())
    assert os.waitpid(forked, 0)[1] == 0 and answer("c") == "c"


@pytest.mark.parametrize("ends", [True, False])
def test_a_question_without_an_answer_is_given_up_and_no_other_is_asked(child, monkeypatch, ends):
    """One that is stuck in the kernel is not ended by SIGKILL; here, nobody hears of its end."""
    assert answer("a") == "a"
    pid = child.pid
    with monkeypatch.context() as patch:
        if not ends:
            patch.setattr(nvml_subprocess, "END_S", 0.1)
            patch.setattr(nvml_subprocess.os, "waitpid", lambda pid, options: (0, 0))
        for question in (stuck, lambda: answer("never asked")):
            with pytest.raises(DriverSilent) as caught:
                question()
            assert "nothing on 'stuck'" in str(caught.value)
            assert (f"PID {pid} is stuck" in str(caught.value)) is not ends


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
    killed = child.pid
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(DriverSilent, match="the process that asks the NVIDIA driver ended"):
        answer("b")
    assert answer("c") == "c" and child.pid != killed


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
