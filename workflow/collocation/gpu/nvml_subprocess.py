"""NVML calls run in a child process, so that a hung driver cannot hang us.

A call into the driver may never come back, and keeps its whole process from ending. So the first
question forks a child, and where no answer comes, that is left behind, and no more is asked.
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
    """The NVIDIA driver fails: with its words, and what to do."""


class Silent(DriverError):
    """The driver did not answer in time, or whoever asked it has ended."""


def in_subprocess(seconds: float | None = None) -> Callable:
    """Have the child call a function that asks NVML, and wait so long (ANSWER_S) for what it gives
    or raises.

    What goes there and back is pickled: handles mean nothing outside the child. Raises Silent, too.
    """

    def decorate(question: Callable) -> Callable:
        @wraps(question)
        def ask(*arguments):
            if CHILD.inside:
                return question(*arguments)
            return CHILD.ask((ask, arguments), ANSWER_S if seconds is None else seconds)

        return ask

    return decorate


class Child:
    """The process that asks. `inside` is true there."""

    inside = False
    pid = owner = 0
    silent: Silent | None = None  # once the driver did not answer
    pipe: Connection

    def ask(self, question: tuple[Callable, tuple], seconds: float):
        """Raises what the question raises there, or Silent."""
        if self.owner != os.getpid():  # nobody's yet, or of who forked us
            self.owner, self.pid, self.silent = os.getpid(), 0, None
        if self.silent:
            raise self.silent
        if not self.pid:
            self._start()
        name, answered = question[0].__name__, False
        try:
            self.pipe.send(question)
            if not self.pipe.poll(seconds):
                pid = self.pid
                stuck = "" if self.end() else f"; PID {pid} is stuck in it"
                words = f"nothing on '{name}' within {seconds:.0f} s{stuck}"
                self.silent = Silent(f"the NVIDIA driver does not answer: {words}")
                raise self.silent
            good, answer, text = self.pipe.recv()
            answered = True
        except (EOFError, OSError):
            raise Silent(f"the process that asks the NVIDIA driver ended at '{name}'") from None
        finally:
            if not answered:  # late, it would be taken for the next one's
                self.end()
        if good:
            return answer
        if isinstance(answer, pynvml.NVMLError):  # whose words the library has, and that is there
            pynvml.NVMLError._errcode_to_string.setdefault(answer.value, text)
        raise answer

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
        self.pipe, theirs = Pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)  # for ever there
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._serve(theirs)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()

    def _serve(self, pipe: Connection) -> NoReturn:
        """Answer until the parent has gone."""
        end_with_parent(self.owner)
        # Nothing of the parent's is held: its locks, a terminal, a pipe whose end somebody awaits.
        gc.freeze()  # file objects that are never collected close no number that is used anew
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
            question, arguments = pipe.recv()
            try:
                pipe.send((True, question(*arguments), ""))
            except Exception as error:
                pipe.send((False, error, str(error)))


CHILD = Child()
atexit.register(lambda: CHILD.end())  # or a container without an init keeps a zombie for each cell
