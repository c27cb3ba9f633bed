"""Datasets: real where present, generated in the same on-disk format where not.

`python -m models.data prepare NAME --root DATA` makes one ready; `open_dataset` reads it.

The data folder: `<name>/` is the user's (or downloaded) real data and is never written into;
`synthetic/<name>-<train>+<validation>-seed<seed>/` is generated; `prepared/<name>-...` holds what
is derived from real data. A prepared folder has manifest.json and resident-<input size>/ caches.
"""

from pathlib import Path

from models.data.base import DataError, Dataset, read_manifest
from models.data.cifar10 import Cifar10, Digits
from models.data.criteo import Criteo
from models.data.imagenet import ImageNet, ImageNet64

DATASETS: dict[str, type[Dataset]] = {
    cls.name: cls for cls in (Cifar10, Digits, ImageNet64, ImageNet, Criteo)
}

__all__ = ["DATASETS", "DataError", "Dataset", "open_dataset"]


def open_dataset(name: str, path: str | Path) -> Dataset:
    """The dataset prepared in folder `path`; DataError (one line) where there is none."""
    folder = Path(path)
    manifest = read_manifest(name, folder)
    if manifest is None:
        raise DataError(
            f"{name}: {folder} is not prepared; run `python -m models.data prepare {name}`"
        )
    return DATASETS[name](folder, manifest)
