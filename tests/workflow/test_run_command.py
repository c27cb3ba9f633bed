"""`collocate run` on CPU slots and on a GPU that is not there: ends, kills, and what follows."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.fakes import machine
from tests.studio import PATIENCE, Studio, until
from workflow.collocation.process_lifetime import is_running

GONE_S = 60
# A run tells of itself, joins the card if there is one, and acts as its first argument says.
RUN = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

act, number = sys.argv[1:]
folder, first = Path(os.environ["COLLOCATION_FOLDER"]), not Path("acted-" + number).exists()
helper = os.fork() if act == "leaves" else None  # before it joins the card
seen = {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)), "environment": {**os.environ}}
if "COLLOCATION_FAKE_NVML" in os.environ and helper in (None, 0):
    from tests.fakes import driver, machine
    machine.attach(os.environ)
    card = driver.Card(machine.chosen(os.environ)[0])
    servers = [pid for pid, entry in card.processes().items() if entry["kind"] == "server"]
if helper == 0:
    time.sleep(600)
if act in ("waits", "heeds") or (act, number) in (("fault", "1"), ("memory", "0")):
    child = subprocess.Popen(["setsid", "sleep", "600"])
    seen["child"] = child.pid
(folder / "part").write_text(json.dumps(seen))
(folder / "part").rename(folder / "seen.json")
print("its log", flush=True)
if act == "heeds":
    def save(*_):
        time.sleep(0.5)
        if child.poll() is None:
            (folder / "saved").touch()
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
while act in ("waits", "heeds") and not Path("go").exists():
    time.sleep(0.02)
if act == "leaves":
    while not json.loads((folder / "run.json").read_text())["attempts"][-1]["peak_memory_mb"]:
        time.sleep(0.02)
    sys.exit()
if act == "sick" or act == "fails" and number == "3":
    sys.exit("no such data")
if act == "memory" and number == "1" and first:
    Path("acted-1").touch()
    sys.exit("RuntimeError: CUDA out of memory")
if act == "fault" and first:
    while not Path("acted-0").exists() and number == "1":
        time.sleep(0.02)
    while len([*Path("collocate/run-1").glob("000[01]/seen.json")]) < 2 or number == "0" and (
        not json.loads((folder / "run.json").read_text())["attempts"][0]["mps"]
    ):
        time.sleep(0.02)
    Path("acted-" + number).touch()
    for server in servers if number == "0" else ():
        os.kill(server, signal.SIGKILL)
    sys.exit("CUDA error: unspecified launch failure")
if act == "memory" and first:
    time.sleep(2)
with open("ended.txt", "a") as file:
    print(number, file=file)
"""


@contextmanager
def started(
    studio: Studio,
    *options: str,
    act: str = "ends",
    runs: int = 4,
    leaves: bool = False,
    **environment: str,
):
    """The command, in a session of its own. Nothing of it may be left, unless it `leaves` some."""
    studio.folder.mkdir(parents=True, exist_ok=True)
    (studio.folder / "run.py").write_text(RUN)
    device = [] if studio.card else ["--gpus", "cpu"]
    command = [sys.executable, "-m", "collocate", "run", *device, *options, "--runs", str(runs)]
    log = studio.folder / f"output-{len([*studio.folder.glob('output-*')])}.txt"
    command += ["--", sys.executable, "run.py", act, "{n}"]
    running = studio.spawn(command, log, studio.environment(**environment))
    try:
        yield running
        running.end()
        if leaves:
            return
        until(
            lambda: not studio.alive() and not studio.held_locks(),
            lambda: (
                f"{[p.cmdline() for p in studio.alive()]} {studio.held_locks()} {log.read_text()}"
            ),
            GONE_S,
        )
        assert not [*studio.folder.glob("mps-*")]
    finally:
        if not leaves:
            studio.kill_all()
        running.process.wait(PATIENCE)


def finished(studio: Studio, *options: str, **given) -> tuple[int, str]:
    with started(studio, *options, **given) as running:
        ended = running.end()
    return ended.code, ended.output


def sweep(studio: Studio) -> Path:
    return studio.folder / "collocate" / "run-1"


def seen(studio: Studio) -> list[dict]:
    """What runs told of themselves."""
    return [json.loads(path.read_text()) for path in sorted(sweep(studio).glob("*/seen.json"))]


def attempts(studio: Studio, run: int) -> list[dict]:
    return json.loads((sweep(studio) / f"{run:04}" / "run.json").read_text())["attempts"]


