"""Alters a study's files as somebody would who makes every hash right again."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from release import manifest, verify
from release.manifest import Attempt


def change(path: Path, how) -> None:
    """Alter a JSON file."""
    content = json.loads(path.read_text("utf-8"))
    how(content)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def forge(folder: Path, attempt: Attempt, how, **columns) -> None:
    """Alter a record, and columns of its Parquet files (file__column=function); recompute every
    hash, in run.json and in both lists.
    """
    path, files = folder / attempt.folder / "run.json", {}
    for key, altered in columns.items():
        name, _, column = key.partition("__")
        file = path.with_name(f"{name}.parquet")
        table = pq.read_table(file)
        place = table.schema.get_field_index(column)
        values = pa.array(map(altered, table[column].to_pylist()), table.schema.types[place])
        pq.write_table(table.set_column(place, table.schema.field(place), values), file)
        files[file.name] = manifest.sha256(file)

    def both(record: dict) -> None:
        how(record)
        for name, digest in files.items():
            record["files"][name]["sha256"] = digest

    change(path, both)
    manifest.write_lists(folder, manifest.digests(folder))


def wrong(folder: Path) -> list[str]:
    """What verify says of the raw files, without deriving anything."""
    artefacts = verify.check_raw(folder, manifest.digests(folder))
    return [f"{each.artefact}: {problem}" for each in artefacts for problem in each.problems]


def times(path: str, factor: float):
    """What multiplies a number of a record; of a truth, 0 makes it false."""

    def how(record: dict) -> None:
        *way, last = path.split()
        for key in way:
            record = record[int(key) if isinstance(record, list) else key]
        record[last] *= factor

    return how


def as_it_was(record: dict) -> None:
    pass


def scaled(factor: float):
    return lambda value: None if value is None else value * factor


def rename(path: Path, before: str, after: str) -> None:
    """Replace a text wherever it stands in a file."""
    path.write_text(path.read_text("utf-8").replace(before, after), encoding="utf-8")
