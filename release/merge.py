"""Take in cells of the same study that were measured elsewhere, from a folder or a bundle.

Attempts are checked as verify checks them, and copied one by one. What does not belong is
named and left out; nothing that was measured is overwritten.
"""

import json
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

from analysis.files import one_line, printable, written_whole
from release import checks, manifest
from release.archive import unpack
from release.manifest import RUN, Attempt
from workflow.collocation.gpu.lock import folder_lock
from workflow.collocation.plan.attempts import scan
from workflow.collocation.plan.jobs import holder
from workflow.collocation.plan.session import Session, open_session
from workflow.collocation.record.run_json import FAULTS, RESULTS, Record, as_text
from workflow.collocation.record.step_times import FILE as STEPS
from workflow.collocation.study.cell import changes, digest
from workflow.collocation.study.grid import ELSEWHERE
from workflow.collocation.study.load import read_values
from workflow.collocation.study.regular_files import read_json


def merge(source: Path, config: Sequence[str]) -> int:
    """Merge; gives the exit code. Raises ValueError with one line where nothing can be merged."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            # Nothing is measured; everything is planned.
            values = read_values(config) | {"gpu": "cpu", "measure": True}
            if not source.exists():
                raise ValueError("no such file or folder")
            folder = _unpacked(source, Path(scratch)) if source.is_file() else source
            names = manifest.shipped(folder)
            found = {a: files for a, files in manifest.attempts(names).items() if RUN in files}
            if not found:
                raise ValueError(
                    f"there is no cells/SCENARIO/IMPLEMENTATION/METHOD/rBLOCK/aATTEMPT/{RUN}"
                )
            if values.get("study", "auto") == "auto":
                values["study"] = read_json(folder / next(iter(found)).folder / RUN)["study"]
            session = open_session(values)
            if session.sealed:
                raise ValueError(f"{session.folder} is sealed; another folder: results=FOLDER")
            with folder_lock(session.folder, holder(session)):
                came, known, said = _into(session, folder, found)
        except Exception as error:  # whatever it holds, it is named
            why = one_line(error) or type(error).__name__
            raise ValueError(f"nothing more is merged from {printable(source)}: {why}") from None
    for sentence in said:
        print(printable(sentence), file=sys.stderr)
    print(f"{session.folder}: {came} attempts merged, {known} were there already")
    return 0 if came or known else 1


def _unpacked(bundle: Path, folder: Path) -> Path:
    """The folder that a bundle holds, or else the one that it was unpacked to."""
    unpack(bundle, folder)
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 else folder


def _into(
    session: Session, source: Path, found: Mapping[Attempt, list[str]]
) -> tuple[int, int, list[str]]:
    """Merge under the lock of the study's folder.

    Returns how many attempts came, how many were there, and sentences on replicates with another
    number and on what was left out.
    """
    records, said = _checked(session, source, found)
    tried = scan(session.cells_folder)
    there = [one.record for each in tried.values() for one in each if one.record]
    answered = {record.cell.id for record in there if record.status in RESULTS}
    taken = {c.replicate for c in session.cells if c.replicate > ELSEWHERE}
    taken |= {_split(cell)[1] for cell in tried}
    came, moved = 0, {}
    for attempt, replicate in _places(records, there, taken).items():
        kind, own = _split(attempt.cell)
        cell, status = f"{kind}/r{replicate}", records[attempt].status
        if cell in answered and status in FAULTS:
            said.append(f"cell {attempt}: {status}, and has a result here")
            continue
        _copy(source, attempt, found[attempt], session.cells_folder, cell)
        came += 1
        moved |= {own: replicate} if own != replicate else {}
    said += [f"its replicate {a} is replicate {b} here" for a, b in sorted(moved.items())]
    return came, len(records) - came, said


def _checked(
    session: Session, source: Path, found: Mapping[Attempt, list[str]]
) -> tuple[dict[Attempt, Record], list[str]]:
    """The records that belong to the study, and a sentence for each of the others."""
    listed = source / manifest.RAW
    sealed = manifest.read(listed) if listed.exists() else None
    names = [f"{attempt.folder}/{file}" for attempt, files in found.items() for file in files]
    digests = {name: manifest.sha256(source / name) for name in names}
    planned = {cell.id: cell for cell in session.cells}
    records, left_out = {}, []
    for one in checks.examined(source, digests):
        wrong = [_misfit(session.name, planned, one.record)] if one.record else []
        if sealed is not None:
            own = {n: d for n, d in digests.items() if n.startswith(f"{one.attempt.folder}/")}
            wrong += [] if own.items() <= sealed.items() else ["is not what was sealed"]
        if said := next(filter(None, [*wrong, *one.wrong]), ""):
            left_out.append(f"cell {one.attempt}: {said}")
        else:
            records[one.attempt] = one.record
    return records, left_out


def _misfit(study: str, planned: Mapping, record: Record) -> str:
    """Why a record is none of this study's; empty if it is."""
    if record.study != study:
        return f"belongs to study {record.study!r}"
    if record.status == "postponed":
        return "was put off: nothing was measured"
    cell = planned.get(f"{_split(record.cell.id)[0]}/r{record.cell.replicate % ELSEWHERE}")
    if cell is None:
        return "is no cell of this study"
    if digest(record.spec) != cell.digest:
        differing = changes(record.spec, cell.spec.to_json())[:3]
        return f"was measured with other settings: {', '.join(differing)}"
    return ""


