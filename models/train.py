"""What the fork server calls: `preload()` once, `main(spec, channel)` in each training process."""

import traceback

from models.jobs.base import find
from models.process import first_line, is_out_of_memory
from models.protocol import Channel


def preload() -> None:
    """Import what members need and this module has not imported yet; never touches CUDA."""
    import models.data.pipeline
    import models.member  # noqa: F401


def main(spec: dict, channel: Channel) -> int:
    """Train as `spec` says, under the channel's commands; the process's exit code.

    0 after `stopped`; 3 after running out of memory and 1 after any other error, both with an
    `error` event and a traceback on stderr. Raises BrokenPipeError when nobody reads the events.
    """
    member = None
    try:
        member = find(spec["kind"]).member(spec, channel)
        member.run()
    except BrokenPipeError:
        raise
    except Exception as error:
        traceback.print_exc()
        out_of_memory = is_out_of_memory(error, capped=bool(spec.get("memory_limit_bytes")))
        channel.emit(
            "error",
            **{"class": type(error).__name__},
            message=first_line(error),
            phase=member.phase if member else "build",
            out_of_memory=out_of_memory,
        )
        return 3 if out_of_memory else 1
    return 0
