"""A bare PyTorch training loop in N separate processes: what the members are compared with.

One process for each member spec (kind vision, resident input, no graph): the same cores, threads,
model, precision and input as the members', but no conductor, no events and no record.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from itertools import count

from workflow.collocation.member.spec import MemberSpec


def process(spec: MemberSpec, seconds: float, wire) -> None:
    """One plain training process. Over `wire` (a Connection) it sends what it finds of its device
    once it is warm, waits there for anything, trains, and sends its samples/s.
    """
    os.environ.update({k: v for k, v in spec.environment.items() if v is not None})
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
    import timm  # which a CPU build of torch bears once `models` is imported

    layout = torch.channels_last if spec.implementation.channels_last else torch.contiguous_format
    model = timm.create_model(job.model, num_classes=job.classes, **job.model_args)
    model = model.to(device, memory_format=layout).train()
    settings = job.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=job.label_smoothing)
    bf16, numbers = spec.implementation.precision == "bf16", count()

    def run(least: int, seconds: float) -> float:
        """Train at least that many steps and that long; samples/s."""
        steps, began = 0, time.monotonic()
        while steps < least or time.monotonic() - began < seconds:
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

    run(1, 0)  # holds cuDNN's autotuning: the warm-up's seconds count from its end
    run(spec.warmup_steps - 1, spec.warmup_s)
    wire.send({"pid": os.getpid(), **facts})
    wire.recv()
    run(1, 0.5)  # until all have begun
    wire.send(run(1, seconds))


def measure(
    specs: list[MemberSpec], seconds: float, at_barrier: Callable[[list[dict]], object]
) -> list[float]:
    """Run one process per spec at once; samples/s of each.

    at_barrier is called when all are warm and none goes on, with what each said of itself: its
    `pid` and models.device.device_facts. What it raises ends the processes and passes through.
    Raises EOFError when a process ends before its time, whose own words are on stderr.
    """
    context = multiprocessing.get_context("spawn")
    wires, processes = [], []
    try:
        for spec in specs:
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=process, args=(spec, seconds, theirs)))
            processes[-1].start()
            theirs.close()  # so that the end of the process is the end of the pipe
            wires.append(ours)
        at_barrier([wire.recv() for wire in wires])
        for wire in wires:
            wire.send("go")
        return [wire.recv() for wire in wires]
    finally:
        for each in processes:
            each.kill()
            each.join()
