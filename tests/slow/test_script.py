"""Somebody else's training script as a workload: unchanged, or with the hook."""

import contextlib
import mmap
import os
import signal
import subprocess
import sys

import psutil
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch")

from models import hook  # noqa: E402
from models.jobs.command import ScriptMember  # noqa: E402
from tests.fakes.members import script_spec  # noqa: E402
from tests.studio import REPOSITORY, SHORT, study  # noqa: E402
from workflow.collocation.member.protocol import Channel  # noqa: E402
from workflow.collocation.record.values import Telemetry, WindowTelemetry  # noqa: E402
from workflow.collocation.run.cell import gpu_unused  # noqa: E402

# A plain training script, which its author wrote for other purposes; the two lines are the last.
TRAIN = """
import argparse, numpy as np
from models.hook import step

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
parser.add_argument("--seed", type=int)
parser.add_argument("--steps", type=int, default=10**6)
parser.add_argument("--password", default="")
args = parser.parse_args()
random = np.random.default_rng(args.seed)
print("a password of", len(args.password))
x = random.standard_normal((4096, 20))
y, w = x @ random.standard_normal(20) > 0, np.zeros(20)
for i in range(args.steps):
    rows = random.integers(4096, size=args.batch)
    p = 1 / (1 + np.exp(-x[rows] @ w))
    loss = -np.log(np.where(y[rows], p, 1 - p)).mean()
    w -= 0.1 * x[rows].T @ (p - y[rows])
    step(loss=loss)
print("trained", args.steps)
"""
# As scikit-learn's own training loop does, it says a line for each pass.
PRINTS = """
import numpy as np
for i in range(1, 10**6):
    print(f"Iteration {i}, loss = {np.linalg.norm(np.ones((300, 300)) @ np.ones((300, 300))) / i}")
"""
PHRASE = "hunter" + "2 of nobody"
RUN = ["python", "train.py", "--batch", "{batch_size}", "--seed", "{seed}", "--password", PHRASE]
HOOKED = {"kind": "command", "run": RUN, "folder": "theirs", "batch_size": 64, "warmup_steps": 5}
PRINTED = {"kind": "command", "run": ["python", "-c", PRINTS], "batch_size": 1797}
PRINTED |= {"steps": r"Iteration (?P<step>\d+), loss", "warmup_steps": 5}
DIES = HOOKED | {"run": [*RUN, "--steps", 6]}  # one after the warm-up
SEEN = ("CUDA_LAUNCH_BLOCKING", "TOKEN", "NVIDIA_TF32_OVERRIDE", "OTHER", "LC_ALL")
SHELL = {name: f"{name} of the shell" for name in SEEN} | {"LC_ALL": "C"}
CHILD = (
    f"SEEN = {SEEN}"
    + """
import os, subprocess, sys, torch
from models import hook
print({name: os.environ.get(name) for name in SEEN})
import beside  # a module in the script's own folder
real, hook.step = hook.step, lambda loss: real(loss=torch.tensor(loss))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
exec(open("train.py").read())
"""
)
MEMORY = 'raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")'
MUTE = "import time; print('\\33[32mIteration\\33[0m: 1, loss = 2'); time.sleep(600)"
# Enough steps for the warm-up, done long before half of the window on a loaded machine too.
STOPS = """
import time
from models.hook import step
for _ in range(200):
    time.sleep(0.005)
    step()
time.sleep(600)
"""
ENVIRONMENT = {"environment": {"CUDA_LAUNCH_BLOCKING": 1, "TOKEN": None, "MY_KEY": PHRASE}}
CATALOGUE = {
    "hooked": HOOKED,
    "printed": PRINTED,
    "dies": DIES,
    "mute": PRINTED | {"run": ["python", "-c", MUTE], "first_step_s": 0.5},
    "stops": HOOKED | {"run": ["python", "-c", STOPS]},
    "large": HOOKED | {"run": ["python", "-c", MEMORY]},
    "family": HOOKED | ENVIRONMENT | {"run": ["python", "family.py", *RUN[2:]]},
}


