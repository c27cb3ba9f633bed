"""Do the shipped results follow from the shipped raw files? One line per artefact.

    python -m release.verify results/h200 ...      without a folder: every study that ships

Everything derived is made anew in a temporary folder and compared value by value: a line of a text
or a row of a table that changed, is new or is lost is one difference. Raw files are held against
MANIFEST.sha256, against raw.csv (what the tables were made from) and against each other; the
measured parts of README.md, where they are of the study, against what it gives. An artefact's line
names its first differences, --all up to 20. Ends with 1 if anything differs, with 2 if there was
nothing to verify.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from release import arguments, cells, compare, derive, ledger, manifest, readme
from release.contents import (
    CONTRIBUTED,
    LEDGER,
    MANIFEST,
    Attempt,
    by_value,
    listed,
    owner,
    shipped,
)

RAW, README = "raw files", "README.md"
SHOWN = 3  # differences that an artefact's line names


@dataclass(frozen=True)
class Line:
    """What is said of an artefact: that it follows, or in which ways it does not."""

    artefact: str
    wrong: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """One line, whatever there is to say."""
        if not self.wrong:
            return f"ok {self.artefact}"
        more = ["and more"] if len(self.wrong) > SHOWN else []
        return f"DIFFERS {self.artefact}: {'; '.join([*self.wrong[:SHOWN], *more])}"

    @property
    def full(self) -> str:
        """The same with a line for each difference."""
        if not self.wrong:
            return self.text
        return "\n  ".join([f"DIFFERS {self.artefact}:", *self.wrong])


def verify(study: Path) -> Iterator[Line]:
    """All that can be said of a study's folder. Never raises for what the folder holds."""
    try:
        known = manifest.read(study / MANIFEST)
        ledgered = ledger.read(study)
    except (OSError, ValueError) as error:
        yield Line(MANIFEST, (str(error),))
        return
    found = manifest.digests(study, shipped(study))
    yield _said(MANIFEST, held_against(known, found), f"{len(known)} files")
    if ledgered is None:
        yield Line(LEDGER, ("is missing: nothing says what the tables were made from",))
    else:
        yield _said(LEDGER, ledger.differences(ledgered, found), f"{len(ledgered)} raw files")
    yield from raw(study, found)
    yield from derived(study, sorted({*known, *found}))
    yield from readme_parts(study)


def held_against(known: dict[str, str], found: dict[str, str]) -> list[str]:
    """Sentences: files that are not as a manifest has them. What is compared by value (tables,
    texts) may have other bytes, and there may be more of it.
    """
    said = []
    for name in sorted({*known, *found}):
        if name not in found:
            said.append(f"{owner(name)} is missing")
        elif by_value(name):
            continue
        elif name not in known:
            said.append(f"{owner(name)} is not listed")
        elif known[name] != found[name]:
            said.append(f"{owner(name)} is not the file that was shipped")
    return said


