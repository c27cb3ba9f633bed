"""CIFAR-10 in the published on-disk format (cifar-10-batches-py), real or generated."""

import pickle
import tarfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from models.data.base import SPLITS, ImageDataset
from models.data.images import Painter, parallel
from models.data.storage import DataError, fingerprint, folder_bytes, locked, new_folder

BATCHES = "cifar-10-batches-py"
SPLIT_FILES = {
    "train": [f"data_batch_{number}" for number in range(1, 6)],
    "validation": ["test_batch"],
}
LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CONNECT_S = 5  # no network: fall back soon
DOWNLOAD_S = 300  # 170 MB: a connection slower than this is not worth waiting for


class ArrayImages:
    """Images held in memory: pixels uint8 [n,32,32,3], labels int64 [n]."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray):
        self.pixels, self.labels = pixels, labels

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])


class Cifar10(ImageDataset):
    """50,000 + 10,000 colour images of 32×32 pixels in 10 classes (Krizhevsky, 2009)."""

    name = "cifar10"
    format = "cifar-10-batches-py: pickles of uint8 [n,3072] and labels"
    nominal = (50_000, 10_000)
    generated_size = (50_000, 10_000)
    lacks = f"has no {BATCHES}/ folder"
    how_to_get = f"put the published {BATCHES} folder there"

    @classmethod
    def find_real(cls, root: Path) -> Path | None:
        folder = root / cls.name
        if not folder.is_dir() or not any(folder.iterdir()):
            return None
        if not (folder / BATCHES).is_dir():
            raise DataError(f"{folder} has files but no {BATCHES}/ folder; extract the archive")
        return folder

    @classmethod
    def real_fingerprint(cls, real: Path) -> str:
        return fingerprint(sorted((real / BATCHES).iterdir()))

    @classmethod
    def download(cls, root: Path) -> str | None:
        target = root / cls.name
        with locked(target):
            if cls.find_real(root):  # another process fetched it meanwhile
                return None
            try:
                with new_folder(target) as folder:
                    archive = folder / "archive.tar.gz"
                    _fetch(URL, archive)
                    with tarfile.open(archive) as tar:
                        tar.extractall(folder, filter="data")
                    archive.unlink()
                    if not _is_published(folder):
                        raise OSError("what came has another md5")
            except (OSError, EOFError, tarfile.TarError) as error:
                return f"could not be downloaded ({error})"
        return None

    @classmethod
    def generate(cls, folder: Path, train: int, validation: int, seed: int) -> dict[str, Any]:
        painter = Painter(len(LABELS), seed)
        (folder / BATCHES).mkdir()
        tasks = [
            (SPLITS.index(split), number, path, size)
            for split, count in (("train", train), ("validation", validation))
            for number, (path, size) in enumerate(
                zip(SPLIT_FILES[split], _shares(count, len(SPLIT_FILES[split])), strict=True)
            )
        ]

        def write(task: tuple[int, int, str, int]) -> None:
            split, number, path, size = task
            rng = np.random.default_rng([seed, 2, split, number])
            labels = rng.permutation(np.arange(size) % len(LABELS))
            pixels = np.empty((size, 32, 32, 3), np.uint8)
            for row, label in enumerate(labels):
                pixels[row] = painter.image(rng, label, 32, 32)
            write_batch(folder / BATCHES / path, pixels, labels)

        list(parallel(write, tasks))
        write_meta(folder / BATCHES, LABELS)
        return {
            "classes": len(LABELS),
            "train_size": train,
            "validation_size": validation,
            "bytes": folder_bytes(folder),
        }

    @classmethod
    def adopt(
        cls, real: Path, folder: Path, size: tuple[int, int] | None, seed: int
    ) -> dict[str, Any]:
        if not _is_published(real):
            raise DataError(
                f"{real} is not the published CIFAR-10: a file is missing, damaged or has another "
                "md5; replace it, or remove it and set source: auto or synthetic"
            )
        return {
            "classes": len(LABELS),
            "train_size": cls.nominal[0],
            "validation_size": cls.nominal[1],
            "bytes": folder_bytes(real / BATCHES),
        }

    def open(self, split: str) -> ArrayImages:
        pixels, labels = [], []
        for name in SPLIT_FILES[split]:
            path = self.data / BATCHES / name
            try:
                with path.open("rb") as file:
                    batch = pickle.load(file, encoding="latin1")
                pixels.append(np.asarray(batch["data"], np.uint8).reshape(-1, 3, 32, 32))
                labels.append(np.asarray(batch["labels"], np.int64))
            except (OSError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
                raise DataError(f"{self.name}: {path} cannot be read ({error!r})") from error
        rows = np.concatenate(pixels).transpose(0, 2, 3, 1)
        return ArrayImages(np.ascontiguousarray(rows), np.concatenate(labels))


def write_batch(path: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    """One pickle of CIFAR-10's format from pixels uint8 [n,32,32,3] and labels [n]."""
    batch = {
        "batch_label": path.name,
        "labels": [int(label) for label in labels],
        "data": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), 3072),
        "filenames": [f"{path.name}_{row:05d}.png" for row in range(len(pixels))],
    }
    with path.open("wb") as file:
        pickle.dump(batch, file, protocol=4)


def write_meta(folder: Path, names: list[str]) -> None:
    """CIFAR-10's batches.meta with these class names."""
    with (folder / "batches.meta").open("wb") as file:
        pickle.dump({"label_names": names, "num_vis": 3072}, file, protocol=4)


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


def _is_published(folder: Path) -> bool:
    """torchvision's md5 check of all files."""
    from models import compat  # noqa: F401 - before torchvision

    from torchvision.datasets import CIFAR10  # isort: skip

    try:
        CIFAR10(folder, train=False, download=False)
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError):
        return False
    return True


def _fetch(url: str, path: Path) -> None:
    """Stream `url` to `path`; OSError where it cannot be had within the limits."""
    opened: list = []

    def connect() -> None:
        try:
            opened.append(urllib.request.urlopen(url, timeout=CONNECT_S))
        except Exception as error:  # handed over to the waiting thread
            opened.append(error)

    # In a thread, as name resolution knows no time-out.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_S + 1)
    if not opened:
        raise OSError("no answer")
    if isinstance(opened[0], Exception):
        raise OSError(str(getattr(opened[0], "reason", opened[0]))) from opened[0]
    deadline = time.monotonic() + DOWNLOAD_S
    with opened[0] as response, path.open("wb") as file:
        while block := response.read(1 << 18):
            if time.monotonic() > deadline:
                raise OSError(f"not complete after {DOWNLOAD_S} s")
            file.write(block)
        if file.tell() == 0:
            raise OSError("empty answer")
