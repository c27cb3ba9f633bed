"""Take in cells of the same study that were measured elsewhere, from a folder or a bundle.

Attempts are copied beside the study's cells, checked there as `make verify` checks them, and moved
in one by one. What does not belong is named and left out; nothing that was measured is overwritten.
"""

import json
import shutil
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from analysis.records.untrusted_files import one_line, printable
from release import manifest, verify
from release.attempt_checks import STEPS
from release.manifest import RUN, Attempt
from workflow.collocation.gpu.lock import Busy, folder_lock
from workflow.collocation.plan.attempts import scan
from workflow.collocation.plan.jobs import holder
from workflow.collocation.plan.session import Session, open_session
from workflow.collocation.record.run_json import FAULTS, RESULTS
from workflow.collocation.spec.cell import changes, digest
from workflow.collocation.spec.grid import ELSEWHERE
from workflow.collocation.spec.load import read_values

STAGED = ".merge"  # below the study's folder: what is not checked yet


def merge(source: Path, config: Sequence[str]) -> int:
    """Merge, or say why not; the exit code."""
    values = read_values(config) | {"gpu": "cpu", "measure": True}  # nothing is, and all is planned
    with tempfile.TemporaryDirectory(prefix="merge-") as scratch:
        try:
            folder = _unpacked(source, Path(scratch)) if source.is_file() else source
            if values.get("study", "auto") == "auto":
                values["study"] = manifest.study_name(folder)
            session = open_session(values)
            if session.sealed:
                raise ValueError(f"{session.folder} is sealed; another folder: results=FOLDER")
            with folder_lock(session.folder, holder(session)):
                came, known, said = into(session, folder)
        except Busy as busy:
            sys.exit(f"study '{session.name}' is being run: {busy}")
        except Exception as error:  # whatever it holds, it is named
            why = one_line(error) or type(error).__name__
            sys.exit(f"nothing more is merged from {printable(source)}: {why}")
    for sentence in said:
        print(printable(sentence), file=sys.stderr)
    print(f"{session.folder}: {came} attempts merged, {known} were there already")
    return 0 if came or known else 1


def _unpacked(bundle: Path, scratch: Path) -> Path:
    """The folder of a bundle, unpacked below `scratch`; tarfile's filter refuses what leads out."""
    with tarfile.open(bundle) as archive:
        archive.extractall(scratch / "bundle", filter="data")
    inside = list((scratch / "bundle").iterdir())
    return inside[0] if len(inside) == 1 else scratch / "bundle"


def into(session: Session, source: Path) -> tuple[int, int, list[str]]:
    """Merge under the lock of the study's folder.

    Returns how many attempts came, how many were there, and sentences on blocks with another number
    and on what was left out.
    """
    staged = session.folder / STAGED
    shutil.rmtree(staged, ignore_errors=True)  # of one that was killed
    try:
        records, said = _checked(session, source, staged)
        tried = scan(session.cells_folder)
        there = [one.content for each in tried.values() for one in each if one.content]
        answered = {record["cell"]["id"] for record in there if record["status"] in RESULTS}
        planned_blocks = {c.replicate for c in session.cells if c.replicate > ELSEWHERE}
        taken = {_block(cell) for cell in tried} | planned_blocks
        came, moved = 0, set()
        for attempt, cell in _places(records, there, taken).items():
            record = records[attempt]
            if cell in answered and record["status"] in FAULTS:
                said.append(f"cell {attempt}: {record['status']}, and has a result here")
                continue
            _move(staged / attempt.folder, session.cells_folder, attempt, record, cell)
            came += 1
            moved.add((_block(attempt.cell), _block(cell)))
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    said += [f"its block {a} is block {b} here" for a, b in sorted(moved) if a != b]
    return came, len(records) - came, said


