"""Sources of training batches: samples on the device, or image files through a DataLoader.

Input mode `resident` holds a fixed subset on the device and crops, flips and normalises there.
`files` reads with worker processes, as the paper did; `shared` (models/shared.py) has one loader
for all jobs of a cell. A resident batch is a pure function of (seed, step), drawn on the CPU,
because what a GPU draws can depend on its number of SMs.
"""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, repeat

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from models import compat  # noqa: F401  (before timm)
from models.data.speech import FRAMES_PER_S
from workflow.collocation.member.spec import MemberSpec
from workflow.collocation.process_lifetime import end_with_parent

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD  # isort: skip
from timm.data.loader import PrefetchLoader  # isort: skip

SAMPLES_DRAWN = 1 << 18  # about so many are planned ahead: rows of 8 MB
SPEECH_PASSES, SPEECH_BUCKETS = 16, 6


def memory_format(spec: MemberSpec) -> torch.memory_format:
    """The memory format of images and weights."""
    channels_last = spec.implementation.channels_last
    return torch.channels_last if channels_last else torch.contiguous_format


def pass_generator(seed: int, number: int) -> torch.Generator:
    """The random generator for pass `number` over the samples."""
    # The generator uses 32 bits of its seed only, so both numbers are mixed into them.
    mixed = np.random.SeedSequence([seed, number]).generate_state(1)[0]
    return torch.Generator().manual_seed(int(mixed))


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy of the array on the device."""
    return torch.from_numpy(np.array(array)).to(device)


class ResidentInput(ABC):
    """Batches of samples that are on the device, with a plan of which step takes which samples.

    The plan is drawn beforehand: passes over the samples in random order; after the last pass comes
    the first again. From fewer samples than a batch, samples are drawn with repetition.
    """

    bytes: int  # device memory of the samples

    def __init__(self, n: int, spec: MemberSpec, device: torch.device):
        self.batch_size = spec.batch_size
        pass_size = max(n // self.batch_size, 1) * self.batch_size
        passes = []
        for number in range(min(max(SAMPLES_DRAWN // pass_size, 4), 64)):
            generator = pass_generator(spec.seed, number)
            if n < self.batch_size:
                samples = torch.randint(n, (pass_size,), generator=generator)
            else:
                samples = torch.randperm(n, generator=generator)[:pass_size]
            passes.append(self.draw(samples, generator))
        self.plan = torch.cat(passes).to(device)

    def draw(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        """The entries of the plan [n, ...] for these sample numbers [n]."""
        return samples

    def row(self, step: int) -> Tensor:
        """The entries [batch, ...] of the plan for a step."""
        first = step * self.batch_size % len(self.plan)
        return self.plan[first : first + self.batch_size]

    @abstractmethod
    def fetch(self, row: Tensor) -> tuple[Tensor, ...]:
        """The batch for entries of the plan."""

    def batch(self, step: int) -> tuple[Tensor, ...]:
        return self.fetch(self.row(step))


class ResidentImages(ResidentInput):
    """Batches of images and labels, with random crops and flips.

    arrays: "images" uint8 [n, 3, S, S] and "labels" [n]. S is at least the input size; the surplus
    is the margin for random crops. Raises ValueError when the images are smaller.
    """

    def __init__(self, arrays: dict, spec: MemberSpec, device: torch.device):
        self.size = spec.job.input_size
        # Channels last, so that a gather reads all channels of a pixel at once.
        self.images = on_device(arrays["images"], device).permute(0, 2, 3, 1).contiguous()
        self.labels = on_device(arrays["labels"], device).to(torch.int64)
        side = self.images.shape[1]
        self.margin = side - self.size
        if self.margin < 0:
            raise ValueError(f"images of {side} px are smaller than {self.size} px")
        super().__init__(len(self.images), spec, device)
        self.memory_format = memory_format(spec)
        self.pixels = torch.arange(self.size, device=device)
        mean = torch.tensor(IMAGENET_DEFAULT_MEAN, device=device).view(1, 3, 1, 1)
        std = torch.tensor(IMAGENET_DEFAULT_STD, device=device).view(1, 3, 1, 1)
        self.scale, self.shift = 1 / (255 * std), -mean / std
        self.bytes = self.images.nbytes + self.labels.nbytes

    def draw(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        """[n, 4] int64: sample, first source row, first source column, column direction.

        Direction −1 reads the columns from right to left (a flipped image).
        """
        random = partial(torch.randint, size=samples.shape, generator=generator)
        row, column = random(high=self.margin + 1), random(high=self.margin + 1)
        flip = random(high=2)
        return torch.stack([samples, row, column + flip * (self.size - 1), 1 - 2 * flip], dim=1)

    def fetch(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised images [b, 3, size, size] float32, and labels [b]."""
        sample, top, left, direction = row.unbind(1)
        rows = top[:, None] + self.pixels
        columns = torch.addcmul(left[:, None], direction[:, None], self.pixels)
        pixels = self.images[sample[:, None, None], rows[:, :, None], columns[:, None, :]]
        images = torch.mul(pixels.permute(0, 3, 1, 2), self.scale).add_(self.shift)
        return images.contiguous(memory_format=self.memory_format), self.labels[sample]


