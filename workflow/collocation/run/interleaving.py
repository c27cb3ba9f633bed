"""Kind `alternate`: the sides of a cell are loaded together, and train in turns, slice by slice.

In a round each side has one slice, in random order. Whoever is not at work blocks and has nothing
under way, so that a side has card and cores to itself, as if the others were not there.
"""

import math
import random
import time
from dataclasses import dataclass

from workflow.collocation.record.values import Window
from workflow.collocation.run.conductor import CellOver, Conductor
from workflow.collocation.sharing.evidence import NotInForce


@dataclass
class Alternation(Conductor):
    """`turn`: what a person reads of the slice under way."""

    turn: str = "all held"

    def _build(self) -> None:
        super()._build()
        for member in self.alive:
            if "hold" not in member.events["built"].get("commands", []):
                raise NotInForce(
                    f"alternate: member {member.member} ({member.workload}) does not know the "
                    "command 'hold'"
                )

    def _go_on_or_give_up(self) -> None:
        """Without one of its members a side is no longer what the others are held against."""
        super()._go_on_or_give_up()
        if any(member.status == "out_of_memory" for member in self.members):
            raise CellOver

    def _measure(self) -> None:
        turns = self.sharing.turns
        for member in self.alive:
            self.server.send(member.member, "go")
            self.server.send(member.member, "hold")
        self._reach("started", "window")
        self._await_held()
        self.display.say(f"held: {len(self.alive)} of {len(self.members)}", loud=False)
        shuffle = random.Random(self.specs[0]["seed"]).sample
        spans = {side: [] for side in turns}
        for number in range(self.measure.slices):
            for side in shuffle(list(turns), len(turns)):
                self.turn = f"{side}, round {number + 1} of {self.measure.slices}"
                spans[side].append(self._slice(turns[side]))
        for side, those in spans.items():
            seconds = round(sum(end - start for start, end in those) / 1e9, 6)
            self.windows.append(
                Window(
                    name=side,
                    start_ns=those[0][0],
                    end_ns=those[-1][1],
                    seconds=seconds,
                    members=turns[side],
                    spans=those,
                )
            )

    def _slice(self, side: list[int]) -> tuple[int, int]:
        """Let these members train for slice_s, and wait until nothing of theirs is under way.

        Gives what counts of it (ns): from drop_s after `resume` was sent, until `hold` is sent.
        """
        resumed = time.monotonic_ns()
        for index in side:
            del self.members[index].events["held"]
            self.server.send(index, "resume")
        end = resumed + round(self.measure.slice_s * 1e9)
        while (left := end - time.monotonic_ns()) > 0:
            self._pump(math.inf, "window", [], left / 1e9)
        held = time.monotonic_ns()
        for index in side:
            self.server.send(index, "hold")
        self._await_held()
        return resumed + round(self.measure.drop_s * 1e9), held

    def _await_held(self) -> None:
        deadline = time.monotonic() + self.timeouts["window"]
        while late := [member for member in self.alive if "held" not in member.events]:
            self._pump(deadline, "window", late)

    def _pace(self) -> str:
        return self.turn
