"""Real images on any machine: scikit-learn's bundled handwritten digits, as CIFAR-10 files."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from models.data.cifar10 import BATCHES, SPLIT_FILES, Cifar10, write_batch, write_meta
from models.data.storage import folder_bytes

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
    lacks = "is not installed"
    how_to_get = "install scikit-learn"

    @classmethod
    def find_real(cls, root: Path) -> Path | None:
        return Path()  # part of an installed package; written into the prepared folder

    @classmethod
    def real_fingerprint(cls, real: Path) -> str:
        return "scikit-learn load_digits"

    @classmethod
    def adopt(
        cls, real: Path, folder: Path, size: tuple[int, int] | None, seed: int
    ) -> dict[str, Any]:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
        pixels = np.stack(
            [
                np.asarray(
                    Image.fromarray(image).convert("RGB").resize((32, 32), Image.Resampling.BICUBIC)
                )
                for image in grey
            ]
        )
        train, validation = train_test_split(
            np.arange(len(pixels)), test_size=VALIDATION, stratify=digits.target, random_state=0
        )
        (folder / BATCHES).mkdir()
        parts = [*np.array_split(train, len(SPLIT_FILES["train"])), validation]
        for name, rows in zip(SPLIT_FILES["train"] + SPLIT_FILES["validation"], parts, strict=True):
            write_batch(folder / BATCHES / name, pixels[rows], digits.target[rows])
        write_meta(folder / BATCHES, [str(digit) for digit in range(10)])
        return {
            "classes": 10,
            "train_size": len(train),
            "validation_size": len(validation),
            "bytes": folder_bytes(folder),
            "files": ".",
        }
