"""A visit to a card, without one: what the visitor asks of CUDA, what is said where it fails."""

import ctypes
import stat
import sys
from types import SimpleNamespace

import psutil
import pytest

from workflow.collocation.gpu import second_context as visit


class Driver:
    """libcuda, as it answers a visitor: 0, or a code. It is assumed to name codes, as it does."""

    def __init__(self, **codes: int):
        self.codes, self.asked = codes, []

    def __getattr__(self, name: str):
        def answer(*arguments) -> int:
            self.asked.append(name)
            return self.codes.get(name, 0)

        return answer

    def cuGetErrorName(self, code: int, word) -> int:
        word._obj.value = {2: b"CUDA_ERROR_OUT_OF_MEMORY"}.get(code)
        return 0


def test_a_visitor_has_the_gpu_work_in_a_context_of_its_own():
    driver = Driver()
    visit.stay(driver)
    work = driver.asked.index("cuMemsetD8_v2")
    assert driver.asked[:2] == ["cuInit", "cuDevicePrimaryCtxRetain"]
    assert driver.asked[work + 1 :] == ["cuCtxSynchronize"]


@pytest.mark.parametrize(("code", "said"), [(2, "CUDA_ERROR_OUT_OF_MEMORY"), (999, "999")])
def test_what_goes_wrong_is_told_by_its_name(code, said):
    with pytest.raises(OSError, match=f"cuCtxSetCurrent: {said}"):
        visit.stay(Driver(cuCtxSetCurrent=code))


def test_without_cuda_there_is_a_reason_and_no_error(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    if not _there("libcuda.so.1"):
        assert "libcuda.so.1" in visit.visit({"CUDA_VISIBLE_DEVICES": "0"})


@pytest.mark.parametrize(
    ("script", "reason"),
    [("exit 0", None), ("echo first; echo last; exit 1", "last"), ("exit 7", "exit 7")],
)
def test_how_the_visitor_ends(script, reason, tmp_path, monkeypatch):
    assert visit.visit(visitor(script, tmp_path, monkeypatch)) == reason


def test_a_visitor_that_does_not_come_back_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(visit, "VISIT_S", 0.3)
    environment = visitor('echo $$ > "$MARK"; exec sleep 600', tmp_path, monkeypatch)
    assert "no end within" in visit.visit(environment)
    assert not psutil.pid_exists(int((tmp_path / "mark").read_text()))


def visitor(script: str, folder, monkeypatch) -> dict[str, str]:
    """Have a shell script stand for the visitor's Python; what it finds in its environment."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(visit, "sys", SimpleNamespace(executable=str(program), exit=sys.exit))
    return {"CUDA_VISIBLE_DEVICES": "0", "MARK": str(folder / "mark")}


def _there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
