"""What has been measured: the attempts at a study's cells, found by their run.json files."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workflow.collocation.record import run_json
from workflow.collocation.spec.cell import digest
from workflow.collocation.spec.errors import ConfigError


def cpu_key(machine: str | None) -> str:
    """How the CPU of a machine is told from others where GPUs have their UUIDs."""
    return f"cpu:{machine}" if machine else "cpu"


@dataclass(frozen=True)
class Attempt:
    """An attempt at a cell; `content` is its record, None if that is corrupt."""

    cell: str
    number: int
    path: Path
    content: dict | None

    @property
    def status(self) -> str:
        return self.content["status"] if self.content else "corrupt"

    @cached_property
    def spec_digest(self) -> str | None:
        """Equal to that of a planned cell's spec where it measured the same."""
        return digest(self.content["spec"]) if self.content else None

    @property
    def refused_when_tried(self) -> bool:
        """Unsupported for a reason that only trying showed, such as missing rights."""
        return self.status == "unsupported" and self.content.get("phase") is not None

    @property
    def on_gpu(self) -> bool:
        return bool(self.content and self.content.get("gpu"))

    @property
    def device(self) -> str:
        """A GPU's UUID, or as cpu_key says."""
        if self.on_gpu:
            return self.content["gpu"]["uuid"]
        return cpu_key((self.content or {}).get("provenance", {}).get("machine"))


def scan(folder: Path) -> dict[str, list[Attempt]]:
    """All attempts below `folder` (results/<study>/cells), by cell id, oldest first.

    Raises ConfigError for a record of another version.
    """
    found: dict[str, list[Attempt]] = {}
    names = [(path.parts[-2][1:], path) for path in folder.glob("*/*/*/r*/a*/run.json")]
    for number, path in sorted((int(n), path) for n, path in names if n.isdecimal()):
        cell = path.parents[1].relative_to(folder).as_posix()
        if not cell.rpartition("/r")[2].isdecimal():  # somebody's copy of a replicate
            continue
        content = None
        try:
            record = run_json.read(path)
            if (record.cell.id, record.cell.attempt) == (cell, number):
                content = record.model_dump(exclude_unset=True)
        except run_json.OtherVersion as error:
            raise ConfigError(str(error)) from None
        except (OSError, run_json.NoRecord):
            pass
        found.setdefault(cell, []).append(Attempt(cell, number, path, content))
    return found
