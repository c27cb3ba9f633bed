"""The GPU that a study uses: `find` it, then ask the Device. Everything here only reads."""

from workflow.collocation.gpu.device import Device, torch_build
from workflow.collocation.gpu.nvidia import Nvidia, find

__all__ = ["Device", "Nvidia", "find", "torch_build"]
