"""The sampler as a process: what it writes of members, machine and card; how it may go wrong."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.cell.test_processes import assert_gone, is_gone
from tests.fakes import machine
from tests.studio import until
from workflow.collocation import ROOT
from workflow.collocation.telemetry import host, lines, watch
from workflow.collocation.telemetry.watch import Watch

CONFIG = {"source": "auto", "hz": 50, "gpu": machine.UUID, "entities": ["gpu"], "cores": None}
RATES = ("cpu", "read", "write")
CHILD = textwrap.dedent("""
    import os, sys, time

    def burn():
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass

    def begin():
        "A worker that works, and then lives until it is buried."
        global pid, held
        (ready, told), (hold, held) = os.pipe(), os.pipe()
        if (pid := os.fork()) == 0:
            os.close(held)
            burn()
            os.write(told, b"x")
            os.read(hold, 1)
            os._exit(0)
        os.read(ready, 1)

    def bury():
        os.close(held)
        os.waitpid(pid, 0)

    print(flush=True)
    for line in sys.stdin:
        print(eval(line), flush=True)
""")


class Cell:
    """A watch in a folder of its own, and the lines that it has so far."""

    def __init__(self, folder: Path):
        self.folder, self.watching = folder, None

    def watch(self, gpu: bool = True, cores=None) -> Watch:
        config = CONFIG | {"gpu": machine.UUID if gpu else None, "cores": cores}
        self.watching = Watch(self.folder, self.folder / "log", config)
        return self.watching

    def until(self, done) -> None:
        """Wait until done(lines) holds."""
        until(
            lambda: done(lines.read_output(self.folder / "telemetry.jsonl")),
            lambda: "no such lines",
        )


@pytest.fixture
def cell(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "SLOW_HZ", 20)
    monkeypatch.setattr(watch, "END_S", 20.0)  # the machine may be busy
    made = Cell(tmp_path)
    yield made
    made.watching.end()
    assert_gone(made.watching.process.pid)


class Child:
    """A process to be watched: does what it is told, and answers."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", CHILD], **pipes, process_group=0)
        self.process.stdout.readline()  # it has started
        self.pid = self.process.pid

    def do(self, what: str) -> str:
        print(what, file=self.process.stdin, flush=True)
        return self.process.stdout.readline()

    def end(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def child():
    made = Child()
    yield made
    made.end()


@pytest.fixture
def card(tmp_path, monkeypatch):
    """The folder of a card that a sampler finds which is started from here."""
    folder = tmp_path / "machine"
    for name, value in machine.create(folder).items():
        monkeypatch.setenv(name, value)
    return folder


def names(found: lines.SamplerOutput) -> list[str]:
    return [mark["name"] for mark in found.marks]


def test_it_keeps_to_its_cores_and_looks_at_members_that_are_there_to_a_windows_end(cell, child):
    core = min(os.sched_getaffinity(0))
    watching = cell.watch(gpu=False, cores=[core])
    watching.members({3: child.pid, 4: 2**22})  # the second is not there
    cell.until(lambda so_far: len(so_far.members) >= 2)
    assert psutil.Process(watching.process.pid).cpu_affinity() == [core]
    watching.open("window")
    cell.until(lambda so_far: so_far.marks)
    watching.close("window")
    found = watching.end()
    assert found.problem is None and not found.errors
    assert found.host[0]["v"]["cpu_busy"] is None  # since when is not known
    assert found.host[-1]["t"] >= found.marks[-1]["t"]
    assert {row["m"] for row in found.members} == {3}


@pytest.mark.parametrize(("gpu", "free"), [(True, False), (True, True), (False, False)])
def test_a_sampler_of_a_gpu_on_cpus_of_the_jobs_is_flagged(cell, card, gpu, free):
    watching = cell.watch(gpu=gpu, cores=[min(os.sched_getaffinity(0))] if free else None)
    cell.until(lambda so_far: so_far.host and so_far.head)
    facts = {"has_gpu": gpu, "owner": str, "own": set()}
    _, flags, _ = watching.account(cell.folder, [], print, **facts)
    assert ("sampler_shares_cores" in flags) == (gpu and not free)


@pytest.mark.parametrize(
    "work", [("burn()",), ("(begin(), bury())",), ("begin()", "bury()"), ("begin()", "burn()")]
)
def test_workers_that_come_and_go_are_counted_once(child, work):
    """Themselves, unseen, and seen."""
    members, seconds = host.MemberProcesses(), 0.0
    members.watch({0: child.pid})
    ((before, _, row),) = members.rows({})
    assert all(row[name] is None for name in RATES)
    for part in work:
        child.do(part)
        ((now, _, row),) = members.rows({})
        assert all(row[name] >= 0 for name in RATES)
        seconds, before = seconds + row["cpu"] * (now - before) / 1e9, now
    burns = sum("b" in part and part != "bury()" for part in work)
    assert seconds == pytest.approx(0.1 * burns, abs=0.05)


def test_only_the_members_processes_are_read_again(child, monkeypatch):
    """A machine with many cores has hundreds of others."""
    members, opened, really_open = host.MemberProcesses(), [], os.open
    members.watch({0: child.pid})
    recorded = lambda path, *flags: opened.append(path) or really_open(path, *flags)  # noqa: E731
    monkeypatch.setattr(os, "open", recorded)
    for stranger_is_read in (True, False):
        opened.clear()
        assert [member for _, member, _ in members.rows({})] == [0]
        assert f"/proc/{child.pid}/stat" in opened
        assert (f"/proc/{os.getpid()}/stat" in opened) == stranger_is_read


def test_descendants_of_any_name_count_until_they_leave_the_tree(child, tmp_path):
    """A shell whose name looks like fields of /proc, and its child, which outlives it."""
    shell = tmp_path / "a) Z 1 (b"
    shell.symlink_to("/bin/sh")
    command = [str(shell), "-c", "sleep 60; true"]
    child.do(f"globals().update(shell=__import__('subprocess').Popen({command}))")
    tree = psutil.Process(child.pid)
    until(lambda: len(tree.children(recursive=True)) == 2, lambda: "no grandchild")
    named, sleeping = tree.children(recursive=True)
    memory = {process.pid: 10**n for n, process in enumerate((tree, named, sleeping))}
    members = host.MemberProcesses()
    members.watch({0: child.pid})
    ((_, _, row),) = members.rows(memory)
    assert named.name() == shell.name and row["gpu_memory"] == 111
    rss = sum(process.memory_info().rss for process in (tree, named, sleeping))
    assert row["rss"] == pytest.approx(rss, rel=0.1)
    named.kill()
    child.do("shell.wait()")
    ((_, _, row),) = members.rows(memory)
    assert row["gpu_memory"] == 1


def test_the_sampler_starts_without_what_it_does_not_need():
    """Every cell waits for its first readings."""
    code = "import sys, workflow.collocation.telemetry.sampler; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_rows_of_a_member_end_with_it(child):
    members, gone = host.MemberProcesses(), Child()
    members.watch({0: child.pid, 1: gone.pid})
    (_, first, row), (_, second, _) = members.rows({child.pid: 7, 1: 9})
    assert (first, second, row["gpu_memory"]) == (0, 1, 7)
    os.kill(gone.pid, signal.SIGKILL)
    until(lambda: [member for _, member, _ in members.rows({})] == [0], lambda: "it has a row")
    gone.end()


def test_rows_marks_and_spans_of_a_card(cell, card, child, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"):
        monkeypatch.setenv(name, "/nowhere")
    machine.does(card, smact=0.25, power=300.0)
    machine.occupy(card, child.pid)
    watching = cell.watch()
    watching.members({0: child.pid})
    cell.until(lambda so_far: len([r for r in so_far.gpu if "smact" in r["v"]]) > 2)
    watching.open("before")
    cell.until(lambda so_far: so_far.marks)
    time.sleep(0.3)
    watching.close("before")
    watching.open("after")
    cell.until(lambda so_far: len(so_far.marks) == 3 and so_far.members and so_far.seen)
    watching.close("never opened")
    found = watching.end()

    assert found.problem is None and found.head["source"] == "gpm"
    assert [error["where"] for error in found.errors] == ["close never opened"]
    assert {row["v"]["power"] for row in found.gpu} >= {300}
    assert names(found) == ["before:open", "before:close", "after:open", "never opened:close"]
    (opened, low), (closed, high) = (mark["energy"] for mark in found.marks[:2])
    for mark in found.marks[:2]:
        assert 0 < mark["energy"][0] - mark["t"] < 0.3e9
    assert (high - low) / ((closed - opened) / 1e9) == pytest.approx(300, rel=0.15)
    [span] = found.spans
    assert (span["name"], span["e"], span["v"]["smact"]) == ("before", "gpu", pytest.approx(0.25))
    assert 0.3e9 < span["end_ns"] - span["start_ns"] < 2e9
    assert [row["compute"] for row in found.seen] == [[child.pid]]
    assert found.members[-1]["v"]["gpu_memory"] == 500 * 2**20
    assert found.end["ticks"] == len(found.gpu)


GPM_FAILS = {"failures": [{"call": "nvmlGpmSampleGet", "at": 9, "error": 999, "on": True}]}


@pytest.mark.parametrize(("settings", "source"), [(GPM_FAILS, "gpm"), ({"lost": True}, None)])
def test_what_fails_is_said_once_and_the_rest_goes_on(cell, card, child, settings, source):
    machine.configure(card, **settings)
    watching = cell.watch()
    watching.members({0: child.pid})
    cell.until(lambda so_far: so_far.members and (not source or so_far.errors))
    found = watching.end()
    assert found.problem is None and found.head["source"] == source
    assert [error["where"] for error in found.errors] == ([source] if source else [])
    assert source or "GPU is lost" in found.head["why"]


ENDED, KILLED = "the sampler ended too early: exit code ", "the sampler did not end when told to"
WRONG = [
    (signal.SIGKILL, ENDED + "-9"),
    (signal.SIGSTOP, KILLED),
    ("a driver that does not answer", KILLED),
    ("a full disk", ENDED),
    ("a full pipe", "the sampler cannot be reached"),
]


@pytest.mark.parametrize(("harm", "problem"), WRONG)
def test_a_sampler_that_goes_wrong_holds_up_nothing_else_and_is_gone(
    cell, card, monkeypatch, harm, problem
):
    monkeypatch.setattr(watch, "END_S", 0.5)
    watching = cell.watch()
    cell.until(lambda so_far: len(so_far.gpu) >= 2)
    pid = watching.process.pid
    if harm == "a full disk":
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (0, 0))
    elif harm == "a driver that does not answer":
        machine.configure(card, blocks=["nvmlDeviceGetFieldValues"])
        until((card / "stuck").exists, lambda: "it is not stuck")
    else:
        os.kill(pid, signal.SIGSTOP if harm == "a full pipe" else harm)
    if problem.startswith(ENDED):
        until(lambda: is_gone(pid), lambda: "it still runs")
    for _ in range(5000 if harm == "a full pipe" else 1):
        watching.open("x" * 50)
    found = watching.end()
    assert found.problem.startswith(problem) and found.problem == watching.problem
    assert is_gone(pid) and found.gpu


def test_it_dies_with_its_conductor_whatever_it_is_stuck_in(tmp_path, card):
    code = f"""
        import time
        from pathlib import Path
        from workflow.collocation.telemetry.watch import Watch
        folder = Path({str(tmp_path)!r})
        watching = Watch(folder, folder / "log", {CONFIG})
        print(watching.process.pid)
        time.sleep(60)
    """
    command = [sys.executable, "-uc", textwrap.dedent(code)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as conductor:
        pid = int(conductor.stdout.readline())
        until(lambda: lines.read_output(tmp_path / "telemetry.jsonl").gpu, lambda: "no row")
        machine.configure(card, blocks=["nvmlDeviceGetFieldValues"])
        until((card / "stuck").exists, lambda: "it is not stuck")
        conductor.kill()
    assert_gone(pid)


def test_lines_that_are_cut_damaged_or_missing(tmp_path):
    path, row = tmp_path / "lines", '{"k":"gpu","t":1,"e":"gpu","v":{}}\n'
    assert "FileNotFoundError" in lines.read_output(path).problem
    for text, rows, problem in [
        ("", 0, "did not end"),
        (row, 1, "did not end"),
        (row + row[:20], 1, "JSONDecodeError"),
        (row + row + '{"k":"end","ticks":1}\n', 2, "None"),
    ]:
        path.write_text(text)
        found = lines.read_output(path)
        assert len(found.gpu) == rows and problem in str(found.problem)