@pytest.fixture(scope="module")
def measured(module_studio):
    """One study of scripts, measured, and its records by scenario."""
    ladder = {"workloads": ["hooked"], "counts": {2: ["naive"]}}
    window = SHORT | {"window_s": 0.7, "warmup_s": 0.1}
    once = {"workloads": ["family", "dies", "large", "mute"], "counts": {1: ["naive"]}}
    stops = {"workloads": ["stops"], "counts": {1: ["naive"]}, "measure": {"window_s": 8}}
    departure = {"members": {"hooked": 1, "printed": 1}, "methods": ["naive"]}
    mixes = [departure | {"measure": {"kind": "departure"}, "leaving_workload": "hooked"}]
    both = {"members": {"hooked": 1, "family": 1}, "methods": ["naive"]}
    mixes += [both | {"measure": {"kind": "completion"}, "work": {"hooked": 300, "family": 40}}]
    made = study(ladders=[ladder, once, stops], mixes=mixes, measure=window)
    studio = module_studio().write(CATALOGUE, drill=made)
    (studio.folder / "theirs").mkdir()
    (studio.folder / "theirs" / "train.py").write_text(TRAIN)
    (studio.folder / "theirs" / "family.py").write_text(CHILD)
    (studio.folder / "theirs" / "beside.py").write_text("")
    config = {"trainer": "models.train", "attempts": 1}
    run = studio.snakemake("--until", "estimate", "--keep-going", config=config, **SHELL)
    assert run.code == 0, run.output
    assert "not passed to the jobs: CUDA_LAUNCH_BLOCKING, NVIDIA_TF32_OVERRIDE" in run.output
    studio.assert_no_orphans()
    return studio, {cell.split("/")[0]: r for cell, r in studio.records().items()}


def folder(studio, record: dict):
    return studio.results / "cells" / record["cell"]["id"] / "a1"


@pytest.mark.parametrize("name", ["hooked", "printed", "family"])
def test_a_script_is_measured_alone(measured, name):
    studio, records = measured
    record = records[f"1x_{name}"]
    assert record["status"] == "completed", record["reason"]
    (member,) = record["members"]
    assert member["windows"]["window"]["samples_per_s"] > 0 and member["exit_code"] == 0
    assert len(member["starts_ns"]) == 1 and member["optimizer"] is None  # it has none of torch
    assert member["device_uuid"] is member["sm_count"] is None  # nobody else is asked for it
    assert [loss > 0.5 for loss in member["loss"]["value"][:1]] == [True] * (name != "printed")
    log = folder(studio, record) / "log/member0.log"
    assert ("Iteration 1, loss" in log.read_text()) is (name == "printed")


def test_a_script_finds_places_and_what_the_catalogue_sets_for_it(measured):
    """Of a value that is not in the catalogue the record has the name alone."""
    studio, records = measured
    record = records["1x_family"]
    log = folder(studio, record) / "log/member0.log"
    told = {"CUDA_LAUNCH_BLOCKING": "1", "TOKEN": SHELL["TOKEN"], "LC_ALL": "C"}
    assert str(dict.fromkeys(SEEN) | told) in log.read_text()
    dropped = ["CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE"]
    assert record["provenance"]["environment"]["dropped"][:2] == dropped
    assert record["spec"]["members"][0]["environment"]["TOKEN"] is None
    assert "of the shell" not in str(record)


def test_what_is_secret_in_a_command_stands_in_no_record(measured):
    """It is run as it is, from a file that is for its owner alone; and it may be renewed."""
    studio, records = measured
    [hooked, family] = (
        records[f"1x_{name}"]["spec"]["members"][0] for name in ("hooked", "family")
    )
    assert hooked["run"] == [*RUN[:-1], "***"] and family["environment"]["MY_KEY"] == "***"
    log = folder(studio, records["1x_hooked"]) / "log/member0.log"
    assert f"a password of {len(PHRASE)}" in log.read_text()
    files = [path for path in studio.results.rglob("*") if path.is_file()]
    holding = {path for path in files if PHRASE.encode() in path.read_bytes()}
    assert {path.relative_to(studio.results).parts[0] for path in holding} == {"jobs"}
    private = holding | {path for path in files if path.name == "run.json"}
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    catalogue, config = studio.folder / "workloads.yaml", {"attempts": 1}
    planned, text = studio.snakemake("--dry-run", config=config).planned, catalogue.read_text()
    catalogue.write_text(text.replace(PHRASE, "another one"))
    assert studio.snakemake("--dry-run", config=config).planned == planned
    catalogue.write_text(text)


