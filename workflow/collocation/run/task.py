"""The job file of one attempt at a cell, and the specifications of the cell's members."""

import os
import socket
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

from pydantic import Field

from workflow.collocation.member.spec import (
    Implementation,
    InputSpec,
    MemberSpec,
    OptimizerSpec,
    ScriptSpec,
    ServingSpec,
    SharedLoaderSpec,
    TrainingSpec,
    TriggerSpec,
)
from workflow.collocation.sharing import method_class
from workflow.collocation.study.cell import CellSpec, ImplementationSpec
from workflow.collocation.study.definition import Duration, GpuChoice, Sampling, TimedPhase
from workflow.collocation.study.errors import ConfigError, Strict
from workflow.collocation.study.load import validate
from workflow.collocation.study.names import SHARED
from workflow.collocation.study.redaction import write_private
from workflow.collocation.study.regular_files import read_json, read_text
from workflow.collocation.study.workloads import (
    CommandWorkload,
    ServeWorkload,
    TrainedWorkload,
    Workload,
)

LOSS_INTERVAL_STEPS = 10  # The loss of every tenth step is recorded.
COMPILED = Path(".snakemake/compiled")  # The cache of torch.compile, for all members and cells.
# GPU work that a member of an interleaved cell may launch ahead, as it is held now and then.
LAUNCHED_AHEAD_S = 0.02
PORT_VARIABLES = ("MASTER_PORT", "PET_MASTER_PORT")  # of torch.distributed, and of torchrun
LOADER_PORTS = 4  # TensorSocket needs so many.


class Task(Strict):
    """One attempt at a cell, as its job file says it. Paths are relative to the working directory.

    output: the run.json to write. data: records of `python -m models.data prepare`. needs_gpu: the
    cell was planned for a GPU and must not run without one. trainer: the module that members run.
    preloaded: the name of a fork server that has already imported the trainer. place: of the cell
    in its run, such as 3/20. left_s: what the cells after it will take. deadline: Unix time at
    which the run's budget ends. estimate_s: what this cell will take. wait: for how long to wait
    for others to leave the GPU. given_up: a file that exists once no more cells are measured on
    this device, and says why.
    """

    study: str
    cell: str = Field(pattern=r"^[^/]+/[^/]+/[^/]+/r[1-9]\d*$")
    attempt: int = Field(1, ge=1)
    output: Path
    spec: CellSpec
    gpu: GpuChoice = "auto"
    needs_gpu: bool = False
    trainer: str = "models.train"
    data: list[Path] = []
    timeout: dict[TimedPhase, float] = {}
    telemetry: Sampling = Sampling()
    session: str | None = None
    preloaded: str | None = None
    place: str = ""
    left_s: float = 0
    deadline: float | None = None
    estimate_s: float = 0
    wait: Duration = "10m"
    given_up: Path | None = None

    @property
    def ended(self) -> str | None:
        """Why no more cells of this run are measured; None while they are."""
        if self.given_up is None or not self.given_up.exists():
            return None
        return read_text(self.given_up)

    @classmethod
    def read(cls, path: Path) -> "Task":
        """Read a job file. Raises ConfigError: one line with file and key."""
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: is no file of a job: {error}") from None
        return validate(cls, content, str(path))

    def write(self, path: Path) -> None:
        """Write the job file, readable by its owner only: a script's command may hold secrets."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, self.model_dump_json(indent=1) + "\n")


def member_specs(
    spec: CellSpec,
    device: str,
    core_sets: list[list[int]],
    environments: list[dict[str, str]],
    datasets: dict[str, dict],
    folder: Path,
    replicate: int,
) -> list[MemberSpec]:
    """The specifications of a cell's members, each with a new folder below `folder`.

    device: "cuda" or "cpu". core_sets: CPU numbers for each member. environments: variables that
    the sharing method sets for each member. datasets: records of `python -m models.data prepare`
    by dataset name. replicate: cells that differ in it have other arrival times of requests.
    """
    count = len(spec.members)
    stream_members = [m for m, name in enumerate(spec.methods) if method_class(name).one_process]
    stream_cores = sorted(core for member in stream_members for core in core_sets[member])
    launched_ahead_s = LAUNCHED_AHEAD_S if spec.measure.kind == "interleaved" else None
    shared_loader = None
    if spec.members[0].job.input.mode == SHARED:
        shared_loader = SharedLoaderSpec(ports=free_ports(LOADER_PORTS), jobs=count)
    specs = []
    for index, member in enumerate(spec.members):
        job = member.job
        on_stream = index in stream_members
        member_folder = folder / str(index)
        member_folder.mkdir(parents=True)
        environment = job_environment(job) | environments[index]
        if spec.implementation.compile:
            environment["TORCHINDUCTOR_CACHE_DIR"] = str(COMPILED.resolve())
        limit_mb = job.memory_limit_mb if isinstance(job, TrainedWorkload) else None
        specs.append(
            MemberSpec(
                index=index,
                workload=member.workload,
                kind=job.kind,
                job=job_spec(job, datasets, shared_loader, count),
                batch_size=job.batch_size,
                seed=spec.seed,
                device=device,
                cores=stream_cores if on_stream else core_sets[index],
                threads=len(core_sets[index]),
                folder=str(member_folder.resolve()),
                implementation=step_implementation(job, spec.implementation),
                environment=environment,
                warmup_steps=job.warmup_steps,
                warmup_s=spec.measure.warmup_s,
                loss_interval_steps=LOSS_INTERVAL_STEPS,
                window_steps=member.work,
                linger_s=job.answer_s if isinstance(job, ServeWorkload) else 0.0,
                arrival_seed=spec.seed + replicate if job.arrivals else None,
                launched_ahead_s=0.0 if on_stream else launched_ahead_s,
                on_stream=on_stream,
                memory_limit_bytes=limit_mb * 2**20 if limit_mb else None,
            )
        )
    return specs


def job_environment(job: Workload) -> dict[str, str | None]:
    """Variables that the catalogue sets for a script; one without a value is as it is here."""
    variables = getattr(job, "environment", {})
    return {
        name: os.environ.get(name) if value is None else value for name, value in variables.items()
    }


def step_implementation(job: Workload, implementation: ImplementationSpec) -> Implementation:
    """How the job's step is written; a script only says whether the GPU is waited for."""
    if isinstance(job, CommandWorkload):
        return Implementation(sync=job.sync)
    return Implementation(**implementation.model_dump(exclude={"cudnn_benchmark"}))


