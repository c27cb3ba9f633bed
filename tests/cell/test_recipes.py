"""Recipes: the bash script is run with stand-ins for the driver's programs.

Slurm's is submitted to a real Slurm in test_slurm.py.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from analysis.advice.recipes import SYSTEMS, Recipe, script_of
from collocate.app import main
from tests.studio import REPOSITORY, until
from workflow.collocation.process_lifetime import is_running

UUID = "GPU-5a11ab1e-0000-4000-8000-00000000cafe"  # of tests/fakes/nvidia-smi
AWKWARD = ["python", "train.py", "--name", "it's $HOME {{ x }}", '"two"\nlines', "${args}", "å"]
# A job says what it was given, and is an MPS client as tests/fakes/nvidia-cuda-mps-control has it.
JOB = """
import json, os, subprocess, sys, time
from pathlib import Path

how, job = sys.argv[1], os.environ["RECIPE_JOB"]
pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if (pipe / "clients").exists() and how != "elsewhere":
    (pipe / "clients" / str(os.getpid())).touch()
print("its log")
child, children = [sys.executable, "-c", "import time; time.sleep(600)"], []
if how == "lasts":
    children.append(subprocess.Popen(child, start_new_session=True).pid)
if how == "escapes":  # no mark in the environment; the second has no living parent besides
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    children.append(subprocess.Popen(["env", "-i", "setsid", *child], **quiet).pid)
    line = ["sh", "-c", 'env -i setsid "$@" & echo $! > orphan-$RECIPE_JOB', "sh", *child]
    subprocess.run(line, check=True)
    children.append(int(Path(f"orphan-{job}").read_text()))
served = (pipe / "control").exists()
report = {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)), "served": served}
report |= {"children": children, "pipe": str(pipe), "environment": dict(os.environ)}
Path(f"report-{job}.part").write_text(json.dumps(report))
Path(f"report-{job}.part").rename(f"report-{job}.json")
while how != "ends" and not (how == "fails" and job == "2") and not Path("end").exists():
    time.sleep(0.02)