def test_scripts_share_and_start_together_from_the_seed_that_they_are_handed(measured):
    studio, records = measured
    record = records["2x_hooked"]
    assert record["status"] == "completed", record["reason"]
    table = pq.read_table(folder(studio, record) / "steps.parquet").to_pandas()
    firsts = table.groupby("member")["tick"].min() / 1e5  # seconds
    assert abs(firsts[0] - firsts[1]) < 0.5
    assert len({member["pid"] for member in record["members"]}) == 2
    members = [*record["members"], *records["1x_hooked"]["members"]]
    losses = [member["loss"]["value"][:2] for member in members]
    assert losses[0] == losses[1] == losses[2] and losses[0][0] > 0.5


def test_one_leaves_and_work_is_done(measured):
    studio, records = measured
    departure = records["1x_hooked+1x_printed--departure"]
    assert departure["status"] == "completed", departure["reason"]
    assert [m["status"] for m in departure["members"]] == ["departed", "completed"]
    done = records["1x_family+1x_hooked--completion"]
    assert done["status"] == "completed", done["reason"]
    steps = pq.read_table(folder(studio, done) / "steps.parquet").to_pandas()
    made = steps["member"].value_counts()
    assert (made[0], made[1]) == (40, 300)


def test_a_script_that_fails_says_why(measured):
    dies, large, mute = (measured[1][f"1x_{name}"] for name in ("dies", "large", "mute"))
    assert mute["status"] == "failed" and "'Iteration: 1, loss = 2'" in mute["reason"]
    assert dies["status"] == "failed"
    assert "ended after 6 steps, before it was told to" in dies["reason"]
    assert large["status"] == "out_of_memory" and "20.00 GiB" in large["reason"]


def test_a_script_that_stops_for_good_in_its_window_fails(measured):
    record = measured[1]["1x_stops"]
    why = "member 0 (stops), window: no step in the last half of 'window'"
    assert (record["status"], record["reason"]) == ("failed", why)
    assert record["flags"] == ["stalled"] and record["windows"][0]["seconds"] > 5


def test_scripts_are_merged_and_estimated(measured):
    results = measured[0].results
    rows = pq.read_table(results / "runs.parquet").to_pandas()
    scripts = rows[(rows["scenario"] == "1x_printed") & (rows["window"] == "window")]
    assert len(scripts) == 1 and (scripts["input_mode"] == "own").all()
    assert scripts[["model", "dataset", "loss_last"]].isna().all(axis=None)
    estimates = pq.read_table(results / "estimates.parquet").to_pandas()
    assert (estimates[estimates["scenario"] == "2x_hooked"]["value"].notna()).any()


@pytest.mark.parametrize(
    ("gracts", "fails"),
    [
        ([0.0, 0.0049], True),
        ([0.0, 0.005], False),  # one of several conditions is enough
        ([0.0, None], False),  # nobody can tell
        ([], False),
    ],
)
def test_a_script_that_leaves_its_gpu_idle_trains_elsewhere(gracts, fails):
    windows = {
        str(place): WindowTelemetry(seconds=1, entities={"gpu": {"gract": gract}})
        for place, gract in enumerate(gracts)
    }
    said = gpu_unused(Telemetry(status="complete", windows=windows))
    assert ("not on its GPU" in said) if fails else said is None


