"""A sampler with a card of its own, for drills: `python -m tests.samplers`, as the real one.

The GPU's UUID says how the card is: "works", or one of the misbehaviours below.
"""

import ctypes
import os
import sys
import time

from workflow.collocation.telemetry import sampler

PATIENCE_S = 10.0


class Card:
    """Its power is the number of the reading; where it works, its energy steps when three more
    readings are in.
    """

    def __init__(self, uuid: str):
        self.uuid, self.readings = uuid, 0

    def read(self, slow: bool = True) -> dict:
        self.readings += 1
        power = {"power": float(self.readings)}
        return power | {"memory_temperature": float(self.readings)} if slow else power

    def edge(self) -> tuple[int, float]:
        wanted = self.readings + 3 if self.uuid == "works" else 0
        deadline = time.monotonic() + PATIENCE_S
        while self.readings < wanted and time.monotonic() < deadline:
            time.sleep(0.002)
        return time.monotonic_ns(), float(self.readings - wanted)

    def processes(self) -> dict:
        pids = [int(pid) for pid in os.environ.get("SAMPLER_PIDS", "").split()]
        return {"compute": dict.fromkeys(pids, 1000), "mps": None}


class Lost(Card):
    def read(self, slow: bool = True) -> dict:
        raise RuntimeError(f"the card is lost, reading {time.monotonic_ns()}")


class Unanswering(Card):
    """A call that blocks, as NVML's do: without the interpreter's lock."""

    library = ctypes.CDLL

    def read(self, slow: bool = True) -> dict:
        if self.readings == 2:
            self.library(None).pause()
        return super().read(slow)


class Seizing(Unanswering):
    """One that blocks the whole interpreter."""

    library = ctypes.PyDLL


class Crashing(Card):
    def read(self, slow: bool = True) -> dict:
        if self.readings == 2:
            print("the last words", file=sys.stderr, flush=True)
            os._exit(7)
        return super().read(slow)


class Source:
    """Samples are numbers; a span's smact is how many lay between its ends."""

    name = "gpm"

    def __init__(self, entities: list[str]):
        self.entities, self.samples = entities, 0

    def tick(self) -> dict:
        self.samples += 1
        return {entity: {"smact": 0.25} for entity in self.entities} if self.samples > 1 else {}

    def open(self) -> tuple[int, int]:
        return self.samples, time.monotonic_ns()

    def span(self, begin: tuple[int, int], end: tuple[int, int]) -> dict:
        metrics = {"smact": end[0] - begin[0]}
        return {
            entity: {"metrics": metrics, "start_ns": begin[1], "end_ns": end[1]}
            for entity in self.entities
        }

    def close(self) -> None:
        cuda = [name for name in os.environ if name.startswith("CUDA_")]
        print(f"source closed, {cuda=}", flush=True)


class Failing(Source):
    def tick(self) -> dict:
        super().tick()
        raise ValueError(f"no sample {self.samples}")

    open = tick


def open_card(uuid: str) -> Card:
    if uuid == "absent":
        raise LookupError("no such card")
    if uuid == "silent":
        ctypes.CDLL(None).pause()
    cards = {"lost": Lost, "unanswering": Unanswering, "seizing": Seizing, "crashing": Crashing}
    return cards.get(uuid, Card)(uuid)


def open_source(uuid: str, entities: list[str], wanted: str) -> tuple[Source, str]:
    if uuid == "unprofiled":
        raise LookupError(f"no {wanted} here")
    return (Failing if uuid == "failing" else Source)(entities), "it answers"


if __name__ == "__main__":
    sampler.Card, sampler.open_source = open_card, open_source
    sampler.main()