sys.exit(3 if how == "fails" and job == "2" else 0)
"""


@pytest.fixture
def place(tmp_path):
    """A folder with the job, and a short one for temporary files, in which nothing may be left."""
    (tmp_path / "a job").mkdir()
    (tmp_path / "a job" / "job.py").write_text(JOB)
    (tmp_path / "t").mkdir()
    yield tmp_path / "a job"
    mark = f"TMPDIR={tmp_path / 't'}".encode()
    escaped = {pid for job in reports(tmp_path / "a job") for pid in job["children"]}

    def left() -> list[psutil.Process]:
        alive = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.NoSuchProcess):
                marks = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                if (mark in marks or process.pid in escaped) and is_running(process):
                    alive.append(process)
        return alive

    try:
        until(lambda: not left() and not [*(tmp_path / "t").iterdir()], lambda: str(left()), 60)
    finally:
        for process in left():
            process.kill()


@contextmanager
def started(place: Path, method: str, how: str, change=lambda text: text, jobs=2, **given):
    """The script of the recipe, running."""
    command = [sys.executable, "job.py", how]
    surroundings = given.pop("surroundings", {})
    text = made(**{"run": command, "jobs": jobs, "method": method, "folder": str(place)} | given)
    (place / "start.sh").write_text(change(text))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "OMP_", "FAKE_"))}
    path = os.pathsep.join([str(REPOSITORY / "tests" / "fakes"), os.environ["PATH"]])
    foreign = {"CUDA_MPS_PIPE_DIRECTORY": "/somebody", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
    kept |= {"PATH": path, "TMPDIR": str(place.parent / "t")} | foreign
    process = subprocess.Popen(
        ["bash", str(place / "start.sh")],
        cwd="/",
        env=kept | surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell's background jobs have SIGINT ignored, and those of nohup SIGHUP.
        preexec_fn=lambda: [
            signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGHUP)
        ],
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def finished(place: Path, *args, **given) -> tuple[int, str]:
    with started(place, *args, **given) as process:
        output = process.communicate(timeout=300)[0]
    return process.returncode, output


def reports(place: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(place.glob("report-*.json"))]


def test_jobs_under_mps_have_the_daemon_and_cores_of_their_own(place):
    cores = 1 if len(os.sched_getaffinity(0)) > 1 else None
    given = {"cores": cores, "memory_gb": 3.5}
    with started(place, "mps", "lasts", **given) as process:
        output = ""
        while not output.endswith("MPS is in force\n") and (line := process.stdout.readline()):
            output += line
        (place / "end").touch()
        output += process.communicate(timeout=300)[0]
    assert process.returncode == 0 and "ended" not in output, output
    jobs = reports(place)
    assert [job["served"] for job in jobs] == [True, True]
    for job in jobs:
        variables = job["environment"]
        assert variables["CUDA_VISIBLE_DEVICES"] == UUID
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in variables
        assert cores is None or (variables["OMP_NUM_THREADS"] == "1" and len(job["cores"]) == 1)
    assert cores is None or jobs[0]["cores"] != jobs[1]["cores"]
    assert [log.read_text() for log in place.glob("recipe-*/job-[12].log")] == ["its log\n"] * 2


def test_separate_processes_meet_no_daemon(place):
    code, output = finished(place, "naive", "ends", jobs=3)
    assert code == 0, output
    jobs = reports(place)
    assert [job["environment"]["RECIPE_JOB"] for job in jobs] == ["1", "2", "3"]
    assert [job["served"] for job in jobs] == [False] * 3
    assert all(job["pipe"].startswith(str(place.parent / "t")) for job in jobs)
    assert "OMP_NUM_THREADS" not in jobs[0]["environment"]


@pytest.mark.parametrize("method", ["naive", "mps"])
def test_a_job_that_fails_is_named_and_its_neighbour_goes_on(place, method):
    with started(place, method, "fails") as process:
        until(lambda: len(reports(place)) == 2, lambda: str(process.poll()))
        until(lambda: not psutil.pid_exists(reports(place)[1]["pid"]), lambda: "job 2 lives")
        assert process.poll() is None
        (place / "end").touch()
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 3
    assert "job 2 ended with status 3" in output and "job 1 ended with" not in output


CODES = {"SIGINT": 130, "SIGQUIT": 131, "SIGTERM": 143, "SIGHUP": 129, "SIGKILL": -9}


@pytest.mark.parametrize(("method", "how"), [("naive", "escapes"), ("mps", "lasts")])
@pytest.mark.parametrize("sent", CODES)
def test_a_signal_ends_all_of_it(place, method, how, sent):
    with started(place, method, how) as process:
        until(lambda: len(reports(place)) == 2, lambda: str(process.poll()))
        # A terminal sends it to the whole group, others to the script.
        (os.killpg if sent == "SIGINT" else os.kill)(process.pid, signal.Signals[sent])
        process.wait(timeout=300)
    assert process.returncode == CODES[sent]


def test_a_second_script_overwrites_nothing(place):
    for _ in range(2):
        code, output = finished(place, "naive", "ends")
        assert code == 0, output
    assert len({*place.glob("recipe-*/job-1.log")}) == 2


# What the process may use; the threads of its cores; jobs, cores of each → CPUs of each.
SHARED = {(0, 3), (1, 4), (2, 5)}
SPLITS = [
    ("0-7,64-71", {(i, i + 64) for i in range(8)}, 2, 8, ["0-3,64-67", "4-7,68-71"]),
    ("0,1,12,13", {(0, 12), (1, 13)}, 2, 2, ["0,12", "1,13"]),
    ("0-3", {(0, 1), (2, 3)}, 2, 1, ["0", "2"]),
    ("0-2", {(0, 1), (2, 3)}, 2, 1, ["0", "2"]),
    ("0-3", set(), 2, 2, ["0-1", "2-3"]),
    ("0-5", SHARED, 2, 3, ["0,1,3", "2,4,5"]),
]


def numbers(text: str) -> set[int]:
    """Of '0-2,7'."""
    parts = (part.split("-") for part in text.split(","))
    return {n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)}


@pytest.mark.parametrize(("usable", "threads", "jobs", "cores", "expected"), SPLITS)
def test_no_two_jobs_are_on_one_physical_core(place, usable, threads, jobs, cores, expected):
    status, topology, fakes = (place.parent / name for name in ("status", "cpu", "fakes"))
    status.write_text(f"Name:\tx\nCpus_allowed_list:\t{usable}\n")
    for core in threads:
        for cpu in core:
            folder = topology / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True)
            form = "{}-{}" if core[1] == core[0] + 1 else "{},{}"  # as the kernel writes it
            (folder / "thread_siblings_list").write_text(form.format(*core) + "\n")
    fakes.mkdir()
    (fakes / "taskset").write_text('#!/bin/sh\necho "$2" > cpus-$RECIPE_JOB; shift 2; exec "$@"\n')
    (fakes / "taskset").chmod(0o755)

    def elsewhere(text: str) -> str:
        stand_ins = {"/proc/self/status": status, "/sys/devices/system/cpu": topology}
        for real, stand_in in stand_ins.items():
            assert real in text
            text = text.replace(real, str(stand_in))
        return text.replace("set -euo pipefail\n", f"set -euo pipefail\nPATH={fakes}:$PATH\n")

    code, output = finished(place, "naive", "ends", elsewhere, jobs=jobs, cores=cores)
    assert code == 0, output
    given = [numbers((place / f"cpus-{job}").read_text()) for job in range(1, jobs + 1)]
    assert given == [numbers(text) for text in expected]
    assert ("share physical cores" in output) == (threads is SHARED)


WARNING = {"FAKE_SMI_TAIL": "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"}


@pytest.mark.parametrize("more", [{}, {"FAKE_SMI_CODE": "14"}, {"FAKE_SMI_FREE": "[N/A]"}])
def test_of_what_nvidia_smi_says_only_a_value_counts(place, more):
    given = {"surroundings": WARNING | more, "memory_gb": 1.2}
    code, output = finished(place, "naive", "ends", **given)
    assert code == 0 and ("unknown, not checked" in output) == ("FAKE_SMI_FREE" in more), output
    assert {job["environment"]["CUDA_VISIBLE_DEVICES"] for job in reports(place)} == {UUID}


def test_mps_that_is_not_in_force_ends_all_of_it(place):
    def hurried(text: str) -> str:
        assert "patience=120" in text
        return text.replace("patience=120", "patience=1")

    code, output = finished(place, "mps", "elsewhere", hurried)
    assert code == 1 and re.search(r"not in force.* job 1 2", output), output


def test_a_job_that_ended_before_it_was_seen_is_named(place):
    (place / "end").touch()
    code, output = finished(place, "mps", "elsewhere", jobs=1)
    assert code == 0 and "job 1 ended before the daemon listed it" in output


@pytest.mark.parametrize(
    ("given", "surroundings", "words"),
    [
        ({"method": "mps"}, {"FAKE_MPS": "broken"}, "no MPS daemon.*not permitted"),
        ({"method": "naive"}, {"CUDA_VISIBLE_DEVICES": "7"}, "no GPU 7: No devices"),
        ({"method": "naive", "memory_gb": 50}, {}, "need 95368 MiB.*80000 MiB free"),
        ({"method": "naive", "cores": 5000}, {}, "need 10000; this process may use"),
        ({"method": "naive", "folder": "/proc"}, {}, "mktemp: .*/proc/recipe-"),
    ],
)
def test_what_the_machine_lacks_is_one_line_before_a_job_starts(place, given, surroundings, words):
    code, output = finished(place, how="ends", surroundings=surroundings, **given)
    assert code == 1 and re.search(words, output), output
    assert reports(place) == []


# -- the texts -------------------------------------------------------------------------------------


def made(system: str = "bash", **given) -> str:
    whole = {"run": AWKWARD, "jobs": 3, "method": "mps", "folder": "/a job"}
    return script_of(Recipe(**(whole | given)), system)


def header(text: str) -> dict[str, str]:
    """What sbatch reads: it stops at the first line that is a command."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    matches = (re.fullmatch(r"#SBATCH --([\w-]+)=(\S+)", line) for line in lines[:first])
    return dict(match.groups() for match in matches if match)


