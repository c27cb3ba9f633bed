"""Members, fork server, the conductor's side of them, locks: what starts, ends, is left over."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from models.protocol import Channel
from workflow.collocation import ROOT as REPOSITORY
from workflow.collocation.run.environment import account, server_environment
from workflow.collocation.run.fork_client import Server

PATIENCE = 20.0  # seconds, for a busy machine; nothing below waits that long when all is well


class Run:
    """A server with torch-free members; keeps every message."""

    def __init__(self, server: Server, folder: Path):
        self.server = server
        self.folder = folder
        self.events: list[dict] = []

    def start(self, member: int, spec: dict | None = None, **model_args):
        model_args.setdefault("step_s", 0.002)
        whole = {"member": member, "model_args": model_args, "folder": str(self.folder)}
        return self.server.start(whole | (spec or {}), self.folder / f"{member}.log")

    def of(self, member: int) -> list[dict]:
        return [event for event in self.events if event["member"] == member]

    def names(self, member: int) -> list[str]:
        return [event["event"] for event in self.of(member) if event["event"] != "progress"]

    def last(self, member: int, name: str) -> dict:
        return [event for event in self.of(member) if event["event"] == name][-1]

    def until(self, done) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, self.events
            self.events += self.server.wait(1.0)

    def until_all(self, name: str, *members: int) -> None:
        self.until(lambda: all(name in self.names(member) for member in members))


@pytest.fixture
def run(tmp_path):
    before = set(psutil.Process().children(recursive=True))  # multiprocessing's tracker, say
    with Server(tmp_path / "server.log", trainer="tests.torchfree") as server:
        yield Run(server, tmp_path)
    assert_gone(server.pid, *(m.pid for m in server.members.values() if m.pid))
    assert set(psutil.Process().children(recursive=True)) <= before


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_gone(*pids: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if not is_gone(pid)]
        time.sleep(0.01)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- members that behave ---


def test_three_members_from_start_to_exit(run):
    before = descriptors()
    environment = {"COLLOCATION_TEST": "of the member", "HOME": None}
    spec = {"environment": environment, "cores": [min(os.sched_getaffinity(0))], "loss_every": 2}
    members = []
    for index in range(3):
        folder = run.folder / str(index)
        folder.mkdir()
        members.append(run.start(index, spec | {"folder": str(folder)}))
    run.until_all("warm", 0, 1, 2)
    assert not any(event["event"] == "started" for event in run.events)
    run.server.send_all("go")
    run.until(lambda: all(any(e["event"] == "progress" for e in run.of(i)) for i in range(3)))
    run.server.send_all("stop")
    run.until_all("exited", 0, 1, 2)

    assert run.server.import_s > 0
    for index, member in enumerate(members):
        assert run.names(index) == ["forked", "built", "warm", "started", "stopped", "exited"]
        built, stopped = run.last(index, "built"), run.last(index, "stopped")
        assert built["pid"] == member.pid == built["group"]
        assert built["environment"].items() >= environment.items()
        assert built["cores"] == spec["cores"]
        assert (member.exited, member.code, member.signal) == (True, 0, None)
        with np.load(run.folder / str(index) / stopped["file"]) as steps:
            assert len(steps["end_ns"]) == len(steps["wait_ns"]) == stopped["steps"] > 0
            assert steps["end_ns"][0] > run.last(index, "started")["t"]
            assert list(steps["loss_step"][:2]) == [0, 2]
        assert f"member {index} in process {member.pid}" in member.log.read_text()
        times = [event["t"] for event in run.of(index) if event["event"] != "forked"]
        assert times == sorted(times)
    assert len({member.pid for member in members}) == 3
    assert "torch-free trainer ready" in run.server.log.read_text()
    assert descriptors() == before


def test_members_hold_no_descriptors_but_their_own(run):
    read, write = os.pipe()
    os.set_inheritable(write, True)  # as careless libraries do
    try:
        for index in range(3):
            run.start(index)
        run.until_all("warm", 0, 1, 2)
    finally:
        os.close(read)
        os.close(write)
    sockets = []
    for index in range(3):
        files = run.last(index, "built")["descriptors"]
        log = str(run.server.members[index].log)
        assert files["0"] == os.devnull
        assert files["1"] == files["2"] == log
        others = [target for fd, target in files.items() if int(fd) > 2]
        assert len(others) == 1 and others[0].startswith("socket:")
        sockets += others
    assert len(set(sockets)) == 3


def test_members_and_what_they_fork_keep_the_lock_that_they_are_given(tmp_path):
    with (tmp_path / "lock").open("w") as ours, (tmp_path / "lock").open("w") as another:
        fcntl.flock(ours, fcntl.LOCK_EX)
        with Server(tmp_path / "server.log", "tests.torchfree", lock=ours.fileno()) as server:
            run = Run(server, tmp_path)
            run.start(0, spawn="build")
            run.until_all("warm", 0)
            ours.close()  # as if we had been killed
            with pytest.raises(BlockingIOError):
                fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- members that do not ---


@pytest.mark.parametrize("phase", ["before", "build", "warm", "window", "stop"])
def test_a_member_dies_and_the_others_go_on(run, phase):
    how = {"signal": 9} if phase in ("build", "window") else {"exit": 7}
    dying = run.start(0, die={"phase": phase} | how)
    run.start(1)
    reached = {"before": 1, "build": 1, "warm": 2, "window": 4, "stop": 4}[phase]
    seen = ["forked", "built", "warm", "started"][:reached]
    if phase in ("window", "stop"):
        run.until_all("warm", 0, 1)
        run.server.send_all("go")
        run.until_all("started", 0, 1)
    if phase == "stop":
        run.server.send(0, "stop")
    run.until_all("exited", 0)
    assert run.names(0) == [*seen, "exited"]
    assert (dying.code, dying.signal) == (how.get("exit"), how.get("signal"))

    run.until_all("warm", 1)
    if "started" not in seen:
        run.server.send_all("go")
    run.server.send_all("stop")
    run.until_all("exited", 1)
    assert run.names(1) == ["forked", "built", "warm", "started", "stopped", "exited"]
    assert run.server.members[1].code == 0


def test_errors_out_of_memory_and_garbage_are_told(run):
    run.start(0, error="build")
    run.start(1, oom="warm")
    run.start(2, no_such_argument=1)
    run.start(3, garbage="build")
    run.until_all("warm", 3)
    run.server.send(3, "stop")
    run.until_all("exited", 0, 1, 2, 3)
    error = run.last(0, "error")
    found = error["class"], error["phase"], error["out_of_memory"]
    assert found == ("PhaseError", "build", False)
    assert error["message"] == "asked to fail in build (größer)"  # without advice
    assert "Traceback" in run.server.members[0].log.read_text()
    assert run.last(1, "error")["out_of_memory"]
    assert run.last(1, "error")["phase"] == "warm"
    assert "no_such_argument" in run.last(2, "error")["message"]
    assert {"error", "built", "warm"} <= {*run.names(3)}  # and goes on
    error = run.last(3, "error")
    assert error["class"] == "ProtocolError" and not error["out_of_memory"]
    assert [run.server.members[i].code for i in range(4)] == [1, 3, 1, 0]


def test_close_kills_who_hangs_and_what_members_started_ends_with_them(run):
    run.start(0, hang="stop", spawn="build")
    run.start(1, hang="before")
    run.start(2)
    run.start(3, spawn="build", die={"phase": "warm", "exit": 0})
    run.until_all("warm", 0, 2)
    run.server.send_all("go")
    run.until_all("started", 0, 2)
    run.until_all("exited", 3)
    grandchildren = [
        int(run.server.members[i].log.read_text().split("grandchild ")[1].split()[0])
        for i in (0, 3)
    ]
    assert_gone(grandchildren[1])
    before = descriptors()
    run.server.close(grace=0.3)
    endings = [(member.code, member.signal) for member in run.server.members.values()]
    assert endings == [(None, 9), (None, 9), (0, None), (0, None)]
    assert_gone(grandchildren[0])
    assert descriptors() < before
    run.server.close()


# --- servers and conductors that die ---


def test_members_die_with_the_server(run):
    for index in range(3):
        run.start(index)
    run.until_all("warm", 0, 1, 2)
    os.kill(run.server.pid, signal.SIGKILL)
    run.until_all("exited", 0, 1, 2)
    assert (run.last(1, "exited")["code"], run.last(1, "exited")["signal"]) == (None, None)
    assert_gone(*(member.pid for member in run.server.members.values()))
    assert run.server.wait(None) == []
    with pytest.raises(RuntimeError, match="not running"):
        run.start(3)


CONDUCTOR = """
import json, sys
from workflow.collocation.run.fork_client import Server
folder, *name = sys.argv[1:]
with Server(folder + "/server.log", "tests.torchfree", *name) as server:
    for index, args in enumerate([{}, {"hang": "build"}, {"hang": "warm"}]):
        spec = {"member": index, "folder": folder, "model_args": args}
        server.start(spec, f"{folder}/{index}.log")
    while True:
        for event in server.wait(None):
            if event["event"] in ("forked", "warm"):
                print(json.dumps([server.pid, event["event"], event.get("pid")]), flush=True)
