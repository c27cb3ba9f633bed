"""Drills: what can go wrong while cells are measured, through the real command line.

After each: no process left, the true status, and the next run completes.
"""

import contextlib
import fcntl
import json
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.fakes import machine
from tests.studio import REPOSITORY, Running, Studio, alone, freezer, study, until, workload

CELL = "1x_plain/paper_step/naive/r1"
PHASES = ("build", "warm", "window", "stop")
TIMEOUTS = {"build": 5, "warm": 1.5, "window": 1.5, "stop": 1.5}

# Workload → what it does; the status, phase and words of its cell.
KILLED = "ended by signal 9 (SIGKILL)"
SILENCE = "ended by itself with exit code 7"
LATE = "within its time-out"
FAULTS = {
    "killed_warm": ({"die": {"phase": "warm", "signal": 9}}, "failed", "warm", KILLED),
    "killed_window": ({"die": {"phase": "window", "signal": 9}}, "failed", "window", KILLED),
    "exits_stop": ({"die": {"phase": "stop", "exit": 7}}, "failed", "stop", SILENCE),
    "gone": (
        {"die": {"phase": "before", "exit": 0}},
        "failed",
        "build",
        "by itself with exit code 0",
    ),
    "raises": ({"error": "warm"}, "failed", "warm", "PhaseError: asked to fail in warm"),
    **{f"hangs_{phase}": ({"hang": phase}, "timed_out", phase, LATE) for phase in PHASES},
}
OOMS = {"oom_window": ({"oom": "window"}, "out_of_memory", "window", "OutOfMemory")}


@pytest.fixture(scope="module", autouse=True)
def started(request, module_studio):
    """One run of a study in which every cell but the plain ones goes wrong in another way.

    It waits for time-outs most of the time, so it is started before the other drills.
    """
    if not any("faulty" in item.fixturenames for item in request.session.items):
        return None
    studio = module_studio()
    workloads = {"plain": workload()}
    workloads |= {name: workload(**what) for name, (what, *_) in (FAULTS | OOMS).items()}
    workloads["oom_window"] |= {"memory_limit_mb": 64}
    mix = {"members": {"oom_window": 1, "plain": 2}, "methods": ["naive"]}
    studio.write(workloads, drill=study(ladders=alone(*workloads), mixes=[mix]))
    return studio, studio.start(config={"timeout": json.dumps(TIMEOUTS)})


@pytest.fixture(scope="module")
def faulty(started):
    """The studio and its run, which has ended."""
    studio, running = started
    return studio, running.end()


# -- who is killed or told to end, and what is left ------------------------------------------------


def twice(running: Running) -> None:
    before = len(running.descendants())
    running.signal_group(signal.SIGINT)
    until(lambda: len(running.descendants()) < before, lambda: "nothing ends")
    with contextlib.suppress(ProcessLookupError):
        running.signal_group(signal.SIGINT)


def two_at_once(running: Running) -> None:
    conductor = running.find("workflow.collocation.run.cell")
    conductor.suspend()
    for number in (signal.SIGHUP, signal.SIGTERM):
        conductor.send_signal(number)
    conductor.resume()


ENDS = {
    "ctrl_c_twice": twice,
    "two_at_once": two_at_once,
    "lost_terminal": lambda running: running.signal_group(signal.SIGHUP),
    "kill_snakemake": lambda running: running.process.kill(),
    "kill_conductor": lambda running: running.find("workflow.collocation.run.cell").kill(),
    "kill_server": lambda running: running.find("models.fork_server").kill(),
}


@pytest.fixture(scope="module")
def interrupted(module_studio):
    """A study with a replicate for each drill."""
    ladders = [{"workloads": ["plain"], "counts": {2: ["naive"]}}]
    made = module_studio()
    made.cold = True  # who is killed is Snakemake's own process, as started by a user
    return made.write({"plain": workload()}, drill=study(ladders=ladders, replicates=len(ENDS)))


def replicate(name: str, attempt: int = 1) -> str:
    return f"2x_plain/paper_step/naive/r{1 + list(ENDS).index(name)}/a{attempt}"


