"""Make a finished study one that ships: not_run.txt, raw.sha256 and MANIFEST.sha256 in its folder.

Written only if every cell is accounted for, everything derived follows, nothing private is found
and raw files are small enough for git. An attempt that was sealed before must be unchanged.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from release import contents, manifest, private, verify
from release.contents import RUN, Attempt, is_raw

MOST_MB = 30  # of raw files: they stay in git's history, as each is a measurement


def unfit(study: Path, found: Mapping[str, str]) -> Iterator[str]:
    """Sentences: what is soon seen. found: name → SHA-256 of what ships."""
    yield from contents.strange(study)
    sealed = manifest.read(study / manifest.RAW) if (study / manifest.RAW).exists() else {}
    for name, digest in sealed.items():
        if Attempt.of(name) and found.get(name) != digest:
            yield f"{contents.owner(name)} has changed since it was sealed: measure a new attempt"
    # One that left but a log, as where it was put off, ships nothing and is none of these.
    for attempt in contents.attempts(found):
        if f"{attempt.folder}/{RUN}" not in found:
            yield f"{attempt.folder} has no {RUN}: it was interrupted, and has to be taken away"
    yield from private.Detector().search({name: (study / name).read_bytes() for name in found})
    size = sum((study / name).stat().st_size for name in filter(is_raw, found)) / 1e6
    if size > MOST_MB:
        yield f"{size:.1f} MB of raw files, more than the {MOST_MB} MB for git"


def main(study: Path) -> int:
    """Seal, or say why not; the exit code."""
    study = study.resolve()
    try:
        missing = contents.write_not_run(study)
        found = manifest.digests(study)
        if not (why_not := list(unfit(study, found))):
            lines = [*verify.raw(study, found), *verify.derived(study, [*found], pages=False)]
            why_not = [line.text() for line in lines if line.wrong]
    except Exception as error:  # whatever the folder holds, it is named
        why_not = [f"{study.name} is no finished study: {contents.one_line(error)}"]
    if why_not:
        sys.stderr.write("".join(f"{line}\n" for line in why_not) + f"{study.name} is not sealed\n")
        return 1
    root = manifest.write(study, found)
    told = f"{len(contents.attempts(found))} attempts, {len(missing)} planned cells not run"
    print(f"study {study.name} is sealed: {told}; {len(found)} files; root {root}")
    return 0
