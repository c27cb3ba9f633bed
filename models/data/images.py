"""What the image datasets share: torchvision's classes read them, a cache holds a part decoded."""

import math
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from models.data.base import DataError, Dataset
from models.data.folders import make_once
from models.data.painter import parallel


class ImageDataset(Dataset):
    """Image classification.

    `files` yields (image uint8 [3,S,S], augmented, not normalised; label int).
    `resident` gives {"images": uint8 [n,3,P,P], "labels": int64 [n]} with P = margin(S).
    """

    resident_limit: ClassVar[int | None] = None  # most training images in a resident cache

    @abstractmethod
    def open(self, split: str, transform=None):
        """A split as torchvision reads it; DataError where the files are damaged."""

    def files(self, input_size: int):
        """The training images as they are trained on from files."""
        return self.open("train", image_transform(input_size))

    def count(self) -> dict[str, int]:
        train, validation = self.open("train"), self.open("validation")
        if odd := sorted(set(train.classes) ^ set(validation.classes)):
            raise DataError(f"{self.data}: class {odd[0]} is not in both train/ and val/")
        sizes = {"train_size": len(train), "validation_size": len(validation)}
        return {"classes": len(train.classes), **sizes}

    def prepare_resident(self, input_size: int) -> None:
        """Decode a seeded random choice of training images to uint8 [n,3,P,P], and their labels."""

        def write(folder: Path) -> None:
            source = self.open("train")
            # Shuffled, so that any leading part holds all classes.
            order = np.random.default_rng([self.seed, 0]).permutation(len(source))
            order = order[: self.resident_limit]
            np.save(folder / "train_images.npy", decode(source, order, margin(input_size)))
            np.save(folder / "train_labels.npy", np.array(source.targets, np.int64)[order])

        cache = self._cache(input_size)
        make_once(cache, cache.is_dir, write)

    def resident(self, input_size: int, samples: int) -> dict[str, np.ndarray]:
        """The first `samples` of the cache (all, where there are fewer), memory-mapped."""
        cache = self._cache(input_size)
        if not cache.is_dir():
            raise DataError(
                f"{self.name}: {self.folder} has no resident cache for input size {input_size}; "
                f"run `python -m models.data prepare {self.name} --input-size {input_size}`"
            )
        return {
            part: np.load(cache / f"train_{part}.npy", mmap_mode="r")[:samples]
            for part in ("images", "labels")
        }

    def _cache(self, input_size: int) -> Path:
        return self.folder / f"resident-{input_size}"


def margin(input_size: int) -> int:
    """Side of a resident image: input size / 0.875 (the usual crop share), up to even."""
    return 2 * math.ceil(input_size * 4 / 7)


def fit(image: Image.Image, side: int) -> np.ndarray:
    """RGB image to uint8 [3,side,side]: resized by its shorter side and centre-cropped.

    An image with a side under `side` is padded by reflection instead of being blown up.
    """
    shorter = min(image.size)
    if shorter > side:
        size = [max(side, round(length * side / shorter)) for length in image.size]
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    top, left = (max(0, length - side) // 2 for length in pixels.shape[:2])
    pixels = pixels[top : top + side, left : left + side]
    around = [(missing // 2, missing - missing // 2) for missing in side - np.array(pixels.shape)[:2]]
    return np.pad(pixels, (*around, (0, 0)), mode="reflect").transpose(2, 0, 1)


def decode(source, order: np.ndarray, side: int) -> np.ndarray:
    """Images of a source, in that order, fitted: uint8 [n,3,side,side]."""
    images = np.empty((len(order), 3, side, side), np.uint8)

    def some(rows: np.ndarray) -> None:
        for row in rows:
            images[row] = fit(source[order[row]][0], side)

    parallel(some, np.array_split(np.arange(len(order)), len(order) // 64 + 1))
    return images


def image_transform(input_size: int):
    """PIL image to uint8 [3,S,S], through timm as in the paper (which normalised on the GPU).

    RandomResizedCrop (scale .08-1, ratio 3/4-4/3, random interpolation), horizontal flip .5,
    ColorJitter .4.
    """
    from models import compat  # noqa: F401  (before timm)

    from timm.data import create_transform  # isort: skip

    return create_transform(
        input_size, is_training=True, color_jitter=0.4, interpolation="random", use_prefetcher=True
    )
