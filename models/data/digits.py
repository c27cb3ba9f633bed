"""Real images on any machine: scikit-learn's bundled handwritten digits, as CIFAR-10 files."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from models.data.cifar10 import TRAIN_FILES, Cifar10, write_batches

VALIDATION = 360


class Digits(Cifar10):
    """1,437 + 360 handwritten digits (UCI Optical Recognition of Handwritten Digits, test part).

    8×8 grey images, scaled up to 32×32 RGB. The split is fixed and stratified by class.
    """

    name = "digits"
    nominal = (1_797 - VALIDATION, VALIDATION)
    generated_size = nominal
    can_generate = False
    origin = "scikit-learn's bundled handwritten digits"

    @classmethod
    def find_real(cls, root: Path) -> Path | None:
        return Path()  # part of an installed package; written into the prepared folder

    @classmethod
    def real_fingerprint(cls, real: Path) -> str:
        return "scikit-learn load_digits"

    @classmethod
    def adopt(cls, real: Path, folder: Path, size: tuple[int, int] | None) -> dict[str, Any]:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
        images = (Image.fromarray(image).convert("RGB") for image in grey)
        pixels = np.stack([image.resize((32, 32), Image.Resampling.BICUBIC) for image in images])
        train, validation = train_test_split(
            np.arange(len(pixels)), test_size=VALIDATION, stratify=digits.target, random_state=0
        )
        rows = [*np.array_split(train, len(TRAIN_FILES)), validation]
        parts = [(pixels[part], digits.target[part]) for part in rows]
        return {"files": ".", **write_batches(folder, parts, [str(digit) for digit in range(10)])}
