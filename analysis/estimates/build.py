"""runs.parquet → estimates.parquet: every published number of a study, once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.estimates import table
from analysis.estimates.coverage import interval_coverage
from analysis.estimates.derived import derived_estimates
from analysis.estimates.intervals import add_over_hosts, estimates_by_host
from analysis.estimates.outcomes import provenance_counts, set_outcomes, study_counts
from analysis.estimates.records import flags
from analysis.estimates.replicates import replicates_of_runs
from analysis.estimates.runs import prepare_runs, read_runs, run_conditions
from workflow.collocation.study.layout import PLAN
from workflow.collocation.study.names import parse_scenario
from workflow.collocation.study.regular_files import read_json

Addition = Callable[[pd.DataFrame], Iterable[dict]]


def measured_estimates(run_rows: pd.DataFrame, plan: Sequence[Mapping]) -> pd.DataFrame:
    """Computes all numbers that a study measured itself.

    run_rows: rows of runs.parquet. plan: the planned cells, as in plan.json.
    """
    study_runs = prepare_runs(run_rows)
    members = study_runs.members
    outcomes = set_outcomes(members, plan)
    numbers = pd.DataFrame(columns=[*table.COLUMNS, "jobs", "variant"])
    counts = []
    if members["measured"].any():
        host_estimates = estimates_by_host(_replicates(members))
        measured = _flag_above_count(_add_set_columns(add_over_hosts(host_estimates)))
        derived = derived_estimates(measured, outcomes)
        numbers = _add_set_columns(pd.concat([measured, derived], ignore_index=True))
        counts = list(interval_coverage(host_estimates))
    counts = [*study_counts(study_runs, plan, numbers), *provenance_counts(members), *counts]
    return table.combined([numbers, outcomes, pd.DataFrame(counts)])


def _replicates(members: pd.DataFrame) -> pd.DataFrame:
    """Every quantity of every run, with the run's place, flags, code and data."""
    columns = ["scenario", "implementation", "method", "window", "host"]
    places = members.drop_duplicates("run").set_index("run")[columns]
    replicates = replicates_of_runs(members).rename(columns={"at": "cell"}).assign(name="")
    return replicates.join(places.join(run_conditions(members)), on="run")


def _add_set_columns(estimates: pd.DataFrame) -> pd.DataFrame:
    """Adds the number of jobs (`jobs`) and the `variant` of each scenario."""
    parsed = [parse_scenario(scenario) for scenario in estimates["scenario"]]
    jobs = [scenario.n for scenario in parsed]
    return estimates.assign(jobs=jobs, variant=[scenario.variant for scenario in parsed])


def _flag_above_count(estimates: pd.DataFrame) -> pd.DataFrame:
    """Flags gains above the number of jobs: no set can do more, so the job alone ran slow."""
    gains = (estimates["quantity"] == "stp") & (estimates["jobs"] > 1)
    flagged = [flags.union([text, flags.ABOVE_COUNT]) for text in estimates["flags"]]
    above = gains & (estimates["value"] > estimates["jobs"])
    return estimates.assign(flags=estimates["flags"].mask(above, pd.Series(flagged, above.index)))


def study_estimates(folder: Path, additions: Sequence[Addition] = ()) -> pd.DataFrame:
    """Computes all numbers of a study from runs.parquet and plan.json in its folder.

    additions: functions, called in this order, that take all estimates so far and give rows of
    further ones. Raises OSError, or ValueError with one line that names the file.
    """
    plan = read_json(folder / PLAN)
    tables = [measured_estimates(read_runs(folder / "runs.parquet"), plan)]
    for addition in additions:
        estimates = table.ordered(pd.concat(tables, ignore_index=True))
        added = table.combined([pd.DataFrame(list(addition(estimates)))])
        tables.append(added.drop_duplicates("id"))
    return pd.concat(tables, ignore_index=True)


def publish_estimates(folder: Path, additions: Sequence[Addition] = ()) -> None:
    """Writes estimates.parquet, and estimates.csv without replicates, into a study's folder."""
    table.save_estimates(study_estimates(folder, additions), folder / "estimates.parquet")
