"""One import for many cells: what the preloaded server does for whom, and what ends with what."""

import contextlib
import json
import os

import psutil
import pytest

from tests.test_processes import CONDUCTOR, Run, assert_gone, descriptors, script
from workflow.collocation import ROOT
from workflow.collocation.process_lifetime import offspring
from workflow.collocation.run.fork_client import Server
from workflow.collocation.run.preloaded import hold

TRAINER = "tests.torchfree"


@contextlib.contextmanager
def held(folder, trainer: str = TRAINER):
    """The name of a preloaded server, and its process."""
    with hold(trainer, folder / "log" / "preloaded.log") as name:
        alive = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
        [process] = [p for p in alive if "--listen" in p.cmdline()]
        yield name, process
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


def trains_by_its_own(folder, name: str) -> str:
    """Why a cell that was told of that server has to start another."""
    with Server(folder / "server.log", TRAINER, name) as server:
        train(server, folder)
        assert server.origin == "own"
        return server.why_own


def trains_by(folder, name: str) -> None:
    with Server(folder / "server.log", TRAINER, name) as server:
        train(server, folder)
    assert server.origin == "zygote"


# --- what is shared ---


def test_one_import_serves_one_cell_after_another(tmp_path):
    before, waited = descriptors(), []
    with held(tmp_path) as (name, process):
        for _ in range(2):
            with Server(tmp_path / "server.log", TRAINER, name) as server:
                run = train(server, tmp_path)
                run.start(1, hang="stop")
                run.start(2)
                run.until_all("warm", 1, 2)
                run.server.kill(2)
                run.until_all("exited", 2)
                assert server.members[1].pid in {p.pid for p in offspring()}
                assert server.pid == psutil.Process(server.members[1].pid).ppid() == process.pid
                server.close(grace=0.2)
            assert_gone(*(member.pid for member in server.members.values()))
            assert [member.signal for member in server.members.values()] == [None, 9, 9]
            assert server.origin == "zygote" and process.is_running()
            assert "member 0 in process" in server.members[0].log.read_text()
            waited.append(server.import_s)
        assert waited[1] == 0 < waited[0]
        assert (tmp_path / "log" / "preloaded.log").read_text() == "torch-free trainer ready\n"
    assert descriptors() == before


def test_one_that_fails_to_import_leaves_that_to_the_cells(tmp_path, monkeypatch):
    """Asked while it still imports; the cell's own server then says what is wrong."""
    (tmp_path / "broken.py").write_text("import time; time.sleep(1.0); import no_such_module")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    log = tmp_path / "preloaded.log"
    with hold("broken", log) as name, Server(tmp_path / "server.log", "broken", name) as server:
        with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
            Run(server, tmp_path).start(0)
        assert (server.origin, server.why_own) == ("own", "has ended")
    assert "no_such_module" in log.read_text()


def test_one_that_does_not_answer_is_killed_so_that_one_cell_alone_waits(tmp_path):
    with held(tmp_path) as (name, process):
        process.suspend()
        with Server(tmp_path / "server.log", TRAINER, name, patience=5.0) as server:
            train(server, tmp_path)
        why = f"(process {process.pid}) does not answer, and was killed"
        assert (server.origin, server.why_own) == ("own", why)
        assert "Connection refused" in trains_by_its_own(tmp_path, name)


# --- what ends with what ---


def test_members_end_with_their_conductor(tmp_path):
    """And the server serves the next."""
    with held(tmp_path) as (name, process):
        with script(CONDUCTOR, tmp_path, name) as conductor:
            lines = [json.loads(conductor.stdout.readline()) for _ in range(4)]
            pids = {pid for _, event, pid in lines if event == "forked"}
            assert {p.pid for p in process.children(recursive=True)} == pids
            conductor.terminate()
            assert_gone(*pids)
        trains_by(tmp_path, name)


def test_a_killed_one_takes_its_members_and_no_later_cell(tmp_path):
    with held(tmp_path) as (name, process):
        with Server(tmp_path / "server.log", TRAINER, name) as server:
            run = Run(server, tmp_path)
            run.start(0)
            run.start(1, hang="build")
            run.until_all("warm", 0)
            run.until_all("forked", 1)
            process.kill()
            run.until_all("exited", 0, 1)
            assert (server.members[0].code, server.members[0].signal) == (None, None)
            run.until(lambda: server.dead)
            assert server.wait(None) == []
            assert_gone(*(member.pid for member in server.members.values()))
        assert trains_by_its_own(tmp_path, name)
