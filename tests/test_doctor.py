"""`make doctor`: a line for each thing that a study needs of a machine."""

import contextlib
import os
import stat

import pytest

from tests.fakes import machine
from workflow.collocation import gpu
from workflow.collocation.gpu.lock import device_lock
from workflow.collocation.plan import doctor
from workflow.collocation.plan.doctor import FAIL, OK, WARN, Doctor
from workflow.collocation.spec.errors import NotInForce
from workflow.collocation.spec.study import Config


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with locks of its own, and a torch that was built for CUDA."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(doctor, "NOISE_S", 0.5)
    monkeypatch.setattr(doctor, "SLICE_S", 0.1)
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


def test_a_machine_without_a_card_can_do_the_small_study(here, capsys):
    assert doctor.main(["--config", "gpu=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == list(Doctor(Config()).checks())
    assert all(line.split()[0] in (OK, WARN) and len(line.split()) > 3 for line in lines), lines
    assert "slices of 0.1 s differ by" in lines[-1]
    assert not list(here.glob("results/*"))


def test_what_measuring_cannot_do_without_fails_and_the_rest_is_told(here, capsys):
    (here / "results").write_text("no folder")
    (here / "locks").mkdir()
    with device_lock("cpu", {"study": "other"}, print):
        assert doctor.main(["--config", "gpu=cpu"]) == 1
    found = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert found["disk"].startswith(FAIL) and "results" in found["disk"]
    assert found["noise"].startswith(WARN) and "in use by study other" in found["noise"]


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
    found, said = card(**settings).checks()[check]()
    assert found == how and words in said, said


def test_a_card_that_somebody_uses_or_whose_driver_does_not_answer(card, monkeypatch):
    found = card()
    machine.attach(os.environ)
    how, said = found.company()
    assert how == FAIL and str(os.getpid()) in said and "until they are gone" in said, said

    def silent(device):
        raise NotInForce("the NVIDIA driver does not answer")

    monkeypatch.setattr(doctor, "require_free", silent)
    how, said = found.company()
    assert how == FAIL and said.startswith("the NVIDIA driver") and "they" not in said, said


def test_a_daemon_that_does_not_start_costs_the_mps_cells_alone(card, here, monkeypatch):
    found = card()
    broken = here / "bin" / "nvidia-cuda-mps-control"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no rights >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=os.pathsep)
    how, said = found.mps()
    assert how == WARN and "mps cells will fail" in said and "no rights" in said, said
    monkeypatch.setenv("PATH", "/nowhere")
    assert "not on PATH" in found.mps()[1]
