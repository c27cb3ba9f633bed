"""One data loader for all jobs of a cell, whose batches TensorSocket 0.0.5 hands to every job.

The loader reads the files with as many workers as the jobs would have, and does not use the GPU:
batches lie in slots of CPU memory, and each job copies them to the device itself. These traits of
the package are worked around here:

- A CPU tensor that is pickled for its sockets takes the whole slot with it, to every job. So a
  batch travels as a handle of the slot (its `pack_fn`), which is three to ten times as fast.
- It has 10 slots and queues 10 batches of a job. With one batch in a message, slots are written
  over before a job has read them; with MIN_MESSAGE batches none is.
- A job that misses a heartbeat, or joins late, never gets a batch of the epoch. So nothing is
  handed out before all jobs have joined, heartbeats are long, the one epoch never ends, and a
  dropped job ends the loader.
- A batch that was not acknowledged within 10 s is sent again, over a slot in use. So a job must not
  rest that long.
- It listens on all interfaces, and makes the root logger log everything.
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
from workflow.collocation.member.protocol import Channel
from workflow.collocation.member.spec import MemberSpec

MIN_MESSAGE = 2  # batches of a job in a message
MAX_WAIT_S = 8.0  # for a job to take a batch, or to get one; less than the package's 10 s
HEARTBEAT_MS = 2000  # The package's default of 500 is too short for a job on a busy core.


class EndlessLoader:
    """A loader as one epoch without an end, because the package loses batches at each end."""

    def __init__(self, loader: Iterable):
        self.loader = loader

    def __len__(self) -> int:
        return 1 << 40

    def __iter__(self) -> Iterator:
        return iter(self.loader)  # The workers are forked before there is a socket.


def pack_batch(batch: tuple[Tensor, ...]) -> tuple[tuple, ...]:
    """Handles that say where in shared memory the tensors are, for `MappedSlots`."""
    handles = []
    for tensor in batch:
        fd, size = tensor.untyped_storage().share_memory_()._share_fd_cpu_()
        layout = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        handles.append((f"/proc/{os.getpid()}/fd/{fd}", size, tensor.dtype, layout))
    return tuple(handles)


class MappedSlots:
    """Opens tensors by their handles in another process of this user; each slot is mapped once."""

    def __init__(self) -> None:
        self._mapped: dict[str, torch.UntypedStorage] = {}

    def __call__(self, handles: tuple[tuple, ...]) -> tuple[Tensor, ...]:
        return tuple(self._tensor(*handle) for handle in handles)

    def _tensor(self, path: str, size: int, dtype: torch.dtype, layout: tuple) -> Tensor:
        if path not in self._mapped:
            self._mapped[path] = torch.UntypedStorage.from_file(path, shared=True, nbytes=size)
        return torch.empty(0, dtype=dtype).set_(self._mapped[path], *layout)


def hand_out(
    loader: Iterable, ports: list[int], jobs: int, message_batches: int = MIN_MESSAGE
) -> None:
    """Hand each batch of the loader to `jobs` jobs, until one of them has gone.

    ports: four of this machine, for batches, acknowledgements and heartbeats. message_batches:
    batches of the loader in a message. Raises ValueError for fewer than MIN_MESSAGE, RuntimeError
    once a job has gone.
    """
    if message_batches < MIN_MESSAGE:
        raise ValueError(
            f"{message_batches} batch a message: TensorSocket writes over slots in use"
        )
    logging.basicConfig(level=logging.WARNING)
    from tensorsocket import producer

    producer.LOCALHOST = "tcp://127.0.0.1"
    producer.HeartBeater = partial(producer.HeartBeater, period=HEARTBEAT_MS)
    sender = producer.TensorProducer(
        EndlessLoader(loader),
        ports[0],
        ports[1],
        ports[2:],
        pack_fn=pack_batch,
        rubber_band_pct=0,
        producer_batch_size=message_batches,
    )
    while len(sender.hb.consumers) < jobs:
        time.sleep(0.05)
    sender.ack_socket.poll(500)
    next(sender)
    joined = dict(sender.consumers)
    for _ in sender:
        if any(sender.consumers.get(job) is not consumer for job, consumer in joined.items()):
            raise RuntimeError(f"TensorSocket dropped a job that was silent for {HEARTBEAT_MS} ms")


class LoaderMember:
    """The process of the loader that the jobs of a cell share; it runs until it is killed."""

    def __init__(self, spec: MemberSpec, _channel: Channel):
        self.spec, self.phase = spec, "build"

    def run(self) -> None:
        spec, training = self.spec, self.spec.job
        os.sched_setaffinity(0, spec.cores)
        torch.set_num_threads(1)
        dataset = open_dataset(training.dataset, training.dataset_folder)
        images = dataset.files(training.input_size)
        self.phase = "warm"
        loader = file_loader(images, spec.batch_size, spec.seed, training.input.workers)
        hand_out(loader, training.shared_loader.ports, training.shared_loader.jobs)


class SharedImages(FileImages):
    """Batches from the loader of the cell.

    The job reads its first two batches itself: one for the step in which kernels are chosen, and
    one that is read ahead. It joins with its next step, so that no job rests while others choose.
    Raises RuntimeError where the job rests, or gets no batch, for MAX_WAIT_S.
    """

    def read_batches(self, dataset, spec: MemberSpec) -> Iterator[tuple[Tensor, ...]]:
        yield from islice(file_loader(dataset, spec.batch_size, spec.seed, workers=0), 2)
        logging.basicConfig(level=logging.WARNING)
        from tensorsocket import TensorConsumer

        *ports, heart, beat = spec.job.shared_loader.ports
        receiver = TensorConsumer(
            *ports, (heart, beat), unpack_fn=MappedSlots(), batch_size=spec.batch_size
        )
        queue = receiver.buffer
        while True:
            with queue.not_empty:
                if not queue.not_empty.wait_for(lambda: len(queue.queue), MAX_WAIT_S):
                    raise RuntimeError(f"no batch of the cell's loader for {MAX_WAIT_S:g} s")
            batch = next(receiver)
            handed_at_s = time.monotonic()
            yield batch
            rested_s = time.monotonic() - handed_at_s
            if rested_s > MAX_WAIT_S:
                raise RuntimeError(
                    f"no batch was taken for {rested_s:.1f} s, and TensorSocket waits 10: "
                    "the step, or the barrier, took too long"
                )
