"""From a cell's spec to the member specs that models/train.py takes."""

import os
from pathlib import Path

from workflow.collocation.spec.cell import ArmSpec, CellSpec
from workflow.collocation.spec.workloads import CommandWorkload, Workload

LOSS_EVERY = 10  # steps
COMPILED = Path(".snakemake/compiled")  # what torch.compile made, for all members and later cells
IN_FLIGHT_S = 0.02  # work that a member may have launched ahead, if it is to be held now and then
BESIDE = {"description", "dataset", "folder", "optimizer", "input", "memory_limit_mb"}


def member_specs(
    spec: CellSpec,
    device: str,
    core_sets: list[list[int]],
    environments: list[dict[str, str]],
    datasets: dict[str, dict],
    folder: Path,
) -> list[dict]:
    """One member spec for each of the spec's members, with a folder of its own below `folder`.

    device: "cuda" or "cpu". core_sets: CPU numbers by member. datasets: what
    `python -m models.data prepare` wrote, by name.
    """
    compiled = {"TORCHINDUCTOR_CACHE_DIR": str(COMPILED.resolve())} if spec.arm.compile else {}
    specs = []
    for index, member in enumerate(spec.members):
        own = folder / str(index)
        own.mkdir(parents=True)
        specs.append(
            {
                **member.job.model_dump(exclude=BESIDE),
                **_of_kind(member.job, spec.arm, datasets),
                "member": index,
                "workload": member.workload,
                "input": member.job.input.resolved(),
                "work": member.work,
                "seed": spec.seed,
                "device": device,
                "threads": len(core_sets[index]),
                "cores": core_sets[index],
                "environment": _told(member.job) | environments[index] | compiled,
                "warmup_s": spec.measure.warmup_s,
                "epochs": None,
                "loss_every": LOSS_EVERY,
                "in_flight_s": IN_FLIGHT_S if spec.measure.kind == "alternate" else None,
                "folder": str(own.resolve()),
            }
        )
    return specs


def _told(job: Workload) -> dict[str, str | None]:
    """What the catalogue sets for a script; where it gives no value, as it is here."""
    given = getattr(job, "environment", {})
    return {n: os.environ.get(n) if value is None else value for n, value in given.items()}


def _of_kind(job: Workload, arm: ArmSpec, datasets: dict[str, dict]) -> dict:
    """What a command has of its own, or a job that we feed and write in the arm's way."""
    if isinstance(job, CommandWorkload):
        return {"directory": job.folder}
    optimizer, limit = job.optimizer.model_dump(), job.memory_limit_mb
    scale = job.batch_size / optimizer.pop("base_batch")
    return {
        **arm.model_dump(),
        "input_size": job.input_size,
        "optimizer": {"lr": optimizer.pop("base_lr") * scale, **optimizer},
        "data": {"name": job.dataset, "path": datasets[job.dataset]["path"]},
        "memory_limit_bytes": limit * 2**20 if limit else None,
    }
