"""The paper's pair of complementary jobs, DLRM and ResNet152: which cells are of it, whether they
compare to the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from analysis import reported
from analysis.claims.rules import Need
from analysis.names import parse_scenario
from analysis.quantities import Measurements, Quantity, quantity, why_missing
from analysis.views import Key, differences

ARM, SOURCE = "faithful", "SLIDES"


def needs(workload: str) -> tuple[Need, Need]:
    """What DLRM alone must read for the pair to be the paper's; claims C11 need the same."""
    return (
        Need(of="gract", workload=workload, below=0.15),
        Need(of="memory", workload=workload, above=27, below=31),
    )


@dataclass(frozen=True)
class Jobs:
    """The pair of the study: the job that takes long alone, and the short one.

    work: workload → what it takes alone by the paper, s. models: workload → model. asked: the
    workloads that the reported values stand beside, which need not be the study's.
    """

    long: str
    short: str
    work: dict[str, float]
    models: dict[str, str]
    asked: frozenset[str]

    @property
    def ratio(self) -> float:
        return self.work[self.long] / self.work[self.short]

    @property
    def bound(self) -> float:
        """The short job's share of serial, the most that collocation can save."""
        return self.work[self.short] / sum(self.work.values())

    @property
    def time(self) -> Quantity:
        """Time for the fixed work over serial."""
        return quantity("time", work=self.work)

    def key(self, method: str, variant: str = "") -> Key:
        return Key.of({self.long: 1, self.short: 1}, method, variant)


def find(runs: pd.DataFrame, planned: Iterable[str], values: pd.DataFrame) -> Jobs:
    """The reported pair if the study has it, else one of the same models, else the reported one.

    planned: scenarios besides those of the runs. values: of analysis.reported.read. Raises
    reported.ReportedError where they hold no pair.
    """
    mixes = [view.key for view in reported.views(values)[SOURCE] if len(view.key.parts) == 2]
    if not mixes:
        raise reported.ReportedError(f"{SOURCE}: no pair of jobs is reported")
    asked = frozenset(name for name, _ in mixes[0].parts)
    alone_s = reported.work(values)[SOURCE]
    given = values[(values["source"] == SOURCE) & values["workload"].isin(asked)]
    model_of = dict(zip(given["workload"], given["model"], strict=True))
    long, short = sorted(asked, key=lambda name: -alone_s[name])

    ours = runs.dropna(subset=["workload", "model"]).drop_duplicates("workload")
    ours = dict(zip(ours["workload"], ours["model"], strict=True))
    pairs = []
    for scenario in sorted({*runs["scenario"], *planned}):
        parts = parse_scenario(scenario).parts
        names = {ours.get(name, model_of.get(name)): name for name, _ in parts}
        if parse_scenario(scenario).n == 2 and set(names) == set(model_of.values()):
            pairs.append((names[model_of[long]], names[model_of[short]]))
    pairs.sort(key=lambda pair: (set(pair) != asked, pair))
    own = pairs[0] if pairs else (long, short)
    return Jobs(
        *own,
        {own[0]: alone_s[long], own[1]: alone_s[short]},
        {own[0]: model_of[long], own[1]: model_of[short]},
        asked,
    )


def unlike(jobs: Jobs, measured: Measurements) -> str:
    """Why the pair is not the paper's; empty where it is, or where it was not measured."""
    keys = [key for key in measured.cells() if key == jobs.key(key.method)]
    used = [view for key in keys for view in measured.at(key) if view.completed]
    if not used:
        return ""
    said = []
    for need in needs(jobs.long):
        what, key = quantity(need.of), need.key()
        used += [view for view in measured.at(key) if view.completed]
        value = measured.mean(what, key)
        if value is None:
            said.append(why_missing(measured, what, key))
        elif not need.admits(value):
            unit = f" {what.unit}" if what.unit else ""
            words = f"{what.name} of {key.label} is {value:.3g}{unit}"
            said.append(f"{words}, and must be {need.words}{unit}")
    if {jobs.long, jobs.short} != jobs.asked:
        said.append(f"the paper's jobs are {' and '.join(sorted(jobs.asked))}")
    return "; ".join([*said, *differences(used)])
