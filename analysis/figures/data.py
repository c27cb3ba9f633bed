"""The data stage: figures/<name>.csv of all figures, each file only if its content changes."""

from __future__ import annotations

from pathlib import Path

from analysis.choose import update
from analysis.figures import APPENDIX, NAMES, against_n, appendix, gains, mixes, reported
from analysis.figures.choose import Study

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
}


def write(folder: Path) -> list[Path]:
    """Write what changed; returns those files. Raises OSError or ValueError."""
    study = Study.read(folder)
    texts = {name: SHEETS[name](study).csv() for name in (*NAMES, *APPENDIX)}
    paths = {folder / "figures" / f"{name}.csv": text for name, text in texts.items()}
    return [path for path, text in paths.items() if update(path, text)]
