"""What a copy of a script sees of the folder where it runs: what it writes there is its own.

An overlay lies over the folder, at the same path, for the processes of the script alone: they are
in a mount namespace. Where the kernel allows none, the script runs in a real copy of the folder.
"""

import ctypes
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from workflow.collocation.member.spec import ScriptSpec

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 1 << 18, 2
LIBC = ctypes.CDLL(None, use_errno=True)


class View:
    """The view of one copy of a script; a new one for each of its runs.

    user_namespace: whether the script is in one. From there, it may not look into our /proc/PID.
    """

    def __init__(self, job: ScriptSpec):
        self.spec, self.folder = job.view, Path(job.working_folder).resolve()
        self.user_namespace = bool(self.spec and self.spec.user_namespace)

    def begin_run(self) -> Path:
        """Remove what the last run wrote; returns the folder where the script now runs."""
        if self.spec is None:
            return self.folder
        scratch = Path(self.spec.scratch)
        remove(scratch)
        scratch.mkdir(parents=True)
        self.layers = []
        if self.spec.kind == "copy":
            self.copy = scratch / self.folder.name
            copy_folder(self.folder, self.copy, self.spec.left_out)
            return self.copy
        for number, place in enumerate(self.spec.places):
            upper, work = scratch / f"upper{number}", scratch / f"work{number}"
            upper.mkdir()
            work.mkdir()
            shutil.copymode(place, upper)
            self.layers.append((place, upper, work))
        return self.folder

    def program(self, word: str) -> str:
        """The program to start: that of the copy, if it lies in the folder of which that is one."""
        if self.spec is None or self.spec.kind != "copy" or "/" not in word:
            return word
        original = self.folder / word
        inside = os.path.relpath(original, self.folder)
        copied = self.copy / inside
        return str(original if inside.startswith("..") or not copied.exists() else copied)

    def enter(self) -> None:
        """Lay the overlays over their folders for this process, between its fork and its exec.

        Raises OSError where the kernel does not allow it.
        """
        if self.spec is None or self.spec.kind == "copy":
            return
        user, group = os.geteuid(), os.getegid()
        _call(LIBC.unshare, CLONE_NEWNS | (CLONE_NEWUSER if self.user_namespace else 0))
        if self.user_namespace:  # in which it remains the same user
            for name, text in (("setgroups", "deny"), ("uid_map", user), ("gid_map", group)):
                line = text if text == "deny" else f"{text} {text} 1"
                Path("/proc/self", name).write_text(line)
        _call(LIBC.mount, None, b"/", None, MS_REC | MS_PRIVATE, None)
        # Opened before any is covered; and a descriptor has no comma or colon, as a path may.
        lowers = [os.open(place, os.O_PATH | os.O_DIRECTORY) for place, _, _ in self.layers]
        attributes = "userxattr" if self.user_namespace else "redirect_dir=on"
        for lower, (place, upper, work) in zip(lowers, self.layers, strict=True):
            options = f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work},{attributes}"
            _call(LIBC.mount, b"overlay", os.fsencode(place), b"overlay", 0, options.encode())
            os.close(lower)
        os.chdir(self.folder)


def _call(function, *arguments) -> None:
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def mounts() -> list[Path]:
    """Where file systems are mounted, as this process sees them."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").strip()
    points = [line.split(" ")[4] for line in lines.split("\n")]
    return [Path(re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), point)) for point in points]


def mounts_below(folder: Path) -> list[Path]:
    real = Path(os.path.realpath(folder))
    return [mount for mount in mounts() if real in mount.parents]


def entries_of(folder: Path, left_out: Sequence[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """All files and folders below a folder, also behind links; each folder before its content.

    left_out: paths of folders that are not looked into.
    """
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if str(Path(parent, name)) not in left_out]
        for path in (Path(parent, name) for name in (*folders, *files)):
            with suppress(OSError):  # a link that leads nowhere
                yield path, path.stat()


def copy_folder(folder: Path, target: Path, left_out: Sequence[str]) -> None:
    """Copy what can be read of a folder: files with their times, of links what they lead to."""
    target.mkdir()
    for path, status in entries_of(folder, left_out):
        copied = target / path.relative_to(folder)
        if stat.S_ISDIR(status.st_mode):
            copied.mkdir()
        elif stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK):
            shutil.copy2(path, copied)


def remove(folder: Path) -> None:
    """Remove a folder of views, if it exists, whatever the modes of the folders in it.

    What a script has mounted in it is somebody's: it is unmounted first, or the folder stays.
    """
    if folder.is_symlink():
        return
    for mount in sorted(mounts_below(folder), reverse=True):
        LIBC.umount2(os.fsencode(mount), MNT_DETACH)
    if mounts_below(folder):
        return
    for parent, names, _ in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
