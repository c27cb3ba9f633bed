"""The image datasets: read by torchvision's classes, with a cache of decoded images."""

import math
import pickle
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from models.data.base import DataError, Dataset, make_once
from models.data.painter import Painter, parallel, photo_size

BATCHES = "cifar-10-batches-py"
TRAIN_FILES = [f"data_batch_{number}" for number in range(1, 6)]
LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
DIGITS = 1437  # images in the training split
IMAGES_PER_CLASS = 16  # where images are generated; few images have fewer than 1000 classes
CHUNK_IMAGES = 32  # painted with one random generator


class ImageDataset(Dataset):
    """Image classification.

    `open(transform)` returns the training images by torchvision, and raises DataError where files
    are damaged. `files` returns a dataset of (image uint8 [3, S, S], augmented, not normalised;
    label int). `resident` returns "images", uint8 [n, 3, P, P], and "labels", int64 [n], with
    P = margin(S).
    """

    may_be_real = True
    resident_limit: ClassVar[int | None] = None  # most training images in a resident cache

    def files(self, input_size: int):
        """The training images from files, augmented by timm as in the paper.

        RandomResizedCrop (scale .08-1, ratio 3/4-4/3, random interpolation), horizontal flip .5,
        ColorJitter .4. Like the paper, it leaves normalisation to the GPU.
        """
        from models.data.readers import create_transform

        transform = create_transform(
            input_size,
            is_training=True,
            color_jitter=0.4,
            interpolation="random",
            use_prefetcher=True,
        )
        return self.open(transform)

    def count(self) -> dict[str, int]:
        train = self.open()
        return {"classes": len(train.classes), "train_size": len(train)}

    def prepare_resident(self, input_size: int) -> None:
        """Write the cache: a random choice of training images, decoded, and their labels."""

        def write(folder: Path) -> None:
            source = self.open()
            # The order is random, so that any leading part holds all classes.
            order = np.random.default_rng([self.seed, 0]).permutation(len(source))
            order = order[: self.resident_limit]
            np.save(folder / "train_images.npy", decode(source, order, margin(input_size)))
            np.save(folder / "train_labels.npy", np.array(source.targets, np.int64)[order])

        cache = self._cache(input_size)
        make_once(cache, cache.is_dir, write)

    def resident(self, input_size: int, samples: int) -> dict[str, np.ndarray]:
        """The first `samples` images of the cache, or all if there are fewer, memory-mapped."""
        cache = self._cache(input_size)
        if not cache.is_dir():
            raise DataError(
                f"{self.name}: {self.folder} has no resident cache for input size {input_size}; "
                f"run `python -m models.data prepare {self.name} --input-size {input_size}`"
            )
        return {
            name: np.load(cache / f"train_{name}.npy", mmap_mode="r")[:samples]
            for name in ("images", "labels")
        }

    def _cache(self, input_size: int) -> Path:
        return self.folder / f"resident-{input_size}"


def margin(input_size: int) -> int:
    """Side of a resident image: input size / 0.875, the usual crop, rounded up to an even number."""
    return 2 * math.ceil(input_size * 4 / 7)


