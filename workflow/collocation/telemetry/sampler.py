"""The sampler: `python -m workflow.collocation.telemetry.sampler CONFIG`, JSON of watch.py.

One process per cell, beside the members, that no run waits for (watch.py starts and ends it). It
takes commands as JSON lines on stdin and appends JSON lines to a file; lines.py reads them back.

Threads, so that nothing waits for what may block or take long: the card's readings at `hz`; members
and machine at `slow_hz`, with the card's lists of processes; commands. A window's mark takes its
sample at once, between two ticks, while a short-lived thread polls for the step of the energy
counter, so ticks go on in time meanwhile. Card and source are found by a thread of their own.
"""

import faulthandler
import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from workflow.collocation.process_lifetime import end_with_parent
from workflow.collocation.telemetry.dcgm import Dcgm
from workflow.collocation.telemetry.gpm import Gpm
from workflow.collocation.telemetry.host import Machine, Members
from workflow.collocation.telemetry.lines import Output, sentence
from workflow.collocation.telemetry.nvml import Card
from workflow.collocation.telemetry.vocabulary import Unavailable

SWITCH_S = 0.001  # how long one thread may keep another waiting
WIND_UP_S = 1.0  # for readings under way when the end comes


# What gives activity metrics of a card and its GPU instances ("gpu", "gi:<id>"), best first: `tick`
# the rates since the tick before, `open` an end of a span, `span` what lies between two.
Source = Gpm | Dcgm
SOURCES = {"gpm": Gpm, "dcgm": Dcgm}


def open_source(uuid: str, entities: list[str], wanted: str = "auto") -> tuple[Source | None, str]:
    """The source to use, None for plain NVML, and a sentence that says why that one.

    wanted: "auto", "gpm", "dcgm" or "nvml". Raises Unavailable with one line where the one that was
    asked for cannot be had. It may wait a second or two for the first values.
    """
    if wanted == "nvml":
        return None, "plain NVML was asked for"
    not_these = ""
    for name in SOURCES if wanted == "auto" else [wanted]:
        try:
            return SOURCES[name](uuid, entities), f"{name} answers{not_these}"
        except Unavailable as why:
            if wanted == name:
                raise Unavailable(f"telemetry source {name}: {why}") from None
            not_these += f"; not {name}: {why}"
    return None, f"plain NVML is all there is{not_these}"


