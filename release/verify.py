"""Do the shipped results follow from the shipped raw files? One line per artefact.

Raw files are held against raw.sha256, and against each other: rates, losses, telemetry and energy
are computed again from the readings. Everything derived is made anew in a temporary folder and
compared value by value; README.md and docs/ too, where README is of the study. An artefact's line
names its first differences, --all up to 20. Ends with 1 if anything differs, with 2 if there was
nothing to verify.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from release import cells, compare, derive, manifest, whole
from release.contents import (
    CONTRIBUTED,
    UNSHIPPED,
    Attempt,
    attempts,
    by_value,
    is_raw,
    owner,
    read_text,
    shipped,
    strange,
)
from release.manifest import MANIFEST, RAW

README = "README.md"
SHOWN = 3  # differences that an artefact's line names
LIMITS = """\
What no list of a study's own can prove: that it was measured at all. Somebody who makes up raw
files that agree with each other, and every list anew, passes; so does who leaves a cell out and
says so in not_run.txt. Only a copy kept elsewhere tells: compare the root above with the one that
was published, or measure anew (make study, make compare). Images are held by SHA-256 alone."""


@dataclass(frozen=True)
class Line:
    """What is said of an artefact: that it follows, or in which ways it does not."""

    artefact: str
    wrong: tuple[str, ...] = ()
    counted: str = ""

    def text(self, every: bool = False) -> str:
        """One line; with `every` another for each difference."""
        if not self.wrong:
            return f"ok {self.artefact}{f' ({self.counted})' if self.counted else ''}"
        if every:
            return "\n  ".join([f"DIFFERS {self.artefact}:", *self.wrong])
        more = ["and more"] if len(self.wrong) > SHOWN else []
        return f"DIFFERS {self.artefact}: {'; '.join([*self.wrong[:SHOWN], *more])}"


def verify(study: Path) -> Iterator[Line]:
    """All that can be said of a study's folder. Never raises for what the folder holds."""
    study = study.resolve()
    try:
        known, odd = manifest.known(study), strange(study)
        found = manifest.digests(study, shipped(study))
        if manifest.read(study / MANIFEST).get(RAW) != manifest.root(study):
            odd.append(f"{RAW} is not the list that {MANIFEST} has")
    except (OSError, ValueError) as error:
        yield Line(f"{MANIFEST} and {RAW}", (" ".join(str(error).split()),))
        return
    wrong = [*odd, *held_against({k: v for k, v in known.items() if k != RAW}, found)]
    yield Line(f"{MANIFEST} and {RAW}", tuple(wrong), f"{len(found)} files")
    yield from raw(study, found)
    if odd:
        yield Line("derived results", ("not made anew from a folder that holds such files",))
    else:
        yield from derived(study, sorted(found))


def held_against(known: dict[str, str], found: dict[str, str]) -> list[str]:
    """Sentences: files that are not as the lists have them. What is compared by value (tables,
    texts) may have other bytes, and there may be more of it.
    """
    said = []
    for name in sorted({*known, *found}):
        if name not in found:
            said.append(f"{owner(name)} is missing")
        elif not by_value(name) and known.get(name) != found[name]:
            what = "the file that was sealed" if name in known else "listed"
            said.append(f"{owner(name)} is not {what}")
    return said


def raw(study: Path, found: dict[str, str]) -> Iterator[Line]:
    """The raw files against each other: a line for each attempt that is wrong, one for the rest."""
    there = attempts(found)
    tasks = [(study, attempt, found) for attempt in there]
    with ProcessPoolExecutor(derive.PROCESSES, get_context("fork")) as pool:
        size = max(len(there) // (4 * derive.PROCESSES), 1)
        checked = list(pool.map(_examine, tasks, chunksize=size))
    for one in checked:
        if one.wrong:
            yield Line(f"raw files of cell {one.attempt}", tuple(one.wrong))
    counted = f"{len(there)} attempts: rates, losses, telemetry and energy follow from readings"
    sound = not any(one.wrong for one in checked)
    if (said := whole.check(study, checked)) or sound:
        yield Line("raw files", tuple(said), counted)


def _examine(task: tuple[Path, Attempt, dict[str, str]]) -> cells.Checked:
    return cells.examine(*task)


def derived(study: Path, names: Sequence[str], pages: bool = True) -> Iterator[Line]:
    """Everything derived, made anew and compared; with `pages` README and docs too."""
    wanted = [name for name in names if by_value(name)]
    if (study / derive.TELEMETRY).is_file():  # it does not ship, but may be there
        wanted.append(derive.TELEMETRY)
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        try:
            made = derive.lay(study, Path(scratch))
            # A bundle ships merged tables only; of any other study all that analysis makes ships.
            (derive.merge if CONTRIBUTED in names else derive.everything)(made)
        except (derive.NotDerived, OSError, ValueError) as error:
            yield Line("derived results", (f"cannot be made: {' '.join(str(error).split())}",))
            return
        for note in sorted(made.folder.glob(f"*{UNSHIPPED[-1]}")):
            yield Line(
                note.name.split(".")[0], (f"leaves out {' '.join(read_text(note).split())}",)
            )
        for name in wanted:
            if (made.folder / name).exists():
                yield Line(name, tuple(compare.files(study / name, made.folder / name)))
            else:
                yield Line(name, ("is derived from nothing here",))
        for name in sorted({n for n in shipped(made.folder) if not is_raw(n)} - {*names}):
            yield Line(name, ("follows from the raw files, and is not among what ships",))
        if pages:  # which follow the seal
            yield from readme(study, made)


def readme(study: Path, made: derive.Derivation, root: Path = derive.ROOT) -> Iterator[Line]:
    """README.md and the pages of docs/ beside the code (in `root`), where they are of this study.

    One of them repeats the root, so that not even a study altered as a whole passes.
    """
    from analysis.pages import render  # noqa: PLC0415, for who makes pages only

    if study != root / "results" / study.name:
        return
    try:
        if f"results/{study.name}/" not in read_text(root / README):
            return
        pages = dict(render.shipped(made.folder, derive.CLAIMS))
        for name, text in pages.items():
            yield Line(name, tuple(compare.texts(read_text(root / name), text)))
        told = [root / README, *sorted((root / "docs").glob("*.md"))]
        if not any(manifest.root(study) in read_text(path) for path in told):
            yield Line("root", (f"neither {README} nor a page of docs/ repeats it",))
    except Exception as error:  # whatever altered files make of it, it is named
        said = " ".join(str(error).split())[:200]
        yield Line(README, (f"cannot be compared: {type(error).__name__}: {said}",))


def main(studies: Sequence[Path], every: bool) -> int:
    """Print a line per artefact; the exit code. Studies: none for all that ship."""
    studies = studies or sorted(path.parent for path in Path("results").glob(f"*/{MANIFEST}"))
    if not studies:
        sys.stderr.write(f"nothing to verify: no study in results/ has a {MANIFEST}\n")
        return 2
    for study in studies:
        if not (study / MANIFEST).exists():
            sys.exit(f"{study} is no study that ships: it has no {MANIFEST} (make seal)")
    wrong = 0
    for study in studies:
        listed = (study / RAW).is_file() and not (study / RAW).is_symlink()
        print(f"{study}: root {manifest.root(study) if listed else 'unknown'}", flush=True)
        for line in verify(study):
            print(line.text(every), flush=True)
            wrong += bool(line.wrong)
    several = "1 artefact differs" if wrong == 1 else f"{wrong} artefacts differ"
    print(several if wrong else "all follows from the raw files")
    print(LIMITS)
    return 1 if wrong else 0
