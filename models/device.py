"""Facts about the GPU that this process runs on, as CUDA reports them.

A limit that another process imposes (MPS) or a partition (MIG) shows only here, in the process
that lives under it.
"""

import ctypes
import os
import uuid

import torch


class _ExecAffinity(ctypes.Structure):
    """CUexecAffinityParam of the CUDA driver."""

    _fields_ = [("type", ctypes.c_int), ("sm_count", ctypes.c_uint)]


def device_facts(device: torch.device) -> dict:
    """Describe the device; call it right after the context was made, before anything is loaded.

    Returns device_uuid ("GPU-…" or "MIG-…"), sm_count (SMs that this process can use), sm_source
    ("affinity": CUDA reports sm_count) and memory_free (bytes); None for what is not known.
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
    return {
        "device_uuid": f"{'MIG' if mig else 'GPU'}-{uuid.UUID(bytes=bytes(raw_uuid))}",
        "sm_count": sm_count,
        "sm_source": None if sm_count is None else "affinity",
        "memory_free": memory_free,
    }
