"""Checks whether this machine has what a study needs, and says what to do about each problem.

No setting of the GPU is changed. `fail` means that nothing can be measured.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow.collocation import gpu
from workflow.collocation.gpu import nvidia
from workflow.collocation.gpu.lock import LockHeld, device_lock, folder_lock, lock_folder
from workflow.collocation.plan.jobs import TRAINING_PACKAGES, missing_packages
from workflow.collocation.sharing import mig_nvml, mps_daemon
from workflow.collocation.sharing.evidence import GpuBusy, Unsupported, require_free
from workflow.collocation.study.definition import Config
from workflow.collocation.study.errors import NotInForce
from workflow.collocation.telemetry.lines import one_line
from workflow.collocation.telemetry.sources import choose_source

OK, WARN, FAIL = "ok", "warn", "fail"
CHECKS = ("packages", "gpu", "results")
GPU_CHECKS = ("company", "mps", "mig", "telemetry")
IMPORT_S = 120.0  # of torch from a slow disk
TORCH_SCRIPT = "import torch as t; print(t.__version__, t.version.cuda, t.cuda.is_available())"

Finding = tuple[str, str]  # one of OK, WARN and FAIL, and a sentence


class Doctor:
    """Runs the checks: each is a method of its name that returns a Finding.

    config: of the study. device: the GPU, None if there is none.
    """

    def __init__(self, config: Config):
        self.config = config
        self.device: gpu.Device | None = None

    def findings(self) -> Iterator[tuple[str, Finding]]:
        """Yields the name and finding of each check; those of a GPU only if there is one."""
        for name in (*CHECKS, *GPU_CHECKS):
            if name in GPU_CHECKS and self.device is None:
                return
            try:
                yield name, getattr(self, name)()
            except LockHeld as error:  # a running study must not be disturbed
                yield name, (WARN, f"not tried: {error}")
            except Exception as error:  # a broken check must not hide the others
                yield name, (FAIL, one_line(error))

    def packages(self) -> Finding:
        if missing := missing_packages(TRAINING_PACKAGES):
            names = ", ".join(missing)
            return FAIL, f"not installed: {names}; the extra 'train' of pyproject.toml has them"
        imported = subprocess.run(
            [sys.executable, "-c", TORCH_SCRIPT],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=IMPORT_S,
        )
        if imported.returncode:
            return FAIL, f"torch cannot be imported: {imported.stderr.strip().splitlines()[-1]}"
        version, cuda, available = imported.stdout.split()
        if cuda == "None":
            return WARN, f"torch {version} is a CPU build: it measures on no GPU"
        if available != "True":
            question = "is the driver older than this CUDA, or CUDA_VISIBLE_DEVICES empty?"
            return WARN, f"torch {version} for CUDA {cuda} finds no GPU; {question}"
        return OK, f"all that training needs; torch {version}, CUDA {cuda}"

    def gpu(self) -> Finding:
        devices, problem = gpu.find_devices(self.config.gpu)
        if not devices:
            return WARN, f"none is used ({problem}): only the study 'smoke' makes sense here"
        self.device = device = devices[0]
        description = f"{device.index}: {device.name}, driver {device.driver}, {device.uuid}"
        return (WARN, f"{description}; {problem}") if problem else (OK, description)

    def company(self) -> Finding:
        try:
            if problem := self.device.too_many(1):
                return FAIL, problem
            require_free(self.device)
            if problem := self.device.too_many(2):
                return WARN, f"sets of plain jobs are refused, MPS and single jobs run: {problem}"
        except GpuBusy as error:
            return FAIL, f"{error}; cells wait until they are gone, or choose another with gpu=…"
        except NotInForce as error:
            return FAIL, f"{error}: no cell can run on this card, and 'dmesg' may say why"
        return OK, "nobody else computes on the card, and its compute mode lets several processes"

    def mps(self) -> Finding:
        if shutil.which(mps_daemon.CONTROL) is None:
            remedy = "it comes with the driver; a container may have to be given it"
            return WARN, f"{mps_daemon.CONTROL} is not on PATH: mps cells are refused; {remedy}"
        with self._device_lock(), tempfile.TemporaryDirectory() as logs:
            try:
                with mps_daemon.running(self.device.uuid, Path(logs)):
                    return OK, "a private daemon started and answered"
            except NotInForce as error:
                return WARN, f"{error}: mps cells will fail"

    def mig(self) -> Finding:
        is_on = nvidia.mig_enabled(self.device)
        if is_on is None:
            return OK, "the card has no MIG"
        switching = mig_nvml.how_to_switch(self.device, on=not is_on)
        if is_on:
            return WARN, f"MIG mode is on: other cells are refused; {switching}"
        try:
            offers = mig_nvml.read_card(self.device).offers
        except (Unsupported, NotInForce) as error:
            offers = str(error)
        return OK, f"MIG mode is off: mig cells are refused; {switching}; {offers}"

    def telemetry(self) -> Finding:
        if self.config.telemetry.source == "off":
            return OK, "switched off in config"
        source, reason = choose_source(self.device.uuid, ["gpu"], self.config.telemetry.source)
        if source is None:
            return WARN, f"{reason}: no GRACT, SMACT and DRAMA, only utilisation and power"
        source.close()
        return OK, reason

    def results(self) -> Finding:
        folder = Path(self.config.results)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as probe, folder_lock(Path(probe), {}):
            pass
        with self._device_lock():
            pass
        free_gb = shutil.disk_usage(folder).free / 1e9
        space = f"{free_gb:.0f} GB free for {folder} (500 cells take about 1)"
        state = OK if free_gb > 1 else FAIL
        return state, f"{space}; locks work, there and in {lock_folder()}"

    @contextmanager
    def _device_lock(self) -> Iterator[None]:
        """Hold the device's lock, so that no measurement is disturbed. Raises LockHeld at once."""
        key = self.device.uuid if self.device else "cpu"

        def refuse(holder: dict) -> None:
            raise LockHeld(Path(key), holder)

        with device_lock(key, {"pid": os.getpid(), "study": "doctor"}, refuse):
            yield