@pytest.fixture
def studio(module_studio):
    """A studio whose path is so short that a socket's holds it."""
    return module_studio()


def ended(studio: Studio) -> list[int]:
    """Numbers of runs that came to their end, each as often as it did."""
    path = studio.folder / "ended.txt"
    return sorted(map(int, path.read_text().split())) if path.exists() else []


def test_each_run_ends_once_and_one_that_fails_is_named_and_tried_again(studio):
    code, output = finished(studio, "--jobs", "2", runs=12, act="fails")
    assert code == 1 and "11 of 12 runs ended well" in output, output
    assert "failed: 3; run 3: exit code 1: no such data" in output
    assert ended(studio) == [n for n in range(12) if n != 3]
    for number, run in enumerate(seen(studio)):
        assert run["environment"]["COLLOCATION_RUN"] == str(number)
        assert run["environment"]["MASTER_PORT"].isdecimal()
        assert run["cores"] == attempts(studio, number)[0]["cores"]
        assert (sweep(studio) / f"{number:04}" / "log.txt").read_text().startswith("its log\n")
    assert len({attempts(studio, number)[0]["start"] for number in range(12)}) == 12
    rows = (sweep(studio) / "runs.csv").read_text().splitlines()
    assert len(rows) == 13 and rows[4].startswith("3,failed,1,")
    code, output = finished(studio, "--jobs", "1", runs=12, act="fails")
    assert code == 1 and len(attempts(studio, 3)) == 2 and len(ended(studio)) == 11


def test_a_device_on_which_all_fail_is_given_up(studio):
    code, output = finished(studio, "--jobs", "1", runs=5, act="sick")
    assert code == 1 and "CPU: 3 runs in a row failed within 30 s" in output, output
    assert "no such data" in output and "5 runs are left; the same command" in output
    assert [len(attempts(studio, number)) for number in range(5)] == [1, 1, 1, 0, 0]


# The command, on a disk that is full when the first run starts, and again when it ends.
ON_A_FULL_DISK = """
import sys
from collocate.app import main
from workflow.collocation.sweep import journal

write, calls = journal.write_private, []

def write_or_fail(path, text, **options):
    calls.append(path)
    if path.name == "run.json" and len(calls) in (*range(4, 10), *range(12, 18)):
        raise OSError(28, "No space left on device")
    write(path, text, **options)

journal.write_private = write_or_fail
sys.exit(main())
"""


def test_a_full_disk_ends_no_run(studio):
    studio.folder.mkdir(parents=True, exist_ok=True)
    (studio.folder / "run.py").write_text(RUN)
    words = ["run", "--gpus", "cpu", "--jobs", "1", "--runs", "2", "--"]
    done = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK, *words, sys.executable, "run.py", "ends", "{n}"],
        cwd=studio.folder,
        env=studio.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "no run can start: [Errno 28] No space left on device" in done.stderr
    assert ended(studio) == [0, 1]
    assert [attempts(studio, number)[-1]["outcome"] for number in (0, 1)] == ["ended"] * 2


def test_left_training(studio):
    studio.with_card()
    code, output = finished(studio, "--jobs", "1", runs=1, act="leaves")
    assert code == 1 and "that it left were ended: 1, on the GPU: 1" in output, output


def test_a_gpu_that_is_hidden_is_refused(studio):
    studio.with_card(more=1)
    code, output = finished(studio, "--jobs", "1", "--gpus", "1", CUDA_VISIBLE_DEVICES="0")
    assert code == 2 and "CUDA_VISIBLE_DEVICES hides GPU 1" in output, output


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_runs_at_once_share_no_core(studio):
    with started(studio, "--jobs", "2", act="waits", runs=2):
        until(lambda: len(seen(studio)) == 2, lambda: "they do not run")
        (studio.folder / "go").touch()
    one, other = (set(run["cores"]) for run in seen(studio))
    assert not one & other


def supervisor(studio: Studio) -> int:
    [lock] = studio.locks.glob("*.lock")
    return json.loads(lock.read_text())["pid"]


def daemon(studio: Studio) -> int:
    pipe = Path(seen(studio)[0]["environment"]["CUDA_MPS_PIPE_DIRECTORY"])
    return int((pipe / "nvidia-cuda-mps-control.pid").read_text())


def keeper(studio: Studio) -> int:
    return psutil.Process(seen(studio)[0]["pid"]).ppid()


