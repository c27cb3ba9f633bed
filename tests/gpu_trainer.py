"""models.train for members that misbehave as tests/lies.py says; the others train as ever.

Used as `trainer=tests.gpu_trainer`, with tests/lies.py's COLLOCATION_LIES in the environment.
"""

import ctypes
import time

import torch

from models import member, train
from models.jobs.base import JOBS
from models.train import preload  # noqa: F401  (the fork server calls it)
from tests.lies import Lie, lie_of

OTHER_SAMPLES = 7919  # steps ahead, so that no step takes the samples that it should
ILLEGAL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry bad()
{
    .reg .b64 %d0;
    .reg .b32 %r0;
    mov.u64 %d0, 4096;
    mov.u32 %r0, 1;
    st.global.u32 [%d0], %r0;
    ret;
}
\0"""


def main(spec: dict, channel) -> int:
    """As models.train's, but for the lie that this member is to tell."""
    lie = lie_of(spec)
    lie.before_cuda()
    # This process is a fork of its own: what is changed here holds for this member alone.
    member.Member = _member(lie)
    if lie.kind == "skip_backward":
        JOBS.update({kind: _untrained(job) for kind, job in JOBS.items()})
    elif lie.kind == "other_batch":
        member.open_input = _elsewhere(member.open_input)
    return train.main(spec, channel)


def _member(lie: Lie) -> type:
    """A Member that does after each step what the lie says."""

    class Liar(member.Member):
        def report(self) -> None:
            super().report()
            if self.go_ns is not None:
                if lie.after_step(self.step - self.go_step):
                    hurt(lie.kind, self.device)
                time.sleep(lie.seconds)

    return Liar


def hurt(kind: str, device: torch.device) -> None:
    """Have the device fail an assertion, or write where nothing is; the next wait for it raises."""
    if kind == "assert":
        torch.zeros(4, device=device)[torch.tensor([10**6], device=device)].sum()
        return
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(cuda.cuModuleLoadData(ctypes.byref(module), ILLEGAL))
    _check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"bad"))
    _check(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"the driver refused to do wrong: error {code}")


def _untrained(job: type) -> type:
    """A job whose steps only look at the loss."""

    class Untrained(job):
        @torch.no_grad()
        def step(self, batch) -> torch.Tensor:
            images, labels = batch
            with self.autocast:
                return self.criterion(self.model(images), labels)

    return Untrained


def _elsewhere(open_input):
    """Inputs whose steps take the samples of other steps."""

    def open_other(*arguments):
        source = open_input(*arguments)
        batch = source.batch
        source.batch = lambda step: batch(step + OTHER_SAMPLES)
        return source

    return open_other
