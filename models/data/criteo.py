"""Criteo's Terabyte click logs: the public text format, read into memory-mappable arrays.

Text (real and generated): files day_0, day_1, ... (plain or .gz), a row a line, tab-separated:
label (0 or 1), 13 integers (may be empty), 26 categories of up to 8 hexadecimal digits (may be
empty). Arrays in the prepared folder, rows in file order, training rows first:
dense.npy float32 [n,13] = log(1 + max(x, 0)), empty as x = 0; sparse.npy uint32 [n,26], empty as
0; label.npy float32 [n].
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from models.data.base import Dataset
from models.data.images import parallel
from models.data.storage import DataError, fingerprint, read_array

DENSE, SPARSE = 13, 26
ARRAYS = ("dense", "sparse", "label")
COLUMNS = ["label", *(f"i{n}" for n in range(DENSE)), *(f"c{n}" for n in range(SPARSE))]
# Distinct categories per column, as published with MLPerf's DLRM (40 million rows at most).
TABLE_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208,
    11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip
ZIPF = 1.1  # exponent of the generated categories' frequencies
CHUNK = 32_768  # rows generated at a time


class Criteo(Dataset):
    """Click prediction; `classes` is 2.

    `resident` gives {"dense": float32 [n,13], "sparse": int64 [n,26] raw ids in 0..2**32-1, to be
    taken modulo a table's rows, "label": float32 [n]}.
    """

    name = "criteo"
    format = "Criteo Terabyte text (day_*: label, 13 integers, 26 hexadecimal categories), as .npy"
    # Days 0 to 22, and the first half of day 23: MLPerf Training's split of the 24 days.
    nominal = (4_195_197_692, 89_137_319)
    generated_size = (262_144, 32_768)
    real_size = (4_194_304, 131_072)  # about 1 GB of text: the whole would be a terabyte
    lacks = "has no day_* files"
    how_to_get = "put Criteo's Terabyte click logs there as day_0, day_1, ... (plain or .gz)"

    @classmethod
    def find_real(cls, root: Path) -> Path | None:
        return root / cls.name if day_files(root / cls.name) else None

    @classmethod
    def real_fingerprint(cls, real: Path) -> str:
        return fingerprint(day_files(real))

    @classmethod
    def generate(cls, folder: Path, train: int, validation: int, seed: int) -> dict[str, Any]:
        write_day(folder / "day_0", train, [seed, 0])
        write_day(folder / "day_1", validation, [seed, 1])
        return convert(day_files(folder), folder, train, validation)

    @classmethod
    def adopt(cls, real: Path, folder: Path, size: tuple[int, int] | None) -> dict[str, Any]:
        return convert(day_files(real), folder, *size)

    def resident(self, split: str, input_size: int, samples: int) -> dict[str, np.ndarray]:
        first = 0 if split == "train" else self.train_size
        last = first + min(samples, self.manifest[f"{split}_size"])
        dense, sparse, label = (
            read_array(self.folder / f"{name}.npy", mapped=True)[first:last] for name in ARRAYS
        )
        return {"dense": dense, "sparse": sparse.astype(np.int64), "label": label}


def day_files(folder: Path) -> list[Path]:
    """day_0, day_1.gz, ... in the order of their numbers."""
    found = [(re.fullmatch(r"day_(\d+)(\.gz)?", path.name), path) for path in folder.glob("day_*")]
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def convert(days: list[Path], folder: Path, train: int, validation: int) -> dict[str, Any]:
    """Read at most train + validation rows into `folder`; the last of them are for validation.

    With fewer rows than asked for, the two splits keep their proportion.
    """
    wanted, rows, blocks = train + validation, 0, []
    for block in chain.from_iterable(map(read_day, days)):
        blocks.append([array[: wanted - rows] for array in block])
        rows += len(blocks[-1][0])
        if rows == wanted:
            break
    if rows < 2:
        raise DataError(f"{days[0].parent} holds {rows} rows: too few")
    for name, parts in zip(ARRAYS, zip(*blocks, strict=True), strict=True):
        np.save(folder / f"{name}.npy", np.concatenate(parts))
    if rows < wanted:
        train = min(rows - 1, max(1, round(rows * train / wanted)))
    return {
        "classes": 2,
        "train_size": train,
        "validation_size": rows - train,
        "bytes": sum(path.stat().st_size for path in days),
    }


def read_day(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield dense, sparse and label of some rows at a time; DataError where a file is damaged."""
    types = {name: pa.string() if name[0] == "c" else pa.int64() for name in COLUMNS}
    try:
        with pa.input_stream(path, compression="gzip" if path.suffix == ".gz" else None) as stream:
            for batch in csv.open_csv(
                stream,
                csv.ReadOptions(column_names=COLUMNS, block_size=1 << 24),
                csv.ParseOptions(delimiter="\t", quote_char=False),
                csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True),
            ):
                yield _arrays(batch.columns)
    except (ValueError, OSError) as error:  # pyarrow's are ValueErrors
        line = " ".join(str(error).split())
        raise DataError(f"{path} is not Criteo's format ({line[:160]})") from error


