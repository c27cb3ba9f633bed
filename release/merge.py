"""Merges cells of the same study that were measured elsewhere, from a folder or an archive.

Attempts are checked as `collocate verify` checks them, and copied one by one. Those that do not
belong to the study are named and left out; nothing that was measured is overwritten.
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
from release import manifest
from release.archive import unpack
from release.checks import check_attempts
from release.manifest import Attempt
from workflow.collocation.gpu.lock import folder_lock
from workflow.collocation.plan.attempts import scan_attempts
from workflow.collocation.plan.jobs import lock_holder
from workflow.collocation.plan.session import Session, open_session
from workflow.collocation.record.run_json import FAULTS, RESULTS, Record, record_text
from workflow.collocation.record.step_times import STEPS_FILE as STEPS
from workflow.collocation.study.cell import changed_settings, spec_digest
from workflow.collocation.study.grid import MERGED_OFFSET
from workflow.collocation.study.layout import RUN
from workflow.collocation.study.load import read_config_values
from workflow.collocation.study.regular_files import read_json


def merge(source: Path, config: Sequence[str]) -> int:
    """Merge the attempts of a folder or an archive into a study; returns the exit code.

    config: settings as `key=value`; without `study` the source's own study. Raises ValueError with
    one line if nothing can be merged.
    """
    with tempfile.TemporaryDirectory() as scratch:
        try:
            # Plan all cells of the study, as on any machine; nothing is measured.
            values = read_config_values(config) | {"gpu": "cpu", "measure": True}
            if not source.exists():
                raise ValueError("no such file or folder")
            folder = _unpack(source, Path(scratch)) if source.is_file() else source
            attempts = manifest.attempts(manifest.shipped(folder))
            attempts = {attempt: files for attempt, files in attempts.items() if RUN in files}
            if not attempts:
                raise ValueError(
                    f"there is no cells/SCENARIO/IMPLEMENTATION/METHOD/rBLOCK/aATTEMPT/{RUN}"
                )
            if values.get("study", "auto") == "auto":
                first = next(iter(attempts))
                values["study"] = read_json(folder / first.folder / RUN)["study"]
            session = open_session(values)
            if session.sealed:
                raise ValueError(f"{session.folder} is sealed; another folder: results=FOLDER")
            with folder_lock(session.folder, lock_holder(session)):
                merged_count, present_count, sentences = _merge_attempts(session, folder, attempts)
        except Exception as error:  # the source may hold anything
            reason = one_line(error) or type(error).__name__
            message = f"nothing more is merged from {printable(source)}: {reason}"
            raise ValueError(message) from None
    for sentence in sentences:
        print(printable(sentence), file=sys.stderr)
    print(f"{session.folder}: {merged_count} attempts merged, {present_count} were there already")
    return 0 if merged_count or present_count else 1


def _unpack(bundle: Path, folder: Path) -> Path:
    """Unpack an archive into a folder; returns the only folder in it, or else that folder."""
    unpack(bundle, folder)
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 else folder


def _merge_attempts(
    session: Session, source: Path, attempts: Mapping[Attempt, list[str]]
) -> tuple[int, int, list[str]]:
    """Merge the attempts of a folder, each with the names of its files, into the session's study.

    Returns how many were merged, how many were present already, and sentences on replicates that
    got another number and on attempts that were left out.
    """
    records, sentences = _accepted_records(session, source, attempts)
    present, taken, answered = [], set(), set()
    for cell, cell_attempts in scan_attempts(session.cells_folder).items():
        taken.add(_split(cell)[1])
        present += [attempt.record for attempt in cell_attempts if attempt.record]
    for record in present:
        if record.status in RESULTS:
            answered.add(record.cell.id)
    taken |= {cell.replicate for cell in session.cells if cell.replicate > MERGED_OFFSET}
    merged, renumbered = 0, {}
    for attempt, replicate in _new_replicates(records, present, taken).items():
        kind, source_replicate = _split(attempt.cell)
        cell, status = f"{kind}/r{replicate}", records[attempt].status
        if cell in answered and status in FAULTS:
            sentences.append(f"cell {attempt}: {status}, and has a result here")
            continue
        _copy(source, attempt, attempts[attempt], session.cells_folder, cell)
        merged += 1
        if replicate != source_replicate:
            renumbered[source_replicate] = replicate
    for source_replicate, replicate in sorted(renumbered.items()):
        sentences.append(f"its replicate {source_replicate} is replicate {replicate} here")
    return merged, len(records) - merged, sentences


def _accepted_records(
    session: Session, source: Path, attempts: Mapping[Attempt, list[str]]
) -> tuple[dict[Attempt, Record], list[str]]:
    """The records that belong to the study, and a sentence for each attempt that does not."""
    raw_list = source / manifest.RAW
    sealed = manifest.read_list(raw_list) if raw_list.exists() else None
    digests = {}
    for attempt, files in attempts.items():
        for file in files:
            name = f"{attempt.folder}/{file}"
            digests[name] = manifest.sha256(source / name)
    planned = {cell.id: cell for cell in session.cells}
    records, left_out = {}, []
    for check in check_attempts(source, digests):
        attempt, problems = check.attempt, list(check.problems)
        if sealed is not None:
            names = [f"{attempt.folder}/{file}" for file in attempts[attempt]]
            if any(sealed.get(name) != digests[name] for name in names):
                problems.insert(0, "is not what was sealed")
        if check.record and (misfit := _misfit(session.name, planned, check.record)):
            problems.insert(0, misfit)
        if problems:
            left_out.append(f"cell {attempt}: {problems[0]}")
        else:
            records[attempt] = check.record
    return records, left_out


def _misfit(study: str, planned: Mapping, record: Record) -> str | None:
    """Why a record does not belong to this study; None if it does."""
    if record.study != study:
        return f"belongs to study {record.study!r}"
    if record.status == "postponed":
        return "was put off: nothing was measured"
    cell = planned.get(f"{_split(record.cell.id)[0]}/r{record.cell.replicate % MERGED_OFFSET}")
    if cell is None:
        return "is no cell of this study"
    if spec_digest(record.spec) != cell.digest:
        differing = changed_settings(record.spec, cell.spec.to_json())[:3]
        return f"was measured with other settings: {', '.join(differing)}"
    return None


def _new_replicates(
    records: Mapping[Attempt, Record], present: Iterable[Record], taken: set[int]
) -> dict[Attempt, int]:
    """The replicate that each attempt whose record is not present gets in the study.

    Attempts of one replicate stay together. They go to the replicate that has records of it, or
    else to a free one: its own number, that number and 1000, and so on. taken: replicates in use.
    """
    replicate_of = {_identity(record): record.cell.replicate for record in present}
    taken = {*taken, *replicate_of.values()}
    attempts_by_replicate = defaultdict(list)
    for attempt in sorted(records):
        attempts_by_replicate[_split(attempt.cell)[1]].append(attempt)
    new_replicates = {}
    for number, attempts in sorted(attempts_by_replicate.items()):
        homes = {attempt: replicate_of.get(_identity(records[attempt])) for attempt in attempts}
        present_homes = [home for home in homes.values() if home is not None]
        if present_homes:
            replicate = min(present_homes)
        else:
            replicate = next(
                n for n in count(number % MERGED_OFFSET, MERGED_OFFSET) if n not in taken
            )
        taken.add(replicate)
        for attempt, home in homes.items():
            if home is None:
                new_replicates[attempt] = replicate
    return new_replicates


def _split(cell: str) -> tuple[str, int]:
    """A cell's id without its replicate, and its replicate."""
    kind, _, replicate = cell.rpartition("/r")
    return kind, int(replicate)


