"""The sampler: `python -m workflow.collocation.telemetry.sampler CONFIG`, JSON from watch.py.

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
from workflow.collocation.telemetry.base import ActivitySource
from workflow.collocation.telemetry.host import HostUsage, MemberProcesses
from workflow.collocation.telemetry.lines import one_line
from workflow.collocation.telemetry.nvml import NvmlCard
from workflow.collocation.telemetry.sources import choose_source

POLL_S = 0.002  # between two readings of the energy counter
STEP_NS = 150_000_000  # for its step to come
to_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes an encoder each time


class Sampler:
    """Readings of one cell's card, members and machine; output: a file descriptor for the lines."""

    def __init__(self, config: dict, output: int):
        self._output = output
        self._fast_ns, self._slow_ns = (round(1e9 / config[rate]) for rate in ("hz", "slow_hz"))
        self._card: NvmlCard | None = None
        self._source: ActivitySource | None = None
        self._members, self._host = MemberProcesses(), HostUsage()
        self._opened: dict[str, dict] = {}  # window → the source's samples when it opened
        self._edges: dict[str, tuple[int, float]] = {}  # marks that wait for a step of energy
        self._polled_ns = 0  # when the energy counter was last read
        self._listed: dict | None = None  # PIDs on the card when last read
        self._reported: set[tuple[str, type]] = set()  # errors that have their line
        self._ticks = 0
        head = {"source": None, "why": "no GPU", "hz": config["hz"], "slow_hz": config["slow_hz"]}
        try:
            if (uuid := config["gpu"]) is not None:
                self._card = NvmlCard(uuid)
                self._source, head["why"] = choose_source(
                    uuid, config["entities"], config["source"]
                )
                head["source"] = self._source.name if self._source else "nvml"
        except Exception as error:
            head["why"] = one_line(error)
        self._write("head", **head)

    def run(self, commands: int) -> None:
        """Sample until the descriptor of the commands is closed at its other end."""
        fast_ns = slow_ns = time.monotonic_ns()  # when the next readings are due
        unread, going = b"", True
        while going or self._edges:
            if self._edges:
                wait = POLL_S
            else:
                wait = max(0, min(fast_ns, slow_ns) - time.monotonic_ns()) / 1e9
            if select.select([commands] if going else [], [], [], wait)[0]:
                received = os.read(commands, 1 << 16)
                *lines, unread = (unread + received).split(b"\n")
                going = bool(received)
                for line in lines:
                    self._obey(**json.loads(line))
            now = time.monotonic_ns()
            if now >= fast_ns:
                fast_ns = self._read_card() + self._fast_ns
                self._ticks += 1
            if now >= slow_ns and not self._edges:  # it takes long, and edges would be missed
                self._attempt("host", self._read_host)
                slow_ns = now + self._slow_ns
            self._poll_energy()
        if self._source is not None:
            self._source.close()
        cpu_s = sum(os.times()[:4])  # with children, such as dcgmi
        self._write("end", ticks=self._ticks, cpu_s=round(cpu_s, 3))

    def _obey(self, members: dict[str, int] | None = None, **marks: str) -> None:
        """members: PIDs by index. marks: "open" or "close", and which window."""
        if members is not None:
            self._members.watch({int(member): pid for member, pid in members.items()})
        for action, window in marks.items():
            self._attempt(f"{action} {window}", self._mark, action, window)
            self._attempt("host", self._read_host)

    def _read_card(self) -> int:
        """Write a row of each entity; returns its time (ns): rates end before NVML's readings."""
        rates = {}
        if self._source:
            rates = self._attempt(self._source.name, self._source.read_rates) or {}
        now = time.monotonic_ns()
        rows = {}
        if self._card:
            rows["gpu"] = self._attempt("nvml", self._card.read_values) or {}
        for entity, values in rates.items():
            rows[entity] = rows.get(entity, {}) | values
        for entity, values in rows.items():
            self._write("gpu", now, e=entity, v=values)
        return now

    def _mark(self, action: str, window: str) -> None:
        """Read what belongs to a window's "open" or "close": a sample, a step of energy."""
        now, name = time.monotonic_ns(), f"{window}:{action}"
        joules = self._card.energy() if self._card else None
        if joules is None:
            self._write("marks", now, name=name, energy=None)
        else:
            self._edges[name] = now, joules
        samples = self._source.sample() if self._source else {}
        if action == "open":
            self._opened[window] = samples
        elif self._source:
            spans = self._source.rates_between(self._opened.pop(window), samples)
            for entity, span in spans.items():
                self._write("spans", now, name=window, e=entity, **span)

    def _poll_energy(self) -> None:
        """Write the marks whose step has come: its time, within a poll, and the joules after it."""
        if not self._edges:
            return
        joules, now = self._card.energy(), time.monotonic_ns()
        for name, (mark_ns, joules_before) in list(self._edges.items()):
            if joules != joules_before or now > mark_ns + STEP_NS:
                step_ns = (max(self._polled_ns, mark_ns) + now) // 2
                energy = None if joules is None else [step_ns, joules]
                self._write("marks", mark_ns, name=name, energy=energy)
                del self._edges[name]
        self._polled_ns = now

    def _read_host(self) -> None:
        """Write a row of the machine and of each member, and the PIDs on the card if changed."""
        now, values = self._host.row()
        self._write("host", now, v=values)
        now, lists = time.monotonic_ns(), self._card.processes() if self._card else {}
        listed = {kind: None if pids is None else sorted(pids) for kind, pids in lists.items()}
        if listed and listed != self._listed:
            self._listed = listed
            self._write("seen", now, **listed)
        memory = {**(lists.get("mps") or {}), **(lists.get("compute") or {})}
        for now, member, values in self._members.rows(memory):
            self._write("members", now, m=member, v=values)

    def _attempt(self, where: str, call: Callable, *arguments):
        """The call's result; None where it fails, and a line once for each kind of error."""
        try:
            return call(*arguments)
        except Exception as error:
            if (where, type(error)) not in self._reported:
                self._reported.add((where, type(error)))
                self._write("errors", where=where, message=one_line(error))
            return None

    def _write(self, kind: str, t: int | None = None, **fields) -> None:
        """Write one line at once, so that it is there as a whole or not at all."""
        line = {"k": kind, "t": t or time.monotonic_ns()} | fields
        os.write(self._output, to_json(line).encode() + b"\n")


def main() -> None:
    """Sample as the command line's configuration says, until the parent closes stdin."""
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
