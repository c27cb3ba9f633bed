"""The attempts at a study's cells so far, read from their run.json files."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workflow.collocation.record.run_json import (
    NoRecord,
    OtherVersion,
    Record,
    read_record,
)
from workflow.collocation.study.cell import spec_digest
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.layout import RUN


@dataclass(frozen=True)
class CellAttempt:
    """One attempt at measuring a cell. record: None if its run.json is corrupt."""

    cell: str
    number: int
    path: Path
    record: Record | None

    @property
    def status(self) -> str:
        return self.record.status if self.record else "corrupt"

    @cached_property
    def spec_digest(self) -> str | None:
        """Digest of the specification that was measured."""
        return spec_digest(self.record.spec) if self.record else None

    @property
    def refused_when_tried(self) -> bool:
        """Whether only trying showed that it is unsupported, for example for missing rights."""
        return self.status == "unsupported" and self.record.phase is not None

    @property
    def on_gpu(self) -> bool:
        return bool(self.record and self.record.gpu)

    @property
    def device(self) -> str | None:
        return self.record and self.record.device


def scan_attempts(folder: Path) -> dict[str, list[CellAttempt]]:
    """All attempts below `folder` (results/<study>/cells), by cell id, oldest first.

    Raises ConfigError for a record of another version, or one that cannot be read.
    """
    numbered: list[tuple[int, Path]] = []
    for path in folder.glob(f"*/*/*/r*/a*/{RUN}"):
        number = path.parent.name[1:]
        is_replicate = path.parents[1].name[1:].isdecimal()  # a copy is not, such as r1.old
        if number.isdecimal() and is_replicate:
            numbered.append((int(number), path))
    attempts: dict[str, list[CellAttempt]] = {}
    for number, path in sorted(numbered):
        cell = path.parents[1].relative_to(folder).as_posix()
        record = None
        try:
            record = read_record(path)
        except OtherVersion as error:
            raise ConfigError(str(error)) from None
        except PermissionError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except (FileNotFoundError, NoRecord):
            pass
        if record and (record.cell.id, record.cell.attempt) != (cell, number):
            record = None
        attempts.setdefault(cell, []).append(CellAttempt(cell, number, path, record))
    return attempts
