"""Everything that analysis makes of a study's raw files, made anew in another folder.

By the commands that the workflow's rules call; of figures the data that they draw, but no image.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from release.contents import listed, study_name
from release.manifest import RAW

ROOT = Path(__file__).resolve().parents[1]
CLAIMS, REPORTED = ROOT / "config" / "claims.yaml", ROOT / "config" / "reported.csv"
TELEMETRY, EXPLORER = "telemetry.parquet", "explorer.html"
MERGED = ("runs.parquet", "runs.csv", "estimates.parquet", "estimates.csv")  # of a bundle
PROCESSES = 2  # as many as a small machine has cores
LIMIT_S = 900.0


class NotDerived(Exception):
    """One line: which command failed, and its last words."""


@dataclass(frozen=True)
class Derivation:
    """A study's raw files seen from `there`, an empty folder that gets everything derived.

    There they have the paths that they had when the study was analysed, as texts tell some.
    """

    name: str
    there: Path

    @property
    def folder(self) -> Path:
        return self.there / "results" / self.name


def lay(study: Path, there: Path) -> Derivation:
    """Link a study's raw files into the folder. Raises OSError, ValueError where it has none."""
    made = Derivation(study_name(study), there)
    made.folder.mkdir(parents=True)
    for raw in ("cells", "datasets", "bench", "plan.json", "mig_layouts.json", "not_run.txt", RAW):
        if (study / raw).exists():
            (made.folder / raw).symlink_to((study / raw).resolve())
    paths = "".join(f"results/{made.name}/{record}\n" for record in listed(study))
    (made.folder / "runs.txt").write_text(paths, encoding="utf-8")
    return made


def merge(made: Derivation) -> None:
    """MERGED and the telemetry. Raises NotDerived."""
    folder = made.folder.relative_to(made.there)
    of = ["--study", made.name, "--list", folder / "runs.txt", "--output"]
    _all(made, ["merge", *of, folder / MERGED[0]], ["telemetry", *of, folder / TELEMETRY])
    rules = ["--claims", CLAIMS, "--reported", REPORTED]
    _all(made, ["estimate", "--folder", folder, *rules])


def everything(made: Derivation) -> None:
    """All that there is. Raises NotDerived."""
    merge(made)
    folder = made.folder.relative_to(made.there)
    of = ["--folder", folder]
    explorer = ["explorer", *of, "--output", folder / EXPLORER]
    _all(made, ["pages", *of, "--claims", CLAIMS], ["figures", "data", *of], explorer)


def _all(made: Derivation, *commands: list) -> None:
    with ThreadPoolExecutor(PROCESSES) as pool:
        for _ in pool.map(lambda command: _run(made, command), commands):
            pass


def _run(made: Derivation, command: list) -> None:
    """One of analysis' commands, with paths relative to `there`."""
    line = [sys.executable, "-m", "analysis", *map(str, command)]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    about = {"cwd": made.there, "env": surroundings, "stdin": subprocess.DEVNULL, "text": True}
    try:
        done = subprocess.run(line, **about, capture_output=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NotDerived(f"analysis {command[0]} took more than {LIMIT_S:.0f} s") from None
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines() or [str(done.returncode)]
        raise NotDerived(f"analysis {command[0]}: {said[-1][:300]}")
