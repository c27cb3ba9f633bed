"""A second CUDA context: another process opens one on the members' GPU, works a little, and ends.

So the GPU leaves the members' context once and comes back to it. Until it has, a context that has
the GPU to itself replays CUDA graphs more slowly: on an H200 by up to 10 % (docs/results.md).
"""

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial

from workflow.collocation.process_lifetime import end_with_parent

TIMEOUT_S = 30.0  # for a process that takes less than one second
END_S = 2.0  # for the kernel to end a process that was killed
BYTES = 1 << 20  # of device memory that it writes


def second_context(environment: dict[str, str]) -> str | None:
    """Open a second CUDA context for a moment; why that failed, or None.

    environment: all variables of the process, among them those that name the device. It must be no
    client of an MPS daemon, or it would be in the context that is to be left.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        process_group=0,  # a terminal's Ctrl-C is for the conductor to handle
        preexec_fn=partial(end_with_parent, os.getpid()),
    )
    try:
        output = process.communicate(timeout=TIMEOUT_S)[0].strip()
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT_S:.0f} s"
    finally:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # stuck in the driver: it is left behind
            process.wait(END_S)
    if process.returncode == 0:
        return None
    return output.rpartition("\n")[2] or f"exit {process.returncode}"


def use_device(driver) -> None:
    """Open CUDA on the first visible device, and have it write some memory.

    driver: the library libcuda. Raises OSError with CUDA's name of what went wrong.
    """

    def call(name: str, *arguments) -> None:
        if code := getattr(driver, name)(*arguments):
            error = ctypes.c_char_p()
            driver.cuGetErrorName(code, ctypes.byref(error))
            raise OSError(f"{name}: {(error.value or b'').decode() or code}")

    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(BYTES))
    call("cuMemsetD8_v2", memory, 0, ctypes.c_size_t(BYTES))
    call("cuCtxSynchronize")


if __name__ == "__main__":
    try:
        use_device(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        sys.exit(f"{error}")
