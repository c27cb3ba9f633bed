"""Sets up a process that trains by torch, and describes it for the conductor."""

import os
import random
import resource

import numpy as np
import psutil
import torch

from workflow.collocation.member.spec import MemberSpec


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


def forget_memory_peaks(device: torch.device) -> None:
    """Have `memory_peaks` count from now on, without what a check of the device has taken."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


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
