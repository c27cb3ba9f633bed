"""Options that commands about a study have in common, and what is made of them."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from collocate import ROOT
from collocate.app import Mistyped
from collocate.terminal import complain

PATHS = ("workloads", "studies", "results", "data")  # keys of config.yaml that hold a path
AUTO = "auto"


def names_of_studies() -> list[str]:
    """For completion: every study that has a file."""
    return sorted(path.stem for path in (ROOT / "config" / "studies").glob("*.yaml"))


def names_of_results() -> list[str]:
    """For completion: every study that has results in the clone."""
    return sorted(path.parent.name for path in (ROOT / "results").glob("*/cells"))


Name = Annotated[
    str,
    typer.Argument(
        metavar="[STUDY]",
        help="of config/studies; auto: 'paper' with an NVIDIA GPU, else 'smoke'",
        autocompletion=names_of_studies,
    ),
]
Measured = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="a study with results: its name, or its folder",
        autocompletion=names_of_results,
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", show_default="results/ of the clone", help="where results are"),
]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="a key of config/config.yaml; may be repeated"),
]
Budget = Annotated[str, typer.Option(metavar="TIME", help="only what fits into 90s, 25m or 2h")]
Gpus = Annotated[
    str, typer.Option(metavar="N", help="how many GPUs to use at once: a number, or all")
]


def folder_of(study: str, results: Path | None) -> Path:
    """The folder of a study that has results. Raises Mistyped with those that have."""
    folder = Path(study)
    if os.sep not in study and not study.startswith("."):
        folder = (results.expanduser() if results else ROOT / "results") / study
    if not folder.is_dir():
        from analysis.files import no_study

        raise Mistyped(no_study(folder, "cells"))
    return folder


def config(
    study: str, settings: Sequence[str], results: Path | None, budget: str = "", **more: object
) -> list[str]:
    """`key=value` words for Snakemake's --config and for planning; paths are absolute.

    more: further keys of config.yaml. Raises Mistyped for what is no key=value.
    """
    from workflow.collocation.study.load import as_yaml

    words = [f"study={as_yaml(study)}"]
    words += [f"{key}={as_yaml(value)}" for key, value in more.items()]
    words += [f"budget={as_yaml(budget)}"] if budget else []
    words += pairs(settings)
    if results is not None:
        words.append(f"results={as_yaml(str(results.expanduser().resolve()))}")
    return words


def pairs(settings: Sequence[str]) -> list[str]:
    """What --set gave, as `key=value` words; paths are absolute. Raises Mistyped."""
    from workflow.collocation.study.load import as_yaml

    words = []
    for word in settings:
        key, separator, value = word.partition("=")
        if not separator or not re.fullmatch(r"\w+", key):
            raise Mistyped(f"--set {word}: give KEY=VALUE, a key of config/config.yaml")
        here = Path(value).expanduser()
        if key in PATHS and (key == "results" or here.exists()):
            word = f"{key}={as_yaml(str(here.resolve()))}"
        words.append(word)
    return words


def warn_if_outdated(folder: Path) -> None:
    """Say on stderr how many measurements are newer than a study's published numbers."""
    from workflow.collocation.study.layout import MANIFEST

    if (folder / MANIFEST).exists():  # of which a clone sets all times anew
        return
    written = (folder / "estimates.parquet").stat().st_mtime
    records = folder.glob("cells/*/*/*/*/*/run.json")
    if newer := sum(path.stat().st_mtime > written for path in records):
        complain(f"{newer} measurements are newer than these numbers: collocate figures first")


def number_of_gpus(gpus: str) -> int:
    """`2` or `all`, of which there are never more than 1,000. Raises Mistyped."""
    if gpus == "all":
        return 1000
    if not gpus.isdecimal() or int(gpus) < 1:
        raise Mistyped(f"--gpus {gpus}: allowed: all, 1 or more")
    return int(gpus)


def checked(words: Sequence[str]) -> list[str]:
    """The words, once the config that they make is valid. Raises ConfigError.

    From here on the clone is the working directory: relative paths in config.yaml are its own.
    """
    from workflow.collocation.study.load import (
        find_config_file,
        load_config,
        load_study,
        load_workloads,
        read_config_values,
    )

    os.chdir(ROOT)
    values = load_config(read_config_values(list(words)))
    if values.study != AUTO:
        workloads = load_workloads(find_config_file(values.workloads))
        load_study(find_config_file(values.studies), values.study, workloads)
    return list(words)


def run_snakemake(words: Sequence[str], *arguments: str, gpus: int | None = None) -> None:
    """Become Snakemake in the clone, with this config; it never returns.

    gpus: at most so many at once; Snakemake's profile has one.
    """
    command = [sys.executable, "-m", "workflow.collocation.plan.terminal", "snakemake"]
    command += ["--cores", "all", "--resources", f"gpu={gpus}"] if gpus else []
    command += ["--config", *words]
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    sys.stdout.flush()
    os.execv(sys.executable, [*command, *arguments])
