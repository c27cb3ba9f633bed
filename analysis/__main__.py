"""What is made of a study's records: python -m analysis COMMAND --help

  merge       run.json files → runs.parquet
  telemetry   gpu.parquet files → telemetry.parquet
  estimate    runs.parquet → estimates.parquet: every published number, once
  explain     the cells, baselines and arithmetic behind a number
  figures     the data of all figures, or one figure from its data
  pages       findings, claims, advice, tables and README from the estimates
  explorer    the study as one page
  advise      how many of a job, by which method
  compare     two studies side by side
"""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "merge": "analysis.records.merge",
    "telemetry": "analysis.records.telemetry",
    "estimate": "analysis.estimates.command",
    "explain": "analysis.estimates.explain",
    "figures": "analysis.figures.command",
    "pages": "analysis.pages.command",
    "explorer": "analysis.explorer.command",
    "advise": "analysis.advice",
    "compare": "analysis.compare",
}


def main(argv: list[str]) -> int:
    """Run a command by its module's main. Commands are imported when they are used."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        sys.stderr.write(f"no command {argv[0]!r}; there are: {', '.join(COMMANDS)}\n")
        return 2
    return import_module(COMMANDS[argv[0]]).main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
