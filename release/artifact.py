"""One archive of code, raw and derived results, that says of itself how to evaluate it.

    python -m release.artifact results/h200 --output h200.tar.gz

Of a sealed study that verifies. The same files give the same bytes. Unpacked anywhere it passes
`sha256sum -c MANIFEST.sha256` and `make verify`, and draws its figures without a GPU.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from release import archive, arguments, code, evaluation, manifest, private, readme, verify
from release.contents import LEDGER, MANIFEST
from release.derive import ROOT

PAGE = "ARTIFACT.md"
TOP = "gpu-collocation-study"
MAYBE = ("report.html", "report.zip")  # Snakemake's, where it was made


class Refused(Exception):
    """Why no archive is made, a sentence a line."""


def contents(study: Path, minutes: int) -> dict[str, Path | bytes]:
    """Everything in the archive: name → file or content. Raises Refused, OSError, ValueError."""
    known = manifest.read(study / MANIFEST)
    folder = f"results/{study.name}"
    files: dict[str, Path | bytes] = {name: ROOT / name for name in code.tracked(ROOT)}
    files.pop(MANIFEST, None)  # of an archive that this one is made from
    text = (ROOT / verify.README).read_text(encoding="utf-8")
    files[verify.README] = readme.fill(text, study, folder).encode()  # this study's, not another's
    detector = private.Detector()
    own = [*known, MANIFEST, *_reports(study, detector)]
    of_study = {f"{folder}/{name}": study / name for name in own}
    files |= of_study
    ledger = (study / LEDGER).read_text(encoding="utf-8")
    facts = evaluation.Facts(
        study=study.name,
        folder=folder,
        size=sum(map(_size, files.values())),
        study_size=sum(path.stat().st_size for path in of_study.values()),
        files=len(files) + 2,
        root=manifest.root(ledger),
        verify_minutes=minutes,
    )
    verdicts = json.loads((study / "claims.json").read_text(encoding="utf-8"))
    files[PAGE] = evaluation.page(study, facts, verdicts).encode()
    if found := [f for name, source in files.items() for f in _private(detector, name, source)]:
        raise Refused("".join(f"private: {finding}\n" for finding in found))
    files[MANIFEST] = manifest.text({n: _digest(source) for n, source in files.items()}).encode()
    return files


def _reports(study: Path, detector: private.Detector) -> Iterator[str]:
    """Those of MAYBE that are there and hold nothing private; of the others it is said."""
    for name in MAYBE:
        found = detector.in_file(study / name) if (study / name).exists() else None
        if found:
            sys.stderr.write(f"left out {name}: {found[0]}\n")
        elif found is not None:
            yield name


def _private(detector: private.Detector, name: str, source: Path | bytes) -> list:
    content = source if isinstance(source, bytes) else source.read_bytes()
    return detector.in_bytes(content, name)


def _size(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _digest(source: Path | bytes) -> str:
    if isinstance(source, bytes):
        return manifest.root(source.decode())
    return manifest.sha256(source)


def main(argv: list[str] | None = None) -> int:
    given = arguments.of_study("release.artifact", __doc__, argv, output=True)
    if not (given.study / MANIFEST).exists():
        sys.exit(f"{given.study} is not sealed: make seal STUDY={given.study.name}")
    began = time.monotonic()
    if wrong := [line.text for line in verify.verify(given.study) if line.wrong]:
        sys.exit("\n".join([*wrong, f"{given.study} does not verify; no archive was made"]))
    minutes = math.ceil((time.monotonic() - began) / 60)
    try:
        files = contents(given.study, minutes)
    except Refused as refused:
        sys.exit(f"{refused}no archive was made")
    except (OSError, ValueError) as error:
        sys.exit(f"no archive was made: {error}")
    archive.write(given.output, f"{TOP}-{given.study.name}", files)
    size = given.output.stat().st_size
    print(f"{given.output}: {len(files)} files, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
