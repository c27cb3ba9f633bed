"""Does the rule for fixed work tell how long such work takes? Cells that did some say so."""

from __future__ import annotations

import pandas as pd

from analysis import metrics
from analysis.names import COMPLETION, family_of, parse_scenario
from analysis.quantities import Measurements
from analysis.tables.pair import ARM, Jobs
from analysis.views import Key


def completions(
    jobs: Jobs, method: str, runs: pd.DataFrame, measured: Measurements
) -> tuple[dict[tuple, float], int]:
    """What the rule says of the time that fixed work takes, over what it took: one number per
    replicate of the pair run to completion, by its place. And how many more there are without the
    pair's own cell in the same block, on the same GPU.

    The work is the samples of each member; the time is from the start to the last step. The rule's
    rates are those of the pair's own cell, and of the jobs alone.
    """
    wanted, found, lone = jobs.key(method, COMPLETION), {}, 0
    views = {
        view.place: view
        for view in measured.at(jobs.key(method))
        if view.completed and view.progresses() is not None
    }
    rows = runs[(runs["arm"] == ARM) & (runs["status"] == "completed") & runs["current"]]
    rows = rows[(rows["method"] == method) & (rows["window"] == COMPLETION)]
    for (scenario, block, device), members in rows.groupby(["scenario", "block", "device"]):
        parsed = parse_scenario(scenario)
        if Key.of(parsed.parts, method, parsed.variant) != wanted:
            continue
        view = views.get((block, device))
        if view is None:
            lone += 1
            continue
        done = (members["steps"] * members["batch_size"]).groupby(members["workload"]).sum()
        collocated = {m.workload: m.rate for m in view.members}
        alone = {m.workload: m.alone for m in view.members}
        after = collocated if family_of(method) == "mig" else alone
        each = ([of[name] for name in collocated] for of in (done, collocated, after))
        found[view.place] = metrics.makespan(*each) / members["window_s"].iloc[0]
    return found, lone
