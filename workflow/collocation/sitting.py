"""One invocation of the workflow: config → study, device, cells, and the jobs to run now.

The Snakefile asks this module for everything; what a person reads of it stands in show.py.
"""

import hashlib
import importlib.util
import itertools
import json
import math
import os
import shlex
import shutil
import sys
import time
import uuid
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import psutil

from workflow.collocation import gpu, grid, methods, plan, provenance, record, zygote
from workflow.collocation.cell.task import Task
from workflow.collocation.device import find_device
from workflow.collocation.digest import code, code_digest, model_digest
from workflow.collocation.grid import Cell
from workflow.collocation.members import server_environment
from workflow.collocation.methods import mig
from workflow.collocation.methods.evidence import NotInForce, Unsupported
from workflow.collocation.methods.mig import command as mig_command
from workflow.collocation.settings import (
    ConfigError,
    load_config,
    load_study,
    load_workloads,
)
from workflow.collocation.study import ROOT, Config, Study, seconds

MANIFEST = "MANIFEST.sha256"  # of a study that ships; see release/
JOBS = "jobs"  # the folder of a study that holds the files of this run's jobs
TOLD = {"gpu", "mig_mode", "trainer", "timeout", "telemetry", "trace"}  # of config, to jobs
MEMORY_MB, MEMBER_MB = 4096, 4096  # of main memory: a conductor with its server; a member
RUNTIME_MIN, RUNTIME = 30, 3  # minutes, and times what a job will take
TRAINING = ("torch", "torchvision", "timm", "sklearn", "PIL")


