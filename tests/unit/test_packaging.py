"""What is installed is said once, and the other places agree."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
INSTALL = (ROOT / "envs" / "install.sh").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def test_the_conda_environment_is_the_same():
    entries = yaml.safe_load((ROOT / "envs" / "environment.yaml").read_text())["dependencies"]
    [pip] = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["train"]]
    assert sorted(pip[1:]) == sorted(wanted) and pip[0] == "-c constraints.txt"


def test_every_requirement_is_pinned_once_and_nothing_names_a_host():
    lines = (ROOT / "envs" / "constraints.txt").read_text().split()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pins = {name(line): line for line in lines}
    assert len(pins) == len(lines)
    assert "uv" in pins and "install --quiet -c envs/constraints.txt uv" in INSTALL
    extras = PROJECT["optional-dependencies"].values()
    for requirement in [*PROJECT["dependencies"], *(r for extra in extras for r in extra)]:
        assert name(requirement) in pins, requirement


def test_torch_is_needed_by_the_training_jobs_only():
    assert not {"torch", "timm"} & {name(r) for r in PROJECT["dependencies"]}


def test_snakemakes_linter_misses_nothing_but_environments(tmp_path):
    """Which no rule has: jobs run under the Python that runs Snakemake."""
    command = [sys.executable, "-m", "snakemake", "--lint", "--config", "study=kick", "gpu=cpu"]
    surroundings = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True)
    found = set(re.findall(r"^    \* (.+?)\.?:$", run.stderr, re.M))
    assert found == {"Specify a conda environment or container for each rule"}, run.stderr
