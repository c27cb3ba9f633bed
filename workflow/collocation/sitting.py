"""One invocation of the workflow: config → study, device, cells, and the jobs to run now.

The Snakefile asks this module for everything; what a person reads of it stands in show.py.
"""

import hashlib
import importlib.util
import json
import os
import shlex
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import psutil

from workflow.collocation import gpu, methods, mig_maps, plan, provenance, record, zygote
from workflow.collocation.digest import code_digest, own_digest
from workflow.collocation.members import server_environment
from workflow.collocation.methods import mig_card
from workflow.collocation.methods.evidence import NotInForce, Unsupported
from workflow.collocation.settings import (
    ConfigError,
    load_config,
    load_study,
    load_workloads,
)
from workflow.collocation.study import ROOT, Config, Study, seconds

MANIFEST = "MANIFEST.sha256"  # of a study that ships; see release/
TRAINING = ("torch", "torchvision", "timm", "sklearn", "PIL")


@dataclass
class Sitting:
    """What this invocation is about. Build it with `open_sitting`."""

    config: Config
    name: str
    why: str
    study: Study
    cells: list[plan.Cell]
    device: gpu.Device | None
    attempts: dict[str, list[record.Attempt]]
    anchors: list[plan.Cell] = field(default_factory=list)  # of this sitting and those before
    jobs: list[plan.Job] = field(default_factory=list)
    later: list[plan.Job] = field(default_factory=list)
    _refusals: dict[str, str | None] = field(default_factory=dict)

    @property
    def measuring(self) -> bool:
        """Whether cells may be planned: a sealed study is an input unless config says otherwise."""
        return not self.sealed if self.config.measure is None else self.config.measure

    @property
    def sealed(self) -> bool:
        """Whether the study ships: its folder has a manifest (`make seal`)."""
        return (self.folder / MANIFEST).exists()

    # -- paths, relative to the working directory -----------------------------------------------

    @property
    def folder(self) -> Path:
        return Path(self.config.results, self.name)

    @property
    def cells_folder(self) -> Path:
        return self.folder / "cells"

    @property
    def arms(self) -> list[str]:
        """The study's arms, each with figures of its own."""
        return list(dict.fromkeys(cell.arm for cell in sorted(self.cells, key=lambda c: c.arm)))

    def run_files(self) -> list[str]:
        """run.json of every attempt that exists and counts, and of every job to run."""
        counted = [*self.cells, *self.anchors]
        done = [a.path for a in plan.finished(counted, self.attempts, self.sealed)]
        return [path.as_posix() for path in (*done, *self._coming)]

    @property
    def _coming(self) -> list[Path]:
        """run.json of every job to run."""
        return [self.cells_folder / job.path / "run.json" for job in self.jobs]

    # -- jobs -----------------------------------------------------------------------------------

    def refusal(self, cell: plan.Cell) -> str | None:
        """Why the cell's method cannot run here and now, or None. The card is asked once a cell."""
        if cell.id not in self._refusals:
            switch = self.config.mig_mode == "switch"
            self._refusals[cell.id] = methods.refusal(cell.spec, self.device, switch)
        return self._refusals[cell.id]

    @cached_property
    def _by_path(self) -> dict[str, tuple[plan.Job, int, float]]:
        """A job's path → the job, its place from 1, and the seconds that those after it take."""
        found, left = {}, sum(job.estimate_s for job in self.jobs)
        for place, job in enumerate(self.jobs, 1):
            left -= job.estimate_s
            found[job.path] = job, place, left
        return found

    def priority(self, path: str) -> int:
        """Snakemake runs high priorities first."""
        job, _, _ = self._by_path[path]
        return len(self.cells) - job.rank

    def arguments(self, path: str) -> str:
        """The conductor's command-line arguments for a job, quoted for a shell."""
        job, place, left = self._by_path[path]
        options = {
            "--study": self.name,
            "--cell": job.cell.id,
            "--attempt": job.attempt,
            "--specs": self.folder / "specs.json",
            "--gpu": self.device.uuid if self.device else "cpu",
            "--mig-mode": self.config.mig_mode,
            "--trainer": self.config.trainer,
            "--timeout": json.dumps(self.config.timeout),
            "--telemetry": self.config.telemetry.model_dump_json(),
            "--trace": self.config.trace,
            "--place": f"{place}/{len(self.jobs)}",
            "--left": round(left),
            "--deadline": os.environ.get("COLLOCATION_DEADLINE", 0),
            "--estimate": round(job.estimate_s),
        }
        return shlex.join(str(part) for pair in options.items() for part in pair)

    def settings(self) -> str:
        """This sitting's config as KEY=VALUE arguments, quoted for a shell."""
        values = self.config.model_dump(exclude_none=True)
        return shlex.join(f"{key}={json.dumps(value)}" for key, value in values.items())

    # -- datasets -------------------------------------------------------------------------------

    def ready_files(self, path: str) -> list[str]:
        """The files that say that a job's datasets are ready on this machine.

        All cells wait for all datasets: else the ones that wait would break the order.
        """
        del path
        return [self.ready_file(name) for name in self.datasets]

    def ready_file(self, name: str) -> str:
        request = hashlib.sha256(self.dataset_arguments(name).encode()).hexdigest()[:8]
        return Path(self.config.data, "ready", self.name, f"{name}.{request}.json").as_posix()

    def pin_file(self, name: str) -> Path:
        """What says which source of a dataset, real or synthetic, the study found first."""
        return self.folder / "datasets" / f"{name}.json"

    def pinned(self, name: str) -> str | None:
        """The source of a dataset that the study is pinned to."""
        return (_read_json(self.pin_file(name)) or {}).get("source")

    def forget_vanished_data(self) -> None:
        """Remove ready files that speak of data that are gone or of another source than the pin."""
        for path, ready, pin in self._ready_and_pins():
            there = ready and Path(ready.get("path", "")).is_dir()
            if not there or (pin and pin.get("source") != ready.get("source")):
                path.unlink(missing_ok=True)

    def pin_sources(self) -> None:
        """Pin data that another results folder had made ready: no job will do it here."""
        for _, ready, _ in self._ready_and_pins():
            target = self.pin_file(ready["dataset"])
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                del ready["path"]
                target.write_text(json.dumps(ready, indent=1) + "\n")

    def _ready_and_pins(self) -> Iterator[tuple[Path, dict | None, dict | None]]:
        for name in self.datasets:
            path = Path(self.ready_file(name))
            if path.exists():
                yield path, _read_json(path), _read_json(self.pin_file(name))

    @cached_property
    def datasets(self) -> dict[str, set[int]]:
        """Datasets that the jobs need → the input sizes (pixels) to prepare them for."""
        sizes: dict[str, set[int]] = {}
        for job in self.jobs:
            if self.refusal(job.cell) is None:
                for member in job.cell.spec["members"]:
                    if member["dataset"]:  # a command has its own
                        sizes.setdefault(member["dataset"], set()).add(member["input_size"])
        return sizes

    def dataset_arguments(self, name: str) -> str:
        """Arguments of `python -m models.data prepare`, quoted for a shell."""
        source = "auto" if name == "digits" else self.config.source  # they come with a dependency
        options = [name, "--root", self.config.data, "--source", source]
        options += ["--seed", self.study.seed, "--pin", self.pin_file(name)]
        if name in self.study.datasets:
            sizes = self.study.datasets[name]
            options += ["--train", sizes.train, "--validation", sizes.validation]
        for size in sorted(self.datasets[name]):
            options += ["--input-size", size] if size else []
        return shlex.join(str(option) for option in options)

    def set_environment(self) -> bool:
        """What jobs inherit: this Python, this repository to import from. True the first time."""
        path = [str(ROOT), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        os.environ["PYTHONSAFEPATH"] = "1"  # not from the working directory: it may be a clone
        os.environ["PYTHON"] = sys.executable
        own = str(os.getpid())
        return os.environ.setdefault("COLLOCATION_READER", own) == own

    def mismatched(self) -> list[record.Attempt]:
        """Measured attempts that today's code or versions would not reproduce as they are."""
        stale = _stale(self.device)
        found = plan.finished(self.cells, self.attempts, self.sealed)
        return [
            attempt for attempt in found if attempt.status in record.MEASURED and stale(attempt)
        ]

    # -- what it writes -------------------------------------------------------------------------

    @cached_property
    def expected(self) -> str:
        """What analysis may expect, as JSON: a line a cell."""
        cells = [
            {
                "id": cell.id,
                "scenario": cell.scenario,
                "arm": cell.arm,
                "method": cell.method,
                "replicate": cell.replicate,
                "n": cell.n,
                "workloads": [member["workload"] for member in cell.spec["members"]],
                "measure": cell.spec["measure"]["kind"],
            }
            for cell in self.cells
        ]
        return "[\n" + ",\n".join(json.dumps(cell) for cell in cells) + "\n]\n"

    @property
    def plan_digest(self) -> str:
        """A changed plan draws its holes anew."""
        return hashlib.sha256(self.expected.encode()).hexdigest()[:8]

    def write_plan(self) -> None:
        """plan.json, runs.txt: what analysis may expect, and where it is; specs.json: the jobs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        specs = {job.cell.id: job.cell.spec for job in self.jobs}
        (self.folder / "specs.json").write_text(json.dumps(specs, sort_keys=True) + "\n")
        (self.folder / "plan.json").write_text(self.expected)
        (self.folder / "runs.txt").write_text("".join(f"{path}\n" for path in self.run_files()))

    def write_mig_layouts(self) -> None:
        """mig_layouts.json: where the study's MIG cells lie on this card, if it can be read."""
        cells = mig_maps.mig_cells(self.cells)
        if self.device is None or not cells:
            return
        try:
            card = mig_card.read(self.device)
        except (NotInForce, Unsupported):
            return
        if card is not None:
            source = f"read with NVML, driver {self.device.driver}"
            found = mig_maps.document(self.name, cells, card, source, read=True)
            (self.folder / "mig_layouts.json").write_text(json.dumps(found, indent=1) + "\n")

    def tell_jobs_the_digest(self) -> None:
        """So that not every cell has to parse all code; see `code_digest`."""
        if self.jobs:
            code_digest()

    def missing_packages(self) -> list[str]:
        """What the jobs' training processes would fail to import."""
        if not self.jobs or self.config.trainer != "models.train":
            return []
        return [name for name in TRAINING if importlib.util.find_spec(name) is None]

    def still_planned(self) -> bool:
        """Nobody finished a cell between the planning and now."""
        return not any(path.exists() for path in self._coming)

    def sweep_postponed(self) -> None:
        """Remove the markers of cells that the budget left for later: nothing was measured.

        A study that lacks them is not complete.
        """
        written = [path for path in self._coming if path.exists()]
        swept = [p for p in written if json.loads(p.read_text())["status"] == "postponed"]
        for path in swept:
            path.unlink()
        if swept or self.later:
            (self.folder / "complete").unlink(missing_ok=True)

    @property
    def merged(self) -> bool:
        """Whether runs.parquet is there with all that this invocation measured: it may have been
        asked for some cells alone.
        """
        runs = self.folder / "runs.parquet"
        written = [path.stat().st_mtime_ns for path in self._coming if path.exists()]
        return runs.exists() and runs.stat().st_mtime_ns >= max(written, default=0)

    def zygote(self) -> AbstractContextManager:
        """One import of the trainer for all jobs, where more than one will train; see zygote.py."""
        training = [job for job in self.jobs if self.refusal(job.cell) is None]
        if len(training) < 2:
            return nullcontext()
        return zygote.hold(
            self.config.trainer,
            zygote.stamp({"digest": code_digest(), "versions": provenance.versions(None)}),
            server_environment(threads=1),  # members set their own number
            self.folder / "log" / "zygote.log",
        )

    def holder(self) -> dict:
        """What a lock says of this invocation."""
        return {"pid": os.getpid(), "user": psutil.Process().username(), "study": self.name}


def open_sitting(values: dict) -> Sitting:
    """Read and check everything; plan what runs now. Raises ConfigError."""
    config = load_config(values)
    workloads = load_workloads(_find(config.workloads))
    device, why_not = find_device(config)
    name, why = _choose(config, device, why_not)
    if config.measure is False:
        name, why = _measured(config, name, why)
    study = load_study(_find(config.studies), name, workloads)
    digests = {
        name: own_digest(workload.own_code, workload.own_files)
        for name, workload in workloads.items()
    }
    sources = {name: digest for name, digest in digests.items() if digest}
    cells = plan.expand(study, workloads, sources)
    attempts = record.scan(Path(config.results, name, "cells"))
    numbers = plan.anchor_numbers(attempts)
    known = plan.anchors(study, workloads, numbers, sources)
    sitting = Sitting(config, name, why, study, cells, device, attempts, known)
    if sitting.measuring:
        pending = plan.pending(
            cells,
            attempts,
            device.uuid if device else record.cpu_key(provenance.machine_alias()),
            sitting.refusal,
            config.attempts,
            _stale(device) if config.rerun == "mismatched" else lambda attempt: False,
        )
        sitting_id = os.environ.setdefault("COLLOCATION_SITTING", uuid.uuid4().hex[:12])
        begun = any(
            attempt.content and attempt.content["provenance"].get("sitting") == sitting_id
            for cell in known
            for attempt in attempts.get(cell.id, [])
        )
        number = max(numbers, default=0) + 1
        new = [] if begun else plan.anchors(study, workloads, [number], sources)
        first = plan.begin(new, attempts)
        budget = seconds(config.budget) if config.budget is not None else None
        left = None if budget is None else budget - sum(job.estimate_s for job in first)
        sitting.jobs, sitting.later = plan.within(pending, left)
        if any(sitting.refusal(job.cell) is None for job in sitting.jobs):
            sitting.jobs = first + sitting.jobs
            sitting.anchors += [job.cell for job in first]
        if budget is not None:
            os.environ.setdefault("COLLOCATION_DEADLINE", str(round(time.time() + budget)))
    return sitting


def find_device(config: Config) -> tuple[gpu.Device | None, str]:
    """The GPU to use, or None and why."""
    if config.gpu == "cpu":
        return None, "gpu: cpu"
    device = gpu.find(config.gpu)
    if device is None:
        return None, "no CUDA machine"
    if gpu.torch_build() == "cpu":
        if config.gpu != "auto":
            raise ConfigError(
                f"gpu: {config.gpu!r} was asked for, but the installed torch is a CPU build; "
                "allowed: cpu, auto"
            )
        return None, "the installed torch is a CPU build"
    return device, ""


def _choose(config: Config, device: gpu.Device | None, why_not: str) -> tuple[str, str]:
    if config.study != "auto":
        return config.study, "as asked for"
    return ("paper", "a CUDA machine") if device else ("smoke", why_not)


def _measured(config: Config, name: str, why: str) -> tuple[str, str]:
    """The study to draw: the chosen one, or for 'auto' the only one that is there."""
    found = sorted(path.parent.name for path in Path(config.results).glob("*/cells"))
    known = {path.stem for path in _find(config.studies).glob("*.yaml")}
    found = [study for study in found if study in known]  # a contributed bundle is for comparing
    if name in found:
        return name, why
    if config.study == "auto" and len(found) == 1:
        return found[0], "the one that is there"
    raise ConfigError(
        f"study: {config.results}/{name} holds no results; there are: {', '.join(found) or 'none'}"
    )


def _stale(device: gpu.Device | None):
    @cache
    def today():
        return code_digest(), provenance.versions(device.driver if device else None)

    return lambda attempt: bool(provenance.mismatches(attempt.content, *today()))


def _read_json(path: Path) -> dict | None:
    """The JSON object in the file, or None where there is none."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _find(path: str) -> Path:
    """A config path as given, from the working directory, or else from the repository."""
    return Path(path) if Path(path).exists() else ROOT / path
