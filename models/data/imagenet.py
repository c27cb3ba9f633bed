"""ImageNet-2012 and Downsampled ImageNet 64×64 as ImageFolder: train/<class>/*, val/<class>/*."""

from pathlib import Path

import numpy as np
from PIL import Image

from models.data.base import DataError
from models.data.images import ImageDataset
from models.data.painter import Painter, parallel, photo_size

IMAGES_PER_CLASS = 16  # generated: fewer classes than 1000 where there are few images
TOGETHER = 32  # images painted by one generator of random numbers


class ImageNet64(ImageDataset):
    """1,281,167 + 50,000 images of 64×64 pixels in 1000 classes (Chrabaszcz et al., 2017)."""

    name = "imagenet64"
    format = "ImageFolder: train/<class>/* and val/<class>/*"
    nominal = (1_281_167, 50_000)
    generated_size = (4096, 1024)
    parts = ("train", "val")
    resident_limit = 16_384

    def open(self, split: str, transform=None):
        """torchvision's ImageFolder."""
        from models import compat  # noqa: F401  (before torchvision)

        from torchvision.datasets import ImageFolder  # isort: skip

        try:
            return ImageFolder(self.data / ("train" if split == "train" else "val"), transform)
        except FileNotFoundError as error:  # no class, or a class without images
            raise DataError(f"{self.data}: {error}") from None

    @classmethod
    def generate(cls, folder: Path, train: int, validation: int, seed: int) -> None:
        # Every class in both splits, as ImageFolder numbers the classes it finds.
        classes = max(1, min(1000, train // IMAGES_PER_CLASS, validation))
        painter = Painter(classes, seed)

        def paint(task: tuple[int, str, range]) -> None:
            split, top, numbers = task
            rng = np.random.default_rng([seed, 2, split, numbers.start])
            for number in numbers:
                label = number % classes
                path = folder / top / f"n{label + 1:08d}" / f"{number}"
                path.parent.mkdir(parents=True, exist_ok=True)
                cls.save(painter, rng, label, path)

        tasks = []
        for split, (top, count) in enumerate((("train", train), ("val", validation))):
            starts = range(0, count, TOGETHER)
            tasks += [(split, top, range(start, min(count, start + TOGETHER))) for start in starts]
        parallel(paint, tasks)

    @staticmethod
    def save(painter: Painter, rng: np.random.Generator, label: int, path: Path) -> None:
        """Paint one image of a class; `path` is to get its ending."""
        image = Image.fromarray(painter.image(rng, label, 64, 64))
        image.save(path.with_suffix(".png"), compress_level=1)


class ImageNet(ImageNet64):
    """1,281,167 + 50,000 photographs in 1000 classes (ILSVRC 2012), JPEG, about 110 kB each."""

    name = "imagenet"
    generated_size = (2048, 512)
    resident_limit = 4096

    @staticmethod
    def save(painter: Painter, rng: np.random.Generator, label: int, path: Path) -> None:
        image = Image.fromarray(painter.image(rng, label, *photo_size(rng)))
        image.save(path.with_suffix(".JPEG"), quality=int(rng.integers(87, 95)))
