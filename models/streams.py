"""Several jobs in one process, each on a CUDA stream of its own.

Steps that are CUDA graphs are replayed by one thread, which goes from job to job and launches for
each that has few steps under way. Jobs that launch kernel by kernel have a thread each; those share
one interpreter. A job that fails leaves the others, unless what it did ends the process.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from models.process import explain
from models.protocol import Channel

if TYPE_CHECKING:
    from models.train import Member


def drive(members: Sequence[Member]) -> None:
    """Run all of them to their ends, of which each tells on its own channel."""
    if all(member.spec["cuda_graph"] for member in members):
        in_turn(members)
        return
    building = threading.Lock()  # weights are drawn from the process's generator
    threads = [threading.Thread(target=_alone, args=(member, building)) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_turn(members: Sequence[Member]) -> None:
    """Run them on this thread: whoever's wait is over goes on until the next."""
    runs = {member: member.run() for member in members}
    awaited: dict[Member, object] = {}  # nothing, to begin with
    while runs:
        moved = False
        for member in [*runs]:
            if member in awaited and not awaited[member].ready():
                continue
            moved = True
            if member.stream:
                torch.cuda.set_stream(member.stream)
            try:
                awaited[member] = next(runs[member])
            except BaseException as end:
                _tell(member, None if isinstance(end, StopIteration) else end)
                del runs[member]
                awaited.pop(member, None)
        if not moved and all(isinstance(each, Channel) for each in awaited.values()):
            select.select([awaited[member].commands for member in runs], [], [])


def _alone(member: Member, building: threading.Lock) -> None:
    """One of several threads; each builds while no other does."""
    run, error = member.run(), None
    try:
        with building:
            awaited = next(run)
        while True:
            awaited.ready(None)
            awaited = next(run)
    except StopIteration:
        pass
    except BaseException as failure:
        error = failure
    _tell(member, error)


def _tell(member: Member, error: BaseException | None) -> None:
    """How a job ended whose process goes on."""
    code = 0
    if error:
        explain(error, member.phase, member.spec)
        code = member.channel.failed(error)
    with suppress(ConnectionError):  # no conductor
        member.channel.emit("exited", code=code, signal=None)
