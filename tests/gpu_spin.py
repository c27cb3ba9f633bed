"""A kernel that spins on so many SMs: `python -m tests.gpu_spin BLOCKS SECONDS`.

Exactly one of its blocks fits an SM. Says `spins` once they do, and ends with them.
"""

import ctypes
import sys

THREADS = 256
OPTIN_SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: more than half an SM's
DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 wait)
{
    .reg .pred %p; .reg .b64 %d<3>;
    ld.param.u64 %d0, [wait];
    mov.u64 %d1, %globaltimer;
loop:
    mov.u64 %d2, %globaltimer;
    sub.u64 %d2, %d2, %d1;
    setp.lt.u64 %p, %d2, %d0;
    @%p bra loop;
    ret;
}
\0"""


def call(name: str, *arguments) -> None:
    """Of CUDA's driver library; torch is not needed."""
    if code := getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments):
        raise RuntimeError(f"{name}: error {code}")


def main(blocks: int, seconds: float) -> None:
    device, shared, wait = ctypes.c_int(), ctypes.c_int(), ctypes.c_uint64()
    context, module, function = (ctypes.c_void_p() for _ in range(3))
    call("cuInit", ctypes.c_uint(0))
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuDeviceGetAttribute", ctypes.byref(shared), ctypes.c_int(OPTIN_SHARED), device)
    call("cuModuleLoadData", ctypes.byref(module), SPIN)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
    call("cuFuncSetAttribute", function, ctypes.c_int(DYNAMIC_SHARED), shared)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(wait))
    shape = [ctypes.c_uint(n) for n in (blocks, 1, 1, THREADS, 1, 1, shared.value)]
    for ns in (0, int(seconds * 1e9)):  # what is loaded lazily is there after the first
        wait.value = ns  # the launch copies it
        call("cuLaunchKernel", function, *shape, None, arguments, None)
        if ns:
            print("spins", flush=True)
        call("cuCtxSynchronize")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
