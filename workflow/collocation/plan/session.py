"""One run of the workflow: its config, study, devices and cells, and the cells to measure now.

This module writes nothing; jobs.py does.
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

from workflow.collocation import gpu
from workflow.collocation.gpu import cores, find_devices
from workflow.collocation.plan import pending
from workflow.collocation.plan.attempts import CellAttempt, scan_attempts
from workflow.collocation.plan.datasets import Datasets
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
from workflow.collocation.study.layout import MANIFEST, RUN, RUNS
from workflow.collocation.study.load import (
    CONFIG_SOURCE,
    as_yaml,
    choose_study,
    find_config_file,
    load_config,
    load_study,
    load_workloads,
)
from workflow.collocation.study.regular_files import read_text


@dataclass
class Session:
    """One run of the workflow. `open_session` builds it. Paths are as the config gives them.

    study_reason: why it is this study. usable_gpus: none: the CPU is used. max_gpus: how many are
    used at the same time. no_gpu_reason: why there is no GPU, or why one was left out. remote: the
    jobs run on a cluster's machines. deadline: Unix time at which the budget ends. merged_cells:
    cells of replicates that were merged in. jobs, later: cells to run now, and beyond the budget.
    """

    config: Config
    name: str
    study_reason: str
    study: Study
    cells: list[Cell]
    usable_gpus: list[gpu.Device]
    attempts: dict[str, list[CellAttempt]]
    max_gpus: int = 1
    no_gpu_reason: str = ""
    remote: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    deadline: float | None = None
    merged_cells: list[Cell] = field(default_factory=list)
    jobs: list[pending.PendingCell] = field(default_factory=list)
    later: list[pending.PendingCell] = field(default_factory=list)
    _refusals: dict[tuple, str | None] = field(default_factory=dict)

    # -- devices --------------------------------------------------------------------------------

    @property
    def devices(self) -> list[gpu.Device]:
        """The GPUs in use: the first ones, and those on which replicates were begun."""
        begun = {job.device for job in self.jobs}
        first = self.usable_gpus[: self.max_gpus]
        return first + [d for d in self.usable_gpus[self.max_gpus :] if d.uuid in begun]

    @property
    def device(self) -> gpu.Device | None:
        """The first usable GPU."""
        return next(iter(self.usable_gpus), None)

    @property
    def device_names(self) -> list[str]:
        """Names of the devices in records and locks; on a cluster one for each replicate."""
        if self.remote:
            return [*self.replicate_devices.values()]
        cpu = f"cpu:{provenance.machine_alias()}"
        return [device.uuid for device in self.usable_gpus] or [cpu]

    @cached_property
    def replicate_devices(self) -> dict[int, str]:
        """Replicate → name of the device of its baselines and the cells that need them."""
        if self.remote:
            return {cell.replicate: pending.unknown_device(cell.replicate) for cell in self.cells}
        return pending.choose_devices(
            self.cells, self.attempts, self.device_names, self.max_gpus, self.is_stale
        )

    @cached_property
    def on_gpu(self) -> bool:
        """Whether the cells are for a GPU; a CPU's results never stand for those."""
        made_for_gpu = not self.study.cpu and self.config.gpu != "cpu"
        return self.device is not None or self.holds_gpu_cells or made_for_gpu

    @cached_property
    def holds_gpu_cells(self) -> bool:
        """Whether the study has results of a GPU."""
        return any(attempt.on_gpu for tried in self.attempts.values() for attempt in tried)

    @property
    def forbidden(self) -> str | None:
        """Why the jobs must not run here, and what to do; None if they may."""
        has_gpu = self.device is not None or (self.remote and self.config.gpu != "cpu")
        if not self.jobs or not self.on_gpu or has_gpu:
            return None
        problem = f"study '{self.name}' is made for a GPU"
        remedy = "gpu=cpu measures it on the CPU all the same"
        if self.holds_gpu_cells:
            problem = f"study '{self.name}' holds cells of a GPU"
            remedy = "gpu=cpu with another results folder measures it on the CPU"
        return f"{problem}, and none is used here ({self.no_gpu_reason}); {remedy}"

    # -- what is measured -----------------------------------------------------------------------

    @cached_property
    def _current_code(self) -> tuple[str, dict[str, str | None]]:
        driver = self.device.driver if self.device else None
        return code_digest(), provenance.package_versions(driver)

    def _is_mismatched(self, attempt: CellAttempt) -> bool:
        return bool(provenance.mismatches(attempt.record.provenance, *self._current_code))

    def is_stale(self, attempt: CellAttempt) -> bool:
        """Whether the config demands that a result is measured again."""
        return self.config.rerun == "mismatched" and self._is_mismatched(attempt)

    def mismatched(self) -> list[CellAttempt]:
        """Results of other code or versions than the current ones."""
        counted = pending.counted_attempts(self.cells, self.attempts)
        return [a for a in counted if a.status in MEASURED and self._is_mismatched(a)]

    @property
    def measuring(self) -> bool:
        """Whether cells may be measured: by default unless the study ships."""
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

    def record_path(self, job_path: str) -> str:
        """The run.json of an attempt's folder below `cells_folder`."""
        return (self.cells_folder / job_path / RUN).as_posix()

    @cached_property
    def measured_records(self) -> list[str]:
        """The run.json of every attempt that counts."""
        cells = [*self.cells, *self.merged_cells]
        counted = pending.counted_attempts(cells, self.attempts, self.sealed)
        return [attempt.path.as_posix() for attempt in counted]

    @property
    def planned_records(self) -> list[str]:
        """The run.json of every job to run."""
        return [self.record_path(job.path) for job in self.jobs]

    def is_outdated(self) -> bool:
        """Whether another run has changed the study since this one was planned."""
        return scan_attempts(self.cells_folder) != self.attempts

    @property
    def tables_current(self) -> bool:
        """Whether the tables were made from exactly the records that count.

        The list of merged records says so; file times mean nothing in a copy.
        """
        path = self.folder / RUNS
        if not path.exists():
            return False
        return {*read_text(path).splitlines()} == {*self.measured_records, *self.planned_records}

    @property
    def seconds(self) -> float:
        """How long the jobs will take, on all devices in parallel."""
        device_seconds: dict[str, float] = {}
        return max((job.add_to(device_seconds) for job in self.jobs), default=0.0)

    def refusal(self, cell: Cell, device_uuid: str = "") -> str | None:
        """Why a cell cannot run on a device, by default its replicate's, or None.

        A cluster's devices cannot be asked, so the newest result of the cell is the answer.
        """
        if self.remote and self.on_gpu:
            tried = pending.attempts_at(cell, self.attempts)
            return pending.refusal_reason([attempt for attempt in tried if attempt.on_gpu])
        uuid = device_uuid or self.replicate_devices.get(cell.replicate)
        if (cell.id, uuid) not in self._refusals:
            by_uuid = {device.uuid: device for device in self.usable_gpus}
            self._refusals[cell.id, uuid] = refusal(cell.spec, by_uuid.get(uuid, self.device))
        return self._refusals[cell.id, uuid]

    @cached_property
    def datasets(self) -> Datasets:
        """The datasets that the jobs need."""
        sizes: dict[str, set[int]] = {}
        for job in self.jobs:
            if self.refusal(job.cell) is not None:
                continue
            for member in job.cell.spec.members:
                if member.job.dataset:
                    sizes.setdefault(member.job.dataset, set()).add(member.job.input_size)
        return Datasets(self.config, self.study, self.folder, sizes)

    # -- for Snakemake's rules --------------------------------------------------------------------

    @cached_property
    def jobs_by_path(self) -> dict[str, pending.PendingCell]:
        """Attempt's folder below `cells_folder` → job."""
        return {job.path: job for job in self.jobs}

    @property
    def threads(self) -> int:
        """Cores that Snakemake counts for a cell, so that all GPUs can run one at the same time."""
        share = cores.usable() // len(self.devices) if self.devices else self.study.cores_for
        return max(1, min(self.study.cores_for, share))

    def card_resource(self, number: int) -> Callable:
        """A function for Snakemake: 1 if a job takes the GPU with this number, else 0."""
        uuid = self.devices[number].uuid
        return lambda wildcards: int(self.jobs_by_path[wildcards.job].device == uuid)

    def replicate_groups(self, components: dict[str, str]) -> Callable:
        """A function for Snakemake: the name of the group of a job's replicate.

        A replicate is one job of a cluster, so that its cells run one after the other on one GPU.
        components: Snakemake's groups and the names that --group-components uses, extended here.
        """
        groups = {path: f"replicate{job.cell.replicate}" for path, job in self.jobs_by_path.items()}
        components |= dict.fromkeys(groups.values(), "replicate")
        return lambda wildcards: groups[wildcards.job]

    def data_files(self, job_path: str) -> list[str]:
        """The files that exist once a job's datasets are ready.

        Ends the run if the cell is not to be measured now, before Snakemake removes its record.
        """
        if job_path not in self.jobs_by_path:
            record = self.record_path(job_path)
            measured = f"nothing to do: {record} is measured already"
            other = f"{record} is not to be measured now, by the study's plan"
            print(measured if record in self.measured_records else other, file=sys.stderr)
            sys.exit(1)
        return self.datasets.ready_files()

    def runtime_min(self, job_path: str) -> int:
        """Minutes after which a cluster may end a job: its own time-outs end it before that."""
        job = self.jobs_by_path[job_path]
        first = next(j for j in self.jobs if j.cell.replicate == job.cell.replicate)
        # A cluster adds up the minutes of a replicate's cells, of which at most one hangs.
        if self.remote and job is not first:
            return math.ceil(2 * job.estimate_s / 60) + 1
        timeouts = TIMEOUTS | self.config.timeout
        # Choosing kernels has the time-out of the phase `warm` as well.
        timeout_s = sum(timeouts.values()) + timeouts["warm"] + parse_seconds(self.config.wait)
        return math.ceil((3 * job.estimate_s + timeout_s) / 60)

    def settings(self) -> str:
        """This session's config as KEY=VALUE arguments, quoted for a shell."""
        values = self.config.model_dump(exclude_none=True)
        return shlex.join(f"{key}={as_yaml(value)}" for key, value in values.items())

    # -- for analysis -----------------------------------------------------------------------------

    @cached_property
    def plan_json(self) -> str:
        """The cells that analysis may expect, as JSON with one line for each."""
        keys = ("id", "scenario", "implementation", "method", "replicate", "n")
        lines = []
        for cell in (*self.cells, *self.merged_cells):
            entry = {key: getattr(cell, key) for key in keys}
            entry["workloads"] = [member.workload for member in cell.spec.members]
            entry["measure"] = cell.spec.measure.kind
            lines.append(json.dumps(entry))
        return "[\n" + ",\n".join(lines) + "\n]\n"

    @property
    def plan_digest(self) -> str:
        """Changes with the plan, since figures show which cells are missing."""
        return hashlib.sha256(self.plan_json.encode()).hexdigest()[:8]


