"""CIFAR-10 as torchvision reads it, real or generated, and scikit-learn's digits in its format."""

import pickle
from pathlib import Path

import numpy as np
from PIL import Image

from models.data.base import DataError
from models.data.images import ImageDataset
from models.data.painter import Painter, parallel

BATCHES = "cifar-10-batches-py"
TRAIN_FILES = [f"data_batch_{number}" for number in range(1, 6)]
LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
DIGITS_VALIDATION = 360


class Cifar10(ImageDataset):
    """50,000 + 10,000 colour images of 32×32 pixels in 10 classes (Krizhevsky, 2009)."""

    name = "cifar10"
    format = "cifar-10-batches-py: pickles of uint8 [n,3072] and labels"
    nominal = (50_000, 10_000)
    generated_size = (50_000, 10_000)
    parts = (BATCHES,)

    def open(self, split: str, transform=None):
        """torchvision's CIFAR10; what it unpickles is published, by its md5, or was written here."""
        kind = torchvision_cifar10(published=self.data != self.folder)
        try:
            return kind(self.data, train=split == "train", transform=transform)
        except RuntimeError as error:
            raise DataError(f"{self.data} is not the published CIFAR-10: {error}") from None

    @classmethod
    def generate(cls, folder: Path, train: int, validation: int, seed: int) -> None:
        painter = Painter(len(LABELS), seed)

        def paint(part: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
            split, number, size = part
            rng = np.random.default_rng([seed, 2, split, number])
            labels = rng.permutation(np.arange(size) % len(LABELS))
            return np.stack([painter.image(rng, label, 32, 32) for label in labels]), labels

        parts = np.array_split(np.arange(train), len(TRAIN_FILES))
        sizes = [(0, number, len(part)) for number, part in enumerate(parts)]
        write_batches(folder, parallel(paint, [*sizes, (1, 0, validation)]), LABELS)


class Digits(Cifar10):
    """1,437 + 360 real images on any machine, as CIFAR-10 files.

    The UCI Optical Recognition of Handwritten Digits, test part: 8×8 grey images, scaled up to
    32×32 RGB. The split is fixed and stratified by class.
    """

    name = "digits"
    nominal = (1_797 - DIGITS_VALIDATION, DIGITS_VALIDATION)
    generated_size = nominal
    bundled = "scikit-learn's bundled handwritten digits"

    @classmethod
    def generate(cls, folder: Path, train: int, validation: int, seed: int) -> None:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
        images = (Image.fromarray(image).convert("RGB") for image in grey)
        pixels = np.stack([image.resize((32, 32), Image.Resampling.BICUBIC) for image in images])
        numbers = np.arange(len(pixels))
        training, rest = train_test_split(
            numbers, test_size=DIGITS_VALIDATION, stratify=digits.target, random_state=0
        )
        rows = [*np.array_split(training, len(TRAIN_FILES)), rest]
        parts = [(pixels[part], digits.target[part]) for part in rows]
        write_batches(folder, parts, [str(digit) for digit in range(10)])


def torchvision_cifar10(published: bool):
    """torchvision's CIFAR10, which checks md5; unless published, one that takes all files."""
    from models import compat  # noqa: F401  (before torchvision)

    from torchvision.datasets import CIFAR10  # isort: skip

    if published:
        return CIFAR10
    unchecked = {
        "train_list": [[name, None] for name, _ in CIFAR10.train_list],
        "test_list": [[name, None] for name, _ in CIFAR10.test_list],
        "meta": {**CIFAR10.meta, "md5": None},
    }
    return type("Unchecked", (CIFAR10,), unchecked)


def write_batches(
    folder: Path, parts: list[tuple[np.ndarray, np.ndarray]], names: list[str]
) -> None:
    """Write CIFAR-10's files in `folder`.

    parts: pixels uint8 [n,32,32,3] and labels [n] of each of TRAIN_FILES, and of test_batch.
    """
    files = {"batches.meta": {"label_names": names}}
    for name, (pixels, labels) in zip([*TRAIN_FILES, "test_batch"], parts, strict=True):
        rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), 3072)
        files[name] = {"data": rows, "labels": labels.tolist()}
    (folder / BATCHES).mkdir()
    for name, content in files.items():
        (folder / BATCHES / name).write_bytes(pickle.dumps(content, protocol=4))
