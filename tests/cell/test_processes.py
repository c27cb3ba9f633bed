"""Members, fork server, the conductor's side of them, locks: what starts, ends, is left over."""

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path

import psutil
import pytest

from tests.fakes.members import changed, member_spec
from tests.studio import until
from workflow.collocation import ROOT as REPOSITORY
from workflow.collocation.member.protocol import Channel
from workflow.collocation.process_lifetime import all_descendants
from workflow.collocation.run.environment import dropped, server_environment
from workflow.collocation.run.fork_client import ForkServerClient
from workflow.collocation.run.preloaded import running_fork_server

TRAINER = "tests.torchfree"
PATIENCE = 300.0  # seconds, for a busy machine; nothing below waits that long when all is well


class Run:
    """A server with torch-free members; keeps every message."""

    def __init__(self, server: ForkServerClient, folder: Path):
        self.server = server
        self.folder = folder
        self.events: list[dict] = []
        (folder / "manifest.json").touch()  # that of its dataset

    def start(self, member: int, changes: dict | None = None, **model_args):
        model_args.setdefault("step_s", 0.002)
        spec = member_spec(self.folder, index=member, model_args=model_args, warmup_steps=2)
        self.server.start([changed(spec, **(changes or {}))], self.folder / f"{member}.log")

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

    def tell(self, command: str, *members: int) -> None:
        for member in members:
            self.server.send(member, command)

    def until_all(self, name: str, *members: int) -> None:
        self.until(lambda: all(name in self.names(member) for member in members))


@pytest.fixture
def run(tmp_path):
    before = set(psutil.Process().children(recursive=True))  # multiprocessing's tracker, say
    with ForkServerClient(tmp_path / "server.log", TRAINER) as server:
        yield Run(server, tmp_path)
    assert_gone(*pids_of(server))
    assert set(psutil.Process().children(recursive=True)) <= before


def pids_of(server: ForkServerClient) -> list[int]:
    return [server.pid, *(m.process.pid for m in server.members.values() if m.process)]


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


# --- members ---


def test_three_members_from_start_to_exit(run):
    before = descriptors()
    environment = {"COLLOCATION_TEST": "of the member", "HOME": None}
    spec = {"environment": environment, "cores": [min(os.sched_getaffinity(0))]}
    read, write = os.pipe()
    os.set_inheritable(write, True)  # as careless libraries do
    for index in range(3):
        folder = run.folder / str(index)
        folder.mkdir()
        run.start(index, spec | {"folder": str(folder)})
    run.until_all("warm", 0, 1, 2)
    assert not any(event["event"] == "started" for event in run.events)
    run.tell("go", 0, 1, 2)
    run.until(lambda: all(any(e["event"] == "progress" for e in run.of(i)) for i in range(3)))
    run.tell("stop", 0, 1, 2)
    run.until_all("exited", 0, 1, 2)
    os.close(read)
    os.close(write)

    assert run.server.import_s > 0
    sockets = set()
    for index, member in run.server.members.items():
        assert run.names(index) == ["forked", "built", "warm", "started", "stopped", "exited"]
        built = run.last(index, "built")
        assert built["pid"] == member.process.pid == built["group"]
        assert built["environment"].items() >= environment.items()
        assert built["cores"] == spec["cores"]
        ended = run.last(index, "exited")
        assert (ended["code"], ended["signal"]) == (0, None)
        files = built["descriptors"]  # its own, and no others
        assert files["0"] == os.devnull
        assert files["1"] == files["2"] == str(run.folder / f"{index}.log")
        sockets |= {target for fd, target in files.items() if int(fd) > 2}
    assert len(sockets) == 3 and all(each.startswith("socket:") for each in sockets)
    assert descriptors() == before


def test_members_and_what_they_fork_keep_the_lock_that_they_are_given(tmp_path):
    with (tmp_path / "lock").open("w") as ours, (tmp_path / "lock").open("w") as another:
        fcntl.flock(ours, fcntl.LOCK_EX)
        with ForkServerClient(tmp_path / "server.log", TRAINER, lock=ours.fileno()) as server:
            run = Run(server, tmp_path)
            run.start(0, spawn="build")
            run.until_all("warm", 0)
            ours.close()  # as if we had been killed
            assert not free(another)
        until(lambda: free(another), lambda: "somebody holds it")  # the last of them is ending


def free(lock) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_close_kills_who_is_there_and_what_members_started_ends_with_them(run):
    run.start(0, hang="stop", spawn="build")
    run.start(1, hang="before")
    run.start(2, spawn="build", die={"phase": "warm", "exit": 0})
    run.until_all("warm", 0)
    run.until_all("exited", 2)
    logs = [(run.folder / f"{i}.log").read_text() for i in (0, 2)]
    grandchildren = [int(log.split("grandchild ")[1].split()[0]) for log in logs]
    assert_gone(grandchildren[1])
    before = descriptors()
    run.server.close()
    ends = [(member.exit_code, member.signal) for member in run.server.members.values()]
    assert ends == [(None, 9), (None, 9), (0, None)]
    assert_gone(grandchildren[0])
    assert descriptors() < before
    run.server.close()


# --- one import for many cells ---


@contextlib.contextmanager
def held(folder: Path, trainer: str = TRAINER):
    """The name of a preloaded server, and its process."""
    with running_fork_server(trainer, folder / "preloaded.log") as name:
        yield name, psutil.Process(int(name.partition(":")[0]))


def trains_by(folder: Path, name: str) -> tuple[str, float]:
    """Whose server a cell trains by that was told of this one, and how long it waited for that."""
    with ForkServerClient(folder / "server.log", TRAINER, name, import_timeout_s=5.0) as server:
        run = Run(server, folder)
        run.start(0)
        run.until_all("warm", 0)
        assert server.members[0].process.pid in {process.pid for process in all_descendants()}
    assert_gone(server.members[0].process.pid)
    return server.origin, server.import_s


def test_one_import_serves_one_cell_after_another(tmp_path):
    before = descriptors()
    with held(tmp_path) as (name, process):
        (first, waited), second = trains_by(tmp_path, name), trains_by(tmp_path, name)
        assert first == "zygote" and waited > 0 and second == ("zygote", 0)
        assert (tmp_path / "preloaded.log").read_text() == "torch-free trainer ready\n"
    assert_gone(process.pid)
    assert descriptors() == before
    assert trains_by(tmp_path, name)[0] == "own"


def test_one_that_does_not_answer_is_killed_so_that_one_cell_alone_waits(tmp_path):
    with held(tmp_path) as (name, process):
        process.suspend()
        assert trains_by(tmp_path, name)[0] == "own"
        assert_gone(process.pid)


def test_an_import_that_fails_is_told(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import time; time.sleep(1.0); import no_such_module")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(REPOSITORY)]))
    with held(tmp_path, "broken") as (name, _):
        with ForkServerClient(tmp_path / "server.log", "broken", name) as server:
            with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
                Run(server, tmp_path).start(0)


# --- what members find ---


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
    assert dropped() == sorted(settings)


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
