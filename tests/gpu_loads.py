"""Known loads for a GPU, one a process: `python -m tests.gpu_loads NAME [NUMBER]`.

  spin BLOCKS   one kernel of so many blocks, of which exactly one fits an SM, that does nothing
  copy          4 GiB of device memory copied to another place in it, again and again
  matmul        products of bf16 matrices of 8192 x 8192 (by torch; the others need no package)

Says `ready` once it has a context. For each line on stdin, a number of seconds, it runs the load
for so long: a line with the time (monotonic ns) before and one after. Ends with its stdin.
"""

import ctypes
import sys
import time
from collections.abc import Callable

GIB = 2**30
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

Load = Callable[[float], None]  # runs for so many seconds


class Driver:
    """A context on the first visible device, by CUDA's driver library alone."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")
        self._device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise RuntimeError(f"{name}: error {code}")

    def synchronise(self) -> None:
        self.call("cuCtxSynchronize")

    def shared_memory(self) -> int:
        """Bytes that a block can have at most."""
        found = ctypes.c_int()
        self.call(
            "cuDeviceGetAttribute", ctypes.byref(found), ctypes.c_int(OPTIN_SHARED), self._device
        )
        return found.value

    def memory(self, size: int) -> ctypes.c_uint64:
        """That many bytes of the device, all written once."""
        place = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", place, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        return place

    def spinner(self, blocks: int) -> Callable[[int], None]:
        """Launches, without waiting, blocks that each fill an SM and spin for some ns."""
        shared = self.shared_memory()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), SPIN)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"spin")
        limit = ctypes.c_int(DYNAMIC_SHARED), ctypes.c_int(shared)
        self.call("cuFuncSetAttribute", function, *limit)
        wait = ctypes.c_uint64()
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(wait))
        shape = [ctypes.c_uint(n) for n in (blocks, 1, 1, THREADS, 1, 1, shared)]

        def launch(ns: int) -> None:
            wait.value = ns  # the launch copies it
            self.call("cuLaunchKernel", function, *shape, None, arguments, None)

        return launch


def spin(blocks: str) -> Load:
    driver = Driver()
    launch = driver.spinner(int(blocks))
    launch(0)  # what is loaded lazily is then there
    driver.synchronise()

    def run(seconds: float) -> None:
        launch(int(seconds * 1e9))
        driver.synchronise()

    return run


def copy() -> Load:
    driver, size = Driver(), 4 * GIB
    places = driver.memory(size), driver.memory(size)

    def once() -> None:
        driver.call("cuMemcpyDtoDAsync_v2", *places, ctypes.c_size_t(size), None)

    return lambda seconds: _repeat(seconds, 20, once, driver.synchronise)


def matmul() -> Load:
    import torch

    a, b, c = torch.randn(3, 8192, 8192, device="cuda", dtype=torch.bfloat16)

    def run(seconds: float) -> None:
        _repeat(seconds, 20, lambda: torch.mm(a, b, out=c), torch.cuda.synchronize)

    run(0.1)
    return run


def _repeat(seconds: float, times: int, once: Callable, synchronise: Callable) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(times):
            once()
        synchronise()


LOADS = {"spin": spin, "copy": copy, "matmul": matmul}


def main() -> None:
    run = LOADS[sys.argv[1]](*sys.argv[2:])
    print("ready", flush=True)
    for line in sys.stdin:
        print(time.monotonic_ns(), flush=True)
        run(float(line))
        print(time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    main()
