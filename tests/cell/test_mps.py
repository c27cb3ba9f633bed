"""The mps method against a stand-in for NVIDIA's control program: limits, and the daemon.

What proves that members are clients: test_evidence.py. How whole cells fare: test_faults.py.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.cell.test_processes import assert_gone
from tests.fakes.card import FakeCard
from tests.specs import cell, member
from tests.unit.test_evidence import served
from workflow.collocation import sharing
from workflow.collocation.sharing import evidence, mps_daemon
from workflow.collocation.sharing.evidence import (
    GpuBusy,
    NotInForce,
    Report,
    Unsupported,
    WrongProducts,
)

ROOT = Path(__file__).parents[2]
SPEC = cell("mps", count=3)
GPU = FakeCard(uuid=f"GPU-{uuid.uuid4()}")  # another run of these tests must not be company


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):  # which is elsewhere
    """The stand-in on PATH, and a short folder for sockets, in which nothing is left."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        bins = [str(ROOT / "tests" / "fakes"), str(Path(sys.executable).parent)]
        monkeypatch.setenv("PATH", os.pathsep.join([*bins, os.environ["PATH"]]))
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(evidence, "GRACE_S", 0.0)
        yield
        left = programs()
        for process in left:
            process.kill()
        assert not left


def programs() -> list[psutil.Process]:
    """Every process of the stand-in that this test's temporary folder knows."""
    found = []
    for process in psutil.process_iter():
        try:
            pipe = process.environ().get("CUDA_MPS_PIPE_DIRECTORY", "")
        except psutil.Error:
            continue
        if pipe.startswith(tempfile.gettempdir()) and process.name().startswith("nvidia-cuda-mps"):
            found.append(process)
    return found


def folders() -> list[Path]:
    return sorted(Path(tempfile.gettempdir()).iterdir())


def said(*pids: int) -> dict[int, Report]:
    """What members with these PIDs report when all is as it should be."""
    return {m: Report(pid, GPU.uuid, 132, 140 * 2**30) for m, pid in enumerate(pids)}


# -- limits ----------------------------------------------------------------------------------------


def limits(device: FakeCard = GPU, report: Report | None = None, **its) -> dict:
    """The evidence of one client with these limits, and what it finds itself."""
    card = replace(device, listed={"compute": [5, 7], "mps": [7]})
    report = report or Report(7, card.uuid, device.sm_count, 140 * 2**30)
    return served(card, [7], **its).evidence({0: report})


def sees(count: int | None, free: int | None = 2**30, **products: list[int]) -> Report:
    """products: by number format, the sizes of eight that are wrong."""
    made = {name: {"sizes": 8, "wrong": wrong} for name, wrong in (products or RIGHT).items()}
    return Report(7, GPU.uuid, count, free, products=made)


def refused(report: Report, device: FakeCard = GPU, **its) -> str:
    with pytest.raises(NotInForce) as caught:
        limits(device, report, **its)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_limits_and_priorities_reach_the_member_that_they_are_for():
    its = {"sm_percent": 100 / 7, "pinned_memory_mb": 2048, "priority": 0}
    without = served(GPU, [7])
    assert served(GPU, [7], **its).environment(0) == without.daemon.environment | {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "14.2857",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
        "CUDA_MPS_CLIENT_PRIORITY": "0",
    }
    assert without.environment(0) == without.daemon.environment
    assert without.daemon.environment["CUDA_VISIBLE_DEVICES"] == GPU.uuid
    found = limits(priority=1)
    assert found["verified"] is True  # that they are clients; of priorities there is no proof
    assert found["priorities"] == {"asked": {0: 1}, "default": "0", "seen": None}
    assert "priorities" not in limits()


RIGHT = {"bf16": []}
READ = [(100, 132), (70, 92), (50, 66), (28, 36), (24, 30), (15, 18), (14, 18), (10, 12)]
READ += [(7, 8), (3, 8), (1, 8)]  # on an H200 of 132 SMs
LIES = [(98, 132), (50, 68), (50, 64), (50, 56), (7, 10), (1, 10), (1, 6), (50, None)]


def test_a_limit_of_sms_is_in_force_where_members_see_what_an_h200_gave():
    for percent, count in READ:
        found = limits(report=sees(count), sm_percent=percent)
        assert found["verified"] is True
        expected = {"sm_percent": percent, "sm_count": count, "sm_expected": int(1.32 * percent)}
        assert found["limits"][0].items() >= expected.items()
    for percent, count in LIES:  # more, or far less
        refused(sees(count), sm_percent=percent)
    assert "can use 18 of 132 SMs, and no limit was asked for" in refused(sees(18))


