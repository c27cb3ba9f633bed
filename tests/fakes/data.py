"""Datasets that are not there, for members that train for real."""

import numpy as np


class FakeImages:
    """40 px images whose brightness tells their class."""

    classes, train_size, validation_size = 4, 96, 24
    nominal_train_size, nominal_validation_size = 160, 40

    def resident(self, split, input_size, samples):
        n = min(samples, self.train_size if split == "train" else self.validation_size)
        labels = np.arange(n) % self.classes
        noise = np.random.default_rng(0).integers(0, 40, (n, 3, 40, 40))
        images = (noise + labels[:, None, None, None] * 60).astype(np.uint8)
        return {"images": images, "labels": labels}


class FakeClicks:
    """Rows whose label follows one dense value and one id."""

    classes, train_size, validation_size = 2, 4096, 512
    nominal_train_size, nominal_validation_size = 4096, 512

    def resident(self, split, input_size, samples):
        rng = np.random.default_rng(0)
        dense = rng.normal(size=(samples, 13)).astype(np.float32)
        sparse = rng.integers(0, 2**32, (samples, 26))
        label = (dense[:, 0] + 2.0 * (sparse[:, 1] % 3 == 0) > 0.7).astype(np.float32)
        return {"dense": dense, "sparse": sparse, "label": label}
