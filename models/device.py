"""What CUDA says of the device that this process runs on: which one, and how much of it.

A limit that another process imposes (MPS) or a partition (MIG) shows here and nowhere else: the
member that lives under it can tell.
"""

import ctypes
import os
import uuid

import torch


class _ExecAffinity(ctypes.Structure):
    """CUexecAffinityParam."""

    _fields_ = [("type", ctypes.c_int), ("sm_count", ctypes.c_uint)]


def device_facts(device: torch.device) -> dict:
    """To be asked right after the context was made, before anything is loaded; null: not known.

    device_uuid: "GPU-…" or "MIG-…"; sm_count: SMs that this process can use;
    sm_source: who says so, "affinity" (CUDA); memory_free: bytes.
    """
    if device.type != "cuda":
        return dict.fromkeys(("device_uuid", "sm_count", "sm_source", "memory_free"))
    memory_free, _ = torch.cuda.mem_get_info(device)
    driver = ctypes.CDLL("libcuda.so.1")  # which torch has loaded
    affinity, handle, raw = _ExecAffinity(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    told = driver.cuCtxGetExecAffinity(ctypes.byref(affinity), ctypes.c_int(0)) == 0
    count = affinity.sm_count or None if told else None
    driver.cuCtxGetDevice(ctypes.byref(handle))
    driver.cuDeviceGetUuid_v2(raw, handle)  # under MIG of the part; torch has the whole card's
    mig = os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
    return {
        "device_uuid": f"{'MIG' if mig else 'GPU'}-{uuid.UUID(bytes=bytes(raw))}",
        "sm_count": count,
        "sm_source": None if count is None else "affinity",
        "memory_free": memory_free,
    }