@pytest.mark.parametrize(
    ("capability", "total", "percent", "count", "proven"),
    [
        ((8, 0), 108, 50, 54, True),  # no pair of SMs fewer, so on any card
        ((8, 0), 108, 50, 48, False),  # a larger group, or another limit
        ((10, 0), 148, 5, 8, False),
    ],
)
def test_what_a_card_with_unknown_groups_of_sms_gives_is_proof_only_if_none_is_missing(
    capability, total, percent, count, proven
):
    device = replace(GPU, capability=capability, sm_count=total)
    found = limits(device, sees(count), sm_percent=percent)
    assert found["verified"] is (proven or None)
    assert bool(found["limits"][0]["unproven"]) is not proven
    assert "can use" in refused(sees(total), device, sm_percent=percent)  # no limit at all


WRONG = [  # of which products which sizes are wrong; how the cell fails
    ({"bf16": [2048, 4096, 5120]}, "bf16 products of 3 of 8 sizes"),
    (
        {"bf16": [256], "fp16": [512, 6144]},
        "bf16 products of 1 of 8 sizes and fp16 products of 2 of 8 sizes",
    ),
]


@pytest.mark.parametrize(("products", "what"), WRONG)
def test_a_limit_under_which_products_are_wrong_is_refused_by_name(products, what):
    with pytest.raises(WrongProducts):
        limits(report=sees(78, **products), sm_percent=60)
    reason = f"MPS: at 60 % (78 SMs) {what} are wrong on driver {GPU.driver}: not measured"
    assert refused(sees(78, **products), sm_percent=60) == reason
    right = dict.fromkeys(products, [])
    evidence = limits(report=sees(66, **right), sm_percent=50)
    assert evidence["verified"] is True
    assert evidence["limits"][0]["products"] == sees(66, **right).products
    unknown = limits(report=replace(sees(66), products=None), sm_percent=50)
    assert unknown["verified"] is None and "float64" in unknown["limits"][0]["unproven"]
    assert limits(report=replace(sees(132), products=None))["verified"] is True  # without a limit


@pytest.mark.parametrize(
    ("free", "proven"),
    [(130 * 2**30, True), (2 * 2**30 + 1, True), (2 * 2**30, None), (None, None)],
)
def test_a_memory_limit_shows_where_the_card_has_more_than_the_member_sees(free, proven):
    card, report = replace(GPU, free=free), sees(132, 1_609_144_176)  # read on an H200
    found = limits(card, report, pinned_memory_mb=2048)
    assert (found["verified"], found["limits"][0]["card_free"]) == (proven, free)
    assert bool(found["limits"][0]["unproven"]) is not proven
    said = "saw 143360 MiB of free memory; its limit is 2048 MiB"
    assert said in refused(sees(132, 140 * 2**30), card, pinned_memory_mb=2048)
    refused(sees(132, None), card, pinned_memory_mb=2048)


def test_refusals(monkeypatch):
    one = cell("mps_own", member(sm_percent=50))

    def refusal(spec, device):
        return sharing.method_class("mps")(spec, device).refuse()

    assert refusal(SPEC, GPU) is refusal(one, GPU) is None
    unknown = replace(GPU, sm_count=None)
    assert refusal(SPEC, unknown) is None
    assert refusal(one, unknown).startswith("mps_own: a limit of SMs cannot be proven: ")
    assert refusal(SPEC, None).startswith("MPS needs an NVIDIA GPU, and there is none")
    monkeypatch.setenv("PATH", "")
    reason = "MPS needs nvidia-cuda-mps-control, which is not on PATH"
    with pytest.raises(Unsupported, match=reason):
        with sharing.enter(SPEC, GPU, Path()):
            pass


# -- the daemon ------------------------------------------------------------------------------------


def test_a_private_daemon_serves_its_members_and_leaves_nothing(sleepers, tmp_path):
    with sharing.enter(SPEC, GPU, tmp_path) as it:
        environment, other = it.environment(0), sleepers()
        pipe = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipe.stat().st_mode & 0o777 == 0o700
        assert environment["CUDA_VISIBLE_DEVICES"] == GPU.uuid
        for pid in (os.getpid(), other):
            (pipe / "clients" / str(pid)).touch()
        found = it.evidence(said(os.getpid(), other))
        assert (found["verified"], found["status"]) == (True, "ACTIVE")
        assert found["clients"] == sorted([os.getpid(), other])
        it.release(other)
        assert [path.name for path in (pipe / "clients").iterdir()] == [str(os.getpid())]
    assert not folders()
    assert_gone(found["server"])
    assert GPU.uuid in (tmp_path / "mps" / "control.log").read_text()


