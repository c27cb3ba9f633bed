"""Make a finished study one that ships: not_run.txt, raw.sha256 and MANIFEST.sha256 in its folder.

Written only if every cell is accounted for, everything derived follows from the raw files, nothing
private is found and the raw files are of a size for git. An attempt that was sealed before must be
unchanged: a new measurement is a new attempt.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from release import manifest, private, verify, whole
from release.contents import NOT_RUN, RUN, Attempt, attempts, is_raw, owner, shipped, strange

MOST_BYTES = 30_000_000  # of raw files: they stay in git's history, as each is a measurement


def refusals(study: Path, found: dict[str, str]) -> list[str]:
    """Why the study cannot be sealed, a sentence each: what is soon seen, else what takes long."""
    soon = [*strange(study), *_unfit(study, found)]
    if soon:
        return soon
    lines = [*verify.raw(study, found), *verify.derived(study, sorted(found), pages=False)]
    return [line.text() for line in lines if line.wrong]


def _unfit(study: Path, found: dict[str, str]) -> Iterator[str]:
    if (study / manifest.RAW).exists():
        for name, digest in manifest.read(study / manifest.RAW).items():
            if Attempt.of(name) and found.get(name) != digest:
                what = "has changed" if name in found else "is missing"
                yield f"{owner(name)} {what} since it was sealed: measure a new attempt instead"
    # One that left but a log, as where it was put off, ships nothing and is none of these.
    for attempt in attempts(found):
        if f"{attempt.folder}/{RUN}" not in found:
            yield f"{attempt.folder} has no {RUN}: it was interrupted, and has to be taken away"
    yield from (f"private: {finding}" for finding in private.in_files(study, found))
    if (size := _size(study, filter(is_raw, found))) > MOST_BYTES:
        yield f"{size / 1e6:.1f} MB of raw files, more than the {MOST_BYTES / 1e6:.0f} MB for git"


def _size(study: Path, names) -> int:
    return sum((study / name).stat().st_size for name in names)


def outcomes(study: Path, found: dict[str, str]) -> str:
    """How the planned cells ended, each by its last attempt."""
    last = {}
    for attempt in attempts(found):  # in order
        record = json.loads((study / attempt.folder / RUN).read_text(encoding="utf-8"))
        last[attempt.cell] = record["status"].replace("_", " ")
    counted = Counter([*last.values(), *("not run" for _ in whole.not_run(study, {*last}))])
    return ", ".join(f"{number} {status}" for status, number in sorted(counted.items()))


def main(study: Path) -> int:
    """Seal, or say why not; the exit code."""
    if not (study / "runs.txt").exists():
        sys.exit(f"{study} is no finished study: it has no runs.txt")
    try:
        study = study.resolve()
        missing = whole.not_run(study, {attempt.cell for attempt in attempts(shipped(study))})
        (study / NOT_RUN).write_text("".join(f"{cell}\n" for cell in missing), encoding="utf-8")
        names = shipped(study)
        found = manifest.digests(study, names)
        why_not = refusals(study, found)
        ended = outcomes(study, found) if not why_not else ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        why_not = [f"{study.name} is no finished study: {error}"]
    if why_not:
        sys.stderr.write("".join(f"{line}\n" for line in why_not) + f"{study.name} is not sealed\n")
        return 1
    root = manifest.write(study, found)
    everything, raw = (_size(study, own) / 1e6 for own in (names, filter(is_raw, names)))
    size = f"{len(names)} files, {everything:.1f} MB, {raw:.1f} of them raw"
    print(f"study {study.name} is sealed: {ended}; {size}; root {root}")
    return 0
