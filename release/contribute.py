"""An anonymised bundle of a study measured elsewhere, checked, to be compared with ours.

Holds the raw cells, the plan, the datasets' pins, and the tables merged from them; no logs, no
traces. Host and user names, paths, addresses and other people's processes are taken out of the
records; what cannot be taken out is refused, with file and place. GPU UUIDs and the machine's
random alias stay.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from release import archive, derive, manifest, private, verify, whole
from release.contents import (
    CONTRIBUTED,
    NOT_RUN,
    RUN,
    Attempt,
    attempts,
    is_raw,
    listed,
    read_json,
    shipped,
    strange,
    study_name,
)

MEASURED = ("steps.parquet", "gpu.parquet", "member.parquet", "host.parquet")
ALIAS = re.compile(r"machine-([0-9a-f]{4,32})")
PAGE = """\
# {name}: {counted} attempts of study {study}, contributed

Anonymised raw cells, the plan, and tables merged from them. Unpack it in `results/`, then

```
make verify STUDY={name}
make compare A=results/h200 B=results/{name}
```
"""


class Refused(Exception):
    """Why no bundle is made, a sentence a line."""


def gather(study: Path, folder: Path, detector: private.Detector) -> set[str]:
    """Copy what a bundle holds of a study's raw files, records anonymised; the machines' aliases.

    Raises OSError, Refused.
    """
    aliases = set()
    for name in filter(is_raw, shipped(study)):
        of = Attempt.of(name)
        if (of and of[1] not in (RUN, *MEASURED)) or name in ("runs.txt", NOT_RUN):
            continue  # both lists are written anew
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not of or of[1] != RUN:
            shutil.copyfile(study / name, target)
            continue
        record = read_json(study / name)
        alias = str((record.get("provenance") or {}).get("machine") or "machine-0000")
        if not ALIAS.fullmatch(alias):
            raise Refused(f"{name}: the machine's alias {alias[:60]!r} is not machine-<hex digits>")
        aliases.add(ALIAS.fullmatch(alias)[1])
        target.write_text(json.dumps(anonymous(record, detector), indent=1) + "\n", "utf-8")
    return aliases


def anonymous(record: dict, detector: private.Detector) -> dict:
    """run.json's content with private strings replaced, and only the MEASURED of its files."""
    clean = _stripped(record, detector)
    telemetry = clean.get("telemetry") or {}
    if telemetry.get("strangers"):
        numbers = range(1, len(telemetry["strangers"]) + 1)
        telemetry["strangers"] = [f"a stranger's process {number}" for number in numbers]
    files = clean.get("files") or {}
    return clean | {"files": {name: file for name, file in files.items() if name in MEASURED}}


def _stripped(value: object, detector: private.Detector) -> object:
    """The value with every text in it stripped; keys stay, and are looked at by who asked."""
    if isinstance(value, dict):
        return {key: _stripped(item, detector) for key, item in value.items()}
    if isinstance(value, list):
        return [_stripped(item, detector) for item in value]
    return detector.strip(value) if isinstance(value, str) else value


def build(study: Path, scratch: Path) -> tuple[str, dict[str, Path]]:
    """The bundle's name and files, made in `scratch`. Raises Refused, OSError, ValueError."""
    if odd := strange(study):
        raise Refused("\n".join(odd))
    own, folder, detector = study_name(study), scratch / "bundle", private.Detector()
    folder.mkdir()
    aliases = gather(study, folder, detector)
    # Study and machines: two people's 'paper' differ.
    name = "-".join([own, *sorted(aliases)[:2]])
    text = "".join(f"results/{name}/{record}\n" for record in listed(study))
    (folder / "runs.txt").write_text(text, encoding="utf-8")
    there = attempts(shipped(folder))
    missing = whole.not_run(folder, {attempt.cell for attempt in there})
    (folder / NOT_RUN).write_text("".join(f"{cell}\n" for cell in missing), encoding="utf-8")
    raw = manifest.digests(folder, shipped(folder))
    said = [line.text() for line in verify.raw(folder, raw) if line.wrong]
    said += [f"private: {finding}" for finding in private.in_files(folder, raw, detector)]
    if said:
        raise Refused("\n".join(said))
    made = derive.lay(folder, scratch / "derived")
    derive.merge(made)
    for table in derive.MERGED:
        shutil.copyfile(made.folder / table, folder / table)
    page = PAGE.format(name=name, counted=len(there), study=own)
    (folder / CONTRIBUTED).write_text(page, encoding="utf-8")
    files = shipped(folder)
    manifest.write(folder, manifest.digests(folder, files))
    return name, {file: folder / file for file in (*files, manifest.MANIFEST, manifest.RAW)}


def main(study: Path, output: Path) -> int:
    """Write the bundle, or say why not; the exit code."""
    if not (study / "runs.txt").exists():
        sys.exit(f"{study} is no finished study: it has no runs.txt")
    with tempfile.TemporaryDirectory(prefix="contribute-") as scratch:
        try:
            name, files = build(study.resolve(), Path(scratch))
        except (Refused, derive.NotDerived, OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"{error}\nno bundle was made of {study}")
        archive.write(output, name, files)
    print(f"{output}: {len(files)} files, {output.stat().st_size / 1e6:.1f} MB")
    print(f"unpack it in results/, then: make compare A=results/h200 B=results/{name}")
    return 0
