"""What a training process does before anything else, and how it says what ended it."""

import errno
import os
import random
import resource
from contextlib import suppress

import numpy as np
import psutil
import torch

_OUT_OF_MEMORY = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory"),
    *("std::bad_alloc", "alloc_failed"),  # the latter of cuBLAS and cuDNN
)
# Of cuBLAS and cuDNN where no memory is left for a handle, a kernel or its workspace. A broken
# installation says the same, so that these mean it only while little is free.
_STARVED = ("_status_not_initialized", "device_allocation_failed", "unable to find an engine")
LITTLE = 1 << 30  # bytes; or 2 % of a large device


def explain(error: BaseException, phase: str, spec: dict) -> None:
    """Have the error carry the phase that it happened in, and whether memory did not suffice."""
    error.phase = phase
    error.out_of_memory = is_out_of_memory(error, capped=bool(spec.get("memory_limit_bytes")))


def is_out_of_memory(error: BaseException, capped: bool = False) -> bool:
    """Whether this error says that device or host memory did not suffice.

    `capped`: under a memory cap, where oneDNN only says that it "could not create" something.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    starved = any(part in text for part in _STARVED) and _little_is_free()
    return says_out_of_memory(text) or starved or (capped and "could not create" in text)


def says_out_of_memory(text: str) -> bool:
    """Whether an error's text says so beyond doubt."""
    return any(part in text.lower() for part in _OUT_OF_MEMORY)


def _little_is_free() -> bool:
    with suppress(RuntimeError, AssertionError):  # a device in error; a torch without CUDA
        free, total = torch.cuda.mem_get_info()
        return free < max(LITTLE, total // 50)
    return False


def told_of(model: torch.nn.Module) -> dict:
    """What `built` tells of this process and the model in it."""
    parameters = list(model.parameters())
    return {
        "pid": os.getpid(),
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.nbytes for p in parameters),
        "threads": torch.get_num_threads(),
        "cores": sorted(os.sched_getaffinity(0)),
    }


def memory_peaks(known: bool) -> dict:
    """What `stopped` tells of torch's memory on the device; nulls where that is not `known`."""
    return {
        "memory_peak_allocated": torch.cuda.max_memory_allocated() if known else None,
        "memory_peak_reserved": torch.cuda.max_memory_reserved() if known else None,
    }


def synchronise(device: torch.device) -> None:
    """Wait for all work of this process on the device; the first call makes its CUDA context."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def set_up(spec: dict) -> torch.device:
    """Cores, threads, memory cap, numerics, seeds; the device, ready for use.

    Of this thread: whether its backward passes run on it, or on autograd's own (`backward`). The
    environment was set by the fork server, before anything could ask CUDA.
    Raises ValueError for a precision other than tf32 or bf16.
    """
    if spec["precision"] not in ("tf32", "bf16"):
        raise ValueError(f"precision {spec['precision']!r}: allowed are tf32, bf16")
    if spec.get("cores"):
        os.sched_setaffinity(0, spec["cores"])
    torch.set_num_threads(spec["threads"])
    torch.autograd.set_multithreading_enabled(spec["backward"] == "autograd")
    if spec.get("memory_limit_bytes"):
        # Start the threads: they need room of their own.
        torch.ones(512, 512) @ torch.ones(512, 512)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        mapped = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (mapped + spec["memory_limit_bytes"], hard))
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    random.seed(spec["seed"])
    np.random.seed(spec["seed"] % 2**32)
    torch.manual_seed(spec["seed"])
    device = torch.device(spec["device"])
    synchronise(device)
    return device
