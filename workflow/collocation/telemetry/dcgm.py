"""Activity of the GPU from a DCGM host engine that already runs: `dcgmi dmon`, read as text.

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
from workflow.collocation.telemetry.base import ActivitySource, Rates, Unavailable
from workflow.collocation.telemetry.gpm import Gpm

DELAY_MS = 100  # DCGM's shortest for these fields; asked for more often, they answer N/A or 0
ASK_S = 3.0  # for a question to the host engine, which may hang
FIRST_S = 4.0  # for the first row with a value: DCGM's first rows are N/A
CARD = re.compile(r"^\| (?:GPU )?(\d+) +\|", re.M)  # a card's lines begin with its id
FIELD = re.compile(r"\|\s*(\d{4})\s*\|")
INSTANCE = re.compile(r"->\s*I\s+\d+/(\d+)\s*\|.*\(EntityID:\s*(\d+)\)")
NUMBER = re.compile(r"\d+(\.\d+)?")  # not N/A, and not one that DCGM cut off ("1234...")
# Numbers of DCGM_FI_PROF_… in dcgm_fields.h.
FIELD_IDS = {"gract": 1001, "smact": 1002, "smocc": 1003, "tenso": 1004, "drama": 1005}
FIELD_IDS |= {"fp16": 1008, "fp32": 1007, "fp64": 1006, "integer": 1016}
FIELD_IDS |= {"pcie_tx": 1009, "pcie_rx": 1010, "nvlink_tx": 1011, "nvlink_rx": 1012}


class Dcgm(ActivitySource):
    """The rows of one `dcgmi dmon`, which ends with `close` or with the thread that started it."""

    name = "dcgm"
    METRICS = Gpm.METRICS  # the same counters of the card, by other numbers

    def __init__(self, uuid: str, entities: list[str]):
        card, _ = _discover(uuid, "-l")  # DCGM's number, which is not NVML's
        # How options and rows of dmon name each entity.
        options, row_names = {"gpu": f"gpu:{card}"}, {"gpu": f"GPU {card}"}
        if entities != ["gpu"]:
            for nvml_id, dcgm_id in INSTANCE.findall(_discover(uuid, "-c")[1]):
                options[f"gi:{nvml_id}"] = f"instance:{dcgm_id}"
                row_names[f"gi:{nvml_id}"] = f"GPU-I {dcgm_id}"
        if card is None or set(entities) - options.keys():
            raise Unavailable(f"the host engine does not list {uuid} with {', '.join(entities)}")
        self._entities = {row_names[entity]: entity for entity in entities}
        self._names = self._offered_metrics(card, entities)
        fields = ",".join(str(FIELD_IDS[name]) for name in self._names)
        selector = ",".join(options[entity] for entity in entities)
        self._unfinished_line, self._last_words = b"", "nothing"
        self._process = subprocess.Popen(
            ["dcgmi", "dmon", "-e", fields, "-i", selector, "-d", str(DELAY_MS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        os.set_blocking(self._process.stdout.fileno(), False)
        self._await_value()

    def _offered_metrics(self, card: str, entities: list[str]) -> list[str]:
        """The metrics to ask for: one field that the card lacks makes dcgmi refuse them all."""
        listed = set(FIELD.findall(_ask("profile", "--list", "-i", card)))
        names = [
            metric.name
            for metric in self.METRICS
            if str(FIELD_IDS[metric.name]) in listed and (metric.unit == "1" or entities == ["gpu"])
        ]
        if not names:
            raise Unavailable("the host engine lists no profiling fields of the card")
        return names

    def _await_value(self) -> None:
        deadline = time.monotonic() + FIRST_S
        while True:
            for rates in self.read_rates().values():
                if any(value is not None for value in rates.values()):
                    return
            if time.monotonic() > deadline:
                self.close()
                raise Unavailable(f"dcgmi dmon gives no value (last words: {self._last_words})")
            time.sleep(0.01)

    def read_rates(self) -> dict[str, Rates]:
        """The means of the rows since the call before."""
        text = self._process.stdout.read() or b""  # None: nothing yet
        *lines, self._unfinished_line = (self._unfinished_line + text).split(b"\n")
        values: dict[str, dict[str, list[float]]] = {}
        for line in lines:
            words = line.decode(errors="replace").split()
            self._last_words = " ".join(words) or self._last_words
            entity = self._entities.get(" ".join(words[:2]))
            if entity is None or len(words) != 2 + len(self._names):
                continue
            columns = values.setdefault(entity, {name: [] for name in self._names})
            for name, word in zip(self._names, words[2:], strict=True):
                if NUMBER.fullmatch(word):
                    columns[name].append(float(word))
        return {
            entity: {name: fmean(column) if column else None for name, column in columns.items()}
            for entity, columns in values.items()
        }

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _ask(*arguments: str) -> str:
    """The output of a dcgmi command. Raises Unavailable where it fails or is too slow."""
    if not shutil.which("dcgmi"):
        raise Unavailable("there is no dcgmi on PATH")
    try:
        output = subprocess.check_output(
            ["dcgmi", *arguments], stderr=subprocess.STDOUT, timeout=ASK_S
        )
        return output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        raise Unavailable(f"the host engine did not answer within {ASK_S:g} s") from None
    except subprocess.CalledProcessError as error:
        last_line = error.stdout.decode(errors="replace").strip().rpartition("\n")[2]
        raise Unavailable(f"dcgmi {arguments[0]} failed: {last_line}") from None


def _discover(uuid: str, option: str) -> tuple[str | None, str]:
    """DCGM's id of the card with this UUID, None where absent; its part of `dcgmi discovery`."""
    _, *parts = CARD.split(_ask("discovery", option))
    for card, text in zip(parts[::2], parts[1::2], strict=True):
        if uuid in text.split():
            return card, text
    return None, ""
