"""What CUDA says of the device that this process runs on: which one, and how much of it.

A limit that another process imposes (MPS) or a partition (MIG) shows here and nowhere else: the
member that lives under it can tell.
"""

import ctypes
import os
import uuid

import torch

BLOCKS_PER_SM, THREADS, SPIN_NS = 4, 1024, 20_000
ROUNDS = 5
SM_IDS = 4096  # beyond the largest %smid of any card

# Each block notes which SM it is on and stays for a while, so that the others go elsewhere.
VISIT = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry visit(.param .u64 seen, .param .u64 wait)
{
    .reg .pred %p; .reg .b32 %r<2>; .reg .b64 %d<6>;
    ld.param.u64 %d0, [seen];
    ld.param.u64 %d1, [wait];
    cvta.to.global.u64 %d0, %d0;
    mov.u32 %r0, %smid;
    mul.wide.u32 %d2, %r0, 4;
    add.s64 %d3, %d0, %d2;
    mov.u32 %r1, 1;
    st.global.u32 [%d3], %r1;
    mov.u64 %d4, %globaltimer;
loop:
    mov.u64 %d5, %globaltimer;
    sub.u64 %d5, %d5, %d4;
    setp.lt.u64 %p, %d5, %d1;
    @%p bra loop;
    ret;
}
\0"""


class _ExecAffinity(ctypes.Structure):
    """CUexecAffinityParam."""

    _fields_ = [("type", ctypes.c_int), ("sm_count", ctypes.c_uint)]


def device_facts(device: torch.device) -> dict:
    """To be asked right after the context was made, before anything is loaded; null: not known.

    device_name; device_uuid: "GPU-…" or "MIG-…"; sm_count: SMs that this process can use;
    sm_source: who says so, "affinity" (CUDA) or "residency" (where blocks came to lie);
    memory_free: bytes.
    """
    if device.type != "cuda":
        unknown = ("device_uuid", "sm_count", "sm_source", "memory_free")
        return {"device_name": "cpu", **dict.fromkeys(unknown)}
    memory_free, _ = torch.cuda.mem_get_info(device)
    properties = torch.cuda.get_device_properties(device)
    driver = _driver()
    source, count = "affinity", sm_affinity(driver)
    if count is None:
        source, count = "residency", sm_residency(driver, properties.multi_processor_count)
    mig = os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-")
    return {
        "device_name": properties.name,
        "device_uuid": f"{'MIG' if mig else 'GPU'}-{_uuid(driver) or properties.uuid}",
        "sm_count": count,
        "sm_source": None if count is None else source,
        "memory_free": memory_free,
    }


def sm_affinity(driver) -> int | None:
    """SMs that the current context can use, as CUDA has it; None where it does not answer."""
    found = _ExecAffinity()
    answered = _call(driver, "cuCtxGetExecAffinity", ctypes.byref(found), ctypes.c_int(0))
    return found.sm_count or None if answered else None


def sm_residency(driver, sm_count: int) -> int | None:
    """SMs that blocks of the current context come to lie on; None where that cannot be tried.

    sm_count: of the device, so that there are blocks enough. While others use the device, blocks
    may not reach every SM at once; hence several rounds, until one finds no new SM.
    """
    module, function, seen = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    if not _call(driver, "cuModuleLoadData", ctypes.byref(module), VISIT):
        return None
    try:
        size = ctypes.c_size_t(4 * SM_IDS)
        if not (
            _call(driver, "cuModuleGetFunction", ctypes.byref(function), module, b"visit")
            and _call(driver, "cuMemAlloc_v2", ctypes.byref(seen), size)
        ):
            return None
        try:
            return _visited(driver, function, seen, size, BLOCKS_PER_SM * sm_count)
        finally:
            _call(driver, "cuMemFree_v2", seen)
    finally:
        _call(driver, "cuModuleUnload", module)


def _visited(driver, function, seen, size, blocks: int) -> int | None:
    """How many SMs some rounds of blocks found; what one round wrote stays for the next."""
    wait, host = ctypes.c_uint64(SPIN_NS), (ctypes.c_uint32 * SM_IDS)()
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(seen), ctypes.addressof(wait))
    ones = [ctypes.c_uint(1)] * 2
    shape = [ctypes.c_uint(blocks), *ones, ctypes.c_uint(THREADS), *ones]
    if not _call(driver, "cuMemsetD8_v2", seen, ctypes.c_ubyte(0), size):
        return None
    count = 0
    for _ in range(ROUNDS):
        launched = _call(
            driver, "cuLaunchKernel", function, *shape, ctypes.c_uint(0), None, arguments, None
        )
        if not (launched and _call(driver, "cuMemcpyDtoH_v2", host, seen, size)):
            return None
        before, count = count, sum(host)
        if count == before:
            break
    return count


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
