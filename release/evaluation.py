"""ARTIFACT.md: what an artefact evaluation asks for, from the study's own records.

Abstract, badges, requirements, getting started, and each claim with the figure or table that shows
it, the command that makes that, and the time that measuring its cells took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis.cells import read_runs
from analysis.claims.rules import Claim, Test, load
from analysis.figures import NAMES, stem, stems
from analysis.web import environment
from analysis.words import number_of
from release.cost import cost, of_figure
from release.derive import CLAIMS, RUNS
from release.findings import measured

# What shows a claim's number: quantity, or rule where it has none → figure, or table.
SHOWN = {
    "gain": "throughput_gain",
    "slowdown": "slowdown_map",
    "spread": "epoch_time",
    "reclaimed": "mixes",
    "gract": "activity",
    "smact": "activity",
    "gract_over_smact": "activity",
    "memory": "memory",
    "time": "tables/pair.md",
    "order": "throughput_gain",
    "saturates": "throughput_gain",
    "additive": "memory",
    "status": "epoch_time",
}
COMMAND = "make verify"  # makes all figures' data, tables and verdicts anew
MIXES = "mixes"  # and of sets of several workloads
BADGES = (
    ("Artifacts Available", "this archive, Apache-2.0, to be deposited with a DOI (.zenodo.json)"),
    ("Artifacts Evaluated - Functional", "`make verify`, `make figures`: no GPU is needed"),
    (
        "Artifacts Evaluated - Reusable",
        "README.md: workloads and studies of one's own; `make test`",
    ),
    ("Results Reproduced", "`make study` on a CUDA card, then `make compare`"),
)


@dataclass(frozen=True)
class Facts:
    """What the archive knows of itself: bytes of all of it and of the study, files, the root
    digest of the raw files, and the minutes that `make verify` took, rounded up.
    """

    study: str
    folder: str
    size: int
    study_size: int
    files: int
    root: str
    verify_minutes: int


def shown_by(test: Test) -> str:
    """The figure, or the table's file, in which the number of a test is seen."""
    name = SHOWN[getattr(test, "of", test.rule)]
    return MIXES if getattr(test, "mix", None) and name in NAMES and name != "memory" else name


def page(study: Path, facts: Facts, verdicts: dict) -> str:
    """The page; verdicts: claims.json of the study."""
    runs = read_runs(study / RUNS)
    parts = [_head(study, runs, facts), _start(facts), _claims(runs, facts, verdicts)]
    return "\n\n".join([*parts, _figures(study, runs, facts), _anew(runs, facts)]) + "\n"


def _head(study: Path, runs: pd.DataFrame, facts: Facts) -> str:
    told = environment.values(runs)
    measured_with = ("driver", "torch", "timm", "Python", "data")
    rows = [(what, ", ".join(told[what])) for what in measured_with if what in told]
    with_what = tabulate(rows, ("measured with", "value"), "github", disable_numparse=True)
    badges = tabulate(BADGES, ("badge", "on what it rests"), "github")
    return f"""# Artifact: an analysis of collocation on GPUs, study {facts.study}

## Abstract

Code, raw measurements and derived results of a study of training jobs that share one NVIDIA GPU:
as plain processes, under MPS and, where the card's settings allow it, in MIG instances. It builds
anew the study of Robroek, Yousefzadeh-Asl-Miandoab and Tözün (EuroMLSys'24,
doi:10.1145/3642970.3655827). Every table, figure and verdict can be made again from the raw files
without a GPU, and `make verify` compares each value.

{measured(runs, study)}

## Badges asked for

{badges}

## Requirements

- Software: Python 3.11 or newer and make; the packages of `envs/constraints.txt`, which `make`
  installs into `.venv` (by pip, from a package index). No torch for all that needs no GPU.
- Hardware: none for verifying and drawing; to measure anew, Linux and an NVIDIA GPU. Cells whose
  method the card or its settings do not allow end as `unsupported`, with the reason.
- Disk: {_mb(facts.size)} unpacked, {facts.files} files, of which the study's results are
  {_mb(facts.study_size)}. What `make` installs takes 0.8 GB more; with torch, which only measuring
  and tests need, 2 GB.
- Data: none are shipped or needed for verifying. Which data were used is said below;
  `source=real` refuses to generate any.

{with_what}"""


