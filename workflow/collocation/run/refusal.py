"""Why a cell cannot run on this machine: its arm or its method asks for more than there is."""

import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from workflow.collocation import sharing as methods
from workflow.collocation.gpu import Device
from workflow.collocation.spec.cell import ArmSpec, CellSpec

TRITON = (7, 0)  # the least compute capability that it compiles for


def refusal(spec: CellSpec, device: Device | None, switch: bool = False) -> str | None:
    """The reason in a line, or None. Reads only; `switch` as in `methods.refusal`."""
    return _of_arm(spec.arm, device) or methods.refusal(spec, device, switch)


def _of_arm(arm: ArmSpec, device: Device | None) -> str | None:
    if not arm.cuda_graph:
        return None
    if device is None:
        return "a CUDA graph needs an NVIDIA GPU, and there is none on this machine"
    if not arm.compile:
        return None
    lacks = []
    if find_spec("triton") is None:
        lacks.append("the Python package triton, which PyTorch's builds for CUDA bring along")
    if not any(map(shutil.which, ("gcc", "clang"))):
        lacks.append("a C compiler (gcc or clang)")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        lacks.append("Python's headers (such as the package python3-dev)")
    if device.capability < TRITON:
        lacks.append(f"a GPU of compute capability {TRITON[0]}.{TRITON[1]} or more")
    return f"torch.compile needs {', and '.join(lacks)}" if lacks else None
