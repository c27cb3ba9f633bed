"""Where a cell was measured, with what, and when. No host name, user name or path leaves here."""

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

from workflow.collocation import ROOT
from workflow.collocation.digest import code_digest

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


def collect(driver: str | None, session: str | None = None) -> dict:
    """The provenance entry of run.json."""
    return {
        "digest": code_digest(),
        "versions": versions(driver),
        "commit": _commit(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sitting": session,  # as records have called it from the first
        "machine": machine_alias(),
    }


def mismatches(content: dict, digest: str, current: dict[str, str | None]) -> list[str]:
    """In what a record differs from the code and versions of today."""
    recorded = content.get("provenance", {})
    found = ["code"] if recorded.get("digest") != digest else []
    before = recorded.get("versions", {})
    here = [name for name in DECISIVE if current.get(name)]  # a reviewer's laptop has no torch
    return found + [name for name in here if before.get(name) != current.get(name)]


def host() -> dict:
    """CPU model, core count and memory of this machine."""
    found = (line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name"))
    _, _, model = next(found, "").partition(":")
    return {
        "cpu": model.strip() or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
    }


def machine_alias() -> str:
    """A name for this machine that tells nothing of it: a hash of the random id that systemd gave
    it, or of the kernel's for the time since it booted.
    """
    ids = ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")
    found = next(filter(None, ("".join(_lines(Path(path))) for path in ids)), "")
    return f"machine-{hashlib.sha256(f'gpu-collocation/{found}'.encode()).hexdigest()[:8]}"


def _commit() -> str | None:
    """The commit of the checkout, with '+' if the working tree differs; None without git."""
    try:
        run = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            # The commit of a repository that the folder was unpacked into would say nothing.
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None if run.returncode == 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
