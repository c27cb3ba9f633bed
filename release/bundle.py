"""Handing a study on: seal it, and pack it with the code as an artifact."""

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from string import Template

from analysis.files import one_line, written_whole
from release import manifest, private, verify
from release.manifest import MANIFEST, NOT_RUN, RAW, RUN, is_raw

ROOT = Path(__file__).resolve().parents[1]
MOST_MB = 30  # of raw files: they stay in git's history
EPOCH = 315_532_800  # 1980-01-01, the time of every file in an archive


def seal(study: Path, derive: verify.Derive) -> int:
    """Make a finished study one that ships: write its two lists, or say why not; the exit code.

    Every cell has to be accounted for, everything derived has to follow, and nothing private may
    be in it. An attempt that was sealed before must be unchanged.
    """
    study = study.resolve()
    try:
        missing = manifest.not_run(study, manifest.digests(study))
        manifest.write_lines(study / NOT_RUN, missing)
        found = manifest.digests(study)
        sealed = manifest.read(study / RAW) if (study / RAW).exists() else {}
        why_not = [
            f"{name} has changed since it was sealed: measure a new attempt"
            for name, digest in sealed.items()
            if name.startswith("cells/") and found.get(name) != digest
        ]
        for attempt, files in manifest.attempts(found).items():
            if RUN not in files:
                why_not.append(f"{attempt.folder} has no {RUN}: interrupted, take it away")
        why_not += private.Detector().search(study, found)
        size = sum((study / name).stat().st_size for name in filter(is_raw, found)) / 1e6
        if size > MOST_MB:
            why_not.append(f"{size:.1f} MB of raw files, more than the {MOST_MB} MB for git")
        if not why_not:
            why_not = [line.text() for line in verify.rebuilt(study, found, derive) if line.wrong]
        if not why_not:
            root = manifest.write(study, found)
    except Exception as error:  # whatever the folder holds, it is named
        why_not = [one_line(error) or type(error).__name__]
    if why_not:
        sys.stderr.write("".join(f"{study.name} is not sealed: {line}\n" for line in why_not))
        return 1
    counted = f"{len(manifest.attempts(found))} attempts, {len(missing)} planned cells not run"
    print(f"study {study.name} is sealed: {counted}; {len(found)} files; root {root}")
    return 0


def artifact(study: Path, output: Path, derive: verify.Derive) -> int:
    """Write one archive of a sealed study and the code, or say why not; the exit code."""
    study = study.resolve()
    if not (study / MANIFEST).exists():
        raise ValueError(manifest.unsealed(study))
    if verify.tell(study, verify.verified(study, derive)):
        raise ValueError(f"{study.name} does not verify; no archive was made")
    files = {name: (ROOT / name).read_bytes() for name in _code()}
    for name in (*manifest.shipped(study), RAW, MANIFEST):
        files[f"results/{study.name}/{name}"] = (study / name).read_bytes()
    page = Template(Path(__file__).with_name("artifact.md").read_text("utf-8"))
    files["ARTIFACT.md"] = page.substitute(study=study.name, root=manifest.root(study)).encode()
    with tempfile.TemporaryDirectory(prefix="artifact-") as scratch:
        for name, content in files.items():
            Path(scratch, name).parent.mkdir(parents=True, exist_ok=True)
            Path(scratch, name).write_bytes(content)
        if found := list(private.Detector().search(Path(scratch), sorted(files))):
            raise ValueError("\n".join([*found, "no archive was made"]))
        digests = {name: manifest.sha256(Path(scratch, name)) for name in files}
    files[MANIFEST] = manifest.text(digests).encode()
    _pack(output, f"gpu-collocation-study-{study.name}", files)
    return 0


def _code() -> list[str]:
    """Files of the repository but results, that git tracks."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise ValueError(f"no archive is made but in a clone: {done.stderr.strip()}")
    listed = done.stdout.split("\0")
    return sorted(n for n in listed if not n.startswith("results/") and (ROOT / n).is_file())


def _pack(output: Path, top: str, files: Mapping[str, bytes]) -> None:
    """Write a tar.xz of files below the folder `top`: sorted, without owners, all of one time."""
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
