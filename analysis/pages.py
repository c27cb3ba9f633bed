"""All tables, checks, claims, guidelines, and the pages around them, of a study, in one process.

    python -m analysis.pages --study smoke --folder results/smoke --list results/smoke/runs.txt

Loading the libraries takes longer than writing any of these. Each can be written by itself, with
the command of its module.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path

from analysis.web import explain

FILES = (
    "checks.json",
    *("claims.md", "claims.csv", "claims.json"),
    *("guidelines.md", "guidelines.csv"),
    *(
        f"tables/{name}.{ending}"
        for name in (
            *("summary", "telemetry", "evidence"),
            *("variance", "sittings", "pair", "prediction"),
        )
        for ending in ("csv", "md")
    ),
    "tables/pair.tex",
    "tables/summary.txt",
    *explain.FILES,
)
# What to open when a study has run.
_NEXT = {"figures": "figures", "summary": "tables/summary.md", "claims": "claims.md"}
_NEXT |= {"explorer": "explorer.html", "why to believe it": explain.BELIEF}


def commands(
    study: str, folder: Path, listed: Path, rules: Path, reported: Path
) -> list[tuple[Callable[[list[str]], int], list]]:
    """Each module's main with its arguments; `folder` is the study's, with runs.parquet in it."""
    # Not above: the Snakefile reads FILES, and must not wait for pandas.
    from analysis.claims import command as claims
    from analysis.guidelines import page as guidelines
    from analysis.tables import checks, pair_table, prediction, sittings, variance
    from analysis.tables import summary as tables

    drawn = ["--runs", folder / "runs.parquet", "--expected", folder / "plan.json"]
    beside = [*drawn, "--reported", reported]
    of_tables = folder / "tables"
    activity = of_tables / "telemetry"
    work = ["--study", study, "--list", listed, "--output", folder / "checks.json"]
    return [
        (tables.main, [*drawn, "--output", of_tables / "summary", "--telemetry", activity]),
        (checks.main, [*work, "--evidence", of_tables / "evidence"]),
        (variance.main, [*drawn[:2], "--output", of_tables / "variance"]),
        (sittings.main, [*drawn[:2], "--output", of_tables / "sittings"]),
        (pair_table.main, [*beside, "--output", of_tables / "pair"]),
        (prediction.main, [*drawn, "--output", of_tables / "prediction"]),
        (claims.main, [*beside, "--claims", rules, "--output", folder / "claims"]),
        (guidelines.main, [*drawn, "--output", folder / "guidelines"]),
        (explain.main, ["--folder", folder]),
    ]


def closing(folder: Path) -> str:
    """What a run ends with: the summary, if it is of the runs there, and where to look next.

    `folder` is the study's; paths are told as seen from here.
    """
    summary, runs = folder / "tables/summary.txt", folder / "runs.parquet"
    told = []
    if _follows(summary, runs):
        told.append(summary.read_text(encoding="utf-8").rstrip())
    here = Path.cwd()
    if folder.is_absolute() and folder.is_relative_to(here):
        folder = folder.relative_to(here)
    told += [f"{name}: {folder / path}" for name, path in _NEXT.items() if (folder / path).exists()]
    report = folder / "report.html"
    if _follows(report, runs):
        told.append(f"report: {report} and {report.with_suffix('.zip')}")
    return "\n".join(told)


def _follows(page: Path, runs: Path) -> bool:
    """Whether the page is there, and of the runs there."""
    return page.exists() and runs.exists() and page.stat().st_mtime >= runs.stat().st_mtime


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--study", required=True)
    parser.add_argument("--folder", required=True, type=Path, help="with runs.parquet, plan.json")
    parser.add_argument("--list", required=True, type=Path, metavar="FILE", help="the records")
    parser.add_argument("--claims", type=Path, default=Path("config/claims.yaml"))
    parser.add_argument("--reported", type=Path, default=Path("config/reported.csv"))
    given = parser.parse_args(argv)
    for run, arguments in commands(
        given.study, given.folder, given.list, given.claims, given.reported
    ):
        if code := run([str(argument) for argument in arguments]):
            return code
    return 0


if __name__ == "__main__":
    gc.disable()  # little is garbage before the end, and looking for it takes a tenth of the time
    sys.exit(main())
