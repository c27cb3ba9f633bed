"""runs.parquet → estimates.parquet: every published number of a study, once.

Reads runs.parquet and plan.json of the folder; writes estimates.parquet, and estimates.csv without
the replicates.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.estimates import outcomes as study
from analysis.estimates import runs
from analysis.estimates import table as estimates
from analysis.estimates.coverage import coverage
from analysis.estimates.derived import derived
from analysis.estimates.intervals import by_host, over_hosts
from analysis.estimates.records import flags
from analysis.estimates.replicates import replicates
from workflow.collocation.study.names import parse_scenario
from workflow.collocation.study.regular_files import read_json

Addition = Callable[[pd.DataFrame], Iterable[dict]]


def build(rows: pd.DataFrame, plan: Sequence[Mapping]) -> pd.DataFrame:
    """All measured numbers of a study: rows are those of runs.parquet, plan those of plan.json."""
    prepared = runs.prepared(rows)
    members = prepared.members
    outcomes = study.outcomes(members, plan)
    numbers, covered = pd.DataFrame(columns=[*estimates.COLUMNS, "jobs", "variant"]), []
    if members["measured"].any():
        found = replicates(members).rename(columns={"at": "cell"}).assign(name="")
        about = members.drop_duplicates("run").set_index("run")
        about = about[["scenario", "implementation", "method", "window", "host"]]
        found = found.join(about.join(runs.conditions(members)), on="run")
        single = by_host(found)
        measured = _marked(_with_sets(over_hosts(single)))
        others = derived(measured, outcomes)
        numbers = _with_sets(pd.concat([measured, others], ignore_index=True))
        covered = [*coverage(single)]
    counts = [*study.counts(prepared, plan, numbers), *study.provenance(members), *covered]
    return estimates.combined([numbers, outcomes, pd.DataFrame(counts)])


def _with_sets(found: pd.DataFrame) -> pd.DataFrame:
    """With the number of jobs, and the variant, of each scenario."""
    parsed = [parse_scenario(scenario) for scenario in found["scenario"]]
    return found.assign(jobs=[s.n for s in parsed], variant=[s.variant for s in parsed])


def _marked(found: pd.DataFrame) -> pd.DataFrame:
    """A gain above the number of jobs is marked: no set can do more, so the job alone ran slow."""
    above = (found["quantity"] == "stp") & (found["jobs"] > 1) & (found["value"] > found["jobs"])
    marked = [flags.union([own, flags.ABOVE_COUNT]) for own in found["flags"]]
    return found.assign(flags=found["flags"].mask(above, pd.Series(marked, found.index)))


def estimate(folder: Path, additions: Sequence[Addition] = ()) -> pd.DataFrame:
    """All numbers of a study's folder. Raises OSError, or ValueError with one line that names the
    file.

    additions: functions of all estimates so far that give rows of further ones, in this order.
    """
    plan = read_json(folder / "plan.json")
    tables = [build(runs.read(folder / "runs.parquet"), plan)]
    for addition in additions:
        numbers = estimates.ordered(pd.concat(tables, ignore_index=True))
        rows = estimates.combined([pd.DataFrame(list(addition(numbers)))])
        tables.append(rows.drop_duplicates("id"))
    return pd.concat(tables, ignore_index=True)


def publish(folder: Path, additions: Sequence[Addition] = ()) -> None:
    """Write estimates.parquet and estimates.csv into a study's folder."""
    estimates.write(estimate(folder, additions), folder / "estimates.parquet")
