"""Text as bytes: the sources of Python's standard library, which every machine has."""

import sysconfig
from pathlib import Path

import numpy as np

from models.data.base import DataError, Dataset

SAMPLE_BYTES = 1024  # that count as one sample


class Sources(Dataset):
    """Text; `resident` returns "tokens", uint8 [n, input_size + 1]: a sequence and the next byte."""

    name = "sources"
    nominal = generated_size = 4096
    bundled = "the sources of Python's library"

    @classmethod
    def generate(cls, folder: Path, train: int, seed: int) -> None:
        library = Path(sysconfig.get_path("stdlib"))
        files = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
        size, text = SAMPLE_BYTES * train, bytearray()
        for path in files:
            if len(text) < size:
                text += path.read_bytes()
        if len(text) < size:
            raise DataError(f"{library} holds {len(text)} bytes of sources, not {size}")
        np.save(folder / "train.npy", np.frombuffer(bytes(text[:size]), np.uint8))

    def count(self) -> dict[str, int]:
        size = len(np.load(self.data / "train.npy"))
        return {"classes": 256, "train_size": size // SAMPLE_BYTES}

    def resident(self, input_size: int, samples: int) -> dict[str, np.ndarray]:
        text = np.load(self.data / "train.npy")
        starts = np.arange(0, len(text) - input_size, input_size)[:samples]
        return {"tokens": text[starts[:, None] + np.arange(input_size + 1)]}
