"""Recipes: the bash script is run with stand-ins for the driver's programs, the others are parsed.

Slurm's is submitted to a real Slurm in test_slurm.py.
"""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from analysis.__main__ import main
from analysis.recipes import SYSTEMS, recipe
from tests.studio import REPOSITORY, until

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
child = [sys.executable, "-c", "import time; time.sleep(600)"]
if how == "lasts":
    subprocess.Popen(child, start_new_session=True)
served = (pipe / "control").exists()
said = {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)), "served": served}
said["pipe"] = str(pipe)
Path(f"said-{job}.part").write_text(json.dumps(said | {"environment": dict(os.environ)}))
Path(f"said-{job}.part").rename(f"said-{job}.json")
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
    left = []
    for process in psutil.process_iter():
        try:
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                left.append(process)
        except OSError:
            continue
    for process in left:
        process.kill()
    assert not left and not list((tmp_path / "t").iterdir())


@contextmanager
def started(place: Path, method: str, how: str, change=lambda text: text, jobs=2, **given):
    """The script of the recipe, running."""
    command = [sys.executable, "job.py", how]
    surroundings = given.pop("surroundings", {})
    text = recipe("bash", command, jobs, method, folder=str(place), **given)
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
        output = process.communicate(timeout=60)[0]
    return process.returncode, output


def said(place: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(place.glob("said-*.json"))]


def test_jobs_under_mps_have_the_daemon_and_cores_of_their_own(place):
    cores = 1 if len(os.sched_getaffinity(0)) > 1 else None
    given = {"cores": cores, "memory_gb": 3.5}
    with started(place, "mps", "lasts", **given) as process:
        output = ""
        while not output.endswith("MPS is in force\n") and (line := process.stdout.readline()):
            output += line
        (place / "end").touch()
        output += process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "ended" not in output, output
    jobs = said(place)
    assert [job["served"] for job in jobs] == [True, True]
    for job in jobs:
        found = job["environment"]
        assert found["CUDA_VISIBLE_DEVICES"] == UUID
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in found
        assert cores is None or (found["OMP_NUM_THREADS"] == "1" and len(job["cores"]) == 1)
    assert cores is None or jobs[0]["cores"] != jobs[1]["cores"]
    logs = [place / "job-1.log", place / "job-2.log"]
    assert [log.read_text() for log in logs] == ["its log\n"] * 2


def test_separate_processes_meet_no_daemon(place):
    code, output = finished(place, "naive", "ends", jobs=3)
    assert code == 0, output
    jobs = said(place)
    assert [job["environment"]["RECIPE_JOB"] for job in jobs] == ["1", "2", "3"]
    assert [job["served"] for job in jobs] == [False] * 3
    assert all(job["pipe"].startswith(str(place.parent / "t")) for job in jobs)
    assert "OMP_NUM_THREADS" not in jobs[0]["environment"]


@pytest.mark.parametrize("method", ["naive", "mps"])
def test_a_job_that_fails_is_named_and_its_neighbour_goes_on(place, method):
    with started(place, method, "fails") as process:
        until(lambda: len(said(place)) == 2, lambda: str(process.poll()))
        until(lambda: not psutil.pid_exists(said(place)[1]["pid"]), lambda: "job 2 lives")
        assert process.poll() is None
        (place / "end").touch()
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 3
    assert "job 2 ended with status 3" in output and "job 1 ended with" not in output


@pytest.mark.parametrize("method", ["naive", "mps"])
@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_ends_all_of_it(place, method, sent, code):
    with started(place, method, "lasts") as process:
        until(lambda: len(said(place)) == 2, lambda: str(process.poll()))
        # A terminal sends it to the whole group, others to the script.
        (os.killpg if sent == "SIGINT" else os.kill)(process.pid, signal.Signals[sent])
        process.communicate(timeout=60)
    assert process.returncode == code


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
    ],
)
def test_what_the_machine_lacks_is_one_line_before_a_job_starts(place, given, surroundings, words):
    code, output = finished(place, how="ends", surroundings=surroundings, **given)
    assert code == 1 and re.search(words, output), output
    assert said(place) == []


# -- the other systems ---------------------------------------------------------------------------


def made(system: str, **given) -> str:
    whole = {"command": AWKWARD, "jobs": 3, "method": "mps", "cores": 2, "folder": "/a job"}
    return recipe(system, **(whole | given))


