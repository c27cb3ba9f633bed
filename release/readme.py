"""The measured parts of README.md, from a shipped study: what was found, how far to trust it.

python -m release.readme results/h200            # writes them between their marks in README.md
python -m release.readme results/h200 --check    # 1 if they are others than README.md holds

A part stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`. No number of a measurement is
typed into README.md anywhere else but under "In short", which tests/test_readme.py holds against
the shipped tables.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from tabulate import tabulate

from analysis.cells import read_runs
from analysis.figures import stem, stems
from analysis.words import fixed
from release import compare, findings
from release.contents import LEDGER, MANIFEST
from release.cost import cost, of_figure
from release.findings import folded

ROOT = Path(__file__).resolve().parents[1]
UNKNOWN = "*What monitoring costs was not measured with the study that ships.*"
NOTHING = "*No study is shipped yet: `make study` measures one, and `make readme` fills this in.*"
_OF = re.compile(r"\]\((\S+)/" + re.escape(LEDGER) + r"\): `[0-9a-f]{64}`")


class ReadmeError(ValueError):
    """README.md that lacks a mark, as a sentence."""


# -- instruments -----------------------------------------------------------------------------------


def instruments(study: Path, link: str) -> str:
    """What SMACT reads of known loads, and what sampling costs."""
    lines = []
    if found := _json(study / "bench" / "smact.json"):
        pairs = [
            f"{row['busy_sms']} of {row['sm_count']} SMs busy "
            f"({row['busy_sms'] / row['sm_count']:.4f}), SMACT {row['smact']:.4f}"
            for row in found["readings"]
        ]
        lines.append(f"- Calibrated on an {found['device']['name']}: {'; '.join(pairs)}.")
    if found := _json(study / "bench" / "sampler.json"):
        for workload, own in found["workloads"].items():
            costs = [_cost(monitor, values) for monitor, values in own["costs"].items()]
            lines.append(f"- What monitoring costs {workload}: {'; '.join(costs)}.")
    where = f"From {link}/bench.\n\n" if lines else ""
    return where + "\n".join(lines) if lines else UNKNOWN


def _cost(monitor: str, found: dict) -> str:
    name = {"ours": "our sampler at 10 Hz", "smi": "`nvidia-smi -l 1`"}.get(monitor, monitor)
    interval = "" if found["low"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
    return f"{name} {found['loss_percent']:.2f} %{interval} of throughput"


def _json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# -- time ------------------------------------------------------------------------------------------


def times(study: Path, link: str) -> str:
    """GPU time behind each figure, which is also wall time: one cell at a time has the GPU."""
    runs = read_runs(study / "runs.parquet")
    rows = []
    for name, arm in stems(sorted(runs["arm"].dropna().unique())):
        took = of_figure(study, name, arm, runs)
        minutes = fixed(took.minutes, 0) + ("" if took.own else " (all of its arm)")
        rows.append((f"[{stem(name, arm)}]({link}/figures/{stem(name, arm)}.pdf)", minutes))
    table = tabulate(rows, ("figure", "minutes on the GPU"), "github", disable_numparse=True)
    return (
        "One cell at a time has the GPU, so its time is wall time. A figure's is that of the cells "
        "it draws and of those alone that they are normalised by; a cell is measured once for all "
        f"figures: in all {fixed(cost(runs), 0)} minutes, without the anchors of sittings.\n\n"
        f"{folded('By figure', table)}"
    )


PARTS: dict[str, Callable[[Path, str], str]] = {
    "findings": findings.text,
    "instruments": instruments,
    "times": times,
}


def fill(text: str, study: Path | None, link: str) -> str:
    """README's text with its parts; study: the shipped one's folder, if there is one.

    Raises ReadmeError where a mark is missing.
    """
    for name, make in PARTS.items():
        start, end = _place(text, name)
        text = text[:start] + (make(study, link) if study else NOTHING) + text[end:]
    return text


def _place(text: str, name: str) -> tuple[int, int]:
    """Where a part stands. Raises ReadmeError where it has no marks."""
    begin, end = (f"<!-- {name}: {mark} -->" for mark in ("begin", "end"))
    found = re.search(f"{re.escape(begin)}\n(.*?)\n{re.escape(end)}", text, re.DOTALL)
    if found is None:
        raise ReadmeError(f"README.md: no part '{begin}' to '{end}'")
    return found.span(1)


def is_filled(text: str) -> bool:
    """Whether README's parts are those of a study. Raises ReadmeError where a mark is missing."""
    return text != fill(text, None, "")


def named(text: str) -> str:
    """The folder of the study that README's findings say they are of; empty where they name none.

    Raises ReadmeError where a mark is missing.
    """
    start, end = _place(text, "findings")
    found = _OF.search(text[start:end])
    return found[1] if found else ""


def differences(text: str, study: Path, link: str) -> list[str]:
    """Sentences: lines of README's parts that the study does not give. Raises ReadmeError."""
    said = []
    for name, make in PARTS.items():
        start, end = _place(text, name)
        lines = compare.texts(text[start:end], make(study, link))
        said += [f"{name}, {line}" for line in islice(lines, compare.MOST)]
    return said


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m release.readme",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", type=Path, help="the shipped study's folder")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if parts differ")
    given = parser.parse_args(argv)
    if not given.check and not (given.study / MANIFEST).exists():
        sys.exit(f"{given.study} is no study that ships: it has no {MANIFEST} (make seal)")
    there = given.study if (given.study / "runs.parquet").exists() else None
    text = given.readme.read_text(encoding="utf-8")
    try:
        filled = fill(text, there, given.study.as_posix().rstrip("/"))
    except ReadmeError as error:
        sys.exit(str(error))
    if given.check:
        if filled != text:
            print("README.md: its measured parts are not the study's; run `make readme`")
        return int(filled != text)
    given.readme.write_text(filled, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
