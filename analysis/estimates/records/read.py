"""Reading run.json files, and which of a cell's attempts count."""

from pathlib import Path
from typing import NamedTuple

from workflow.collocation.record import run_json
from workflow.collocation.record.run_json import FAULTS, RESULTS, NoRecord, Record
from workflow.collocation.study.regular_files import read_text


class ReadRecord(NamedTuple):
    """The record of an attempt at a cell, with its file.

    current: its numbers count; if not, it is a job alone that other cells are compared with.
    """

    record: Record
    path: Path
    current: bool = True


def read_records(study: str, list_file: Path) -> list[ReadRecord]:
    """Reads a study's records, and keeps those that count.

    list_file: has the path of a run.json on each line. Raises OSError, or ValueError that names
    the file that is no record of the study.
    """
    records = []
    for path in map(Path, read_text(list_file).splitlines()):
        try:
            record = run_json.read_record(path)
        except NoRecord as error:
            raise ValueError(f"{path}: {error}") from None
        if record.study != study:
            raise ValueError(f"{path}: belongs to study {record.study!r}")
        records.append(ReadRecord(record, path))
    return records_that_count(records)


def records_that_count(records: list[ReadRecord]) -> list[ReadRecord]:
    """Chooses one attempt for each cell, and the jobs alone that these are compared with.

    For a cell on one device the newest result counts, else the newest fault, else the newest
    attempt. Of several devices the one is current that has a result (else a fault) and began last,
    because attempt numbers of several hosts have no common order. From other devices a job alone
    is kept, not current, if a current cell of its replicate and implementation ran that job there.
    """
    best = {(r.record.cell.id, r.record.device): r for r in sorted(records, key=_worth)}
    current = {r.record.cell.id: r for r in sorted(best.values(), key=_worth_and_start)}
    compared = set().union(*map(_jobs, current.values()))
    kept = list(current.values())
    for candidate in best.values():
        is_current = candidate is current[candidate.record.cell.id]
        if not is_current and candidate.record.is_baseline and _jobs(candidate) <= compared:
            kept.append(candidate._replace(current=False))
    return kept


def _worth(read: ReadRecord) -> tuple[int, int]:
    """Results above faults above others; then newer attempts."""
    status = read.record.status
    return 2 * (status in RESULTS) + (status in FAULTS), read.record.cell.attempt


def _worth_and_start(read: ReadRecord) -> tuple:
    started_at = str(read.record.provenance.get("started_at") or "")
    return _worth(read)[0], started_at, _worth(read)


def _jobs(read: ReadRecord) -> set[tuple]:
    """Its workloads, each with what is the same in cells that can be compared."""
    record = read.record
    place = record.cell.replicate, record.cell.implementation, record.device
    return {(*place, job.get("workload")) for job in record.jobs}
