"""Takes in cells of the same study that were measured elsewhere, from a results folder that was
brought back or a bundle of `make contribute`.

Attempts are copied beside the study's cells, checked there as `make verify` checks them, and moved
in one by one. What does not belong is named and left out; nothing that was measured is overwritten.
"""

import gzip
import json
import re
import shutil
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO

from analysis.records import safe
from analysis.records.safe import MOST_TABLE, printable, read_bytes, read_json
from release import contents, manifest, verify
from release.cells import STEPS
from release.contents import RUN, Attempt, one_line
from workflow.collocation.gpu.lock import Busy, folder_lock
from workflow.collocation.plan.attempts import scan
from workflow.collocation.plan.jobs import holder
from workflow.collocation.plan.session import Session, open_session
from workflow.collocation.record.run_json import FAULTS, RESULTS
from workflow.collocation.spec.cell import changes, digest
from workflow.collocation.spec.errors import ConfigError
from workflow.collocation.spec.grid import ELSEWHERE, Cell
from workflow.collocation.spec.load import read_values

STAGED = ".merge"  # below the study's folder: what is not checked yet
NAMED = 3  # settings that differ
NONE = f"it holds no cells/<scenario>/<arm>/<method>/r<block>/a<attempt>/{RUN}"
_FILE = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")  # of an attempt


class Partly(Exception):
    """Some attempts were merged before something went wrong; with this sentence."""


class Limited:
    """A stream that ends with a ValueError after MOST_TABLE bytes."""

    def __init__(self, content: IO[bytes]):
        self.content, self.left = content, MOST_TABLE

    def read(self, size: int) -> bytes:
        part = self.content.read(size)
        self.take(len(part))
        return part

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise ValueError(f"it unpacks to more than {MOST_TABLE} bytes: give its folder")


def unpacked(bundle: Path, scratch: Path) -> Path:
    """The folder of a bundle, below `scratch`. Raises OSError, EOFError, tarfile.TarError, and
    ValueError for what is no plain file, leads out of it, or would be more than MOST_TABLE.
    """
    out = scratch / "bundle"
    out.mkdir()
    with gzip.open(bundle) as packed:
        with tarfile.open(fileobj=Limited(packed), mode="r|") as archive:
            declared = Limited(packed)
            for entry in archive:
                name = PurePosixPath(entry.name)
                if name.is_absolute() or ".." in name.parts:
                    raise ValueError(f"{name} leads out of it")
                if entry.isdir():
                    continue
                if not entry.isfile() or entry.issparse():
                    raise ValueError(f"{name} is a link or no plain file: it is not opened")
                declared.take(entry.size)
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                with archive.extractfile(entry) as content, (out / name).open("xb") as target:
                    shutil.copyfileobj(content, target)
    inside = list(out.iterdir())
    return inside[0] if len(inside) == 1 else out


def stage(source: Path, there: Path) -> dict[Attempt, dict[str, str]]:
    """Copy the attempts of a folder; of each its files, by name in its folder, with their SHA-256.

    Raises OSError, or ValueError for a folder with anything but plain files in it.
    """
    if odd := contents.strange(source):
        raise ValueError("; ".join(odd))
    found = defaultdict(dict)
    for name in contents.shipped(source):
        of = Attempt.of(name)
        if of and _FILE.fullmatch(of[1]):
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            (there / name).write_bytes(read_bytes(source / name, MOST_TABLE))
            found[of[0]][of[1]] = manifest.sha256(there / name)
    found = {attempt: files for attempt, files in found.items() if RUN in files}
    if not found:
        raise ValueError(NONE)
    return found


class Planned:
    """The cells of a study, to hold records against."""

    def __init__(self, session: Session):
        self.study = session.name
        self.cells = {cell.id: cell for cell in session.cells}

    def of(self, cell: str, block: int) -> Cell | None:
        return self.cells.get(f"{_kind(cell)}/r{block % ELSEWHERE}")

    def misfit(self, record: Mapping) -> str:
        """Why a record is none of this study's; empty if it is."""
        name, spec = record["cell"], record["spec"]
        if record["study"] != self.study:
            return f"belongs to study {record['study']!r}"
        if record["status"] == "postponed":
            return "was put off: nothing was measured"
        if (cell := self.of(name["id"], name["replicate"])) is None:
            return "is no cell of this study"
        if digest(spec) != cell.digest:
            differing = changes(spec, cell.spec.to_json())[:NAMED]
            return f"was measured with other settings: {', '.join(differing)}"
        return ""


def checked(
    source: Path, staged: Path, found: Mapping[Attempt, Mapping[str, str]], planned: Planned
) -> tuple[dict[Attempt, dict], list[str]]:
    """The records that belong to the study, and a sentence for each of the others."""
    records, left_out = {}, []
    known = manifest.read(source / manifest.RAW) if (source / manifest.RAW).exists() else None
    for one in verify.examined(staged, found):
        attempt, files = one.attempt, found[one.attempt].items()
        sealed = known is None or all(known.get(f"{attempt.folder}/{n}") == d for n, d in files)
        try:
            record = read_json(staged / attempt.folder / RUN)
            why = [planned.misfit(record), *one.wrong, "" if sealed else "is not what was sealed"]
        except Exception as error:  # whatever the record holds, it is named
            why = [*one.wrong, one_line(error)]
        if said := next(filter(None, why), ""):
            left_out.append(f"cell {attempt}: {said}")
        else:
            records[attempt] = record
    return records, left_out


