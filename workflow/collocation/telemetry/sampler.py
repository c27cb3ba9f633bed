"""The sampler: `python -m workflow.collocation.telemetry.sampler --output FILE --config JSON`.

One process per cell, beside the members, that no run waits for (watch.py starts and ends it). It
takes commands as JSON lines on stdin and appends JSON lines to FILE; lines.py reads them back.

Threads, so that nothing waits for what may block or take long: the card's readings at `hz`; the
card's lists of processes, and members and machine, at `slow_hz`; commands. A window's mark takes
its sample at once, between two ticks, while a short-lived thread polls for the step of the energy
counter, so ticks go on in time meanwhile.
"""

import argparse
import faulthandler
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from workflow.collocation.telemetry.host import Machine, Members
from workflow.collocation.telemetry.lines import Output, sentence
from workflow.collocation.telemetry.loop import Loop, end_with_parent
from workflow.collocation.telemetry.nvml import Card
from workflow.collocation.telemetry.sources import open_source

SWITCH_S = 0.001  # how long one thread may keep another waiting
WIND_UP_S = 1.0  # for readings under way when the end comes


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
        self.memory: dict[int, int | None] | None = None  # bytes by PID; None: NVML does not tell
        self.ticks = Loop("gpu", config["hz"], self._tick, output, begin=self._find_card)
        # The kernel ends what a source starts when the thread that opened it ends: this one stays.
        self.lists = Loop(
            "processes", config["slow_hz"], self._list, output, begin=self._find_source
        )

    def _find_card(self) -> None:
        """May take long, or never end: nothing else of the sampler waits for it."""
        try:
            self._card = self._open_card(self._config["gpu"])
            self.lists.start()
        except Exception as error:
            self._output.error("nvml", error)
            _head(self._output, self._config, None, sentence(error))

    def _find_source(self) -> None:
        config, name = self._config, None
        try:
            source, why = self._open_source(config["gpu"], config["entities"], config["source"])
            name = "nvml" if source is None else source.name
            self._source = source
        except Exception as error:
            self._output.error("source", error)
            why = sentence(error)
        _head(self._output, config, name, why)

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
        now, lists = time.monotonic_ns(), self._card.processes()
        memory: dict[int, int | None] = {}
        for entries in (lists["mps"], lists["compute"]):  # the second is the better one
            memory |= _by_pid(entries or [])
        self.memory = memory if any(lists.values()) else None
        seen = {
            name: None if entries is None else sorted(_by_pid(entries))
            for name, entries in lists.items()
        }
        if seen != self._seen:
            self._seen = seen
            self._output.line("seen", t=now, **seen)

    def mark(self, action: str, window: str) -> None:
        """Ask for what belongs to a window's "open" or "close"."""
        self.ticks.ask(lambda: self._mark(action, window))

    def _mark(self, action: str, window: str) -> None:
        now, source = time.monotonic_ns(), self._source
        sample = self._said(source.name, source.open) if source else None
        edge = threading.Thread(target=self._edge, args=(f"{window}:{action}", now), daemon=True)
        self._edges.append(edge)
        edge.start()
        if action == "open":
            self._held[window] = sample
        elif (begin := self._held.pop(window, None)) is not None and sample is not None:
            for entity, span in source.span(begin, sample).items():
                times = {name: span[name] for name in ("start_ns", "end_ns")}
                self._output.line("spans", t=now, name=window, e=entity, **times, v=span["metrics"])

    def _edge(self, name: str, now: int) -> None:
        energy = self._said("nvml", self._card.edge) if self._card else None
        self._output.line("marks", t=now, name=name, energy=energy)

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


