"""Verifies that a study's shipped results follow from its raw files, and prints what does not.

Raw files are checked against raw.sha256 and each other. Everything derived is derived again in a
temporary folder and compared by value; of figures their data, but no image.
"""

import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, repeat, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from analysis.files import one_line, printable, read_table
from release import checks, manifest, study_checks
from release.manifest import NOT_RUN, by_value, is_raw, never_ships
from workflow.collocation.process_lifetime import end_with_parent
from workflow.collocation.study.layout import MANIFEST, PLAN, RAW, RUNS

PROCESSES = 2  # as many as a small machine has cores
CLAIMS = "claims.md"  # the page of a study that is compared with the paper
# Derives everything in a folder with raw files; the second argument: whether to add the paper.
Derive = Callable[[Path, bool], None]
MAX_DIFFERENCES = 3  # that the line of an artefact names
LIMITS = """\
What no list of a study's own can prove is that it was measured at all: whoever makes up raw files
that agree with each other passes. Compare the root above with one that was published, or measure
anew and compare the studies."""
_NUMBER = re.compile(r"([-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)")


class ArtefactCheck(NamedTuple):
    """What was found about one artefact; without problems it follows from the raw files."""

    artefact: str
    problems: Sequence[str] = ()
    summary: str = ""  # what was checked, if there is no problem

    def text(self) -> str:
        """The line that is printed of an artefact with problems."""
        sentences = [printable(problem) for problem in self.problems[:MAX_DIFFERENCES]]
        if len(self.problems) > MAX_DIFFERENCES:
            sentences.append("and more")
        return f"DIFFERS {printable(self.artefact)}: {'; '.join(sentences)}"


def verify_study(study: Path, derive: Derive) -> list[ArtefactCheck]:
    """Check a sealed study's folder completely. Never raises for what it holds."""
    study, lists = study.resolve(), f"{MANIFEST} and {RAW}"
    if not (study / MANIFEST).exists() and not (study / RAW).exists():
        return [ArtefactCheck(lists, [manifest.unsealed(study)])]
    try:
        sealed = manifest.read_list(study / MANIFEST) | manifest.read_list(study / RAW)
        digests, root = manifest.digests(study), manifest.root(study)
    except (OSError, ValueError) as error:
        return [ArtefactCheck(lists, [one_line(error)])]
    problems = []
    if sealed.pop(RAW, None) != root:
        problems.append(f"{RAW} is not what {MANIFEST} lists")
    removed = manifest.attempts(sealed).keys() - manifest.attempts(digests).keys()
    removed_folders = tuple(f"{attempt.folder}/" for attempt in removed)
    for name in sorted({*sealed, *digests}):
        if name.startswith(removed_folders):
            continue
        if name not in digests:
            problems.append(f"{name} is missing")
        elif not by_value(name) and sealed.get(name) != digests[name]:
            problems.append(f"{name} is not {'what was sealed' if name in sealed else 'listed'}")
    return [
        *(
            ArtefactCheck(f"cell {attempt}", ["was sealed, and is gone"])
            for attempt in sorted(removed)
        ),
        ArtefactCheck(lists, problems, f"{len(digests)} files, root {root}"),
        *check_contents(study, digests, derive),
    ]


def check_contents(study: Path, digests: Mapping[str, str], derive: Derive) -> list[ArtefactCheck]:
    """Check raw files and everything derived, without the lists of a seal.

    digests: SHA-256 of the study's files by name.
    """
    return [*check_raw(study, digests), *_check_derived(study, sorted(digests), derive)]


def check_raw(study: Path, digests: Mapping[str, str]) -> list[ArtefactCheck]:
    """A check for each attempt with problems, and one for all raw files together."""
    attempt_checks = list(checks.check_attempts(study, digests))
    artefacts = [
        ArtefactCheck(f"raw files of cell {check.attempt}", check.problems)
        for check in attempt_checks
        if check.problems
    ]
    summary = ""
    if not artefacts:
        summary = f"{len(attempt_checks)} attempts: rates and telemetry follow from readings"
    problems = study_checks.check_study(study, attempt_checks, digests)
    return [*artefacts, ArtefactCheck("raw files", problems, summary)]


