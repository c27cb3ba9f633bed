"""Activity of the GPU from a DCGM host engine that runs here already: `dcgmi dmon`, read as text.

For cards without GPM (A100, A30). Written from DCGM's sources and from output that others recorded,
never run on hardware by this project: tests/fakes/dcgmi has the format and where it is from.

Traffic of an instance is N/A (NVIDIA/DCGM issue 88), so beside instances only ratios are asked for.
Users saw wrong values of larger instances (issues 138, 248), and shares above 1.
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
CARD = re.compile(r"^\| (?:GPU )?(\d+) +\|", re.M)  # what is about a card begins with its id
FIELD = re.compile(r"\|\s*(\d{4})\s*\|")
INSTANCE = re.compile(r"->\s*I\s+\d+/(\d+)\s*\|.*\(EntityID:\s*(\d+)\)")
NUMBER = re.compile(r"\d+(\.\d+)?")  # not N/A, and not one that DCGM cut off ("1234...")


class Dcgm:
    """The rows of one `dcgmi dmon`, which ends with `close` or with the thread that opened it.

    entities: "gpu", or "gi:<id>" of a GPU instance under MIG, NVML's id. Raises Unavailable with
    one line where there is no dcgmi, no engine that answers in time, or nothing that it can say.
    """

    name = "dcgm"

    def __init__(self, uuid: str, entities: list[str]):
        gpu, _ = _about(uuid, "-l")  # not NVML's number
        names = {"gpu": (f"gpu:{gpu}", f"GPU {gpu}")}  # how options and rows name an entity
        if entities != ["gpu"]:
            for ours, theirs in INSTANCE.findall(_about(uuid, "-c")[1]):
                names[f"gi:{ours}"] = (f"instance:{theirs}", f"GPU-I {theirs}")
        if gpu is None or set(entities) - names.keys():
            raise Unavailable(f"the host engine does not list {uuid} with {', '.join(entities)}")
        self._entities = {names[entity][1]: entity for entity in entities}
        # One field that the card has not makes dcgmi refuse them all.
        listed = FIELD.findall(_ask("profile", "--list", "-i", gpu))
        wanted = {str(m.dcgm): m.name for m in METRICS if m.unit == "1" or entities == ["gpu"]}
        fields = sorted({*listed} & wanted.keys())
        if not fields:
            raise Unavailable("the host engine lists no profiling fields of the card")
        self._metrics = [wanted[field] for field in fields]
        selector = ",".join(names[entity][0] for entity in entities)
        command = ["dcgmi", "dmon", "-e", ",".join(fields), "-i", selector, "-d", str(DELAY_MS)]
        self._rest, self._said = b"", "nothing"
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        os.set_blocking(self._child.stdout.fileno(), False)
        deadline = time.monotonic() + FIRST_S
        while not any({*row.values()} - {None} for row in self.tick().values()):
            if time.monotonic() > deadline:
                self.close()
                raise Unavailable(f"dcgmi dmon gives no value (last words: {self._said})")
            time.sleep(0.01)

    def tick(self) -> dict[str, dict[str, float | None]]:
        """Entity → mean of its rows since the tick before; an entity missing without a new row."""
        came = self._child.stdout.read() or b""  # None: nothing yet
        *lines, self._rest = (self._rest + came).split(b"\n")
        found: dict[str, dict[str, list]] = {}
        for words in (line.decode(errors="replace").split() for line in lines):
            self._said = " ".join(words) or self._said
            entity = self._entities.get(" ".join(words[:2]))
            if entity and len(words) == 2 + len(self._metrics):
                of = found.setdefault(entity, {metric: [] for metric in self._metrics})
                for values, word in zip(of.values(), words[2:], strict=True):
                    values += [float(word)] if NUMBER.fullmatch(word) else []
        return {
            entity: {metric: fmean(values) if values else None for metric, values in of.items()}
            for entity, of in found.items()
        }

    def open(self) -> dict:
        """Nothing, and so no span: DCGM gives no samples to hold."""
        return {}

    def span(self, begin: dict, end: dict) -> dict[str, dict]:
        return begin | end

    def close(self) -> None:
        self._child.kill()
        self._child.wait()


def _ask(*arguments: str) -> str:
    """What dcgmi answers. Raises Unavailable with its words where it fails or is too slow."""
    if not shutil.which("dcgmi"):
        raise Unavailable("there is no dcgmi on PATH")
    command, both = ["dcgmi", *arguments], {"stderr": subprocess.STDOUT, "text": True}
    try:
        return subprocess.check_output(command, **both, errors="replace", timeout=ASK_S)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the host engine did not answer within {ASK_S:g} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stdout.strip().rpartition("\n")[2]
        raise Unavailable(f"dcgmi {arguments[0]} failed: {said}") from None


def _about(uuid: str, option: str) -> tuple[str | None, str]:
    """DCGM's id of the card with this UUID, and what `dcgmi discovery` lists of it."""
    _, *parts = CARD.split(_ask("discovery", option))
    cards = zip(parts[::2], parts[1::2], strict=True)
    return next(((gpu, text) for gpu, text in cards if uuid in text.split()), (None, ""))
