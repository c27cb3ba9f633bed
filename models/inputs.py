"""Where a training step gets its batch from.

`resident`: a fixed subset on the device, cropped, flipped and normalised there. `files`: a
DataLoader with worker processes, as the paper trained; `shared` (models/shared.py): one for all
jobs of a cell. What a resident step sees is a pure function of (seed, step), drawn on the CPU: what
a GPU draws can depend on how many SMs it has.
"""

import os
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
from workflow.collocation.process_lifetime import end_with_parent

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD  # isort: skip
from timm.data.loader import PrefetchLoader  # isort: skip

SAMPLES_DRAWN = 1 << 18  # about so many: 8 MB of rows
PASSES, BUCKETS = 16, 6  # of speech


def layout_of(spec: dict) -> torch.memory_format:
    """How images and weights lie in memory."""
    return torch.channels_last if spec["channels_last"] else torch.contiguous_format


def generator_of(seed: int, number: int) -> torch.Generator:
    """What pass `number` over the samples is drawn by."""
    # mixed into 32 bits: the generator looks at no more
    mixed = np.random.SeedSequence([seed, number]).generate_state(1)[0]
    return torch.Generator().manual_seed(int(mixed))


class ResidentInput:
    """Batches from n samples that lie on the device, as does a plan of what each step takes.

    The plan is made beforehand: passes over the samples in random order; after the last comes the
    first again. Fewer samples than a batch are drawn from with repetition.
    """

    def __init__(self, n: int, spec: dict, device: torch.device):
        self.batch_size = spec["batch_size"]
        count = max(n // self.batch_size, 1) * self.batch_size  # samples of a pass
        drawn = []
        for number in range(min(max(SAMPLES_DRAWN // count, 4), 64)):
            generator = generator_of(spec["seed"], number)
            if n < self.batch_size:
                samples = torch.randint(n, (count,), generator=generator)
            else:
                samples = torch.randperm(n, generator=generator)[:count]
            drawn.append(self.draw(samples, generator))
        self.drawn = torch.cat(drawn).to(device)

    def draw(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        """What a step is to know of each of its samples: their numbers alone."""
        return samples

    def row(self, step: int) -> Tensor:
        """What `draw` made for that step: its first axis is the batch."""
        first = step * self.batch_size % len(self.drawn)
        return self.drawn[first : first + self.batch_size]

    def batch(self, step: int) -> tuple[Tensor, ...]:
        return self.fetch(self.row(step))


class ResidentImages(ResidentInput):
    """Batches of classifier input from `arrays` {"images" uint8 [n, 3, S, S], "labels" [n]}.

    S is at least the input size; the surplus is the room for random crops. Raises ValueError when
    the images are smaller.
    """

    def __init__(self, arrays: dict, spec: dict, device: torch.device):
        self.size = spec["input_size"]
        # Channels last, so that a gather reads a pixel at once.
        images = torch.from_numpy(np.array(arrays["images"])).to(device)
        self.images = images.permute(0, 2, 3, 1).contiguous()
        self.labels = torch.from_numpy(np.array(arrays["labels"])).to(device, torch.int64)
        self.margin = self.images.shape[1] - self.size
        if self.margin < 0:
            raise ValueError(f"images of {images.shape[2]} px are smaller than {self.size} px")
        super().__init__(len(self.images), spec, device)
        self.layout = layout_of(spec)
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
        """The images [b, 3, size, size] float32, normalised, and labels [b] of a row."""
        sample, top, left, direction = row.unbind(1)
        rows = top[:, None] + self.pixels
        columns = torch.addcmul(left[:, None], direction[:, None], self.pixels)
        pixels = self.images[sample[:, None, None], rows[:, :, None], columns[:, None, :]]
        images = torch.mul(pixels.permute(0, 3, 1, 2), self.scale).add_(self.shift)
        return images.contiguous(memory_format=self.layout), self.labels[sample]


class ResidentRows(ResidentInput):
    """Batches of DLRM input from `arrays` {"dense" [n, 13], "sparse" [n, 26], "label" [n]}."""

    def __init__(self, arrays: dict, spec: dict, device: torch.device):
        self.arrays = tuple(
            torch.from_numpy(np.array(arrays[name])).to(device)
            for name in ("dense", "sparse", "label")
        )
        super().__init__(len(self.arrays[0]), spec, device)
        self.bytes = sum(a.nbytes for a in self.arrays)

    def fetch(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dense [b, 13], sparse [b, 26] raw ids and label [b] of a row's samples."""
        return tuple(array[row] for array in self.arrays)


class ResidentTokens(ResidentInput):
    """Batches of text from `arrays` {"tokens" uint8 [n, t + 1]}: t tokens, and those after them."""

    def __init__(self, arrays: dict, spec: dict, device: torch.device):
        self.tokens = torch.from_numpy(np.array(arrays["tokens"])).to(device)
        super().__init__(len(self.tokens), spec, device)
        self.bytes = self.tokens.nbytes

    def fetch(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [b, t] and those after them [b, t], int64, of a row's samples."""
        tokens = self.tokens[row].long()
        return tokens[:, :-1], tokens[:, 1:]


class ResidentSpeech:
    """Batches of utterances from `arrays`, as models/data/speech.py's `resident` gives them.

    Buckets of like lengths have as much audio each. A batch is of one bucket, padded to its longest
    utterance, of as many utterances as make `batch_size` seconds at the bucket's mean length. The
    first batches are one of each bucket, the longest first, so that memory has its peak and kernels
    are chosen before a window opens; then come passes over all utterances, in random order.
    Raises ValueError where there is less audio than a batch.
    """

    def __init__(self, arrays: dict, spec: dict, device: torch.device):
        self.lengths = torch.from_numpy(np.array(arrays["lengths"]))
        batch, audio = spec["batch_size"] * FRAMES_PER_S, int(self.lengths.sum())
        if audio < batch:
            said = f"{audio / FRAMES_PER_S:g} s of speech are less than a batch"
            raise ValueError(f"{said} of {spec['batch_size']} s")
        ordered = self.lengths.argsort(descending=True, stable=True)
        number = (self.lengths[ordered].cumsum(0) - 1) * min(BUCKETS, audio // batch) // audio
        buckets = []
        for its in (ordered[number == each] for each in number.unique()):
            size = round(batch / float(self.lengths[its].double().mean()))
            buckets.append((its, min(max(size, 1), len(its)), int(self.lengths[its[0]])))
        plan = [(its[:size], longest) for its, size, longest in buckets]
        for one_pass in range(PASSES):
            generator, drawn = generator_of(spec["seed"], one_pass), []
            for its, size, longest in buckets:
                batches = its[torch.randperm(len(its), generator=generator)].split(size)
                drawn += [(each, longest) for each in batches if len(each) == size]
            order = torch.randperm(len(drawn), generator=generator)
            plan += [drawn[index] for index in order]
        letters = torch.from_numpy(np.array(arrays["letters"]))
        self.counts = (letters > 0).sum(1)
        # The host knows them too, so that no step asks the device how long its utterances are.
        self.plan = [(each.to(device), each, longest) for each, longest in plan]
        self.frames = torch.from_numpy(np.array(arrays["frames"])).to(device)
        self.letters = letters.to(device)
        self.ends = self.lengths.cumsum(0).to(device)
        self.begins = self.ends - self.lengths.to(device)
        self.bytes = self.frames.nbytes + self.letters.nbytes

    def row(self, step: int) -> tuple[Tensor, Tensor, int]:
        """That step's utterances, on the device and on the host, and the frames of the longest."""
        return self.plan[step % len(self.plan)]

    def fetch(self, row: tuple[Tensor, Tensor, int]) -> tuple[Tensor, ...]:
        """Frames [b, t, bands] float32, 0 where there [b, t] is false, letters [b, l] int64; and on
        the host how many frames and letters [b] there are.
        """
        sample, known, longest = row
        counts = self.counts[known]
        place = self.begins[sample, None] + torch.arange(longest, device=sample.device)
        there = place < self.ends[sample, None]
        frames = self.frames[torch.where(there, place, 0)] * there[..., None]
        letters = self.letters[sample, : int(counts.max())].long()
        return frames.float(), there, letters, self.lengths[known], counts

    def batch(self, step: int) -> tuple[Tensor, ...]:
        return self.fetch(self.row(step))


def _start_worker(parent: int, _worker: int) -> None:
    """A loader's worker: one thread, and no life after the training process."""
    end_with_parent(parent)
    torch.set_num_threads(1)


class Numbered:
    """A dataset whose samples tell their numbers, too."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> tuple:
        return *self.dataset[number], number


def file_loader(dataset, spec: dict) -> DataLoader:
    """Images, labels and numbers with the paper's settings, one pass after another, for ever.

    Shuffled, drop_last, no pinned memory. To the loader all passes are one, so that its workers
    read ahead over their ends. Raises ValueError where not one batch can be made.
    """
    if len(dataset) < spec["batch_size"]:
        raise ValueError(f"{len(dataset)} files are less than a batch of {spec['batch_size']}")
    workers = spec["input"]["workers"]
    generator = torch.Generator().manual_seed(spec["seed"])
    one_pass = BatchSampler(
        RandomSampler(dataset, generator=generator), spec["batch_size"], drop_last=True
    )
    return DataLoader(
        Numbered(dataset),
        batch_sampler=chain.from_iterable(repeat(one_pass)),
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        worker_init_fn=partial(_start_worker, os.getpid()),
        generator=generator,
    )


class FileImages:
    """Batches through a loader of the job's own. Images travel as uint8, and are normalised on the
    device on a side stream (timm's prefetcher). `samples`: the numbers [b] of each step's.

    Raises ValueError where not one batch can be made.
    """

    bytes = 0

    def __init__(self, dataset, spec: dict, device: torch.device):
        self.samples, self._ahead = [], deque()
        batches = self._noted(self.read(dataset, spec))
        self._batches = iter(PrefetchLoader(batches, device=device))
        self.layout = layout_of(spec)

    def read(self, dataset, spec: dict) -> Iterable[tuple[Tensor, ...]]:
        """Images, labels and numbers of samples, batch by batch, on the CPU."""
        return file_loader(dataset, spec)

    def _noted(self, batches: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels, numbers in batches:
            self._ahead.append(numbers.int().numpy())
            yield images, labels

    def batch(self, _step: int) -> tuple[Tensor, Tensor]:
        """The next batch of images and labels, whatever the step."""
        images, labels = next(self._batches)
        self.samples.append(self._ahead.popleft())
        return images.contiguous(memory_format=self.layout), labels


def open_input(kind, dataset, spec: dict, device: torch.device):
    """The input for a kind of job: an object with `batch(step)` and `bytes` on the device."""
    if spec["input"]["mode"] != "resident":
        return kind.files(dataset, spec, device)
    arrays = dataset.resident(spec["input_size"], spec["input"]["samples"])
    return kind.resident(arrays, spec, device)