def _checked(session: Session, source: Path, staged: Path) -> tuple[dict[Attempt, dict], list[str]]:
    """Copy the attempts of a folder; the records that belong to the study, and a sentence for each
    of the others.
    """
    names = manifest.shipped(source)
    found = {attempt: files for attempt, files in manifest.attempts(names).items() if RUN in files}
    if not found:
        raise ValueError(f"it holds no cells/<scenario>/<arm>/<method>/r<block>/a<attempt>/{RUN}")
    sealed = manifest.read(source / manifest.RAW) if (source / manifest.RAW).exists() else None
    for attempt, files in found.items():
        (staged / attempt.folder).mkdir(parents=True)
        for file in files:
            shutil.copyfile(source / attempt.folder / file, staged / attempt.folder / file)
    cells = {cell.id: cell for cell in session.cells}
    digests = {
        f"{attempt.folder}/{file}": manifest.sha256(staged / attempt.folder / file)
        for attempt, files in found.items()
        for file in files
    }
    records, left_out = {}, []
    for one in verify.examined(staged, digests):
        why = _misfit(session.name, cells, one.record) if one.record else ""
        if sealed is not None and not why:
            names = (f"{one.attempt.folder}/{file}" for file in found[one.attempt])
            same = all(digests[name] == sealed.get(name) for name in names)
            why = "" if same else "is not what was sealed"
        if said := next(filter(None, [why, *one.wrong]), ""):
            left_out.append(f"cell {one.attempt}: {said}")
        else:
            records[one.attempt] = one.record
    return records, left_out


def _misfit(study: str, cells: Mapping, record: Mapping) -> str:
    """Why a record is none of this study's; empty if it is."""
    name, spec = record["cell"], record["spec"]
    if record["study"] != study:
        return f"belongs to study {record['study']!r}"
    if record["status"] == "postponed":
        return "was put off: nothing was measured"
    cell = cells.get(f"{_kind(name['id'])}/r{name['replicate'] % ELSEWHERE}")
    if cell is None:
        return "is no cell of this study"
    if digest(spec) != cell.digest:
        differing = changes(spec, cell.spec.to_json())[:3]
        return f"was measured with other settings: {', '.join(differing)}"
    return ""


def _places(
    records: Mapping[Attempt, dict], there: Sequence[dict], taken: set[int]
) -> dict[Attempt, str]:
    """Where each record goes that is not there: its attempt → the cell's id here.

    A block stays one: it goes where records of it are, or else to the first of its number, that
    number and 1000, and so on, that the study has nothing of. taken: blocks that it has.
    """
    home = {_identity(record): _block(record["cell"]["id"]) for record in there}
    used, blocks, found = {*home.values(), *taken}, defaultdict(list), {}
    for attempt in sorted(records):
        blocks[_block(attempt.cell)].append(attempt)
    for number, attempts in sorted(blocks.items()):
        known = {a: home[key] for a in attempts if (key := _identity(records[a])) in home}
        if known:
            to = min(known.values())
        else:
            to = next(n for n in count(number % ELSEWHERE, ELSEWHERE) if n not in used)
            used.add(to)
        found |= {a: f"{_kind(a.cell)}/r{to}" for a in attempts if a not in known}
    return found


def _kind(cell: str) -> str:
    return cell.rpartition("/")[0]


def _block(cell: str) -> int:
    return int(cell.rpartition("/r")[2])


def _identity(record: Mapping) -> str:
    """What no two measurements have in common, wherever a record of one lies: the step times; where
    it has none, what was begun when, and where.
    """
    if steps := (record.get("files") or {}).get(STEPS):
        return steps["sha256"]
    cell, of = record["cell"], record.get("provenance") or {}
    block = cell["replicate"] % ELSEWHERE
    return json.dumps([_kind(cell["id"]), block, of.get("machine"), of.get("started_at")])


def _move(folder: Path, cells: Path, attempt: Attempt, record: dict, cell: str) -> None:
    """Give a staged attempt the next number of its cell here, and move it there, whole."""
    names = (path.parent.name[1:] for path in (cells / cell).glob(f"a*/{RUN}"))
    number = max((int(name) for name in names if name.isdecimal()), default=0) + 1
    if Attempt(cell, number) != attempt:
        named = record["cell"] | {"id": cell, "replicate": _block(cell), "attempt": number}
        text = json.dumps(record | {"cell": named}, indent=1) + "\n"
        (folder / RUN).write_text(text, encoding="utf-8")
    target = cells / cell / f"a{number}"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)  # a log of one that was interrupted
    folder.rename(target)
