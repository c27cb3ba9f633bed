"""ImageNet-2012 and Downsampled ImageNet 64×64 as ImageFolder: train/<class>/*, val/<class>/*."""

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from models.data.base import ImageDataset
from models.data.images import Painter, parallel, photo_size
from models.data.storage import DataError, fingerprint, read_array

FOLDERS = {"train": "train", "validation": "val"}
IMAGES_PER_CLASS = 16  # generated: fewer classes than 1000 where there are few images


class FolderImages:
    """Image files by index: paths bytes [n], relative to `folder`; labels int64 [n]."""

    def __init__(self, folder: Path, paths: np.ndarray, labels: np.ndarray):
        self.folder, self.paths, self.labels = folder, paths, labels

    def image(self, index: int) -> Image.Image:
        path = self.folder / os.fsdecode(self.paths[index])
        try:
            with Image.open(path) as image:
                return image.convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{path} cannot be decoded ({error})") from error


class ImageNet64(ImageDataset):
    """1,281,167 + 50,000 images of 64×64 pixels in 1000 classes (Chrabaszcz et al., 2017)."""

    name = "imagenet64"
    format = "ImageFolder: train/<class>/* and val/<class>/*"
    nominal = (1_281_167, 50_000)
    generated_size = (4096, 1024)
    lacks = "has no train/ and val/ folders"
    how_to_get = "put Downsampled ImageNet 64x64 there as ImageFolder"
    resident_limit = 16_384
    ending: ClassVar[str] = "png"

    @classmethod
    def find_real(cls, root: Path) -> Path | None:
        folder = root / cls.name
        present = [name for name in FOLDERS.values() if (folder / name).is_dir()]
        if len(present) == 1:
            raise DataError(f"{folder} has {present[0]}/ but not both train/ and val/")
        return folder if present else None

    @classmethod
    def real_fingerprint(cls, real: Path) -> str:
        # A class folder's own time changes with its files: 2,000 look-ups, not 1.3 million.
        return fingerprint(
            path for name in FOLDERS.values() for path in sorted((real / name).iterdir())
        )

    @classmethod
    def generate(cls, folder: Path, train: int, validation: int, seed: int) -> dict[str, Any]:
        # Every class in both splits, as ImageFolder numbers the classes it finds.
        classes = max(1, min(1000, train // IMAGES_PER_CLASS, validation))
        painter = Painter(classes, seed)
        names = [f"n{label + 1:08d}" for label in range(classes)]

        def write(task: tuple[int, str, range]) -> None:
            split, top, numbers = task
            rng = np.random.default_rng([seed, 2, split, numbers.start])
            for number in numbers:
                name = names[number % classes]
                path = folder / top / name / f"{name}_{number}.{cls.ending}"
                cls._save(painter, rng, number % classes, path)

        tasks = []
        for split, (top, count) in enumerate((("train", train), ("val", validation))):
            for name in names:
                (folder / top / name).mkdir(parents=True)
            starts = range(0, count, 32)
            tasks += [(split, top, range(start, min(count, start + 32))) for start in starts]
        parallel(write, tasks)
        return _index(folder, folder)

    @classmethod
    def _save(cls, painter: Painter, rng: np.random.Generator, label: int, path: Path) -> None:
        Image.fromarray(painter.image(rng, label, 64, 64)).save(path, compress_level=1)

    @classmethod
    def adopt(cls, real: Path, folder: Path, size: tuple[int, int] | None) -> dict[str, Any]:
        return _index(real, folder)

    def open(self, split: str) -> FolderImages:
        paths, labels = (read_array(self.folder / f"{split}_{x}.npy") for x in ("paths", "labels"))
        return FolderImages(self.data / FOLDERS[split], paths, labels)


class ImageNet(ImageNet64):
    """1,281,167 + 50,000 photographs in 1000 classes (ILSVRC 2012), JPEG, about 110 kB each."""

    name = "imagenet"
    generated_size = (2048, 512)
    how_to_get = "put ImageNet-2012 there as ImageFolder"
    resident_limit = 4096
    ending = "JPEG"

    @classmethod
    def _save(cls, painter: Painter, rng: np.random.Generator, label: int, path: Path) -> None:
        pixels = painter.image(rng, label, *photo_size(rng))
        Image.fromarray(pixels).save(path, "JPEG", quality=int(rng.integers(87, 95)))


def _index(files: Path, folder: Path) -> dict[str, Any]:
    """List an ImageFolder once, so that a training process need not walk a million files.

    Writes {split}_paths.npy (bytes [n]) and {split}_labels.npy (int64 [n]). OSError or DataError
    where the folder is no ImageFolder.
    """
    from models import compat  # noqa: F401 - before torchvision

    from torchvision.datasets import ImageFolder  # isort: skip

    found = {split: ImageFolder(files / name) for split, name in FOLDERS.items()}
    train, validation = (set(each.classes) for each in found.values())
    if odd := sorted(train ^ validation):
        raise DataError(f"{files}: class {odd[0]} is not in both train/ and val/")
    sizes, total = {}, 0
    for split, each in found.items():
        paths = [path for path, _ in each.samples]
        total += sum(os.stat(path).st_size for path in paths)
        names = [os.fsencode(os.path.relpath(path, each.root)) for path in paths]
        np.save(folder / f"{split}_paths.npy", np.array(names))
        np.save(folder / f"{split}_labels.npy", np.array(each.targets, np.int64))
        sizes[f"{split}_size"] = len(paths)
    return {"classes": len(train), **sizes, "bytes": total}
