"""The mps method against a stand-in for NVIDIA's control program: evidence, faults, no leavings."""

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from workflow.collocation import gpu, methods
from workflow.collocation.methods import evidence as method_evidence
from workflow.collocation.methods import mps, mps_daemon
from workflow.collocation.methods.evidence import NotInForce

ROOT = Path(__file__).parent.parent
SPEC = {"method": "mps"}
GPU = gpu.Device(
    uuid="GPU-00000000-1111-2222-3333-444444444444",
    name="a card that is not there",
    index=0,
    memory_bytes=2**30,
    driver="0",
    capability=(9, 0),
    numa_node=None,
)


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


def daemon_of(pipe: Path) -> psutil.Process:
    return psutil.Process(int((pipe / "nvidia-cuda-mps-control.pid").read_text()))


def ended(process: psutil.Process) -> bool:
    """A zombie has ended: nobody may be there to reap an orphan."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def await_end(process: psutil.Process) -> None:
    deadline = time.monotonic() + 10
    while not ended(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ended(process)


def folders() -> list[Path]:
    return sorted(Path(tempfile.gettempdir()).iterdir())


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """The stand-in on PATH, a card that nobody uses, and a short folder for sockets."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        bins = [str(ROOT / "tests" / "fakes"), str(Path(sys.executable).parent)]
        monkeypatch.setenv("PATH", os.pathsep.join([*bins, os.environ["PATH"]]))
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(gpu, "processes", lambda device: {"compute": [], "mps": []})
        monkeypatch.setattr(method_evidence, "GRACE_S", 0.0)
        yield
        left = programs()
        for process in left:
            process.kill()
        assert not left


def join(sharing: mps.Mps, *pids: int) -> None:
    for pid in pids:
        (sharing.daemon.pipe / "clients" / str(pid)).touch()


@pytest.fixture
def member():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


def test_members_that_the_daemon_lists_are_verified(member, tmp_path):
    with methods.enter(SPEC, GPU, tmp_path) as sharing:
        environment = sharing.environment(0)
        assert environment["CUDA_VISIBLE_DEVICES"] == GPU.uuid
        pipe = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipe.stat().st_mode & 0o777 == 0o700
        join(sharing, os.getpid(), member)
        evidence = sharing.witness({0: os.getpid(), 1: member})
        assert evidence["verified"] is True
        assert evidence["status"] == "ACTIVE"
        assert evidence["clients"] == sorted([os.getpid(), member])
        server = psutil.Process(evidence["server"])
        assert sharing.witness({1: member})["server"] == evidence["server"]
    assert not folders()
    assert ended(server)
    assert GPU.uuid in (tmp_path / "mps" / "control.log").read_text()


def test_a_member_that_never_reached_the_daemon_fails_the_cell(member, tmp_path):
    with methods.enter(SPEC, GPU, tmp_path) as sharing:
        with pytest.raises(NotInForce, match="one server was expected, the daemon lists none"):
            sharing.witness({0: member})
        join(sharing, os.getpid())
        with pytest.raises(NotInForce, match=rf"member 1 \(PID {member}\) is not among server"):
            sharing.witness({0: os.getpid(), 1: member})


def test_a_server_that_is_another_one_at_the_end_fails_the_cell(member, tmp_path):
    with methods.enter(SPEC, GPU, tmp_path) as sharing:
        join(sharing, member)
        first = sharing.witness({0: member})["server"]
        server = psutil.Process(first)
        server.kill()
        await_end(server)
        sharing.daemon.ask("get_server_list")  # the stand-in forgets the server's clients
        join(sharing, member)
        with pytest.raises(NotInForce, match=f"the server was PID {first} and is now PID"):
            sharing.witness({0: member})


def test_a_server_in_fault_fails_the_cell(member, tmp_path):
    with methods.enter(SPEC, GPU, tmp_path) as sharing:
        join(sharing, member)
        (sharing.daemon.pipe / "fault").touch()
        with pytest.raises(NotInForce, match="is FAULT, not ACTIVE"):
            sharing.witness({0: member})


def test_a_daemon_killed_in_the_window_fails_the_cell_and_its_server_goes(member, tmp_path):
    with methods.enter(SPEC, GPU, tmp_path) as sharing:
        join(sharing, member)
        sharing.witness({0: member})
        daemon = daemon_of(sharing.daemon.pipe)
        daemon.kill()
        await_end(daemon)
        with pytest.raises(NotInForce, match="Cannot find MPS control daemon process"):
            sharing.witness({0: member})
        assert not sharing.terminate(member)
    assert not folders()


def test_nvml_has_a_say_only_where_it_shows_the_server_under_its_pid(member, tmp_path, monkeypatch):
    with methods.enter(SPEC, GPU, tmp_path) as sharing:
        join(sharing, member)
        evidence = sharing.witness({0: member})
        assert evidence["nvml_agrees"] is None
        server = evidence["server"]
        shown = {"compute": [server, member], "mps": [member]}
        monkeypatch.setattr(gpu, "processes", lambda device: shown)
        assert sharing.witness({0: member})["nvml_agrees"] is True
        shown["mps"] = []
        with pytest.raises(NotInForce, match="is not among NVML's MPS clients"):
            sharing.witness({0: member})


