"""The sampler as a process: what it writes of members, machine and card; how it may go wrong."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.studio import until
from tests.test_processes import assert_gone, is_gone
from workflow.collocation import ROOT
from workflow.collocation.telemetry import host, lines, sampler, watch
from workflow.collocation.telemetry.watch import Watch

PATIENCE = 20.0  # seconds, for a busy machine; nothing below waits that long when all is well
RATES = ("cpu", "read", "write")


class Cell:
    """Watches in a folder of their own, the lines that they have so far, and children to watch."""

    def __init__(self, folder: Path):
        self.folder, self.watches, self.children = folder, [], []

    def watch(self, gpu: str | None = "works", entities=("gpu",), cores=None):
        where = self.folder / str(len(self.watches))
        where.mkdir()
        program = watch.PROGRAM if gpu is None else "tests.samplers"
        settings = {"source": "auto", "hz": 50}
        made = Watch(where, where / "log", gpu, list(entities), settings, cores, program)
        self.watches.append(made)
        return made

    def child(self) -> "Child":
        self.children.append(Child(self.folder / f"child{len(self.children)}"))
        return self.children[-1]

    def lines(self) -> lines.Lines:
        return lines.read(self.folder / str(len(self.watches) - 1) / "telemetry.jsonl")

    def until(self, done):
        """The lines so far as soon as done(lines) holds."""
        deadline = time.monotonic() + PATIENCE
        while not done(so_far := self.lines()):
            assert time.monotonic() < deadline, so_far
            time.sleep(0.01)
        return so_far

    def log(self) -> str:
        return (self.folder / str(len(self.watches) - 1) / "log").read_text()


class Child:
    """A process to be watched: does one thing per line that it is told, and answers."""

    BODY = textwrap.dedent("""
        import os, sys, time

        def burn(seconds=0.1):
            end = time.process_time() + seconds
            while time.process_time() < end:
                pass

        def fork(work):
            pid = os.fork()
            if pid == 0:
                work()
                os._exit(0)
            return pid

        def worker():
            os.waitpid(fork(burn), 0)

        def begin():
            global ready, held
            (ready, told), (hold, held) = os.pipe(), os.pipe()
            def work():
                os.close(held)
                burn()
                os.write(told, b"x")
                os.read(hold, 1)
            global pid
            pid = fork(work)
            os.read(ready, 1)

        def bury():
            os.close(held)
            os.waitpid(pid, 0)

        for line in sys.stdin:
            print(eval(line) if "(" in line else exec(line), flush=True)
    """)

    def __init__(self, script: Path):
        script.write_text(self.BODY)
        self._process = subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.pid = self._process.pid
        self.do("()")  # it has started

    def do(self, what: str) -> str:
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()

    def used(self) -> float:
        return sum(float(each) for each in self.do("os.times()[:4]").strip("()\n").split(","))

    def end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.communicate()


@pytest.fixture
def cell(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "SLOW_HZ", 20)
    made = Cell(tmp_path)
    yield made
    for child in made.children:
        child.end()
    for each in made.watches:
        each.end()
    assert_gone(*(each.pid for each in made.watches if each.pid))


def names(found: list[dict]) -> list[str]:
    return [mark["name"] for mark in found]


# --- without a GPU ---


def test_without_a_gpu_members_and_machine_are_complete(cell):
    child, watching = cell.child(), cell.watch(gpu=None, cores=[min(os.sched_getaffinity(0))])
    watching.phase("build")
    watching.members({3: child.pid})
    cell.until(lambda so_far: len(so_far.members) >= 2)
    assert psutil.Process(watching.pid).cpu_affinity() == [min(os.sched_getaffinity(0))]
    watching.open("window")
    cell.until(lambda so_far: names(so_far.marks) == ["window:open"])
    child.do("worker()")
    watching.close("window")
    found = watching.end()

    assert found.problem is None and watching.problem is None and not found.errors
    assert (found.gpu, found.spans, found.seen) == ([], [], [])
    assert found.head["source"] is None
    assert names(found.marks) == ["window:open", "window:close"]
    assert [name for _, name in found.phases] == ["idle", "build"]
    assert found.phases == sorted(found.phases)
    assert all(mark["energy"] is None for mark in found.marks)
    opened, closed = (mark["t"] for mark in found.marks)

    first, *others = found.host
    assert all(first["v"][name] is None for name in ("cpu_busy", "cpu_stolen", "disk_read"))
    assert all(row["v"]["cpu_busy"] >= 0 and row["v"]["cpu_stolen"] >= 0 for row in others)
    assert all(row["v"]["memory_used"] > 0 for row in others)
    assert any(row["t"] >= opened for row in others) and others[-1]["t"] >= closed
    rows = found.members
    assert {row["m"] for row in rows} == {3}
    assert all(rows[0]["v"][name] is None for name in RATES)
    assert all(row["v"]["rss"] > 0 and row["v"]["threads"] >= 1 for row in rows)
    assert all(row["v"]["gpu_memory"] is None for row in rows)
    pairs = zip(rows, rows[1:], strict=False)
    burnt = sum(new["v"]["cpu"] * (new["t"] - old["t"]) / 1e9 for old, new in pairs)
    assert burnt >= 0.05  # the worker was gone before anybody could see it

    assert found.end["ticks"] >= 2 and found.end["tick_ms"]["max"] > 0
    assert found.end["cpu_s"] > 0 and found.end["stuck"] == []
    assert watching.end() is found


def test_the_rows_of_a_member_end_with_it(cell):
    gone, stays, watching = cell.child(), cell.child(), cell.watch(gpu=None)
    watching.members({0: gone.pid, 1: stays.pid, 2: 2**22})
    cell.until(lambda so_far: {row["m"] for row in so_far.members} == {0, 1})
    gone.end()
    last = cell.until(lambda so_far: so_far.members[-2:][0]["m"] == 1).members
    last = [row["t"] for row in last if row["m"] == 0][-1]
    cell.until(lambda so_far: so_far.members[-1]["t"] > last)
    found = watching.end()
    assert found.problem is None
    assert [row["t"] for row in found.members if row["m"] == 0][-1] == last
    assert [error["message"] for error in found.errors] == ["member 2 is not there"]


# --- what a member used ---


def counted(child: Child, work: tuple[str, ...]) -> float:
    """CPU seconds that are counted, looked at after each part of `work`."""
    members = host.Members()
    assert members.watch({0: child.pid}) == []
    ((before, _, row),) = members.rows(None)
    assert all(row[name] is None for name in RATES)
    seconds = 0.0
    for part in work:
        child.do(part)
        ((now, _, row),) = members.rows(None)
        assert all(row[name] >= 0 for name in RATES)
        seconds, before = seconds + row["cpu"] * (now - before) / 1e9, now
    return seconds


@pytest.mark.parametrize(
    "work",
    [
        ("burn()",),
        ("worker()", "worker()"),
        ("begin()", "bury()"),
        ("begin()", "burn()", "bury()", "worker()"),
    ],
    ids=["itself", "unseen", "seen", "both"],
)
def test_workers_that_come_and_go_are_counted_once(cell, work):
    child = cell.child()
    before = child.used()
    assert counted(child, work) == pytest.approx(child.used() - before, abs=0.05)


def test_workers_of_a_member_that_somebody_else_forked_are_its_own(tmp_path):
    """As of a member of the server that all cells of an invocation share."""
    said = tmp_path / "pid"
    worker = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    fork = f"import os; os.fork() and os._exit(0); open({str(said)!r}, 'w').write(str(os.getpid()))"
    with subprocess.Popen(
        [sys.executable, "-c", f"{fork}; {worker}"], stdin=subprocess.PIPE, text=True
    ) as starter:
        starter.wait()
        until(lambda: said.exists() and said.read_text(), lambda: "it was not forked")
        members = host.Members()
        assert members.watch({0: int(said.read_text())}) == []
        until(lambda: members.rows(None)[0][2]["processes"] == 2, lambda: "no worker is seen")
        starter.stdin.close()


def test_refused_readings_are_missing_not_zero(cell, monkeypatch):
    child, members = cell.child(), host.Members()

    def refuse(process: psutil.Process):
        raise psutil.AccessDenied(process.pid)

    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "io_counters", refuse)
        members.watch({0: child.pid})
        members.rows(None)
        ((_, _, row),) = members.rows({child.pid: 7, 1: 9})
        assert (row["read"], row["write"], row["gpu_memory"]) == (None, None, 7)
        assert row["cpu"] is not None
    assert members.rows(None)[0][2]["read"] is None  # the row before had none
    assert members.rows(None)[0][2]["read"] is not None


# --- with a card ---


def test_rows_marks_and_spans_of_a_card(cell, monkeypatch):
    child = cell.child()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("SAMPLER_PIDS", f"{child.pid} 99")
    with cell.watch(entities=("gpu", "gi:1")) as watching:
        watching.members({0: child.pid})
        cell.until(lambda so_far: len([row for row in so_far.gpu if row["e"] == "gi:1"]) > 2)
        watching.open("before")
        cell.until(lambda so_far: "before:open" in names(so_far.marks))
        watching.close("before")
        cell.until(lambda so_far: "before:close" in names(so_far.marks))
        watching.close("never opened")
        cell.until(lambda so_far: "never opened:close" in names(so_far.marks))
        cell.until(lambda so_far: so_far.members and so_far.seen)
        found = watching.end()

    assert found.problem is None and not found.errors
    assert found.head["source"] == "gpm" and found.head["why"] == "it answers"
    card = [row["v"] for row in found.gpu if row["e"] == "gpu"]
    assert all(row["power"] >= 1 for row in card)
    slow = [index for index, row in enumerate(card) if "memory_temperature" in row]
    assert slow == list(range(0, len(card), 3))  # 20 of 50 Hz, at each third tick at most
    assert {row.get("smact") for row in card} == {None, 0.25}
    assert {json.dumps(row["v"]) for row in found.gpu if row["e"] == "gi:1"} == {'{"smact": 0.25}'}
    for name in ("before:open", "before:close"):
        (mark,) = [mark for mark in found.marks if mark["name"] == name]
        assert mark["energy"][0] > mark["t"] and mark["energy"][1] >= 0
        # Ticks went on while the energy's step was waited for.
        assert sum(mark["t"] < row["t"] < mark["energy"][0] for row in found.gpu) >= 2
    spans = [(span["name"], span["e"]) for span in found.spans]
    assert spans == [("before", "gpu"), ("before", "gi:1")]
    span = found.spans[0]
    inside = [row for row in found.gpu if span["start_ns"] < row["t"] < span["end_ns"]]
    assert abs(span["v"]["smact"] - len([row for row in inside if row["e"] == "gpu"])) <= 1
    assert [(row["compute"], row["mps"]) for row in found.seen] == [(sorted([99, child.pid]), None)]
    assert found.members[-1]["v"]["gpu_memory"] == 1000
    assert found.end["ticks"] == len(card) and found.end["tick_ms"]["max"] > 0
    assert "source closed, cuda=[]" in cell.log()


@pytest.mark.parametrize(
    ("gpu", "where", "words"),
    [
        ("failing", "gpm", "ValueError: no sample"),
        ("lost", "nvml", "RuntimeError: the card is lost"),
        ("absent", "nvml", "LookupError: no such card"),
        ("unprofiled", "source", "LookupError: no auto here"),
    ],
)
def test_what_fails_is_said_once_and_the_rest_goes_on(cell, gpu, where, words):
    child, watching = cell.child(), cell.watch(gpu)
    watching.members({0: child.pid})
    watching.open("window")
    so_far = cell.until(lambda so_far: so_far.head and so_far.errors and so_far.members)
    count = len(so_far.gpu) + 5
    cell.until(lambda so_far: len(so_far.gpu) > count or gpu == "absent")
    watching.close("window")
    found = watching.end()
    assert found.problem is None and names(found.marks) == ["window:open", "window:close"]
    [error] = found.errors
    assert error["where"] == where and error["message"].startswith(words)
    powers = {row["v"].get("power") is not None for row in found.gpu}
    assert powers == {"absent": set(), "lost": {False}}.get(gpu, {True})


def looped(folder, step) -> sampler.Loop:
    """A loop of a hundred steps a second that has made six; `step` is told the number of each."""
    made = []

    def counted():
        made.append(None)
        if len(made) == 6:
            loop.stop()
        return step(len(made))

    loop = sampler.Loop("ticks", 100, counted, lines.Output(folder / "lines"))
    loop.start()
    loop.join(PATIENCE)
    return loop


def test_late_steps_are_skipped_not_caught_up(tmp_path):
    began = []

    def step(number):
        began.append(time.monotonic_ns())
        time.sleep(0.036 if number == 3 else 0)

    ticks = looped(tmp_path, step)
    assert len(ticks.took_ns) == 6 and ticks.skipped >= 3
    assert began[-1] - began[0] >= 0.07e9  # five steps and three that were left out
    assert ticks.cost()["max"] >= 36 > ticks.cost()["p50"]


def test_a_step_that_waits_shifts_the_schedule(tmp_path):
    began = []

    def step(number):
        began.append(time.monotonic_ns())
        time.sleep(0.015)
        return time.monotonic_ns()

    looped(tmp_path, step)
    pairs = zip(began, began[1:], strict=False)
    assert all(after - before >= 0.024e9 for before, after in pairs)


# --- commands ---


def test_a_full_pipe_is_noted_and_delays_nobody(cell, monkeypatch):
    monkeypatch.setattr(watch, "END_S", 0.3)
    watching = cell.watch()
    cell.until(lambda so_far: so_far.gpu)
    os.kill(watching.pid, signal.SIGSTOP)
    for _ in range(5000):
        watching.open("x" * 50)
    assert watching.problem == "the sampler does not read its commands"
    found = watching.end()
    assert found.gpu and found.problem == watching.problem
    assert is_gone(watching.pid)


# --- samplers that go wrong ---


ENDED, KILLED = (
    "the sampler ended too early: ",
    "the sampler did not end when told to, and was killed",
)
WRONG = [  # how the card is, what is done to the sampler, and what is said of that
    ("crashing", None, ENDED + "exit code 7: the last words"),
    ("works", signal.SIGKILL, ENDED + "by signal 9"),
    ("works", signal.SIGSTOP, KILLED),
    ("seizing", None, KILLED),
    ("unanswering", None, "the sampler got stuck in a reading: gpu"),
    ("silent", None, "the GPU gave no answer"),
]


@pytest.mark.parametrize(("gpu", "harm", "problem"), WRONG)
def test_a_sampler_that_goes_wrong_holds_up_nothing_else_and_is_gone(
    cell, monkeypatch, gpu, harm, problem
):
    if problem == KILLED:
        monkeypatch.setattr(watch, "END_S", 0.3)
    child, watching = cell.child(), cell.watch(gpu)
    watching.members({0: child.pid})
    cell.until(lambda so_far: len(so_far.members if gpu == "silent" else so_far.gpu) >= 2)
    if harm:
        os.kill(watching.pid, harm)
    time.sleep(0.1)  # for the reading that seizes all
    watching.open("window")
    watching.close("window")
    if gpu in ("unanswering", "silent"):
        cell.until(lambda so_far: len(so_far.members) >= 3)
    deadline = time.monotonic() + PATIENCE
    while problem.startswith(ENDED) and watching.problem is None:
        assert time.monotonic() < deadline
        watching.open("window")  # notices it, as soon as it has ended
        time.sleep(0.01)
    found = watching.end()
    assert found.problem == problem == watching.problem and is_gone(watching.pid)
    assert bool(found.gpu) == (gpu != "silent") and watching.end() is found


def test_an_interrupted_run_waits_for_nothing(cell, monkeypatch):
    watching = cell.watch("seizing")
    cell.until(lambda so_far: len(so_far.gpu) >= 2)
    monkeypatch.setattr(watch, "END_S", PATIENCE)
    with pytest.raises(KeyboardInterrupt), watching:
        raise KeyboardInterrupt
    assert is_gone(watching.pid)
    assert watching.problem == "the sampler ended too early: by signal 9"


def test_it_dies_with_its_conductor_whatever_it_is_stuck_in(tmp_path):
    code = f"""
        import time
        from pathlib import Path
        from workflow.collocation.telemetry.watch import Watch
        folder = Path({str(tmp_path)!r})
        settings = {{"source": "auto", "hz": 50}}
        log, program = folder / "log", "tests.samplers"
        print(Watch(folder, log, "seizing", ["gpu"], settings, None, program).pid)
        time.sleep({PATIENCE})
    """
    conductor = subprocess.Popen(
        [sys.executable, "-uc", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE
    )
    with conductor:
        pid = int(conductor.stdout.readline())
        deadline = time.monotonic() + PATIENCE
        while len(lines.read(tmp_path / "telemetry.jsonl").gpu) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)  # for the reading that seizes all
        conductor.kill()
    assert_gone(pid)


def test_no_sampler_at_all(cell, monkeypatch):
    monkeypatch.setattr(watch.sys, "executable", "/nowhere/python")
    watching = cell.watch()
    for call in (watching.phase, watching.open, watching.close):
        call("window")
    watching.members({0: 1})
    found = watching.end()
    assert found.problem.startswith("the sampler cannot be started: ")
    assert (found.head, found.gpu, watching.pid) == (None, [], None)


# --- reading back ---


def test_lines_that_are_cut_damaged_or_missing(tmp_path):
    path = tmp_path / "lines"
    assert lines.read(path).problem.startswith("the sampler left no readable output")
    head, end = '{"k":"head","source":null}\n', '{"k":"end","ticks":1}\n'
    row = '{"k":"gpu","t":%d,"e":"gpu","v":{}}\n'
    for text, rows, problem in [
        ("", 0, "the sampler did not begin"),
        (head + row % 2 + row % 1 + end, 2, None),
        (head + row % 1, 1, "the sampler did not end as it should"),
        (head + row % 1 + row[:20], 1, "the sampler's last line is cut"),
        (head + "nul\n[]\n" + '{"k":"gpu","e":"gpu"}\n' + end, 0, "3 of the sampler's lines"),
    ]:
        path.write_text(text)
        found = lines.read(path)
        assert len(found.gpu) == rows and (found.problem or "").startswith(problem or "")
        assert (problem is None) == (found.problem is None)
    assert lines.read(path).head == {"source": None}
    path.write_text(head + row % 2 + row % 1 + end)
    assert [each["t"] for each in lines.read(path).gpu] == [1, 2]
