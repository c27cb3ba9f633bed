"""The file of a job: all that one cell's run needs to know; and what it tells the members."""

import os
from pathlib import Path

from pydantic import Field

from workflow.collocation.sharing import method_class
from workflow.collocation.study.cell import CellSpec, ImplementationSpec
from workflow.collocation.study.definition import Duration, GpuChoice, Sampling, TimedPhase
from workflow.collocation.study.errors import ConfigError, Strict
from workflow.collocation.study.load import validate
from workflow.collocation.study.redaction import write_private
from workflow.collocation.study.regular_files import read_json, read_text
from workflow.collocation.study.workloads import CommandWorkload, TrainedWorkload, Workload

LOSS_EVERY = 10  # steps
COMPILED = Path(".snakemake/compiled")  # what torch.compile made, for all members and later cells
IN_FLIGHT_S = 0.02  # work that a member may have launched ahead, if it is to be held now and then
BESIDE = {"description", "dataset", "folder", "optimizer", "input", "memory_limit_mb"}


class Task(Strict):
    """One attempt at a cell, as a job file says it. Paths are as seen from the working directory.

    output: the run.json to write. data: what `models.data prepare` wrote. needs_gpu: planned for a
    GPU, so never to be run without. preloaded: the name of the server that has imported the
    trainer. place: in the run, such as 3/20. left_s: what follows it takes. deadline: Unix time at
    which the budget ends. wait: how long others on the card are waited for. given_up: the file that
    says why no cell of the run is measured any more on this device.
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
        """Why no cell of this run is measured any more; None while they are."""
        there = self.given_up is not None and self.given_up.exists()
        return read_text(self.given_up) if there else None

    @classmethod
    def read(cls, path: Path) -> "Task":
        """Raises ConfigError: one line with file and key."""
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: is no file of a job: {error}") from None
        return validate(cls, content, str(path))

    def write(self, path: Path) -> None:
        """Commands stand in it as they are run: it is no record, and does not ship."""
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
) -> list[dict]:
    """One member spec for each of the spec's members, with a folder of its own below `folder`.

    device: "cuda" or "cpu". core_sets: CPU numbers by member. datasets: what
    `python -m models.data prepare` wrote, by name. replicate: whose requests arrive.
    """
    compiled = (
        {"TORCHINDUCTOR_CACHE_DIR": str(COMPILED.resolve())} if spec.implementation.compile else {}
    )
    held = IN_FLIGHT_S if spec.measure.kind == "interleaved" else None
    together = [m for m, name in enumerate(spec.methods) if method_class(name).one_process]
    shared = sorted(core for m in together for core in core_sets[m])
    specs = []
    for index, member in enumerate(spec.members):
        own, job = folder / str(index), member.job
        joined = index in together
        own.mkdir(parents=True)
        # What the catalogue sets for a script; where it gives no value, as it is here.
        given = getattr(job, "environment", {})
        told = {n: os.environ.get(n) if value is None else value for n, value in given.items()}
        specs.append(
            {
                **job.model_dump(exclude=BESIDE),
                **_of_kind(job, spec.implementation, datasets),
                "member": index,
                "beside": len(spec.members),  # as many begin at once
                "process": spec.methods[index] if joined else None,  # one for all of these
                "workload": member.workload,
                "input": job.input.resolved(),
                "work": member.work,
                "seed": spec.seed,
                # Of its cells the same, of others other ones; None: it works all the time.
                "arrivals": spec.seed + replicate if job.arrivals else None,
                "device": device,
                "threads": len(core_sets[index]),
                "cores": shared if joined else core_sets[index],
                "environment": told | environments[index] | compiled,
                "warmup_s": spec.measure.warmup_s,
                "loss_every": LOSS_EVERY,
                "in_flight_s": 0.0 if joined else held,
                "folder": str(own.resolve()),
            }
        )
    return specs


def _of_kind(job: Workload, implementation: ImplementationSpec, datasets: dict[str, dict]) -> dict:
    """What a command has of its own, or a job that we write in the implementation's way, and feed
    if it is trained.
    """
    if isinstance(job, CommandWorkload):
        return {"directory": job.folder}
    if not isinstance(job, TrainedWorkload):
        told = {"memory_limit_bytes": None, "linger_s": job.answer_s}
        return implementation.model_dump() | told
    optimizer, limit = job.optimizer.model_dump(), job.memory_limit_mb
    scale = job.batch_size / optimizer.pop("base_batch")
    return {
        **implementation.model_dump(),
        "input_size": job.input_size,
        "optimizer": {"lr": optimizer.pop("base_lr") * scale, **optimizer},
        "data": {"name": job.dataset, "path": datasets[job.dataset]["path"]},
        "memory_limit_bytes": limit * 2**20 if limit else None,
    }
