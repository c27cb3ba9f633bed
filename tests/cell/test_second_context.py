"""A second CUDA context, without a GPU: what is asked of CUDA, and what is said where it fails."""

from types import SimpleNamespace

import psutil
import pytest

from workflow.collocation.gpu import second_context


class Driver:
    """libcuda, as it answers: 0, or a code. It is assumed to name codes, as it does."""

    def __init__(self, **codes: int):
        self.codes = codes

    def __getattr__(self, name: str):
        return lambda *arguments: self.codes.get(name, 0)

    def cuGetErrorName(self, code: int, word) -> int:
        word._obj.value = {2: b"CUDA_ERROR_OUT_OF_MEMORY"}.get(code)
        return 0


@pytest.mark.parametrize(("code", "said"), [(2, "CUDA_ERROR_OUT_OF_MEMORY"), (999, "999")])
def test_what_goes_wrong_is_told_by_its_name(code, said):
    with pytest.raises(OSError, match=f"cuCtxSetCurrent: {said}"):
        second_context.use_device(Driver(cuCtxSetCurrent=code))


@pytest.mark.parametrize(
    ("script", "reason"),
    [("exit 0", None), ("echo first; echo last; exit 1", "last"), ("exit 7", "exit 7")],
)
def test_how_the_process_ends(script, reason, tmp_path, monkeypatch):
    assert second_context.second_context(program(script, tmp_path, monkeypatch)) == reason


def test_a_process_that_does_not_come_back_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(second_context, "TIMEOUT_S", 0.3)
    environment = program('echo $$ > "$MARK"; exec sleep 600', tmp_path, monkeypatch)
    assert "no end within" in second_context.second_context(environment)
    assert not psutil.pid_exists(int((tmp_path / "mark").read_text()))


def program(script: str, folder, monkeypatch) -> dict[str, str]:
    """Have a shell script stand for the process's Python; what it finds in its environment."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(second_context, "sys", SimpleNamespace(executable=str(path)))
    return {"CUDA_VISIBLE_DEVICES": "0", "MARK": str(folder / "mark")}
