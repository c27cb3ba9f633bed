"""Everything that analysis makes of a study's raw files, made anew in another folder.

By the modules that the workflow's rules call; of figures the data that they draw, but no image.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

from release.contents import listed

ROOT = Path(__file__).resolve().parents[1]
CLAIMS, REPORTED = ROOT / "config" / "claims.yaml", ROOT / "config" / "reported.csv"
RUNS, TELEMETRY, EXPLORER = "runs.parquet", "telemetry.parquet", "explorer.html"
LOADED = ("analysis.records.merge", "analysis.cells", "analysis.style", "analysis.tables.summary")
MERGED = (RUNS, "runs.csv", TELEMETRY)
PROCESSES = 2  # what a small machine has


class NotDerived(Exception):
    """One line: which part of analysis gave nothing, and what it said."""


@dataclass(frozen=True)
class Derivation:
    """A study's raw files seen from `there`, an empty folder that gets everything derived.

    There they have the paths that they had when the study was analysed, as texts tell some.
    """

    name: str
    there: Path

    @property
    def folder(self) -> Path:
        """Of what is derived, relative to `there`."""
        return Path("results", self.name)


def lay(study: Path, name: str, there: Path) -> Derivation:
    """Link a study's raw files into the folder. Raises OSError where the study has none."""
    made = Derivation(name, there)
    folder = there / made.folder
    folder.mkdir(parents=True)
    for raw in ("cells", "datasets", "bench", "plan.json", "mig_layouts.json"):
        if (study / raw).exists():
            (folder / raw).symlink_to((study / raw).resolve())
    paths = "".join(f"{(made.folder / record).as_posix()}\n" for record in listed(study))
    (folder / "runs.txt").write_text(paths, encoding="utf-8")
    return made


def everything(made: Derivation, only: Iterable[str] | None = None) -> None:
    """Derive all that there is, or what makes up these files, on PROCESSES cores.

    Raises NotDerived.
    """
    wanted = None if only is None else set(only)
    for module in LOADED:  # once, before the processes are forked
        import_module(module)
    with ProcessPoolExecutor(PROCESSES, get_context("fork")) as pool:
        first = [pool.submit(merge, made), pool.submit(merge_telemetry, made)]
        _all(first)
        rest = []
        if wanted is None or any(name.startswith("figures/") for name in wanted):
            rest.append(pool.submit(draw, made))
        explores = find_spec("altair") and find_spec("vl_convert")
        if explores and (wanted is None or EXPLORER in wanted):
            rest.append(pool.submit(explore, made))
        own = {*MERGED, EXPLORER}
        if wanted is None or any(not n.startswith("figures/") for n in wanted - own):
            rest.append(pool.submit(write_texts, made))
        _all(rest)


def _all(jobs: list[Future]) -> None:
    for job in jobs:
        job.result()


def merge(made: Derivation) -> None:
    """runs.parquet, runs.csv."""
    from analysis.records import merge

    of = ["--study", made.name, "--list", made.folder / "runs.txt"]
    _run(made, "merge", merge.main, [*of, "--output", made.folder / RUNS])


def merge_telemetry(made: Derivation) -> None:
    from analysis.records import telemetry

    of = ["--study", made.name, "--list", made.folder / "runs.txt"]
    _run(made, "merge_telemetry", telemetry.main, [*of, "--output", made.folder / TELEMETRY])


def write_texts(made: Derivation) -> None:
    """Tables, checks, claims, guidelines, and the pages made of them."""
    from analysis import pages

    of = ["--study", made.name, "--folder", made.folder, "--list", made.folder / "runs.txt"]
    _run(made, "pages", pages.main, [*of, "--claims", CLAIMS, "--reported", REPORTED])


def explore(made: Derivation) -> None:
    from analysis.explorer.__main__ import main

    of = ["--runs", made.folder / RUNS, "--expected", made.folder / "plan.json"]
    of += ["--telemetry", made.folder / TELEMETRY, "--reported", REPORTED]
    _run(made, "explorer", main, [*of, "--output", made.folder / EXPLORER])


def draw(made: Derivation) -> None:
    """figures/<figure>_<arm>.csv: what each figure draws, without drawing it."""

    def all_of_them(_: list[str]) -> int:
        from analysis import reported, style
        from analysis.cells import read_study
        from analysis.figures import stem, stems

        folder, layouts = made.folder, made.folder / "mig_layouts.json"
        study = read_study(folder / RUNS, folder / "plan.json")
        study = replace(
            study,
            telemetry=folder / TELEMETRY,
            reported=reported.read(REPORTED),
            mig_layouts=layouts if layouts.exists() else None,
        )
        (folder / "figures").mkdir()
        for name, arm in stems(study.arms()):
            figure, drawn = import_module(f"analysis.figures.{name}").draw(study, arm)
            style.close(figure)
            drawn.to_csv(folder / "figures" / f"{stem(name, arm)}.csv", index=False)
        return 0

    _run(made, "figures", all_of_them, [])


def _run(made: Derivation, what: str, main: Callable[[list[str]], int], arguments: list) -> None:
    """Call one of analysis' commands, which may read and write relative to `there`, in silence."""
    before, said = Path.cwd(), io.StringIO()
    os.chdir(made.there)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main([str(argument) for argument in arguments])
    except SystemExit as error:
        code = error.code
    except Exception as error:  # whatever altered files make of it, it is named
        raise NotDerived(f"{what}: {type(error).__name__}: {_line(str(error))}") from error
    finally:
        os.chdir(before)
    if code:
        raise NotDerived(f"{what}: {_line(said.getvalue()) or code}")


def _line(text: str) -> str:
    return " ".join(text.split())
