"""Readers of image files: torchvision's classes and timm's augmentation.

Their import takes seconds; data that are already prepared are read without them.
"""

import os

from models.data.base import DataError

from models import compat  # noqa: F401  (before timm and torchvision)

from timm.data import create_transform  # noqa: F401  # isort: skip
from torchvision.datasets import CIFAR10, ImageFolder  # isort: skip
from torchvision.datasets.folder import pil_loader  # isort: skip


class GeneratedCifar10(CIFAR10):
    """CIFAR-10's training files as they are generated here, without checksums."""

    train_list = [[name, None] for name, _ in CIFAR10.train_list]
    test_list = []
    meta = CIFAR10.meta | {"md5": None}


def load_image(path: str):
    """Decode an image. Raises DataError with its name, in place of the libraries' many errors."""
    try:
        return pil_loader(path)
    except Exception as error:
        raise DataError(f"{path}: is no image that can be read: {error}") from None


class VisibleImageFolder(ImageFolder):
    """An image folder without hidden folders, such as .ipynb_checkpoints."""

    def find_classes(self, directory):
        classes = [name for name in super().find_classes(directory)[0] if name[0] != "."]
        return classes, {name: number for number, name in enumerate(classes)}

    @staticmethod
    def make_dataset(directory, *arguments, **options):
        samples = ImageFolder.make_dataset(directory, *arguments, **options)
        start = len(directory)
        return [sample for sample in samples if "/." not in os.path.dirname(sample[0])[start:]]
