"""Activity of the GPU from a DCGM host engine that runs here already: `dcgmi dmon`, read as text.

For cards without GPM (A100, A30). Written from DCGM's sources and from output that others recorded,
never run on hardware by this project: tests/fakes/dcgmi has the format and where it is from.

Numbers are not NVML's: DCGM's GPU id is looked up by the card's UUID, and under MIG the entity id
of an instance by NVML's. Traffic of an instance is N/A (NVIDIA/DCGM issue 88), so beside instances
only ratios are asked for. Users saw DCGM confine a larger instance to what the smallest one could
do (issues 138 and 248), and give shares above 1, so its values need a second look.
"""

import os
import re
import shutil
import subprocess
import time
from functools import partial
from statistics import fmean

from workflow.collocation.process_lifetime import end_with_parent
from workflow.collocation.telemetry.metrics import METRICS, Unavailable

DELAY_MS = 100  # DCGM's shortest for these fields; asked for more often, they answer N/A or 0
ASK_S = 3.0  # for a question to the host engine, which may hang
FIRST_S = 4.0  # for the first row with a value: DCGM's first rows are N/A
LISTED_GPU = re.compile(r"\|\s*(\d+)\s*\|")
LISTED_FIELD = re.compile(r"\|\s*(\d{4})\s*\|")
INSTANCE = re.compile(r"->\s*I\s+\d+/(\d+)\s*\|.*\(EntityID:\s*(\d+)\)")


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
        # entity → how options and rows name it
        names = {"gpu": (f"gpu:{gpu}", f"GPU {gpu}")}
        if entities != ["gpu"]:
            for ours, theirs in _instance_ids(_ask(program, "discovery", "-c"), uuid):
                names[f"gi:{ours}"] = (f"instance:{theirs}", f"GPU-I {theirs}")
        if gpu is None or set(entities) - names.keys():
            raise Unavailable(f"the host engine does not list {uuid} with {', '.join(entities)}")
        self._entities = {names[entity][1]: entity for entity in entities}
        # One field that the card has not makes dcgmi refuse them all.
        listed = map(int, LISTED_FIELD.findall(_ask(program, "profile", "--list", "-i", str(gpu))))
        wanted = {m.dcgm: m for m in METRICS if m.unit == "1" or entities == ["gpu"]}
        self._metrics = [wanted[field] for field in sorted({*listed} & wanted.keys())]
        if not self._metrics:
            raise Unavailable("the host engine lists no profiling fields of the card")
        fields = ",".join(str(metric.dcgm) for metric in self._metrics)
        selector = ",".join(names[entity][0] for entity in entities)
        self._rest, self._said, self._ended = b"", "nothing", False
        self._child = subprocess.Popen(
            [program, "dmon", "-e", fields, "-i", selector, "-d", str(DELAY_MS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        os.set_blocking(self._child.stdout.fileno(), False)
        deadline = time.monotonic() + FIRST_S
        while not any(value is not None for row in self.tick().values() for value in row.values()):
            if self._ended or time.monotonic() > deadline:
                self.close()
                raise Unavailable(f"dcgmi dmon gives no value (last words: {self._said})")
            time.sleep(0.01)

    def tick(self) -> dict[str, dict[str, float | None]]:
        """Entity → mean of its rows since the tick before; an entity missing without a new row."""
        came = self._child.stdout.read()  # None: nothing yet
        self._ended = came == b""
        *lines, self._rest = (self._rest + (came or b"")).split(b"\n")
        rows: dict[str, list[list]] = {}
        for line in (line.decode(errors="replace") for line in lines):
            words = line.split()
            entity = self._entities.get(" ".join(words[:2]))
            if entity and len(words) == 2 + len(self._metrics):
                rows.setdefault(entity, []).append([_number(word) for word in words[2:]])
            elif words:
                self._said = " ".join(words)
        names = [metric.name for metric in self._metrics]
        return {
            entity: dict(zip(names, map(_mean, zip(*found, strict=True)), strict=True))
            for entity, found in rows.items()
        }

    def open(self) -> dict:
        """DCGM has no samples to hold."""
        return {}

    def span(self, begin: dict, end: dict) -> dict[str, dict]:
        """Nothing: DCGM gives no pair that spans a time."""
        del begin, end
        return {}

    def close(self) -> None:
        """End dcgmi."""
        self._child.kill()
        self._child.wait()


def _ask(program: str, *arguments: str) -> str:
    """What dcgmi answers. Raises Unavailable with its words where it fails or is too slow."""
    command, both = [program, *arguments], {"stderr": subprocess.STDOUT, "text": True}
    try:
        return subprocess.check_output(command, **both, errors="replace", timeout=ASK_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the host engine did not answer within {ASK_S:g} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stdout.strip().rpartition("\n")[2]
        raise Unavailable(f"dcgmi {arguments[0]} failed: {said}") from None


def _gpu_id(listing: str, uuid: str) -> int | None:
    """DCGM's id of the GPU with this UUID, from `dcgmi discovery -l`."""
    gpu = None
    for line in listing.splitlines():
        if found := LISTED_GPU.match(line):
            gpu = int(found[1])
        if uuid in line.split():
            return gpu
    return None


def _instance_ids(hierarchy: str, uuid: str) -> list[tuple[str, str]]:
    """NVML's id and DCGM's of each GPU instance of this card, from `dcgmi discovery -c`."""
    cards = re.split(r"^\| GPU \d+", hierarchy, flags=re.M)
    return [found for card in cards if uuid in card.split() for found in INSTANCE.findall(card)]


def _number(word: str) -> float | None:
    """None for N/A, and for a number that DCGM cut off ("1234...")."""
    return float(word) if re.fullmatch(r"\d+(\.\d+)?", word) else None


def _mean(values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
