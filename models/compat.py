"""Lets torchvision (and timm, which needs it) import beside a CPU build of torch.

torchvision's wheels hold CUDA operators only. Where their library does not load, its import fails
at the operators `nms` and `qnms`, which are declared here. Import this module before timm or
torchvision, at the top level, because spawned workers import again.
"""

import importlib.util
from pathlib import Path

import torch

# The operators are removed when this object is deleted.
_library = torch.library.Library("torchvision", "FRAGMENT")
for _binary in Path(importlib.util.find_spec("torchvision").origin).parent.glob("_C*.so"):
    try:
        torch.ops.load_library(str(_binary))
    except OSError:
        for _name in ("nms", "qnms"):
            _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
