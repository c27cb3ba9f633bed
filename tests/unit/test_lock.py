"""Locks: who holds one is named, who died holds none, and what cannot be locked is told."""

import errno
import json
import os
import stat
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from workflow.collocation.gpu import lock


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch) -> Path:
    """The folder of the machine's device locks."""
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    return tmp_path / "locks"


def hold(key: str = "cpu", on_wait=pytest.fail):
    return lock.device_lock(key, {"pid": 1}, on_wait)


def test_lock_files_are_for_all_users_and_opened_without_creating(locks, monkeypatch):
    before = os.umask(0o077)
    try:
        with hold():
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(locks.stat().st_mode) == 0o1777
    assert stat.S_IMODE((locks / "cpu.lock").stat().st_mode) == 0o666
    real = os.open

    def protected(path, flags, *mode):
        """As the kernel does with another user's file in a sticky folder (fs.protected_regular)."""
        if flags & os.O_CREAT and Path(path).exists():
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", protected)
    with hold():
        pass


@pytest.mark.parametrize("plant", [Path.mkdir, lambda path: path.symlink_to(__file__)])
def test_what_is_no_lock_file_is_named_with_the_way_out(locks, plant):
    with hold("other"):
        plant(locks / "cpu.lock")
    with pytest.raises(OSError) as caught, hold():
        pass
    said = str(caught.value)
    assert said.startswith(f"{locks / 'cpu.lock'} cannot be locked: ") and "\n" not in said
    assert "; remove it, or set COLLOCATION_LOCK_DIR to another folder" in said


def test_a_file_system_without_locks_is_named_with_the_way_out(tmp_path, monkeypatch):
    def refuse(fd, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    for setting in ("results", "--folder"):
        said = f"cannot be locked: No locks available; remove it, or set {setting} to another"
        with pytest.raises(OSError, match=said), lock.folder_lock(tmp_path, {}, setting):
            pass


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (json.dumps({"user": "eve\x1b[2J\u202e"}), {"user": "eve?[2J?"}),
        ('["eve"]', {}),
        ("\xff", {}),
    ],
)
def test_a_holders_words_cannot_move_the_cursor(locks, words, told):
    heard = []
    with ExitStack() as holder:
        holder.enter_context(hold())
        (locks / "cpu.lock").write_text(words, encoding="latin-1")
        with hold(on_wait=lambda other: (heard.append(other), holder.close())):
            pass
    assert heard == [told]


def test_a_started_program_does_not_inherit_the_lock():
    with hold():
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with hold():
            pass
    finally:
        child.kill()
        child.wait()
