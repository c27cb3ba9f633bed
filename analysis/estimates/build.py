"""From runs to estimates: every measured number of a study."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.estimates import runs as of_runs
from analysis.estimates.derived import apart, memory_of_parts, over_fastest, over_paper, variation
from analysis.estimates.intervals import of_cells as interval_of
from analysis.estimates.intervals import over_hosts
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.replicates import Value, values
from analysis.estimates.runs import COMPLETED, PLAIN, Run
from analysis.estimates.schema import BLOCKS, INTERVAL, NONE, Estimate, described
from analysis.estimates.study import counts, outcomes, provenance
from analysis.records import flags
from workflow.collocation.spec.names import ALTERNATE, ANCHOR


@dataclass(frozen=True)
class _Place:
    quantity: str
    scenario: str
    arm: str
    method: str
    window: str
    job: str


def estimated(found: Iterable[Value]) -> list[Estimate]:
    """Each host's estimate of every quantity, and the one over all hosts.

    One number, one route: where a host has it of alternating cells, other cells do not count.
    """
    grouped: dict[_Place, dict[str, list[Value]]] = defaultdict(lambda: defaultdict(list))
    for value in found:
        run = value.run
        window = "" if run.window == PLAIN else run.window
        place = _Place(value.quantity, run.scenario.id, run.arm, run.method, window, value.job)
        grouped[place][run.host].append(value)
    estimates = []
    for place, by_host in grouped.items():
        scale = QUANTITIES[place.quantity].scale
        single = []
        for host, of_host in by_host.items():
            turns = [v for v in of_host if v.run.side]
            of_host = by_host[host] = turns or of_host
            value, low, high = interval_of([v.replicate for v in of_host], scale)
            single.append(
                described(
                    Estimate(
                        **vars(place),
                        host=host,
                        value=value,
                        low=low,
                        high=high,
                        spread=NONE if low is None else INTERVAL,
                        n=len(of_host),
                        hosts=1,
                        flags=flags.union(of_cells([v.run for v in of_host])),
                        design=ALTERNATE if turns else BLOCKS,
                        replicates=tuple(v.replicate for v in of_host),
                    )
                )
            )
        every = flags.union(of_cells([v.run for of_host in by_host.values() for v in of_host]))
        estimates += map(_marked, [*single, replace(over_hosts(single), flags=every)])
    return estimates


def _marked(estimate: Estimate) -> Estimate:
    """A gain above the number of jobs is marked: no set can do more, so the job alone ran slow."""
    if estimate.quantity != "stp" or estimate.jobs < 2 or estimate.value <= estimate.jobs:
        return estimate
    return replace(estimate, flags=flags.union([estimate.flags, flags.ABOVE_COUNT]))


def of_cells(runs: Sequence[Run]) -> list[str]:
    """Flags of runs, with those that only several together, or the total, can have."""
    found = [flag for run in runs for flag in run.flags]
    if len({m["digest"] for run in runs for m in run.members}) > 1:
        found.append(flags.MIXED_CODE)
    if len({(m["dataset"], m["source"]) for run in runs for m in run.members}) > len(
        {m["dataset"] for run in runs for m in run.members}
    ):
        found.append(flags.MIXED_DATA)
    return found


def build(
    rows: Sequence[Mapping], expected: Sequence[Mapping], work: Mapping[str, Mapping[str, float]]
) -> list[Estimate]:
    """All measured numbers of a study: rows are those of runs.parquet, expected those of plan.json,
    work as `replicates.values` takes it.
    """
    hardware, left_out = of_runs.main_hardware(rows)
    used = [
        row
        for row in rows
        if row["hardware"] == hardware
        or (row["status"] != COMPLETED and row["hardware"] not in left_out)
    ]
    hosts = of_runs.hosts_of(used)
    # Anchors began the sessions of old studies; they are no cells of the grid.
    grid = [run for run in of_runs.runs_of(used, hosts) if run.scenario.variant != ANCHOR]
    found = estimated(values(grid, work))
    planned = outcomes(grid, expected)
    found += [*over_fastest(found), *over_paper(found)]
    found += [*variation(found), *apart(found), *memory_of_parts(found, planned)]
    counted = counts(grid, expected, found, hosts.values(), left_out)
    return [*found, *planned, *counted, *provenance(grid)]
