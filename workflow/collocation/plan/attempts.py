"""What has been measured: the attempts at a study's cells, found by their run.json files."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workflow.collocation.record import run_json
from workflow.collocation.record.run_json import Record
from workflow.collocation.study.cell import spec_digest
from workflow.collocation.study.errors import ConfigError


@dataclass(frozen=True)
class CellAttempt:
    """An attempt at a cell; `record` is None if that is corrupt."""

    cell: str
    number: int
    path: Path
    record: Record | None

    @property
    def status(self) -> str:
        return self.record.status if self.record else "corrupt"

    @cached_property
    def spec_digest(self) -> str | None:
        """Equal to that of a planned cell's spec where it measured the same."""
        return spec_digest(self.record.spec) if self.record else None

    @property
    def refused_when_tried(self) -> bool:
        """Unsupported for a reason that only trying showed, such as missing rights."""
        return self.status == "unsupported" and self.record.phase is not None

    @property
    def on_gpu(self) -> bool:
        return bool(self.record and self.record.gpu)

    @property
    def device(self) -> str | None:
        return self.record and self.record.device


def scan_attempts(folder: Path) -> dict[str, list[CellAttempt]]:
    """All attempts below `folder` (results/<study>/cells), by cell id, oldest first.

    Raises ConfigError for a record of another version, OSError for one that cannot be read.
    """
    found: dict[str, list[CellAttempt]] = {}
    names = [(path.parts[-2][1:], path) for path in folder.glob("*/*/*/r*/a*/run.json")]
    for number, path in sorted((int(n), path) for n, path in names if n.isdecimal()):
        cell = path.parents[1].relative_to(folder).as_posix()
        if not cell.rpartition("/r")[2].isdecimal():  # somebody's copy of a replicate
            continue
        record = None
        try:
            found_here = run_json.read_record(path)
            if (found_here.cell.id, found_here.cell.attempt) == (cell, number):
                record = found_here
        except run_json.OtherVersion as error:
            raise ConfigError(str(error)) from None
        except PermissionError as error:  # of another user's command
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except (FileNotFoundError, run_json.NoRecord):
            pass
        found.setdefault(cell, []).append(CellAttempt(cell, number, path, record))
    return found
