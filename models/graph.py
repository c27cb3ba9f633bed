"""A whole training step, including its input, as one CUDA graph."""

import torch
from torch import Tensor

from models.jobs.base import Job

FIRST_STEPS = 3  # eager steps before the capture, as PyTorch's notes on CUDA graphs recommend


class NotCapturable(RuntimeError):
    """The step of this job cannot become a CUDA graph, however often that is tried."""

    unsupported = True


class GraphedStep:
    """The training step of `job` on batches of `source`, captured once and replayed for each step.

    Input, forward pass, backward pass and update are one launch; only the row of sample numbers is
    copied in before. The first steps are eager, and the capture trains nothing, so losses are those
    of the eager step. The learning rate is on the device, where a new epoch can change it. Raises
    ValueError unless the kind of job can be captured, its input is resident, and the device is
    CUDA; the third step raises NotCapturable where the capture fails.
    """

    first_steps = FIRST_STEPS

    def __init__(self, job: Job, source, device: torch.device):
        if not (job.capturable and hasattr(source, "fetch") and device.type == "cuda"):
            raise ValueError("cuda_graph needs CUDA, resident input, a kind that can be captured")
        self.job, self.source, self.graph = job, source, None
        self.row, self.fetch = source.row(0).clone(), job.compiled(source.fetch)
        self.side_stream, self.eager_steps = torch.cuda.Stream(), 0
        groups = job.optimizer.param_groups
        self.rates = [self.row.new_empty((), dtype=torch.float32) for _ in groups]
        self._move_rates_to_device()

    def _move_rates_to_device(self) -> None:
        """Have the optimizer read its learning rates from the device."""
        for group, rate in zip(self.job.optimizer.param_groups, self.rates, strict=True):
            rate.fill_(group["lr"])
            group["lr"] = rate

    def set_epoch(self, epoch: int) -> None:
        self.job.set_epoch(epoch)
        self._move_rates_to_device()

    def batch(self, step: int) -> Tensor:
        """The row of sample numbers of that step."""
        return self.source.row(step)

    def step(self, row: Tensor) -> Tensor:
        """Launch one training step; returns its loss, a scalar that the next step overwrites."""
        self.row.copy_(row)
        if self.graph is None:
            return self._eager_step()
        self.graph.replay()
        return self.loss

    def _eager_step(self) -> Tensor:
        """One of the first steps, on a side stream; the last of them is followed by the capture."""
        self.side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side_stream):
            loss = self.job.step(self.fetch(self.row))
        torch.cuda.current_stream().wait_stream(self.side_stream)
        self.eager_steps += 1
        if self.eager_steps == FIRST_STEPS:
            self._capture()
        return loss

    def _capture(self) -> None:
        self.graph, cause = torch.cuda.CUDAGraph(), None
        try:
            # On a stream of its own: jobs of one process would share cuBLAS's workspace otherwise.
            with torch.cuda.graph(self.graph, stream=self.side_stream):
                try:
                    self.loss = self.job.step(self.fetch(self.row))
                except Exception as error:
                    cause = error  # The end of the capture raises another error in its place.
                    raise
        except Exception as error:
            cause = cause or error
            if "captur" not in str(cause).lower():  # All messages of CUDA and torch contain it.
                raise cause from None
            message = f"the step cannot be captured as a CUDA graph: {cause}"
            raise NotCapturable(message) from cause