def fit(image: Image.Image, side: int) -> np.ndarray:
    """Resize an RGB image by its shorter side and crop its centre; returns uint8 [3, side, side].

    An image with a side under `side` is padded by reflection, and not enlarged.
    """
    shorter = min(image.size)
    if shorter > side:
        size = [max(side, round(length * side / shorter)) for length in image.size]
        image = image.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    top, left = (max(0, length - side) // 2 for length in pixels.shape[:2])
    pixels = pixels[top : top + side, left : left + side]
    padding = [(0, 0)] * 3
    for axis in (0, 1):
        missing = side - pixels.shape[axis]
        padding[axis] = (missing // 2, missing - missing // 2)
    return np.pad(pixels, padding, mode="reflect").transpose(2, 0, 1)


def decode(source, order: np.ndarray, side: int) -> np.ndarray:
    """Decode and `fit` the images of a torchvision dataset, in that order: uint8 [n, 3, s, s]."""
    images = np.empty((len(order), 3, side, side), np.uint8)

    def decode_rows(rows: np.ndarray) -> None:
        for row in rows:
            images[row] = fit(source[order[row]][0], side)

    parallel(decode_rows, np.array_split(np.arange(len(order)), len(order) // 64 + 1))
    return images


# -- CIFAR-10's format -----------------------------------------------------------------------------


class Cifar10(ImageDataset):
    """50,000 colour images of 32×32 pixels in 10 classes (Krizhevsky, 2009)."""

    name = "cifar10"
    nominal = generated_size = 50_000

    def open(self, transform=None):
        """torchvision's CIFAR10.

        It unpickles only published files, by their md5, and files that were generated here.
        """
        from models.data.readers import CIFAR10, GeneratedCifar10

        reader = GeneratedCifar10 if self.data == self.folder else CIFAR10
        try:
            return reader(self.data, transform=transform)
        except RuntimeError:
            raise DataError(
                f"{self.data} is not the published CIFAR-10; unpack cifar-10-python.tar.gz there: "
                f"{BATCHES}/ holds its files, unchanged"
            ) from None

    @classmethod
    def generate(cls, folder: Path, train: int, seed: int) -> None:
        painter = Painter(len(LABELS), seed)

        def paint(part: tuple[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            """Images and labels of one file: its number, and the places of its samples."""
            number, rows = part
            rng = np.random.default_rng([seed, 2, 0, number])
            labels = rng.permutation(np.arange(len(rows)) % len(LABELS))
            return np.stack([painter.image(rng, label, 32, 32) for label in labels]), labels

        parts = np.array_split(np.arange(train), len(TRAIN_FILES))
        write_batches(folder, parallel(paint, enumerate(parts)), LABELS)


class Digits(Cifar10):
    """1,437 real images on any machine, as CIFAR-10 files.

    The UCI Optical Recognition of Handwritten Digits, test part: 8×8 grey images, scaled up to
    32×32 RGB. The choice is fixed and stratified by class.
    """

    name = "digits"
    nominal = generated_size = DIGITS
    bundled = "scikit-learn's bundled handwritten digits"

    @classmethod
    def generate(cls, folder: Path, train: int, seed: int) -> None:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
        images = (Image.fromarray(image).convert("RGB") for image in grey)
        pixels = np.stack([image.resize((32, 32), Image.Resampling.BICUBIC) for image in images])
        train_rows, _ = train_test_split(
            np.arange(len(pixels)), train_size=DIGITS, stratify=digits.target, random_state=0
        )
        split = np.array_split(train_rows, len(TRAIN_FILES))
        parts = [(pixels[rows], digits.target[rows]) for rows in split]
        write_batches(folder, parts, [str(digit) for digit in range(10)])


def write_batches(
    folder: Path, parts: list[tuple[np.ndarray, np.ndarray]], names: list[str]
) -> None:
    """Write CIFAR-10's files into `folder`.

    parts: for each of TRAIN_FILES pixels uint8 [n, 32, 32, 3] and labels [n]. names: of classes.
    """
    files = {"batches.meta": {"label_names": names}}
    for name, (pixels, labels) in zip(TRAIN_FILES, parts, strict=True):
        rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), 3072)
        files[name] = {"data": rows, "labels": labels.tolist()}
    (folder / BATCHES).mkdir()
    for name, content in files.items():
        (folder / BATCHES / name).write_bytes(pickle.dumps(content, protocol=4))


# -- ImageNet's format -----------------------------------------------------------------------------


class ImageNet64(ImageDataset):
    """1,281,167 images of 64×64 pixels in 1000 classes (Chrabaszcz et al., 2017)."""

    name = "imagenet64"
    nominal = 1_281_167
    generated_size = 4096
    resident_limit = 16_384

    def open(self, transform=None):
        """torchvision's ImageFolder."""
        from models.data.readers import VisibleImageFolder, load_image

        try:
            return VisibleImageFolder(str(self.data / "train"), transform, loader=load_image)
        # There is no folder, no class in it, or a class without images.
        except (FileNotFoundError, ValueError) as error:
            raise DataError(f"{self.data}: {error}") from None

    @classmethod
    def generate(cls, folder: Path, train: int, seed: int) -> None:
        classes = max(1, min(1000, train // IMAGES_PER_CLASS))
        painter = Painter(classes, seed)

        def paint(start: int) -> None:
            rng = np.random.default_rng([seed, 2, 0, start])
            for number in range(start, min(train, start + CHUNK_IMAGES)):
                label = number % classes
                path = folder / "train" / f"n{label + 1:08d}" / f"{number}"
                path.parent.mkdir(parents=True, exist_ok=True)
                cls.save(painter, rng, label, path)

        parallel(paint, range(0, train, CHUNK_IMAGES))

    @staticmethod
    def save(painter: Painter, rng: np.random.Generator, label: int, path: Path) -> None:
        """Paint one image of a class, and save it under `path` with a suffix."""
        image = Image.fromarray(painter.image(rng, label, 64, 64))
        image.save(path.with_suffix(".png"), compress_level=1)


class ImageNet(ImageNet64):
    """1,281,167 photographs in 1000 classes (ILSVRC 2012), JPEG, about 110 kB each."""

    name = "imagenet"
    generated_size = 2048
    resident_limit = 4096

    @staticmethod
    def save(painter: Painter, rng: np.random.Generator, label: int, path: Path) -> None:
        image = Image.fromarray(painter.image(rng, label, *photo_size(rng)))
        image.save(path.with_suffix(".JPEG"), quality=int(rng.integers(87, 95)))
