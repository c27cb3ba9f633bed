"""One run of the workflow: config → study, devices, cells, and what is to be measured now.

It writes nothing; jobs.py does.
"""

import hashlib
import json
import math
import shlex
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from workflow.collocation import ROOT, gpu
from workflow.collocation.gpu import cores, find_devices
from workflow.collocation.plan import pending
from workflow.collocation.plan.attempts import CellAttempt, scan_attempts
from workflow.collocation.plan.datasets import Datasets
from workflow.collocation.plan.duration import DurationEstimates
from workflow.collocation.record import provenance
from workflow.collocation.record.run_json import MEASURED
from workflow.collocation.record.source_digest import code_digest, user_code_digest
from workflow.collocation.run.conductor import TIMEOUTS
from workflow.collocation.run.task import Task
from workflow.collocation.run.waiting import refusal
from workflow.collocation.study import grid
from workflow.collocation.study.definition import Config, Study, parse_seconds
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.grid import Cell
from workflow.collocation.study.load import (
    CONFIG_SOURCE,
    as_yaml,
    load_config,
    load_study,
    load_workloads,
)
from workflow.collocation.study.regular_files import read_text

MANIFEST = "MANIFEST.sha256"  # in the folder of a study that ships; see release/


@dataclass
class Session:
    """What one run is about. Build it with `open_session`. Paths are as the config gives them."""

    config: Config
    name: str
    why: str
    study: Study
    cells: list[Cell]
    usable: list[gpu.Device]  # GPUs that it may use; none: the CPU
    attempts: dict[str, list[CellAttempt]]
    gpus: int = 1  # how many it uses at once
    no_gpu: str = ""  # why there is none, or one was left out
    remote: bool = False  # its jobs run on a cluster's machines, each on the device it is given
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    deadline: float | None = None  # Unix time at which the budget ends
    elsewhere: list[Cell] = field(default_factory=list)  # of replicates that were merged in
    jobs: list[pending.PendingCell] = field(default_factory=list)
    later: list[pending.PendingCell] = field(default_factory=list)
    _refusals: dict[tuple, str | None] = field(default_factory=dict)

    # -- devices --------------------------------------------------------------------------------

    @property
    def devices(self) -> list[gpu.Device]:
        """The GPUs that it uses: the first ones, and those on which replicates were begun."""
        begun = {job.device for job in self.jobs}
        return [d for i, d in enumerate(self.usable) if i < self.gpus or d.uuid in begun]

    @property
    def device(self) -> gpu.Device | None:
        """The first of its GPUs."""
        return next(iter(self.usable), None)

    @property
    def keys(self) -> list[str]:
        """Names of its devices in records and locks; on a cluster, one for each replicate."""
        if self.remote:
            return [*self.places.values()]
        return [each.uuid for each in self.usable] or [f"cpu:{provenance.machine_alias()}"]

    @cached_property
    def places(self) -> dict[int, str]:
        """Replicate → key of the device of its cells that need others."""
        if self.remote:
            return {cell.replicate: pending.unknown_device(cell.replicate) for cell in self.cells}
        return pending.choose_devices(self.cells, self.attempts, self.keys, self.gpus, self.stale)

    @cached_property
    def on_gpu(self) -> bool:
        """Whether its cells are a GPU's: what a CPU measured never stands for those."""
        made_for_one = not self.study.cpu and self.config.gpu != "cpu"
        return self.device is not None or self.holds_gpu_cells or made_for_one

    @cached_property
    def holds_gpu_cells(self) -> bool:
        return any(attempt.on_gpu for tried in self.attempts.values() for attempt in tried)

    @property
    def forbidden(self) -> str | None:
        """Why its jobs must not run here, and what to do; None if they may."""
        given = self.device is not None or (self.remote and self.config.gpu != "cpu")
        if not self.jobs or not self.on_gpu or given:
            return None
        said = f"study '{self.name}' is made for a GPU"
        then = "gpu=cpu measures it on the CPU all the same"
        if self.holds_gpu_cells:
            said = f"study '{self.name}' holds cells of a GPU"
            then = "gpu=cpu with another results folder measures it on the CPU"
        return f"{said}, and none is used here ({self.no_gpu}); {then}"

    # -- what is measured -----------------------------------------------------------------------

    @cached_property
    def _today(self) -> tuple:
        return code_digest(), provenance.package_versions(
            self.device.driver if self.device else None
        )

    def _differs(self, attempt: CellAttempt) -> bool:
        return bool(provenance.mismatches(attempt.record.provenance, *self._today))

    def stale(self, attempt: CellAttempt) -> bool:
        """Whether an attempt is to be made again, as config's `rerun` has it."""
        return self.config.rerun == "mismatched" and self._differs(attempt)

    def mismatched(self) -> list[CellAttempt]:
        """Measured attempts that today's code or versions would not reproduce as they are."""
        found = pending.counted_attempts(self.cells, self.attempts)
        return [a for a in found if a.status in MEASURED and self._differs(a)]

    @property
    def measuring(self) -> bool:
        """Whether cells may be planned: a sealed study is an input unless config says otherwise."""
        return not self.sealed if self.config.measure is None else self.config.measure

    @property
    def sealed(self) -> bool:
        """Whether the study ships: its folder has a manifest."""
        return (self.folder / MANIFEST).exists()

    @property
    def folder(self) -> Path:
        return Path(self.config.results, self.name)

    @property
    def cells_folder(self) -> Path:
        return self.folder / "cells"

    def record(self, path: str) -> str:
        """run.json of an attempt's folder below `cells_folder`."""
        return (self.cells_folder / path / "run.json").as_posix()

    @cached_property
    def measured(self) -> list[str]:
        """run.json of every attempt that exists and counts."""
        cells = [*self.cells, *self.elsewhere]
        found = pending.counted_attempts(cells, self.attempts, self.sealed)
        return [attempt.path.as_posix() for attempt in found]

    def outdated(self) -> bool:
        """Whether another run has changed the study since this one was planned."""
        return scan_attempts(self.cells_folder) != self.attempts

    @property
    def coming(self) -> list[str]:
        """run.json of every job to run."""
        return [self.record(job.path) for job in self.jobs]

    @property
    def merged(self) -> bool:
        """Whether the tables are of the records that count. Those that were merged are listed:
        times of files tell nothing in a copy, or where the clock was set back.
        """
        runs = self.folder / "runs.txt"
        listed = read_text(runs).splitlines() if runs.exists() else None
        return listed is not None and {*listed} == {*self.measured, *self.coming}

    @property
    def seconds(self) -> float:
        """What its jobs will take, devices side by side."""
        spent: dict[str, float] = {}
        return max((job.spend(spent) for job in self.jobs), default=0.0)

    def refusal(self, cell: Cell, key: str = "") -> str | None:
        """Why the cell cannot run here and now, or None. key: of the device; else its replicate's.
        A card is asked once for each cell; one of a cluster cannot be: what its job said last
        stands.
        """
        if self.remote and self.on_gpu:
            tried = pending.attempts_at(cell, self.attempts)
            return pending.refusal_reason([attempt for attempt in tried if attempt.on_gpu])
        asked = cell.id, key or self.places.get(cell.replicate)
        if asked not in self._refusals:
            device = next((each for each in self.usable if each.uuid == asked[1]), self.device)
            self._refusals[asked] = refusal(cell.spec, device)
        return self._refusals[asked]

    @cached_property
    def datasets(self) -> Datasets:
        """The datasets that the jobs need."""
        sizes: dict[str, set[int]] = {}
        for job in self.jobs:
            for member in job.cell.spec.members if self.refusal(job.cell) is None else ():
                if member.job.dataset:
                    sizes.setdefault(member.job.dataset, set()).add(member.job.input_size)
        return Datasets(self.config, self.study, self.folder, sizes)

    # -- for Snakemake's rules --------------------------------------------------------------------

    @cached_property
    def job_at(self) -> dict[str, pending.PendingCell]:
        """By its attempt's folder below `cells_folder`."""
        return {job.path: job for job in self.jobs}

    @property
    def threads(self) -> int:
        """Cores that Snakemake counts for a cell: its GPUs' cells are to fit side by side."""
        if not self.devices:
            return self.study.cores_for
        return max(1, min(self.study.cores_for, cores.usable() // len(self.devices)))

    def on_card(self, number: int) -> Callable:
        """How many of the GPU with this number a job takes: 1 or 0."""
        uuid = self.devices[number].uuid
        return lambda wildcards: int(self.job_at[wildcards.job].device == uuid)

    def replicate(self, kinds: dict[str, str]) -> Callable:
        """The name of a job's replicate, which is one job of a cluster, so that its cells run one
        after the other on one GPU. kinds: gets what --group-components calls it.
        """
        names = {path: f"replicate{job.cell.replicate}" for path, job in self.job_at.items()}
        kinds |= dict.fromkeys(names.values(), "replicate")
        return lambda wildcards: names[wildcards.job]

    def needed(self, path: str) -> list[str]:
        """The files that say that a job's data are ready. Of a cell that is not to be measured now
        it ends the run: a job would begin by removing its output.
        """
        if path not in self.job_at:
            record = self.record(path)
            done = f"nothing to do: {record} is measured already"
            other = f"{record} is not to be measured now, by the study's plan"
            print(done if record in self.measured else other, file=sys.stderr)
            sys.exit(1)
        return self.datasets.ready_files()

    def runtime_min(self, path: str) -> int:
        """Minutes after which a job may be ended from outside: its own time-outs come before."""
        job = self.job_at[path]
        first = next(j for j in self.jobs if j.cell.replicate == job.cell.replicate)
        # A cluster adds the minutes of a replicate's cells up, of which one hangs at most.
        if self.remote and job is not first:
            return math.ceil(2 * job.estimate_s / 60) + 1
        phases = TIMEOUTS | self.config.timeout
        own = (
            sum(phases.values()) + phases["warm"] + parse_seconds(self.config.wait)
        )  # tuning is one too
        return math.ceil((3 * job.estimate_s + own) / 60)

    def settings(self) -> str:
        """This session's config as KEY=VALUE arguments, quoted for a shell."""
        values = self.config.model_dump(exclude_none=True)
        return shlex.join(f"{key}={as_yaml(value)}" for key, value in values.items())

    # -- for analysis -----------------------------------------------------------------------------

    @cached_property
    def expected(self) -> str:
        """What analysis may expect, as JSON: a line a cell."""
        keys = ("id", "scenario", "implementation", "method", "replicate", "n")
        cells = [
            {key: getattr(cell, key) for key in keys}
            | {
                "workloads": [member.workload for member in cell.spec.members],
                "measure": cell.spec.measure.kind,
            }
            for cell in (*self.cells, *self.elsewhere)
        ]
        return "[\n" + ",\n".join(map(json.dumps, cells)) + "\n]\n"

    @property
    def plan_digest(self) -> str:
        """Changes with the plan: figures show what is missing."""
        return hashlib.sha256(self.expected.encode()).hexdigest()[:8]


def open_session(values: dict, gpus: int = 1, remote: bool = False) -> Session:
    """Read and check everything; plan what runs now, on `gpus` GPUs at most. Raises ConfigError.

    remote: the jobs are for a cluster: nothing of this machine's devices is used.
    """
    config = load_config(values)
    for key in ("results", "data"):
        path = Path(getattr(config, key))
        nearest = next((p for p in (path, *path.parents) if p.exists()), Path())
        if not nearest.is_dir():
            raise ConfigError(f"{CONFIG_SOURCE}: {key}: {nearest} is no folder")
    if remote and config.study == "auto":
        raise ConfigError("study: auto looks at this machine, and the jobs run elsewhere; name one")
    if remote and config.gpu not in ("auto", "cpu"):
        raise ConfigError(f"gpu: {config.gpu!r} is for this machine; elsewhere allowed: auto, cpu")
    workloads = load_workloads(find_config_file(config.workloads))
    devices, why_not = [], "its jobs run elsewhere"
    if not remote:
        devices, why_not = find_devices(config.gpu)
    name, why = _choose(config, *(("paper", "a CUDA machine") if devices else ("smoke", why_not)))
    study = load_study(find_config_file(config.studies), name, workloads)
    digests = {
        key: user_code_digest(each.user_code.values(), each.user_files)
        for key, each in workloads.items()
    }
    sources = {key: digest for key, digest in digests.items() if digest}
    attempts = scan_attempts(Path(config.results, name, "cells"))
    cells = grid.expand(study, workloads, sources, pending.cells_out_of_memory(attempts))
    session = Session(
        *(config, name, why, study, cells, devices, attempts),
        gpus=1 if remote else max(gpus, 1),
        no_gpu=why_not,
        remote=remote,
        elsewhere=grid.merged_cells(cells, attempts),
    )
    session.id = config.session or session.id
    if session.measuring:
        _plan(session)
    return session


def open_posted(values: dict) -> Session:
    """For a job of a cluster, which reads the Snakefile again. Nothing is planned: its cells are
    those that the first session has written files for. Raises ConfigError.
    """
    config = load_config(values)
    workloads = load_workloads(find_config_file(config.workloads))
    study = load_study(find_config_file(config.studies), config.study, workloads)
    session = Session(config, config.study, "as asked for", study, [], [], {}, remote=True)
    for path in (session.folder / "jobs").rglob("a*.json"):
        task = Task.read(path)
        scenario, implementation, method, replicate = task.cell.split("/")
        cell = Cell(scenario, implementation, method, int(replicate[1:]), task.spec)
        rank = int(task.place.partition("/")[0])
        session.jobs.append(
            pending.PendingCell(cell, task.attempt, "posted", rank, task.estimate_s)
        )
    session.jobs.sort(key=lambda job: job.rank)
    return session


def _plan(session: Session) -> None:
    """What runs now: the cells that fit the budget."""
    config, attempts = session.config, session.attempts
    jobs = pending.pending_cells(
        *(session.cells, attempts, session.places, session.refusal),
        most=config.attempts,
        stale=session.stale,
        estimates=DurationEstimates(attempts, session.on_gpu),
        on_gpu=session.on_gpu,
    )
    budget = None if config.budget is None else parse_seconds(config.budget)
    among = session.keys, session.gpus, session.refusal
    session.jobs, session.later = pending.split_by_budget(jobs, budget, *among)
    if budget is not None and session.seconds <= budget:  # else it is one cell, which may be late
        session.deadline = round(time.time() + budget)


def _choose(config: Config, here: str, because: str) -> tuple[str, str]:
    """The study and why: as asked for, or the one for this machine; to draw, one that is there."""
    name, why = (here, because) if config.study == "auto" else (config.study, "as asked for")
    if config.measure is not False:
        return name, why
    known = {path.stem for path in find_config_file(config.studies).glob("*.yaml")}
    there = {path.parent.name for path in Path(config.results).glob("*/cells")}
    found = sorted(there & known)  # a contributed bundle is for comparing
    if name not in found and config.study == "auto" and len(found) == 1:
        return found[0], "the one that is there"
    if name not in found:
        allowed = ", ".join(found) or "none"
        raise ConfigError(f"study: {config.results}/{name} holds no results; there are: {allowed}")
    return name, why


def find_config_file(path: str) -> Path:
    """A config path as given, from the working directory, or else from the repository."""
    return Path(path) if Path(path).exists() else ROOT / path