def test_slurm_gives_one_allocation_to_all_jobs():
    asked = {"nodes": "1", "ntasks": "1", "cpus-per-task": "6", "gres": "gpu:1"}
    assert asked.items() <= header(made("slurm", cores=2)).items()
    assert header(made("slurm"))["cpus-per-task"] == "3"


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("method", ["separate", "mps"])
def test_scripts_are_bash(system, method):
    text = made(system, method=method, cores=2, memory_gb=1.5)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    if shutil.which("shellcheck"):  # which does not see that traps use functions
        checker = ["shellcheck", "--shell=bash", "--exclude=SC2317,SC2329,SC2016", "-"]
        checked = subprocess.run(checker, input=text, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stdout


# -- what is asked for -----------------------------------------------------------------------------

ASKED = ["recipe", "--jobs", "2", "--method", "mps"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*ASKED, "--system", "ray", "x"], "--system.*'ray'.*bash.*slurm"),
        (["recipe", "--jobs", "2", "--method", "mig", "x"], "--method.*'mig'.*separate.*mps"),
        (["recipe", "--jobs", "49", "--method", "mps", "x"], "jobs.* 48, got 49"),
        ([*ASKED, "--cores", "-1", "x"], "--cores"),
        ([*ASKED, "--memory", "nan", "x"], "--memory"),
        (ASKED, "COMMAND"),
        (["recipe", "x"], "--jobs and --method"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments, words, capsys):
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert re.search(words, shown.err) and shown.err.count("\n") == 1 and not shown.out


