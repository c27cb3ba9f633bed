"""A bare PyTorch training loop in several processes, with which the study's members are compared.

One process for each member spec (kind vision, resident input, no graph), on the same cores and with
the same threads, model, precision and input, but without conductor, events and record.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection

from workflow.collocation.member.spec import MemberSpec


def train(spec: MemberSpec, seconds: float, connection: Connection) -> None:
    """Train as one bare process.

    Sends its PID and what it knows of its device once it is warm, waits for any answer, trains for
    `seconds`, and sends its samples/s.
    """
    os.environ.update({name: text for name, text in spec.environment.items() if text is not None})
    os.sched_setaffinity(0, spec.cores)
    job = spec.job
    import torch

    from models.data import open_dataset
    from models.device import device_facts
    from models.inputs import open_input
    from models.jobs.vision import VisionJob

    torch.set_num_threads(spec.threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(spec.seed)
    device = torch.device(spec.device)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()  # makes the context
    facts = device_facts(device)
    dataset = open_dataset(job.dataset, job.dataset_folder)
    source = open_input(VisionJob, dataset, spec, device)
    import timm  # after `models`, without which a CPU build of torch cannot import it

    layout = torch.channels_last if spec.implementation.channels_last else torch.contiguous_format
    model = timm.create_model(job.model, num_classes=job.classes, **job.model_args)
    model = model.to(device, memory_format=layout).train()
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=job.optimizer.lr,
        momentum=job.optimizer.momentum,
        nesterov=job.optimizer.nesterov,
        weight_decay=job.optimizer.weight_decay,
    )
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=job.label_smoothing)
    bf16, numbers = spec.implementation.precision == "bf16", count()

    def run(min_steps: int, min_seconds: float) -> float:
        """Train for at least so many steps and seconds; samples/s."""
        steps, began = 0, time.monotonic()
        while steps < min_steps or time.monotonic() - began < min_seconds:
            images, labels = source.batch(next(numbers))
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if spec.implementation.sync:
                loss.item()
            steps += 1
        synchronize()
        return steps * spec.batch_size / (time.monotonic() - began)

    run(1, 0)  # cuDNN chooses kernels in the first step, which does not count as warm-up
    run(spec.warmup_steps - 1, spec.warmup_s)
    connection.send({"pid": os.getpid(), **facts})
    connection.recv()
    run(1, 0.5)  # until all processes train
    connection.send(run(1, seconds))


def measure(
    specs: list[MemberSpec], seconds: float, at_barrier: Callable[[list[dict]], None]
) -> list[float]:
    """Train one process for each member spec at the same time; returns samples/s of each.

    at_barrier is called when all processes are warm and wait. It gets each one's `pid` and what
    models.device.device_facts says of its device. What it raises ends all processes.
    Raises EOFError when a process ends too early; its own error is on stderr.
    """
    context = multiprocessing.get_context("spawn")
    connections, processes = [], []
    try:
        for spec in specs:
            connection, child_connection = context.Pipe()
            process = context.Process(target=train, args=(spec, seconds, child_connection))
            process.start()
            processes.append(process)
            child_connection.close()  # so that the end of the process is the end of the pipe
            connections.append(connection)
        at_barrier([connection.recv() for connection in connections])
        for connection in connections:
            connection.send("go")
        return [connection.recv() for connection in connections]
    finally:
        for process in processes:
            process.kill()
            process.join()
