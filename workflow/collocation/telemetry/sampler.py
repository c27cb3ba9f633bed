"""The sampler: `python -m workflow.collocation.telemetry.sampler --output FILE --config JSON`.

One process per cell, beside the members, that no run waits for (watch.py starts and ends it). It
takes commands as JSON lines on stdin and appends JSON lines to FILE; lines.py reads them back.

Threads, so that nothing waits for what may block or take long: the card's readings at `hz`; the
card's lists of processes, and members and machine, at `slow_hz`; commands. A window's mark takes
its sample at once, between two ticks, while a short-lived thread polls for the step of the energy
counter, so ticks go on in time meanwhile.
"""

import argparse
import ctypes
import faulthandler
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from workflow.collocation.telemetry.host import Machine, Members
from workflow.collocation.telemetry.loop import Loop, Output, sentence

PR_SET_PDEATHSIG = 1
LINE_LIMIT = 1 << 20  # bytes; a longer "line" is no command
SWITCH_S = 0.001  # how long one thread may keep another waiting
WIND_UP_S = 1.0  # for readings under way when the end comes
STALE_S = 5.0  # a list of processes that is older says nothing of now


class Gpu:
    """The card's part: rows, marks and spans.

    The card's own readings begin at once; the source of activity may take seconds to be found.
    """

    def __init__(self, config: dict, output: Output, open_card: Callable, open_source: Callable):
        self._config, self._output = config, output
        self._open_card, self._open_source = open_card, open_source
        self._card = self._source = None
        self._every = math.ceil(config["hz"] / config["slow_hz"])  # ticks: what changes slowly
        self._held: dict[str, object] = {}  # window → the source's sample at its opening
        self._edges: list[threading.Thread] = []
        self._seen: dict | None = None
        self._memory: tuple[int, dict[int, int | None]] | None = None
        self.ticks = Loop("gpu", config["hz"], self._tick, output, begin=self._find_card)
        # The kernel ends what a source starts when the thread that opened it ends: this one stays.
        self.lists = Loop(
            "processes", config["slow_hz"], self._list, output, begin=self._find_source
        )

    @property
    def memory(self) -> dict[int, int | None] | None:
        """Bytes by PID, as last told; None where NVML does not tell, or not any more."""
        if self._memory is None or time.monotonic_ns() - self._memory[0] > STALE_S * 1e9:
            return None
        return self._memory[1]

    def _find_card(self) -> None:
        """May take long, or never end: nothing else of the sampler waits for it."""
        about = {"uuid": self._config["gpu"]}
        try:
            card = self._open_card(self._config["gpu"])
            self._about = about | card.describe()
            self._card = card
            self.lists.start()
        except Exception as error:
            self._output.error("nvml", error)
            _head(self._output, self._config, about, None, sentence(error))

    def _find_source(self) -> None:
        config, name = self._config, None
        try:
            source, why = self._open_source(config["gpu"], config["entities"], config["source"])
            name = "nvml" if source is None else source.name
            self._source = source
        except Exception as error:
            self._output.error("source", error)
            why = sentence(error)
        _head(self._output, config, self._about, name, why)

    def _tick(self) -> int | None:
        """A row of each entity; when it was taken: rates end before NVML's readings begin."""
        if self._card is None:
            return None
        source = self._source
        if source is not None:
            self._said(source.name, source.wait)
        now = time.monotonic_ns()
        rates = self._said(source.name, source.tick) if source else None
        slow = len(self.ticks.took_ns) % self._every == 0
        rows = {"gpu": self._said("nvml", lambda: self._card.read(slow)) or {}}
        for entity, values in (rates or {}).items():
            rows[entity] = rows.get(entity, {}) | values
        for entity, values in rows.items():
            self._output.line("gpu", t=now, e=entity, v=values)
        return now

    def _list(self) -> None:
        now = time.monotonic_ns()
        lists = self._card.processes()
        memory: dict[int, int | None] = {}
        for entries in (lists.get("mps"), lists.get("compute")):  # the second is the better one
            memory |= _by_pid(entries or [])
        self._memory = (now, memory) if any(lists.values()) else None
        seen = {
            name: None if (entries := lists.get(name)) is None else sorted(_by_pid(entries))
            for name in ("compute", "mps")
        }
        if seen != self._seen:
            self._seen = seen
            self._output.line("seen", t=now, **seen)

    def mark(self, action: str, window: str, asked: int | None) -> None:
        """Ask for what belongs to a window's "open" or "close"."""
        self.ticks.ask(lambda: self._mark(action, window, asked))

    def _mark(self, action: str, window: str, asked: int | None) -> None:
        now = time.monotonic_ns()
        source, card = self._source, self._card
        sample = self._said(source.name, source.open) if source else None
        reading = self._said("nvml", card.read) if card else None
        args = (f"{window}:{action}", now, asked, reading)
        edge = threading.Thread(target=self._edge, args=args, daemon=True)
        self._edges.append(edge)
        edge.start()
        if action == "open":
            self._held[window] = sample
        elif (begin := self._held.pop(window, None)) is not None and sample is not None:
            for entity, span in source.span(begin, sample).items():
                times = {name: span[name] for name in ("start_ns", "end_ns")}
                self._output.line("span", name=window, e=entity, **times, v=span["metrics"])

    def _edge(self, name: str, now: int, asked: int | None, card: dict | None) -> None:
        energy = self._said("nvml", self._card.edge) if self._card else None
        _mark(self._output, name, now, asked, energy, card)

    def _said(self, where: str, read: Callable):
        """What `read` gives; None where it fails, which is said."""
        try:
            return read()
        except Exception as error:
            self._output.error(where, error)
            return None

    def stop(self) -> None:
        self.ticks.ask(self._close)
        self.ticks.stop()
        self.lists.stop()

    def _close(self) -> None:
        for edge in self._edges:
            edge.join(WIND_UP_S / 2)
        if self._source is not None:
            self._source.close()