ADVICE = {"run": ["python", "t.py"], "folder": "/tmp", "jobs": 2, "method": "mps"}
ADVICE |= {"cores": 1, "memory_gb": 1.0, "verdict": "Run 2 jobs under MPS."}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", "has no keys; allowed: run, folder, jobs"),
        ('{"jobs": 2}', "it says of no job how to start it"),
        ({"cores": 1_000_000_000}, "cores: "),
        ({"folder": ["a"]}, "folder: "),
        ({"folder": "/a\n$(touch x)"}, "folder: "),
        ({"jobs": 1_000_000}, "jobs: "),
        ({"jobs": 2.5}, "jobs: .*2.5"),
        ({"jobs": True}, "jobs: "),
        ({"jobs": "2; touch x"}, "jobs: .*'2; touch x'"),
        ({"method": 3}, "method: .*separate.*mps.*3"),
        ({"memory_gb": float("nan")}, "memory_gb: .*nan"),
        ({"memory_gb": 1e300}, "memory_gb: "),
        ({"run": [1, 2]}, "run.0: .*1"),
        ({"run": ["x\0y"]}, "run.0: "),
        ({"run": "touch x"}, "run: allowed: a list"),
        ({"run": []}, "run: "),
    ],
)
def test_an_advice_edited_by_hand_is_one_line(tmp_path, capsys, text, words):
    file = tmp_path / "advice.json"
    file.write_text(text if isinstance(text, str) else json.dumps(ADVICE | text))
    assert main(["recipe", str(file)]) == 1
    shown = capsys.readouterr()
    assert re.match(f"{re.escape(str(file))}: {words}", shown.err), shown.err
    assert shown.err.count("\n") == 1 and not shown.out


COMMAND = ["python", "train.py", "--lr", "0.1", "--name", "a b"]


def test_a_recipe_of_a_command(tmp_path):
    words = ["--jobs", "2", "--cores", "1", "--method"]
    text = typed(tmp_path, "--system", "slurm", *words, "mps", "--", *COMMAND)
    assert "train.py --lr 0.1 --name 'a b' >" in text and f"cd {tmp_path}\n" in text
    assert header(text)["cpus-per-task"] == "2"
    for method in ("mps", "separate"):
        text = typed(tmp_path, *words, method, "--", *COMMAND)
        given = {"run": COMMAND, "jobs": 2, "cores": 1, "folder": str(tmp_path)}
        assert text == made(method=method, **given)


def test_a_recipe_of_an_advice_needs_nothing_else(tmp_path):
    file = tmp_path / "advice.json"
    advice = ADVICE | {"folder": str(tmp_path), "jobs": 3, "method": "naive", "memory_gb": 1.5}
    file.write_text(json.dumps(advice))
    assert typed(tmp_path, str(file)) == made(**advice)
    file.write_text(json.dumps(advice | {"card": "CPU"}))
    assert "# Advised on a CPU" in typed(tmp_path, str(file))


def typed(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "collocate", "recipe", *words]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_secrets_of_an_advice_come_from_the_private_file_beside_it(tmp_path, capfd):
    """Its owner alone reads the script that is made."""
    file, script = tmp_path / "advice.json", tmp_path / "start.sh"
    file.write_text(json.dumps(ADVICE | {"run": ["python", "t.py", "--token", "***"]}))
    for token, code in (["abc"], 0), ([], 1):
        (tmp_path / "command.json").write_text(json.dumps(["python", "t.py", "--token", *token]))
        with script.open("w") as output:
            command = [sys.executable, "-m", "collocate", "recipe", file]
            assert subprocess.call(command, cwd=REPOSITORY, stdout=output) == code
        assert ("t.py --token" + " abc" in script.read_text()) is (code == 0)
    assert "has not its command" in capfd.readouterr().err
    assert script.stat().st_mode & 0o777 == 0o700
