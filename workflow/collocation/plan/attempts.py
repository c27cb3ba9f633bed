"""What has been measured: the attempts at a study's cells, found by their run.json files."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workflow.collocation.record import run_json
from workflow.collocation.spec.cell import digest


def cpu_key(machine: str | None) -> str:
    """How the CPU of a machine is told from others where GPUs have their UUIDs."""
    return f"cpu:{machine}" if machine else "cpu"


@dataclass(frozen=True)
class Attempt:
    """What planning needs to know of one attempt at a cell; `content` is None if corrupt."""

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
        """Whether it ran where there was a GPU."""
        return bool(self.content and self.content.get("gpu"))

    @property
    def device(self) -> str:
        """The key of the device it ran on: a GPU UUID, or 'cpu:' and the machine's alias."""
        content = self.content or {}
        if gpu := content.get("gpu"):
            return gpu["uuid"]
        return cpu_key(content.get("provenance", {}).get("machine"))


def scan(folder: Path, kind: str = "*/*/*") -> dict[str, list[Attempt]]:
    """All attempts below `folder` (results/<study>/cells), by cell id, oldest first.

    kind: scenario/arm/method.
    """
    found: dict[str, list[Attempt]] = {}
    names = [(path.parts[-2][1:], path) for path in folder.glob(f"{kind}/r*/a*/run.json")]
    for number, path in sorted((int(n), path) for n, path in names if n.isdecimal()):
        cell = path.parents[1].relative_to(folder).as_posix()
        if not cell.rpartition("/r")[2].isdecimal():  # somebody's copy of a block
            continue
        attempt = Attempt(cell, number, path, _content(path, cell, number))
        found.setdefault(cell, []).append(attempt)
    return found


def _content(path: Path, cell: str, number: int) -> dict | None:
    """The record, or None where it is none, or of another cell."""
    try:
        record = run_json.read(path)
    except (OSError, run_json.NoRecord):
        return None
    named = record.cell.id, record.cell.attempt
    return record.model_dump(exclude_unset=True) if named == (cell, number) else None
