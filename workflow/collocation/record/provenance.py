"""Records where a cell was measured, with what, and when; no host name, user name or path."""

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
DECISIVE = ("torch", "timm", "driver")  # another version of these makes a cell mismatched


def package_versions(driver: str | None) -> dict[str, str | None]:
    """Versions of Python, the GPU driver and the packages that matter; None if absent."""
    versions = {"python": platform.python_version(), "driver": driver}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def collect_provenance(driver: str | None, code: str, session: str | None = None) -> dict:
    """The provenance entry of run.json. code: digest of the code."""
    return {
        "digest": code,
        "versions": package_versions(driver),
        "commit": _commit(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "session": session,
        "machine": machine_alias(),
    }


def mismatches(recorded: dict, digest: str, current: dict[str, str | None]) -> list[str]:
    """Names of what differs between a record's provenance and the current code and versions.

    Packages that are not installed here, such as torch on a reviewer's laptop, do not count.
    """
    differing = ["code"] if recorded.get("digest") != digest else []
    versions = recorded.get("versions") or {}
    for name in DECISIVE:
        if current.get(name) and versions.get(name) != current[name]:
            differing.append(name)
    return differing


def describe_host(cores: int, cpu_quota: float | None) -> dict:
    """CPU model and memory of this machine, with the usable cores and the CPU quota."""
    model = _text(Path("/proc/cpuinfo")).partition("model name")[2].partition("\n")[0]
    return {
        "cpu": model.strip("\t :") or platform.processor() or platform.machine(),
        "cores": cores,
        "cpu_quota": cpu_quota,
        "memory_bytes": psutil.virtual_memory().total,
    }


def machine_alias() -> str:
    """A random but lasting name of this machine.

    It is a digest of the machine's id and a secret in the user's state folder, which machines may
    share. If the secret cannot be stored, the name lasts until the machine restarts.
    """
    state = os.environ.get("XDG_STATE_HOME") or Path(os.environ.get("HOME") or "/", ".local/state")
    path = Path(state, "gpu-collocation-study", "secret")
    if not _text(path):
        temporary = path.with_name(f"secret.{os.getpid()}")
        with suppress(OSError):  # the home folder may be read-only
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(uuid.uuid4().hex + "\n", encoding="utf-8")
            if path.exists():  # a full disk leaves an empty file
                temporary.replace(path)
            else:
                path.hardlink_to(temporary)  # succeeds for the first of several processes only
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    secret = _text(path) or _text(Path("/proc/sys/kernel/random/boot_id"))
    machine = _text(Path("/etc/machine-id")) or platform.node()
    return f"machine-{hashlib.sha256(f'{secret}/{machine}'.encode()).hexdigest()[:8]}"


def _commit() -> str | None:
    """The commit of the checkout, with '+' if the working tree differs; None without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=12"]
    # Ignore a repository around this folder.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(ROOT.parent)}
    try:
        run = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
            check=True,
            env=environment,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()


def _text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return read_text(path).strip()
    except OSError:
        return ""