@pytest.mark.parametrize("how", ["mute", "broken"])
def test_a_daemon_that_does_not_start_is_given_up_and_ended(tmp_path, monkeypatch, how):
    monkeypatch.setenv("FAKE_MPS", how)
    for limit in ("START_S", "ANSWER_S", "KILL_S") if how == "mute" else ():
        monkeypatch.setattr(mps_daemon, limit, 0.5)
    said = {"mute": "", "broken": ".*Failed to start : operation not permitted"}
    with pytest.raises(NotInForce, match=f"^the MPS daemon did not start: {said[how]}"):
        with sharing.enter(SPEC, GPU, tmp_path):
            pass
    assert not folders()


def test_an_exception_inside_passes_and_ends_a_daemon_that_heeds_nothing(
    sleepers, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAKE_MPS", "stubborn")
    monkeypatch.setattr(mps_daemon, "END_S", 0.2)
    with pytest.raises(ZeroDivisionError):
        with sharing.enter(SPEC, GPU, tmp_path) as it:
            pid = sleepers()
            (it.daemon.pipe / "clients" / str(pid)).touch()
            it.evidence(said(pid))
            raise ZeroDivisionError
    assert not folders()


@pytest.fixture
def foreign():
    """Starts a daemon that is not ours, for the devices that it is told to show."""
    started = []

    def start(visible: str) -> tuple[subprocess.Popen, Path]:
        pipe = Path(tempfile.mkdtemp(prefix=mps_daemon.PREFIX))
        environment = os.environ | {
            "CUDA_VISIBLE_DEVICES": visible,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(pipe),
        }
        started.append(subprocess.Popen([mps_daemon.CONTROL, "-f"], env=environment))
        while not (pipe / "control").exists():
            assert started[-1].poll() is None
            time.sleep(0.01)
        return started[-1], pipe

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_only_a_daemon_that_serves_the_card_is_a_reason_to_wait_and_none_is_ended(
    foreign, tmp_path
):
    (elsewhere, pipe), (dead, _) = foreign("GPU-other"), foreign(GPU.uuid)
    dead.kill()
    while psutil.Process(dead.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    with subprocess.Popen([mps_daemon.CONTROL], stdin=subprocess.PIPE) as question:
        while psutil.Process(question.pid).name() != mps_daemon.CONTROL:
            time.sleep(0.01)
        with sharing.enter(SPEC, GPU, tmp_path):
            pass
    another, _ = foreign(GPU.uuid)
    with pytest.raises(GpuBusy, match=f"another MPS daemon serves it: PID {another.pid} "):
        with sharing.enter(SPEC, GPU, tmp_path):
            pass
    assert elsewhere.poll() is another.poll() is None and pipe.exists()


KILLED = """
import sys
from pathlib import Path
from workflow.collocation.sharing import mps_daemon
with mps_daemon.running("GPU-0", Path(sys.argv[1])):
    print("runs", flush=True)
    sys.stdin.read()
"""


def test_the_daemon_ends_with_who_started_it_and_only_what_the_dead_left_is_swept(
    tmp_path, monkeypatch
):
    command, pipe = [sys.executable, "-c", KILLED, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as conductor:
        assert conductor.stdout.readline() == "runs\n"
        [daemon], [folder] = programs(), folders()
        mps_daemon.sweep()  # its mark is held
        assert programs() == [daemon] and folders() == [folder]
        conductor.kill()
    assert_gone(daemon.pid)
    with monkeypatch.context() as another:
        another.setattr(os, "getuid", lambda: 1234)
        mps_daemon.sweep()
    assert folders() == [folder]
    mps_daemon.sweep()  # the next cell takes the folder away
    assert not folders()


def test_the_daemon_may_open_many_files_and_has_no_limits_of_the_users_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        with sharing.enter(SPEC, GPU, tmp_path):
            [daemon] = programs()
            assert daemon.rlimit(psutil.RLIMIT_NOFILE) == (min(hard, 16384), hard)
            assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in daemon.environ()
            assert os.getpgid(daemon.pid) != os.getpgid(0)  # a terminal's Ctrl-C is ours
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_temporary_folder_too_long_for_a_socket_is_refused(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(NotInForce, match="set TMPDIR"):
        with sharing.enter(SPEC, GPU, tmp_path):
            pass
    assert not folders()
