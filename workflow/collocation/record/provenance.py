"""Where a cell was measured, with what, and when. No host name, user name or path leaves here."""

import hashlib
import os
import platform
import subprocess
import uuid
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil

from workflow.collocation import ROOT
from workflow.collocation.record.source_digest import code_digest

PACKAGES = ("torch", "torchvision", "timm", "numpy", "nvidia-ml-py", "snakemake")
DECISIVE = ("torch", "timm", "driver")  # a cell measured with another one is a mismatch


def versions(driver: str | None) -> dict[str, str | None]:
    """Versions of Python, the packages that matter and the GPU driver; null where absent."""
    found = {"python": platform.python_version(), "driver": driver}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def collect(driver: str | None, session: str | None = None, machine: str | None = None) -> dict:
    """The provenance entry of run.json; machine: its alias where none can be kept."""
    return {
        "digest": code_digest(),
        "versions": versions(driver),
        "commit": _commit(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sitting": session,  # as records have called it from the first
        "machine": machine_alias(machine),
    }


def mismatches(content: dict, digest: str, current: dict[str, str | None]) -> list[str]:
    """In what a record differs from the code and versions of today."""
    recorded = content.get("provenance", {})
    found = ["code"] if recorded.get("digest") != digest else []
    before = recorded.get("versions") or {}
    here = [name for name in DECISIVE if current.get(name)]  # a reviewer's laptop has no torch
    return found + [name for name in here if before.get(name) != current.get(name)]


def host(cores: int, cpu_quota: float | None) -> dict:
    """CPU model and memory of this machine, and the cores and CPU quota that we have."""
    found = (line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name"))
    _, _, model = next(found, "").partition(":")
    return {
        "cpu": model.strip() or platform.processor() or platform.machine(),
        "cores": cores,
        "cpu_quota": cpu_quota,
        "memory_bytes": psutil.virtual_memory().total,
    }


def machine_alias(otherwise: str | None = None) -> str:
    """A random name for this machine: from a secret made once and kept in the user's state folder.

    otherwise: its alias where nothing can be kept; without it a passing one. A home folder that
    machines share gives each of them a name of its own.
    """
    secret = _kept_secret()
    if secret is None and otherwise:
        return otherwise
    machine = "".join(_lines(Path("/etc/machine-id"))) or platform.node()
    digest = hashlib.sha256(f"{secret or _passing_secret()}/{machine}".encode()).hexdigest()
    return f"machine-{digest[:8]}"


@cache
def _passing_secret() -> str:
    return uuid.uuid4().hex


def _kept_secret() -> str | None:
    """The user's secret, made at first use; None where it cannot be kept."""
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:  # no home
        return None
    path = state / "gpu-collocation-study" / "secret"
    if found := "".join(_lines(path)[:1]).strip():
        return found
    secret = uuid.uuid4().hex
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(secret + "\n", encoding="utf-8")
    except OSError:
        return None  # a read-only home
    return secret


def _lines(path: Path) -> list[str]:
    """Of a file; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _commit() -> str | None:
    """The commit of the checkout, with '+' if the working tree differs; None without git."""
    try:
        run = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            encoding="utf-8",
            timeout=10,
            # The commit of a repository that the folder was unpacked into would say nothing.
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None if run.returncode == 0 else None


def _lines(path: Path) -> list[str]:
    """Of a file; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
