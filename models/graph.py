"""The whole training step, input included, as one CUDA graph."""

from functools import partial

import torch
from torch import Tensor

from models.jobs.base import Job

FIRST_STEPS = 3  # before capture, as PyTorch's notes on whole-network capture ask


class NotCapturable(RuntimeError):
    """This job's step does not become a graph, however often that is tried."""

    unsupported = True


class GraphedStep:
    """`job`'s training step on `source`'s batches, captured once and replayed for each step.

    Input, forward, backward and update are one launch; only the row of the samples is copied in
    before it. The first steps are taken eagerly, and capturing trains nothing: losses are those of
    the eager step. The learning rate lies on the device, where an epoch may change it. Raises
    ValueError unless the job's kind can be captured, has resident input and is on CUDA;
    NotCapturable in its third step.
    """

    first_steps = FIRST_STEPS  # which are no replays: to be taken before any that count

    def __init__(self, job: Job, source, device: torch.device):
        if not (job.capturable and hasattr(source, "fetch") and device.type == "cuda"):
            raise ValueError("cuda_graph needs CUDA, resident input, a kind that can be captured")
        self.job, self.source, self.graph = job, source, None
        self.row, self.fetch = source.row(0).clone(), job.compiled(source.fetch)
        self.side, self.eager = torch.cuda.Stream(), 0
        scalar = partial(self.row.new_empty, (), dtype=torch.float32)
        self.rates = [scalar() for _ in job.optimizer.param_groups]
        self._set_rates()

    def _set_rates(self) -> None:
        """Have the optimizer read its learning rates from the device."""
        for group, rate in zip(self.job.optimizer.param_groups, self.rates, strict=True):
            rate.fill_(group["lr"])
            group["lr"] = rate

    def set_epoch(self, epoch: int) -> None:
        self.job.set_epoch(epoch)
        self._set_rates()

    def batch(self, step: int) -> Tensor:
        """The row of that step: all the host has to hand over."""
        return self.source.row(step)

    def step(self, row: Tensor) -> Tensor:
        """Launch one training step; the loss, a device scalar that the next step overwrites."""
        self.row.copy_(row)
        if self.graph is None:
            return self._first_step()
        self.graph.replay()
        return self.loss

    def _first_step(self) -> Tensor:
        """One of the eager steps, on a stream beside; after the last one the next is captured."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            loss = self.job.step(self.fetch(self.row))
        torch.cuda.current_stream().wait_stream(self.side)
        self.eager += 1
        if self.eager == FIRST_STEPS:
            self._capture()
        return loss

    def _capture(self) -> None:
        self.graph, cause = torch.cuda.CUDAGraph(), None
        try:
            # On a stream of its own, or jobs of one process would share cuBLAS's workspace.
            with torch.cuda.graph(self.graph, stream=self.side):
                try:
                    self.loss = self.job.step(self.fetch(self.row))
                except Exception as error:
                    cause = error  # which the end of the capture hides behind one of its own
                    raise
        except Exception as error:
            cause = cause or error
            if "captur" not in str(cause).lower():  # as all of CUDA's and torch's words of it have
                raise cause from None
            said = f"the step cannot be captured as a CUDA graph: {cause}"
            raise NotCapturable(said) from cause