def _arrays(columns: list[pa.Array]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    clicks = pc.fill_null(columns[0], -1).to_numpy()
    if np.any(clicks >> 1):
        raise ValueError("a label is not 0 or 1")
    numbers = np.stack([pc.fill_null(column, 0).to_numpy() for column in columns[1 : 1 + DENSE]], 1)
    dense = np.log1p(np.maximum(numbers, 0).astype(np.float32))
    sparse = np.stack([parse_hex(column) for column in columns[1 + DENSE :]], 1)
    return dense, sparse, clicks.astype(np.float32)


def parse_hex(column: pa.Array) -> np.ndarray:
    """Strings of up to 8 hexadecimal digits (null: 0) to uint32 [n]. Raises ValueError."""
    text = pc.ascii_lpad(pc.fill_null(column, ""), 8, "0")
    raw = bytes.fromhex("".join(text.to_pylist()))  # it skips blanks
    if len(raw) != 4 * len(text) or pc.any(pc.not_equal(pc.binary_length(text), 8)).as_py():
        raise ValueError("a category is not 1 to 8 hexadecimal digits")
    return np.frombuffer(raw, ">u4").astype(np.uint32)


def write_day(path: Path, rows: int, seed: list[int]) -> None:
    """Write `rows` generated rows: log-normal counts, Zipf-like categories, learnable labels.

    The label's log-odds are linear in three integers and depend on two small categories; about
    4 % of rows are clicks.
    """

    def chunk(start: int) -> pa.Table:
        return _table(min(CHUNK, rows - start), np.random.default_rng([*seed, start]))

    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with path.open("wb") as file:
        for table in parallel(chunk, range(0, rows, CHUNK)):
            csv.write_csv(table, file, options)


def _table(rows: int, rng: np.random.Generator) -> pa.Table:
    integers = np.floor(rng.lognormal(np.linspace(0.5, 5, DENSE), 1.5, (rows, DENSE)))
    integers = integers.astype(np.int64) - (np.arange(DENSE) == 1)  # the real one has -1 too
    no_integer = rng.random((rows, DENSE)) < np.linspace(0, 0.4, DENSE)
    power = 1 - ZIPF
    spread = (np.array(TABLE_ROWS) + 1.0) ** power - 1
    ids = ((rng.random((rows, SPARSE)) * spread + 1) ** (1 / power)).astype(np.int64) - 1
    ids = np.clip(ids, 0, np.array(TABLE_ROWS) - 1)
    no_id = rng.random((rows, SPARSE)) < np.linspace(0, 0.1, SPARSE)
    ids[no_id] = 0

    seen = np.log1p(np.maximum(np.where(no_integer, 0, integers), 0))
    odds = 0.9 * (seen[:, 0] - 0.9) - 0.7 * (seen[:, 3] - 1.7) + 0.5 * (seen[:, 6] - 2.5)
    odds += np.where(ids[:, 5] == 0, 0.7, -0.7) + np.where(ids[:, 8] % 2 == 0, 0.6, -0.6)
    clicks = rng.random(rows) < 1 / (1 + np.exp(4.8 - odds))

    columns = [pa.array(clicks.astype(np.int8))]
    columns += [pa.array(integers[:, n], mask=no_integer[:, n]) for n in range(DENSE)]
    for n in range(SPARSE):
        digits = ids[:, n].astype(">u4").tobytes().hex().encode()
        words = np.frombuffer(digits, "S8")
        columns.append(pa.array(words, pa.binary(), mask=no_id[:, n]).cast(pa.string()))
    return pa.table(columns, COLUMNS)
