"""Runs several training jobs in one process, each on a CUDA stream of its own.

If the steps of all jobs are CUDA graphs, one thread replays them: it goes from job to job, and
launches for each that has few steps under way. Jobs that launch kernel by kernel have a thread
each; the threads share one interpreter. A job that fails leaves the others running, unless its
error ends the process.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from models.member import explain
from workflow.collocation.member.protocol import Channel

if TYPE_CHECKING:
    from models.train import TrainingMember


def drive(members: Sequence[TrainingMember]) -> None:
    """Run all members to their ends, which each sends on its own channel."""
    if all(member.spec.implementation.cuda_graph for member in members):
        run_in_turn(members)
        return
    build_lock = threading.Lock()  # Weights are drawn from the process's generator.
    threads = []
    for member in members:
        threads.append(threading.Thread(target=_run_in_thread, args=(member, build_lock)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def run_in_turn(members: Sequence[TrainingMember]) -> None:
    """Run members on this thread: each that is ready goes on until it has to wait again."""
    runs = {member: member.run() for member in members}
    awaited: dict[TrainingMember, object] = {}
    while runs:
        progressed = False
        for member in [*runs]:
            if member in awaited and not awaited[member].ready():
                continue
            progressed = True
            if member.stream:
                torch.cuda.set_stream(member.stream)
            try:
                awaited[member] = next(runs[member])
            except BaseException as end:
                _send_end(member, None if isinstance(end, StopIteration) else end)
                del runs[member]
                awaited.pop(member, None)
        if not progressed and all(isinstance(wait, Channel) for wait in awaited.values()):
            select.select([awaited[member].commands for member in runs], [], [])


def _run_in_thread(member: TrainingMember, build_lock: threading.Lock) -> None:
    """Run one member of several threads; only one builds at a time.

    member.run() yields a channel, or an event of the device, whenever it has to wait for it.
    """
    run, error = member.run(), None
    try:
        with build_lock:
            awaited = next(run)
        while True:
            awaited.ready(None)
            awaited = next(run)
    except StopIteration:
        pass
    except BaseException as failure:
        error = failure
    _send_end(member, error)


def _send_end(member: TrainingMember, error: BaseException | None) -> None:
    """Send how a job ended whose process goes on."""
    code = 0
    if error:
        explain(error, member.phase, member.spec)
        code = member.channel.failed(error)
    with suppress(ConnectionError):  # The conductor has ended.
        member.channel.emit("exited", code=code, signal=None)
