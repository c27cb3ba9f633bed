"""Text as bytes: the sources of Python's own library, which are on every machine."""

import sysconfig
from pathlib import Path

import numpy as np

from models.data.base import DataError, Dataset

SAMPLE = 1024  # bytes that count as one sample


class Sources(Dataset):
    """`resident` gives {"tokens": uint8 [n, input_size + 1]}, each sequence with the byte after."""

    name = "sources"
    nominal = generated_size = 4096
    bundled = "the sources of Python's library"

    @classmethod
    def generate(cls, folder: Path, train: int, seed: int) -> None:
        library = Path(sysconfig.get_path("stdlib"))
        files = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
        wanted, found = SAMPLE * train, bytearray()
        for path in files:
            if len(found) < wanted:
                found += path.read_bytes()
        if len(found) < wanted:
            raise DataError(f"{library} holds {len(found)} bytes of sources, not {wanted}")
        np.save(folder / "train.npy", np.frombuffer(bytes(found[:wanted]), np.uint8))

    def count(self) -> dict[str, int]:
        return {"classes": 256, "train_size": len(np.load(self.data / "train.npy")) // SAMPLE}

    def resident(self, input_size: int, samples: int) -> dict[str, np.ndarray]:
        text = np.load(self.data / "train.npy")
        starts = np.arange(0, len(text) - input_size, input_size)[:samples]
        return {"tokens": text[starts[:, None] + np.arange(input_size + 1)]}