def header(text: str) -> dict[str, str]:
    """What sbatch reads: it stops at the first line that is a command."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    found = (re.fullmatch(r"#SBATCH --([\w-]+)=(\S+)", line) for line in lines[:first])
    return dict(match.groups() for match in found if match)


def test_slurm_gives_one_allocation_to_all_jobs():
    asked = {"nodes": "1", "ntasks": "1", "cpus-per-task": "6", "gres": "gpu:1"}
    assert asked.items() <= header(made("slurm")).items()
    assert header(made("slurm", cores=None))["cpus-per-task"] == "3"


@pytest.mark.parametrize("system", [each for each in SYSTEMS if each != "kubernetes"])
@pytest.mark.parametrize("method", ["naive", "mps"])
def test_scripts_are_bash(system, method):
    text = made(system, method=method, memory_gb=1.5)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    if shutil.which("shellcheck"):  # which does not see that traps use functions
        checker = ["shellcheck", "--shell=bash", "--exclude=SC2317,SC2016", "-"]
        checked = subprocess.run(checker, input=text, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("system", ["ray", "optuna"])
def test_programs_in_scripts_are_python_and_run_the_command(system):
    [program] = re.findall(r"<<'PYTHON'\n(.*?)^PYTHON$", made(system), re.M | re.S)
    tree = ast.parse(program)
    [command] = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "COMMAND"
    )
    assert command == AWKWARD


@pytest.mark.parametrize("jobs", [1, 3, 7])
def test_ray_runs_all_jobs_at_once_on_one_gpu(jobs):
    text = made("ray", jobs=jobs)
    share = float(re.search(r'"gpu": ([\d.]+)', text)[1])
    assert jobs * share <= 1 < (jobs + 1) * share
    assert f"max_concurrent_trials={jobs}" in text


@pytest.mark.parametrize(("method", "sharing"), [("mps", "mps"), ("naive", "timeSlicing")])
def test_kubernetes_has_a_config_of_the_device_plug_in_and_a_job(method, sharing):
    text = made("kubernetes", method=method, memory_gb=2)
    config, job = yaml.safe_load_all(text)
    assert (config["apiVersion"], config["kind"]) == ("v1", "ConfigMap")
    [inner] = config["data"].values()
    resources = [{"name": "nvidia.com/gpu", "replicas": 3}]
    expected = {"version": "v1", "sharing": {sharing: {"resources": resources}}}
    assert yaml.safe_load(inner) == expected
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["spec"]["parallelism"] == job["spec"]["completions"] == 3
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert list(pod["nodeSelector"].values()) == list(config["data"])
    [container] = pod["containers"]
    assert container["command"] == AWKWARD and container["workingDir"] == "/a job"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1, "cpu": 2}
    assert container["env"] == [{"name": "OMP_NUM_THREADS", "value": "2"}]


# -- what is asked for -----------------------------------------------------------------------------

ASKED = ["recipe", "--jobs", "2", "--method", "mps"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*ASKED, "--system", "pbs", "--run", "x"], "'pbs'.*bash, slurm, kubernetes, ray"),
        (["recipe", "--jobs", "2", "--method", "mig", "--run", "x"], "'mig'.*separate, mps"),
        (["recipe", "--jobs", "0", "--method", "mps", "--run", "x"], "jobs 0"),
        ([*ASKED, "--cores", "-1", "--run", "x"], "cores -1"),
        ([*ASKED, "--memory-gb", "nan", "--run", "x"], "memory_gb nan"),
        (ASKED, "no command"),
        ([*ASKED, "--system", "ray", "--run", "cd x && y"], "ray.*needs no shell"),
        (["recipe", "--run", "x"], "JOBS=4 METHOD=mps"),
        (["recipe", "--advice", "/none.json"], "/none.json"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments, words, capsys):
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert re.search(words, said.err) and said.err.count("\n") == 1 and not said.out


def test_a_file_that_is_no_advice_is_one_line(tmp_path, capsys):
    file = tmp_path / "advice.json"
    for text, words in (('{"jobs": 2}', "lacks run, folder, method"), ("{", "advice.json")):
        file.write_text(text)
        assert main(["recipe", "--advice", str(file)]) == 1
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


def test_make_recipe(tmp_path):
    words = ["JOBS=2", "METHOD=mps", "CORES=1", f"FOLDER={tmp_path}"]
    words += ["RUN=python train.py --lr 0.1 --name 'a b'"]
    made = make("SYSTEM=slurm", *words)
    assert "train.py --lr 0.1 --name 'a b' >" in made and f"cd {tmp_path}\n" in made
    assert header(made)["cpus-per-task"] == "2"
    command = ["python", "train.py", "--lr", "0.1", "--name", "a b"]
    assert make(*words) == recipe("bash", command, 2, "mps", cores=1, folder=str(tmp_path))
    line = "cd 'a b' && echo \"$HOME\" > x"
    for method in ("separate", "naive"):
        made = make("JOBS=2", f"METHOD={method}", f"FOLDER={tmp_path}", f"RUN={line}")
        assert made == recipe("bash", ["bash", "-c", line], 2, "separate", folder=str(tmp_path))


def test_make_recipe_of_an_advice_needs_nothing_else(tmp_path):
    file = tmp_path / "advice.json"
    advice = {"run": ["python", "train.py"], "folder": str(tmp_path), "jobs": 3, "method": "naive"}
    file.write_text(json.dumps(advice | {"cores": 1, "memory_gb": 1.5}))
    given = {"cores": 1, "memory_gb": 1.5, "folder": str(tmp_path)}
    expected = recipe("bash", advice["run"], 3, "naive", **given)
    assert make(f"ADVICE={file}") == make(f"ADVICE={file}", "RUN=") == expected


def test_the_secrets_of_an_advice_come_from_its_catalogue(tmp_path, capfd):
    """Which its owner alone reads, as the script that is made."""
    file, plan = tmp_path / "advice.json", tmp_path / "plan"
    advice = {"run": ["python", "t.py", "--token", "***"], "folder": ".", "jobs": 2, "cores": None}
    file.write_text(json.dumps(advice | {"method": "naive", "memory_gb": None}))
    made, command = tmp_path / "start.sh", [sys.executable, "-m", "analysis", "recipe"]

    def script() -> int:
        with made.open("w") as output:
            return subprocess.call([*command, "--advice", file], cwd=REPOSITORY, stdout=output)

    plan.mkdir()
    for token, code in (["abc"], 0), ([], 1):
        job = {"kind": "command", "batch_size": 1, "run": [*advice["run"][:3], *token]}
        (plan / "workloads.yaml").write_text(json.dumps({"t": job}))
        assert script() == code
        assert ("t.py --token abc" in made.read_text()) is (code == 0)
    assert re.search("another command; give RUN, JOBS", capfd.readouterr().err)
    assert made.stat().st_mode & 0o777 == 0o700


def make(*words: str) -> str:
    command = ["make", "-s", f"PYTHON={sys.executable}", "VENV=", "recipe", *words]
    made = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return made.stdout
