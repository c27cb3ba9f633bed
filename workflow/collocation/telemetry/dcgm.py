"""Activity of the GPU from a DCGM host engine that runs here already: `dcgmi dmon`, read as text.

For cards without GPM (A100, A30). Written from DCGM's sources and from output that others recorded,
never run on hardware by this project: see tests/fakes/dcgmi for the format and where it is from.

Numbers are not NVML's. DCGM's GPU id is looked up by the card's UUID in `dcgmi discovery -l`. Under
MIG a GPU instance has an entity id of DCGM's; `dcgmi discovery -c` names it beside NVML's instance
id ("I <GPU>/<GPU instance>"). Users saw DCGM confine a larger instance to what the smallest one
could do (NVIDIA/DCGM issues 138 and 248), so values of unequal instances need a second witness.
Traffic of an instance is N/A (issue 88), or its column left blank, so beside instances only ratios
are asked for.
"""

import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from functools import partial

from workflow.collocation.process_lifetime import end_with_parent
from workflow.collocation.telemetry.vocabulary import METRICS, SourceLost, Unavailable

DELAY_MS = 100  # DCGM's shortest for these fields; asked for more often, they answer N/A or 0
ASK_S = 3.0  # for a question to the host engine, which may hang
FIRST_S = 4.0  # for the first row with a value: DCGM's first rows are N/A
SILENCE_S = 5.0  # without a row, after which the engine counts as gone
HEADER = re.compile(r"\s*(#|ID\b)", re.I)  # the line of names, the line of units
LISTED_GPU = re.compile(r"\|\s*(\d+)\s*\|")
INSTANCE = re.compile(r"->\s*I\s+\d+/(\d+)\s*\|.*\(EntityID:\s*(\d+)\)")
LISTED_FIELD = re.compile(r"\|\s*(\d{4})\s*\|")
Row = list[float | None]


class Dcgm:
    """The rows of one `dcgmi dmon`, which ends with `close` or with the thread that opened it.

    entities: "gpu", or "gi:<id>" of a GPU instance under MIG, NVML's id. Raises Unavailable with
    one line where there is no dcgmi, no engine that answers in time, or nothing that it can say.
    """

    name = "dcgm"

    def __init__(self, uuid: str, entities: list[str]):
        program = shutil.which("dcgmi")
        if program is None:
            raise Unavailable("there is no dcgmi on PATH")
        gpu = _gpu_id(_ask(program, "discovery", "-l"), uuid)
        if gpu is None:
            raise Unavailable(f"the host engine does not list {uuid}")
        # entity → how options and rows name it
        names = {"gpu": (f"gpu:{gpu}", f"GPU {gpu}")}
        if entities != ["gpu"]:
            for ours, theirs in _instance_ids(_ask(program, "discovery", "-c"), uuid).items():
                names[f"gi:{ours}"] = (f"instance:{theirs}", f"GPU-I {theirs}")
        if missing := set(entities) - names.keys():
            raise Unavailable(f"the host engine does not list {', '.join(sorted(missing))}")
        self._entities = {names[entity][1]: entity for entity in entities}
        # One field that the card has not makes dcgmi refuse them all.
        listing = _ask(program, "profile", "--list", "-i", str(gpu))
        listed = {int(found[1]) for found in LISTED_FIELD.finditer(listing)}
        self._metrics = [
            metric
            for metric in METRICS
            if metric.dcgm in listed and (metric.unit == "1" or entities == ["gpu"])
        ]
        if not self._metrics:
            raise Unavailable("the host engine lists no profiling fields of the card")
        fields = ",".join(str(metric.dcgm) for metric in self._metrics)
        selector = ",".join(names[entity][0] for entity in entities)
        self._rest, self._said = b"", ""
        self._ended, self._heard = False, time.monotonic()
        self._child = subprocess.Popen(
            [program, "dmon", "-e", fields, "-i", selector, "-d", str(DELAY_MS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        os.set_blocking(self._child.stdout.fileno(), False)
        while not any(v is not None for rows in self._new().values() for row in rows for v in row):
            if self._ended or time.monotonic() > self._heard + FIRST_S:
                self.close()
                raise Unavailable(f"dcgmi dmon gives no value ({self._said or 'without an error'})")
            time.sleep(0.01)

    def tick(self) -> dict[str, dict[str, float | None]]:
        """Entity → mean of its rows since the tick before; an entity missing without a new row.

        Raises SourceLost once, when dcgmi has ended or is silent for SILENCE_S; then {}.
        """
        if self._child is None:
            return {}
        rows, now = self._new(), time.monotonic()
        self._heard = now if rows else self._heard
        if not rows and (self._ended or now - self._heard > SILENCE_S):
            how = "ended" if self._ended else f"has been silent for {SILENCE_S:g} s"
            self.close()
            raise SourceLost(f"dcgmi {how}" + (f": {self._said}" if self._said else ""))
        names = [metric.name for metric in self._metrics]
        return {
            entity: dict(zip(names, map(_mean, zip(*found, strict=True)), strict=True))
            for entity, found in rows.items()
        }

    def open(self) -> None:
        """DCGM has no samples to hold."""

    def span(self, begin: None, end: None) -> dict[str, dict]:
        """Nothing: DCGM gives no pair that spans a time."""
        del begin, end
        return {}

    def close(self) -> None:
        """End dcgmi."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            child.stdout.close()

    def _new(self) -> dict[str, list[Row]]:
        """Entity → the rows that have come since the last call; notes what else dcgmi said."""
        came = self._child.stdout.read()  # None: nothing yet
        self._ended = came == b""
        *lines, self._rest = (self._rest + (came or b"")).split(b"\n")
        rows: dict[str, list[Row]] = {}
        for line in (line.decode(errors="replace") for line in lines):
            entity, values = read_row(line, len(self._metrics))
            if entity in self._entities:
                rows.setdefault(self._entities[entity], []).append(values)
            elif line.strip() and not HEADER.match(line):
                self._said = line.strip()
        return rows


def read_row(line: str, columns: int) -> tuple[str | None, Row]:
    """Of `dcgmi dmon -e`: "GPU 0" or "GPU-I 3", and a value for each field asked.

    N/A, and numbers that DCGM cut off ("1234..."), are null. A line that is no such row, or not a
    full one, has no entity.
    """
    kind, *words = line.split() or [""]
    if kind not in ("GPU", "GPU-I") or len(words) != 1 + columns:
        return None, []
    return f"{kind} {words[0]}", [_number(word) for word in words[1:]]


def _ask(program: str, *arguments: str) -> str:
    """What dcgmi answers. Raises Unavailable with its words where it fails or is too slow."""
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=ASK_S,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the host engine did not answer within {ASK_S:g} s") from None
    if done.returncode != 0:
        said = done.stdout.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise Unavailable(f"dcgmi {arguments[0]} failed: {said}")
    return done.stdout


def _gpu_id(listing: str, uuid: str) -> int | None:
    """DCGM's id of the GPU with this UUID, from `dcgmi discovery -l`."""
    gpu = None
    for line in listing.splitlines():
        if found := LISTED_GPU.match(line):
            gpu = int(found[1])
        if uuid in line.split():
            return gpu
    return None


def _instance_ids(hierarchy: str, uuid: str) -> dict[int, int]:
    """NVML's id of each GPU instance of this card → DCGM's, from `dcgmi discovery -c`."""
    ids: dict[int, int] = {}
    ours = False
    for line in hierarchy.splitlines():
        if line.startswith("| GPU "):
            ours = uuid in line.split()
        elif ours and (found := INSTANCE.search(line)):
            ids[int(found[1])] = int(found[2])
    return ids


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
