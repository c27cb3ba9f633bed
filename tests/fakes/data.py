"""Small jobs that train for real, and datasets for them that are not there."""

import numpy as np
import torch

from workflow.collocation.member.spec import OptimizerSpec

DLRM = {
    "kind": "dlrm",
    "model": "dlrm",
    "batch_size": 128,
    "input_size": 0,
    "model_args": {"dim": 8, "bottom": [32, 8], "top": [32, 1], "tables": [50, 3, 200]},
    "optimizer": OptimizerSpec(lr=0.5),
}
TINY = {"model": "tests.fakes.data:tiny_net", "model_args": {"width": 8}}


class FakeImages:
    """40 px images whose brightness tells their class."""

    classes, nominal_train_size = 4, 160

    def resident(self, input_size, samples):
        labels = np.arange(min(samples, 96)) % self.classes
        noise = np.random.default_rng(0).integers(0, 40, (len(labels), 3, 40, 40))
        images = (noise + labels[:, None, None, None] * 60).astype(np.uint8)
        return {"images": images, "labels": labels}


class FakeClicks:
    """Rows whose label follows one dense value and one id."""

    classes, nominal_train_size = 2, 4096

    def resident(self, input_size, samples):
        rng = np.random.default_rng(0)
        dense = rng.normal(size=(samples, 13)).astype(np.float32)
        sparse = rng.integers(0, 2**32, (samples, 26))
        label = (dense[:, 0] + 2.0 * (sparse[:, 1] % 3 == 0) > 0.7).astype(np.float32)
        return {"dense": dense, "sparse": sparse, "label": label}


def tiny_net(num_classes: int, width: int) -> torch.nn.Module:
    body = torch.nn.Conv2d(3, width, 3, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    return torch.nn.Sequential(*body, torch.nn.Flatten(), torch.nn.Linear(width, num_classes))