def _check_derived(study: Path, names: Sequence[str], derive: Derive) -> list[ArtefactCheck]:
    """Derive everything again, and compare it with the study's files of these names."""
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        folder = Path(scratch, "results", study.name)
        try:
            _link_raw_files(study, folder)
            derive(folder, CLAIMS in names)
        except Exception as error:  # the folder may hold anything
            problem = f"cannot be made: {one_line(error)}"
            return [ArtefactCheck("derived results", [problem])]
        derived = set()
        for path in folder.rglob("*"):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and not is_raw(name) and not never_ships(name):
                derived.add(name)
        artefacts, shipped = [], set(filter(by_value, names))
        for name in sorted(shipped | derived):
            if name not in derived:
                problems = ["is derived from nothing here"]
            elif name not in shipped:
                problems = ["follows from the raw files, and is not among what ships"]
            else:
                problems = _file_differences(study / name, folder / name)
            artefacts.append(ArtefactCheck(name, problems))
        return artefacts


def _link_raw_files(study: Path, folder: Path) -> None:
    """Link a study's raw files into a folder `results/STUDY`, a path that some texts repeat."""
    folder.mkdir(parents=True)
    for name in ("cells", "datasets", PLAN, "mig_layouts.json", NOT_RUN, RAW):
        if (study / name).exists():
            (folder / name).symlink_to((study / name).resolve())
    records = (f"results/{folder.name}/{name}" for name in manifest.analysed_records(study))
    manifest.write_lines(folder / RUNS, records)


def _file_differences(shipped: Path, derived: Path) -> list[str]:
    """Sentences on how two files differ by value; Parquet is compared as text."""
    try:
        if shipped.read_bytes() == derived.read_bytes():
            return []
        return text_differences(_text(shipped), _text(derived))
    except Exception as error:  # the file may hold anything
        return [f"cannot be read: {one_line(error)}"]


def _text(path: Path) -> str:
    if path.suffix != ".parquet":
        return path.read_text("utf-8")
    table = read_table(path)
    return "\n".join([str([*map(str, table.schema)]), *map(repr, table.to_pylist())])


def text_differences(shipped: str, derived: str) -> list[str]:
    """Sentences on the first lines that differ by more than a part in 10⁹ of a number."""
    return list(islice(_line_differences(shipped, derived), MAX_DIFFERENCES + 1))


def _line_differences(shipped: str, derived: str) -> Iterator[str]:
    lines = zip_longest(shipped.splitlines(), derived.splitlines(), fillvalue="nothing")
    for number, (line, derived_line) in enumerate(lines, 1):
        if not _lines_agree(line, derived_line):
            start = max(len(os.path.commonprefix([line, derived_line])) - 30, 0)
            excerpt, derived_excerpt = line[start : start + 80], derived_line[start : start + 80]
            yield f"line {number}: shipped {excerpt!r}, derived {derived_excerpt!r} ({line[:80]})"


def _lines_agree(line: str, derived_line: str) -> bool:
    if line == derived_line:
        return True
    parts, derived_parts = _NUMBER.split(line), _NUMBER.split(derived_line)
    if len(parts) != len(derived_parts):
        return False
    for index, (part, derived_part) in enumerate(zip(parts, derived_parts, strict=True)):
        if part == derived_part:
            continue
        is_decimal = index % 2 and "." in part  # numbers are at odd places
        if not is_decimal or not math.isclose(float(part), float(derived_part), rel_tol=1e-9):
            return False
    return True


def print_problems(study: Path, artefacts: Sequence[ArtefactCheck]) -> int:
    """Print a line for each artefact with problems, and a summary; returns their number."""
    wrong = [artefact for artefact in artefacts if artefact.problems]
    for artefact in wrong:
        print(artefact.text())
    summary = "; ".join(artefact.summary for artefact in artefacts if artefact.summary)
    right = len(artefacts) - len(wrong)
    print(f"{study}: {right} artefacts follow from the raw files ({summary})", flush=True)
    return len(wrong)


def verify(studies: Sequence[Path], results: Path, derive: Derive) -> int:
    """Verify these studies, or all sealed ones in the folder `results`; returns the exit code."""
    studies = studies or sorted(path.parent for path in results.glob(f"*/{MANIFEST}"))
    if not studies:
        sys.stderr.write(f"nothing to verify: no study in {results} has a {MANIFEST}\n")
        return 2
    fork = get_context("fork")
    with ProcessPoolExecutor(PROCESSES, fork, end_with_parent, (os.getpid(),)) as pool:
        differing = 0
        checked = pool.map(verify_study, studies, repeat(derive))
        for study, artefacts in zip(studies, checked, strict=True):
            differing += print_problems(study, artefacts)
    print(f"artefacts that differ: {differing}" if differing else "all follows from the raw files")
    print(LIMITS)
    return 1 if differing else 0
