"""The sampler: `python -m workflow.collocation.telemetry.sampler CONFIG`, JSON of watch.py.

One process for each cell, beside the members, that no run waits for (watch.py starts and ends it).
It takes commands as JSON lines on stdin and appends JSON lines to a file; lines.py reads them back.

One loop: the card's readings at `hz`; members, machine and the card's lists of processes at
`slow_hz`; commands as they come. The energy counter moves in steps, so after a window's mark it is
polled until its next step.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable

from workflow.collocation.process_lifetime import end_with_parent
from workflow.collocation.telemetry.dcgm import Dcgm
from workflow.collocation.telemetry.gpm import Gpm
from workflow.collocation.telemetry.host import Machine, Members
from workflow.collocation.telemetry.lines import one_line
from workflow.collocation.telemetry.metrics import Unavailable
from workflow.collocation.telemetry.nvml import Card

POLL_S = 0.002  # between two looks at the energy counter
STEP_NS = 150_000_000  # for its step to come

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


class Sampler:
    """One cell's card, members and machine. output: a file descriptor that takes the lines."""

    def __init__(self, config: dict, output: int):
        self._output, gpu = output, config["gpu"]
        self._tick_ns, self._look_ns = (round(1e9 / config[name]) for name in ("hz", "slow_hz"))
        self._card, self._source = None, None
        self._members, self._machine = Members(), Machine()
        self._held: dict[str, dict] = {}  # window → the source's samples at its opening
        self._edges: dict[str, tuple[int, float]] = {}  # marks that wait for a step of energy
        self._polled = 0  # when the energy counter was last read (ns)
        self._listed: dict | None = None  # who was on the card at the last look
        self._said: set[tuple[str, type]] = set()
        self._ticks = 0
        head = {"source": None, "why": "no GPU", "hz": config["hz"], "slow_hz": config["slow_hz"]}
        try:
            if gpu is not None:
                self._card = Card(gpu)
                self._source, head["why"] = open_source(gpu, config["entities"], config["source"])
                head["source"] = self._source.name if self._source else "nvml"
        except Exception as error:
            head["why"] = one_line(error)
        self._line("head", **head)

    def run(self, commands: int) -> None:
        """Sample until nobody is there to tell it anything."""
        tick = look = time.monotonic_ns()  # when they are due
        unread, going = b"", True
        while going or self._edges:
            wait = POLL_S if self._edges else max(0, min(tick, look) - time.monotonic_ns()) / 1e9
            if select.select([commands] if going else [], [], [], wait)[0]:
                came = os.read(commands, 1 << 16)
                *lines, unread = (unread + came).split(b"\n")
                going = bool(came)
                for line in lines:
                    self._obey(**json.loads(line))
            if (now := time.monotonic_ns()) >= tick:
                tick = self._look_at_card() + self._tick_ns
                self._ticks += 1
            if now >= look and not self._edges:  # it takes long, and edges would be missed
                self._attempt("host", self._look_at_host)
                look = now + self._look_ns
            self._poll_energy()
        if self._source is not None:
            self._source.close()
        # with children, such as dcgmi
        self._line("end", ticks=self._ticks, cpu_s=round(sum(os.times()[:4]), 3))

    def _obey(self, members: dict[str, int] | None = None, **mark: str) -> None:
        """members: PIDs by index. mark: "open" or "close", and which window."""
        if members is not None:
            self._members.watch({int(member): pid for member, pid in members.items()})
        for action, window in mark.items():
            self._attempt(f"{action} {window}", self._mark, action, window)
            self._attempt("host", self._look_at_host)

    def _look_at_card(self) -> int:
        """A row of each entity; when it was taken: rates end before NVML's readings begin."""
        rates = self._source and self._attempt(self._source.name, self._source.tick) or {}
        now = time.monotonic_ns()
        rows = {"gpu": self._attempt("nvml", self._card.read) or {}} if self._card else {}
        for entity, values in rates.items():
            rows[entity] = rows.get(entity, {}) | values
        for entity, values in rows.items():
            self._line("gpu", now, e=entity, v=values)
        return now

    def _mark(self, action: str, window: str) -> None:
        """What belongs to a window's "open" or "close": one end of a pair, a step of energy."""
        now, name = time.monotonic_ns(), f"{window}:{action}"
        joules = self._card.energy() if self._card else None
        if joules is None:
            self._line("marks", now, name=name, energy=None)
        else:
            self._edges[name] = now, joules
        samples = self._source.open() if self._source else {}
        if action == "open":
            self._held[window] = samples
        elif self._source:
            for entity, span in self._source.span(self._held.pop(window), samples).items():
                self._line("spans", now, name=window, e=entity, **span)

    def _poll_energy(self) -> None:
        """Tell the edges whose step has come: when, within a poll, and to how many joules."""
        if not self._edges:
            return
        joules, now = self._card.energy(), time.monotonic_ns()
        for name, (t, before) in list(self._edges.items()):
            if joules != before or now > t + STEP_NS:
                energy = [(max(self._polled, t) + now) // 2, joules]
                self._line("marks", t, name=name, energy=energy if joules is not None else None)
                del self._edges[name]
        self._polled = now

    def _look_at_host(self) -> None:
        """A row of the machine and of each member; who has come to the card, or gone."""
        now, values = self._machine.row()
        self._line("host", now, v=values)
        now, lists = time.monotonic_ns(), self._card.processes() if self._card else {}
        listed = {kind: None if pids is None else sorted(pids) for kind, pids in lists.items()}
        if listed and listed != self._listed:
            self._listed = listed
            self._line("seen", now, **listed)
        memory = {**(lists.get("mps") or {}), **(lists.get("compute") or {})}
        for now, member, values in self._members.rows(memory):
            self._line("members", now, m=member, v=values)

    def _attempt(self, where: str, call: Callable, *args):
        """What it gives. Where it fails, None, and it is said once for each kind of error."""
        try:
            return call(*args)
        except Exception as error:
            if (where, type(error)) not in self._said:
                self._said.add((where, type(error)))
                self._line("errors", where=where, message=one_line(error))
            return None

    def _line(self, kind: str, t: int | None = None, **fields) -> None:
        """Write one line: it is there as a whole, whatever follows."""
        line = {"k": kind, "t": t or time.monotonic_ns()} | fields
        os.write(self._output, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def main() -> None:
    """Sample until the end."""
    config = json.loads(sys.argv[1])
    end_with_parent(config["parent"])
    for name in [name for name in os.environ if name.startswith("CUDA_")]:
        del os.environ[name]  # the user's, a method's: nothing here computes, or is an MPS client
    if cores := config["cores"]:
        os.sched_setaffinity(0, cores)
    output = os.open(config["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    Sampler(config, output).run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
