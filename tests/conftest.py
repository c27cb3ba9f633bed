"""What the tests of the whole command share: prepared data, device locks of their own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.studio import REPOSITORY, Studio


def pytest_configure(config):
    """Give Ctrl-C its meaning back: a shell starts background jobs with SIGINT ignored, and what
    the tests start would inherit that.
    """
    del config
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """A data folder in which the digits are prepared, so that this is paid for once."""
    folder = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "models.data", "prepare", "digits", "--root", str(folder)]
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
