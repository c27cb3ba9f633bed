"""One import for many cells: what the zygote lends, to whom, and what ends with what."""

import contextlib
import json
import os
import resource
import signal
import socket
import threading

import psutil
import pytest

from tests.test_processes import PATIENCE, Run, assert_gone, descriptors, script
from workflow.collocation import ROOT
from workflow.collocation.processes import server as servers
from workflow.collocation.processes import zygote
from workflow.collocation.processes.server import Server, offspring, server_environment
from workflow.collocation.processes.zygote import Zygote

TRAINER, CODE = "tests.torchfree", "of today"


@contextlib.contextmanager
def held(folder, trainer: str = TRAINER):
    """A zygote, as a cell is told of it, and its process.

    Not for fixtures: pytest notes in the environment whether it sets up or runs a test.
    """
    log = folder / "log" / "zygote.log"
    with zygote.hold(trainer, CODE, server_environment(1), log) as found:
        [process] = [p for p in psutil.Process().children() if "--listen" in p.cmdline()]
        yield found, process
    assert_gone(process.pid)


def train(server: Server, folder) -> Run:
    """A member from its start to its end, in order."""
    run = Run(server, folder)
    member = run.start(0)
    run.until_all("warm", 0)
    run.server.send_all("go")
    run.until(lambda: any(event["event"] == "progress" for event in run.of(0)))
    run.server.send_all("stop")
    run.until_all("exited", 0)
    assert run.names(0) == ["forked", "built", "warm", "started", "stopped", "exited"]
    assert (member.code, member.signal) == (0, None)
    return run


def why_own(run: Run) -> str:
    """With what words the zygote lent nothing."""
    assert run.server.origin == "own" and run.names(None)[:2] == ["own", "ready"]
    return run.last(None, "own")["message"].removeprefix("no server from the zygote: ")


# --- what is lent ---


def test_a_zygote_lends_to_one_cell_after_another(tmp_path):
    before, waited = descriptors(), []
    with held(tmp_path) as (lender, process):
        for _ in range(2):
            with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
                run = train(server, tmp_path)
                run.start(1, hang="stop")
                run.start(2)
                run.until_all("warm", 1, 2)
                run.server.kill(server.members[2])
                run.until_all("exited", 2)
                there = {p.pid for p in offspring()}
                assert {server.pid, server.members[1].pid} <= there
                assert psutil.Process(server.pid).ppid() == process.pid
                server.close(grace=0.2)
            assert_gone(server.pid, *(member.pid for member in server.members.values()))
            assert [member.signal for member in server.members.values()] == [None, 9, 9]
            assert server.origin == "zygote" and run.names(None) == ["ready"]
            assert "member 0 in process" in server.members[0].log.read_text()
            waited.append(run.last(None, "ready")["seconds"]["import"])
        assert waited[1] == 0 <= waited[0]
        assert (tmp_path / "log" / "zygote.log").read_text() == "torch-free trainer ready\n"
    assert descriptors() == before


REPORTER = """
import gc, json, os, resource, sys, tempfile
from pathlib import Path

def preload():
    os.environ["SET_BY_IMPORT"] = "yes"

def main(spec, channel):
    status = Path("/proc/self/status").read_text().splitlines()
    limits = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT")}
    print(json.dumps({
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "temporary": tempfile.gettempdir(),
        "path": sys.path,
        "groups": [os.getpgid(pid) == pid for pid in (os.getpid(), os.getppid())],
        "limits": {name: resource.getrlimit(limit) for name, limit in limits.items()},
        "status": [line for line in status if line.startswith(("Sig", "Umask", "Threads"))],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "input": os.readlink("/proc/self/fd/0"),
        "frozen": gc.get_freeze_count() > 1000,
    }))
    return 0
"""


