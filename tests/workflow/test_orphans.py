"""Who ends a command, whatever the signal, ends all that it started: processes, daemons, locks."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.studio import PATIENCE, REPOSITORY, Running, Studio, alone, study, until, workload

GONE_S = 60  # on an idle machine it takes a few seconds
SNAKEMAKE = ["snakemake", "--snakefile", str(REPOSITORY / "Snakefile"), "--cores", "1"]
# Its own session, and no child of the shell's any more: as torchrun and others have their workers.
SCRIPT = f"true; setsid --wait {sys.executable} train.py"
TRAIN = """
import os, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print(os.getpid(), file=open(os.environ["PIDS"], "a"))
while True:
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
"""


COLLOCATE = [sys.executable, "-m", "collocate"]


def options(studio: Studio) -> list[str]:
    return [
        word for pair in studio.config(study=None, results="results") for word in ("--set", pair)
    ]


# Command → its words.
COMMANDS = {
    "study": lambda s: [*COLLOCATE, "study", "drill", "--no-draw", *options(s)],
    "snakemake": lambda s: [sys.executable, "-m", *SNAKEMAKE, "--config", *s.config()],
    "advise": lambda s: [
        *[*COLLOCATE, "advise", "--set", "gpu=cpu", "--results", "results"],
        *["--", "bash", "-c", SCRIPT],
    ],
    "figures": lambda s: [*COLLOCATE, "figures", "drill", *options(s)],
    "merge": lambda s: [*COLLOCATE, "merge", "elsewhere", "--study", "drill", *options(s)],
}


def pids_path(studio: Studio) -> Path:
    """Outside the folder that is covered while its script is measured."""
    return studio.folder.with_name("pids")


def pids(studio: Studio) -> set[int]:
    """Scripts' own; their environment has no mark."""
    with contextlib.suppress(OSError):
        return {*map(int, pids_path(studio).read_text().split())}
    return set()


def left(studio: Studio) -> list[psutil.Process]:
    found = studio.alive()
    for pid in pids(studio):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "train.py" in (process := psutil.Process(pid)).cmdline():
                found.append(process)
    return found


@contextlib.contextmanager
def started(studio: Studio, command: str, **environment: str):
    log = studio.folder / f"{command}.txt"
    environment = studio.environment(PIDS=str(pids_path(studio)), **environment)
    running = studio.spawn(COMMANDS[command](studio), log, environment)
    process = running.process
    try:
        yield running
        # While it cleans up it may look for who waits: a zombie parent is a parent still.
        until(lambda: process.poll() is not None, lambda: f"goes on: {running.output}", GONE_S)
        until(
            lambda: not left(studio) and not studio.held_locks(),
            lambda: f"{[p.cmdline() for p in left(studio)]} {studio.held_locks()} {running.output}",
            GONE_S,
        )
    finally:
        for process in left(studio):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        running.process.wait(PATIENCE)


def reaches(running: Running, done) -> None:
    until(lambda: done() or running.process.poll() is not None, lambda: running.output)
    assert running.process.poll() is None, running.output


def send(running: Running, to: str, name: str) -> None:
    (os.killpg if to == "group" else os.kill)(running.process.pid, signal.Signals[name])


@pytest.fixture(scope="module")
def measuring(module_studio):
    """Cells under MPS on a GPU that is not there."""
    made = module_studio().with_card()
    ladders = [{"workloads": ["plain"], "counts": {2: ["mps"]}}]
    long = {"kind": "window", "window_s": 600}
    return made.write(
        {"plain": workload()}, drill=study(ladders=ladders, measure=long, replicates=2)
    )


CELLS = [
    ("study", "process", "SIGKILL"),
    ("study", "group", "SIGHUP"),
    ("snakemake", "process", "SIGQUIT"),
]


@pytest.mark.parametrize(("command", "to", "name"), CELLS)
def test_cells_leave_nothing(measuring, command, to, name):
    logs = lambda: measuring.results.glob("cells/*/*/*/*/*/log/conductor.log")  # noqa: E731
    began = time.time_ns()
    with started(measuring, command) as running:
        reaches(
            running,
            lambda: any(
                path.stat().st_mtime_ns > began and "started:" in path.read_text()
                for path in logs()
            ),
        )
        send(running, to, name)
    assert not list(measuring.folder.glob("mps-*"))


@pytest.fixture(scope="module")
def asking(module_studio):
    pytest.importorskip("torch")
    made = module_studio()
    made.folder.mkdir()
    (made.folder / "train.py").write_text(TRAIN)
    return made


@pytest.mark.parametrize(
    ("command", "to", "name"),
    [
        ("advise", "process", "SIGKILL"),
        ("advise", "process", "SIGHUP"),
    ],
)
def test_advise_leaves_nothing(asking, command, to, name):
    before = pids(asking)
    with started(asking, command) as running:
        reaches(running, lambda: pids(asking) > before)
        send(running, to, name)


def test_a_fork_server_that_is_killed_ends_its_script_with_all_of_it(asking):
    before = pids(asking)
    with started(asking, "advise") as running:
        reaches(running, lambda: pids(asking) > before)
        running.find("models.fork_server").send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def measured(module_studio):
    made = module_studio()
    made.write({"plain": workload()}, drill=study(ladders=alone("plain")))
    assert made.measure().code == 0
    return made


@pytest.mark.parametrize(
    ("command", "to", "name"),
    [
        ("figures", "process", "SIGKILL"),
        ("merge", "process", "SIGKILL"),
    ],
)
def test_drawing_and_merging_leave_nothing(measured, tmp_path, command, to, name):
    studio = measured.copy(tmp_path / "copy")
    elsewhere = studio.folder / "elsewhere" / "results" / "drill"
    elsewhere.mkdir(parents=True)
    with started(studio, command) as running:
        # The command has become Snakemake, or works in its own process.
        busy = {"figures": lambda: running.descendants("collocate"), "merge": lambda: True}
        reaches(running, busy[command])
        send(running, to, name)
