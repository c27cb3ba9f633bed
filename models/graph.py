"""The whole training step, input included, as one CUDA graph."""

from collections.abc import Callable
from itertools import chain, zip_longest

import torch
from torch import Tensor

from models.inputs import ResidentImages
from models.jobs.base import Job

_WARMUP_STEPS = 3  # as PyTorch's notes on whole-network capture ask


def _state(job: Job) -> list[Tensor]:
    """Every tensor that a training step changes, the optimizer's included."""
    states = (value for state in job.optimizer.state.values() for value in state.values())
    tensors = chain(job.model.parameters(), job.model.buffers(), states)
    return [tensor for tensor in tensors if isinstance(tensor, Tensor)]


class GraphedStep:
    """`job`'s training step on `source`'s batches, captured once and replayed for each step.

    Crop, flip, normalisation, forward, backward and update are one launch; only the row of
    sample numbers and crops is copied in before it. The learning rate is a constant of the
    graph: it stays at its initial value, a cosine schedule is not followed. Capturing leaves
    weights, statistics and momentum as they were, so that losses agree with the eager step's
    (random layers such as dropout excepted: they have drawn a few numbers more).
    Raises ValueError unless the job can be captured, has resident input and is on CUDA.
    """

    def __init__(self, job: Job, source: ResidentImages, device: torch.device):
        if not (job.capturable and hasattr(source, "fetch")):
            raise ValueError("cuda_graph needs a kind that can be captured, with resident input")
        if device.type != "cuda":
            raise ValueError(f"cuda_graph needs a CUDA device, not {device.type}")
        self.source = source
        self.row = source.row(0).clone()
        before = [tensor.detach().clone() for tensor in _state(job)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARMUP_STEPS):
                job.step(source.fetch(self.row))
        torch.cuda.current_stream().wait_stream(side)
        with torch.no_grad():
            for tensor, old in zip_longest(_state(job), before):
                # A new optimizer had no state: what the warm-up made of it begins at zero.
                tensor.copy_(old if old is not None else torch.zeros_like(tensor))
        del before
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = job.step(source.fetch(self.row))

    def batch(self, step: int) -> Tensor:
        """The row of that step: all the host has to hand over."""
        return self.source.row(step)

    def step(self, row: Tensor) -> Tensor:
        """Launch one training step; the loss, a device scalar that the next step overwrites."""
        self.row.copy_(row)
        self.graph.replay()
        return self.loss

    def input_alone(self) -> Callable[[int], None]:
        """A function that launches the graph's input work alone, of the row it has now.

        For timing: whatever step it is called with. Captured in the training graph's memory,
        which lies idle between replays; freed when the function is.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.graph.pool()):
            self.source.fetch(self.row)
        return lambda _step: graph.replay()
