"""Hands a study on: seals it, and packs it together with the code as an artifact."""

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template

from analysis.files import one_line, written_whole
from release import manifest, private, verify
from release.manifest import NOT_RUN, is_raw
from workflow.collocation import ROOT
from workflow.collocation.study.layout import MANIFEST, RAW, RUN

MAX_MB = 30  # of raw files: they stay in git's history
EPOCH = 315_532_800  # 1980-01-01, the time of every file in an archive


def seal(study: Path, derive: verify.Derive) -> int:
    """Write the two lists of a finished study's files, or print why not; returns the exit code.

    Every planned cell has a record or is listed as not run, everything derived follows from the raw
    files, nothing private is in them, and attempts that were sealed before are unchanged.
    """
    study = study.resolve()
    try:
        not_run = manifest.cells_not_run(study, manifest.digests(study))
        manifest.write_lines(study / NOT_RUN, not_run)
        digests = manifest.digests(study)
        problems = list(_raw_problems(study, digests))
        if not problems:
            lines = verify.check_contents(study, digests, derive)
            problems = [line.text() for line in lines if line.problems]
        if not problems:
            root = manifest.write_lists(study, digests)
    except Exception as error:  # the folder may hold anything
        problems = [one_line(error) or type(error).__name__]
    if problems:
        sys.stderr.write("".join(f"{study.name} is not sealed: {line}\n" for line in problems))
        return 1
    counts = f"{len(manifest.attempts(digests))} attempts, {len(not_run)} planned cells not run"
    print(f"study {study.name} is sealed: {counts}; {len(digests)} files; root {root}")
    return 0


def _raw_problems(study: Path, digests: Mapping[str, str]) -> Iterator[str]:
    """Sentences on what prevents the seal, without deriving anything."""
    sealed = manifest.read_list(study / RAW) if (study / RAW).exists() else {}
    for name, digest in sealed.items():
        if name.startswith("cells/") and digests.get(name) != digest:
            yield f"{name} has changed since it was sealed: measure a new attempt"
    for attempt, files in manifest.attempts(digests).items():
        if RUN not in files:
            yield f"{attempt.folder} has no {RUN}: interrupted, take it away"
    yield from private.Detector().search(study, digests)
    megabytes = sum((study / name).stat().st_size for name in digests if is_raw(name)) / 1e6
    if megabytes > MAX_MB:
        yield f"{megabytes:.1f} MB of raw files, more than the {MAX_MB} MB for git"


def artifact(study: Path, output: Path, derive: verify.Derive) -> int:
    """Write an archive of a sealed study and the code; returns the exit code.

    Raises ValueError if the study is not sealed, does not verify, or something private is in it.
    """
    study = study.resolve()
    if not (study / MANIFEST).exists():
        raise ValueError(manifest.unsealed(study))
    if verify.print_problems(study, verify.verify_study(study, derive)):
        raise ValueError(f"{study.name} does not verify; no archive was made")
    files = {name: (ROOT / name).read_bytes() for name in _code_files()}
    for name in (*manifest.shipped(study), RAW, MANIFEST):
        files[f"results/{study.name}/{name}"] = (study / name).read_bytes()
    page = Template(Path(__file__).with_name("artifact.md").read_text("utf-8"))
    files["ARTIFACT.md"] = page.substitute(study=study.name, root=manifest.root(study)).encode()
    with tempfile.TemporaryDirectory(prefix="artifact-") as scratch:
        for name, content in files.items():
            path = Path(scratch, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if problems := list(private.Detector().search(Path(scratch), sorted(files))):
            raise ValueError("\n".join([*problems, "no archive was made"]))
        digests = {name: manifest.sha256(Path(scratch, name)) for name in files}
    files[MANIFEST] = manifest.list_text(digests).encode()
    _pack(output, f"gpu-collocation-study-{study.name}", files)
    return 0


def _code_files() -> list[str]:
    """Names of the files that git tracks, without results."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if process.returncode:
        raise ValueError(f"no archive is made but in a clone: {process.stderr.strip()}")
    names = process.stdout.split("\0")
    return sorted(n for n in names if not n.startswith("results/") and (ROOT / n).is_file())


def _pack(output: Path, top: str, files: Mapping[str, bytes]) -> None:
    """Write files as a tar.xz below the folder `top`: sorted, without owners, all of one time."""
    with (
        written_whole(output) as path,
        tarfile.open(path, "w:xz", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime = len(content), EPOCH
            entry.mode = 0o755 if content.startswith(b"#!") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    print(f"{output}: {len(files)} files, {output.stat().st_size / 1e6:.1f} MB")
