"""Facts about the GPU that this process runs on, as CUDA reports them.

A limit that another process imposes (MPS) or a partition (MIG) shows only here, in the process
that lives under it.
"""

from __future__ import annotations  # the Python of a script that loads this may be 3.8

import ctypes
import os
import uuid

import torch

LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # of the SMs, for this client of MPS
# Rows, inner length and columns of products under such a limit; the last four are those of linear
# layers' backward passes, of which some are wrong where no square one is. Each is made so many
# times, for what is wrong now and then would look right in one.
SHAPES = (
    *((size, size, size) for size in (256, 512, 1024, 2048, 3072, 4096)),
    *((4096, width, width) for width in (512, 1024)),
    *((width, 4096, width) for width in (512, 1024)),
)
REPEATS = 3
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}
TOLERANCE = 0.02  # of the largest value; rounding stays below 0.01, wrong products reach 0.7


class _ExecAffinity(ctypes.Structure):
    """CUexecAffinityParam of the CUDA driver."""

    _fields_ = [("type", ctypes.c_int), ("sm_count", ctypes.c_uint)]


def device_facts(device: torch.device, formats: tuple[str, ...] = ("bf16", "fp16")) -> dict:
    """Describe the device; call it right after the context was made, before anything is loaded.

    formats: of the numbers that the process computes with, of FORMATS.
    Returns device_uuid ("GPU-…" or "MIG-…"), sm_count (SMs that this process can use), sm_source
    ("affinity": CUDA reports sm_count) and memory_free (bytes); None for what is not known. Under
    a limit of SMs also `products`, as of `check_products`.
    """
    if device.type != "cuda":
        return dict.fromkeys(("device_uuid", "sm_count", "sm_source", "memory_free"))
    memory_free, _ = torch.cuda.mem_get_info(device)
    driver = ctypes.CDLL("libcuda.so.1")  # Torch has loaded it already.
    affinity, handle, raw_uuid = _ExecAffinity(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    succeeded = driver.cuCtxGetExecAffinity(ctypes.byref(affinity), ctypes.c_int(0)) == 0
    sm_count = (affinity.sm_count or None) if succeeded else None
    driver.cuCtxGetDevice(ctypes.byref(handle))
    # Under MIG this is the UUID of the instance; torch reports that of the whole card.
    driver.cuDeviceGetUuid_v2(raw_uuid, handle)
    mig = os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
    products = {"products": check_products(device, formats)} if LIMIT in os.environ else {}
    return {
        "device_uuid": f"{'MIG' if mig else 'GPU'}-{uuid.UUID(bytes=bytes(raw_uuid))}",
        "sm_count": sm_count,
        "sm_source": None if sm_count is None else "affinity",
        "memory_free": memory_free,
        **products,
    }


def check_products(device: torch.device, formats: tuple[str, ...]) -> dict | None:
    """By number format: how many sizes of matrices were multiplied, and which came out wrong.

    Under some limits of SMs cuBLAS's products are wrong, and nothing says so. None where they
    cannot be made: memory does not suffice, or the process is capturing a CUDA graph.
    """
    if torch.cuda.is_current_stream_capturing():
        return None
    try:
        made = {
            name: {"sizes": len(SHAPES), "wrong": wrong_shapes(device, name)} for name in formats
        }
        torch.cuda.empty_cache()
    except RuntimeError:  # out of memory among them
        return None
    return made


def wrong_shapes(device: torch.device, name: str) -> list[tuple[int, int, int]]:
    """Those of SHAPES whose products in this number format are not those in float64."""
    options = {"generator": torch.Generator(device).manual_seed(0), "device": device}
    wrong = []
    for rows, inner, columns in SHAPES:
        first = torch.randn(inner, rows, **options).T  # as a weight's gradient has it
        if inner <= rows:
            first = first.contiguous()
        matrices = [first, torch.randn(inner, columns, **options)]
        matrices = [matrix.to(FORMATS[name]) for matrix in matrices]
        reference = torch.matmul(*(matrix.double() for matrix in matrices))
        errors = [relative_error(torch.matmul(*matrices), reference) for _ in range(REPEATS)]
        if not all(error <= TOLERANCE for error in errors):  # NaN is wrong, too
            wrong.append((rows, inner, columns))
    return wrong


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest difference from a float64 reference, by its largest value; NaN if there is one."""
    return ((value.double() - reference).abs().max() / reference.abs().max()).item()
