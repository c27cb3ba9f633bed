"""Do the shipped results follow from the shipped raw files? A line for what does not.

Raw files are held against raw.sha256 and each other. Everything derived is made anew in a
temporary folder, by the commands that the workflow's rules call, and compared by value; of figures
the data that they draw, but no image.
"""

import math
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from itertools import islice, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from analysis.estimates.build import publish
from analysis.estimates.records import merge as records
from analysis.files import one_line, printable, read_table
from analysis.report.figures import draw
from analysis.report.pages.render import write_pages
from paper.reported import REPORTED
from paper.rules import CLAIMS
from release import checks, manifest
from release.manifest import NOT_RUN, by_value, is_raw, never_ships
from workflow.collocation.process_lifetime import end_with_parent
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.layout import MANIFEST, PLAN, RAW, RUNS

PROCESSES = 2  # as many as a small machine has cores
SHOWN = 3  # differences that an artefact's line names
LIMITS = """\
What no list of a study's own can prove is that it was measured at all: whoever makes up raw files
that agree with each other passes. Compare the root above with one that was published, or measure
anew and compare the studies."""
_NUMBER = re.compile(r"([-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)")


class Line(NamedTuple):
    """What is said of an artefact: that it follows, or in which ways it does not."""

    artefact: str
    wrong: Sequence[str] = ()
    counted: str = ""

    def text(self) -> str:
        more = ["and more"] if len(self.wrong) > SHOWN else []
        said = "; ".join(map(printable, [*self.wrong[:SHOWN], *more]))
        return f"DIFFERS {printable(self.artefact)}: {said}"


def verified(study: Path) -> list[Line]:
    """All that can be said of a study's folder. Never raises for what it holds."""
    study, lists = study.resolve(), f"{MANIFEST} and {RAW}"
    if not any((study / name).exists() for name in (MANIFEST, RAW)):
        return [Line(lists, [manifest.unsealed(study)])]
    try:
        derived_list, raw_list = manifest.read(study / MANIFEST), manifest.read(study / RAW)
        found, root = manifest.digests(study), manifest.root(study)
    except (OSError, ValueError) as error:
        return [Line(lists, [one_line(error)])]
    known = {**derived_list, **raw_list}
    wrong = [] if known.pop(RAW, None) == root else [f"{RAW} is not what {MANIFEST} lists"]
    gone = manifest.attempts(known).keys() - manifest.attempts(found).keys()
    for name in sorted({*known, *found}):
        if name.startswith(tuple(f"{attempt.folder}/" for attempt in gone)):
            continue
        if name not in found:
            wrong.append(f"{name} is missing")
        elif not by_value(name) and known.get(name) != found[name]:
            wrong.append(f"{name} is not {'what was sealed' if name in known else 'listed'}")
    missing = [Line(f"cell {attempt}", ["was sealed, and is gone"]) for attempt in sorted(gone)]
    counted = f"{len(found)} files, root {root}"
    return [*missing, Line(lists, wrong, counted), *rebuilt(study, found)]


def rebuilt(study: Path, found: Mapping[str, str]) -> list[Line]:
    """The raw files against each other, and all that is derived from them."""
    return [*raw(study, found), *derived(study, sorted(found))]


def raw(study: Path, found: Mapping[str, str]) -> list[Line]:
    """A line for each attempt that is wrong, one for the rest."""
    checked = list(checks.examined(study, found))
    wrong = [Line(f"raw files of cell {one.attempt}", one.wrong) for one in checked if one.wrong]
    counted = f"{len(checked)} attempts: rates and telemetry follow from readings" * (not wrong)
    return [*wrong, Line("raw files", checks.across(study, checked, found), counted)]


def derived(study: Path, names: Sequence[str]) -> list[Line]:
    """Everything derived, made anew and compared."""
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        made = Path(scratch, "results", study.name)
        try:
            lay(study, made)
            derive(made)
        except Exception as error:  # whatever the folder holds, it is named
            return [Line("derived results", [f"cannot be made: {one_line(error)}"])]
        new = {p.relative_to(made).as_posix() for p in made.rglob("*") if p.is_file()}
        new = {name for name in new if not (is_raw(name) or never_ships(name))}
        lines, wanted = [], set(filter(by_value, names))
        for name in sorted(wanted | new):
            if name not in new:
                wrong = ["is derived from nothing here"]
            elif name not in wanted:
                wrong = ["follows from the raw files, and is not among what ships"]
            else:
                wrong = _differences(study / name, made / name)
            lines.append(Line(name, wrong))
        return lines


