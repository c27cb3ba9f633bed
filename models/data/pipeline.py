"""Image files as torch sees them: decoded and augmented."""

import torch
from torch.utils.data import Dataset

from models import compat  # noqa: F401 - before timm imports torchvision

from timm.data import create_transform  # isort: skip


def image_transform(input_size: int, training: bool):
    """PIL image to uint8 [3,S,S], through timm as in the paper (which normalised on the GPU).

    Training: RandomResizedCrop (scale .08-1, ratio 3/4-4/3, random interpolation), horizontal
    flip .5, ColorJitter .4. Otherwise: shorter side to S / 0.875, centre crop.
    """
    return create_transform(
        input_size,
        is_training=training,
        scale=(0.08, 1.0),
        ratio=(3 / 4, 4 / 3),
        hflip=0.5,
        color_jitter=0.4,
        crop_pct=0.875,
        interpolation="random" if training else "bilinear",
        use_prefetcher=True,
    )


class ImageFiles(Dataset):
    """Map-style: index to (image uint8 [3,S,S], not normalised; label int).

    source: as from ImageDataset.open.
    """

    def __init__(self, source, transform):
        self.source, self.transform = source, transform

    def __len__(self) -> int:
        return len(self.source.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.transform(self.source.image(index))  # a numpy array in older timm
        return torch.as_tensor(image), int(self.source.labels[index])
