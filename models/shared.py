"""One loader for all jobs of a cell, whose batches TensorSocket 0.0.5 hands to every job.

The loader reads the files with as many workers as the jobs would have, and is nowhere on the GPU:
batches lie in slots of CPU memory, and each job copies its own to the device. What the package does
that is looked after here:

- Pickled for its sockets, a CPU tensor takes the whole slot with it, to every job. So a batch
  travels as a handle of the slot (its `pack_fn`), which is three to ten times as fast.
- It has 10 slots and queues 10 batches of a job. With one batch in a message, slots are written
  over before a job has read them; with LEAST none is.
- Who misses a heartbeat, or joins late, never gets a batch of the epoch. So nothing is handed out
  before all have joined, a beat is long, the one epoch never ends, and a drop ends the loader.
- What was not acknowledged within 10 s it sends again, over a slot in use. So no job rests so long.
- It listens on all interfaces, and has the root logger tell everything.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from models.data import open_dataset
from models.inputs import FileImages, file_loader
from models.protocol import Channel

LEAST = 2  # batches of a job in a message
LAG_S = 8.0  # that a job may rest, or wait for a batch; less than the package's 10 s
BEAT_MS = 2000  # of the package 500, which a job on a busy core may miss


class Endless:
    """A loader as one epoch without an end: at each end the package loses batches."""

    def __init__(self, loader: Iterable):
        self.loader = loader

    def __len__(self) -> int:
        return 1 << 40

    def __iter__(self) -> Iterator:
        return iter(self.loader)  # the workers are forked before there is a socket


def pack(batch: tuple[Tensor, ...]) -> tuple[tuple, ...]:
    """Where in shared memory these tensors lie: what `Slots` takes."""
    handles = []
    for tensor in batch:
        fd, size = tensor.untyped_storage().share_memory_()._share_fd_cpu_()
        layout = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        handles.append((f"/proc/{os.getpid()}/fd/{fd}", size, tensor.dtype, layout))
    return tuple(handles)


class Slots:
    """The tensors of handles, in another process of this user; each slot is mapped once."""

    def __init__(self) -> None:
        self._mapped: dict[str, torch.UntypedStorage] = {}

    def __call__(self, handles: tuple[tuple, ...]) -> tuple[Tensor, ...]:
        return tuple(self._tensor(*handle) for handle in handles)

    def _tensor(self, path: str, size: int, dtype: torch.dtype, layout: tuple) -> Tensor:
        if path not in self._mapped:
            self._mapped[path] = torch.UntypedStorage.from_file(path, shared=True, nbytes=size)
        return torch.empty(0, dtype=dtype).set_(self._mapped[path], *layout)


def hand_out(loader: Iterable, ports: list[int], jobs: int, message: int = LEAST) -> None:
    """Hand each batch of the loader to so many jobs, until one of them is gone.

    ports: four of this machine, for batches, acknowledgements and heartbeats. message: batches of
    the loader in one. Raises ValueError for fewer than LEAST, RuntimeError once a job is gone.
    """
    if message < LEAST:
        raise ValueError(f"{message} batch a message: TensorSocket writes over slots in use")
    logging.basicConfig(level=logging.WARNING)
    from tensorsocket import producer

    producer.LOCALHOST = "tcp://127.0.0.1"
    producer.HeartBeater = partial(producer.HeartBeater, period=BEAT_MS)
    sizes = {"rubber_band_pct": 0, "producer_batch_size": message}
    socket = producer.TensorProducer(Endless(loader), *ports[:2], ports[2:], pack_fn=pack, **sizes)
    while len(socket.hb.consumers) < jobs:
        time.sleep(0.05)
    socket.ack_socket.poll(500)
    next(socket)
    joined = dict(socket.consumers)
    for _ in socket:
        if any(socket.consumers.get(job) is not known for job, known in joined.items()):
            raise RuntimeError(f"TensorSocket dropped a job that was silent for {BEAT_MS} ms")


class Loader:
    """The loader's process, from its start until it is killed."""

    def __init__(self, spec: dict, _channel: Channel):
        self.spec, self.phase = spec, "build"

    def run(self) -> None:
        os.sched_setaffinity(0, self.spec["cores"])
        torch.set_num_threads(1)
        data, feed = self.spec["data"], self.spec["feed"]
        dataset = open_dataset(data["name"], data["path"]).files(self.spec["input_size"])
        self.phase = "warm"
        hand_out(file_loader(dataset, self.spec), **feed)


class SharedImages(FileImages):
    """The batches of the cell's loader.

    Two a job reads itself: one for the step in which kernels are chosen, and one that is read
    ahead. It joins with its next step, so that none rests while others choose. Raises RuntimeError
    where it rests, or gets no batch, for LAG_S.
    """

    def read(self, dataset, spec: dict) -> Iterator[tuple[Tensor, ...]]:
        yield from islice(file_loader(dataset, spec | {"input": {"workers": 0}}), 2)
        logging.basicConfig(level=logging.WARNING)
        from tensorsocket import TensorConsumer

        *ports, heart, beat = spec["feed"]["ports"]
        of_job = {"unpack_fn": Slots(), "batch_size": spec["batch_size"]}
        socket = TensorConsumer(*ports, (heart, beat), **of_job)
        queue = socket.buffer
        while True:
            with queue.not_empty:
                if not queue.not_empty.wait_for(lambda: len(queue.queue), LAG_S):
                    raise RuntimeError(f"no batch of the cell's loader for {LAG_S:g} s")
            batch, given = next(socket), time.monotonic()
            yield batch
            if (rested := time.monotonic() - given) > LAG_S:
                said = f"no batch was taken for {rested:.1f} s, and TensorSocket waits 10"
                raise RuntimeError(f"{said}: the step, or the barrier, took too long")
