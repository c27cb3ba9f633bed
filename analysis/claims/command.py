"""Does what the paper claims hold here? By rules that were fixed before the measurement.

python -m analysis.claims.command --runs results/h200/runs.parquet \\
    --expected results/h200/plan.json \\
    --claims config/claims.yaml --reported config/reported.csv --output results/h200/claims

Writes STEM.md (for people), STEM.csv (a row per number that a verdict rests on), STEM.json (all).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

from analysis import reported
from analysis.cells import read_expected, read_runs
from analysis.claims import page as claims_page
from analysis.claims.findings import Result
from analysis.claims.judge import gather, judge
from analysis.claims.rules import Claim, ClaimError, load
from analysis.views import views_of_runs

ARM = "faithful"
UNKNOWN = "unknown"


def results(
    claims: list[Claim], values: pd.DataFrame, runs: pd.DataFrame, expected: list[dict] = ()
) -> list[Result]:
    """Every claim's verdict; `values` as reported.read gives them, `runs` are rows of runs.parquet.

    Cells of one arm only are looked at.
    """
    evidence = gather(views_of_runs(runs, expected, ARM), values)
    return [judge(claim, evidence) for claim in claims]


def commit_of(path: Path) -> str:
    """Short hash of the file's last commit, and whether it was changed since; else 'unknown'."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(path.parent), *arguments, "--", path.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    found = git("log", "-1", "--format=%h")
    if not found:
        return UNKNOWN
    return f"{found}, changed since" if git("status", "--porcelain") else found


def head(runs: pd.DataFrame, claims: Path, values: Path) -> claims_page.Head:
    """What the page says of the study and the rules."""
    done = runs[runs["current"] & (runs["arm"] == ARM) & (runs["status"] == "completed")]
    pairs = done[["dataset", "source"]].dropna().drop_duplicates()
    return claims_page.Head(
        study=", ".join(sorted(runs["study"].dropna().unique())) or "without cells",
        hardware=tuple(sorted(done["hardware"].dropna().unique())),
        arm=ARM,
        replicates=int(done["block"].nunique()),
        sources=tuple(sorted(f"{d}: {s}" for d, s in pairs.itertuples(index=False))),
        rules=_shown(claims),
        commit=commit_of(claims),
        sha256=hashlib.sha256(claims.read_bytes()).hexdigest(),
        reported=_shown(values),
    )


def _shown(path: Path) -> str:
    """The file in its folder: where that stands is nobody's business."""
    return "/".join(path.resolve().parts[-2:])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.claims.command",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--expected", type=Path, metavar="CELLS.json", help="planned cells")
    parser.add_argument("--claims", required=True, type=Path, metavar="CLAIMS.yaml")
    parser.add_argument("--reported", required=True, type=Path, metavar="REPORTED.csv")
    parser.add_argument("--hardware", help="GPU model, where the study holds several")
    parser.add_argument("--output", required=True, type=Path, metavar="STEM")
    arguments = parser.parse_args(argv)
    try:
        claims, values = load(arguments.claims), reported.read(arguments.reported)
    except (ClaimError, reported.ReportedError) as error:
        sys.exit(str(error))
    runs = read_runs(arguments.runs)
    if arguments.hardware:
        # Cells that never got to a device have no hardware to be mixed up with.
        ran = runs["status"].isin(("completed", "out_of_memory"))
        runs = runs[(runs["hardware"] == arguments.hardware) | ~ran]
    found = results(claims, values, runs, read_expected(arguments.expected))
    about = head(runs, arguments.claims, arguments.reported)
    stem = arguments.output
    stem.parent.mkdir(parents=True, exist_ok=True)
    page = claims_page.markdown(found, about)
    stem.with_name(stem.name + ".md").write_text(page, encoding="utf-8")
    table = claims_page.csv_table(found, about)
    table.to_csv(stem.with_name(stem.name + ".csv"), index=False)
    everything = json.dumps(claims_page.as_json(found, about), indent=1, ensure_ascii=False)
    stem.with_name(stem.name + ".json").write_text(everything + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
