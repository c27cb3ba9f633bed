"""Lets torchvision (and timm, which needs it) import beside a CPU build of torch.

torchvision's wheels hold CUDA operators only. Where their library does not load, torchvision's
import fails at the operators `nms` and `qnms`, whose schemas are declared here. Import this
module before timm or torchvision, at the top level (spawned workers import again).
"""

import importlib.util
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _declare_missing_operators() -> torch.library.Library | None:
    """The library holding the schemas (it must be kept alive), None where none is needed."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    for binary in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(binary))
        except OSError:
            library = torch.library.Library("torchvision", "FRAGMENT")
            for schema in _SCHEMAS:
                library.define(schema)
            return library
    return None


_library = _declare_missing_operators()
