"""runs.parquet → estimates.parquet: every published number of a study, once.

python -m analysis estimate --folder results/h200

Reads runs.parquet and plan.json of the folder, bench/*.json where they are, and the paper's values;
decides the claims; writes estimates.parquet, and estimates.csv without the replicates.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from analysis import claims
from analysis.estimates import build, reported, runs, schema
from analysis.estimates.schema import Estimate, described
from analysis.estimates.table import Estimates


def benches(folder: Path) -> Iterator[Estimate]:
    """Readings of `make bench` that a study keeps: the `estimates` of each JSON file in `bench/`."""
    for path in sorted((folder / "bench").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8")).get("estimates", [])
        for row in found:
            yield described(Estimate("bench", source=schema.MEASURED, **row))


def estimate(folder: Path, claims_file: Path, reported_file: Path) -> list[Estimate]:
    """All numbers of a study's folder. Raises OSError, ValueError, reported.ReportedError,
    claims.ClaimsError with one line that names the file.
    """
    rules, values = claims.read(claims_file), reported.read(reported_file)
    expected = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    found = build.build(runs.read(folder / "runs.parquet"), expected, reported.work(values))
    found += [*reported.estimates(values), *benches(folder)]
    return [*found, *claims.verdicts(rules, Estimates(found))]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis estimate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", required=True, type=Path, metavar="RESULTS/STUDY")
    parser.add_argument("--claims", type=Path, default=Path("config/claims.yaml"))
    parser.add_argument("--reported", type=Path, default=Path("config/reported.csv"))
    given = parser.parse_args(argv)
    try:
        found = estimate(given.folder, given.claims, given.reported)
        schema.write(found, given.folder / "estimates.parquet")
    except (OSError, ValueError, reported.ReportedError, claims.ClaimsError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
