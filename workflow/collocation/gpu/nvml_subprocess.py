"""NVML calls run in a child process, so that a hung driver cannot hang us.

A call into the driver may never return, and keeps its whole process from ending. So the first call
forks a child; where no answer comes, that is left behind, and no more is asked.
"""

import atexit
import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import pynvml

from workflow.collocation.process_lifetime import END_SIGNALS, end_with_parent
from workflow.collocation.study.errors import NotInForce

ANSWER_S = 20.0
END_S = 2.0  # for the kernel to end a child that was killed


class DriverError(NotInForce):
    """The NVIDIA driver fails, with its words and what to do."""


class DriverSilent(DriverError):
    """The driver did not answer in time, or the process that asked it has ended."""


def in_subprocess(seconds: float | None = None) -> Callable:
    """Decorate a function that calls NVML, to run in the child process.

    seconds: how long to wait for its result (default: ANSWER_S). Arguments and result are pickled;
    NVML handles mean nothing outside the child. Raises what the function raises, or DriverSilent.
    """

    def decorate(function: Callable) -> Callable:
        @wraps(function)
        def call(*arguments):
            if CHILD.inside:
                return function(*arguments)
            return CHILD.call(call, arguments, ANSWER_S if seconds is None else seconds)

        return call

    return decorate


class NvmlProcess:
    """The child process that calls NVML; inside: whether this is it."""

    inside = False
    pid = owner = 0
    silent: DriverSilent | None = None  # once the driver did not answer
    pipe: Connection

    def call(self, function: Callable, arguments: tuple, seconds: float):
        """The function's result in the child; raises what it raises, or DriverSilent."""
        if self.owner != os.getpid():  # not started yet, or the child of the process we forked from
            self.owner, self.pid, self.silent = os.getpid(), 0, None
        if self.silent:
            raise self.silent
        if not self.pid:
            self._start()
        name, answered = function.__name__, False
        try:
            self.pipe.send((function, arguments))
            if not self.pipe.poll(seconds):
                pid = self.pid
                stuck = "" if self.end() else f"; PID {pid} is stuck in it"
                silence = f"nothing on '{name}' within {seconds:.0f} s{stuck}"
                self.silent = DriverSilent(f"the NVIDIA driver does not answer: {silence}")
                raise self.silent
            succeeded, result, message = self.pipe.recv()
            answered = True
        except (EOFError, OSError):
            raise DriverSilent(
                f"the process that asks the NVIDIA driver ended at '{name}'"
            ) from None
        finally:
            if not answered:  # a late answer would be taken for that of the next call
                self.end()
        if succeeded:
            return result
        if isinstance(result, pynvml.NVMLError):  # its message is in the child's library
            pynvml.NVMLError._errcode_to_string.setdefault(result.value, message)
        raise result

    def end(self) -> bool:
        """Kill the child, if there is one; whether it has ended."""
        if self.owner != os.getpid() or not self.pid:
            return True
        self.pipe.close()
        deadline, pid, self.pid = time.monotonic() + END_S, self.pid, 0
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            while not os.waitpid(pid, os.WNOHANG)[0]:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.005)
        return True

    def _start(self) -> None:
        self.pipe, child_pipe = Pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)  # for good in the child
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._serve(child_pipe)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        child_pipe.close()

    def _serve(self, pipe: Connection) -> NoReturn:
        """Answer until the parent has gone."""
        end_with_parent(self.owner)
        # Hold nothing of the parent's: its locks, a terminal, a pipe whose end somebody awaits.
        gc.freeze()  # or collected file objects would close descriptors that are in use anew
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        for path in Path("/proc/self/fd").iterdir():
            if (fd := int(path.name)) not in (0, 1, 2, pipe.fileno()):
                with suppress(OSError):
                    os.close(fd)
        self.inside = True
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
        while True:
            function, arguments = pipe.recv()
            try:
                pipe.send((True, function(*arguments), ""))
            except Exception as error:
                pipe.send((False, error, str(error)))


CHILD = NvmlProcess()
atexit.register(lambda: CHILD.end())  # or a container without an init keeps a zombie for each cell
