"""A training run of a queue (bench/queues.py): an MLP on random numbers, in one of some sizes.

It runs by its path, without this project, so that nothing but its own imports is in its start.
"""

import argparse
import json
import os
import time
from pathlib import Path

BEGAN_S = time.monotonic()
import torch  # noqa: E402

GIB = 2**30
# Width, layers, batch, and share of the GPU's memory that its training set fills (0: one GiB).
SIZES = {
    "small": (256, 8, 256, 0.0),
    "medium": (2048, 8, 1024, 0.0),
    "large": (4096, 8, 4096, 0.0),
    "huge": (2048, 8, 1024, 0.55),
}
CPU_SIZES = {name: (32 << rank, 2, 64, 0.0) for rank, name in enumerate(SIZES)}
CONTEXT_MB = 700  # of a process on the GPU, beside PyTorch's own memory, about
WARM_STEPS, TIMED_S = 20, 2.0  # of a calibration
MOST_S, LEAST_S = 10.0, 4.0  # of training in a run


class Training:
    """A model and its training set on a device."""

    def __init__(self, size: str, device: str, seed: int):
        torch.manual_seed(seed)
        self.device = torch.device(device)
        is_cpu = self.device.type == "cpu"
        width, layers, self.batch, share = (CPU_SIZES if is_cpu else SIZES)[size]
        set_bytes = GIB // 64 if is_cpu else GIB
        if share:
            set_bytes = int(share * torch.cuda.mem_get_info()[1])
        self.samples = torch.empty(set_bytes // 4 // width, width, device=self.device).normal_()
        body: list[torch.nn.Module] = []
        for _ in range(layers):
            body += [torch.nn.Linear(width, width), torch.nn.GELU()]
        self.model = torch.nn.Sequential(*body, torch.nn.Linear(width, 10)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.loss = torch.zeros(())

    def run(self, steps: int) -> float:
        """Train for so many steps; the loss of the last."""
        for _ in range(steps):
            rows = torch.randint(len(self.samples), (self.batch,), device=self.device)
            inputs = self.samples[rows]
            labels = inputs[:, :10].argmax(1)
            self.loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
            self.optimizer.zero_grad(set_to_none=True)
            self.loss.backward()
            self.optimizer.step()
        return self.loss.item()


def calibrate(device: str, runs: int, total_s: float) -> dict:
    """Steps and peak memory (MB) of each size, for `runs` one after the other to take `total_s`."""
    steps_per_s, peak_mb, start_s = {}, {}, 0.0
    for size in SIZES:
        training = Training(size, device, 0)
        training.run(WARM_STEPS)
        start_s = start_s or time.monotonic() - BEGAN_S
        steps, began_s = 0, time.monotonic()
        while time.monotonic() - began_s < TIMED_S:
            training.run(WARM_STEPS)
            steps += WARM_STEPS
        steps_per_s[size] = steps / (time.monotonic() - began_s)
        peak_mb[size] = CONTEXT_MB
        if device != "cpu":
            peak_mb[size] += round(torch.cuda.max_memory_reserved() / 2**20)
            del training
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    seconds = min(MOST_S, max(LEAST_S, total_s / runs - start_s))
    steps = {size: max(1, round(rate * seconds)) for size, rate in steps_per_s.items()}
    return {"steps": steps, "peak_mb": peak_mb, "start_s": start_s, "seconds": seconds}


def run_out_of_memory(device: str, mark: Path) -> None:
    """Ask for more memory than there is, the first time; `mark` says that this was so."""
    if not mark.exists():
        mark.touch()
        torch.empty(2**50, dtype=torch.uint8, device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--device", default="cuda")
    add("--size", choices=SIZES)
    add("--steps", type=int)
    add("--number", type=int, default=0, help="of the run: its seed, and what it writes at the end")
    add("--ended", type=Path, help="file to which it adds its number")
    add("--error", action="store_true", help="fail halfway")
    add("--out-of-memory", type=Path, metavar="MARK", help="once, which this file then says")
    add("--calibrate", type=Path, metavar="FILE", help="write steps and memory of all sizes")
    add("--runs", type=int, default=24, help="of a queue, with --calibrate (24)")
    add("--total", type=float, default=290.0, help="seconds of them all, one after the other")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    if args.calibrate:
        sizes = calibrate(args.device, args.runs, args.total)
        args.calibrate.write_text(json.dumps(sizes, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(sizes), flush=True)
        return
    training = Training(args.size, args.device, args.number)
    training.run(args.steps // 2)
    if args.error:
        raise ValueError("this run fails on purpose")
    if args.out_of_memory:
        run_out_of_memory(args.device, args.out_of_memory)
    loss = training.run(args.steps - args.steps // 2)
    print(f"{args.size} {args.number}: loss {loss:.4f} after {args.steps} steps", flush=True)
    with args.ended.open("a", encoding="utf-8") as file:
        os.write(file.fileno(), f"{args.number}\n".encode())


if __name__ == "__main__":
    main()