@dataclass
class Sitting:
    """What this invocation is about. Build it with `open_sitting`."""

    config: Config
    name: str
    why: str
    study: Study
    cells: list[Cell]
    device: gpu.Device | None
    attempts: dict[str, list[record.Attempt]]
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    deadline: float | None = None  # Unix time at which the budget ends
    anchors: list[Cell] = field(default_factory=list)  # of this sitting and those before
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

    def refusal(self, cell: Cell) -> str | None:
        """Why the cell's method cannot run here and now, or None. The card is asked once a cell."""
        if cell.id not in self._refusals:
            switch = self.config.mig_mode == "switch"
            self._refusals[cell.id] = methods.refusal(cell.spec.to_json(), self.device, switch)
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

    def job_file(self, path: str) -> str:
        """The file that says all that a job needs: what `workflow.collocation.run` is given."""
        return (self.folder / JOBS / f"{path}.json").as_posix()

    def task(self, path: str, preloaded: str | None = None) -> Task:
        """What that file says; preloaded: the name of the server that has imported the trainer."""
        job, place, left = self._by_path[path]
        return Task(
            study=self.name,
            cell=job.cell.id,
            attempt=job.attempt,
            output=self.cells_folder / path / "run.json",
            spec=job.cell.spec.to_json(),
            needs_gpu=self.device is not None,
            data=self.ready_files(path),
            session=self.session,
            machine=provenance.machine_alias(),
            code=self._code,
            preloaded=preloaded,
            place=f"{place}/{len(self.jobs)}",
            left_s=round(left),
            deadline=self.deadline,
            estimate_s=round(job.estimate_s),
            **self.config.model_dump(include=TOLD),
        )

    @cached_property
    def _code(self) -> tuple[str, str]:
        return code()

    def memory_mb(self, path: str) -> int:
        """Main memory that a job is to be given."""
        job, _, _ = self._by_path[path]
        return MEMORY_MB + MEMBER_MB * job.cell.n

    def runtime_min(self, path: str) -> int:
        """Minutes after which a job may be ended from outside: it ends itself long before."""
        job, _, _ = self._by_path[path]
        return math.ceil(RUNTIME_MIN + RUNTIME * job.estimate_s / 60)

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
        """The file that says that a dataset is ready: the first of its names that does not speak of
        data that are gone, or of another source than the pin.
        """
        request = hashlib.sha256(self.dataset_arguments(name).encode()).hexdigest()[:8]
        folder, pin = Path(self.config.data, "ready", self.name), self.pinned(name)
        numbered = (f"-{number}" if number else "" for number in itertools.count())
        paths = (folder / f"{name}.{request}{number}.json" for number in numbered)
        return next(path for path in paths if _usable(path, pin)).as_posix()

    def pin_file(self, name: str) -> Path:
        """What says which source of a dataset, real or synthetic, the study found first."""
        return self.folder / "datasets" / f"{name}.json"

    def pinned(self, name: str) -> str | None:
        """The source of a dataset that the study is pinned to."""
        return (_read_json(self.pin_file(name)) or {}).get("source")

    def pin_sources(self) -> None:
        """Pin data that another results folder had made ready: no job will do it here."""
        for name in self.datasets:
            ready = _read_json(Path(self.ready_file(name)))
            if ready is None:
                continue
            target = self.pin_file(ready["dataset"])
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                del ready["path"]
                target.write_text(json.dumps(ready, indent=1) + "\n")

    @cached_property
    def datasets(self) -> dict[str, set[int]]:
        """Datasets that the jobs need → the input sizes (pixels) to prepare them for."""
        sizes: dict[str, set[int]] = {}
        for job in self.jobs:
            if self.refusal(job.cell) is None:
                for member in job.cell.spec.members:
                    sizes.setdefault(member.job.dataset, set()).add(member.job.input_size)
        return sizes

    def dataset_arguments(self, name: str) -> str:
        """Arguments of `python -m models.data prepare`, quoted for a shell."""
        source = "auto" if name == "digits" else self.config.source  # they come with a dependency
        options = [name, "--tied", "--root", self.config.data, "--source", source]
        options += ["--seed", self.study.seed, "--pin", self.pin_file(name)]
        if name in self.study.datasets:
            sizes = self.study.datasets[name]
            options += ["--train", sizes.train, "--validation", sizes.validation]
        for size in sorted(self.datasets[name]):
            options += ["--input-size", size] if size else []
        return shlex.join(str(option) for option in options)

    def set_environment(self) -> None:
        """What jobs inherit: this Python, this repository to import from."""
        path = [str(ROOT), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        os.environ["PYTHONSAFEPATH"] = "1"  # not from the working directory: it may be a clone
        os.environ["PYTHON"] = sys.executable

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
                "workloads": [member.workload for member in cell.spec.members],
                "measure": cell.spec.measure.kind,
            }
            for cell in self.cells
        ]
        return "[\n" + ",\n".join(json.dumps(cell) for cell in cells) + "\n]\n"

    @property
    def plan_digest(self) -> str:
        """A changed plan draws its holes anew."""
        return hashlib.sha256(self.expected.encode()).hexdigest()[:8]

    def write_plan(self) -> None:
        """plan.json, runs.txt: what analysis may expect, and where it is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "plan.json").write_text(self.expected)
        (self.folder / "runs.txt").write_text("".join(f"{path}\n" for path in self.run_files()))

    def write_jobs(self, preloaded: str | None) -> None:
        """A file for each job; those of earlier runs go."""
        shutil.rmtree(self.folder / JOBS, ignore_errors=True)
        for job in self.jobs:
            self.task(job.path, preloaded).write(Path(self.job_file(job.path)))

    def write_mig_layouts(self) -> None:
        """mig_layouts.json: where the study's MIG cells lie on this card, if it can be read."""
        cells = mig_command.mig_cells(self.cells)
        if self.device is None or not cells:
            return
        try:
            card = mig.read(self.device)
        except (NotInForce, Unsupported):
            return
        if card is not None:
            source = f"read with NVML, driver {self.device.driver}"
            found = mig_command.document(self.name, cells, card, source, read=True)
            (self.folder / "mig_layouts.json").write_text(json.dumps(found, indent=1) + "\n")

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

    def zygote(self) -> AbstractContextManager[zygote.Zygote | None]:
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
    device, why_not = find_device(config.gpu)
    name, why = _choose(config, device, why_not)
    if config.measure is False:
        name, why = _measured(config, name, why)
    study = load_study(_find(config.studies), name, workloads)
    digests = {name: model_digest(workload.model) for name, workload in workloads.items()}
    sources = {name: digest for name, digest in digests.items() if digest}
    cells = grid.expand(study, workloads, sources)
    attempts = record.scan(Path(config.results, name, "cells"))
    numbers = grid.anchor_numbers(attempts)
    known = grid.anchors(study, workloads, numbers, sources)
    named = {"session": config.session} if config.session else {}
    sitting = Sitting(config, name, why, study, cells, device, attempts, **named)
    sitting.anchors += known
    if sitting.measuring:
        pending = plan.pending(
            cells,
            attempts,
            device.uuid if device else record.cpu_key(provenance.machine_alias()),
            sitting.refusal,
            config.attempts,
            _stale(device) if config.rerun == "mismatched" else lambda attempt: False,
        )
        begun = any(
            attempt.content and attempt.content["provenance"].get("sitting") == sitting.session
            for cell in known
            for attempt in attempts.get(cell.id, [])
        )
        number = max(numbers, default=0) + 1
        new = [] if begun else grid.anchors(study, workloads, [number], sources)
        first = plan.begin(new, attempts)
        budget = seconds(config.budget) if config.budget is not None else None
        left = None if budget is None else budget - sum(job.estimate_s for job in first)
        sitting.jobs, sitting.later = plan.within(pending, left)
        if any(sitting.refusal(job.cell) is None for job in sitting.jobs):
            sitting.jobs = first + sitting.jobs
            sitting.anchors += [job.cell for job in first]
        if budget is not None:
            sitting.deadline = round(time.time() + budget)
    return sitting


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


def _usable(path: Path, pin: str | None) -> bool:
    """Whether it is still to be written, or says that data are there as the pin wants them."""
    ready = _read_json(path) or {}
    there = "path" in ready and Path(ready["path"]).is_dir()
    return not path.exists() or (there and pin in (None, ready.get("source")))


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