def job_spec(
    job: Workload,
    datasets: dict[str, dict],
    shared_loader: SharedLoaderSpec | None,
    member_count: int,
) -> TrainingSpec | ServingSpec | ScriptSpec:
    """What a member has to know of its job. member_count: jobs that start at the same time."""
    if isinstance(job, CommandWorkload):
        return ScriptSpec(
            command=job.run,
            working_folder=job.folder,
            steps=job.steps,
            step_timeout_s=job.first_step_s * member_count,
        )
    if isinstance(job, ServeWorkload):
        names = {field.name for field in fields(ServingSpec)}
        return ServingSpec(**job.model_dump(include=names))
    settings = job.optimizer.model_dump(exclude={"name", "base_lr", "base_batch"})
    lr = job.optimizer.base_lr * (job.batch_size / job.optimizer.base_batch)
    names = {field.name for field in fields(TrainingSpec)}
    same_fields = job.model_dump(include=names - {"input", "optimizer", "triggers"})
    return TrainingSpec(
        **same_fields
        | {"input_size": job.input_size},  # Some kinds have it as a constant of the class.
        dataset_folder=datasets[job.dataset]["path"],
        input=InputSpec(**job.input.resolved()),
        optimizer=OptimizerSpec(lr=lr, **settings),
        triggers=TriggerSpec(**job.triggers.model_dump()) if job.triggers else None,
        shared_loader=shared_loader,
    )


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports of this machine that nobody listens on."""
    with ExitStack() as stack:  # All sockets are open at once, so that the ports differ.
        ports = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
        return ports
