"""The mps method against a stand-in for NVIDIA's control program: evidence, limits, the daemon.

How whole cells fare with it, and with what goes wrong, is tested in test_faults.py.
"""

import fcntl
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.test_processes import assert_gone
from workflow.collocation import gpu
from workflow.collocation import sharing as methods
from workflow.collocation.sharing import evidence as method_evidence
from workflow.collocation.sharing import mps, mps_daemon
from workflow.collocation.sharing.base import METHODS
from workflow.collocation.sharing.conditions import Together
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, Place, Report, Unsupported
from workflow.collocation.sharing.naive import Plain

ROOT = Path(__file__).parent.parent
MPS = METHODS["mps"]
SPEC = {"method": "mps", "members": [{"workload": "a"}] * 3}
UUID = f"GPU-{uuid.uuid4()}"  # another run of these tests must not be company
TOTAL_MB = 141 * 1024
GPU = gpu.Nvidia(
    UUID, "a card that is not there", 7654, TOTAL_MB * 2**20, "0", (9, 0), None, sm_count=132
)
OTHER = "GPU-00000000-1111-2222-3333-444444444444"


@pytest.fixture
def shown(monkeypatch) -> dict:
    """What NVML lists of the card: processes that compute, and MPS clients."""
    lists = {"compute": [], "mps": []}
    monkeypatch.setattr(gpu.Nvidia, "processes", lambda device: lists)
    return lists


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


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """The stand-in on PATH, a card that nobody uses, and a short folder for sockets."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        bins = [str(ROOT / "tests" / "fakes"), str(Path(sys.executable).parent)]
        monkeypatch.setenv("PATH", os.pathsep.join([*bins, os.environ["PATH"]]))
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(gpu.Nvidia, "processes", lambda device: {"compute": [], "mps": []})
        monkeypatch.setattr(gpu.Nvidia, "memory_free", lambda device: 130 * 2**30)
        monkeypatch.setattr(method_evidence, "GRACE_S", 0.0)
        every = method_evidence._daemons

        def of_this_test():
            for process, environment in every():
                pipe = (environment or {}).get("CUDA_MPS_PIPE_DIRECTORY", "")
                if process.ppid() == os.getpid() or pipe.startswith(folder):
                    yield process, environment

        monkeypatch.setattr(method_evidence, "_daemons", of_this_test)
        yield
        left = programs()
        for process in left:
            process.kill()
        assert not left


def said(*pids: int, **changes) -> dict[int, Report]:
    """What members with these PIDs report when all is as it should be, but for `changes`."""
    report = Report(pid=0, device_uuid=GPU.uuid, sm_count=132, memory_free=140 * 2**30)
    return {member: replace(report, pid=pid, **changes) for member, pid in enumerate(pids)}


def join(sharing: mps.Clients, *pids: int) -> None:
    for pid in pids:
        (sharing.daemon.pipe / "clients" / str(pid)).touch()


@pytest.fixture
def member(sleepers) -> int:
    return sleepers()


def test_members_that_the_daemon_lists_are_verified(member, tmp_path):
    with methods.enter(SPEC, GPU, tmp_path) as sharing:
        environment = sharing.environment(0)
        assert environment["CUDA_VISIBLE_DEVICES"] == GPU.uuid
        pipe = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        assert pipe.stat().st_mode & 0o777 == 0o700
        join(sharing, os.getpid(), member)
        evidence = sharing.witness(said(os.getpid(), member))
        assert evidence["verified"] is True
        assert evidence["status"] == "ACTIVE"
        assert evidence["clients"] == sorted([os.getpid(), member])
        assert evidence["devices"] == {0: GPU.uuid, 1: GPU.uuid}
        assert sharing.witness(said(member))["server"] == evidence["server"]
    assert not folders()
    assert_gone(evidence["server"])
    assert GPU.uuid in (tmp_path / "mps" / "control.log").read_text()


def test_release_takes_a_bounded_time(monkeypatch):
    monkeypatch.setattr(mps, "RELEASE_S", 0.3)
    given = []

    def ask(command, seconds):
        given.append(seconds)
        if command.startswith("terminate_client"):
            raise NotInForce("MPS: no answer")
        time.sleep(0.1)
        return "7\n"

    mps.Clients(GPU, SimpleNamespace(ask=ask), {}, PLACE).release(1)
    assert given[0] == 0.3 and given[1] <= 0.2


# -- where members run, and what they can use -----------------------------------------------------

PLACE = Place(GPU.uuid, 132)


def sharing_of(
    *members: dict, place: Place = PLACE, method: str = "mps_equal", status: str = "ACTIVE"
) -> mps.Clients:
    """Mps over a daemon that lists the PIDs 7, 8, … as clients of server 5."""
    clients = "".join(f"{7 + index}\n" for index in range(len(members)))
    answers = {
        "get_server_list": "5\n",
        "get_server_status 5": f"{status}\n",
        "get_client_list 5": clients,
        "get_default_client_priority": "0\n",
    }
    daemon = SimpleNamespace(ask=answers.get, environment={"CUDA_VISIBLE_DEVICES": place.uuid})
    return mps.Clients(GPU, daemon, dict(enumerate(members)), place, method)


def reports(*found: int | None, **changes) -> dict[int, Report]:
    """The members with the PIDs 7, 8, … can use so many SMs."""
    base = Report(pid=0, device_uuid=GPU.uuid, sm_count=None, memory_free=140 * 2**30)
    return {
        member: replace(base, **{"pid": 7 + member, "sm_count": count, **changes})
        for member, count in enumerate(found)
    }


def not_in_force(sharing: mps.Clients, found: dict[int, Report], error=NotInForce) -> str:
    with pytest.raises(error) as caught:
        sharing.witness(found)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device_uuid": OTHER}, f"runs on {OTHER}, not on {GPU.uuid}"),
        ({"device_uuid": None}, f"did not say which device it runs on; {GPU.uuid} was planned"),
        ({"sm_count": 18}, "can use 18 of 132 SMs, and no limit was asked for"),
    ],
    ids=["elsewhere", "nowhere", "limited"],
)
def test_a_member_that_is_elsewhere_or_limited_unasked_fails_the_cell(changes, says):
    found = reports(132, 132)
    found[1] = replace(found[1], **changes)
    sentence = f"mps: member 1 (PID 8) {says}"
    assert not_in_force(sharing_of({}, {}, method="mps"), found) == sentence


ONE = "MPS: one server was expected"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        *((answer, ONE) for answer in ("", "Server 5 not found\n", "4\n5\n")),
        ("6\n", "MPS: the server was PID 5 and is now PID 6"),
    ],
)
def test_a_daemon_that_does_not_list_its_one_server_fails_the_cell(answer, says):
    sharing = sharing_of({})
    sharing.witness(reports(132))
    sharing.daemon.ask = {"get_server_list": answer}.get
    assert not_in_force(sharing, reports(132)).startswith(says)


def test_of_a_server_whose_clients_have_left_its_status_is_told():
    found = sharing_of({}).witness({})
    assert (found["verified"], found["server"], found["status"]) == (None, 5, "ACTIVE")
    said = not_in_force(sharing_of({}, status="FAULT"), {})
    assert said == "MPS: server 5 is FAULT, not ACTIVE"


def test_nvml_has_a_say_only_where_it_shows_the_server_under_its_pid(shown):
    sharing = sharing_of({})
    assert sharing.witness(reports(132))["nvml_agrees"] is None
    shown |= {"compute": [5, 7], "mps": [7]}
    assert sharing.witness(reports(132))["nvml_agrees"] is True
    shown["mps"] = []
    assert "is not among NVML's MPS clients" in not_in_force(sharing, reports(132))


def test_limits_and_priorities_reach_the_member_that_they_are_for():
    limited = {"workload": "a", "sm_percent": 100 / 7, "pinned_memory_mb": 2048}
    sharing = sharing_of(limited, {"workload": "b"}, {"workload": "c", "sm_percent": 50})
    card = {"CUDA_VISIBLE_DEVICES": GPU.uuid}
    assert sharing.environment(0) == card | {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "14.2857",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M",
    }
    assert sharing.environment(1) == card
    assert sharing.environment(2) == card | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}

    sharing = sharing_of({"workload": "a", "priority": 0}, {"workload": "b", "priority": 1})
    set_to = [sharing.environment(member)["CUDA_MPS_CLIENT_PRIORITY"] for member in (0, 1)]
    assert set_to == ["0", "1"]
    found = sharing.witness(reports(132, 132))
    assert found["verified"] is True  # that they are clients; of priorities there is no proof
    assert found["priorities"] == {"asked": {0: 0, 1: 1}, "default": "0", "seen": None}
    assert "priorities" not in sharing_of({}).witness(reports(132))


READ = [(100, 132), (70, 92), (50, 66), (28, 36), (24, 30), (15, 18), (14, 18), (10, 12)]
READ += [(7, 8), (3, 8), (1, 8)]  # on an H200 of 132 SMs
LIES = [(98, 132), (50, 68), (50, 62), (50, 56), (7, 10), (1, 10), (1, 6)]


def test_an_sm_limit_is_in_force_where_members_see_what_an_h200_gave():
    for percent, count in READ:
        found = sharing_of({"sm_percent": percent}).witness(reports(count))["limits"][0]
        assert (found["sm_percent"], found["sm_count"]) == (percent, count)
        assert found["sm_expected"] == int(1.32 * percent)
    for percent, count in LIES:  # more, or far less
        not_in_force(sharing_of({"sm_percent": percent}), reports(count))
    said = "its SM limit cannot be proven: it could not tell how many SMs it can use"
    sentence = not_in_force(sharing_of({"sm_percent": 50}), reports(None))
    assert sentence == f"mps_equal: member 0 (PID 7): {said}"
    for total, count in ((None, None), (None, 132), (132, None)):  # without a limit
        sharing = sharing_of({}, place=Place(GPU.uuid, total))
        assert sharing.witness(reports(count))["verified"] is True


@pytest.mark.parametrize(
    ("capability", "total", "percent", "count", "proven"),
    [
        ((8, 0), 108, 50, 54, True),  # no pair of SMs fewer, so on any card
        ((7, 5), 40, 11, 4, True),
        ((8, 0), 108, 50, 48, False),  # a larger group, or another limit
        ((8, 0), 20, 14, 8, False),  # the least there is, or more than asked for
        ((10, 0), 148, 5, 8, False),
    ],
)
def test_what_a_card_with_unknown_groups_of_sms_gives_is_proof_only_if_none_is_missing(
    capability, total, percent, count, proven
):
    sharing = sharing_of({"sm_percent": percent}, place=Place(GPU.uuid, total))
    sharing.device = replace(GPU, capability=capability)
    found = sharing.witness(reports(count))
    assert found["verified"] is (proven or None)
    why = "in what groups a card that is not there gives SMs is not known: it gave "
    why += f"{count} for {percent} % of {total}"
    assert found["limits"][0]["unproven"] == (None if proven else why)
    assert "can use" in not_in_force(sharing, reports(total))  # no limit at all


def test_a_memory_limit_shows_in_what_the_member_sees_free():
    sharing = sharing_of({"pinned_memory_mb": 2048})
    found = sharing.witness(reports(132, memory_free=1_609_144_176))  # read on an H200
    unknown = dict.fromkeys(("sm_percent", "sm_source", "sm_expected", "unproven"))
    seen = {"sm_count": 132, "memory_free": 1_609_144_176, "card_free": 130 * 2**30}
    assert found["limits"] == {0: unknown | seen | {"pinned_memory_mb": 2048}}
    assert found["verified"] is True
    sentence = "mps_equal: member 0 (PID 7) saw 143360 MiB of free memory; its limit is 2048 MiB"
    assert not_in_force(sharing, reports(132)) == sentence
    sentence = "mps_equal: member 0 (PID 7): its memory limit cannot be proven: it could not tell "
    assert not_in_force(sharing, reports(132, memory_free=None)) == f"{sentence}what is free"


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (2 * 2**30, "2048 MiB free, and would show no more without the limit of 2048 MiB"),
        (2 * 2**30 + 1, None),
        (None, "how much of GPU-.* is free is not known"),
    ],
)
def test_a_memory_limit_shows_only_where_the_card_has_more_than_that(left, why, monkeypatch):
    asked = []
    monkeypatch.setattr(gpu.Nvidia, "memory_free", lambda it: asked.append(it.uuid) or left)
    sharing = sharing_of({}, {"pinned_memory_mb": 2048})
    found = sharing.witness({1: reports(132, 132, memory_free=2**30)[1]})
    assert found["verified"] is (None if why else True)
    unproven = found["limits"][1]["unproven"]
    assert unproven is None if why is None else re.search(why, unproven)
    assert asked == [GPU.uuid]
    assert found["limits"][1]["card_free"] == left


# -- how many NVML lists, where it names other PIDs ------------------------------------------------


BESIDES = ", the cell has 2 members and 1 MPS server"


@pytest.mark.parametrize(
    ("compute", "clients", "says"),
    [
        ([4001, 4002, 4003], [4001, 4002], None),
        ([], [], None),
        ([4001, 4002, 4003], [], None),
        ([4001, 4002, 4003], None, None),
        ([], [4001], f"1 MPS client{BESIDES}"),
        ([4001, 4002, 4003], [4001, 4002, 4003], f"3 MPS clients{BESIDES}"),
        ([4001, 4002], [4001, 4002], f"2 processes{BESIDES}"),
        ([1, 2, 3, 4], None, f"4 processes{BESIDES}"),
    ],
)
def test_where_pids_do_not_compare_their_numbers_have_to(compute, clients, says, shown):
    shown |= {"compute": compute, "mps": clients}
    sharing, found = sharing_of({}, {}), reports(132, 132)
    if says:
        error = GpuBusy if says[0] in "34" else NotInForce  # more than there are: others, too
        assert not_in_force(sharing, found, error) == f"mps_equal: NVML lists {says}"
    else:
        seen = sharing.witness(found)
        assert (seen["verified"], seen["nvml_agrees"]) == (True, None)


BOTH = {"compute": [4001, 4002, 4003], "mps": [4001]}  # by a container's host's PIDs
FOUND = {"compute": [5, 7, 8], "mps": [7]}
TOGETHER = {  # NVML's lists, the daemon's clients, what fails, or what the plain side is proven by
    "as they are": (FOUND, [7], True),
    "by their numbers": (BOTH, [7], True),
    "of which nothing is listed": ({"compute": [], "mps": []}, [7], None),
    "a plain one is a client": (FOUND, [7, 8], "clients that are none of its side: member 1 (PID "),
    "NVML says that it is one": (FOUND | {"mps": [7, 8]}, [7], ", member 1 (PID 8)"),
    "the client is none": (FOUND, [], "member 0 (PID 7) is not among server 5's clients"),
    "another client": (FOUND, [7, 1], "clients that are none of its side: PID 1 "),
    "one too many": (BOTH | {"compute": [1, 2, 3, 4]}, [7], "the cell has 2 members and 1 MPS"),
    "two clients": (BOTH | {"mps": [4001, 4002]}, [7], "NVML lists 2 MPS clients"),
    "a stranger": (FOUND | {"compute": [1, 5, 7, 8]}, [7], "others compute on it: PID 1 "),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_plain_members_beside_a_daemon_are_proven_to_be_none_of_its_clients(case, shown):
    """The client has the PID 7, the plain member 8, the server 5."""
    lists, clients, expected = TOGETHER[case]
    shown |= lists
    served = sharing_of({}, method="mps")
    ask = served.daemon.ask
    listed = "".join(f"{pid}\n" for pid in clients)
    served.daemon.ask = lambda word: listed if word.startswith("get_client") else ask(word)
    both = Together(Plain(GPU), served, {"mps": [0], "naive": [1]})
    if isinstance(expected, str):
        error = GpuBusy if re.search("others|has 2 members|2 MPS", expected) else NotInForce
        assert expected in not_in_force(both, reports(132, 132), error)
    else:
        found = both.witness(reports(132, 132))
        assert (found["verified"], found["naive"]["verified"]) == (expected, expected)
        assert (found["mps"]["clients"], found["naive"]["members"]) == ([7], [8])
        assert both.own_pids() == {5, 7, 8}


def test_a_plain_member_is_not_the_daemons_to_drop():
    asked = []
    both = Together(Plain(GPU, {8}), SimpleNamespace(release=asked.append), {})
    both.release(8)
    both.release(7)
    assert asked == [7]


# -- strangers ------------------------------------------------------------------------------------


def test_a_stranger_beside_the_members_is_named(shown):
    shown |= {"compute": [5, 7, os.getpid()], "mps": [7]}
    sentence = not_in_force(sharing_of({}), reports(132), GpuBusy)
    begin = "a cell needs the GPU to itself, and others compute on it: PID "
    assert sentence.startswith(f"{begin}{os.getpid()} (") and "(PID 7)" not in sentence
    shown |= {"compute": [5, 7], "mps": [7, os.getpid()]}
    assert not_in_force(sharing_of({}), reports(132), GpuBusy) == sentence


def test_a_member_that_failed_and_is_slow_to_end_is_no_stranger(member, shown):
    shown |= {"compute": [5, 7, member], "mps": [7, member]}
    assert sharing_of({}).witness(reports(132))["nvml_compute"] == shown["compute"]


def test_the_pids_of_a_container_are_those_of_its_processes(tmp_path, monkeypatch):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nNSpid:\t4001\t7\nNSpgid:\t4001\t7\n")
    monkeypatch.setattr(method_evidence, "Path", lambda path: status)
    assert method_evidence.known_as(4001) == {4001, 7}
    status.unlink()
    assert method_evidence.known_as(4001) == {4001}


@pytest.mark.parametrize(
    ("compute", "clients", "agrees"),
    [([5, 6, 7, 20], [7, 20], True), ([4001, 4002, 4003, 4004], [4002, 4003, 4004], None)],
)
def test_on_a_part_of_a_card_the_neighbours_are_no_strangers(compute, clients, agrees, shown):
    """Whether NVML names them by PIDs that are known here, or by others."""
    shown |= {"compute": compute, "mps": clients}
    part = Place("MIG-1", 60)
    found = sharing_of({}, place=part).witness(reports(60, device_uuid="MIG-1"))
    assert (found["verified"], found["nvml_agrees"]) == (True, agrees)


# -- the daemon -----------------------------------------------------------------------------------


def test_a_daemon_that_never_answers_is_given_up_and_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_MPS", "mute")
    monkeypatch.setattr(mps_daemon, "START_S", 0.5)
    monkeypatch.setattr(mps_daemon, "ANSWER_S", 0.5)
    with pytest.raises(NotInForce, match="did not start"):
        with methods.enter(SPEC, GPU, tmp_path):
            pass
    assert not folders()


def test_an_exception_inside_passes_and_ends_a_daemon_that_heeds_nothing(
    member, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAKE_MPS", "stubborn")
    monkeypatch.setattr(mps_daemon, "END_S", 0.2)
    with pytest.raises(ZeroDivisionError):
        with methods.enter(SPEC, GPU, tmp_path) as sharing:
            join(sharing, member)
            sharing.witness(said(member))
            raise ZeroDivisionError
    assert not folders()
    assert (tmp_path / "mps" / "control.log").exists()


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


def test_what_is_no_reason_to_refuse_and_is_left_alone(foreign, monkeypatch, tmp_path):
    """A daemon of another card, another user's, one that has ended, somebody's question to one."""
    (elsewhere, pipe), (another, _), (dead, _) = map(foreign, (OTHER, GPU.uuid, GPU.uuid))
    dead.kill()
    while psutil.Process(dead.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    environ = psutil.Process.environ

    def environ_of_ours(process):
        if process.pid == another.pid:
            raise psutil.AccessDenied(process.pid)
        return environ(process)

    with pytest.raises(GpuBusy, match=f"another MPS daemon serves it: PID {another.pid} "):
        method_evidence.require_free(GPU)
    monkeypatch.setattr(psutil.Process, "environ", environ_of_ours)
    with subprocess.Popen([mps_daemon.CONTROL], stdin=subprocess.PIPE) as question:
        while psutil.Process(question.pid).name() != mps_daemon.CONTROL:
            time.sleep(0.01)
        with methods.enter(SPEC, GPU, tmp_path):
            pass
    assert elsewhere.poll() is another.poll() is None and pipe.exists()


def test_only_a_mark_of_ours_that_nobody_holds_is_swept():
    """What others made in the temporary folder is skipped, and not waited for."""

    def foreign(mark: Path) -> None:
        mark.touch()
        if os.getuid() == 0:
            os.chown(mark, 65534, 65534)
        else:
            mark.rename(mark.with_name("unmarked"))

    made = []
    for make in (Path.touch, Path.mkdir, foreign, Path.touch):
        made.append(Path(tempfile.mkdtemp(prefix=mps_daemon.PREFIX)))
        make(made[-1] / mps_daemon.MARK)
    dead, *others = made
    code = "from workflow.collocation.sharing import mps_daemon; mps_daemon.sweep()"
    surroundings = os.environ | {"TMPDIR": tempfile.gettempdir()}
    with (made[-1] / mps_daemon.MARK).open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=ROOT, env=surroundings, check=True, timeout=60)
    assert folders() == sorted(others) and not dead.exists()
    for folder in others:
        shutil.rmtree(folder)


def test_the_daemon_may_open_many_files_and_has_no_limits_of_the_users_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        with methods.enter(SPEC, GPU, tmp_path):
            [daemon] = programs()
            assert daemon.rlimit(psutil.RLIMIT_NOFILE) == (min(hard, 16384), hard)
            assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in daemon.environ()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_temporary_folder_too_long_for_a_socket_is_refused(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(NotInForce, match="set TMPDIR"):
        with methods.enter(SPEC, GPU, tmp_path):
            pass
    assert not folders()


@pytest.mark.parametrize(
    ("limits", "card", "reason"),
    [
        ({"sm_percent": 50}, {}, None),
        ({}, {"sm_count": None}, None),
        (
            {"sm_percent": 50},
            {"sm_count": None},
            "the SM limit of member 1 (b) cannot be proven: how many SMs a card that is not there "
            "has is not known",
        ),
        ({"pinned_memory_mb": TOTAL_MB - 1}, {}, None),
        ({"pinned_memory_mb": TOTAL_MB}, {"memory_bytes": None}, None),
        (
            {"pinned_memory_mb": TOTAL_MB},
            {},
            f"the memory limit of member 1 (b), {TOTAL_MB} MiB, limits nothing: a card that is "
            f"not there has {TOTAL_MB} MiB",
        ),
    ],
)
def test_a_limit_that_could_never_be_proven_or_limits_nothing_is_refused(limits, card, reason):
    spec = {"method": "mps_own", "members": [{"workload": "a"}, {"workload": "b", **limits}]}
    said = MPS.refusal(spec, replace(GPU, **card))
    assert said == (reason and f"mps_own: {reason}")
    if reason:
        with pytest.raises(Unsupported, match=re.escape(reason)):
            with methods.enter(spec, replace(GPU, **card), Path()):
                pass


def test_refusals(monkeypatch):
    assert MPS.refusal(SPEC, GPU) is None
    assert MPS.refusal(SPEC, None) == "MPS needs an NVIDIA GPU, and there is none on this machine"
    monkeypatch.setenv("PATH", "")
    reason = "MPS needs nvidia-cuda-mps-control, which is not on PATH"
    assert MPS.refusal(SPEC, GPU) == reason
    with pytest.raises(Unsupported, match=reason):
        with methods.enter(SPEC, GPU, Path()):
            pass