class Host:
    """Members and machine."""

    def __init__(self, config: dict, output: Output, memory: Callable[[], dict | None]):
        self._output, self._memory = output, memory
        self._members, self._machine = Members(), Machine()
        self._pss_until = math.inf
        self.ticks = Loop("host", config["slow_hz"], self._tick, output)

    def _tick(self) -> None:
        now, values = self._machine.row()
        self._output.line("host", t=now, v=values)
        for now, member, values in self._members.rows(self._memory()):
            self._output.line("member", t=now, m=member, v=values)

    def members(self, pids: dict[int, int]) -> None:
        for member in self._members.watch(pids):
            self._output.error("host", f"member {member} is not there")

    def mark(self, action: str, window: str) -> None:
        """Rows at the window's very edges; PSS behind it: that holds the members' memory lock."""
        self._pss_until = 0.0 if action == "open" else math.inf
        self.ticks.ask(self._tick)
        if action == "close":
            self.ticks.ask(lambda: self._pss(window))

    def stop(self) -> None:
        self._pss_until = min(self._pss_until, time.monotonic() + WIND_UP_S / 2)
        self.ticks.stop()

    def _pss(self, window: str) -> None:
        for member in list(self._members.trees):
            if time.monotonic() > self._pss_until:  # the next window has opened, or the end is near
                return
            values = self._members.pss(member, self._memory())
            if values is not None:
                self._output.line("member", t=time.monotonic_ns(), m=member, w=window, v=values)


class Sampler:
    """Commands to the two parts, and the first and last words."""

    def __init__(self, config: dict, output: Output, open_card: Callable, open_source: Callable):
        self._config, self._output = config, output
        self._gpu = Gpu(config, output, open_card, open_source) if config["gpu"] else None
        memory = (lambda: self._gpu.memory) if self._gpu else (lambda: None)
        self._host = Host(config, output, memory)

    def run(self, commands: int) -> None:
        """Sample until told to quit, or until nobody is there to tell."""
        if self._gpu is None:
            _head(self._output, self._config, None, None, "no GPU")
        _mark(self._output, "phase:idle", time.monotonic_ns())
        self._host.ticks.start()
        if self._gpu is not None:
            self._gpu.ticks.start()
        for line in _lines(commands):
            try:
                if self._obey(json.loads(line)):
                    break
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                self._output.error("commands", error)
        self._end()

    def _obey(self, command: dict) -> bool:
        """Do as told; True to quit."""
        asked = command.get("t")
        if "members" in command:
            pids = {int(member): int(pid) for member, pid in command["members"].items()}
            self._host.ticks.ask(lambda: self._host.members(pids))
        elif "phase" in command:
            _mark(self._output, f"phase:{command['phase']}", time.monotonic_ns(), asked)
        elif "open" in command or "close" in command:
            action = "open" if "open" in command else "close"
            window = str(command[action])
            if self._gpu is not None:
                self._gpu.mark(action, window, asked)
            else:
                _mark(self._output, f"{window}:{action}", time.monotonic_ns(), asked)
            self._host.mark(action, window)
        elif "quit" not in command:
            raise ValueError("no such command")
        return "quit" in command

    def _end(self) -> None:
        loops = [self._host.ticks]
        self._host.stop()
        if self._gpu is not None:
            loops += [self._gpu.ticks, self._gpu.lists]
            self._gpu.stop()
        deadline = time.monotonic() + WIND_UP_S
        for loop in loops:
            if loop.ident is not None:
                loop.join(max(0.0, deadline - time.monotonic()))
        now, stuck = time.monotonic_ns(), [loop.name for loop in loops if loop.is_alive()]
        for loop in loops:
            if loop.is_alive():
                silent = (now - loop.last_ns) / 1e9
                self._output.error(loop.name, f"a reading does not end: silent for {silent:.1f} s")
        slow, ticks = self._host.ticks, self._gpu.ticks if self._gpu else None
        self._output.line(
            "end",
            t=now,
            ticks=len(ticks.took_ns) if ticks else 0,
            skipped=ticks.skipped if ticks else 0,
            cpu_s=round(sum(os.times()[:4]), 3),  # with children that have ended, such as dcgmi
            tick_ms=ticks.cost() if ticks else dict.fromkeys(("p50", "p95", "max")),
            slow={"ticks": len(slow.took_ns), "skipped": slow.skipped, "ms": slow.cost()},
            stuck=stuck,  # threads whose reading does not end
        )


