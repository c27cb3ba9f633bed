"""All tables, checks, claims and guidelines of a study, in one process.

    python -m analysis.pages --study smoke --folder results/smoke --list results/smoke/runs.txt

Loading the libraries takes longer than writing any of these. Each can be written by itself, with
the command of its module.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

FILES = (
    "checks.json",
    *("claims.md", "claims.csv", "claims.json"),
    *("guidelines.md", "guidelines.csv"),
    *(
        f"tables/{name}.{ending}"
        for name in ("summary", "telemetry", "evidence", "variance", "pair", "prediction")
        for ending in ("csv", "md")
    ),
    "tables/pair.tex",
)


def commands(
    study: str, folder: Path, listed: Path, rules: Path, reported: Path
) -> list[tuple[Callable[[list[str]], int], list]]:
    """Each module's main with its arguments; `folder` is the study's, with runs.parquet in it."""
    # Not above: the Snakefile reads FILES, and must not wait for pandas.
    from analysis.claims import command as claims
    from analysis.guidelines import page as guidelines
    from analysis.tables import checks, pair_table, prediction, variance
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
        (pair_table.main, [*beside, "--output", of_tables / "pair"]),
        (prediction.main, [*drawn, "--output", of_tables / "prediction"]),
        (claims.main, [*beside, "--claims", rules, "--output", folder / "claims"]),
        (guidelines.main, [*drawn, "--output", folder / "guidelines"]),
    ]


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
    sys.exit(main())
