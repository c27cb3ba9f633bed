"""An anonymised bundle of a study measured elsewhere, checked, to be compared with ours.

    python -m release.contribute results/paper --output bundle.tar.gz

Holds the raw cells, the plan, the datasets' pins and the tables merged from them; no logs, no
traces. Host and user names, paths, addresses and other people's processes are taken out of the
records; what cannot be taken out is refused, with file and place. GPU UUIDs and the machine's
random alias stay.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from release import anonymise, archive, arguments, cells, derive, ledger, manifest, private, verify
from release.contents import (
    CONTRIBUTED,
    LEDGER,
    MANIFEST,
    RUN,
    Attempt,
    is_raw,
    listed,
    shipped,
)

MEASURED = ("steps.parquet", "gpu.parquet", "member.parquet", "host.parquet")


class Refused(Exception):
    """Why no bundle is made, a sentence a line."""


def gather(study: Path, folder: Path, detector: private.Detector) -> None:
    """Copy what a bundle holds of a study's raw files, records anonymised. Raises OSError."""
    for name in filter(is_raw, shipped(study)):
        of = Attempt.of(name)
        if of and of[1] not in (RUN, *MEASURED):
            continue
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if of and of[1] == RUN:
            content = json.loads((study / name).read_text(encoding="utf-8"))
            clean = anonymise.record(content, detector, set(MEASURED))
            target.write_text(json.dumps(clean, indent=1) + "\n", encoding="utf-8")
        elif name == "runs.txt":
            pass  # written anew: its paths are this machine's
        else:
            shutil.copyfile(study / name, target)


def bundle_name(study: str, folder: Path) -> str:
    """The study and the aliases of the machines that measured it: two people's 'paper' differ."""
    aliases = set()
    for path in sorted(folder.glob(f"cells/*/*/*/*/*/{RUN}")):
        provenance = json.loads(path.read_text(encoding="utf-8")).get("provenance") or {}
        aliases.add(str(provenance.get("machine") or "").removeprefix("machine-"))
    return "-".join([study, *sorted(aliases - {""})[:2]])


def page(name: str, study: str, counted: int) -> str:
    return f"""# {name}: {counted} attempts of study {study}, contributed

Anonymised raw cells, the plan, and tables merged from them. Unpack it in `results/`, then

```
make verify STUDY={name}
make compare A=results/h200 B=results/{name}
```

The comparison first names what differs (hardware, driver, trainer digest, data), and averages
nothing.
"""


def build(study: Path, scratch: Path) -> tuple[str, dict[str, Path]]:
    """The bundle's name and files, made in `scratch`. Raises Refused, OSError, ValueError."""
    own = verify.study_name(study)
    named = listed(study)
    folder = scratch / "bundle"
    detector = private.Detector()
    gather(study, folder, detector)
    name = bundle_name(own, folder)
    text = "".join(f"results/{name}/{record}\n" for record in named)
    (folder / "runs.txt").write_text(text, encoding="utf-8")
    raw = shipped(folder)
    digests = manifest.digests(folder, raw)
    attempts = cells.attempts(raw)
    said = [f"cell {a}: {what}" for a in attempts for what in cells.check(folder, a, digests)]
    said += [f"private: {finding}" for finding in private.in_files(folder, raw, detector)]
    if said:
        raise Refused("\n".join(said))
    made = derive.lay(folder, own, scratch / "derived")
    derive.merge(made)
    derive.merge_telemetry(made)
    for table in derive.MERGED:
        shutil.copyfile(made.there / made.folder / table, folder / table)
    (folder / LEDGER).write_text(ledger.text(digests), encoding="utf-8")
    (folder / CONTRIBUTED).write_text(page(name, own, len(attempts)), encoding="utf-8")
    everything = manifest.digests(folder, shipped(folder))
    (folder / MANIFEST).write_text(manifest.text(everything), encoding="utf-8")
    return name, {file: folder / file for file in (*everything, MANIFEST)}


def main(argv: list[str] | None = None) -> int:
    given = arguments.of_study("release.contribute", __doc__, argv, output=True)
    if not (given.study / "runs.txt").exists():
        sys.exit(f"{given.study} is no finished study: it has no runs.txt")
    with tempfile.TemporaryDirectory(prefix="contribute-") as scratch:
        try:
            name, files = build(given.study, Path(scratch))
        except Refused as refused:
            sys.exit(f"{refused}\nno bundle was made")
        except (derive.NotDerived, OSError, ValueError) as error:
            sys.exit(f"no bundle was made of {given.study}: {error}")
        archive.write(given.output, name, files)
    print(f"{given.output}: {len(files)} files, {given.output.stat().st_size / 1e6:.1f} MB")
    print(f"unpack it in results/, then: make compare A=results/h200 B=results/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
