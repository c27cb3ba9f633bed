"""What stands around a study's numbers, in one process: environment, belief page, texts as pages.

    python -m analysis.web.explain --folder results/smoke

Reads what the merge and the tables have written there; analysis.pages ends with it. Each can be
written by itself, with the command of its module: environment, belief, readable.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ENVIRONMENT, BELIEF = "tables/environment.md", "belief.html"
# Texts and tables that the report shows: Markdown is no page for a browser.
TEXTS = ("claims.md", "guidelines.md")
TEXTS += tuple(
    f"tables/{name}.md"
    for name in ("summary", "pair", "prediction", "telemetry", "evidence", "variance", "sittings")
)
# Page → file.
READABLE = {Path(text).stem: f"report/{Path(text).stem}.html" for text in (*TEXTS, ENVIRONMENT)}
FILES = (ENVIRONMENT, BELIEF, *READABLE.values())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.web.explain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", required=True, type=Path, help="of the study")
    folder = parser.parse_args(argv).folder
    # Not above: the Snakefile reads FILES, and must not wait for pandas.
    from analysis.web import belief, environment, readable

    runs = ["--runs", folder / "runs.parquet"]
    checked = ["--checks", folder / "checks.json", "--evidence", folder / "tables/evidence.csv"]
    bench = ["--bench", folder / "bench"]
    texts = [folder / text for text in (*TEXTS, ENVIRONMENT)]
    for run, arguments in (
        (environment.main, [*runs, "--output", folder / ENVIRONMENT]),
        (belief.main, [*runs, *checked, *bench, "--output", folder / BELIEF]),
        (readable.main, ["--output", folder / "report", *texts]),
    ):
        if code := run([str(argument) for argument in arguments]):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
