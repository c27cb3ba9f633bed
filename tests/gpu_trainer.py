"""models.train for members that misbehave as tests/lies.py says; the others train as ever.

Used as `trainer=tests.gpu_trainer`, with tests/lies.py's COLLOCATION_LIES in the environment.
"""

import ctypes

import torch

from models import train
from models.train import preload  # noqa: F401  (the fork server calls it)
from tests.lies import lie_of
from workflow.collocation.member.spec import MemberSpec

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


def main(spec: MemberSpec, channel) -> int:
    """As models.train's, but for the lie that this member is to tell."""
    lie_of(spec).before_cuda()
    # This process is a fork of its own: what is changed here holds for its members alone.
    train.TrainingMember = Liar
    return train.main(spec, channel)


def together(specs: list[MemberSpec], channels: list) -> int:
    train.TrainingMember = Liar
    return train.together(specs, channels)


class Liar(train.TrainingMember):
    """A member that does after each step what its lie says."""

    def build(self) -> None:
        self.lie = lie_of(self.spec)
        super().build()

    def report(self) -> None:
        super().report()
        if self.go_ns is not None and self.lie.after_step(self.step - self.go_step):
            hurt(self.lie.kind, self.device)


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
