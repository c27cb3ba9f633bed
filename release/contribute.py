"""An anonymised bundle of a study measured elsewhere, checked, to be compared with ours.

Raw cells, plan, datasets' pins, and the tables merged from them; no logs. Private strings are taken
out of the records; what cannot be taken out is refused. GPU UUIDs and aliases of machines stay.
"""

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from analysis.records.safe import printable, read_json
from release import contents, derive, manifest, private, verify
from release.contents import CONTRIBUTED, NOT_RUN, RUN, RUNS, Attempt

MEASURED = ("steps.parquet", "gpu.parquet", "member.parquet", "host.parquet")
ALIAS = re.compile(r"machine-([0-9a-f]{4,32})")
PAGE = """\
# {name}: {counted} attempts of study {study}, contributed

Anonymised raw cells, the plan, and tables merged from them. Unpack it in `results/`, then
`make verify STUDY={name}` and `make compare A=results/h200 B=results/{name}`.
"""


def gather(study: Path, folder: Path, detector: private.Detector) -> set[str]:
    """Copy a bundle's raw files, records without private strings; the machines' aliases."""
    aliases = set()
    for name in filter(contents.is_raw, contents.shipped(study)):
        of = Attempt.of(name)
        if (of and of[1] not in (RUN, *MEASURED)) or name in (RUNS, NOT_RUN):
            continue  # both lists are written anew
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not of or of[1] != RUN:
            shutil.copyfile(study / name, target)
            continue
        try:
            record = anonymous(read_json(study / name), detector)
        except RecursionError:
            raise ValueError(f"{contents.owner(name)} is nested too deeply") from None
        alias = str((record.get("provenance") or {}).get("machine") or "machine-0000")
        if not (found := ALIAS.fullmatch(alias)):
            raise ValueError(f"{name}: the machine's alias {alias[:60]!r} is not machine-<hex>")
        aliases.add(found[1])
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return aliases


def anonymous(value: object, detector: private.Detector) -> object:
    """A record, or a part of one, without private strings and with the MEASURED of its files."""
    if isinstance(value, list):
        return [anonymous(item, detector) for item in value]
    if not isinstance(value, dict):
        return detector.strip(value) if isinstance(value, str) else value
    clean = {key: anonymous(item, detector) for key, item in value.items()}
    if clean.get("strangers"):
        clean["strangers"] = ["a stranger's process" for _ in clean["strangers"]]
    if isinstance(files := clean.get("files"), dict):
        clean["files"] = {name: files[name] for name in files if name in MEASURED}
    return clean


def build(study: Path, scratch: Path) -> tuple[str, dict[str, bytes]]:
    """The bundle's name and files, made in `scratch`. Raises OSError, ValueError."""
    if odd := contents.strange(study):
        raise ValueError("\n".join(odd))
    own, folder, detector = contents.study_name(study), scratch / "bundle", private.Detector()
    # Study and machines: two people's 'paper' differ.
    name = "-".join([own, *sorted(gather(study, folder, detector))[:2]])
    records = contents.listed(study)
    contents.write_lines(folder / RUNS, (f"results/{name}/{record}" for record in records))
    contents.write_not_run(folder)
    found = manifest.digests(folder)
    said = [line.text() for line in verify.raw(folder, found) if line.wrong]
    said += detector.search({file: (folder / file).read_bytes() for file in found})
    if said:
        raise ValueError("\n".join(said))
    made = derive.lay(folder, scratch / "derived")
    derive.derive(made, merged_only=True)
    for table in derive.MERGED:
        shutil.copyfile(made / table, folder / table)
    page = PAGE.format(name=name, counted=len(contents.attempts(found)), study=own)
    contents.write_lines(folder / CONTRIBUTED, page.splitlines())
    manifest.write(folder, manifest.digests(folder))
    files = (*contents.shipped(folder), *contents.LISTS)
    return name, {file: (folder / file).read_bytes() for file in files}


def main(study: Path, output: Path) -> int:
    """Write the bundle, or say why not; the exit code."""
    with tempfile.TemporaryDirectory(prefix="contribute-") as scratch:
        try:
            name, files = build(study.resolve(), Path(scratch))
        except Exception as error:  # whatever the folder holds, it is named
            lines = map(printable, str(error).split("\n"))
            sys.exit("\n".join(lines) + f"\nno bundle was made of {study}")
        manifest.pack(output, name, files)
    return 0
