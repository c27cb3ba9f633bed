"""Draw figures from a merged study: one file set per figure and arm, arms never share a figure.

    python -m analysis.figures all --runs results/smoke/runs.parquet --output results/smoke/figures
    python -m analysis.figures epoch_time --runs ... --arm faithful --output STEM
    python -m analysis.figures timeline --runs ... --cell SCENARIO/ARM/METHOD/r1 --output STEM

With `all`, --output is a folder that gets <figure>_<arm>.{png,pdf,svg,csv}, and drawn.json, by
which a figure that is given the same is not made again, nor one that shows the same written again;
with one figure it is a stem.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # looking for garbage while libraries load takes a fifth of that time

import argparse
import hashlib
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import matplotlib.text
from matplotlib.figure import Figure

from analysis import code, reported, style
from analysis.cells import Study, read_study
from analysis.figures import NAMES, inputs, stem, stems

PROCESSES = 2  # what a small machine has; more would only hold more of the study in memory
DRAWN = "drawn.json"
_LIBRARIES = ("matplotlib", "numpy", "pandas", "typst")
_study: Study | None = None  # of this process and those forked from it


def content(figure: Figure, table: str, by: str) -> str:
    """A digest of all that a figure shows: its data, its words, and the code that drew it."""
    words = [text.get_text() for text in figure.findobj(matplotlib.text.Text)]
    return hashlib.sha256(json.dumps([table, words, by]).encode()).hexdigest()[:16]


def drawn_by() -> str:
    """A digest of the package and of the libraries that choose and draw."""
    made = [code.digest(), *(version(name) for name in _LIBRARIES)]
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()[:16]


def draw_one(
    name: str, arm: str | None, target: Path, known: str | None, by: str, **options
) -> tuple[str, list[Path]]:
    """Draw into TARGET.{png,…} unless that shows `known` already; its content, files written."""
    given = inputs.seen(_study, name, arm)
    figure, drawn = import_module(f"analysis.figures.{name}").draw(given, arm, **options)
    table = drawn.to_csv(index=False)
    found = content(figure, table, by)
    if found == known:
        style.close(figure)
        return found, []
    return found, style.save(figure, target, table)


def draw_all(folder: Path, arms: list[str]) -> list[Path]:
    """Draw what has changed; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    note, by = folder / DRAWN, drawn_by()
    # Figure → digests of what it was given, and of what it shows.
    known = json.loads(note.read_text()) if note.exists() else {}
    known = {
        name: digests
        for name, digests in known.items()
        if isinstance(digests, list) and all(path.exists() for path in style.files(folder / name))
    }
    given = {
        stem(*task): digest and f"{digest}-{by}"
        for task, digest in inputs.digests(_study, stems(arms)).items()
    }
    # Forked, so that none loads libraries and study anew; the longest first.
    workers = min(PROCESSES, os.cpu_count() or 1)
    # What a figure is made of lives until it is saved: collecting takes a tenth of the time.
    with ProcessPoolExecutor(workers, get_context("fork"), initializer=gc.disable) as pool:
        jobs = {}
        for task in stems(arms):
            name = stem(*task)
            before, shown = known.get(name, (None, None))
            if before is None or before != given[name]:
                jobs[name] = pool.submit(draw_one, *task, folder / name, shown, by)
        results = {name: job.result() for name, job in jobs.items()}
    found = known | {name: (given[name], shown) for name, (shown, _) in results.items()}
    note.write_text(json.dumps({name: found[name] for name in given}, indent=1))
    return [path for _, written in results.values() for path in written]


def main(argv: list[str] | None = None) -> int:
    global _study
    parser = argparse.ArgumentParser(
        prog="python -m analysis.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=["all", *NAMES], help="which figure")
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--expected", type=Path, metavar="CELLS.json", help="planned cells")
    parser.add_argument("--telemetry", type=Path, metavar="TELEMETRY.parquet")
    parser.add_argument("--reported", type=Path, metavar="REPORTED.csv", help="the paper's values")
    parser.add_argument("--mig-layouts", type=Path, metavar="LAYOUTS.json", help="if it is there")
    parser.add_argument("--arm", help="only this; default: all, of one figure the first")
    parser.add_argument("--cell", help="of the timeline: which cell")
    parser.add_argument("--hardware", help="GPU model to draw, where the study holds several")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER|STEM")
    arguments = parser.parse_args(argv)

    study = read_study(arguments.runs, arguments.expected, arguments.hardware)
    papers = reported.read(arguments.reported) if arguments.reported else None
    layouts = arguments.mig_layouts
    layouts = layouts if layouts and layouts.exists() else None
    study = inputs.plain(study)
    _study = replace(study, telemetry=arguments.telemetry, reported=papers, mig_layouts=layouts)
    arms = [arguments.arm] if arguments.arm else study.arms()
    if not arms:
        sys.stderr.write(f"nothing to draw: {arguments.runs} holds no cells\n")
        return 0
    if arguments.name == "all":
        written = draw_all(arguments.output, arms)
    else:
        arm = next(arm for name, arm in stems(arms) if name == arguments.name)
        options = {"cell": arguments.cell} if arguments.cell else {}
        target = arguments.output.with_name(stem(arguments.output.name, arm))
        written = draw_one(arguments.name, arm, target, None, "", **options)[1]
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
