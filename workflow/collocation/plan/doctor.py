"""`make doctor`: what a study needs of this machine, a line each, with what to do about it.

It changes no setting of the card. `fail` is what measuring cannot do without.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log
from pathlib import Path
from statistics import stdev

from workflow.collocation import gpu
from workflow.collocation.gpu import cores, nvidia
from workflow.collocation.gpu.lock import Busy, device_lock, folder_lock, lock_folder
from workflow.collocation.plan.jobs import TRAINING, absent
from workflow.collocation.sharing import mig_card, mps_daemon
from workflow.collocation.sharing.evidence import GpuBusy, Unsupported, require_free
from workflow.collocation.sharing.mig_nvml import how_to_switch
from workflow.collocation.spec.errors import ConfigError, NotInForce
from workflow.collocation.spec.load import load_config, read_values
from workflow.collocation.spec.study import Config
from workflow.collocation.telemetry.lines import one_line
from workflow.collocation.telemetry.sampler import open_source

OK, WARN, FAIL = "ok", "warn", "fail"
PACKAGES_S = 120.0  # for a first import of torch from a slow disk
NOISE_S, SLICE_S = 10.0, 0.5
QUIET, NOISY = 0.05, 0.15  # spread of slices: below is a quiet host, above a noisy one
LEAST_GB, ENOUGH_GB = 1, 10  # on the disk
TORCH = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"
# Steps that do next to nothing, so that what counts is how fast this host can give out work.
LOOP = """
import json, sys, time
seconds, each, device = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if device == "cuda":
    import torch
    values = torch.zeros(64, device=device)
    wait = torch.cuda.synchronize
else:
    import numpy
    values, wait = numpy.zeros(64, numpy.float32), lambda: None
def step():
    for _ in range(100):
        values.__iadd__(1)
    wait()
def slice_of(length):
    count, began = 0, time.perf_counter()
    while (now := time.perf_counter()) < began + length:
        step()
        count += 1
    return count / (now - began)
