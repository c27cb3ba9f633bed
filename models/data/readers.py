"""What reads image files: torchvision's classes and timm's augmentation.

Their import takes seconds; data that are prepared already do without.
"""

import os

from models.data.base import DataError

from models import compat  # noqa: F401  (before timm and torchvision)

from timm.data import create_transform  # noqa: F401  # isort: skip
from torchvision.datasets import CIFAR10, ImageFolder  # isort: skip
from torchvision.datasets.folder import pil_loader  # isort: skip


class Written(CIFAR10):
    """CIFAR-10's files as they were written here: those to train on, without checksums."""

    train_list = [[name, None] for name, _ in CIFAR10.train_list]
    test_list = []
    meta = CIFAR10.meta | {"md5": None}


def load(path: str):
    """An image, decoded. Raises DataError with its name: libraries have many errors for it."""
    try:
        return pil_loader(path)
    except Exception as error:
        raise DataError(f"{path}: is no image that can be read: {error}") from None


class Images(ImageFolder):
    """An image folder without the folders that programs hide in it, as .ipynb_checkpoints."""

    def find_classes(self, directory):
        classes = [name for name in super().find_classes(directory)[0] if name[0] != "."]
        return classes, {name: number for number, name in enumerate(classes)}

    @staticmethod
    def make_dataset(directory, *options, **more):
        samples, start = ImageFolder.make_dataset(directory, *options, **more), len(directory)
        return [sample for sample in samples if "/." not in os.path.dirname(sample[0])[start:]]
