"""The data of all figures, and pictures of those whose data changed."""

from __future__ import annotations

from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from analysis.choose import on_cpu, update
from analysis.figures import against_n, appendix, draw, gains, mixes, reported
from analysis.figures.choose import Study
from analysis.figures.sheet import Sheet

ENDINGS = ("png", "pdf", "svg")
PROCESSES = 2
SHEETS = {
    "rate_against_n": against_n.rate,
    "gain_against_slowdown": gains.against_slowdown,
    "where_to_share": gains.where_to_share,
    "epoch_time": against_n.epoch_time,
    "gaps_and_overlap": gains.gaps_and_overlap,
    "activity": against_n.activity,
    "mixes_and_departures": mixes.sheet,
    "reported_against_measured": reported.sheet,
    "memory": appendix.memory,
    "repeatability": appendix.repeatability,
    "mps_against_host": appendix.against_host,
}


def write(folder: Path) -> list[Path]:
    """Write the data of figures that changed; those files. Raises OSError or ValueError."""
    study = Study.read(folder)
    texts = {name: _sheet(study, name).csv() for name in SHEETS}
    paths = {folder / "figures" / f"{name}.csv": text for name, text in texts.items()}
    return [path for path, text in paths.items() if update(path, text)]


def _sheet(study: Study, name: str) -> Sheet:
    """Of a study without a GPU each title says so: what is drawn is no finding."""
    sheet = SHEETS[name](study)
    for row in sheet.of("title") if on_cpu(study.t) else ():
        row["label"] = f"Tried out on a CPU, no result: {row['label']}"
    return sheet


def everything(folder: Path) -> list[str]:
    """Write all data, and draw each figure whose data or code are newer than its pictures.

    Returns the names of the figures drawn. Raises OSError or ValueError.
    """
    changed = {path.stem for path in write(folder)}
    code = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    tasks = []
    for name in SHEETS:
        pictures = [folder / "figures" / f"{name}.{ending}" for ending in ENDINGS]
        fresh = all(path.exists() and path.stat().st_mtime > code for path in pictures)
        if name in changed or not fresh:
            tasks.append((Sheet.read(folder / "figures" / f"{name}.csv"), pictures))
    with ProcessPoolExecutor(PROCESSES, get_context("fork")) as pool:
        for done in [pool.submit(draw.save, *task) for task in tasks]:
            done.result()
    return [pictures[0].stem for _, pictures in tasks]


def run(given: Namespace) -> str:
    """The command: says which figures were drawn."""
    if given.data_only:
        return f"written: {', '.join(path.name for path in write(given.folder)) or 'nothing'}"
    return f"drawn: {', '.join(everything(given.folder)) or 'nothing, all is as it was'}"
