"""What proves that members share the GPU as planned: NVML's lists, and the MPS daemon's."""

import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.fakes.card import FakeCard
from tests.specs import cell, member
from workflow.collocation import sharing
from workflow.collocation.sharing import evidence, mps
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce, Report
from workflow.collocation.sharing.interleaved import Interleaved
from workflow.collocation.sharing.mps_daemon import Daemon
from workflow.collocation.sharing.naive import Naive
from workflow.collocation.study.cell import MeasureSpec

OURS = {0: Report(20, "GPU-0", 132, 2**30), 1: Report(10, "GPU-0", 132, 2**30)}
US = os.getpid()  # a stranger that this machine has


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Nobody else's daemons concern these cards, and who is leaving is not waited for."""
    monkeypatch.setattr(evidence, "GRACE_S", 0.0)
    monkeypatch.setattr(evidence, "CONTROL", "no such program")


def card(compute: list[int] | None, clients: list[int] | None) -> FakeCard:
    return FakeCard(listed={"compute": compute, "mps": clients})


def plain(device: FakeCard) -> Naive:
    return Naive(cell("naive", count=2), device)


def daemon(device: FakeCard, clients: list[int], status: str = "ACTIVE") -> Daemon:
    """The daemon of server 5, which lists these clients."""
    answers = {
        "get_server_list": "5\n",
        "get_server_status 5": f"{status}\n",
        "get_client_list 5": "".join(f"{pid}\n" for pid in clients),
        "get_default_client_priority": "0\n",
    }
    it = Daemon(device.uuid, Path("none"), Path("none"))
    it.ask = answers.get
    return it


def served(device: FakeCard, clients: list[int], status: str = "ACTIVE", **limits) -> mps.Mps:
    """Member 0 as a client."""
    it = mps.Mps(cell("mps", member(**limits)), device)
    it.daemon = daemon(device, clients, status)
    return it


def both(device: FakeCard, clients: list[int]) -> Interleaved:
    """Member 0 is a client, member 1 a separate process."""
    spec = cell("mps-naive", member(condition=0), member(condition=1))
    it = Interleaved(spec.model_copy(update={"measure": MeasureSpec(kind="interleaved")}), device)
    it.mps.daemon = daemon(device, clients)
    return it


# NVML's lists of processes and of MPS clients beside the members 20 and 10, and for MPS the server
# 5; what is proven, or how it fails.
NAIVE = [
    ([20, 10], [], True),
    ([4001, 4002], [], True),  # a container's host's PIDs, as many
    ([], [], None),  # NVML shows nobody
    (None, [], None),
    ([20, 10], None, None),
    ([20, 10], [20], (NotInForce, "NVML lists MPS clients on the card: member 0 (PID 20)")),
    ([4001, 4002], [4003], (NotInForce, "2 processes and 1 MPS clients; the cell has 2 members")),
    ([4001, 4002, 4003], [], (GpuBusy, "NVML lists 3 processes and 0 MPS clients; the cell has 2")),
    ([4001], [], (NotInForce, "NVML lists 1 processes")),
    ([20], [], (NotInForce, "not among NVML's processes [20]: member 1 (PID 10)")),
    ([20, 10, US], [], (GpuBusy, f"others compute on it: PID {US} (")),
    ([20, 10], [US], (GpuBusy, f"others compute on it: PID {US} (")),
]
TOGETHER = [
    ([5, 20, 10], [20], True),
    ([4001, 4002, 4003], [4001], True),
    ([], [], None),
    ([5, 20, 10], [20, 10], (NotInForce, "MPS clients on the card: member 1 (PID 10)")),
    ([5, 20, 10], [], (NotInForce, "not among NVML's MPS clients []: member 0 (PID 20)")),
    ([5, 20], [20], (NotInForce, "not among NVML's processes [5, 20]: member 1 (PID 10)")),
    ([5, 20, 10, 1], [20], (GpuBusy, "others compute on it: PID 1 ")),
    ([1, 2, 3, 4], [4001], (GpuBusy, "4 processes and 1 MPS clients; the cell has 2 members")),
    ([4001, 4002, 4003], [4001, 4002], (NotInForce, "the cell has 2 members, 1 of them clients")),
]
CASES = [("naive", *case) for case in NAIVE] + [("both", *case) for case in TOGETHER]