def lay(study: Path, there: Path) -> None:
    """Link a study's raw files into a folder `results/STUDY`: texts tell some of their paths."""
    there.mkdir(parents=True)
    for name in ("cells", "datasets", PLAN, "mig_layouts.json", NOT_RUN, RAW):
        if (study / name).exists():
            (there / name).symlink_to((study / name).resolve())
    lines = (f"results/{there.name}/{record}" for record in manifest.listed(study))
    manifest.write_lines(there / RUNS, lines)


def derive(folder: Path) -> None:
    """Make everything that is compared in a study's folder. Raises ValueError."""
    here = Path("results", folder.name)
    with chdir(folder.parents[1]):
        for name, step in (
            ("records", lambda: records.write(here.name, here / RUNS, here / "runs.parquet")),
            ("estimates", lambda: publish(here, CLAIMS, REPORTED)),
            ("figures", lambda: draw(here, data_only=True)),
            ("pages", lambda: write_pages(here)),
        ):
            try:
                step()
            except (OSError, ValueError, ConfigError) as error:
                raise ValueError(f"{name}: {one_line(error)[:300]}") from None


def _differences(shipped: Path, made: Path) -> list[str]:
    """Sentences: how two files of one kind differ by value; Parquet is compared as text."""
    try:
        if shipped.read_bytes() == made.read_bytes():
            return []
        return compare(_text(shipped), _text(made))
    except Exception as error:  # whatever a file holds, it is named
        return [f"cannot be read: {one_line(error)}"]


def _text(path: Path) -> str:
    if path.suffix != ".parquet":
        return path.read_text("utf-8")
    table = read_table(path)
    return "\n".join([str([*map(str, table.schema)]), *map(repr, table.to_pylist())])


def compare(shipped: str, made: str) -> list[str]:
    """Sentences: the first lines that differ by more than a part in 10⁹ of a number in them."""
    if shipped == made:
        return []
    pairs = zip_longest(shipped.splitlines(), made.splitlines(), fillvalue="nothing")
    wrong = ((n, *pair) for n, pair in enumerate(pairs, 1) if not _same(*pair))
    return [
        f"line {n}: shipped {one[at : at + 80]!r}, derived {other[at : at + 80]!r} ({one[:80]})"
        for n, one, other in islice(wrong, SHOWN + 1)
        for at in [max(len(os.path.commonprefix([one, other])) - 30, 0)]
    ]


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    mine, yours = _NUMBER.split(one), _NUMBER.split(other)  # numbers at odd places
    return len(mine) == len(yours) and all(
        a == b or (n % 2 and "." in a and math.isclose(float(a), float(b), rel_tol=1e-9))
        for n, (a, b) in enumerate(zip(mine, yours, strict=True))
    )


def tell(study: Path, lines: Sequence[Line]) -> int:
    """Print a line for each artefact that is wrong; how many are."""
    wrong = [line for line in lines if line.wrong]
    for line in wrong:
        print(line.text())
    counted = "; ".join(line.counted for line in lines if line.counted)
    right = len(lines) - len(wrong)
    print(f"{study}: {right} artefacts follow from the raw files ({counted})", flush=True)
    return len(wrong)


def verify(studies: Sequence[Path], results: Path) -> int:
    """Verify these studies, or without any all in `results` that ship; the exit code."""
    studies = studies or sorted(path.parent for path in results.glob(f"*/{MANIFEST}"))
    if not studies:
        sys.stderr.write(f"nothing to verify: no study in {results} has a {MANIFEST}\n")
        return 2
    fork = get_context("fork")
    with ProcessPoolExecutor(PROCESSES, fork, end_with_parent, (os.getpid(),)) as pool:
        told = zip(studies, pool.map(verified, studies), strict=True)
        wrong = sum(tell(study, lines) for study, lines in told)
    print(f"artefacts that differ: {wrong}" if wrong else "all follows from the raw files")
    print(LIMITS)
    return 1 if wrong else 0
