"""`make doctor`: a line for each thing that a study needs of a machine."""

import contextlib
import os
import re

import pytest

from collocate.app import main as collocate
from tests.fakes import machine
from workflow.collocation import gpu
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.plan import doctor
from workflow.collocation.plan.doctor import CHECKS, FAIL, OK, WARN, Doctor
from workflow.collocation.study.definition import Config
from workflow.collocation.study.errors import NotInForce


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with locks of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def card(here, monkeypatch):
    """Gives a Doctor who has found a card that is not there (tests/fakes), with these settings."""
    monkeypatch.setattr(gpu, "torch_build", lambda: "cuda")
    with contextlib.ExitStack() as stack:

        def make(**settings) -> Doctor:
            surroundings = machine.create(here / "card", **settings)
            for name, value in surroundings.items():
                monkeypatch.setenv(name, value)
            stack.enter_context(machine.installed(here / "card"))
            found = Doctor(Config(gpu="auto"))
            assert found.gpu()[0] == OK
            return found

        yield make


@pytest.mark.parametrize("broken", [False, True])
def test_a_machine_without_a_card_can_do_the_small_study(here, capsys, broken):
    """What measuring cannot do without fails, and a study that runs is not disturbed."""
    if broken:
        (here / "results").write_text("no folder")
    words = ["doctor", "--set", "gpu=cpu", "--results", str(here / "results")]
    assert collocate(words) == broken
    lines = re.sub(r"\n +", " ", capsys.readouterr().out).splitlines()
    found = {line.split()[1]: line for line in lines}
    assert tuple(found) == CHECKS and "only the study 'smoke'" in found["gpu"]
    assert found["results"].startswith(FAIL if broken else OK)
    if not broken:
        assert not list(here.glob("results/*"))
        with device_lock("cpu", {"study": "other"}, print):
            assert collocate(words) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "not tried: cpu is in use by study other" in shown


@pytest.mark.parametrize(
    ("settings", "check", "how", "words"),
    [
        ({}, "company", OK, "nobody"),
        ({"compute_mode": 2}, "company", FAIL, "lets nobody compute; an administrator"),
        ({"compute_mode": 3}, "company", WARN, "lets one process compute, not several; an admin"),
        ({}, "mps", OK, "a private daemon"),
        ({}, "mig", OK, "MIG mode is off: mig cells are refused; an administrator"),
        ({"mig": True}, "mig", WARN, "MIG mode is on"),
        ({"card": "none"}, "mig", OK, "the card has no MIG"),
        ({}, "telemetry", OK, "gpm answers"),
        ({"card": "a100_40"}, "telemetry", WARN, "plain NVML"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_card(card, settings, check, how, words):
    found, said = getattr(card(**settings), check)()
    assert found == how and words in said, said


def test_a_card_that_somebody_uses_or_whose_driver_does_not_answer(card, monkeypatch):
    found = card()
    machine.attach(os.environ)
    how, said = found.company()
    assert how == FAIL and str(os.getpid()) in said and "until they are gone" in said, said

    def silent(device):
        raise NotInForce("the NVIDIA driver does not answer")

    monkeypatch.setattr(doctor, "require_free", silent)
    assert found.company()[1].startswith("the NVIDIA driver does not answer: no cell can run")
