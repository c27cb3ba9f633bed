"""What the fork server calls: `preload()` once, `main(spec, channel)` in each training process."""

from models.jobs import find
from models.jobs.base import Job
from models.member import Member
from models.process import is_out_of_memory
from models.protocol import Channel


def preload() -> None:
    """Import what members need and this module has not imported yet; never touches CUDA."""
    import torchvision.datasets  # noqa: F401


def main(spec: dict, channel: Channel) -> int:
    """Train as `spec` says, under the channel's commands; 0 after `stopped`.

    What is raised carries the phase that it happened in, and whether memory did not suffice.
    """
    member = None
    try:
        kind = find(spec["kind"])
        member = (Member if issubclass(kind, Job) else kind)(spec, channel)
        member.run()
    except Exception as error:
        error.phase = member.phase if member else "build"
        error.out_of_memory = is_out_of_memory(error, capped=bool(spec.get("memory_limit_bytes")))
        raise
    return 0