@pytest.mark.parametrize("name", ENDS)
def test_an_end_in_mid_cell_leaves_nothing_behind(interrupted, name):
    """But a record, where it was the fork server's alone."""
    studio, cell = interrupted, replicate(name)
    with studio.held(cell, *studio.only(cell)) as (running, _):
        server, *members = running.descendants("models.fork_server")
        assert [member.ppid() for member in members] == [server.pid] * 2
        ENDS[name](running)
        result = running.end()
        studio.assert_no_orphans()
    assert "--unlock" not in result.output and not studio.partial_files()
    assert "Traceback" not in result.output
    if name == "kill_server":
        record = studio.record(cell)
        assert (result.code, record["status"], record["phase"]) == (0, "failed", "window")
        assert "the fork server died" in record["reason"]
    else:
        assert result.code != 0 and cell not in studio.records()


def test_after_all_these_ends_the_next_run_completes(interrupted):
    studio = interrupted
    last = [replicate(name, 2 if name == "kill_server" else 1) for name in ENDS]
    run = studio.measure(*last)
    assert run.code == 0, run.output
    assert [studio.record(cell)["status"] for cell in last] == ["completed"] * len(last)
    plan = studio.plan().output
    assert f"{len(last)} measured, {len(last)} to run now" in plan and "2x_plain" not in plan
    studio.assert_no_orphans()


def test_snakemake_ends_when_told_to_while_it_holds_its_own_lock(studio):
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    options = ["--snakefile", str(REPOSITORY / "Snakefile"), "--cores", "1", "--config"]
    run = studio.run("tests.terminated", *options, *studio.config()).end(90)
    assert run.code == 1 and "Traceback" not in run.output, run.output


# -- processes that stand still --------------------------------------------------------------------

# Kind of process, the phase from which on it stands still, and how: stopped by SIGSTOP or frozen in
# state D, where SIGKILL does not end it; whether Ctrl-C follows.
STILL = (
    ("member", "window", "stopped"),
    ("member", "window", "frozen"),
    ("server", "import", "stopped"),
    ("server", "window", "frozen ctrl_c"),
    ("daemon", "barrier", "stopped"),
    ("daemon", "window", "stopped ctrl_c"),
)
SHORT_S = {"build": 10, "warm": 2, "window": 2, "stop": 2}  # a build has an import in it
AFTER_S = 30  # for a record after the time-out, and for an answer to Ctrl-C, at most


def standing(studio: Studio, running: Running, cell: str, kind: str, phase: str):
    """The process that is to stand still, once the phase is reached."""
    if phase == "import":
        return next(iter(running.descendants("models.fork_server")), None)
    log = (studio.folder / studio.path(cell)).with_name("log") / "member0.log"
    hangs = log.exists() and "hangs in window" in log.read_text()
    if not ("built:" in studio.log(cell) if phase == "barrier" else hangs):
        return None
    if kind == "daemon":
        named = [p for p in running.descendants() if p.name().startswith("nvidia-cuda-mps")]
        return named[0]
    return running.descendants("models.fork_server")[kind == "member"]  # server, then members


def standstill(made: Studio, kind: str, phase: str, how: str) -> None:
    method = "mps" if kind == "daemon" else "naive"
    name = "window" if phase == "import" else phase
    workloads = {name: workload(hang="window") if name == "window" else workload(step_s=0.5)}
    ladder = {"workloads": [name], "counts": {1: [method]}}
    made.settings = {"timeout": json.dumps(SHORT_S)}
    studio = made.write(workloads, drill=study(ladders=[ladder]))
    assert studio.prepare().code == 0
    cell = f"1x_{name}/paper_step/{method}/r1/a1"
    with freezer() if "frozen" in how else contextlib.nullcontext() as frozen:
        running = studio.conduct(cell)
        until(lambda: standing(studio, running, cell, kind, phase), lambda: running.output)
        process = standing(studio, running, cell, kind, phase)
        frozen.freeze(process.pid) if frozen else process.suspend()
        began = time.monotonic()
        if "ctrl_c" in how:
            running.process.send_signal(signal.SIGINT)
        result, took = running.end(), time.monotonic() - began
        left, [words] = [p.pid for p in studio.alive()], studio.locks.glob("*.lock")
        if frozen and kind == "member":  # which keeps the lock
            with words.open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert "a process that it started lives on" in words.read_text()
        if frozen:
            frozen.thaw()
    studio.assert_no_orphans()
    assert left == ([process.pid] if frozen else [])
    with words.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if "ctrl_c" in how:
        assert (result.code, took < AFTER_S) == (130, True), result.output
        assert cell not in studio.records()
        return
    assert result.code == 0 and took < SHORT_S["build"] + AFTER_S, result.output
    record = studio.record(cell)
    assert record["status"] in ("failed", "timed_out")
    if frozen:
        assert f"process {process.pid} outlives SIGKILL and was left behind" in result.output
    if kind == "server":
        assert f"process {process.pid}" in record["reason"]


