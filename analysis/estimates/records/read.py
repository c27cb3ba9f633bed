"""Reading run.json files, and which of a cell's attempts count."""

from pathlib import Path
from typing import NamedTuple

from workflow.collocation.record import run_json
from workflow.collocation.record.run_json import FAULTS, RESULTS, NoRecord, Record
from workflow.collocation.study.regular_files import read_text


class Attempt(NamedTuple):
    """A record, and where it stands. current: its numbers count; else it is a job alone that the
    progress of other cells needs.
    """

    record: Record
    path: Path
    current: bool = True


def read_study(study: str, listed: Path) -> list[Attempt]:
    """The attempts at its cells that count, of the records in a file with a path a line.

    Raises OSError, or ValueError that names what is no record of the study.
    """
    found = []
    for path in map(Path, read_text(listed).splitlines()):
        try:
            record = run_json.read_record(path)
        except NoRecord as error:
            raise ValueError(f"{path}: {error}") from None
        if record.study != study:
            raise ValueError(f"{path}: belongs to study {record.study!r}")
        found.append(Attempt(record, path))
    return select(found)


def select(attempts: list[Attempt]) -> list[Attempt]:
    """Those that count.

    Per cell and device counts the newest attempt with a result, else the newest fault, else the
    newest at all. By the same rule one of a cell's devices is current, the newest there being what
    began last: numbers tell nothing of what several hosts measured. Of the other devices an alone
    run stays, not current, where a current cell of the same replicate and implementation was
    measured there.
    """

    def newest(each: Attempt) -> tuple:
        status = each.record.status  # a result of the cell, a fault on the way to one, or nothing
        return 2 * (status in RESULTS) + (status in FAULTS), each.record.cell.attempt

    def began(each: Attempt) -> tuple:
        worth, _ = newest(each)
        return worth, str(each.record.provenance.get("started_at") or ""), newest(each)

    def jobs(each: Attempt) -> set[tuple]:
        """Its workloads, with what cells have in common that may be held against each other."""
        record = each.record
        place = record.cell.replicate, record.cell.implementation, record.device
        return {(*place, job.get("workload")) for job in record.jobs}

    best = {(a.record.cell.id, a.record.device): a for a in sorted(attempts, key=newest)}
    current = {a.record.cell.id: a for a in sorted(best.values(), key=began)}
    needed = set().union(*map(jobs, current.values()))
    others = [a for a in best.values() if a is not current[a.record.cell.id]]
    kept = [a for a in others if a.record.is_baseline and jobs(a) <= needed]
    return [*current.values(), *(a._replace(current=False) for a in kept)]
