"""Generated images that a network can learn to classify."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

TEXTURE_SIDE = 1280
LONGEST = 1000  # side of a photo; the texture is larger, so that it can be cut anywhere


def parallel(function: Callable, items: Iterable) -> list:
    """Map in order on all cores of the process, by threads, because PIL and numpy release the GIL."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, items))


class Painter:
    """Paints images of `classes` kinds: a coarse colour template per class under a texture.

    The texture has the 1/f amplitude spectrum of photographs plus grain, so that JPEG and PNG files
    are as large as theirs; its place, contrast and colour cast vary from image to image. An image
    is a function of the seed and of the generator that is passed.
    """

    def __init__(self, classes: int, seed: int):
        rng = np.random.default_rng([seed, 1])
        self._grids = rng.integers(40, 216, (classes, 5, 5, 3), dtype=np.uint8)
        self._texture = _texture(rng)

    def image(self, rng: np.random.Generator, label: int, width: int, height: int) -> np.ndarray:
        """One image of class `label`, uint8 [height, width, 3]."""
        top = rng.integers(TEXTURE_SIDE - height)
        left = rng.integers(TEXTURE_SIDE - width)
        contrast = np.int16(rng.integers(8, 25))
        pixels = self._texture[top : top + height, left : left + width] * contrast
        pixels >>= 4
        template = Image.fromarray(self._grids[label])
        template = template.resize((width, height), Image.Resampling.BICUBIC)
        pixels += np.asarray(template, np.int16)
        pixels += rng.integers(-24, 25, 3, dtype=np.int16)
        return np.clip(pixels, 0, 255, out=pixels).astype(np.uint8)


def _texture(rng: np.random.Generator) -> np.ndarray:
    """A texture int16 [side, side, 3], standard deviation about 36: 1/f luminance, colour, grain."""
    side = TEXTURE_SIDE
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :])
    frequency[0, 0] = np.inf
    planes = []
    for _ in range(4):
        phase = rng.uniform(0, 2 * np.pi, frequency.shape)
        plane = np.fft.irfft2(np.exp(1j * phase) / frequency, (side, side))
        planes.append(plane / plane.std())
    luminance, *colours = planes
    grain = rng.normal(0, 4, (side, side, 1))
    texture = np.stack([34 * luminance + 12 * colour for colour in colours], -1) + grain
    return texture.astype(np.int16)


def photo_size(rng: np.random.Generator) -> tuple[int, int]:
    """A random (width, height) like those of ImageNet: mostly 500 on the longer side, 4:3."""
    longer = 500
    if rng.random() < 0.3:
        longer = int(np.clip(500 * rng.lognormal(0, 0.35), 120, LONGEST))
    shorter = int(longer / rng.choice([4 / 3, 3 / 2, 1.2, 1.0], p=[0.65, 0.2, 0.05, 0.1]))
    return (longer, shorter) if rng.random() < 0.88 else (shorter, longer)
