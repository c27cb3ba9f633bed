"""A bare PyTorch training loop in N plain processes: what the members are compared with.

One process for each member spec (kind vision, resident input): the same cores, threads, model,
precision and input as the members', but no conductor, no events and no record. The time runs from a
common barrier after warm-up to the final synchronize.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from itertools import count

LONGEST_S = 900.0  # that a process may take until the barrier, or beyond its seconds after it
END_S = 5.0
# Imported once, by the server that the processes are forked from; none of them asks CUDA anything.
PRELOAD = ["models.jobs.vision", "models.data", "models.device"]


def make_step(spec: dict, source, device):
    """A function of the step number that trains one step and returns the loss."""
    import timm
    import torch

    args = dict(spec.get("model_args") or {})
    if timm.get_pretrained_cfg(spec["model"]).fixed_input_size:
        args["img_size"] = spec["input_size"]
    layout = torch.channels_last if spec["channels_last"] else torch.contiguous_format
    model = timm.create_model(spec["model"], num_classes=spec["classes"], **args)
    model = model.to(device, memory_format=layout).train()
    settings = spec["optimizer"]
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings["lr"],
        momentum=settings["momentum"],
        nesterov=settings["nesterov"],
        weight_decay=settings["weight_decay"],
        fused=spec["cuda_graph"] or None,  # as the members'
    )
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=spec["label_smoothing"])
    bf16 = spec["precision"] == "bf16"

    def train(batch):
        images, labels = batch
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    if not spec["cuda_graph"]:
        return lambda step: train(source.batch(step))

    row = source.row(0).clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train(source.fetch(row))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = train(source.fetch(row))

    def replay(step: int, keep=(model, optimizer)):  # the graph uses their memory
        row.copy_(source.row(step))
        graph.replay()
        return captured

    return replay


def process(spec: dict, seconds: float, settle_s: float, wire) -> None:
    """One plain training process. Over `wire` (a Connection) it sends what it finds of its device
    once it is warm, waits there for anything, trains, and sends (steps, seconds).
    """
    os.environ.update({k: v for k, v in (spec.get("environment") or {}).items() if v is not None})
    os.sched_setaffinity(0, spec["cores"])
    import torch

    from models.data import open_dataset
    from models.device import device_facts
    from models.inputs import open_input
    from models.jobs.vision import VisionJob

    torch.set_num_threads(spec["threads"])
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(spec["seed"])
    device = torch.device(spec["device"])
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()  # makes the context
    facts = device_facts(device)
    dataset = open_dataset(spec["data"]["name"], spec["data"]["path"])
    source = open_input(VisionJob, dataset, spec, device)
    train = make_step(spec, source, device)
    numbers = count()

    def run(least: int, seconds: float) -> tuple[int, float]:
        """Train at least that many steps and that long: the steps and seconds it took."""
        steps, began = 0, time.monotonic()
        while steps < least or time.monotonic() - began < seconds:
            loss = train(next(numbers))
            if spec["sync"]:
                loss.item()
            steps += 1
        synchronize()
        return steps, time.monotonic() - began

    run(1, 0)  # holds cuDNN's autotuning: the warm-up's seconds count from its end
    run(spec["warmup_steps"] - 1, spec.get("warmup_s") or 0)
    wire.send({"pid": os.getpid(), **facts})
    try:
        wire.recv()
    except EOFError:  # nobody wants to know any more
        os._exit(1)
    run(0, settle_s)
    wire.send(run(0, seconds))
    os._exit(0)  # as the members end; freeing a captured graph at interpreter exit can crash


def measure(
    specs: list[dict],
    seconds: float,
    at_barrier: Callable[[list[dict]], object] = lambda reports: None,
    settle_s: float = 0.0,
) -> list[float]:
    """Run one process per spec at once; samples/s of each.

    at_barrier is called when all are warm and none goes on, with what each said of itself: its
    `pid` and models.device.device_facts. What it raises ends the processes and passes through.
    settle_s: seconds between the barrier and the measured ones. Raises RuntimeError when a process
    fails.
    """
    # As models.fork_server has it: importing torch must not make a context that no fork survives.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    wires, processes = [], []
    try:
        for spec in specs:
            ours, theirs = context.Pipe()
            arguments = (spec, seconds, settle_s, theirs)
            each = context.Process(target=process, args=arguments, daemon=True)
            each.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            wires.append(ours)
            processes.append(each)
        at_barrier([_hear(*each) for each in zip(wires, processes, strict=True)])
        for wire in wires:
            wire.send("go")
        outcomes = [_hear(*each) for each in zip(wires, processes, strict=True)]
    finally:
        for wire in wires:
            wire.close()
        for each in processes:
            each.join(END_S)
            each.kill()
            each.join()
    return [
        steps * spec["batch_size"] / taken
        for spec, (steps, taken) in zip(specs, outcomes, strict=True)
    ]


def _hear(wire, process):
    """What a process sends next. Raises RuntimeError if it ends without, or takes too long."""
    try:
        if wire.poll(LONGEST_S):
            return wire.recv()
        reason = f"said nothing for {LONGEST_S:.0f} s"
    except (EOFError, ConnectionResetError):
        process.join(END_S)
        reason = f"ended with exit code {process.exitcode}"
    raise RuntimeError(f"a process of the bare loop (PID {process.pid}) {reason}")
