"""Where a training step gets its batch from.

`resident`: a fixed subset on the device, cropped, flipped and normalised there. `files`: a
DataLoader with worker processes, as the paper trained. Which samples and augmentations a
resident step sees is a pure function of (seed, step); from files it is one of the seed. Both are
drawn on the CPU: what a GPU draws can depend on how many SMs it has.
"""

import math
import os
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from models import compat  # noqa: F401  (before timm)
from models.protocol import die_with_parent

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD  # isort: skip
from timm.data.loader import PrefetchLoader  # isort: skip

SAMPLES_DRAWN = 1 << 18  # about so many: 8 MB of rows


def layout_of(spec: dict) -> torch.memory_format:
    """How images and weights lie in memory."""
    return torch.channels_last if spec["channels_last"] else torch.contiguous_format


class _Plan:
    """The samples of every step: passes over n samples in random order, one row a step.

    A subset smaller than a batch is drawn from with repetition. Some passes are drawn beforehand,
    and lie on the device; after the last comes the first again.
    """

    def __init__(self, n: int, batch_size: int, seed: int, device: torch.device):
        self.batch_size = batch_size
        count = max(n // batch_size, 1) * batch_size  # samples of a pass
        drawn = []
        for number in range(min(max(SAMPLES_DRAWN // count, 4), 64)):
            # mixed into 32 bits: the generator looks at no more
            mixed = np.random.SeedSequence([seed, number]).generate_state(1)[0]
            generator = torch.Generator().manual_seed(int(mixed))
            if n < batch_size:
                samples = torch.randint(n, (count,), generator=generator)
            else:
                samples = torch.randperm(n, generator=generator)[:count]
            drawn.append(self._draw(samples, generator))
        self._rows = torch.cat(drawn).to(device)

    def row(self, step: int) -> Tensor:
        """What `_draw` made for that step: its first axis is the batch."""
        first = step * self.batch_size % len(self._rows)
        return self._rows[first : first + self.batch_size]

    def _draw(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        return samples


class _InOrder:
    """The samples of validation's steps: n samples in order, a last batch cut at `whole`.

    When fewer than `whole` are held: whole batches, round and round.
    """

    def __init__(self, n: int, batch_size: int, whole: int, device: torch.device):
        self.n, self.batch_size, self.device = n, batch_size, device
        self.end = whole if n >= whole else None

    def row(self, step: int) -> Tensor:
        """Sample numbers of that step, int64 [b]."""
        first = step * self.batch_size
        end = first + self.batch_size
        end = end if self.end is None else min(end, self.end)
        return torch.arange(first, end, device=self.device) % self.n


class CropPlan(_Plan):
    """Rows [batch, 4] int64: sample, first source row, first source column, column direction.

    `margin` is how many pixels the stored images are larger than the crop; direction −1 reads
    the columns from right to left (a flipped image).
    """

    def __init__(self, n: int, batch_size: int, seed: int, size: int, margin: int, device):
        self.size, self.margin = size, margin
        super().__init__(n, batch_size, seed, device)

    def _draw(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        draw = partial(torch.randint, size=samples.shape, generator=generator)
        row, column = draw(high=self.margin + 1), draw(high=self.margin + 1)
        flip = draw(high=2)
        return torch.stack([samples, row, column + flip * (self.size - 1), 1 - 2 * flip], dim=1)


class ResidentImages:
    """Batches of classifier input from `arrays` {"images" uint8 [n, 3, S, S], "labels" [n]}.

    S is at least `size`; the surplus is the room for random crops, or for validation is cut off
    evenly. `validation`: samples of the whole validation set; None: these are for training.
    Raises ValueError when the images are smaller than `size`.
    """

    def __init__(
        self, arrays: dict, spec: dict, device: torch.device, validation: int | None = None
    ):
        size, batch_size = spec["input_size"], spec["batch_size"]
        # Channels last, so that a gather reads a pixel at once.
        images = torch.from_numpy(np.array(arrays["images"])).to(device)
        self.images = images.permute(0, 2, 3, 1).contiguous()
        self.labels = torch.from_numpy(np.array(arrays["labels"])).to(device, torch.int64)
        self.margin = self.images.shape[1] - size
        if self.margin < 0:
            raise ValueError(f"images of {self.images.shape[1]} px are smaller than {size} px")
        count, self.training = len(self.images), validation is None
        if self.training:
            self.plan = CropPlan(count, batch_size, spec["seed"], size, self.margin, device)
        else:
            self.plan = _InOrder(count, batch_size, validation, device)
        self.layout = layout_of(spec)
        self.pixels = torch.arange(size, device=device)
        mean = torch.tensor(IMAGENET_DEFAULT_MEAN, device=device).view(1, 3, 1, 1)
        std = torch.tensor(IMAGENET_DEFAULT_STD, device=device).view(1, 3, 1, 1)
        self.scale, self.shift = 1 / (255 * std), -mean / std
        self.bytes = self.images.nbytes + self.labels.nbytes

    def row(self, step: int) -> Tensor:
        """Which samples and crops that step takes, int64 [b, 4] as CropPlan describes."""
        row = self.plan.row(step)
        if self.training:
            return row
        centre = torch.full_like(row, self.margin // 2)
        return torch.stack([row, centre, centre, torch.ones_like(row)], dim=1)

    def fetch(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """The images [b, 3, size, size] float32, normalised, and labels [b] of a row."""
        sample, top, left, direction = row.unbind(1)
        rows = top[:, None] + self.pixels
        columns = torch.addcmul(left[:, None], direction[:, None], self.pixels)
        pixels = self.images[sample[:, None, None], rows[:, :, None], columns[:, None, :]]
        images = torch.mul(pixels.permute(0, 3, 1, 2), self.scale).add_(self.shift)
        return images.contiguous(memory_format=self.layout), self.labels[sample]

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Images and labels of that step."""
        return self.fetch(self.row(step))


class ResidentRows:
    """Batches of DLRM input from `arrays` {"dense" [n, 13], "sparse" [n, 26], "label" [n]}.

    `validation`: samples of the whole validation set; None: these are for training.
    """

    def __init__(
        self, arrays: dict, spec: dict, device: torch.device, validation: int | None = None
    ):
        self.arrays = tuple(
            torch.from_numpy(np.array(arrays[name])).to(device)
            for name in ("dense", "sparse", "label")
        )
        count, batch_size = len(self.arrays[0]), spec["batch_size"]
        if validation is None:
            self.plan = _Plan(count, batch_size, spec["seed"], device)
        else:
            self.plan = _InOrder(count, batch_size, validation, device)
        self.bytes = sum(a.nbytes for a in self.arrays)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """dense [b, 13], sparse [b, 26] raw ids and label [b] of that step."""
        samples = self.plan.row(step)
        dense, sparse, label = (array[samples] for array in self.arrays)
        return dense, sparse, label


def _start_worker(parent: int, _worker: int) -> None:
    """A loader's worker: one thread, and no life after the training process."""
    die_with_parent(parent)
    torch.set_num_threads(1)


def _batches(
    dataset, spec: dict, batch_size: int | None, training: bool, around=lambda loader: loader
) -> Iterator[tuple[Tensor, ...]]:
    """Batches through a DataLoader with the paper's settings, one pass after another, for ever.

    Shuffled, drop_last, persistent workers, no pinned memory. batch_size: None of a dataset that
    yields whole batches: those are shuffled. around: makes of the loader what is gone through.
    Raises ValueError where not one batch can be made.
    """
    if training and len(dataset) < (batch_size or 1):
        raise ValueError(f"the files hold fewer samples than a batch of {spec['batch_size']}")
    workers = spec["input"]["workers"]
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=training,
        drop_last=training and batch_size is not None,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
        worker_init_fn=partial(_start_worker, os.getpid()),
        generator=torch.Generator().manual_seed(spec["seed"]),
    )
    return chain.from_iterable(repeat(around(loader)))


class FileImages:
    """Images travel as uint8, and are normalised on the device on a side stream (timm's
    prefetcher).
    """

    bytes = 0

    def __init__(self, dataset, spec: dict, device: torch.device, training: bool = True):
        prefetch = partial(PrefetchLoader, device=device)
        self._batches = _batches(dataset, spec, spec["batch_size"], training, prefetch)
        self.layout = layout_of(spec)

    def batch(self, _step: int) -> tuple[Tensor, Tensor]:
        """The next batch of images and labels, whatever the step."""
        images, labels = next(self._batches)
        return images.contiguous(memory_format=self.layout), labels


class FileRows:
    """Rows of DLRM's datasets, which yield whole batches."""

    bytes = 0

    def __init__(self, dataset, spec: dict, device: torch.device, training: bool = True):
        self._batches, self.device = _batches(dataset, spec, None, training), device

    def batch(self, _step: int) -> tuple[Tensor, ...]:
        """The next batch (dense, sparse, label), whatever the step."""
        return tuple(part.to(self.device, non_blocking=True) for part in next(self._batches))


def open_input(kind, dataset, split: str, spec: dict, device: torch.device):
    """The input of `split` ("train" or "validation") for a kind of job, as the member spec asks.

    Returns an object with `batch(step)` and `bytes` (what it holds on the device).
    """
    if spec["input"]["mode"] == "files":
        return kind.files(dataset, split, spec, device)
    arrays = dataset.resident(split, spec["input_size"], spec["input"]["samples"])
    validation = None if split == "train" else dataset.nominal_validation_size
    return kind.resident(arrays, spec, device, validation)


def steps_of(dataset, split: str, batch_size: int) -> int:
    """Steps of one epoch: the nominal set's whole batches, or for validation all of it."""
    if split == "train":
        return max(dataset.nominal_train_size // batch_size, 1)
    return math.ceil(dataset.nominal_validation_size / batch_size)
