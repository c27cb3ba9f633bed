"""Do the shipped results follow from the shipped raw files? A line for what does not.

Raw files are held against raw.sha256 and each other; rates and telemetry are computed again from
step times and readings. Everything derived is made anew in a temporary folder and compared by
value. Ends with 1 if anything differs, with 2 if there was nothing to verify.
"""

import math
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice, repeat, zip_longest
from multiprocessing import get_context
from pathlib import Path

from analysis.records.untrusted_files import one_line, printable, read_table, read_text
from release import attempt_checks, cross_cell_checks, derive, manifest
from release.manifest import MANIFEST, RAW, by_value, is_raw

README = "README.md"
SHOWN = 3  # differences that an artefact's line names
LIMITS = """\
What no list of a study's own can prove is that it was measured at all: whoever makes up raw files
that agree with each other passes. Compare the root above with one that was published, or measure
anew (make study, make compare)."""
_NUMBER = re.compile(r"([-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)")


@dataclass(frozen=True)
class Line:
    """What is said of an artefact: that it follows, or in which ways it does not."""

    artefact: str
    wrong: Sequence[str] = ()
    counted: str = ""

    def text(self) -> str:
        if not self.wrong:
            return f"ok {printable(self.artefact)}{f' ({self.counted})' if self.counted else ''}"
        more = ["and more"] if len(self.wrong) > SHOWN else []
        said = "; ".join(map(printable, [*self.wrong[:SHOWN], *more]))
        return f"DIFFERS {printable(self.artefact)}: {said}"


def verify(study: Path) -> Iterator[Line]:
    """All that can be said of a study's folder. Never raises for what the folder holds."""
    study, lists = study.resolve(), f"{MANIFEST} and {RAW}"
    try:
        derived_list, raw_list = manifest.read(study / MANIFEST), manifest.read(study / RAW)
        found, root = manifest.digests(study), manifest.root(study)
        known = {**derived_list, **raw_list}
        wrong = [] if known.pop(RAW, None) == root else [f"{RAW} is not what {MANIFEST} lists"]
    except (OSError, ValueError) as error:
        yield Line(lists, [one_line(error)])
        return
    for name in sorted({*known, *found}):
        if name not in found:
            wrong.append(f"{name} is missing")
        elif not by_value(name) and known.get(name) != found[name]:
            wrong.append(f"{name} is not {'what was sealed' if name in known else 'listed'}")
    yield Line(lists, wrong, f"{len(found)} files, root {root}")
    yield from raw(study, found)
    yield from derived(study, sorted(found))


def raw(study: Path, found: Mapping[str, str]) -> Iterator[Line]:
    """The raw files against each other: a line for each attempt that is wrong, one for the rest."""
    checked = examined(study, found)
    wrong = [one for one in checked if one.wrong]
    yield from (Line(f"raw files of cell {one.attempt}", one.wrong) for one in wrong)
    said = cross_cell_checks.check(study, checked)
    counted = f"{len(checked)} attempts: rates and telemetry follow from readings"
    yield Line("raw files", said, "" if wrong else counted)


def examined(study: Path, found: Mapping[str, str]) -> list[attempt_checks.Checked]:
    """Each attempt among files with these SHA-256, held against itself."""
    of = manifest.attempts(found)
    own = [{file: found[f"{attempt.folder}/{file}"] for file in of[attempt]} for attempt in of]
    with ProcessPoolExecutor(derive.PROCESSES, get_context("fork")) as pool:
        size = len(of) // (4 * derive.PROCESSES) + 1
        return list(pool.map(attempt_checks.examine, repeat(study), of, own, chunksize=size))


def derived(study: Path, names: Sequence[str], pages: bool = True) -> Iterator[Line]:
    """Everything derived, made anew and compared; with `pages` README and docs too."""
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        try:
            made = derive.lay(study, Path(scratch))
            derive.derive(made)
        except Exception as error:  # whatever the folder holds, it is named
            yield Line("derived results", [f"cannot be made: {one_line(error)}"])
            return
        for note in sorted(made.glob("*.unreadable.txt")):
            yield Line(note.name, [f"is left out: {' '.join(read_text(note).split())}"])
        wanted = {name for name in names if by_value(name)}
        new = {name for name in derive.made(made) if not is_raw(name)}
        for name in sorted(wanted | new):
            if name not in new:
                yield Line(name, ["is derived from nothing here"])
            elif name not in wanted:
                yield Line(name, ["follows from the raw files, and is not among what ships"])
            else:
                yield Line(name, differences(study / name, made / name))
        if pages:
            yield from readme(study, made)


def readme(study: Path, made: Path) -> Iterator[Line]:
    """README.md and docs/, if they are of this study; one has to repeat the root."""
    from analysis.pages import render  # noqa: PLC0415, for who makes pages only

    root = derive.ROOT
    if study != root / "results" / study.name or f"STUDY={study.name} ID=" not in read_text(
        root / README
    ):
        return
    try:
        for name, text in render.shipped(made, derive.CLAIMS):
            yield Line(name, compare(read_text(root / name), text))
    except Exception as error:  # whatever altered files make of it, it is named
        yield Line(README, [f"cannot be compared: {one_line(error)}"])
    pages = [root / README, *sorted((root / "docs").glob("*.md"))]
    if not any(manifest.root(study) in read_text(path) for path in pages):
        yield Line("root", [f"neither {README} nor a page of docs/ repeats it"])


def differences(shipped: Path, made: Path) -> list[str]:
    """Sentences: how two files of one kind differ by value; Parquet is compared as text."""
    try:
        return compare(_text(shipped), _text(made))
    except Exception as error:  # whatever a file holds, it is named
        return [f"cannot be read: {one_line(error)}"]


def _text(path: Path) -> str:
    if path.suffix != ".parquet":
        return read_text(path)
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
        for at in [max(_agree(one, other) - 30, 0)]
    ]


def _agree(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    mine, yours = _NUMBER.split(one), _NUMBER.split(other)  # numbers at odd places
    return len(mine) == len(yours) and all(
        a == b or (n % 2 and "." in a and math.isclose(float(a), float(b), rel_tol=1e-9))
        for n, (a, b) in enumerate(zip(mine, yours, strict=True))
    )


def tell(study: Path, every: bool = False) -> int:
    """Print a line for each artefact that is wrong, with `every` for all; how many are wrong."""
    lines = list(verify(study))
    wrong = [line for line in lines if line.wrong]
    for line in lines if every else wrong:
        print(line.text())
    counted = "; ".join(line.counted for line in lines if line.counted)
    right = len(lines) - len(wrong)
    print(f"{study}: {right} artefacts follow from the raw files ({counted})", flush=True)
    return len(wrong)


def main(studies: Sequence[Path], every: bool) -> int:
    """Verify these studies, or without any all that ship; the exit code."""
    studies = studies or sorted(path.parent for path in Path("results").glob(f"*/{MANIFEST}"))
    if not studies:
        sys.stderr.write(f"nothing to verify: no study in results/ has a {MANIFEST}\n")
        return 2
    wrong = sum(tell(study, every) for study in studies)
    print(f"artefacts that differ: {wrong}" if wrong else "all follows from the raw files")
    print(LIMITS)
    return 1 if wrong else 0
