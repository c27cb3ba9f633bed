"""The interface of a training job: a model, its loss and its optimizer.

A new kind is one module with one class, a `Job`, which the catalogue names as `module:Class`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from workflow.collocation.member.spec import MemberSpec


def compiled(function: Callable) -> Callable:
    """The function by torch.compile, compiled at its first call, which is in the first step.

    Inductor's default mode, but kernels that do not depend on each other are combined: small jobs
    have hundreds of them, such as a cast for each weight. They are compiled in this process,
    because a pool of workers would outlive it for a moment, and its memory would count as the
    job's.
    """
    from torch._inductor import config

    config.compile_threads = 1
    return torch.compile(function, dynamic=False, options={"combo_kernels": True})


def compiler(spec: MemberSpec) -> Callable[[Callable], Callable]:
    """`compiled` for a job that asks for it; else a function that returns its argument."""
    return compiled if spec.implementation.compile else lambda function: function


class Job(ABC):
    """One model in training, on batches of its kind of input.

    capturable: the step can be captured as a CUDA graph, if the input has `row` and `fetch`; its
    optimizer then takes a learning rate on the device. `build` makes `model` and `optimizer`; it
    draws random numbers on the CPU, so that jobs of one seed begin alike on any share of a GPU.
    """

    capturable: ClassVar[bool] = False

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self, spec: MemberSpec, device: torch.device):
        self.device_type = device.type
        self.bf16 = spec.implementation.precision == "bf16"
        torch.manual_seed(spec.seed)  # whatever was drawn before
        self.build(spec, device)
        self.compiled = compiler(spec)
        self.compiled_loss = self.compiled(self.loss)

    def autocast(self) -> torch.autocast:
        """The context to compute in: bf16 where the spec asks for it.

        It is made anew for each use, because torch.compile compiles once for each stored object.
        """
        return torch.autocast(self.device_type, dtype=torch.bfloat16, enabled=self.bf16)

    @classmethod  # noqa: B027  (most need none)
    def check(cls, spec: MemberSpec, dataset) -> None:
        """Raise ValueError if the job cannot train on this dataset."""

    @classmethod
    @abstractmethod
    def resident(cls, arrays: dict, spec: MemberSpec, device: torch.device):
        """The input of samples on the device: `batch(step)`, and `bytes` that it holds there.

        arrays: as the dataset's `resident` returns them.
        """

    @classmethod
    def files(cls, dataset, spec: MemberSpec, device: torch.device):
        """The input that is read from files during training. Raises ValueError without one."""
        raise ValueError(f"kind {spec.kind} reads no files; allowed: input mode resident")

    @abstractmethod
    def build(self, spec: MemberSpec, device: torch.device) -> None:
        """Make `model` and `optimizer` as the spec says, on the device."""

    @abstractmethod
    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean loss of a batch, a scalar on the device."""

    def set_epoch(self, epoch: int) -> None:  # noqa: B027
        """Note that an epoch (0-based) begins."""

    def step(self, batch: tuple[Tensor, ...]) -> Tensor:
        """One training step; returns its loss, a detached scalar on the device, without waiting."""
        loss = self.compiled_loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()