"""


def script(code: str, *arguments, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    options |= {"stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    return subprocess.Popen(command, **options)


def test_all_die_with_the_conductor(tmp_path):
    with script(CONDUCTOR, tmp_path) as conductor:
        lines = [json.loads(conductor.stdout.readline()) for _ in range(4)]
        pids = {lines[0][0]} | {pid for _, event, pid in lines if event == "forked"}
        assert len(pids) == 4
        conductor.kill()
        assert_gone(*pids)


def test_members_find_places_and_no_settings(monkeypatch):
    """What a shell may hold changes a measurement: it is dropped, and the record tells of it."""
    places = {"PATH": "/bin", "HOME": "/ada", "LC_ALL": "C", "LD_LIBRARY_PATH": "/cuda"}
    settings = {"CUDA_LAUNCH_BLOCKING", "OMP_PROC_BIND", "LD_PRELOAD", "PYTHONOPTIMIZE"}
    beside = {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUDA_VERSION", "SECRET_TOKEN"}
    monkeypatch.setattr(os, "environ", places | dict.fromkeys(settings | beside, "7"))
    monkeypatch.setitem(os.environ, "PYTHONPATH", "/elsewhere")
    found = server_environment()
    assert {name: found[name] for name in places} == places
    assert found["OMP_NUM_THREADS"] == "1" and found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert not settings & found.keys() and beside & found.keys() == {"OMP_NUM_THREADS"}
    assert found["PYTHONPATH"] == f"{REPOSITORY}{os.pathsep}/elsewhere"
    assert account() == {"passed": {"LD_LIBRARY_PATH": None}, "dropped": sorted(settings)}


def test_channel_splits_commands_and_reads_end_of_file_as_stop():
    events, their_events = os.pipe()
    their_commands, commands = os.pipe()
    channel = Channel(4, their_events, their_commands)
    assert channel.poll() is None
    os.write(commands, b"g")
    assert channel.poll() is None
    os.write(commands, b"o\nstop\n")
    assert [channel.wait(), channel.wait(), channel.poll()] == ["go", "stop", None]
    os.close(commands)
    assert [channel.wait(), channel.poll()] == ["stop", "stop"]
    channel.emit("progress", steps=1, loss=None)
    event = json.loads(os.read(events, 4096))
    assert event.pop("t") > 0
    assert event == {"event": "progress", "member": 4, "steps": 1, "loss": None}
    for fd in (events, their_events, their_commands):
        os.close(fd)
