"""What a job is that we train: a model, its loss and its optimizer.

A new kind is one module with one class, a `Job`, which the catalogue names as `module:Class`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn


def compiled(function: Callable) -> Callable:
    """The function by torch.compile, at its first call: in the first step, before any barrier.

    Inductor's default mode, but kernels that need nothing of each other become one: small jobs have
    hundreds of them, such as a cast for each weight. They are compiled in this process: a pool of
    workers would outlive it for a moment, and their memory count as the job's.
    """
    from torch._inductor import config

    config.compile_threads = 1
    return torch.compile(function, dynamic=False, options={"combo_kernels": True})


def compiler(spec: dict) -> Callable[[Callable], Callable]:
    """`compiled` for a job that asks for it; else what leaves a function as it is."""
    return compiled if spec["compile"] else lambda function: function


class Job(ABC):
    """One model in training, on batches from an input of its own kind.

    capturable: the step can be captured as a CUDA graph, if the input has `row` and `fetch`; its
    optimizer then takes a learning rate on the device. `build` makes `model` and `optimizer`; what
    it draws, it draws on the CPU, so that jobs of one seed begin alike on whatever share of a GPU.
    """

    capturable: ClassVar[bool] = False

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self, spec: dict, device: torch.device):
        self.device_type, self.bf16 = device.type, spec["precision"] == "bf16"
        torch.manual_seed(spec["seed"])  # whatever was drawn before
        self.build(spec, device)
        self.compiled = compiler(spec)
        self.trained = self.compiled(self.loss)

    def autocast(self) -> torch.autocast:
        """To compute in within: bf16 where the spec says so. Made anew, for torch.compile would
        compile once for each that is kept.
        """
        return torch.autocast(self.device_type, dtype=torch.bfloat16, enabled=self.bf16)

    @classmethod  # noqa: B027  (most need none)
    def check(cls, spec: dict, dataset) -> None:
        """Raise ValueError if this dataset is none for the job."""

    @classmethod
    @abstractmethod
    def resident(cls, arrays: dict, spec: dict, device: torch.device):
        """The input from `arrays`, as the dataset's `resident` gives them: `batch(step)`, and
        `bytes` that it holds on the device.
        """

    @classmethod
    def files(cls, dataset, spec: dict, device: torch.device):
        """The same from files, read while training. Raises ValueError where there is none."""
        raise ValueError(f"kind {spec['kind']} reads no files; allowed: input mode resident")

    @abstractmethod
    def build(self, spec: dict, device: torch.device) -> None:
        """Make `model` and `optimizer` as the spec says, on the device."""

    @abstractmethod
    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean loss of a batch, a scalar on the device."""

    def set_epoch(self, epoch: int) -> None:  # noqa: B027
        """An epoch (0-based) begins."""

    def step(self, batch: tuple[Tensor, ...]) -> Tensor:
        """One training step; the loss, a detached scalar on the device, not waited for."""
        loss = self.trained(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()
