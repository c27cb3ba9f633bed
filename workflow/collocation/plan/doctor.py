"""What a study needs of this machine, a line each, with what to do about it.

It changes no setting of the card. `fail` is what measuring cannot do without.
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
from workflow.collocation.gpu.lock import Busy, device_lock, folder_lock, lock_folder
from workflow.collocation.plan.jobs import TRAINING, missing_packages
from workflow.collocation.sharing import mig_nvml, mps_daemon
from workflow.collocation.sharing.evidence import GpuBusy, Unsupported, require_free
from workflow.collocation.study.definition import Config
from workflow.collocation.study.errors import NotInForce
from workflow.collocation.telemetry.lines import one_line
from workflow.collocation.telemetry.sampler import open_source

OK, WARN, FAIL = "ok", "warn", "fail"
CHECKS = ("packages", "gpu", "results")
GPU_CHECKS = ("company", "mps", "mig", "telemetry")
IMPORT_S = 120.0  # of torch from a slow disk
TORCH = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"

Finding = tuple[str, str]  # how it is, and a sentence


class Doctor:
    """config: the study's. Each check gives one Finding; `device` is None where there is no GPU."""

    def __init__(self, config: Config):
        self.config = config
        self.device: gpu.Device | None = None

    def findings(self) -> Iterator[tuple[str, Finding]]:
        for name in (*CHECKS, *GPU_CHECKS):
            if name in GPU_CHECKS and self.device is None:
                return
            try:
                yield name, getattr(self, name)()
            except Busy as error:  # a study that runs is not to be disturbed
                yield name, (WARN, f"not tried: {error}")
            except Exception as error:  # one that is broken must not hide the others
                yield name, (FAIL, one_line(error))

    def packages(self) -> Finding:
        if missing := missing_packages(TRAINING):
            names = ", ".join(missing)
            return FAIL, f"not installed: {names}; the extra 'train' of pyproject.toml has them"
        command = [sys.executable, "-c", TORCH]
        asked = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=IMPORT_S
        )
        if asked.returncode:
            return FAIL, f"torch cannot be imported: {asked.stderr.strip().splitlines()[-1]}"
        version, cuda, available = asked.stdout.split()
        if cuda == "None":
            return WARN, f"torch {version} is a CPU build: it measures on no GPU"
        if available != "True":
            todo = "is the driver older than this CUDA, or CUDA_VISIBLE_DEVICES empty?"
            return WARN, f"torch {version} for CUDA {cuda} finds no GPU; {todo}"
        return OK, f"all that training needs; torch {version}, CUDA {cuda}"

    def gpu(self) -> Finding:
        devices, why_not = gpu.find_devices(self.config.gpu)
        self.device = device = next(iter(devices), None)
        if device is None:
            return WARN, f"none is used ({why_not}): only the study 'smoke' makes sense here"
        said = f"{device.index}: {device.name}, driver {device.driver}, {device.uuid}"
        return (WARN, f"{said}; {why_not}") if why_not else (OK, said)

    def company(self) -> Finding:
        try:
            if nobody := self.device.too_many(1):
                return FAIL, nobody
            require_free(self.device)
            if one := self.device.too_many(2):
                return WARN, f"sets of plain jobs are refused, MPS and single jobs run: {one}"
        except GpuBusy as company:
            return FAIL, f"{company}; cells wait until they are gone, or choose another with gpu=…"
        except NotInForce as silent:
            return FAIL, f"{silent}: no cell can run on this card, and 'dmesg' may say why"
        return OK, "nobody else computes on the card, and its compute mode lets several processes"

    def mps(self) -> Finding:
        if shutil.which(mps_daemon.CONTROL) is None:
            todo = "it comes with the driver; a container may have to be given it"
            return WARN, f"{mps_daemon.CONTROL} is not on PATH: mps cells are refused; {todo}"
        with self._held(), tempfile.TemporaryDirectory() as logs:
            try:
                with mps_daemon.running(self.device.uuid, Path(logs)):
                    return OK, "a private daemon started and answered"
            except NotInForce as error:
                return WARN, f"{error}: mps cells will fail"

    def mig(self) -> Finding:
        on = nvidia.mig_enabled(self.device)
        if on is None:
            return OK, "the card has no MIG"
        how = mig_nvml.how_to_switch(self.device, on=not on)
        if on:
            return WARN, f"MIG mode is on: other cells are refused; {how}"
        try:
            offers = mig_nvml.read(self.device).offers
        except (Unsupported, NotInForce) as error:
            offers = str(error)
        return OK, f"MIG mode is off: mig cells are refused; {how}; {offers}"

    def telemetry(self) -> Finding:
        wanted = self.config.telemetry.source
        if wanted == "off":
            return OK, "switched off in config"
        source, why = open_source(self.device.uuid, ["gpu"], wanted)
        if source is None:
            return WARN, f"{why}: no GRACT, SMACT and DRAMA, only utilisation and power"
        source.close()
        return OK, why

    def results(self) -> Finding:
        folder = Path(self.config.results)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as probe, folder_lock(Path(probe), {}):
            pass
        free = shutil.disk_usage(folder).free / 1e9
        with self._held():
            said = f"locks work, there and in {lock_folder()}"
        said = f"{free:.0f} GB free for {folder} (500 cells take about 1); {said}"
        return (OK if free > 1 else FAIL), said

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The device's lock, so that nobody who measures is disturbed. Raises Busy at once."""
        key = self.device.uuid if self.device else "cpu"

        def taken(holder: dict) -> None:
            raise Busy(Path(key), holder)

        with device_lock(key, {"pid": os.getpid(), "study": "doctor"}, taken):
            yield
