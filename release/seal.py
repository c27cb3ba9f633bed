"""Make a finished study one that ships: raw.csv and MANIFEST.sha256 in its folder.

    python -m release.seal results/h200

Records that were not sealed before are made compact first. Written only if every cell is accounted
for, everything derived follows from the raw files, nothing private is found and the raw files are
of a size for git. An attempt that was sealed before must be unchanged.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from release import arguments, cells, compact, ledger, manifest, private, verify
from release.contents import LEDGER, MANIFEST, RUN, is_raw, owner, shipped

MOST_BYTES = 30_000_000  # of raw files: they stay in git's history, as each is a measurement


def refusals(study: Path, names: list[str]) -> list[str]:
    """Why the study cannot be sealed, a sentence each: what is soon seen, else what takes long."""
    return list(_unfit(study, names)) or list(_unfounded(study, names))


def _unfit(study: Path, names: list[str]) -> Iterator[str]:
    """What is there that should not be, or the other way round."""
    found = manifest.digests(study, names)
    known = ledger.read(study)
    for name in ledger.rewritten(known or {}, found):
        what = "has changed" if name in found else "is missing"
        yield f"{owner(name)} {what} since it was sealed: a new measurement is a new attempt"
    for name in sorted(n for n in names if n.endswith(".unreadable.txt")):
        yield f"{name}: analysis left records out"
    # One that left but a log, as where it was put off, ships nothing and is none of these.
    for attempt in cells.attempts(names):
        if not (study / attempt.folder / RUN).exists():
            yield f"{attempt.folder} has no {RUN}: it was interrupted, and has to be taken away"
    yield from (f"private: {finding}" for finding in private.in_files(study, names))
    if (size := _size(study, filter(is_raw, names))) > MOST_BYTES:
        limit = f"the {MOST_BYTES / 1e6:.0f} MB meant for git"
        yield f"{size / 1e6:.1f} MB of raw files are more than {limit}"


def _size(study: Path, names: Iterable[str]) -> int:
    """Bytes of these files of a study."""
    return sum((study / name).stat().st_size for name in names)


def _unfounded(study: Path, names: list[str]) -> Iterator[str]:
    """What does not follow from the raw files."""
    lines = [*verify.raw(study, manifest.digests(study, names)), *verify.derived(study, names)]
    return (line.text for line in lines if line.wrong)


def outcomes(study: Path, names: list[str]) -> dict[str, int]:
    """How the planned cells ended, each by its last attempt; 'not run' are those without one."""
    last = {}
    for attempt in cells.attempts(names):  # in order
        record = json.loads((study / attempt.folder / RUN).read_text(encoding="utf-8"))
        last[attempt.cell] = record["status"]
    plan = json.loads((study / "plan.json").read_text(encoding="utf-8"))
    return dict(Counter(last.get(cell["id"], "not run") for cell in plan))


def seal(study: Path, names: list[str]) -> str:
    """Write ledger and manifest; the root digest."""
    names = [name for name in names if name != LEDGER]
    text = ledger.text(manifest.digests(study, names))
    (study / LEDGER).write_text(text, encoding="utf-8")
    everything = manifest.digests(study, sorted([*names, LEDGER]))
    (study / MANIFEST).write_text(manifest.text(everything), encoding="utf-8")
    return manifest.root(text)


def main(argv: list[str] | None = None) -> int:
    study = arguments.of_study("release.seal", __doc__, argv).study
    if not (study / "runs.txt").exists():
        sys.exit(f"{study} is no finished study: it has no runs.txt")
    names = shipped(study)
    try:
        compact.records(study, set(names) - set(ledger.read(study) or {}))
        why_not = refusals(study, names)
        counted = outcomes(study, names) if not why_not else {}
    except (OSError, ValueError, KeyError) as error:
        why_not = [f"{study} is no finished study: {error}"]
    if why_not:
        sys.stderr.write("".join(f"{line}\n" for line in why_not) + f"{study} is not sealed\n")
        return 1
    root = seal(study, names)
    raw = [name for name in names if is_raw(name)]
    everything, of_them = (_size(study, own) / 1e6 for own in ([*names, MANIFEST], raw))
    ended = ", ".join(f"{n} {s.replace('_', ' ')}" for s, n in sorted(counted.items()))
    size = f"{len(names)} files, {everything:.1f} MB, {of_them:.1f} of them raw"
    print(f"{study} is sealed: {ended}; {size}; root {root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
