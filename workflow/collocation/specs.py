"""From a cell's spec to the member specs that models/train.py takes."""

from pathlib import Path

LOSS_EVERY = 10  # steps
NOT_THE_MEMBERS = ("dataset", "optimizer", "cores_of", "source", "memory_limit_mb")
NOT_THE_MEMBERS += ("slice", "sm_percent", "pinned_memory_mb")  # the method's business


def member_specs(
    spec: dict,
    device: str,
    core_sets: list[list[int]],
    environments: list[dict[str, str]],
    datasets: dict[str, dict],
    folder: Path,
) -> list[dict]:
    """One member spec for each entry of spec["members"], with a folder of its own below `folder`.

    device: "cuda" or "cpu". core_sets: CPU numbers by member. datasets: what
    `python -m models.data prepare` wrote, by name.
    """
    specs = []
    for index, member in enumerate(spec["members"]):
        own = folder / str(index)
        own.mkdir(parents=True)
        specs.append(
            {
                **{key: value for key, value in member.items() if key not in NOT_THE_MEMBERS},
                **_of_kind(member, spec["arm"], datasets),
                "member": index,
                "seed": spec["seed"],
                "device": device,
                "threads": len(core_sets[index]),
                "cores": core_sets[index],
                "environment": environments[index],
                "warmup_s": spec["measure"]["warmup_s"],
                "epochs": spec["measure"].get("epochs"),
                "loss_every": LOSS_EVERY,
                "folder": str(own.resolve()),
            }
        )
    return specs


def _of_kind(member: dict, arm: dict, datasets: dict[str, dict]) -> dict:
    """What a command has of its own, or a job that we feed and write in the arm's way."""
    if member["kind"] == "command":
        return {"directory": member["folder"]}
    optimizer, limit = dict(member["optimizer"]), member["memory_limit_mb"]
    scale = member["batch_size"] / optimizer.pop("base_batch")
    return {
        **arm,
        "optimizer": {"lr": optimizer.pop("base_lr") * scale, **optimizer},
        "data": {"name": member["dataset"], "path": datasets[member["dataset"]]["path"]},
        "memory_limit_bytes": limit * 2**20 if limit else None,
    }


def plan_shares(spec: dict) -> list[int | str]:
    """What `cores.plan_cores` takes: into how many shares the cores are divided, or "all"."""
    return [member["cores_of"] or "all" for member in spec["members"]]