# Who is killed by which signal → exit code of the command, and how many attempts run 0 then has.
KILLS = [
    ("command", signal.SIGKILL, -9, 2),
    ("command", signal.SIGTERM, 130, 2),
    ("command", signal.SIGHUP, 130, 2),
    ("group", signal.SIGINT, 130, 2),
    ("supervisor", signal.SIGKILL, 1, 2),
    ("supervisor", signal.SIGTERM, 1, 2),
    ("keeper", signal.SIGKILL, 1, 2),
    ("run", signal.SIGKILL, 1, 2),
    ("daemon", signal.SIGKILL, 0, 1),
]
AFTER = ("keeper", "run", "daemon")  # of which the command goes on


@pytest.mark.parametrize(("whom", "number", "code", "count"), KILLS)
def test_whoever_is_killed_the_same_command_carries_on(studio, whom, number, code, count):
    studio.with_card()
    carry_on_after(studio, whom, number, code, count, "waits")


def test_a_run_that_heeds_the_request_to_end_is_not_done(studio):
    """And it can save its state, for which it needs its helpers and the GPU."""
    studio.with_card()
    carry_on_after(studio, "command", signal.SIGTERM, 130, 2, "heeds")
    assert len([*sweep(studio).glob("*/saved")]) == 2
    assert dropped(studio) == []


def dropped(studio: Studio) -> list[int]:
    """PIDs of clients that the MPS daemon was asked to drop while they lived."""
    [log] = sweep(studio).glob("mps-*/control.log")
    return sorted(map(int, re.findall(r"Client (\d+) is dropped, and lives", log.read_text())))


def test_a_run_that_takes_too_long_is_ended_and_dropped_by_mps_first(studio):
    studio.with_card()
    options = ("--jobs", "2", "--timeout", "20s")
    code, output = finished(studio, *options, act="waits", runs=2)
    words = "failed: 0, 1; run 0: it was ended, as it took longer than 20 s"
    assert code == 1 and words in output, output
    assert dropped(studio) == sorted(run["pid"] for run in seen(studio))
    rows = (sweep(studio) / "runs.csv").read_text().splitlines()
    assert all(",failed,1," in row and "longer than 20 s" in row for row in rows[1:])


def carry_on_after(studio: Studio, whom: str, number: int, code: int, count: int, act: str):
    with started(studio, "--jobs", "2", act=act, runs=2) as running:
        until(lambda: len(seen(studio)) == 2, lambda: running.output)
        pids = {
            "command": lambda: running.process.pid,
            "supervisor": lambda: supervisor(studio),
            "keeper": lambda: keeper(studio),
            "run": lambda: seen(studio)[0]["pid"],
            "daemon": lambda: daemon(studio),
        }
        if whom == "group":
            running.signal_group(number)
        else:
            os.kill(pids[whom](), number)
        if whom in AFTER:
            (studio.folder / "go").touch()
        assert running.end().code == code, running.output
        if code == 130:
            assert running.output.endswith("interrupted; the same command carries on\n")
    (studio.folder / "go").touch()
    ended_before = {"keeper": [1], "run": [1], "daemon": [0, 1]}.get(whom, [])
    assert ended(studio) == ended_before
    for _ in range(2):
        assert finished(studio, "--jobs", "2", act=act, runs=2)[0] == 0
        assert ended(studio) == [0, 1]
        assert len(attempts(studio, 0)) == count


def test_what_outlives_even_its_keeper_ends_with_the_next_command(studio):
    with started(studio, "--jobs", "2", act="waits", runs=2, leaves=True) as running:
        until(lambda: len(seen(studio)) == 2, lambda: running.output)
        commands = [psutil.Process(run["pid"]) for run in seen(studio)]
        keepers = [command.ppid() for command in commands]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none sees another's end
            for pid in (running.process.pid, supervisor(studio), *keepers):
                os.kill(pid, number)
    until(lambda: not any(map(is_running, commands)), lambda: "they outlive their keepers")
    (studio.folder / "go").touch()
    assert all(psutil.pid_exists(run["child"]) for run in seen(studio))
    assert finished(studio, "--jobs", "2", act="waits", runs=2)[0] == 0
    assert ended(studio) == [0, 1]