def _identity(record: Record) -> str:
    """A text that no two measurements share: the hash of its step times, or when it began where.

    It does not depend on the replicate's number, which a merge may change.
    """
    if STEPS in record.files:
        return record.files[STEPS].sha256
    kind, replicate = _split(record.cell.id)
    machine, began = map(record.provenance.get, ("machine", "started_at"))
    return json.dumps([kind, replicate % MERGED_OFFSET, machine, began])


def _copy(source: Path, attempt: Attempt, files: Iterable[str], cells: Path, cell: str) -> None:
    """Copy an attempt into the cell's folder below `cells`, as its next attempt, whole or not."""
    folders = (path.parent.name for path in (cells / cell).glob(f"a*/{RUN}"))
    numbers = [int(name[1:]) for name in folders if name[1:].isdecimal()]
    number = max(numbers, default=0) + 1
    target = cells / cell / f"a{number}"
    shutil.rmtree(target, ignore_errors=True)  # it may hold the log of an interrupted attempt
    with written_whole(target) as partial:
        partial.mkdir()
        for file in files:
            shutil.copy(source / attempt.folder / file, partial / file)
            (partial / file).chmod((partial / file).stat().st_mode | 0o200)
        if Attempt(cell, number) != attempt:
            record = read_json(partial / RUN)
            record["cell"] |= {"id": cell, "replicate": _split(cell)[1], "attempt": number}
            (partial / RUN).write_text(record_text(record), encoding="utf-8")