slice_of(1)
print(json.dumps([slice_of(each) for _ in range(round(seconds / each))]))
"""

Finding = tuple[str, str]  # how it is, and a sentence


class Doctor:
    """config: the study's. Each check gives one Finding; `device` is None where there is no GPU."""

    def __init__(self, config: Config):
        self.config = config
        self.device: nvidia.Nvidia | None = None

    def checks(self) -> dict[str, Callable[[], Finding]]:
        names = ("python", "torch", "gpu", "company", "mps", "mig", "telemetry", "locks", "disk")
        return {name: getattr(self, name) for name in (*names, "cpu", "noise")}

    def findings(self) -> Iterator[tuple[str, Finding]]:
        for name, check in self.checks().items():
            try:
                yield name, check()
            except Busy as error:  # a study that runs is not to be disturbed
                yield name, (WARN, f"not tried: {error}")
            except subprocess.TimeoutExpired as error:
                yield name, (FAIL, f"no answer within {error.timeout:.0f} s")
            except (ConfigError, NotInForce, OSError) as error:
                yield name, (FAIL, str(error))
            except Exception as error:  # one that is broken must not hide the others
                yield name, (FAIL, one_line(error))

    def python(self) -> Finding:
        if missing := absent(TRAINING):
            return FAIL, f"not installed: {', '.join(missing)}; 'make study' installs them"
        return OK, f"Python {platform.python_version()}, all that training needs is installed"

    def torch(self) -> Finding:
        build = gpu.torch_build()
        if build is None:
            return FAIL, "not installed; 'make study' installs it"
        asked = _run(["-c", TORCH], PACKAGES_S)
        if asked.returncode:
            return FAIL, f"cannot be imported: {asked.stderr.strip().rpartition(chr(10))[2]}"
        version, cuda, available = asked.stdout.split()
        if build == "cpu":
            return WARN, f"torch {version} is a CPU build: it measures on no GPU"
        if available != "True":
            todo = "is the driver older than this CUDA, or CUDA_VISIBLE_DEVICES empty?"
            return WARN, f"torch {version} for CUDA {cuda} finds no GPU; {todo}"
        return OK, f"torch {version}, CUDA {cuda}"

    def gpu(self) -> Finding:
        devices, why_not = gpu.find_devices(self.config.gpu)
        self.device = device = next(iter(devices), None)
        if device is None:
            return WARN, f"none is used ({why_not}): only the study 'smoke' makes sense here"
        size = f", {device.memory_bytes / 1e9:.0f} GB" if device.memory_bytes else ""
        said = f"{device.index}: {device.name}{size}, driver {device.driver}, {device.uuid}"
        return (WARN, f"{said}; {why_not}") if why_not else (OK, said)

    def company(self) -> Finding:
        if self.device is None:
            return OK, "no GPU, so nobody is on it"
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
        if self.device is None:
            return OK, "no GPU, so no MPS"
        if shutil.which(mps_daemon.CONTROL) is None:
            todo = "it comes with the driver; a container may have to be given it"
            return WARN, f"{mps_daemon.CONTROL} is not on PATH: mps cells are refused; {todo}"
        with self._held(), tempfile.TemporaryDirectory() as logs:
            try:
                with mps_daemon.running(self.device.uuid, Path(logs)):
                    pass
            except NotInForce as error:
                return WARN, f"{error}: mps cells will fail"
        return OK, "a private daemon started, answered and ended"

    def mig(self) -> Finding:
        on = self.device and nvidia.mig_enabled(self.device)
        if on is None:
            return OK, "the card has no MIG" if self.device else "no GPU, so no MIG"
        if on:
            todo = how_to_switch(self.device, on=False)
            return WARN, f"MIG mode is on: other cells are refused; {todo}"
        try:
            offers = mig_card.read(self.device).offers
        except (Unsupported, NotInForce) as error:
            offers = str(error)
        off = f"MIG mode is off: mig cells are refused; {how_to_switch(self.device, on=True)}"
        return OK, f"{off}; {offers}"

    def telemetry(self) -> Finding:
        wanted = self.config.telemetry.source
        if self.device is None or wanted == "off":
            return OK, "of the machine alone" if wanted != "off" else "switched off in config"
        source, why = open_source(self.device.uuid, ["gpu"], wanted)
        if source is None:
            return WARN, f"{why}: no GRACT, SMACT and DRAMA, only utilisation and power"
        source.close()
        return OK, why

    def locks(self) -> Finding:
        results = Path(self.config.results)
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=results) as folder, folder_lock(Path(folder), {}):
            pass
        with self._held():
            pass
        return OK, f"{lock_folder()} for devices, and in {results} for studies: flock works"

    def disk(self) -> Finding:
        results = Path(self.config.results)
        with tempfile.TemporaryFile(dir=results) as file:
            file.write(bytes(1 << 20))
        free = shutil.disk_usage(results).free / 1e9
        how = OK if free >= ENOUGH_GB else WARN if free >= LEAST_GB else FAIL
        return how, f"{free:.0f} GB free for {results}; a study of 500 cells takes about 1"

    def cpu(self) -> Finding:
        usable = cores.usable()
        said = f"{usable} cores"
        if usable < 4 and self.device:
            return WARN, f"{said}: jobs of a set share them, and wait for them; give it 8 or more"
        return OK, said

    def noise(self) -> Finding:
        kind = "cuda" if self.device and gpu.torch_build() == "cuda" else "cpu"
        with self._held():
            there = {"CUDA_VISIBLE_DEVICES": self.device.uuid} if self.device else {}
            arguments = ["-c", LOOP, str(NOISE_S), str(SLICE_S), kind]
            ran = _run(arguments, PACKAGES_S + 2 * NOISE_S, there)
        if ran.returncode:
            return FAIL, f"the loop ended: {ran.stderr.strip().rpartition(chr(10))[2]}"
        spread = stdev(map(log, json.loads(ran.stdout)))
        said = f"{NOISE_S:.0f} s of tiny steps: slices of {SLICE_S} s differ by {spread:.1%} (sd)"
        if spread < QUIET:
            return OK, f"{said}; a quiet host"
        if spread < NOISY:
            return WARN, f"{said}; a job alone will vary as much: measure more replicates"
        return WARN, f"{said}; others use these cores: end them, or measure on another host"

    @contextmanager
    def _held(self) -> Iterator[None]:
        """The device's lock, so that nobody who measures is disturbed. Raises Busy at once."""
        key = self.device.uuid if self.device else "cpu"

        def taken(holder: dict) -> None:
            raise Busy(Path(key), holder)

        with device_lock(key, {"pid": os.getpid(), "study": "doctor"}, taken):
            yield


def _run(arguments: list[str], seconds: float, more: dict | None = None):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=os.environ | (more or {}),
    )


def main(argv: list[str] | None = None) -> int:
    """Exit 1 if something that measuring needs is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE")
    try:
        doctor = Doctor(load_config(read_values(parser.parse_args(argv).config)))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    worst = 0
    for name, (how, said) in doctor.findings():
        print(f"{how:<5} {name:<10} {' '.join(said.split())}", flush=True)
        worst |= how == FAIL
    return worst


if __name__ == "__main__":
    sys.exit(main())