def test_members_find_what_a_server_of_the_cells_own_would_give_them(tmp_path, monkeypatch):
    """Asked from elsewhere, and with other values for what is adopted."""
    (tmp_path / "reporter.py").write_text(REPORTER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("COLLOCATION_GONE", "by then")
    reports = {}
    with held(tmp_path, "reporter") as (lender, _):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setenv("COLLOCATION_CELL", "that asks")
        monkeypatch.delenv("COLLOCATION_GONE")
        for origin, asked in (("own", None), ("zygote", lender)):
            log = tmp_path / f"{origin}.log"
            with Server(tmp_path / "server.log", "reporter", threads=3, lender=asked) as server:
                server.start({"member": 0, "environment": {"OF_THE_MEMBER": "yes"}}, log)
                Run(server, tmp_path).until_all("exited", 0)
            assert server.origin == origin
            reports[origin] = json.loads(log.read_text())
    assert reports["zygote"] == reports["own"]
    environment = reports["zygote"]["environment"]
    assert (environment["OMP_NUM_THREADS"], environment["OF_THE_MEMBER"]) == ("3", "yes")
    assert environment["COLLOCATION_CELL"]
    assert reports["zygote"]["temporary"] == str(tmp_path)
    assert reports["zygote"]["limits"]["RLIMIT_CORE"] == [0, 0]


# --- what is not ---


@contextlib.contextmanager
def narrowed():
    """One core only, and less CPU time than others."""
    cores, limits = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_CPU)
    os.sched_setaffinity(0, {min(cores)})
    resource.setrlimit(resource.RLIMIT_CPU, (100_000, limits[1]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        resource.setrlimit(resource.RLIMIT_CPU, limits)


@pytest.mark.parametrize("what", ["stamp", "trainer, PYTHONPATH", "LD_ANY", "RLIMIT_CPU"])
def test_who_needs_another_one_starts_its_own(tmp_path, monkeypatch, what):
    with contextlib.ExitStack() as stack:
        lender, _ = stack.enter_context(held(tmp_path))
        trainer = TRAINER
        if what == "stamp":
            lender = Zygote(lender.name, "of yesterday")
        elif what == "LD_ANY":
            monkeypatch.setenv(what, "an import could look at it")
        elif what == "RLIMIT_CPU":
            several = len(os.sched_getaffinity(0)) > 1
            what = f"CPU affinity, {what}" if several else what
            stack.enter_context(narrowed())
        else:
            trainer = "other"
            (tmp_path / "other.py").write_text("from tests.torchfree import main, preload")
            monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        server = stack.enter_context(Server(tmp_path / "server.log", trainer, lender=lender))
        assert why_own(train(server, tmp_path)) == f"imported with another {what}"


def test_where_there_is_no_zygote_a_cell_starts_its_own(tmp_path):
    lender = Zygote("not-there", CODE)
    with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
        assert why_own(train(server, tmp_path)) == "[Errno 111] Connection refused"


def test_a_zygote_that_fails_to_import_leaves_that_to_the_cells(tmp_path):
    """Asked while it still imports; the cell's own server then says what is wrong."""
    (tmp_path / "broken.py").write_text("import time; time.sleep(1.0); import no_such_module")
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    log = tmp_path / "zygote.log"
    with zygote.hold("broken", CODE, server_environment(1) | path, log) as lender:
        options = {"environment": path, "lender": lender}
        with Server(tmp_path / "server.log", "broken", **options) as server:
            run = Run(server, tmp_path)
            run.start(0)
            run.until_all("exited", 0)
    assert run.names(None) == ["own", "server_died"]
    assert run.last(None, "own")["message"].endswith("it has ended")
    assert run.last(None, "server_died")["message"].endswith("No module named 'no_such_module'")
    assert "no_such_module" in log.read_text()


def test_a_zygote_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "ANSWER_S", 0.2)
    with held(tmp_path) as (lender, process):
        process.suspend()
        with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
            assert why_own(train(server, tmp_path)) == "it does not answer"
        process.resume()  # finds a question of one who has left
        monkeypatch.setattr(servers, "ANSWER_S", 20.0)
        with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
            train(server, tmp_path)
        assert server.origin == "zygote"


def test_a_server_may_be_closed_before_the_zygote_has_answered(tmp_path):
    before = descriptors()
    with held(tmp_path) as (lender, process):
        process.suspend()
        with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
            Run(server, tmp_path).start(0)
        process.resume()
        with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
            train(server, tmp_path)
        assert server.origin == "zygote"
    assert descriptors() == before


@contextlib.contextmanager
def somebody_else():
    """Another user, in what the kernel notes of who connects or listens."""
    if os.getuid():
        pytest.skip("only root can be another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_other_users_get_nothing(tmp_path):
    with held(tmp_path) as (lender, _):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            with somebody_else():
                connection.connect(f"\0{lender.name}")
            connection.settimeout(PATIENCE)
            assert connection.recv(100) == b""
        with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
            train(server, tmp_path)
        assert server.origin == "zygote"


def test_other_users_sockets_are_not_trusted(tmp_path):
    name = f"{zygote.PREFIX}{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        with somebody_else():
            listener.listen(1)
        with Server(tmp_path / "server.log", TRAINER, lender=Zygote(name, CODE)) as server:
            assert why_own(train(server, tmp_path)) == "the zygote is another user's"


def test_a_thread_holds_none(tmp_path):
    """The kernel would end it with the thread."""
    told = []

    def hold() -> None:
        with zygote.hold(TRAINER, CODE, server_environment(1), tmp_path / "zygote.log") as found:
            told.append(found)

    elsewhere = threading.Thread(target=hold)
    elsewhere.start()
    elsewhere.join()
    assert told == [None] and list(tmp_path.iterdir()) == []


def test_the_stamp_names_code_and_packages():
    provenance = {"digest": "d", "versions": {"torch": "2.1", "driver": None}}
    loaded_later = {"torch": "2.1", "driver": "580"}
    before = zygote.stamp(provenance)
    assert zygote.stamp(provenance | {"versions": loaded_later}) == before
    assert zygote.stamp(provenance | {"digest": "e"}) != before
    assert zygote.stamp(provenance | {"versions": {"torch": "2.2", "driver": None}}) != before


# --- what ends with what ---

CONDUCTOR = """
import sys
from workflow.collocation.processes.server import Server
from workflow.collocation.processes.zygote import Zygote
name, code, folder = sys.argv[1:]
with Server(folder + "/server.log", trainer="tests.torchfree", lender=Zygote(name, code)) as server:
    for index, args in enumerate([{}, {"hang": "build"}, {"hang": "warm"}]):
        spec = {"member": index, "folder": folder, "model_args": args}
        server.start(spec, f"{folder}/{index}.log")
    while True:
        for member, event in server.wait(None):
            if event["event"] == "forked":
                print(server.pid, event["pid"], flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_lent_ends_with_the_conductor(tmp_path, number):
    """And the zygote serves the next."""
    with held(tmp_path) as (lender, process):
        with script(CONDUCTOR, lender.name, lender.code, tmp_path) as conductor:
            pids = {int(pid) for _ in range(3) for pid in conductor.stdout.readline().split()}
            assert len(pids) == 4
            assert {p.pid for p in process.children(recursive=True)} == pids
            conductor.send_signal(number)
            assert_gone(*pids)
        with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
            train(server, tmp_path)
        assert server.origin == "zygote"


@pytest.mark.parametrize("which", ["zygote", "lent server"])
def test_a_killed_one_takes_its_members_and_no_later_cell(tmp_path, which):
    with held(tmp_path) as (lender, process):
        with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
            run = Run(server, tmp_path)
            run.start(0)
            run.start(1, hang="build")
            run.until_all("warm", 0)
            run.until_all("forked", 1)
            os.kill(process.pid if which == "zygote" else server.pid, signal.SIGKILL)
            run.until_all("exited", 0, 1)
            assert run.names(None) == ["ready", "server_died"]
            assert (server.members[0].code, server.members[0].signal) == (None, None)
            assert server.wait(None) == []
            assert_gone(server.pid, *(member.pid for member in server.members.values()))
        with Server(tmp_path / "server.log", TRAINER, lender=lender) as server:
            train(server, tmp_path)
        assert server.origin == ("own" if which == "zygote" else "zygote")


HOLDER = """
import os, signal, sys
from pathlib import Path
from workflow.collocation.processes import zygote
from workflow.collocation.processes.server import server_environment
log = Path(sys.argv[1])
with zygote.hold("tests.torchfree", "of today", server_environment(1), log) as found:
    print(found.name, flush=True)
    signal.pause()
"""


def test_all_ends_with_who_holds_the_zygote(tmp_path):
    with script(HOLDER, tmp_path / "zygote.log") as holder:
        name = holder.stdout.readline().strip()
        [process] = psutil.Process(holder.pid).children()
        with Server(tmp_path / "server.log", TRAINER, lender=Zygote(name, CODE)) as server:
            run = Run(server, tmp_path)
            run.start(0)
            run.until_all("warm", 0)
            holder.kill()
            run.until_all("exited", 0)
            assert_gone(process.pid, server.pid, server.members[0].pid)
