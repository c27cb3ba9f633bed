"""One archive of code, raw and derived results, that says of itself how to evaluate it.

Of a sealed study that verifies. The same files give the same bytes. Unpacked anywhere it passes
`sha256sum -c MANIFEST.sha256` and `make verify`, and draws its figures without a GPU.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
from jinja2 import StrictUndefined, Template

from analysis import claims
from analysis.estimates.table import Estimates
from analysis.figures import APPENDIX, NAMES
from release import manifest, private, verify
from release.contents import LISTS, shipped
from release.derive import CLAIMS, ROOT

PAGE = "ARTIFACT.md"


def code(root: Path) -> list[str]:
    """Files of the repository but results: that git tracks, or an unpacked archive's list has."""
    command = ["git", "-C", str(root), "ls-files", "-z"]
    # Not those of a repository that an archive was unpacked into.
    surroundings = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings)
        names = run.stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        names = list(manifest.read(root / manifest.MANIFEST))
    own = {*names} - {"", PAGE, manifest.MANIFEST}
    return sorted(n for n in own if not n.startswith("results/") and (root / n).is_file())


def contents(study: Path) -> dict[str, bytes]:
    """Everything in the archive: name → file or content."""
    files = {name: (ROOT / name).read_bytes() for name in code(ROOT)}
    for name in (*shipped(study), *LISTS):
        files[f"results/{study.name}/{name}"] = (study / name).read_bytes()
    size = f"{sum(map(len, files.values())) / 1e6:.1f} MB"
    files[PAGE] = page(study, size=size, files=len(files) + 2).encode()
    if found := list(private.Detector().search(files)):
        raise ValueError("\n".join(found))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    return files | {manifest.MANIFEST: manifest.text(digests).encode()}


def page(study: Path, **about: object) -> str:
    """ARTIFACT.md: abstract, badges, requirements, getting started, claims, figures."""
    estimates = Estimates.read(study / "estimates.parquet")
    counts, verdicts = estimates.of("count"), {e.name: e.status for e in estimates.of("claim")}
    cells = pq.read_table(study / "runs.parquet", columns=["cell", "attempt", "total_s"])
    took = {(row["cell"], row["attempt"]): row["total_s"] or 0 for row in cells.to_pylist()}
    template = Path(__file__).with_name("artifact.md.j2").read_text("utf-8")
    spaces = {"trim_blocks": True, "keep_trailing_newline": True}
    return Template(template, undefined=StrictUndefined, **spaces).render(
        study=study.name,
        folder=f"results/{study.name}",
        root=manifest.root(study),
        counts={e.name: f"{e.value:.0f}" for e in counts if e.value is not None},
        claims=[(claim, verdicts[claim.id]) for claim in claims.read(CLAIMS).claims],
        figures=[*NAMES, *APPENDIX],
        measured=[e.note for e in counts if e.name.startswith("software_")],
        minutes=f"{sum(took.values()) / 60:.0f}",
        **about,
    )


def main(study: Path, output: Path) -> int:
    """Write the archive, or say why not; the exit code. A line is printed for each step."""
    if not (study / manifest.MANIFEST).exists():
        sys.exit(f"{study} is not sealed: make seal STUDY={study.name}")
    study = study.resolve()
    if verify.tell(study):
        sys.exit(f"{study.name} does not verify; no archive was made")
    try:
        files = contents(study)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{error}\nno archive was made")
    manifest.pack(output, f"gpu-collocation-study-{study.name}", files)
    return 0
