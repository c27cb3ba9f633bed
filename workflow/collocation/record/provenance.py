"""Where a cell was measured, with what, and when. No host name, user name or path leaves here."""

import hashlib
import os
import platform
import subprocess
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

from workflow.collocation import ROOT
from workflow.collocation.study.regular_files import read_text

PACKAGES = ("torch", "torchvision", "timm", "numpy", "nvidia-ml-py", "snakemake")
PACKAGES += ("tensorsocket", "peft", "transformers")
DECISIVE = ("torch", "timm", "driver")  # a cell measured with another one is a mismatch


def package_versions(driver: str | None) -> dict[str, str | None]:
    """Versions of Python, the packages that matter and the GPU driver; null where absent."""
    found = {"python": platform.python_version(), "driver": driver}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def collect_provenance(driver: str | None, code: str, session: str | None = None) -> dict:
    """The provenance entry of run.json; code: its digest."""
    return {
        "digest": code,
        "versions": package_versions(driver),
        "commit": _commit(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "session": session,  # as records have called it from the first
        "machine": machine_alias(),
    }


def mismatches(recorded: dict, digest: str, current: dict[str, str | None]) -> list[str]:
    """In what a record, by its provenance, differs from the code and versions of today."""
    found = ["code"] if recorded.get("digest") != digest else []
    before = recorded.get("versions") or {}
    here = [name for name in DECISIVE if current.get(name)]  # a reviewer's laptop has no torch
    return found + [name for name in here if before.get(name) != current.get(name)]


def describe_host(cores: int, cpu_quota: float | None) -> dict:
    """CPU model and memory of this machine, and the cores and CPU quota that we have."""
    told = _text(Path("/proc/cpuinfo")).partition("model name")[2].partition("\n")[0]
    return {
        "cpu": told.strip("\t :") or platform.processor() or platform.machine(),
        "cores": cores,
        "cpu_quota": cpu_quota,
        "memory_bytes": psutil.virtual_memory().total,
    }


def machine_alias() -> str:
    """A random name for this machine, by a secret kept in the user's state folder, which machines
    may share; where nothing can be kept, a name until the machine is started again.
    """
    state = os.environ.get("XDG_STATE_HOME") or Path(os.environ.get("HOME") or "/", ".local/state")
    path = Path(state, "gpu-collocation-study", "secret")
    if not _text(path):
        own = path.with_name(f"secret.{os.getpid()}")
        with suppress(OSError):  # home may be read-only
            path.parent.mkdir(parents=True, exist_ok=True)
            own.write_text(uuid.uuid4().hex + "\n", encoding="utf-8")
            if path.exists():  # empty, as a full disk leaves it
                own.replace(path)
            else:
                path.hardlink_to(own)  # only the first of several does
        with suppress(OSError):
            own.unlink(missing_ok=True)
    secret = _text(path) or _text(Path("/proc/sys/kernel/random/boot_id"))
    machine = _text(Path("/etc/machine-id")) or platform.node()
    return f"machine-{hashlib.sha256(f'{secret}/{machine}'.encode()).hexdigest()[:8]}"


def _commit() -> str | None:
    """The commit of the checkout, with '+' if the working tree differs; None without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"]
    # The commit of a repository that the folder was unpacked into would say nothing.
    surroundings = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
            check=True,
            env=surroundings,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()


def _text(path: Path) -> str:
    """Of a file; nothing where it cannot be read."""
    try:
        return read_text(path).strip()
    except OSError:
        return ""