class ResidentClicks(ResidentInput):
    """Batches for DLRM from `arrays` "dense" [n, 13], "sparse" [n, 26] and "label" [n]."""

    def __init__(self, arrays: dict, spec: MemberSpec, device: torch.device):
        self.columns = [on_device(arrays[name], device) for name in ("dense", "sparse", "label")]
        super().__init__(len(self.columns[0]), spec, device)
        self.bytes = sum(column.nbytes for column in self.columns)

    def fetch(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dense [b, 13], raw ids sparse [b, 26] and label [b]."""
        return tuple(column[row] for column in self.columns)


class ResidentTokens(ResidentInput):
    """Batches of text from `arrays` "tokens" uint8 [n, t + 1]."""

    def __init__(self, arrays: dict, spec: MemberSpec, device: torch.device):
        self.tokens = on_device(arrays["tokens"], device)
        super().__init__(len(self.tokens), spec, device)
        self.bytes = self.tokens.nbytes

    def fetch(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [b, t] and the tokens after them [b, t], int64."""
        tokens = self.tokens[row].long()
        return tokens[:, :-1], tokens[:, 1:]


class ResidentSpeech:
    """Batches of utterances from `arrays`, as models/data/speech.py's `resident` returns them.

    Utterances are in buckets of similar lengths, each with as much audio. A batch is of one bucket,
    padded to its longest utterance; it has as many utterances as make `batch_size` seconds at the
    mean length of the bucket. The first batches are one of each bucket, the longest first, so that
    memory has its peak and kernels are chosen before a window opens; then come passes over all
    utterances, in random order. Raises ValueError where there is less audio than a batch.
    """

    def __init__(self, arrays: dict, spec: MemberSpec, device: torch.device):
        self.lengths = torch.from_numpy(np.array(arrays["lengths"]))
        batch_frames, frames = spec.batch_size * FRAMES_PER_S, int(self.lengths.sum())
        if frames < batch_frames:
            seconds = f"{frames / FRAMES_PER_S:g} s"
            raise ValueError(f"{seconds} of speech are less than a batch of {spec.batch_size} s")
        letters = torch.from_numpy(np.array(arrays["letters"]))
        self.letter_counts = (letters > 0).sum(1)
        # Sample numbers are kept on the host too, so that no step asks the device for lengths.
        self.plan = [
            (samples.to(device), samples, longest)
            for samples, longest in self._plan_batches(batch_frames, spec.seed)
        ]
        self.frames = on_device(arrays["frames"], device)
        self.letters = letters.to(device)
        self.ends = self.lengths.cumsum(0).to(device)
        self.begins = self.ends - self.lengths.to(device)
        self.bytes = self.frames.nbytes + self.letters.nbytes

    def _plan_batches(self, batch_frames: int, seed: int) -> list[tuple[Tensor, int]]:
        """For each batch its sample numbers, and the frames of the longest sample of its bucket."""
        buckets = self._buckets(batch_frames)
        plan = [(samples[:size], longest) for samples, size, longest in buckets]
        for number in range(SPEECH_PASSES):
            generator, batches = pass_generator(seed, number), []
            for samples, size, longest in buckets:
                shuffled = samples[torch.randperm(len(samples), generator=generator)]
                for batch in shuffled.split(size):
                    if len(batch) == size:
                        batches.append((batch, longest))
            order = torch.randperm(len(batches), generator=generator)
            plan += [batches[index] for index in order]
        return plan

    def _buckets(self, batch_frames: int) -> list[tuple[Tensor, int, int]]:
        """For each bucket its sample numbers, samples of a batch, and most frames of a sample."""
        frames = int(self.lengths.sum())
        ordered = self.lengths.argsort(descending=True, stable=True)
        bucket_count = min(SPEECH_BUCKETS, frames // batch_frames)
        bucket_of = (self.lengths[ordered].cumsum(0) - 1) * bucket_count // frames
        buckets = []
        for number in bucket_of.unique():
            samples = ordered[bucket_of == number]
            size = round(batch_frames / float(self.lengths[samples].double().mean()))
            size = min(max(size, 1), len(samples))
            buckets.append((samples, size, int(self.lengths[samples[0]])))
        return buckets

    def row(self, step: int) -> tuple[Tensor, Tensor, int]:
        """A step's sample numbers on the device and on the host, and the frames of the longest."""
        return self.plan[step % len(self.plan)]

    def fetch(self, row: tuple[Tensor, Tensor, int]) -> tuple[Tensor, ...]:
        """The batch for a row of the plan.

        Returns frames [b, t, bands] float32, which are 0 where the mask [b, t] is false; the mask;
        letters [b, l] int64; and on the host the numbers of frames [b] and of letters [b].
        """
        samples, host_samples, longest = row
        counts = self.letter_counts[host_samples]
        positions = self.begins[samples, None] + torch.arange(longest, device=samples.device)
        mask = positions < self.ends[samples, None]
        frames = self.frames[torch.where(mask, positions, 0)] * mask[..., None]
        letters = self.letters[samples, : int(counts.max())].long()
        return frames.float(), mask, letters, self.lengths[host_samples], counts

    def batch(self, step: int) -> tuple[Tensor, ...]:
        return self.fetch(self.row(step))


def _start_worker(parent: int, _worker: int) -> None:
    """Set up a loader's worker: one thread, and its end with the training process."""
    end_with_parent(parent)
    torch.set_num_threads(1)


class NumberedDataset:
    """A dataset whose samples end with their number."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple:
        return *self.dataset[number], number


def file_loader(dataset, batch_size: int, seed: int, workers: int) -> DataLoader:
    """Images, labels and sample numbers with the paper's settings, without end.

    Shuffled, drop_last, no pinned memory. To the loader all passes are one, so that its workers
    read ahead over the end of a pass. Raises ValueError where not one batch can be made.
    """
    if len(dataset) < batch_size:
        raise ValueError(f"{len(dataset)} files are less than a batch of {batch_size}")
    generator = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(dataset, generator=generator)
    one_pass = BatchSampler(sampler, batch_size, drop_last=True)
    return DataLoader(
        NumberedDataset(dataset),
        batch_sampler=chain.from_iterable(repeat(one_pass)),
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        worker_init_fn=partial(_start_worker, os.getpid()),
        generator=generator,
    )


class FileImages:
    """Batches of images and labels through a DataLoader of this job.

    Images travel as uint8, and are normalised on the device on a side stream (timm's prefetcher).
    `samples`: for each step the numbers [b] of its samples. Raises ValueError where not one batch
    can be made.
    """

    bytes = 0  # Nothing stays on the device.

    def __init__(self, dataset, spec: MemberSpec, device: torch.device):
        self.samples, self._samples_ahead = [], deque()
        batches = self._without_numbers(self.read_batches(dataset, spec))
        self._batches = iter(PrefetchLoader(batches, device=device))
        self.memory_format = memory_format(spec)

    def read_batches(self, dataset, spec: MemberSpec) -> Iterable[tuple[Tensor, ...]]:
        """Images, labels and sample numbers, batch by batch, on the CPU."""
        return file_loader(dataset, spec.batch_size, spec.seed, spec.job.input.workers)

    def _without_numbers(
        self, batches: Iterable[tuple[Tensor, ...]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels, numbers in batches:
            self._samples_ahead.append(numbers.int().numpy())
            yield images, labels

    def batch(self, _step: int) -> tuple[Tensor, Tensor]:
        """The next batch of images and labels, whatever the step."""
        images, labels = next(self._batches)
        self.samples.append(self._samples_ahead.popleft())
        return images.contiguous(memory_format=self.memory_format), labels


def open_input(job_class, dataset, spec: MemberSpec, device: torch.device):
    """The input of a job: an object with `batch(step)`, and `bytes` that it holds on the device."""
    if spec.job.input.mode != "resident":
        return job_class.files(dataset, spec, device)
    arrays = dataset.resident(spec.job.input_size, spec.job.input.samples)
    return job_class.resident(arrays, spec, device)
