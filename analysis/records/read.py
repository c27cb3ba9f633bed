"""Reading run.json files, and which of a cell's attempts count.

One that is no record becomes a line of what was left out, never a crash.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from analysis.records.untrusted_files import one_line, printable
from workflow.collocation.record import run_json
from workflow.collocation.record.run_json import FAULTS, RESULTS, Record

# What was left out of a result: (path, one line that says why).
Problems = list[tuple[str, str]]


class Attempt(NamedTuple):
    """A record, and where it stands. current: its numbers count; else it is a job alone that the
    progress of other cells needs.
    """

    record: Record
    path: Path
    current: bool = True

    @property
    def worth(self) -> int:
        """A result of the cell, a fault on the way to one, or (postponed) nothing."""
        return 2 * (self.record.status in RESULTS) + (self.record.status in FAULTS)

    @property
    def cell(self) -> tuple:
        cell = self.record.cell
        return cell.scenario, cell.implementation, cell.method, cell.replicate

    @property
    def neighbours(self) -> tuple:
        """What cells have in common that may be held against each other."""
        return self.record.cell.replicate, self.record.cell.implementation, self.record.device


def read_study(given: argparse.Namespace) -> tuple[list[Attempt], Problems]:
    """The attempts at cells of `given.study` that count, of the records that a command was given:
    as arguments, or a path a line in a file.
    """
    listed = given.list.read_text(encoding="utf-8").splitlines() if given.list else []
    found, problems = [], []
    for path in [*given.runs, *(Path(line) for line in listed if line.strip())]:
        try:
            record = run_json.read(path)
        except (OSError, run_json.NoRecord) as error:
            problems.append((str(path), one_line(error)))
            continue
        if record.study == given.study:
            found.append(Attempt(record, path))
        else:
            problems.append((str(path), f"belongs to study {record.study!r}"))
    return select(found), problems


def select(attempts: list[Attempt]) -> list[Attempt]:
    """Those that count.

    Per cell and device counts the newest attempt with a result, else the newest fault, else the
    newest at all. By the same rule one of a cell's devices is current, the newest there being what
    began last: numbers tell nothing of what several hosts measured. Of the other devices an alone
    run stays, not current, where a current cell of the same replicate and implementation was
    measured there.
    """

    def newest(each: Attempt) -> tuple:
        return each.worth, each.record.cell.attempt

    def began(each: Attempt) -> tuple:
        return each.worth, str(each.record.provenance.get("started_at") or ""), newest(each)

    best = {(a.cell, a.record.device): a for a in sorted(attempts, key=newest)}
    current = {a.cell: a for a in sorted(best.values(), key=began)}
    needed = {(a.neighbours, j.get("workload")) for a in current.values() for j in a.record.jobs}
    others = [a._replace(current=False) for a in best.values() if a is not current[a.cell]]
    alone = [a for a in others if a.record.is_baseline]
    kept = [a for a in alone if (a.neighbours, a.record.jobs[0].get("workload")) in needed]
    return [*current.values(), *kept]


def note_left_out(output: Path, problems: Problems) -> None:
    """Say on stderr and in a note beside OUTPUT what was left out of it; no problem, no note."""
    note = output.with_suffix(".unreadable.txt")
    note.unlink(missing_ok=True)
    if problems:
        lines = "".join(f"{printable(f'{where}: {what}')}\n" for where, what in problems)
        note.write_text(lines, encoding="utf-8")
        sys.stderr.write(f"left out of {output}:\n{lines}")