class Loop(threading.Thread):
    """Takes a step at each t0 + k / hz and, at once in between, what it is asked for.

    A step that is late by half a period or more is skipped, not caught up. One that returns a time
    (ns) is the new t0: what had to wait is not followed too soon.
    """

    def __init__(self, name: str, hz: float, step: Callable[[], int | None], output: Output):
        super().__init__(name=name, daemon=True)
        self._period, self._step, self._output = round(1e9 / hz), step, output
        self._asked: queue.SimpleQueue[tuple | None] = queue.SimpleQueue()
        self.took_ns: list[int] = []  # how long each step took
        self.skipped = 0

    def ask(self, call: Callable, *args) -> None:
        self._asked.put((call, *args))

    def stop(self) -> None:
        """End after what has been asked for by now."""
        self._asked.put(None)

    def run(self) -> None:
        due = time.monotonic_ns()
        while True:
            wait = due - time.monotonic_ns()
            try:
                asked = self._asked.get(block=wait > 0, timeout=max(wait, 0) / 1e9)
            except queue.Empty:
                due = self._tick(due)
                continue
            if asked is None:
                return
            self._output.attempt(self.name, *asked)

    def _tick(self, due: int) -> int:
        """The step that is due, if it is not too late for it; when the next one is."""
        began = time.monotonic_ns()
        late = (began - due + self._period // 2) // self._period
        if late > 0:
            self.skipped += late
            return due + late * self._period
        taken = self._output.attempt(self.name, self._step)
        self.took_ns.append(time.monotonic_ns() - began)
        return (taken or due) + self._period

    def cost(self) -> dict[str, float | None]:
        """How long steps took, ms."""
        took = sorted(self.took_ns)
        if not took:
            return {"p50": None, "p95": None, "max": None}
        ranks = {"p50": len(took) // 2, "p95": int(len(took) * 0.95), "max": -1}
        return {name: round(took[rank] / 1e6, 3) for name, rank in ranks.items()}


class Sampler:
    """One cell's card, members and machine."""

    def __init__(self, config: dict, output: Output):
        self._config, self._output = config, output
        self._card = self._source = None
        self._every = math.ceil(config["hz"] / config["slow_hz"])  # ticks: what changes slowly
        self._held: dict[str, object] = {}  # window → the source's sample at its opening
        self._edges: list[threading.Thread] = []
        self._seen: dict | None = None
        self._members, self._machine = Members(), Machine()
        self._gpu = Loop("gpu", config["hz"], self._look_at_card, output)
        self._host = Loop("host", config["slow_hz"], self._look_at_host, output)

    def run(self, commands: Iterable[bytes]) -> None:
        """Sample until told to quit, or until nobody is there to tell."""
        threading.Thread(target=self._find, daemon=True).start()
        self._host.start()
        self._gpu.start()
        for line in commands:
            if self._output.attempt("commands", self._obey, line):
                break
        self._end()

    def _find(self) -> None:
        """The card, whose own readings begin at once, then the source of activity."""
        config, source, why = self._config, None, "no GPU"
        try:
            if config["gpu"] is not None:
                self._card = Card(config["gpu"])
                wanted = config["gpu"], config["entities"], config["source"]
                self._source, why = open_source(*wanted)
                source = self._source.name if self._source else "nvml"
        except Exception as error:
            self._output.error("source" if self._card else "nvml", error)
            why = sentence(error)
        rates = {name: config[name] for name in ("hz", "slow_hz")}
        self._output.line("head", t=time.monotonic_ns(), source=source, why=why, **rates)
        threading.Event().wait()  # the kernel ends what a source started with this thread

    def _obey(self, line: bytes) -> bool:
        """Do as told; True to quit."""
        command = json.loads(line)
        if "members" in command:
            pids = {int(member): int(pid) for member, pid in command["members"].items()}
            self._host.ask(self._watch, pids)
        elif "open" in command or "close" in command:
            action = "open" if "open" in command else "close"
            window = str(command[action])
            self._gpu.ask(self._mark, action, window, time.monotonic_ns())
            self._host.ask(self._look_at_host)  # rows at the window's very edges
        elif "quit" not in command:
            raise ValueError("no such command")
        return "quit" in command

    # -- the card -----------------------------------------------------------------------------

    def _look_at_card(self) -> int | None:
        """A row of each entity; when it was taken: rates end before NVML's readings begin."""
        if self._card is None:
            return None
        source, attempt = self._source, self._output.attempt
        rates = source and attempt(source.name, source.tick) or {}
        now = time.monotonic_ns()
        slow = len(self._gpu.took_ns) % self._every == 0
        rows = {"gpu": attempt("nvml", self._card.read, slow) or {}}
        for entity, values in rates.items():
            rows[entity] = rows.get(entity, {}) | values
        for entity, values in rows.items():
            self._output.line("gpu", t=now, e=entity, v=values)
        return now

    def _mark(self, action: str, window: str, now: int) -> None:
        """What belongs to a window's "open" or "close"."""
        source = self._source
        sample = self._output.attempt(source.name, source.open) if source else None
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
        energy = self._output.attempt("nvml", self._card.edge) if self._card else None
        self._output.line("marks", t=now, name=name, energy=energy)

    def _close(self) -> None:
        for edge in self._edges:
            edge.join(WIND_UP_S / 2)
        if self._source is not None:
            self._source.close()

    # -- members and machine ------------------------------------------------------------------

    def _look_at_host(self) -> None:
        now, values = self._machine.row()
        self._output.line("host", t=now, v=values)
        memory = self._output.attempt("processes", self._list) if self._card else None
        for now, member, values in self._members.rows(memory):
            self._output.line("members", t=now, m=member, v=values)

    def _list(self) -> dict[int, int | None] | None:
        """Bytes by PID on the card, None where NVML does not tell; says who has come or gone."""
        now, lists = time.monotonic_ns(), self._card.processes()
        seen = {kind: None if pids is None else sorted(pids) for kind, pids in lists.items()}
        if seen != self._seen:
            self._seen = seen
            self._output.line("seen", t=now, **seen)
        return {**(lists["mps"] or {}), **(lists["compute"] or {})} or None

    def _watch(self, pids: dict[int, int]) -> None:
        for member in self._members.watch(pids):
            self._output.error("host", f"member {member} is not there")

    def _end(self) -> None:
        self._gpu.ask(self._close)
        deadline = time.monotonic() + WIND_UP_S
        for loop in (self._gpu, self._host):
            loop.stop()
        for loop in (self._gpu, self._host):
            loop.join(max(0.0, deadline - time.monotonic()))
        self._output.line(
            "end",
            t=time.monotonic_ns(),
            ticks=len(self._gpu.took_ns),
            skipped=self._gpu.skipped,
            cpu_s=round(sum(os.times()[:4]), 3),  # with children that have ended, such as dcgmi
            tick_ms=self._gpu.cost(),
            stuck=[loop.name for loop in (self._gpu, self._host) if loop.is_alive()],
        )


def main() -> None:
    """Sample until the end; does not return."""
    config = json.loads(sys.argv[1])
    end_with_parent(config["parent"])
    faulthandler.enable()  # what a crash in a library was doing reaches the log
    sys.setswitchinterval(SWITCH_S)
    for name in [name for name in os.environ if name.startswith("CUDA_")]:
        del os.environ[name]  # the user's, a method's: nothing here computes, or is an MPS client
    output = Output(Path(config["output"]))
    if cores := config["cores"]:
        output.attempt("cores", os.sched_setaffinity, 0, cores)
    Sampler(config, output).run(sys.stdin.buffer)
    sys.stdout.flush()
    os._exit(0)  # a thread that is stuck in a reading must not hold the end up


if __name__ == "__main__":
    main()
