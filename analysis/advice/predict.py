"""The throughput gain (STP) of a set, predicted from what each of its jobs shows alone.

The form is n / (1 + (k X)^p)^(1/p): n while the GPU has room for all, n / (k X) when it is full.
X is a sum over the members: of GRACT alone for separate processes, which take turns, of SMACT alone
under MPS, where kernels run side by side. predictor.yaml holds the constants, and how far
off they were on jobs left out of the fit; analysis.advice.fit writes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml

from analysis.estimates import table as estimates
from analysis.estimates.table import place
from workflow.collocation.study.names import parse_scenario, scenario_id

FILE = Path(__file__).resolve().with_name("predictor.yaml")
ACTIVITY = {"naive": "gract", "mps": "smact"}  # method → what X is the sum of
# A job without gaps keeps the GPU busy alone, whatever it fills of it: there is no idle time for
# others to use, only idle SMs. Above this GRACT lie all CUDA graphs, and eager jobs that fill it.
NO_GAPS_FROM = 0.95
GAPS, NO_GAPS = "gaps", "no_gaps"


class Alone(NamedTuple):
    """What one job shows when it has the GPU to itself: shares from 0 to 1."""

    gract: float
    smact: float


class Prediction(NamedTuple):
    """STP of a set, with the band in which 90 % of the sets of jobs were measured that the fit had
    never seen (of sets without gaps: of jobs left out of it).

    error: half the band's width over `stp`. kind: of the set, `gaps` or `no_gaps`. The band may
    reach above n: it is of measured values, and the baseline of a gain is measured, too.
    """

    stp: float
    low: float
    high: float
    error: float
    kind: str


def form(n, x, k, p):
    """STP of n jobs that ask for x GPUs in all; numbers or arrays."""
    return n / (1 + (k * x) ** p) ** (1 / p)


def kind_of(alone: Sequence[Alone]) -> str:
    """A set has no gaps if none of its jobs has: those of one are room for the others."""
    return NO_GAPS if all(job.gract >= NO_GAPS_FROM for job in alone) else GAPS


def demand(method: str, alone: Sequence[Alone]) -> float:
    """X: how many GPUs the jobs ask for in all."""
    return sum(getattr(job, ACTIVITY[method]) for job in alone)


@lru_cache
def constants() -> Mapping[str, Mapping[str, Mapping]]:
    """Method → kind of set → k, p, and errors, as the file that ships has them."""
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))["constants"]


def predict(method: str, alone: Sequence[Alone]) -> Prediction:
    """STP of the jobs together by `naive` or `mps`; one entry for each member."""
    kind = kind_of(alone)
    of = constants()[method][kind]
    stp = form(len(alone), demand(method, alone), of["k"], of["p"])
    error = of.get("unseen", of)["error_90"]
    return Prediction(stp, stp * (1 - error), stp * (1 + error), error, kind)


class Measured(NamedTuple):
    """A set: its jobs' names, what each member showed alone, and the STP of all. place: in a study,
    its scenario, implementation and method.
    """

    id: str
    jobs: frozenset[str]
    method: str
    alone: tuple[Alone, ...]
    stp: float
    place: Mapping[str, str] = {}

    @property
    def group(self) -> tuple[str, str]:
        return self.method, kind_of(self.alone)


def measured(frame: pd.DataFrame, study: str = "") -> Iterator[Measured]:
    """The sets of a study's estimates of which all is known; their jobs alone on the same hosts."""
    for method in ACTIVITY:
        found = estimates.of(frame, "stp", method=method, window="")
        for e in found[found["jobs"] > 1].itertuples():
            scenario = parse_scenario(e.scenario)
            on, alone = set(estimates.on_hosts(frame, e)["host"]), []
            for job, count in scenario.parts:
                where = {"scenario": scenario_id({job: 1}, scenario.variant), "method": "naive"}
                where["implementation"] = e.implementation
                rows = [estimates.get(frame, name, **where) for name in Alone._fields]
                alone += [Alone(*(_mean_on(frame, on, row) for row in rows))] * count
            if np.isfinite([e.value, *np.ravel(alone)]).all():
                jobs = frozenset(job for job, _ in scenario.parts)
                name = f"{study} {e.scenario}/{e.implementation}".strip()
                yield Measured(name, jobs, method, tuple(alone), e.value, place(e))


def _mean_on(frame: pd.DataFrame, hosts: set[str], row: estimates.Row | None) -> float:
    """Of a number over all hosts its mean on these; itself where none of them has it."""
    if row is None:
        return np.nan
    own = estimates.on_hosts(frame, row)
    own = own.loc[own["host"].isin(hosts), "value"]
    return float(own.mean()) if len(own) else row.value


def scored(frame: pd.DataFrame) -> Iterator[dict]:
    """Rows of estimates.parquet: what is predicted of each measured set, and how far off that is.

    frame: a study's estimates, as `estimates.read` gives them.
    """
    off = []
    for each in measured(frame):
        told = predict(each.method, each.alone)
        off.append(each.stp / told.stp - 1)
        note = f"measured / predicted - 1: {off[-1]:+.3f}; band of 9 in 10 sets: {told.error:.3f}"
        yield {"quantity": "stp_predicted", "value": told.stp, "note": note} | dict(each.place)
    for name, share in (("predicted_off", 0.5), ("predicted_off_90", 0.9)) if off else ():
        note = f"|measured / predicted - 1| of {len(off)} sets: {100 * share:.0f} % quantile"
        value = float(np.quantile(np.abs(off), share))
        yield {"quantity": "count", "name": name, "value": value, "n": len(off), "note": note}