def moves(
    records: Mapping[Attempt, dict], there: Iterable[dict], taken: Iterable[str]
) -> Iterator[tuple[Attempt, str]]:
    """Where each record goes that is not there: its attempt, and the cell's id here.

    there: the study's records. taken: ids of its cells that a block may not become part of. A block
    stays one: it goes where records of it are, or else to the first of its number, that number and
    1000, and so on, that the study has nothing of. What hosts measured is never taken for one.
    """
    home = {_identity(record): _block(record["cell"]["id"]) for record in there}
    used = {*home.values(), *map(_block, taken)}
    blocks: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in sorted(records):
        blocks[_block(attempt.cell)].append(attempt)
    for number, attempts in sorted(blocks.items()):
        known = {a: home[key] for a in attempts if (key := _identity(records[a])) in home}
        if known:
            to = min(known.values())
        else:
            free = count(number % ELSEWHERE, ELSEWHERE)
            to = next(n for n in free if n not in used)
            used.add(to)
        for attempt in attempts:
            if attempt not in known:
                yield attempt, f"{_kind(attempt.cell)}/r{to}"


def _kind(cell: str) -> str:
    return cell.rpartition("/")[0]


def _block(cell: str) -> int:
    return int(cell.rpartition("/r")[2])


def _identity(record: Mapping) -> str:
    """What no two measurements have in common, wherever a record of one lies: the steps; where it
    has none, what was begun when, and where.
    """
    if steps := (record.get("files") or {}).get(STEPS):
        return steps["sha256"]
    cell, of = record["cell"], record.get("provenance") or {}
    block = cell["replicate"] % ELSEWHERE
    return json.dumps([_kind(cell["id"]), block, of.get("machine"), of.get("started_at")])


def move(folder: Path, cells: Path, attempt: Attempt, record: dict, cell: str) -> None:
    """Give a staged attempt the next number of its cell here, and move it there, whole."""
    number, block = max(_numbers(cells / cell), default=0) + 1, _block(cell)
    if Attempt(cell, number) != attempt:
        named = record["cell"] | {"id": cell, "replicate": block, "attempt": number}
        text = json.dumps(record | {"cell": named}, indent=1) + "\n"
        (folder / RUN).write_text(text, encoding="utf-8")
    target = cells / cell / f"a{number}"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)  # a log of one that was interrupted
    folder.rename(target)


def _numbers(cell: Path) -> Iterator[int]:
    names = (path.parent.name[1:] for path in cell.glob(f"a*/{RUN}"))
    return (int(name) for name in names if name.isdecimal())


def into(session: Session, source: Path) -> tuple[int, int, list[str]]:
    """Merge under the lock of the study's folder: how many attempts came, how many were there, and
    sentences on blocks with another number and on what was left out. Raises Partly, too.
    """
    staged = session.folder / STAGED
    shutil.rmtree(staged, ignore_errors=True)  # of one that was killed
    try:
        found = stage(source, staged)
        records, said = checked(source, staged, found, Planned(session))
        tried = scan(session.cells_folder)
        there = [one.content for each in tried.values() for one in each if one.content]
        answered = {record["cell"]["id"] for record in there if record["status"] in RESULTS}
        taken = [*tried, *(cell.id for cell in session.cells if cell.replicate > ELSEWHERE)]
        placed = dict(moves(records, there, taken))
        for attempt in [a for a in placed if placed[a] in answered]:
            if (status := records[attempt]["status"]) in FAULTS:
                said.append(f"cell {attempt}: {status}, and has a result here")
                del placed[attempt], records[attempt]
        for done, (attempt, cell) in enumerate(placed.items()):
            folder = staged / attempt.folder
            try:
                move(folder, session.cells_folder, attempt, records[attempt], cell)
            except OSError as error:
                state = f"{done} of {len(placed)} attempts are merged, and the same command "
                raise Partly(f"{session.folder}: {state}carries on: {error}") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    renamed = Counter((_block(a.cell), _block(cell)) for a, cell in placed.items())
    said += [f"its block {a} is block {b} here" for a, b in sorted(renamed) if a != b]
    return len(placed), len(records) - len(placed), said


def studies(source: Path) -> str:
    """The name of the study that a folder is of. Raises OSError, ValueError."""
    first = next(iter(contents.attempts(contents.shipped(source))), None)
    if first is None:
        raise ValueError(NONE)
    return str(read_json(source / first.folder / RUN).get("study"))


def main(source: Path, config: Sequence[str]) -> int:
    """Merge, or say why not; the exit code."""
    values = read_values(config) | {"gpu": "cpu", "measure": True}  # nothing is, and all is planned
    with tempfile.TemporaryDirectory(prefix="merge-") as scratch:
        try:
            folder = unpacked(source, Path(scratch)) if source.is_file() else source
            if values.get("study", "auto") == "auto":
                values["study"] = studies(folder)
            session = open_session(values)
            if session.sealed:
                raise ValueError(f"{session.folder} is sealed; another folder: results=FOLDER")
            with folder_lock(session.folder, holder(session)):
                came, known, said = into(session, folder)
        except Busy as busy:
            sys.exit(f"study '{session.name}' is being run: {busy}")
        except (ConfigError, Partly) as error:
            sys.exit(safe.one_line(error))
        except Exception as error:  # whatever it holds, it is named
            why = safe.one_line(error) or type(error).__name__
            sys.exit(f"nothing is merged from {printable(source)}: {why}")
    for sentence in said:
        print(printable(sentence), file=sys.stderr)
    print(f"{session.folder}: {came} attempts merged, {known} were there already")
    return 0 if came or known else 1