def open_session(values: dict, max_gpus: int = 1, remote: bool = False) -> Session:
    """Read and check the config and the study, and plan what runs now. Raises ConfigError.

    values: of the config. remote: the jobs are for a cluster, so this machine's devices are unused.
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
    devices, no_gpu_reason = [], "its jobs run elsewhere"
    if not remote:
        devices, no_gpu_reason = find_devices(config.gpu)
    default = ("paper", "a CUDA machine") if devices else ("smoke", no_gpu_reason)
    name, study_reason = choose_study(config, *default)
    study = load_study(find_config_file(config.studies), name, workloads)
    sources = {}
    for workload_name, workload in workloads.items():
        if digest := user_code_digest(workload.user_code.values(), workload.user_files):
            sources[workload_name] = digest
    attempts = scan_attempts(Path(config.results, name, "cells"))
    cells = grid.expand(study, workloads, sources, pending.cells_out_of_memory(attempts))
    session = Session(
        config=config,
        name=name,
        study_reason=study_reason,
        study=study,
        cells=cells,
        usable_gpus=devices,
        attempts=attempts,
        max_gpus=1 if remote else max(max_gpus, 1),
        no_gpu_reason=no_gpu_reason,
        remote=remote,
        merged_cells=grid.merged_cells(cells, attempts),
    )
    session.id = config.session or session.id
    if session.measuring:
        _plan_jobs(session)
    return session


def open_posted(values: dict) -> Session:
    """The session of a cluster's job, which reads the Snakefile again.

    Nothing is planned: its jobs are those for which the first session has written files. Raises
    ConfigError.
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


def _plan_jobs(session: Session) -> None:
    """Set the session's jobs: the pending cells that fit the budget."""
    config = session.config
    jobs = pending.pending_cells(
        session.cells,
        session.attempts,
        session.replicate_devices,
        session.refusal,
        max_attempts=config.attempts,
        is_stale=session.is_stale,
        on_gpu=session.on_gpu,
    )
    budget_s = None if config.budget is None else parse_seconds(config.budget)
    session.jobs, session.later = pending.split_by_budget(
        jobs, budget_s, session.device_names, session.max_gpus, session.refusal
    )
    # A single cell may exceed the budget, and then there is no deadline.
    if budget_s is not None and session.seconds <= budget_s:
        session.deadline = round(time.time() + budget_s)