@pytest.fixture(scope="module", autouse=True)
def standing_still(request, module_studio):
    """All at once and beside the other drills, each on a machine of its own: they wait mostly."""
    if not any("still" in item.fixturenames for item in request.session.items):
        yield {}
        return
    with ThreadPoolExecutor(len(STILL)) as pool:
        drills = {}
        for drill in STILL:
            made = module_studio().with_card() if drill[0] == "daemon" else module_studio()
            drills[drill] = pool.submit(standstill, made, *drill)
        yield drills


@pytest.fixture
def still(standing_still):
    return standing_still


# -- two at once -----------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path, data):
    """Two working folders that share their device locks, with two and with one cell to run."""
    studios = [Studio(tmp_path / name, data, tmp_path / "locks") for name in ("first", "second")]
    for made, replicates in zip(studios, (2, 1), strict=True):
        made.write(
            {"plain": workload()}, drill=study(ladders=alone("plain"), replicates=replicates)
        )
    yield studios
    for made in studios:
        made.kill_all()


def spans(studio: Studio) -> list[tuple[int, int]]:
    """When members lived, from their own logs: (begin, end) in ns."""
    logs = studio.results.glob("cells/*/*/*/*/*/log/member*.log")
    found = []
    for text in (log.read_text() for log in logs):
        found.append(tuple(int(re.search(rf"{w} (\d+)", text)[1]) for w in ("from", "until")))
    return found


def test_two_invocations_at_once(two):
    first, second = two
    with first.held(f"{CELL}/a1", "--until", "collocate") as (running, hold):
        refused = first.measure()
        assert refused.code != 0
        assert f"is in use by pid {running.process.pid}" in refused.output
        assert "Traceback" not in refused.output

        waiting = second.start("--until", "collocate")
        words = f", study drill, cell {CELL}"
        until(lambda: words in waiting.output, lambda: waiting.output)
        hold.unlink()
        assert running.end().code == 0, running.output
        assert waiting.end().code == 0, waiting.output
    for made, replicates in zip(two, (2, 1), strict=True):
        made.assert_no_orphans()
        assert [record["status"] for record in made.records().values()] == [
            "completed"
        ] * replicates
    assert max(r["timing"]["lock_wait_s"] for r in second.records().values()) > 0
    lived = sorted(spans(first) + spans(second))
    assert len(lived) == 3
    assert all(end <= begin for (_, end), (begin, _) in zip(lived, lived[1:], strict=False))


# -- a GPU that is lost ----------------------------------------------------------------------------


def test_a_gpu_that_is_lost_in_mid_study_is_never_replaced_by_the_cpu(studio):
    """The stand-in answers as NVML does when a card has fallen off the bus, and members live on.
    That a study of a GPU is not gone on with on the CPU is tested in test_session.py.
    """
    studio.with_card()
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain"), replicates=3))
    with studio.held(f"{CELL}/a1", "--until", "collocate") as (running, hold):
        machine.configure(studio.card, lost=True)
        hold.unlink()
        over = running.end()
    assert over.code == 1 and "Error" not in over.output, over.output
    why = "planned for a GPU, and there is none now: the NVIDIA driver fails: GPU is lost (NVML"
    assert f"2 cells are left: {why}" in over.output
    assert over.output.count("planned for a GPU") == 1
    assert list(studio.records()) == [f"{CELL}/a1"]  # it was in its window

    machine.configure(studio.card, lost=False)
    run = studio.measure()
    assert run.code == 0, run.output
    records = studio.records()
    assert len(records) == 3 and {r["status"] for r in records.values()} == {"completed"}
    assert all(record["gpu"] for record in records.values())


