"""CIFAR-10 in the published on-disk format (cifar-10-batches-py), real or generated."""

import pickle
import tarfile
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from models.data.base import ImageDataset
from models.data.images import Painter, parallel
from models.data.storage import DataError, fingerprint, folder_bytes, locked, new_folder

BATCHES = "cifar-10-batches-py"
TRAIN_FILES = [f"data_batch_{number}" for number in range(1, 6)]
TEST_FILE = "test_batch"
LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
CONNECT_S = 5  # no network: fall back soon
DOWNLOAD_S = 300  # 170 MB: a connection slower than this is not worth waiting for


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
                    _fetch(URL, folder / "archive")
                    with tarfile.open(folder / "archive") as tar:
                        tar.extractall(folder, filter="data")
                    (folder / "archive").unlink()
                    if not _is_published(folder):
                        raise OSError("what came has another md5")
            except (OSError, EOFError, tarfile.TarError) as error:
                return f"could not be downloaded ({getattr(error, 'reason', error)})"
        return None

    @classmethod
    def generate(cls, folder: Path, train: int, validation: int, seed: int) -> dict[str, Any]:
        painter = Painter(len(LABELS), seed)

        def paint(part: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
            split, number, size = part
            rng = np.random.default_rng([seed, 2, split, number])
            labels = rng.permutation(np.arange(size) % len(LABELS))
            pixels = np.empty((size, 32, 32, 3), np.uint8)
            for row, label in enumerate(labels):
                pixels[row] = painter.image(rng, label, 32, 32)
            return pixels, labels

        parts = np.array_split(np.arange(train), len(TRAIN_FILES))
        sizes = [(0, number, len(part)) for number, part in enumerate(parts)]
        return write_batches(folder, parallel(paint, [*sizes, (1, 0, validation)]), LABELS)

    @classmethod
    def adopt(cls, real: Path, folder: Path, size: tuple[int, int] | None) -> dict[str, Any]:
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

    def open(self, split: str):
        """In memory: `pixels` uint8 [n,32,32,3], `labels` int64 [n], `image(index)`."""
        pixels, labels = [], []
        for name in TRAIN_FILES if split == "train" else [TEST_FILE]:
            path = self.data / BATCHES / name
            try:
                with path.open("rb") as file:
                    batch = _Batch(file, encoding="latin1").load()
                pixels.append(np.frombuffer(batch["data"].data, np.uint8).reshape(-1, 3, 32, 32))
                labels.append(np.asarray(batch["labels"], np.int64))
            except Exception as error:  # whatever a damaged pickle can raise
                raise DataError(f"{self.name}: {path} cannot be read ({error!r})") from error
        rows = np.ascontiguousarray(np.concatenate(pixels).transpose(0, 2, 3, 1))
        return SimpleNamespace(
            pixels=rows,
            labels=np.concatenate(labels),
            image=lambda index: Image.fromarray(rows[index]),
        )


class _Named:
    """In the place of all that a pickled numpy array names: it keeps the array's bytes."""

    def __init__(self, *_):
        pass

    def __setstate__(self, state: tuple) -> None:
        self.data = state[-1].encode("latin1") if isinstance(state[-1], str) else state[-1]


class _Batch(pickle.Unpickler):
    """Reads numbers, texts and numpy arrays, and calls nothing of what the file names."""

    def find_class(self, module: str, name: str) -> type:
        if module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype"):
            return _Named
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no such file has to")


def write_batches(
    folder: Path, parts: list[tuple[np.ndarray, np.ndarray]], names: list[str]
) -> dict[str, Any]:
    """CIFAR-10's files in `folder`, as Dataset.generate.

    parts: pixels uint8 [n,32,32,3] and labels [n] of each of TRAIN_FILES, and of TEST_FILE.
    """
    (folder / BATCHES).mkdir()
    files = {}
    for name, (pixels, labels) in zip([*TRAIN_FILES, TEST_FILE], parts, strict=True):
        files[name] = {
            "batch_label": name,
            "labels": [int(label) for label in labels],
            "data": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), 3072),
            "filenames": [f"{name}_{row:05d}.png" for row in range(len(pixels))],
        }
    files["batches.meta"] = {"label_names": names, "num_vis": 3072}
    for name, content in files.items():
        (folder / BATCHES / name).write_bytes(pickle.dumps(content, protocol=4))
    *train, validation = (len(labels) for _, labels in parts)
    return {
        "classes": len(names),
        "train_size": sum(train),
        "validation_size": validation,
        "bytes": folder_bytes(folder),
    }


def _is_published(folder: Path) -> bool:
    """Whether all files have the md5 that torchvision knows; none is unpickled."""
    from models import compat  # noqa: F401 - before torchvision

    from torchvision.datasets import CIFAR10  # isort: skip
    from torchvision.datasets.utils import check_integrity  # isort: skip

    files = [*CIFAR10.train_list, *CIFAR10.test_list]
    return all(check_integrity(folder / BATCHES / name, md5) for name, md5 in files)


def _fetch(url: str, path: Path) -> None:
    """Stream `url` to `path`; OSError where it cannot be had within the limits."""
    deadline = time.monotonic() + DOWNLOAD_S
    with urllib.request.urlopen(url, timeout=CONNECT_S) as response, path.open("wb") as file:
        while block := response.read(1 << 18):
            if time.monotonic() > deadline:
                raise OSError(f"not complete after {DOWNLOAD_S} s")
            file.write(block)