def _start(facts: Facts) -> str:
    took = number_of(facts.verify_minutes, "minute")
    commands = (
        ("sha256sum --quiet -c MANIFEST.sha256", "every file is as it was packed"),
        (f"make verify STUDY={facts.study}", "all results follow from the raw files"),
        (f"rm -r {facts.folder}/figures", "figures that are there are kept"),
        (f"make figures STUDY={facts.study}", "draws them again; plans no GPU job"),
    )
    longest = max(len(command) for command, _ in commands)
    lines = "\n".join(f"{command:<{longest}}   # {why}" for command, why in commands)
    return f"""## Getting started

```
{lines}
```

`make verify` makes everything anew beside what is there, prints a line for each artefact and ends
with an error if a value differs. It took less than {took} when this archive was made, and drawing
all figures takes about as long; before, the first `make` installs for a minute or two. `make test`
runs the whole test suite. The digest of the list of raw files, `{facts.folder}/raw.csv`, is
`{facts.root}`."""


def _claims(runs: pd.DataFrame, facts: Facts, verdicts: dict) -> str:
    found = {claim["id"]: claim for claim in verdicts["claims"]}
    rows = [_claim(claim, found[claim.id], runs, facts) for claim in load(CLAIMS)]
    table = tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)
    return f"""## Claims

Rules: `config/claims.yaml`, fixed before measuring. Verdicts with intervals:
`{facts.folder}/claims.md`. `make verify` makes each number and verdict anew and compares it with
the file named; `make figures STUDY={facts.study}` draws it. `measuring` is the time that the cells
it looks at took in this study, and `-` where none was measured.

{table}"""


def _claim(claim: Claim, verdict: dict, runs: pd.DataFrame, facts: Facts) -> dict:
    cells = {cell for finding in verdict["findings"] for cell in finding["cells"]}
    shown = dict.fromkeys(_file(shown_by(test), claim.arm) for test in claim.tests)
    return {
        "claim": claim.id,
        "what is claimed": claim.text,
        "verdict": verdict["verdict"],
        "shown by": ", ".join(f"`{file}`" for file in shown),
        "command": f"`{COMMAND}`",
        "measuring (min)": _minutes(cost(runs, cells)) if cells else "-",
    }


def _file(shown: str, arm: str) -> str:
    return f"figures/{stem(shown, arm)}" if shown in NAMES else shown


def _figures(study: Path, runs: pd.DataFrame, facts: Facts) -> str:
    arms = sorted(runs["arm"].dropna().unique())
    rows = []
    for name, arm in stems(arms):
        module = import_module(f"analysis.figures.{name}")
        took = of_figure(study, name, arm, runs)
        minutes = _minutes(took.minutes) + ("" if took.own else " (all of its arm)")
        rows.append((f"`figures/{stem(name, arm)}`", module.TITLE, arm or "all", minutes))
    head = ("file (pdf, png; csv: what is drawn)", "figure", "arm", "measuring (min)")
    table = tabulate(rows, head, "github", disable_numparse=True)
    return f"""## Figures

All by `make figures STUDY={facts.study}`. `make report` makes one page of figures, tables and
claims; `{facts.folder}/explorer.html` shows the study in a browser, offline. `measuring` is the
time of the cells that a figure draws, and of those alone that they are normalised by.

{table}"""


def _anew(runs: pd.DataFrame, facts: Facts) -> str:
    return f"""## Measuring anew

`make study STUDY=kick` tries everything on a card, `make study STUDY=paper` measures; results
land in `results/<study>`, and `make compare A={facts.folder} B=results/paper` sets them beside
these. The cells of this study took {_minutes(cost(runs))} minutes in all. `make contribute
STUDY=paper OUT=bundle.tar.gz` makes an anonymised bundle of a study measured elsewhere."""


def _minutes(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _mb(size: int) -> str:
    return f"{math.ceil(size / 1e5) / 10:.1f} MB"
