"""runs.parquet → estimates.parquet: every published number of a study, once.

python -m analysis estimate --folder results/h200

Reads runs.parquet and plan.json of the folder, bench/*.json where they are, and the paper's values;
decides the claims; writes estimates.parquet, and estimates.csv without the replicates.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from analysis import claims
from analysis.estimates import build, reported, runs, schema
from analysis.estimates.schema import Estimate
from analysis.estimates.table import Estimates
from analysis.records.safe import read_json


def benches(folder: Path) -> Iterator[Estimate]:
    """What `make bench` measured for the study: the sampler's cost, and SMACT where it was read
    while so many SMs were busy. Of what is not there nothing is told.
    """
    found: dict[str, dict] = {}
    for path in sorted((folder / "bench").glob("*.json")):
        found |= read_json(path)
    for workload, measured in found.get("workloads", {}).items():
        cost = measured["costs"]["ours"]
        span = {"low": cost["low"], "high": cost["high"], "spread": schema.INTERVAL}
        yield Estimate(
            "bench",
            name=f"sampler_{workload}",
            value=cost["loss_percent"],
            n=cost["pairs"],
            unit="%",
            note=f"throughput that the sampler costs the members of {measured['cell']}",
            **(span if cost["low"] is not None else {}),
        )
    for reading in found.get("readings", []):
        busy, sms = reading["busy_sms"], reading["sm_count"]
        note = f"SMACT read while a kernel spun on {busy} of {sms} SMs"
        yield Estimate("bench", name=f"smact_{busy}_of_{sms}", value=reading["smact"], note=note)


def estimate(folder: Path, claims_file: Path, reported_file: Path) -> list[Estimate]:
    """All numbers of a study's folder. Raises OSError, ValueError, reported.ReportedError,
    claims.ClaimsError with one line that names the file.
    """
    rules, values = claims.read(claims_file), reported.read(reported_file)
    expected = read_json(folder / "plan.json")
    found = build.build(runs.read(folder / "runs.parquet"), expected, reported.work(values))
    found += [*reported.estimates(values), *benches(folder)]
    return [*found, *claims.verdicts(rules, Estimates(found))]


def run(given: Namespace) -> None:
    """The command: estimates.parquet and estimates.csv in the study's folder."""
    found = estimate(given.folder, given.claims, given.reported)
    schema.write(found, given.folder / "estimates.parquet")
