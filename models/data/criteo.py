"""Generated clicks like those of Criteo's Terabyte logs, as memory-mapped arrays."""

from pathlib import Path

import numpy as np

from models.data.base import Dataset
from models.data.painter import parallel

DENSE, SPARSE = 13, 26  # columns: counts, and categories
# Distinct categories per column, as published with MLPerf's DLRM (40 million rows at most).
TABLE_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208,
    11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip
ZIPF = 1.1  # exponent of the categories' frequencies
CHUNK = 32_768  # rows generated at a time


class Criteo(Dataset):
    """Click prediction; `classes` is 2.

    `resident` returns "dense", float32 [n, 13], log(1 + count); "sparse", int64 [n, 26], raw ids to
    be taken modulo the rows of a table; and "label", float32 [n].
    """

    name = "criteo"
    nominal = 4_195_197_692  # days 0 to 22: MLPerf Training's split of the 24 days
    generated_size = 262_144

    @classmethod
    def generate(cls, folder: Path, train: int, seed: int) -> None:
        def chunk(start: int) -> dict[str, np.ndarray]:
            return clicks(min(CHUNK, train - start), np.random.default_rng([seed, 0, start]))

        chunks = parallel(chunk, range(0, train, CHUNK))
        for name in chunks[0]:
            column = np.concatenate([chunk[name] for chunk in chunks])
            np.save(folder / f"train_{name}.npy", column)

    def count(self) -> dict[str, int]:
        return {"classes": 2, "train_size": len(np.load(self.data / "train_label.npy"))}

    def resident(self, input_size: int, samples: int) -> dict[str, np.ndarray]:
        return {
            name: np.load(self.data / f"train_{name}.npy", mmap_mode="r")[:samples]
            for name in ("dense", "sparse", "label")
        }


def clicks(rows: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows of log-normal counts, Zipf-like categories and learnable labels; 0 is an absent entry.

    The label's log-odds are linear in three counts and depend on two small categories; about 4 % of
    rows are clicks.
    """
    counts = np.floor(rng.lognormal(np.linspace(0.5, 5, DENSE), 1.5, (rows, DENSE)))
    counts[:, 1] -= 1  # The real column has -1 too.
    counts[rng.random((rows, DENSE)) < np.linspace(0, 0.4, DENSE)] = 0
    power = 1 - ZIPF
    spread = (np.array(TABLE_ROWS) + 1.0) ** power - 1
    ids = ((rng.random((rows, SPARSE)) * spread + 1) ** (1 / power)).astype(np.int64) - 1
    ids = np.clip(ids, 0, np.array(TABLE_ROWS) - 1)
    ids[rng.random((rows, SPARSE)) < np.linspace(0, 0.1, SPARSE)] = 0

    log_counts = np.log1p(np.maximum(counts, 0))
    odds = 0.9 * (log_counts[:, 0] - 0.9) - 0.7 * (log_counts[:, 3] - 1.7)
    odds += 0.5 * (log_counts[:, 6] - 2.5)
    odds += np.where(ids[:, 5] == 0, 0.7, -0.7) + np.where(ids[:, 8] % 2 == 0, 0.6, -0.6)
    label = rng.random(rows) < 1 / (1 + np.exp(4.8 - odds))
    dense = np.log1p(np.maximum(counts, 0).astype(np.float32))
    return {"dense": dense, "sparse": ids, "label": label.astype(np.float32)}