def test_mps_is_proven_and_memory_read(studio):
    studio.with_card()
    with started(studio, "--jobs", "2", act="waits", runs=2) as running:
        until(lambda: len(seen(studio)) == 2, lambda: running.output)
        assert seen(studio)[0]["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
        newest = lambda: [attempts(studio, number)[0] for number in (0, 1)]  # noqa: E731
        until(lambda: all(each["peak_memory_mb"] for each in newest()), lambda: str(newest()))
        (studio.folder / "go").touch()
    for number in (0, 1):
        [attempt] = attempts(studio, number)
        assert attempt["mps"] is True and attempt["gpu"].startswith("GPU-")
        assert attempt["peak_memory_mb"] == machine.CONTEXT_MIB


def test_separate_runs_meet_no_daemon(studio):
    studio.with_card()
    code, output = finished(studio, "--jobs", "2", "--method", "separate", runs=2)
    assert code == 0, output
    assert all(attempts(studio, number)[0]["mps"] is None for number in (0, 1))


def test_a_run_out_of_memory_is_tried_again_with_more_room(studio):
    studio.with_card()
    code, output = finished(studio, "--jobs", "3", act="memory", runs=3)
    assert code == 0, output
    first, second = attempts(studio, 1)
    assert (first["outcome"], second["outcome"]) == ("out_of_memory", "ended")
    assert len(first["slots"]) == 1 and len(second["slots"]) == 2


def test_a_fault_of_the_server_costs_no_run(studio):
    studio.with_card()
    code, output = finished(studio, "--jobs", "2", act="fault", runs=2)
    assert code == 0, output
    for number in (0, 1):
        first, second = attempts(studio, number)
        assert (first["outcome"], second["outcome"]) == ("server_fault", "ended")
        assert "the MPS server failed" in first["reason"]


def test_a_gpu_that_others_use_is_refused_in_one_line(studio, sleepers):
    studio.with_card()
    machine.occupy(studio.card, sleepers())
    code, output = finished(studio, "--jobs", "2")
    words = "GPU 0: a sweep needs the GPU to itself, and others compute on it"
    assert code == 1 and words in output and ended(studio) == [], output


def test_a_daemon_that_does_not_start_is_one_line(studio):
    studio.with_card()
    code, output = finished(studio, "--jobs", "2", FAKE_MPS="broken")
    assert code == 1 and "GPU 0: the MPS daemon did not start: " in output, output
    assert "4 runs are left; the same command carries on" in output


def test_each_gpu_has_a_supervisor(studio):
    studio.with_card(more=1)
    with started(studio, "--jobs", "1", "--gpus", "all", act="waits", runs=3) as running:
        until(lambda: len(seen(studio)) == 2, lambda: running.output)
        (studio.folder / "go").touch()
        assert running.end().code == 0, running.output
    assert len({run["environment"]["CUDA_VISIBLE_DEVICES"] for run in seen(studio)}) == 2
    assert ended(studio) == [0, 1, 2]


def test_a_fault_on_one_gpu_stops_nothing_on_others(studio):
    studio.with_card(more=1)
    with started(studio, "--jobs", "2", "--gpus", "all", act="waits", runs=5) as running:
        until(lambda: len(seen(studio)) == 4, lambda: running.output)
        gpu = attempts(studio, 0)[0]["gpu"]
        other = next(n for n in range(4) if attempts(studio, n)[0]["gpu"] != gpu)
        [server] = psutil.Process(daemon(studio)).children()
        server.kill()
        os.kill(seen(studio)[0]["pid"], signal.SIGKILL)
        until(lambda: attempts(studio, 0)[0]["outcome"], lambda: running.output)
        os.kill(seen(studio)[other]["pid"], signal.SIGKILL)  # which frees a slot
        until(lambda: len(seen(studio)) == 5, lambda: running.output)
        (studio.folder / "go").touch()
        assert running.end().code == 1, running.output
    outcomes = [[each["outcome"] for each in attempts(studio, n)] for n in range(5)]
    assert outcomes[0] == ["server_fault", "ended"] and outcomes[other] == ["failed"]
    assert sorted(map(len, outcomes)) == [1, 1, 1, 1, 2]


def test_commands_that_share_a_folder_share_the_queue(studio, tmp_path):
    """As on two machines, whose locks of devices are apart."""
    options = ("--jobs", "1", "--folder", "collocate/run-1")
    with started(studio, *options, act="waits", runs=6) as one:
        until(lambda: len(seen(studio)) == 1, lambda: one.output)
        elsewhere = str(tmp_path / "elsewhere")
        with started(
            studio, *options, act="waits", runs=6, COLLOCATION_LOCK_DIR=elsewhere
        ) as other:
            until(lambda: len(seen(studio)) == 2, lambda: one.output + other.output)
            (studio.folder / "go").touch()
            codes = {one.end().code, other.end().code}  # 1: the other one was still at work
            assert 0 in codes and codes <= {0, 1}, one.output + other.output
    assert ended(studio) == [*range(6)]
    assert {len(attempts(studio, number)) for number in range(6)} == {1}