@pytest.mark.parametrize(("method", "compute", "clients", "expected"), CASES)
def test_nvml_lists_the_members_and_nobody_else(method, compute, clients, expected):
    device = card(compute, clients)
    it = plain(device) if method == "naive" else both(device, [20])
    if isinstance(expected, tuple):
        error, words = expected
        with pytest.raises(error, match=re.escape(words)) as caught:
            it.evidence(OURS)
        assert "\n" not in str(caught.value)
        return
    found = it.evidence(OURS)
    assert found["verified"] is expected
    if method == "naive":
        devices = {0: "GPU-0", 1: "GPU-0"}
        told = {"verified": expected, "members": [10, 20], "devices": devices}
        assert found == told | {"compute": compute, "mps": clients}
        assert it.nvml_pids() == {10, 20}
    else:
        assert (found["mps"]["clients"], found["naive"]["members"]) == ([20], [10])
        assert found["mps"]["verified"] is True  # by the daemon's list
        assert it.nvml_pids() == {5, 10, 20}


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([], "MPS: not among server 5's clients []: member 0 "),
        ([20, 10], "server 5's clients, not planned so: member 1"),
    ],
)
def test_the_daemons_list_tells_who_is_a_client(clients, words):
    with pytest.raises(NotInForce, match=re.escape(words)):
        both(card([5, 20, 10], [20]), clients).evidence(OURS)


@pytest.mark.parametrize(
    ("uuid", "other", "words"),
    [
        ("GPU-9", 10, "runs on GPU-9, not on GPU-0"),
        (None, 10, None),  # a script of which NVML knows where it is
        (None, 11, "was not seen on GPU-0"),
    ],
)
def test_a_member_on_another_device_fails_the_cell(uuid, other, words):
    found = OURS | {1: replace(OURS[1], device_uuid=uuid)}
    for it in (plain(card([other, 20], [])), both(card([5, other, 20], [20]), [20])):
        if words is None:
            assert it.evidence(found)["verified"]
            continue
        with pytest.raises(NotInForce, match=rf"^naive: member 1 \(PID 10\) {words}"):
            it.evidence(found)


def test_with_nobody_left_nothing_is_proven():
    assert plain(card([], [])).evidence({})["verified"] is None
    found = served(card([5], []), []).evidence({})
    assert (found["verified"], found["server"], found["status"]) == (None, 5, "ACTIVE")
    with pytest.raises(NotInForce, match="^MPS: server 5 is FAULT, not ACTIVE$"):
        served(card([5], []), [], status="FAULT").evidence({})


ONE = "MPS: one server was expected"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        *((answer, ONE) for answer in ("", "Server 5 not found\n", "4\n5\n")),
        ("6\n", "MPS: the server was PID 5 and is now PID 6"),
    ],
)
def test_a_daemon_that_does_not_list_its_one_server_fails_the_cell(answer, says):
    it = served(card([5, 20], [20]), [20])
    it.evidence({0: OURS[0]})
    it.daemon.ask = {"get_server_list": answer}.get
    with pytest.raises(NotInForce, match=f"^{says}"):
        it.evidence({0: OURS[0]})


def test_a_plain_member_is_not_the_daemons_to_drop():
    asked = []
    it = both(FakeCard(), [7])
    it.plain.pids, it.mps.release = {8}, asked.append
    it.release(8)
    it.release(7)
    assert asked == [7]


# -- others ----------------------------------------------------------------------------------------


def test_what_a_member_started_itself_is_nobody_elses(sleepers):
    """Else its cell would be measured again for ever."""
    ours = {0: replace(OURS[0], pid=US)}
    assert plain(card([US, sleepers()], [])).evidence(ours)["verified"] is True


def test_one_that_is_leaving_the_card_is_given_time(monkeypatch):
    monkeypatch.setattr(evidence, "GRACE_S", 60.0)
    answers = iter([[20, 10, 1]] * 2)
    monkeypatch.setattr(
        FakeCard, "processes", lambda _: {"compute": next(answers, [20, 10]), "mps": []}
    )
    assert plain(FakeCard()).evidence(OURS)["compute"] == [20, 10]


def test_nobody_may_be_on_the_card_when_a_method_is_entered(tmp_path):
    spec = cell("naive", count=2)
    with pytest.raises(GpuBusy, match=rf"needs the GPU to itself, and others .* PID {US} \("):
        with sharing.enter(spec, card([US], []), tmp_path):
            pass
    with sharing.enter(spec, card([], []), tmp_path) as it:
        found = it.environment(0)
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    with pytest.raises(OSError):  # nobody can make this one, so no kill leaves one behind
        Path(found["CUDA_MPS_PIPE_DIRECTORY"]).mkdir()


def test_a_strangers_name_cannot_move_the_cursor(tmp_path):
    program = tmp_path / "\x1b[2Jbad\u202e"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        while psutil.Process(process.pid).name() != program.name:  # not yet
            time.sleep(0.01)
        assert f"PID {process.pid} (?[2Jbad?, owner " in evidence.owner(process.pid)
        process.kill()
