"""All supervisors of one command, from their start to the end of the last."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from workflow.collocation.gpu import Device, nvml_subprocess
from workflow.collocation.process_lifetime import (
    END_SIGNALS,
    adopt_orphans,
    defer_signals,
    end_with_parent,
)
from workflow.collocation.sharing import mps_daemon
from workflow.collocation.sharing.evidence import GpuBusy, NotInForce
from workflow.collocation.sweep.journal import Sweep
from workflow.collocation.sweep.keeper import end_descendants
from workflow.collocation.sweep.record import Run
from workflow.collocation.sweep.supervisor import Sharing, Stopped, Supervisor

LOOK_S = 1.0
Show = Callable[[list[Run], str], None]


def supervise(
    sweep: Sweep, device: Device | None, sharing: Sharing, report: Connection, starter: int
) -> None:
    """Work off a sweep on one device, as a process of its own that process `starter` forked.

    report: takes a sentence where the work cannot begin or has to wait, "" once it has begun. Ends
    when no run is left that nobody has; at a signal or the starter's end, with all that runs.
    """
    os.setsid()
    supervisor = Supervisor(sweep, device, sharing)
    for number in END_SIGNALS:
        signal.signal(number, supervisor.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the starter
    end_with_parent(starter, signal.SIGTERM)
    adopt_orphans()
    try:
        supervisor.work(report.send)
    except (GpuBusy, NotInForce, OSError, ValueError) as error:
        report.send(str(error))
        sys.exit(1)
    except Stopped:
        pass


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have the first signal that ends a process raise KeyboardInterrupt, and ignore later ones.

    One that was ignored before stays so: `nohup` means it.
    """
    before = {number: signal.getsignal(number) for number in END_SIGNALS}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def interrupt(*_) -> None:
        for number in heeded:
            signal.signal(number, lambda *_: None)
        raise KeyboardInterrupt

    for number in heeded:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number] or signal.SIG_DFL)  # None: not from Python


class Session:
    """The supervisors of some devices; None stands for the CPU.

    problems: a sentence for each that did not work, by the device's name.
    """

    def __init__(self, sweep: Sweep, devices: list[Device | None], sharing: Sharing):
        self.sweep, self.devices, self.sharing = sweep, devices, sharing
        self.problems: dict[str, str] = {}
        self._words: dict[str, str] = {}  # what each supervisor said last
        self._reports: dict[str, Connection] = {}
        self._supervisors: dict[str, BaseProcess] = {}

    @_interruptible()
    def work(self, show: Show) -> None:
        """Work off the sweep until no run is left that nobody has. A signal is KeyboardInterrupt.

        show: gets all runs, and what supervisors wait for, about once a second. Whatever ends this,
        nothing that was started is left.
        """
        adopt_orphans()  # of a supervisor that is killed
        try:
            for device in self.devices:
                self._start(device)
            while self._supervisors:
                self._look()
                show(self.sweep.runs(), "; ".join(filter(None, self._words.values())))
                time.sleep(LOOK_S)
        finally:
            self._end()

    def _start(self, device: Device | None) -> None:
        context = multiprocessing.get_context("fork")  # with this environment, and this lock
        name = f"GPU {device.index}" if device else "CPU"
        self._reports[name], theirs = context.Pipe(duplex=False)
        arguments = (self.sweep, device, self.sharing, theirs, os.getpid())
        self._supervisors[name] = context.Process(target=supervise, args=arguments, name=name)
        self._supervisors[name].start()
        theirs.close()

    def _look(self) -> None:
        """Hear what supervisors say, and take note of those that have ended."""
        for name, process in [*self._supervisors.items()]:
            ended = not process.is_alive()
            with suppress(EOFError):
                while self._reports[name].poll():
                    self._words[name] = self._reports[name].recv()
            if not ended:
                continue
            del self._supervisors[name]
            words = self._words.pop(name, "")
            if process.exitcode < 0:
                self.problems[name] = f"its supervisor was killed by signal {-process.exitcode}"
                with suppress(GpuBusy):
                    mps_daemon.sweep()
            elif process.exitcode:
                self.problems[name] = words or "its supervisor failed"

    @defer_signals()
    def _end(self) -> None:
        for process in self._supervisors.values():
            process.terminate()
        for process in self._supervisors.values():
            process.join()
        end_descendants(frozenset({nvml_subprocess.CHILD.pid}))
