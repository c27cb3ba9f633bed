"""Everything that analysis makes of a study's raw files, made anew in another folder.

By the commands that the workflow's rules call; of figures the data that they draw, but no image.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from release.manifest import NOT_RUN, PLAN, RUNS, listed, never_ships, study_name, write_lines

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = ROOT / "config" / "claims.yaml"
PROCESSES = 2  # as many as a small machine has cores
LIMIT_S = 900


def lay(study: Path, there: Path) -> Path:
    """Link a study's raw files into a folder below `there`, and say which.

    Below it they have the paths that they had when the study was analysed, as texts tell some.
    """
    folder = there / "results" / study_name(study)
    folder.mkdir(parents=True)
    for raw in ("cells", "datasets", "bench"):
        if (study / raw).exists():
            (folder / raw).symlink_to((study / raw).resolve())
    for raw in (PLAN, "mig_layouts.json", NOT_RUN, "raw.sha256"):  # links are not read
        if (study / raw).exists():
            shutil.copyfile(study / raw, folder / raw)
    write_lines(folder / RUNS, (f"results/{folder.name}/{record}" for record in listed(study)))
    return folder


def derive(folder: Path) -> None:
    """Make everything in the folder. Raises ValueError."""
    here = Path("results", folder.name)
    of = ["--study", folder.name, "--list", here / RUNS, "--output"]
    of_study = ["--folder", here]
    merge = ["merge", *of, here / "runs.parquet"]
    _run(folder, merge, ["telemetry", *of, here / "telemetry.parquet"])
    _run(folder, ["estimate", *of_study])
    _run(folder, ["figures", "--data-only", *of_study])
    explorer = ["explorer", *of_study, "--output", here / "explorer.html"]
    _run(folder, ["pages", *of_study], explorer)


def made(folder: Path) -> list[str]:
    """The files that were made in a folder that `lay` laid, whose raw ones are links."""
    links = ("cells", "datasets", "bench")
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    names = (path.relative_to(folder).as_posix() for path in paths)
    return sorted(n for n in names if n.partition("/")[0] not in links and not never_ships(n))


def _run(folder: Path, *commands: list) -> None:
    """Commands of analysis at once, with paths relative to the folder that holds results/."""
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    about = {"cwd": folder.parents[1], "env": surroundings, "timeout": LIMIT_S}
    about |= {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}

    def run(command: list) -> None:
        line = [sys.executable, "-m", "analysis", *map(str, command)]
        try:
            done = subprocess.run(line, check=False, **about)
        except subprocess.TimeoutExpired:
            raise ValueError(f"analysis {command[0]} took more than {LIMIT_S} s") from None
        if done.returncode:
            said = (done.stderr + done.stdout).strip().splitlines() or [str(done.returncode)]
            raise ValueError(f"analysis {command[0]}: {said[-1][:300]}")

    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(run, commands))