def test_terminate_ends_one_client_and_leaves_its_process_and_its_neighbour(member, tmp_path):
    with methods.enter(SPEC, GPU, tmp_path) as sharing:
        join(sharing, os.getpid(), member)
        assert sharing.terminate(member)
        assert sharing.witness({0: os.getpid()})["clients"] == [os.getpid()]
        assert psutil.pid_exists(member)


def test_a_daemon_that_does_not_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_MPS", "broken")
    with pytest.raises(NotInForce, match="did not start: .*operation not permitted"):
        with methods.enter(SPEC, GPU, tmp_path):
            pass
    assert not folders()


def test_a_daemon_that_never_answers_is_given_up_and_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_MPS", "mute")
    monkeypatch.setattr(mps_daemon, "START_S", 0.5)
    monkeypatch.setattr(mps_daemon, "ANSWER_S", 0.5)
    with pytest.raises(NotInForce, match="did not start"):
        with methods.enter(SPEC, GPU, tmp_path):
            pass
    assert not folders()


def test_a_daemon_that_heeds_nothing_is_killed(member, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_MPS", "stubborn")
    monkeypatch.setattr(mps_daemon, "END_S", 0.2)
    with methods.enter(SPEC, GPU, tmp_path) as sharing:
        join(sharing, member)
        sharing.witness({0: member})
    assert not folders()


def test_an_exception_inside_tears_down_and_passes(member, tmp_path):
    with pytest.raises(ZeroDivisionError):
        with methods.enter(SPEC, GPU, tmp_path) as sharing:
            join(sharing, member)
            sharing.witness({0: member})
            raise ZeroDivisionError
    assert not folders()
    assert (tmp_path / "mps" / "control.log").exists()


CONDUCTOR = """
import os, sys
from pathlib import Path
from tests.test_mps import GPU, SPEC, gpu, join, methods
gpu.processes = lambda device: {"compute": [], "mps": []}
with methods.enter(SPEC, GPU, Path(sys.argv[1])) as sharing:
    join(sharing, os.getpid())
    print(sharing.witness({0: os.getpid()})["server"], flush=True)
    input()
"""


def test_a_killed_conductor_leaves_no_daemon_and_the_next_sweep_ends_its_server(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", CONDUCTOR, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as conductor:
        server = psutil.Process(int(conductor.stdout.readline()))
        [pipe] = folders()
        daemon = daemon_of(pipe)
        mps_daemon.sweep()  # the conductor lives: this must leave it alone
        assert server.is_running() and daemon.is_running() and pipe.exists()
        conductor.kill()
    await_end(daemon)
    assert pipe.exists()
    with methods.enter(SPEC, GPU, tmp_path):
        assert ended(server)
        assert not pipe.exists()


def test_what_does_not_bear_our_mark_is_left_alone(tmp_path):
    foreign = Path(tempfile.mkdtemp(prefix=mps_daemon.PREFIX))
    environment = os.environ | {
        "CUDA_MPS_PIPE_DIRECTORY": str(foreign),
        "CUDA_MPS_LOG_DIRECTORY": str(foreign),
    }
    with subprocess.Popen([mps_daemon.CONTROL, "-f"], env=environment) as daemon:
        with methods.enter(SPEC, GPU, tmp_path):
            pass
        assert daemon.poll() is None
        assert folders() == [foreign]
        daemon.kill()


def test_only_a_mark_that_nobody_holds_is_swept():
    dead, living = (Path(tempfile.mkdtemp(prefix=mps_daemon.PREFIX)) for _ in range(2))
    (dead / mps_daemon.MARK).touch()
    with (living / mps_daemon.MARK).open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        mps_daemon.sweep()
        assert folders() == [living]
    mps_daemon.sweep()
    assert not folders()


def test_a_stranger_on_the_card_is_named_and_not_touched(member, tmp_path, monkeypatch):
    hidden = 2**22 + 1  # beyond the kernel's largest PID
    shown = {"compute": [member, hidden], "mps": None}
    monkeypatch.setattr(gpu, "processes", lambda device: shown)
    owner = psutil.Process().username()
    with pytest.raises(NotInForce, match=rf"PID {member} \(.*, owner {owner}\).*not visible"):
        with methods.enter(SPEC, GPU, tmp_path):
            pass
    assert psutil.pid_exists(member)
    assert not folders()


def test_limits_in_the_users_shell_do_not_reach_the_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5")
    with methods.enter(SPEC, GPU, tmp_path):
        [daemon] = programs()
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in daemon.environ()


def test_a_temporary_folder_too_long_for_a_socket_is_refused(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(NotInForce, match="set TMPDIR"):
        with methods.enter(SPEC, GPU, tmp_path):
            pass
    assert not folders()


@pytest.mark.parametrize(
    ("answer", "pids"),
    [("", []), ("7\n", [7]), ("9\n7\n", [7, 9]), ("9 7 \n", [7, 9]), ("Server 7 not found\n", [])],
)
def test_a_message_is_not_read_as_a_list_of_pids(answer, pids):
    assert mps._pids(answer) == pids


def test_refusals(monkeypatch):
    assert methods.refusal(SPEC, GPU) is None
    assert "no" in methods.refusal(SPEC, None)
    for method in ("mps_equal", "mps_overlap"):
        reason = methods.refusal({"method": method}, GPU)
        assert reason == f"{method}: this version does not yet prove SM limits"
    monkeypatch.setenv("PATH", "")
    assert "not on PATH" in methods.refusal(SPEC, GPU)