class Sampler:
    """Commands to card, members and machine, and the first and last words."""

    def __init__(self, config: dict, output: Output, open_card: Callable, open_source: Callable):
        self._config, self._output = config, output
        self._gpu = Gpu(config, output, open_card, open_source) if config["gpu"] else None
        self._members, self._machine = Members(config["parent"]), Machine()
        self._host = Loop("host", config["slow_hz"], self._tick, output)
        self._pss_until = math.inf  # monotonic s; then the next window has opened, or the end come

    def run(self, commands) -> None:
        """Sample until told to quit, or until nobody is there to tell."""
        if self._gpu is None:
            _head(self._output, self._config, None, "no GPU")
        self._phase("idle")
        self._host.start()
        if self._gpu is not None:
            self._gpu.ticks.start()
        for line in commands:
            try:
                if self._obey(json.loads(line)):
                    break
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                self._output.error("commands", error)
        self._end()

    def _obey(self, command: dict) -> bool:
        """Do as told; True to quit."""
        if "members" in command:
            pids = {int(member): int(pid) for member, pid in command["members"].items()}
            self._host.ask(lambda: self._watch(pids))
        elif "phase" in command:
            self._phase(command["phase"])
        elif "open" in command or "close" in command:
            action = "open" if "open" in command else "close"
            self._window(action, str(command[action]))
        elif "quit" not in command:
            raise ValueError("no such command")
        return "quit" in command

    def _phase(self, name: str) -> None:
        self._output.line("marks", t=time.monotonic_ns(), name=f"phase:{name}", energy=None)

    def _window(self, action: str, window: str) -> None:
        """Rows at its very edges; PSS behind it, for that holds the members' memory lock."""
        if self._gpu is not None:
            self._gpu.mark(action, window)
        else:
            name = f"{window}:{action}"
            self._output.line("marks", t=time.monotonic_ns(), name=name, energy=None)
        self._pss_until = math.inf if action == "close" else 0.0
        self._host.ask(self._tick)
        if action == "close":
            self._host.ask(lambda: self._pss(window))

    def _watch(self, pids: dict[int, int]) -> None:
        for member in self._members.watch(pids):
            self._output.error("host", f"member {member} is not there")

    def _tick(self) -> None:
        now, values = self._machine.row()
        self._output.line("host", t=now, v=values)
        memory = self._gpu.memory if self._gpu else None
        for now, member, values in self._members.rows(memory):
            self._output.line("members", t=now, m=member, v=values)

    def _pss(self, window: str) -> None:
        for member, pss in self._members.pss():
            if time.monotonic() > self._pss_until:
                return
            self._output.line("members", t=time.monotonic_ns(), m=member, w=window, v={"pss": pss})

    def _end(self) -> None:
        self._pss_until = min(self._pss_until, time.monotonic() + WIND_UP_S / 2)
        loops = [self._host]
        self._host.stop()
        if self._gpu is not None:
            loops += [self._gpu.ticks, self._gpu.lists]
            self._gpu.stop()
        deadline = time.monotonic() + WIND_UP_S
        for loop in loops:
            if loop.ident is not None:
                loop.join(max(0.0, deadline - time.monotonic()))
        main = self._gpu.ticks if self._gpu else self._host
        self._output.line(
            "end",
            t=time.monotonic_ns(),
            ticks=len(main.took_ns),
            skipped=main.skipped,
            cpu_s=round(sum(os.times()[:4]), 3),  # with children that have ended, such as dcgmi
            tick_ms=main.cost(),
            stuck=[loop.name for loop in loops if loop.is_alive()],  # their reading does not end
        )


def main(open_card: Callable = Card, open_source: Callable = open_source) -> None:
    """Sample until the end; does not return.

    open_card: by UUID; raises where there is no such card. open_source: as sources.py has it.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="file to append JSON lines to")
    parser.add_argument("--config", type=json.loads, required=True, help="watch.py says what it is")
    args = parser.parse_args()
    end_with_parent(args.config["parent"])
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
    Sampler(args.config, output, open_card, open_source).run(sys.stdin.buffer)
    sys.stdout.flush()
    os._exit(0)  # a thread that is stuck in a reading must not hold the end up


def _head(output: Output, config: dict, source: str | None, why: str) -> None:
    rates = {name: config[name] for name in ("hz", "slow_hz")}
    output.line("head", t=time.monotonic_ns(), source=source, why=why, **rates)


def _by_pid(entries: list[dict]) -> dict[int, int | None]:
    """Memory by PID; a process is listed once for each part of a partitioned card."""
    memory: dict[int, int | None] = {}
    for entry in entries:
        known = [each for each in (memory.get(entry["pid"]), entry["memory"]) if each is not None]
        memory[entry["pid"]] = sum(known) if known else None
    return memory


if __name__ == "__main__":
    main()