def _places(
    records: Mapping[Attempt, Record], there: Iterable[Record], taken: set[int]
) -> dict[Attempt, int]:
    """The replicate here of each record that is not there.

    A replicate stays one: it goes where records of it are, or else to the first of its number, that
    number and 1000, and so on, that the study has nothing of. taken: replicates that it has.
    """
    home = {_identity(record): record.cell.replicate for record in there}
    replicates, found = defaultdict(list), {}
    for attempt in sorted(records):
        replicates[_split(attempt.cell)[1]].append(attempt)
    taken = {*taken, *home.values()}
    for number, attempts in sorted(replicates.items()):
        known = {a: home[key] for a in attempts if (key := _identity(records[a])) in home}
        free = (n for n in count(number % ELSEWHERE, ELSEWHERE) if n not in taken)
        to = min(known.values()) if known else next(free)
        taken.add(to)
        found |= {a: to for a in attempts if a not in known}
    return found


def _split(cell: str) -> tuple[str, int]:
    """A cell's id without its replicate, and its replicate."""
    kind, _, replicate = cell.rpartition("/r")
    return kind, int(replicate)


def _identity(record: Record) -> str:
    """What no two measurements have in common, wherever a record of one lies: the step times; where
    it has none, what was begun when, and where.
    """
    if STEPS in record.files:
        return record.files[STEPS].sha256
    kind, replicate = _split(record.cell.id)
    of = record.provenance
    return json.dumps([kind, replicate % ELSEWHERE, of.get("machine"), of.get("started_at")])


def _copy(source: Path, attempt: Attempt, files: Iterable[str], cells: Path, cell: str) -> None:
    """Give an attempt the next number of its cell here, and copy it there: it appears whole."""
    names = (path.parent.name[1:] for path in (cells / cell).glob(f"a*/{RUN}"))
    number = max((int(name) for name in names if name.isdecimal()), default=0) + 1
    target = cells / cell / f"a{number}"
    shutil.rmtree(target, ignore_errors=True)  # a log of one that was interrupted
    with written_whole(target) as partial:
        partial.mkdir()
        for file in files:
            shutil.copy(source / attempt.folder / file, partial / file)
            (partial / file).chmod((partial / file).stat().st_mode | 0o200)
        if Attempt(cell, number) != attempt:
            record = read_json(partial / RUN)
            record["cell"] |= {"id": cell, "replicate": _split(cell)[1], "attempt": number}
            (partial / RUN).write_text(as_text(record), encoding="utf-8")
