"""One archive of code, raw and derived results, that says of itself how to evaluate it.

Of a sealed study that verifies. The same files give the same bytes. Unpacked anywhere it passes
`sha256sum -c MANIFEST.sha256` and `make verify`, and draws its figures without a GPU.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from analysis import claims
from analysis.estimates.table import Estimates
from analysis.figures import APPENDIX, NAMES
from release import archive, manifest, private, verify
from release.contents import RUN, attempts, read_json
from release.derive import CLAIMS, ROOT

PAGE = "ARTIFACT.md"
TOP = "gpu-collocation-study"


def contents(study: Path, seconds: float) -> dict[str, Path | bytes]:
    """Everything in the archive: name → file or content. Raises OSError, ValueError.

    seconds: what `make verify` took.
    """
    folder = f"results/{study.name}"
    files: dict[str, Path | bytes] = {name: ROOT / name for name in archive.code(ROOT)}
    own = [*manifest.known(study), manifest.MANIFEST]
    of_study = {f"{folder}/{name}": study / name for name in own}
    files |= of_study
    sizes = {
        "size": _megabytes(files),
        "study_size": _megabytes(of_study),
        "files": len(files) + 2,
        "seconds": math.ceil(seconds),
    }
    files[PAGE] = page(study, folder, own, sizes).encode()
    detector = private.Detector()
    found = [
        f for name, source in files.items() for f in detector.in_bytes(archive.read(source), name)
    ]
    if found:
        raise ValueError("\n".join(f"private: {finding}" for finding in found))
    digests = {name: manifest.of_bytes(archive.read(source)) for name, source in files.items()}
    return files | {manifest.MANIFEST: manifest.text(digests).encode()}


def page(study: Path, folder: str, names: list[str], sizes: dict) -> str:
    """ARTIFACT.md: abstract, badges, requirements, getting started, claims, figures."""
    estimates = Estimates.read(study / "estimates.parquet")
    verdicts = {claim.name: claim.status for claim in estimates.of("claim")}
    records = [read_json(study / attempt.folder / RUN) for attempt in attempts(names)]
    about = {_described(record) for record in records if record["members"]}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    return environment.get_template("artifact.md.j2").render(
        study=study.name,
        folder=folder,
        root=manifest.root(study),
        counts={e.name: f"{e.value:.0f}" for e in estimates.of("count") if e.value is not None},
        claims=[(claim, verdicts[claim.id]) for claim in claims.read(CLAIMS).claims],
        figures=[*NAMES, *APPENDIX],
        measured=sorted(about),
        minutes=f"{sum(record['timing'].get('total_s', 0) for record in records) / 60:.0f}",
        **sizes,
    )


def _described(record: dict) -> str:
    versions = record["provenance"].get("versions") or {}
    told = [f"{name} {versions[name]}" for name in ("torch", "timm", "python") if name in versions]
    gpu = record["gpu"] or {"name": record["host"].get("cpu", "a CPU"), "driver": None}
    return ", ".join([gpu["name"], *([f"driver {gpu['driver']}"] if gpu["driver"] else []), *told])


def _megabytes(files: dict[str, Path | bytes]) -> str:
    return f"{sum(len(archive.read(source)) for source in files.values()) / 1e6:.1f} MB"


def main(study: Path, output: Path) -> int:
    """Write the archive, or say why not; the exit code. A line is printed for each step."""
    if not (study / manifest.MANIFEST).exists():
        sys.exit(f"{study} is not sealed: make seal STUDY={study.name}")
    began, wrong, study = time.monotonic(), False, study.resolve()
    for line in verify.verify(study):
        print(line.text(), flush=True)
        wrong = wrong or bool(line.wrong)
    if wrong:
        sys.exit(f"{study.name} does not verify; no archive was made")
    print("reading the code, looking for what is private", flush=True)
    try:
        files = contents(study, time.monotonic() - began)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{error}\nno archive was made")
    print(f"packing {len(files)} files", flush=True)
    archive.write(output, f"{TOP}-{study.name}", files)
    print(f"{output}: {len(files)} files, {output.stat().st_size / 1e6:.1f} MB")
    return 0
