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
    driver = _driver()
    affinity = _ExecAffinity()
    asked = _call(driver, "cuCtxGetExecAffinity", ctypes.byref(affinity), ctypes.c_int(0))
    count = affinity.sm_count or None if asked else None
    name = _uuid(driver) or torch.cuda.get_device_properties(device).uuid
    mig = os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
    return {
        "device_uuid": f"{'MIG' if mig else 'GPU'}-{name}",
        "sm_count": count,
        "sm_source": None if count is None else "affinity",
        "memory_free": memory_free,
    }


def _uuid(driver) -> uuid.UUID | None:
    """Of the MIG device, where the current context is on one; torch may name the whole card."""
    handle, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    answered = _call(driver, "cuCtxGetDevice", ctypes.byref(handle)) and _call(
        driver, "cuDeviceGetUuid_v2", raw, handle
    )
    return uuid.UUID(bytes=bytes(raw)) if answered else None


def _driver():
    """CUDA's driver library, which torch has loaded; None where there is no such thing."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _call(driver, name: str, *arguments) -> bool:
    """Whether the driver knows this function, and it succeeded."""
    function = getattr(driver, name, None)
    return function is not None and function(*arguments) == 0