def raw(study: Path, found: dict[str, str]) -> Iterator[Line]:
    """The raw files against each other: an attempt's, of each that is wrong; the plan, the list of
    records.
    """
    attempts = cells.attempts(found)
    sound = True
    with ProcessPoolExecutor(derive.PROCESSES, get_context("fork")) as pool:
        size = max(len(attempts) // (4 * derive.PROCESSES), 1)
        tasks = [(study, attempt, found) for attempt in attempts]
        for attempt, wrong in zip(attempts, pool.map(_check, tasks, chunksize=size), strict=True):
            if wrong:
                sound = False
                yield Line(f"{RAW} of cell {attempt}", tuple(wrong))
    try:
        said = cells.check_plan(study) + unlisted(study, attempts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = [f"plan.json or runs.txt: {type(error).__name__}: {error}"]
    if said or sound:
        counted = f"{len(attempts)} attempts: rates, losses and telemetry follow from readings"
        yield _said(RAW, said, counted)


def _check(task: tuple[Path, Attempt, dict[str, str]]) -> list[str]:
    return cells.check(*task)


def unlisted(study: Path, attempts: list[Attempt]) -> list[str]:
    """Sentences: attempts that are there and that the tables leave out, and the other way round."""
    named, there = set(listed(study)), {f"{attempt.folder}/run.json" for attempt in attempts}
    said = [f"{owner(name)} is not in runs.txt" for name in sorted(there - named)]
    return said + [f"{owner(name)} is in runs.txt only" for name in sorted(named - there)]


def derived(study: Path, names: list[str]) -> Iterator[Line]:
    """Everything derived, made anew and compared."""
    wanted = [name for name in names if by_value(name)]
    # A bundle ships merged tables only; of any other study all that analysis makes has to ship.
    bundle = CONTRIBUTED in names
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        try:
            made = derive.lay(study, study_name(study), Path(scratch))
            derive.everything(made, wanted if bundle else None)
        except (derive.NotDerived, OSError, ValueError) as error:
            yield Line("derived results", (f"cannot be made: {error}",))
            return
        folder = Path(scratch) / made.folder
        for note in sorted(folder.glob("*.unreadable.txt")):
            left_out = " ".join(note.read_text(encoding="utf-8").split())
            yield Line(note.name.split(".")[0], (f"leaves out {left_out}",))
        for name in wanted:
            if not (study / name).exists():
                continue  # its absence is said beside the manifest
            if (folder / name).exists():
                yield _said(name, compare.files(study / name, folder / name))
            else:
                yield Line(name, ("is derived from nothing here",))
        for name in sorted({*filter(by_value, shipped(folder))} - {*names}):
            if not name.endswith(".unreadable.txt"):
                yield Line(name, ("follows from the raw files, and is not among what ships",))


def readme_parts(study: Path, root: Path = derive.ROOT) -> Iterator[Line]:
    """The measured parts of the README beside the code (in `root`), where they are of this study.

    They repeat the digest of the ledger, so that not even a study altered as a whole passes.
    """
    folder = study.resolve()
    if not folder.is_relative_to(root):
        return
    link = folder.relative_to(root).as_posix()
    try:
        text = (root / README).read_text(encoding="utf-8")
        other = readme.named(text)
        if other != link and (
            not readme.is_filled(text) or (other and (root / other / MANIFEST).exists())
        ):
            return  # it is of none, or of another study that ships
        wrong = readme.differences(text, study, link)
    except (OSError, ValueError, KeyError) as error:
        wrong = [f"cannot be compared: {error}"]
    yield _said(README, wrong)


def study_name(study: Path) -> str:
    """What the study's records call it. Raises ValueError where there is none."""
    for name in listed(study):
        return str(json.loads((study / name).read_text(encoding="utf-8")).get("study"))
    raise ValueError("runs.txt lists no record")


def _said(artefact: str, wrong: list[str], counted: str = "") -> Line:
    if wrong:
        return Line(artefact, tuple(wrong))
    return Line(f"{artefact} ({counted})" if counted else artefact)


def sealed_studies(results: Path) -> list[Path]:
    """The studies that ship."""
    return sorted(path.parent for path in results.glob(f"*/{MANIFEST}"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m release.verify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("studies", nargs="*", type=Path, metavar="RESULTS/STUDY")
    parser.add_argument(
        "--all", action="store_true", help="name up to 20 differences of an artefact, a line each"
    )
    given = parser.parse_args(argv)
    studies = given.studies or sealed_studies(Path("results"))
    if not studies:
        sys.stderr.write(f"nothing to verify: no study in results/ has a {MANIFEST}\n")
        return 2
    for study in studies:
        if message := arguments.absent(study):
            sys.exit(message)
        if not (study / MANIFEST).exists():
            sys.exit(f"{study} is no study that ships: it has no {MANIFEST} (make seal)")
    wrong = 0
    for study in studies:
        print(f"{study}: root {_root(study)}", flush=True)
        for line in verify(study):
            print(line.full if given.all else line.text, flush=True)
            wrong += bool(line.wrong)
    several = "1 artefact differs" if wrong == 1 else f"{wrong} artefacts differ"
    print(several if wrong else "all follows from the raw files")
    return 1 if wrong else 0


def _root(study: Path) -> str:
    """The digest of the study's ledger, which a README can repeat."""
    path = study / LEDGER
    return manifest.root(path.read_text(encoding="utf-8")) if path.exists() else "unknown"


if __name__ == "__main__":
    sys.exit(main())
