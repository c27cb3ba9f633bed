"""Do the shipped results follow from the shipped raw files? A line for what does not.

Raw files are held against raw.sha256 and each other, what they tell is computed again from the
readings. Everything derived is made anew in a temporary folder and compared by value; README.md and
docs/ too. Ends with 1 if anything differs, with 2 if there was nothing to verify.
"""

import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from analysis.records.safe import printable, read_text
from release import cells, compare, contents, derive, manifest, whole
from release.contents import Attempt, by_value, is_raw, one_line, owner
from release.manifest import MANIFEST, RAW

README = "README.md"
SHOWN = 3  # differences that an artefact's line names
LIMITS = """\
What no list of a study's own can prove: that it was measured at all. Who makes up raw files that
agree with each other, and every list anew, passes; so does who leaves a cell out and says so in
not_run.txt; so do a copied cell whose step times are blurred by one per cent or two, and losses of
the warm-up within what they vary by, or after its first steps. Images are held by SHA-256 alone.
Compare the root above with one that was published, or measure anew (make study, make compare)."""


@dataclass(frozen=True)
class Line:
    """What is said of an artefact: that it follows, or in which ways it does not."""

    artefact: str
    wrong: Sequence[str] = ()
    counted: str = ""

    def text(self, every: bool = False) -> str:
        """One line; with `every` another for each difference."""
        artefact = printable(self.artefact)  # no name makes another line, or colours one
        if not self.wrong:
            return f"ok {artefact}{f' ({self.counted})' if self.counted else ''}"
        more = ["and more"] if len(self.wrong) > SHOWN else []
        told = [*map(printable, self.wrong if every else [*self.wrong[:SHOWN], *more])]
        return f"DIFFERS {artefact}: {(chr(10) + '  ' if every else '; ').join(told)}"


def verify(study: Path) -> Iterator[Line]:
    """All that can be said of a study's folder. Never raises for what the folder holds."""
    study, lists = study.resolve(), f"{MANIFEST} and {RAW}"
    try:
        derived_list, raw_list = manifest.read(study / MANIFEST), manifest.read(study / RAW)
        odd, found = contents.strange(study), manifest.digests(study)
        if derived_list.pop(RAW, None) != (root := manifest.root(study)):
            odd.append(f"{RAW} is not the list that {MANIFEST} has")
    except (OSError, ValueError) as error:
        yield Line(lists, [one_line(error)])
        return
    odd += held_against({**derived_list, **raw_list}, found)
    yield Line(lists, odd, f"{len(found)} files, root {root}")
    yield from raw(study, found)
    if contents.strange(study):
        yield Line("derived results", ["not made anew from a folder that holds such files"])
    else:
        yield from derived(study, sorted(found))


def held_against(known: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    """Sentences: files that are not as the lists have them, but for what is compared by value."""
    for name in sorted({*known, *found}):
        if name not in found:
            yield f"{owner(name)} is missing"
        elif not by_value(name) and known.get(name) != found[name]:
            yield f"{owner(name)} is not {'what was sealed' if name in known else 'listed'}"


def raw(study: Path, found: Mapping[str, str]) -> Iterator[Line]:
    """The raw files against each other: a line for each attempt that is wrong, one for the rest."""
    of_attempt = defaultdict(dict)
    for name, digest in found.items():
        if of := Attempt.of(name):
            of_attempt[of[0]][of[1]] = digest
    checked = examined(study, of_attempt)
    wrong = [one for one in checked if one.wrong]
    yield from (Line(f"raw files of cell {one.attempt}", one.wrong) for one in wrong)
    if (said := whole.check(study, checked)) or not wrong:
        counted = (
            f"{len(checked)} attempts: rates, losses, telemetry and energy follow from readings"
        )
        yield Line("raw files", said, counted)


def examined(study: Path, digests: Mapping[Attempt, Mapping[str, str]]) -> list[cells.Checked]:
    """Each attempt, whose files have these SHA-256, against itself."""
    there = sorted(digests)
    dies = signal.signal, (signal.SIGINT, signal.SIG_DFL)  # at Ctrl-C, without a word
    with ProcessPoolExecutor(derive.PROCESSES, get_context("fork"), *dies) as pool:
        own, size = map(digests.get, there), len(there) // (4 * derive.PROCESSES) + 1
        return list(pool.map(cells.examine, repeat(study), there, own, chunksize=size))


def derived(study: Path, names: Sequence[str], pages: bool = True) -> Iterator[Line]:
    """Everything derived, made anew and compared; with `pages` README and docs too."""
    with tempfile.TemporaryDirectory(prefix="verify-") as scratch:
        try:
            made = derive.lay(study, Path(scratch))
            derive.derive(made, merged_only=contents.CONTRIBUTED in names)
        except Exception as error:  # whatever the folder holds, it is named
            yield Line("derived results", [f"cannot be made: {one_line(error)}"])
            return
        for note in sorted(made.glob("*.unreadable.txt")):
            yield Line(note.name, [f"is left out: {' '.join(read_text(note).split())}"])
        wanted = {name for name in names if by_value(name)}
        for name in sorted({*wanted, *(n for n in contents.shipped(made) if not is_raw(n))}):
            if not (made / name).exists():
                yield Line(name, ["is derived from nothing here"])
            elif name not in wanted:
                yield Line(name, ["follows from the raw files, and is not among what ships"])
            else:
                yield Line(name, compare.files(study / name, made / name))
        if pages:  # which follow the seal
            yield from readme(study, made)


def readme(study: Path, made: Path) -> Iterator[Line]:
    """README.md and docs/, if they are of this study; one has to repeat the root."""
    from analysis.pages import render  # noqa: PLC0415, for who makes pages only

    root, shown = derive.ROOT, f"STUDY={study.name} ID="  # it may link to other studies, too
    try:
        if study != root / "results" / study.name or shown not in read_text(root / README):
            return
        for name, text in render.shipped(made, derive.CLAIMS):
            yield Line(name, compare.texts(read_text(root / name), text))
        told = [root / README, *sorted((root / "docs").glob("*.md"))]
        if not any(manifest.root(study) in read_text(path) for path in told):
            yield Line("root", [f"neither {README} nor a page of docs/ repeats it"])
    except Exception as error:  # whatever altered files make of it, it is named
        yield Line(README, [f"cannot be compared: {one_line(error)}"])


def tell(study: Path, every: bool = False) -> int:
    """Print a line for each artefact that is wrong, with `every` for all, and one that counts those
    that are right; how many are wrong.
    """
    print(f"{study}:", end="", flush=True)
    wrong, counted, end = [], [], " "
    for line in verify(study):
        (wrong if line.wrong else counted).append(line.counted)
        if every or line.wrong:
            print(f"\n{line.text(every)}", end="", flush=True)
            end = "\n"
    told = "; ".join(filter(None, counted))
    print(f"{end}{len(counted)} artefacts follow from the raw files ({told})")
    return len(wrong)


def main(studies: Sequence[Path], every: bool) -> int:
    """Verify these studies, or without any all that ship; the exit code."""
    studies = studies or sorted(path.parent for path in Path("results").glob(f"*/{MANIFEST}"))
    if not studies:
        sys.stderr.write(f"nothing to verify: no study in results/ has a {MANIFEST}\n")
        return 2
    wrong = 0
    for study in studies:
        wrong += tell(study, every)
    print(f"artefacts that differ: {wrong}" if wrong else "all follows from the raw files")
    print(LIMITS)
    return 1 if wrong else 0
