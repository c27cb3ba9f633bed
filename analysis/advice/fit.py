"""The predictor's constants, fitted to studies, and how far off predictions are: predictor.yaml.

The fit uses every set of two or more jobs by the predictor's methods that has an STP, and whose
jobs have GRACT and SMACT alone (same implementation and input, separate process). Numbers are
those over all hosts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares

from analysis.advice import predict
from analysis.advice.predict import GAPS, NO_GAPS, AloneActivity, MeasuredSet
from analysis.estimates.quantities import DEMAND
from analysis.estimates.table import read_estimates

UNSEEN_FILE = predict.PREDICTOR_FILE.with_name("predictor_unseen.csv")
SCALE = 0.05  # log STP; larger errors weigh less. About how well a job's rate alone repeats
GROUPS = tuple((method, kind) for method in DEMAND for kind in (GAPS, NO_GAPS))
Constants = dict[tuple[str, str], tuple[float, float]]


def fit_constants(sets: Sequence[MeasuredSet]) -> Constants:
    """Fits k and p of each group (method, kind of set). Raises ValueError if a group has no set."""
    for method, kind in sorted(set(GROUPS) - {measured.group for measured in sets}):
        raise ValueError(f"{method}, {kind}: sets of at least two jobs are needed to fit it")
    group = np.array([GROUPS.index(measured.group) for measured in sets])
    n = np.array([float(len(measured.alone)) for measured in sets])
    demand = np.array([predict.gpu_demand(measured.method, measured.alone) for measured in sets])
    stp = np.log([measured.stp for measured in sets])

    def residuals(logs: np.ndarray) -> np.ndarray:
        k, p = np.exp(logs).reshape(2, -1)
        return np.log(predict.saturating_stp(n, demand, k[group], p[group])) - stp

    start = [*np.zeros(len(GROUPS)), *np.full(len(GROUPS), np.log(5))]
    # Errors hardly depend on p near the best, so the size of steps ends the fit: then all machines
    # agree.
    tolerances = {"ftol": None, "xtol": 1e-12, "gtol": 1e-12}
    solution = least_squares(
        residuals, start, jac="3-point", bounds=(-3, 4), loss="soft_l1", f_scale=SCALE, **tolerances
    )
    k, p = np.exp(solution.x).reshape(2, -1)
    return {name: (float(k[i]), float(p[i])) for i, name in enumerate(GROUPS)}


def left_out_errors(sets: Sequence[MeasuredSet]) -> np.ndarray:
    """Measured / predicted - 1 of each set, by a fit without all sets that share a workload."""
    errors = np.zeros(len(sets))
    for workloads in {measured.workloads for measured in sets}:
        constants = fit_constants([other for other in sets if not other.workloads & workloads])
        for i, measured in enumerate(sets):
            if measured.workloads == workloads:
                errors[i] = measured.measured_over(*constants[measured.group])
    return errors


def _error_summary(sets: Sequence[MeasuredSet], errors: Sequence[float]) -> dict:
    """Counts, quantiles of the errors' size, and the worst set."""
    middle, most = np.quantile(np.abs(errors), [0.5, 0.9])
    worst = int(np.argmax(np.abs(errors)))
    return {
        "sets": len(sets),
        "jobs": len(frozenset().union(*(measured.workloads for measured in sets))),
        "error_50": round(float(middle), 6),
        "error_90": round(float(most), 6),
        "worst": {sets[worst].id: round(float(errors[worst]), 6)},
    }


def _read_unseen_sets() -> list[MeasuredSet]:
    """Sets of copies of a job that no study has, measured to try the predictor."""
    sets = []
    for row in pd.read_csv(UNSEEN_FILE).itertuples():
        alone = (AloneActivity(row.gract, row.smact),) * row.n
        name = f"{row.n}x {row.job}"
        sets.append(MeasuredSet(name, frozenset([row.job]), row.method, alone, row.stp))
    return sets


def predictor_content(
    studies: Mapping[str, Sequence[MeasuredSet]], unseen: Sequence[MeasuredSet] = ()
) -> dict:
    """Makes the content of predictor.yaml from the sets of each study.

    unseen: sets that are only predicted, not fitted. Raises ValueError where there are too few
    sets to fit, or to leave a workload out.
    """
    sets = [measured for study_sets in studies.values() for measured in study_sets]
    constants = fit_constants(sets)
    errors = list(zip(sets, left_out_errors(sets), strict=True))
    content = {"sets": {name: len(study_sets) for name, study_sets in studies.items()}}
    content |= {"constants": {method: {} for method in DEMAND}, "mixes": {}}
    for group in GROUPS:
        method, kind = group
        k, p = constants[group]
        in_group = [pair for pair in errors if pair[0].group == group]
        entry = {"k": round(k, 6), "p": round(p, 6)} | _error_summary(*zip(*in_group, strict=True))
        new = [measured for measured in unseen if measured.group == group]
        if new:
            new_errors = [measured.measured_over(k, p) for measured in new]
            entry["unseen"] = _error_summary(new, new_errors)
        content["constants"][method][kind] = entry
    for method in DEMAND:
        mixes = [pair for pair in errors if pair[0].method == method and len(pair[0].workloads) > 1]
        if mixes:
            content["mixes"][method] = _error_summary(*zip(*mixes, strict=True))
    return content


def write_predictor(folders: Sequence[Path]) -> str:
    """Fits the constants to studies' folders, writes predictor.yaml, and returns the constants."""
    studies = {}
    for folder in folders:
        estimates = read_estimates(folder / "estimates.parquet")
        studies[folder.name] = list(predict.measured_sets(estimates, folder.name))
    content = predictor_content(studies, _read_unseen_sets())
    command = " ".join(["collocate step fit", *map(str, folders)])
    header = f"# Written by: {command}\n# What the constants and errors are of: docs/methods.md\n"
    text = yaml.safe_dump(content, sort_keys=False, width=100, allow_unicode=True)
    predict.PREDICTOR_FILE.write_text(header + text, encoding="utf-8")
    return yaml.safe_dump(content["constants"], sort_keys=False, width=100).rstrip()