# -- the disk and the data -------------------------------------------------------------------------


def test_a_disk_that_takes_no_more_in_mid_cell(studio):
    """By RLIMIT_FSIZE, which needs no rights, for the conductor and all below it."""
    studio.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    with studio.held(f"{CELL}/a1", "--until", "collocate") as (running, hold):
        for process in studio.alive():
            if process.pid != running.process.pid:
                process.rlimit(psutil.RLIMIT_FSIZE, (16, 16))
        hold.unlink()
        result = running.end()
        studio.assert_no_orphans()
    assert result.code != 0
    assert not studio.records() and not studio.partial_files()
    assert studio.conduct(f"{CELL}/a1").end().code == 0
    assert studio.record(f"{CELL}/a1")["status"] == "completed"


@pytest.mark.parametrize("drill", STILL, ids=" ".join)
def test_whatever_stands_still_the_cell_ends_and_the_lock_is_free_or_says_why(still, drill):
    still[drill].result()


# -- members that end badly ------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS | OOMS)
def test_a_member_that_ends_badly_gives_its_cell_a_true_status(faulty, name):
    _, status, phase, words = (FAULTS | OOMS)[name]
    record = faulty[0].record(f"1x_{name}/paper_step/naive/r1/a1")
    assert (record["status"], record["phase"]) == (status, phase), record["reason"]
    assert words in record["reason"] and name in record["reason"]
    assert "NOTHING=1" not in record["reason"]  # what an error's further lines advise
    assert not any("samples_per_s" in str(m["windows"]) for m in record["members"]) or (
        phase == "stop"
    )


def test_the_last_job_fails_and_lists_every_cell_without_a_result(faulty):
    studio, run = faulty
    studio.assert_no_orphans()
    assert run.code != 0
    assert f"{len(FAULTS)} cells of study 'drill' have no result:" in run.output
    for name in FAULTS:
        line = rf"1x_{name}/.*: (failed|timed_out) \(attempt 1; tried again, 2 more"
        assert re.search(line, run.output), name
    for name in ("raises", "hangs_warm"):  # said when it happens, and in the end
        where = rf"log: .*/1x_{name}/.*/member0\.log$"
        assert len(re.findall(where, run.output, re.M)) == 2, run.output
    assert "1x_oom_" not in run.output.split("have no result:")[1]
    assert not (studio.results / "complete").exists() and not studio.partial_files()
    assert (studio.results / "figures" / "index.csv").stat().st_size > 0  # of the others
    assert "1x_killed_warm" in (studio.results / "runs.csv").read_text()


def test_out_of_memory_of_one_member_keeps_the_rates_of_the_survivors(faulty):
    record = faulty[0].record("1x_oom_window+2x_plain/paper_step/naive/r1/a1")
    assert (record["status"], record["phase"]) == ("out_of_memory", "window")
    assert "/r1: out_of_memory: member" in faulty[1].output
    victim, *survivors = record["members"]
    assert (victim["status"], victim["exit_code"]) == ("out_of_memory", 3)
    for member in survivors:
        assert member["status"] == "completed"
        assert member["windows"]["window"]["samples_per_s"] > 0


def test_a_fault_that_passes_is_forgotten_by_the_next_run(faulty):
    studio, _ = faulty
    studio.write_study("drill", study(ladders=alone("plain", "exits_stop")))
    run = studio.measure(COLLOCATION_BEHAVE="yes")
    assert run.code == 0, run.output
    cell = "1x_exits_stop/paper_step/naive/r1"
    assert [studio.record(f"{cell}/a{n}")["status"] for n in (1, 2)] == ["failed", "completed"]
    assert studio.check().code == 0