def test_a_script_dies_with_the_process_that_started_it():
    printing = "import time; print('step 1\\nstep 2'); time.sleep(600)"
    spec = script_spec(".", ["python", "-c", printing], steps=r"(?P<step>\d+)")
    heard, told = os.pipe()
    if (parent := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            started = ScriptMember(spec, Channel(0, os.open(os.devnull, os.O_WRONLY), os.pipe()[0]))
            started.build()
            os.write(told, f"{started.child.pid}\n".encode())
            signal.pause()
        os._exit(1)
    os.close(told)
    with os.fdopen(heard) as pids:
        script = psutil.Process(int(pids.readline()))
    assert script.ppid() == parent and os.getpgid(script.pid) == os.getpgid(parent)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    _, alive = psutil.wait_procs([script], timeout=60)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_users_packages_are_not_hidden_by_ours(tmp_path):
    """In a script not even one named `models`; in a member those that it has not imported yet."""
    for name in ("models", "analysis"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    code = "import subprocess, sys; from models.fork_server import load_trainer; "
    code += "load_trainer('models.train'); "
    code += "import analysis; print(analysis.__file__, flush=True); "
    code += "subprocess.run([sys.executable, '-c', 'import models; print(models.__file__)'])"
    path = os.pathsep.join(map(str, [REPOSITORY, tmp_path]))  # as run/environment.py has it
    command, environment = [sys.executable, "-P", "-c", code], os.environ | {"PYTHONPATH": path}
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    theirs = [str(tmp_path / name / "__init__.py") for name in ("analysis", "models")]
    assert run.stdout.split() == theirs


def test_the_trainer_of_scripts_needs_no_torch():
    code = "import models.script, sys; models.script.preload(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)


# -- the hook --------------------------------------------------------------------------------------


def test_without_a_study_the_hook_does_nothing_and_needs_the_standard_library_alone(tmp_path):
    (tmp_path / "copied.py").write_text((REPOSITORY / "models" / "hook.py").read_text())
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from copied import step; step(); "
    code += "step(loss=1.0); print(*sys.modules)"
    command = [sys.executable, "-I", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "models"} & set(run.stdout.split()) and not run.stderr


def test_one_process_of_several_counts():
    """The first that calls step() holds the memory; the others go on unheard."""
    memory, (gate, _) = os.memfd_create("steps"), os.pipe()
    os.truncate(memory, hook.SIZE)
    code = (
        "import os; from models.hook import step\n"
        "step(loss=2.5)\n"
        "if os.fork() == 0:\n"
        "    import models.hook; models.hook._told = None; step(); os._exit(0)\n"
        "os.wait(); step()\n"
    )
    variable = {hook.VARIABLE: f"{os.getpid()} {memory} {gate}"}
    with os.fdopen(memory, "r+b") as file:
        header, times, losses = hook.views(mmap.mmap(file.fileno(), hook.SIZE))
        header[hook.LIMIT], header[hook.EVERY] = 100, 10
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=REPOSITORY, env=os.environ | variable, check=True)
        assert header[hook.DONE] == 2 and losses[0] == 2.5 and 0 < times[0] <= times[1]
        # Once it has ended, as at a restart, another goes on from there: steps are not unmade.
        subprocess.run(command, cwd=REPOSITORY, env=os.environ | variable, check=True)
        assert header[hook.DONE] == 4 and times[1] < times[2] <= times[3]


def test_a_fork_destroys_no_event_of_its_parent(tmp_path):
    """A loader's worker is forked while steps are under way; what it does to CUDA aborts it. The
    fake assumes that torch destroys an event when nothing refers to it.
    """
    code = """
import os, sys, types
class Event:
    made = os.getpid()
    def __del__(self):
        if os.getpid() != self.made: os.abort()
    def record(self): pass
    def query(self): return False
    def synchronize(self): pass
cuda = types.SimpleNamespace(Event=Event, is_initialized=lambda: True, current_device=lambda: 0)
cuda.is_current_stream_capturing = lambda: False
sys.path.insert(0, "."); from copied import step
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
for _ in range(3): step()
if (worker := os.fork()) == 0: step(); os._exit(0)
sys.exit(os.waitpid(worker, 0)[1])
"""
    (tmp_path / "copied.py").write_text((REPOSITORY / "models" / "hook.py").read_text())
    memory, (gate, _) = os.memfd_create("steps"), os.pipe()
    os.truncate(memory, hook.SIZE)
    with os.fdopen(memory, "r+b") as file:
        header, _, _ = hook.views(mmap.mmap(file.fileno(), hook.SIZE))
        header[hook.LIMIT], header[hook.EVERY], header[hook.AHEAD] = 100, 10, 10**9
        variable = {hook.VARIABLE: f"{os.getpid()} {memory} {gate}"}
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=tmp_path, env=os.environ | variable, check=True)
        assert header[hook.DONE] == 3
