"""Sets up a training process, and describes it and its errors for the conductor."""

import errno
import os
import random
import resource
import time
from contextlib import suppress

import numpy as np
import psutil
import torch

from workflow.collocation.member.spec import MemberSpec

_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "alloc_failed",  # of cuBLAS and cuDNN
)
# Errors of cuBLAS and cuDNN where no memory is left for a handle, a kernel or its workspace. A
# broken installation causes the same errors, so they count only while little memory is free.
_MAYBE_OUT_OF_MEMORY = (
    "_status_not_initialized",
    "device_allocation_failed",
    "unable to find an engine",
)
LITTLE_MEMORY_BYTES = 1 << 30  # or 2 % of a large device


def explain(error: BaseException, phase: str, spec: MemberSpec) -> None:
    """Attach to an error its phase, and whether it means that memory did not suffice."""
    error.phase = phase
    error.out_of_memory = is_out_of_memory(error, capped=bool(spec.memory_limit_bytes))


def is_out_of_memory(error: BaseException, capped: bool = False) -> bool:
    """Whether this error means that device or host memory did not suffice.

    capped: the process has a memory limit, under which oneDNN only reports that it "could not
    create" something.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    if says_out_of_memory(text) or (capped and "could not create" in text):
        return True
    return any(part in text for part in _MAYBE_OUT_OF_MEMORY) and _little_memory_is_free()


def says_out_of_memory(text: str) -> bool:
    """Whether the text of an error means, beyond doubt, that memory did not suffice."""
    return any(part in text.lower() for part in _OUT_OF_MEMORY)


def _little_memory_is_free() -> bool:
    # RuntimeError: the device is in an error state. AssertionError: torch has no CUDA.
    with suppress(RuntimeError, AssertionError):
        free, total = torch.cuda.mem_get_info()
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


def model_facts(model: torch.nn.Module) -> dict:
    """Fields of the `built` event about this process and the model in it."""
    parameters = list(model.parameters())
    return {
        "pid": os.getpid(),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "parameter_bytes": sum(parameter.nbytes for parameter in parameters),
        "threads": torch.get_num_threads(),
        "cores": sorted(os.sched_getaffinity(0)),
    }


def memory_peaks(measurable: bool) -> dict:
    """Fields of the `stopped` event about torch's device memory; None unless `measurable`."""
    return {
        "memory_peak_allocated": torch.cuda.max_memory_allocated() if measurable else None,
        "memory_peak_reserved": torch.cuda.max_memory_reserved() if measurable else None,
    }


def synchronise(device: torch.device) -> None:
    """Wait for all work of this process on the device; the first call makes its CUDA context."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def set_up(spec: MemberSpec) -> torch.device:
    """Set cores, threads, memory limit, numerics and seeds; returns the device, ready for use.

    The thread of backward passes is set for the calling thread only. The fork server has set the
    environment before, because CUDA reads it when it is initialised.
    Raises ValueError for a precision other than tf32 or bf16.
    """
    precision = spec.implementation.precision
    if precision not in ("tf32", "bf16"):
        raise ValueError(f"precision {precision!r}: allowed are tf32, bf16")
    os.sched_setaffinity(0, spec.cores)
    torch.set_num_threads(spec.threads)
    torch.autograd.set_multithreading_enabled(spec.implementation.backward == "autograd")
    if spec.memory_limit_bytes:
        # Torch's threads need memory too: start them before the limit.
        torch.ones(512, 512) @ torch.ones(512, 512)
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        mapped = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (mapped + spec.memory_limit_bytes, hard_limit))
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    random.seed(spec.seed)
    np.random.seed(spec.seed % 2**32)
    torch.manual_seed(spec.seed)
    device = torch.device(spec.device)
    synchronise(device)
    return device
