"""What a member of any kind needs, with torch or without: its run, its errors and its files."""

import errno
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from workflow.collocation.member.failures import says_out_of_memory
from workflow.collocation.member.protocol import Channel
from workflow.collocation.member.spec import MemberSpec

# Errors of cuBLAS and cuDNN where no memory is left for a handle, a kernel or its workspace. A
# broken installation causes the same errors, so they count only while little memory is free.
_MAYBE_OUT_OF_MEMORY = (
    "_status_not_initialized",
    "device_allocation_failed",
    "unable to find an engine",
)
LITTLE_MEMORY_BYTES = 1 << 30  # or 2 % of a large device


def run_member(start: Callable, spec: MemberSpec, channel: Channel) -> int:
    """Run one member under the commands of the channel; returns 0 after `stopped`.

    start: makes the member from spec and channel. Its `run` may be a generator, of what it waits
    for. Exceptions carry the phase in which they happened, and whether memory did not suffice.
    """
    member = None
    try:
        member = start(spec, channel)
        for awaited in member.run() or ():
            awaited.ready(None)
    except Exception as error:
        explain(error, member.phase if member else "build", spec)
        raise
    return 0


def explain(error: BaseException, phase: str, spec: MemberSpec) -> None:
    """Attach to an error its phase, and whether it means that memory did not suffice."""
    error.phase = phase
    error.out_of_memory = is_out_of_memory(error, capped=bool(spec.memory_limit_bytes))


def is_out_of_memory(error: BaseException, capped: bool = False) -> bool:
    """Whether this error means that device or host memory did not suffice.

    capped: the process has a memory limit, under which oneDNN only reports that it "could not
    create" something.
    """
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    if says_out_of_memory(text) or (capped and "could not create" in text):
        return True
    return any(part in text for part in _MAYBE_OUT_OF_MEMORY) and _little_memory_is_free()


def _little_memory_is_free() -> bool:
    # The device is in an error state, torch has no CUDA, or this process has no torch.
    with suppress(RuntimeError, AssertionError, KeyError):
        free, total = sys.modules["torch"].cuda.mem_get_info()
        return free < max(LITTLE_MEMORY_BYTES, total // 50)
    return False


class BuildTimes:
    """Times the parts of building a job, for the `built` event."""

    def __init__(self, forked_s: float):
        """forked_s: monotonic time at which the process was forked."""
        self._last_s = forked_s
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Note that this part of the build has just ended."""
        now = time.monotonic()
        self.seconds[part] = round(now - self._last_s, 4)
        self._last_s = now


def save_steps(
    folder: str,
    end_ns: Sequence,
    wait_ns: Sequence,
    loss_step: Sequence[int],
    loss: Sequence,
    samples: Sequence = (),
) -> None:
    """Write steps.npz, completely or not at all.

    end_ns: when each step ended. wait_ns: how long it waited for its batch. loss_step, loss:
    numbers of steps, and their losses. samples [steps, batch]: numbers of the samples read.
    """
    target = Path(folder) / "steps.npz"
    partial = target.with_suffix(".part")
    with partial.open("wb") as file:
        np.savez(
            file,
            end_ns=np.array(end_ns, np.int64),
            wait_ns=np.array(wait_ns, np.int64),
            loss_step=np.array(loss_step, np.int64),
            loss=np.array(loss, np.float32),
            samples=np.array(samples, np.int32),
        )
    partial.replace(target)


def save_requests(
    folder: str, at_ns: Sequence, wanted: Sequence, tokens: Sequence, token_ns: Sequence
) -> None:
    """Write requests.npz.

    at_ns: when each request was to arrive. wanted: how many tokens it asked for. tokens: how many
    it got. token_ns: their times one after another. All times are ns of the monotonic clock.
    """
    columns = {"at_ns": at_ns, "wanted": wanted, "tokens": tokens, "token_ns": token_ns}
    arrays = {name: np.array(column, np.int64) for name, column in columns.items()}
    np.savez(Path(folder) / "requests.npz", **arrays)
