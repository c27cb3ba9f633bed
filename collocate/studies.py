"""Options that commands about a study have in common, and the config that they make."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collocate import ROOT
from collocate.app import Mistyped
from collocate.terminal import complain

if TYPE_CHECKING:
    from workflow.collocation.study.definition import Config

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
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="such as gpu=1: a key of config/config.yaml; may be repeated",
    ),
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
    study: str, settings: Sequence[str] | None, results: Path | None, **keys: object
) -> list[str]:
    """The words `key=value` that configure a study, for Snakemake and for planning.

    settings: of --set. keys: further keys of config.yaml; an empty value leaves its key out. Paths
    become absolute. Raises Mistyped for a setting that is no KEY=VALUE.
    """
    from workflow.collocation.study.load import as_yaml

    words = [f"study={as_yaml(study)}"]
    words += [f"{key}={as_yaml(value)}" for key, value in keys.items() if value != ""]
    words += setting_pairs(settings)
    if results is not None:
        words.append(f"results={as_yaml(str(results.expanduser().resolve()))}")
    return words


def setting_pairs(settings: Sequence[str] | None) -> list[str]:
    """The words of --set, with absolute paths. Raises Mistyped for one that is no KEY=VALUE."""
    from workflow.collocation.study.load import as_yaml

    words = []
    for word in settings or []:
        key, separator, value = word.partition("=")
        if not separator or not re.fullmatch(r"\w+", key):
            raise Mistyped(f"--set {word}: give KEY=VALUE, a key of config/config.yaml")
        path = Path(value).expanduser()
        if key in PATHS and (key == "results" or path.exists()):
            word = f"{key}={as_yaml(str(path.resolve()))}"
        words.append(word)
    return words


def warn_if_outdated(folder: Path) -> None:
    """Say on stderr how many measurements are newer than a study's published numbers."""
    from workflow.collocation.study.layout import MANIFEST, RUN

    if (folder / MANIFEST).exists():  # a clone sets all times of a sealed study anew
        return
    written = (folder / "estimates.parquet").stat().st_mtime
    records = folder.glob(f"cells/*/*/*/*/*/{RUN}")
    if newer := sum(path.stat().st_mtime > written for path in records):
        complain(f"{newer} measurements are newer than these numbers: collocate figures first")


def number_of_gpus(gpus: str) -> int:
    """The number that --gpus means. Raises Mistyped for what is none."""
    if gpus == "all":
        return 1000  # more than a machine or a cluster has
    if not gpus.isdecimal() or int(gpus) < 1:
        raise Mistyped(f"--gpus {gpus}: allowed: all, 1 or more")
    return int(gpus)


def checked(words: list[str]) -> list[str]:
    """The same `key=value` words, once the config that they make is valid. Raises ConfigError.

    From here on the clone is the working directory: relative paths in config.yaml are its own.
    """
    _checked_config(words)
    return words


def to_draw(study: str, settings: Sequence[str] | None, results: Path | None) -> list[str]:
    """The `key=value` words of a run that draws and measures nothing.

    Raises ConfigError, and Mistyped if the study has no results.
    """
    words = config(study, settings, results, measure=False)
    values = _checked_config(words)
    folder = Path(values.results, values.study)
    if values.study != AUTO and not (folder / "cells").exists():
        from analysis.files import no_study

        raise Mistyped(no_study(folder, "cells"))
    return words


def _checked_config(words: list[str]) -> "Config":
    """The valid config of these words. Its study is looked at, too, if it has a name."""
    from workflow.collocation.study.load import (
        find_config_file,
        load_config,
        load_study,
        load_workloads,
        read_config_values,
    )

    os.chdir(ROOT)
    values = load_config(read_config_values(words))
    if values.study != AUTO:
        workloads = load_workloads(find_config_file(values.workloads))
        load_study(find_config_file(values.studies), values.study, workloads)
    return values


def run_snakemake(words: Sequence[str], *arguments: str, gpus: int | None = None) -> None:
    """Become Snakemake in the clone; this never returns.

    words: the config. gpus: how many to use at once; by default as the profile says.
    """
    command = [sys.executable, "-m", "workflow.collocation.plan.terminal", "snakemake"]
    command += ["--cores", "all", "--resources", f"gpu={gpus}"] if gpus else []
    command += ["--config", *words]
    os.chdir(ROOT)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    sys.stdout.flush()
    os.execv(sys.executable, [*command, *arguments])
