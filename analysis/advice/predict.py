"""The throughput gain (STP) of a set, predicted from what each of its jobs shows alone.

A full GPU does n / (k X). X sums over the jobs: GRACT alone for separate processes, which take
turns; SMACT alone under MPS, where kernels run side by side. How near a set comes to that, and
whether it has gaps that others fill, is in `set_stp`. predictor.yaml holds the constants, and the
errors for jobs left out of the fit; analysis.advice.fit writes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml

from analysis.estimates import table
from analysis.estimates.quantities import DEMAND
from workflow.collocation.study.names import parse_scenario, scenario_id

PREDICTOR_FILE = Path(__file__).resolve().with_name("predictor.yaml")
# A job with at least this GRACT alone has no gaps: others can use only SMs that it leaves idle, no
# idle time. All CUDA graphs lie above, and eager jobs that keep the GPU busy.
NO_GAPS_FROM = 0.95
GAPS, NO_GAPS = "gaps", "no_gaps"


class AloneActivity(NamedTuple):
    """GRACT and SMACT of one job that has the GPU to itself, from 0 to 1."""

    gract: float
    smact: float


class Prediction(NamedTuple):
    """Predicted STP of a set, with a band that holds 90 % of measured sets.

    They are sets of jobs that the fit never saw (for sets without gaps: of jobs left out of it).
    error: half the band's width over `stp`. The band may reach above the number of jobs, because
    the job alone that a gain is relative to is measured, too.
    """

    stp: float
    low: float
    high: float
    error: float


def set_stp(n, demand, constants: Mapping[str, float]):
    """STP of n jobs, at least two, that ask for `demand` GPUs in all; numbers or arrays.

    constants: k, and p if the set has gaps, or tau if it has none under MPS.
    """
    load = constants["k"] * demand
    if "p" in constants:  # n while the GPU has room for all jobs
        return n / (1 + load ** constants["p"]) ** (1 / constants["p"])
    if "tau" not in constants:  # processes take turns, and switches between them take time
        return n / load
    # The more jobs, the rarer is an SM that no kernel uses, but not at once. And kernels side by
    # side never do less than those of one job.
    full = np.maximum(1, n / np.maximum(1, load))
    return 1 + (full - 1) * (1 - np.exp((1 - n) / constants["tau"]))


def gap_kind(alone: Sequence[AloneActivity]) -> str:
    """Tells whether a set has gaps: it has none only if no job has, as gaps of one serve all."""
    return NO_GAPS if all(job.gract >= NO_GAPS_FROM for job in alone) else GAPS


def gpu_demand(method: str, alone: Sequence[AloneActivity]) -> float:
    """Sums up how many GPUs the jobs ask for: X in the formula."""
    return sum(getattr(job, DEMAND[method]) for job in alone)


@lru_cache
def predictor_constants() -> Mapping[str, Mapping[str, Mapping]]:
    """Reads the shipped constants: method → kind of set → those of `set_stp`, and errors."""
    return yaml.safe_load(PREDICTOR_FILE.read_text(encoding="utf-8"))["constants"]


def predict_stp(method: str, alone: Sequence[AloneActivity]) -> Prediction:
    """Predicts the STP of jobs together; `alone` has one entry for each of at least two jobs."""
    constants = predictor_constants()[method][gap_kind(alone)]
    stp = float(set_stp(len(alone), gpu_demand(method, alone), constants))
    return _with_band(stp, constants.get("unseen", constants))


def predict_rescaled(
    method: str, job: AloneActivity, n: int, measured_n: int, measured_stp: float
) -> Prediction:
    """Predicts the STP of n copies of a job from it alone and a measured set of measured_n copies.

    Both sets are by `method`: a set by another method is of no help.
    """
    kind = gap_kind([job])
    predicted, at_measured = (predict_stp(method, [job] * of).stp for of in (n, measured_n))
    stp = rescaled_stp(predicted, (method, kind), n, measured_n, measured_stp / at_measured)
    constants = predictor_constants()[method][kind]
    errors = constants.get("unseen", constants)
    return _with_band(stp, errors.get("rescaled", errors))


def rescaled_stp(
    stp: float, group: tuple[str, str], n: int, measured_n: int, ratio: float
) -> float:
    """STP of n copies of a job, once a set of measured_n copies was measured by the same method.

    stp: as predicted from the job alone. group: method and kind of both sets. ratio: measured over
    predicted STP of the measured set. It holds for larger sets as well; smaller ones, whose jobs
    meet less on the GPU, share less of it.
    """
    least = 1 if group == ("mps", NO_GAPS) else 0
    return min(n, max(least, stp * ratio ** min(1, n / measured_n)))


def _with_band(stp: float, errors: Mapping[str, float]) -> Prediction:
    error = errors["error_90"]
    return Prediction(stp, stp * (1 - error), stp * (1 + error), error)


class MeasuredSet(NamedTuple):
    """A measured set: its workloads, what each job showed alone, and the STP of all together.

    place: in a study, its scenario, implementation and method. copies_of: study, job and
    implementation of a set of copies of one job; empty for a mix.
    """

    id: str
    workloads: frozenset[str]
    method: str
    alone: tuple[AloneActivity, ...]
    stp: float
    place: Mapping[str, str] = {}
    copies_of: str = ""

    @property
    def group(self) -> tuple[str, str]:
        """Method and kind of set, which have constants of their own."""
        return self.method, gap_kind(self.alone)

    def measured_over(self, constants: Mapping[str, float]) -> float:
        """Measured over predicted STP - 1."""
        demand = gpu_demand(self.method, self.alone)
        return self.stp / float(set_stp(len(self.alone), demand, constants)) - 1


def measured_sets(estimates: pd.DataFrame, study: str = "") -> Iterator[MeasuredSet]:
    """Yields the sets of a study that have an STP, and whose jobs were measured alone.

    What jobs show alone is taken from the hosts that measured the set.
    """
    for method in DEMAND:
        stps = table.select(estimates, "stp", method=method, window="")
        for stp in stps[stps["jobs"] > 1].itertuples():
            scenario = parse_scenario(stp.scenario)
            hosts = set(table.on_hosts(estimates, stp)["host"])
            alone = []
            for job, count in scenario.parts:
                place = {"scenario": scenario_id({job: 1}, scenario.variant), "method": "naive"}
                place["implementation"] = stp.implementation
                shares = [table.get(estimates, name, **place) for name in AloneActivity._fields]
                shares = [_mean_on(estimates, hosts, share) for share in shares]
                alone += [AloneActivity(*shares)] * count
            if np.isfinite([stp.value, *np.ravel(alone)]).all():
                copies_of = ""
                if not scenario.mixed:
                    copies_of = f"{study} {place['scenario']}/{stp.implementation}"
                name = f"{study} {stp.scenario}/{stp.implementation}".strip()
                workloads = frozenset(job for job, _ in scenario.parts)
                columns = ("scenario", "implementation", "method")
                place = {column: getattr(stp, column) for column in columns}
                yield MeasuredSet(name, workloads, method, (*alone,), stp.value, place, copies_of)


def _mean_on(estimates: pd.DataFrame, hosts: set[str], row: table.Row | None) -> float:
    """The mean of a number on these hosts, or over all hosts where none of these has it."""
    if row is None:
        return np.nan
    single = table.on_hosts(estimates, row)
    values = single.loc[single["host"].isin(hosts), "value"]
    return float(values.mean()) if len(values) else row.value


def predicted_estimates(estimates: pd.DataFrame) -> Iterator[dict]:
    """Yields rows of estimates: the STP predicted of each measured set, and the overall errors."""
    errors = []
    for measured in measured_sets(estimates):
        prediction = predict_stp(measured.method, measured.alone)
        error = measured.stp / prediction.stp - 1
        errors.append(error)
        note = f"measured / predicted - 1: {error:+.3f}; "
        note += f"band of 9 in 10 sets: {prediction.error:.3f}"
        row = {"quantity": "stp_predicted", "value": prediction.stp, "note": note}
        yield row | dict(measured.place)
    if not errors:
        return
    for name, share in (("predicted_off", 0.5), ("predicted_off_90", 0.9)):
        note = f"|measured / predicted - 1| of {len(errors)} sets: {100 * share:.0f} % quantile"
        value = float(np.quantile(np.abs(errors), share))
        yield {"quantity": "count", "name": name, "value": value, "n": len(errors), "note": note}