def open_card(uuid: str):
    """Raises pynvml.NVMLError where there is no such card."""
    from workflow.collocation.telemetry.nvml import Card

    return Card(uuid)


def open_source(uuid: str, entities: list[str], wanted: str) -> tuple:
    """(source or None, why it is this one). Raises where the one that was asked for is not had."""
    from workflow.collocation.telemetry import sources

    return sources.open_source(uuid, entities, wanted)


def main(
    argv: list[str] | None = None,
    open_card: Callable = open_card,
    open_source: Callable = open_source,
) -> None:
    """Sample until the end; does not return."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="file to append JSON lines to")
    parser.add_argument("--config", type=json.loads, required=True, help="watch.py says what it is")
    args = parser.parse_args(argv)
    _end_with_parent(args.config["parent"])
    faulthandler.enable()  # what a crash in a library was doing reaches the log
    sys.setswitchinterval(SWITCH_S)
    for name in [name for name in os.environ if name.startswith("CUDA_")]:
        del os.environ[name]  # the user's, a method's: nothing here computes, or is an MPS client
    output = Output(args.output)
    if cores := args.config["cores"]:
        try:
            os.sched_setaffinity(0, cores)
        except (OSError, ValueError) as error:
            output.error("cores", error)
    Sampler(args.config, output, open_card, open_source).run(sys.stdin.fileno())
    sys.stdout.flush()
    os._exit(0)  # a thread that is stuck in a reading must not hold the end up


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when that one ends, or the thread that started this."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # gone before the call
        os._exit(1)


def _lines(commands: int) -> Iterator[bytes]:
    """Whole lines until the end of file."""
    buffer = b""
    while data := os.read(commands, 1 << 16):
        *lines, buffer = (buffer + data).split(b"\n")
        yield from lines
        if len(buffer) > LINE_LIMIT:
            buffer = b""  # what follows is no command either, and is said to be none


def _head(output: Output, config: dict, about: dict | None, source: str | None, why: str) -> None:
    output.line(
        "head",
        t=time.monotonic_ns(),
        source=source,
        why=why,
        hz=config["hz"],
        slow_hz=config["slow_hz"],
        gpu=about,
        entities=config["entities"],
        pid=os.getpid(),
    )


def _mark(
    output: Output,
    name: str,
    now: int,
    asked: int | None = None,
    energy: tuple[int, float] | None = None,
    card: dict | None = None,
) -> None:
    """asked: when the conductor did, null for what the sampler marks by itself."""
    output.line("mark", t=now, asked=asked, name=name, energy=energy, card=card)


def _by_pid(entries: list[dict]) -> dict[int, int | None]:
    """Memory by PID; a process is listed once for each part of a partitioned card."""
    memory: dict[int, int | None] = {}
    for entry in entries:
        known = [each for each in (memory.get(entry["pid"]), entry["memory"]) if each is not None]
        memory[entry["pid"]] = sum(known) if known else None
    return memory


if __name__ == "__main__":
    main()
