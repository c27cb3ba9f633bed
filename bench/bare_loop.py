"""A bare PyTorch training loop in N plain processes: what the members are compared with.

    python -m bench.bare_loop --spec specs.json --seconds 10 --processes 7

specs.json is a list of member specs (kind vision, resident input), one a process: the same
cores, threads, model, precision and input as the members', but no conductor, no events and no
record. Prints one JSON object: samples/s and steps of each process, and their sum. The time
runs from a common barrier after warm-up to the final synchronize.
"""

import argparse
import json
import multiprocessing
import os
import time
from itertools import count
from pathlib import Path


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


def process(spec: dict, seconds: float, barrier, results) -> None:
    """One plain training process; puts (steps, seconds) into `results`."""
    os.environ.update({k: v for k, v in (spec.get("environment") or {}).items() if v is not None})
    os.sched_setaffinity(0, spec["cores"])
    import torch

    from models.data import open_dataset
    from models.inputs import open_input

    torch.set_num_threads(spec["threads"])
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(spec["seed"])
    device = torch.device(spec["device"])
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    dataset = open_dataset(spec["data"]["name"], spec["data"]["path"])
    train = make_step(spec, open_input(dataset, "train", spec, device), device)
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
    barrier.wait()
    results.put(run(0, seconds))
    os._exit(0)  # as the members end; freeing a captured graph at interpreter exit can crash


def measure(specs: list[dict], seconds: float) -> dict:
    """Run one process per spec at once; samples/s of each and in all.

    Raises RuntimeError when a process fails.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(specs))
    queues = [context.SimpleQueue() for _ in specs]
    processes = [
        context.Process(target=process, args=(spec, seconds, barrier, queue), daemon=True)
        for spec, queue in zip(specs, queues, strict=True)
    ]
    for each in processes:
        each.start()
    while running := [each for each in processes if each.is_alive()]:
        running[0].join(0.1)
        if any(each.exitcode for each in processes):
            barrier.abort()
    if any(each.exitcode for each in processes):
        raise RuntimeError(f"exit codes {[each.exitcode for each in processes]}")
    outcomes = [queue.get() for queue in queues]
    rates = [
        steps * spec["batch_size"] / taken
        for spec, (steps, taken) in zip(specs, outcomes, strict=True)
    ]
    return {
        "processes": [
            {"steps": steps, "seconds": taken, "samples_per_s": rate}
            for (steps, taken), rate in zip(outcomes, rates, strict=True)
        ],
        "samples_per_s": sum(rates),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True, help="JSON list of member specs")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, help="take the first N specs; default: all")
    options = parser.parse_args()
    specs = json.loads(options.spec.read_text())
    if options.processes is not None:
        if not 1 <= options.processes <= len(specs):
            parser.error(f"--processes {options.processes}: {options.spec} has {len(specs)} specs")
        specs = specs[: options.processes]
    print(json.dumps(measure(specs, options.seconds)))


if __name__ == "__main__":
    main()
