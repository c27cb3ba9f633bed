"""The datasets as torch sees them: decoding and augmenting files, whole batches of Criteo."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from models import compat  # noqa: F401 - before timm imports torchvision
from models.data.images import ImageSource

from timm.data import create_transform  # isort: skip

TYPES = {"dense": np.float32, "sparse": np.int64, "label": np.float32}


def image_transform(input_size: int, training: bool):
    """PIL image to uint8 [3,S,S], through timm as in the paper (which normalised on the GPU).

    Training: RandomResizedCrop (scale .08-1, ratio 3/4-4/3, random interpolation), horizontal
    flip .5, ColorJitter .4. Otherwise: shorter side to S / 0.875, centre crop.
    """
    if training:
        return create_transform(
            input_size,
            is_training=True,
            scale=(0.08, 1.0),
            ratio=(3 / 4, 4 / 3),
            hflip=0.5,
            color_jitter=0.4,
            interpolation="random",
            use_prefetcher=True,
        )
    return create_transform(
        input_size, crop_pct=0.875, interpolation="bilinear", use_prefetcher=True
    )


class ImageFiles(Dataset):
    """Map-style: index to (image uint8 [3,S,S], not normalised; label int)."""

    def __init__(self, source: ImageSource, transform):
        self.source, self.transform = source, transform

    def __len__(self) -> int:
        return len(self.source.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.transform(self.source.image(index))  # a numpy array in older timm
        return torch.as_tensor(image), int(self.source.labels[index])


class CriteoBatches(Dataset):
    """Map-style over whole batches of rows [first, last): use DataLoader(..., batch_size=None).

    Batch i is (dense float32 [b,13], sparse int64 [b,26], label float32 [b]): neighbouring rows,
    so that a batch is one sequential read. An incomplete last batch is left out if
    `drop_last`. Shuffling (the DataLoader's) is of batches.
    """

    def __init__(self, folder: Path, first: int, last: int, batch_size: int, drop_last: bool):
        self.folder, self.first, self.last, self.batch_size = folder, first, last, batch_size
        self.drop_last = drop_last
        self._arrays: list[np.ndarray] | None = None

    def __len__(self) -> int:
        rows = self.last - self.first
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self._arrays is None:
            self._arrays = [np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in TYPES]
        start = self.first + index * self.batch_size
        rows = slice(start, min(start + self.batch_size, self.last))
        return tuple(
            torch.from_numpy(array[rows].astype(dtype))
            for array, dtype in zip(self._arrays, TYPES.values(), strict=True)
        )

    def __getstate__(self) -> dict:
        # A memory map would be pickled as its whole content.
        return {**self.__dict__, "_arrays": None}
