"""What the tests of the whole command share: prepared data, device locks of their own."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest

from tests.studio import REPOSITORY, Studio
from workflow.collocation import gpu

# Modules by what they take, longest first; of the others it does not matter.
LONG = ("test_command", "test_job_advice", "test_drills", "test_release", "test_counter")
LONG += ("test_serving", "test_bench", "test_steps_that_fail", "test_simulation", "test_faults")
LONG += ("test_script", "test_telemetry", "test_interleaved", "test_terminal", "test_figures")
LONG += ("test_intervals", "test_gract_lines", "test_run", "test_streams", "test_speech")
LONG += ("test_abuse", "test_answers")


# The same examples each time, without a deadline: the machine may be busy.
hypothesis.settings.register_profile(
    "patient",
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")


def pytest_configure(config):
    """Give Ctrl-C its meaning back: a shell starts background jobs with SIGINT ignored, and what
    the tests start would inherit that.
    """
    del config
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Three at a time on the two cores of CI, for many tests wait; on a GPU, which tests must have
    for themselves, in turn.
    """
    return 0 if gpu.find() else 3


def pytest_collection_modifyitems(items):
    """Long modules first: pytest-xdist gives each to one worker (`--dist loadfile`), for its tests
    share what is expensive, and so the workers end together.
    """

    def rank(item) -> int:
        return LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG)

    items.sort(key=rank)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """A data folder in which the digits are prepared, so that this is paid for once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "data"
    command = [sys.executable, "-m", "models.data", "prepare", "digits", "--root", str(folder)]
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other worker of pytest-xdist may be at it
        if not folder.exists():
            subprocess.run([*command, "--input-size", "32"], check=True, cwd=REPOSITORY)
    return folder


@pytest.fixture(scope="module")
def module_studio(tmp_path_factory, data):
    """Makes studios that live as long as the module; nothing of them may be left running."""
    made: list[Studio] = []

    def make() -> Studio:
        folder = tmp_path_factory.mktemp("studio")
        made.append(Studio(folder / "work", data, folder / "locks"))
        return made[-1]

    yield make
    for studio in made:
        studio.kill_all()


@pytest.fixture
def studio(tmp_path, data):
    """A studio for one test, which must leave no process behind."""
    made = Studio(tmp_path / "work", data, tmp_path / "locks")
    yield made
    left = [process.cmdline() for process in made.alive()]
    made.kill_all()
    assert not left


@pytest.fixture
def sleepers():
    """Starts processes that do nothing until they are ended; gives their PIDs."""
    started = []

    def start() -> int:
        process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        started.append(process)
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.communicate()
