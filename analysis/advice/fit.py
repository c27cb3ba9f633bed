"""The predictor's constants, fitted to studies, and how far off predictions are: predictor.yaml.

The fit uses every set of two or more jobs by the predictor's methods that has an STP, and whose
jobs have GRACT and SMACT alone (same implementation and input, separate process). Numbers are
those over all hosts.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
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
# Separate processes without gaps have the GPU for a slice each, and the switch to the next takes
# time. Both were measured, not fitted: a kernel on all SMs of an H200 read its clock (driver 580).
SLICE_MS, SWITCH_MS = 2.05, 0.22
# Where the fit of the others starts.
START = {
    ("naive", GAPS): {"k": 1.0, "p": 5.0},
    ("mps", GAPS): {"k": 1.0, "p": 5.0},
    ("mps", NO_GAPS): {"k": 1.0, "tau": 3.0},
}
Constants = dict[tuple[str, str], dict[str, float]]


def fit_constants(sets: Sequence[MeasuredSet]) -> Constants:
    """Fits the constants of each group (method, kind of set).

    Raises ValueError if a group has no set.
    """
    for method, kind in sorted(set(GROUPS) - {measured.group for measured in sets}):
        raise ValueError(f"{method}, {kind}: sets of at least two jobs are needed to fit it")
    constants = {("naive", NO_GAPS): {"k": 1 + SWITCH_MS / SLICE_MS}}
    for group, start in START.items():
        constants[group] = _fit([each for each in sets if each.group == group], start)
    return constants


def _fit(sets: Sequence[MeasuredSet], start: Mapping[str, float]) -> dict[str, float]:
    """Fits the constants of one group."""
    n = np.array([float(len(measured.alone)) for measured in sets])
    demand = np.array([predict.gpu_demand(measured.method, measured.alone) for measured in sets])
    stp = np.log([measured.stp for measured in sets])

    def constants(logs: np.ndarray) -> dict[str, float]:
        return dict(zip(start, np.exp(logs).tolist(), strict=True))

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.log(predict.set_stp(n, demand, constants(logs))) - stp

    # Errors hardly depend on p near the best, so the size of steps ends the fit: then all machines
    # agree.
    tolerances = {"ftol": None, "xtol": 1e-12, "gtol": 1e-12}
    first = np.log([*start.values()])
    solution = least_squares(
        residuals, first, jac="3-point", bounds=(-3, 4), loss="soft_l1", f_scale=SCALE, **tolerances
    )
    return constants(solution.x)


def left_out_errors(sets: Sequence[MeasuredSet]) -> np.ndarray:
    """Measured / predicted - 1 of each set, by a fit without all sets that share a workload."""
    errors = np.zeros(len(sets))
    for workloads in {measured.workloads for measured in sets}:
        constants = fit_constants([other for other in sets if not other.workloads & workloads])
        for i, measured in enumerate(sets):
            if measured.workloads == workloads:
                errors[i] = measured.measured_over(constants[measured.group])
    return errors


def _error_summary(errors_of_sets: Sequence[tuple[MeasuredSet, float]]) -> dict:
    """Counts, mean and quantiles of the errors' size, and the worst set."""
    sets, errors = zip(*errors_of_sets, strict=True)
    middle, most = np.quantile(np.abs(errors), [0.5, 0.9])
    worst = int(np.argmax(np.abs(errors)))
    return {
        "sets": len(sets),
        "jobs": len(frozenset().union(*(measured.workloads for measured in sets))),
        "error_mean": round(float(np.mean(np.abs(errors))), 6),
        "error_50": round(float(middle), 6),
        "error_90": round(float(most), 6),
        "worst": {sets[worst].id: round(float(errors[worst]), 6)},
    }


def _rescaled_summary(errors: Sequence[tuple[MeasuredSet, float]]) -> dict:
    """Errors of a group's sets, each rescaled by each other set of copies of the same job.

    Empty for less than two workloads, as the error of one says nothing about others.
    """
    rescaled = []
    for (measured, measured_error), (other, error) in permutations(errors, 2):
        if measured.copies_of and measured.copies_of == other.copies_of:
            sizes = len(other.alone), len(measured.alone)
            predicted, ratio = other.stp / (1 + error), 1 + measured_error
            stp = predict.rescaled_stp(predicted, other.group, *sizes, ratio)
            rescaled.append((other, other.stp / stp - 1))
    if len({other.workloads for other, _ in rescaled}) < 2:
        return {}
    return {"rescaled": _error_summary(rescaled)}


def _read_unseen_sets() -> list[MeasuredSet]:
    """Sets of copies of a job that no study has, measured to try the predictor."""
    sets = []
    for row in pd.read_csv(UNSEEN_FILE).itertuples():
        alone = (AloneActivity(row.gract, row.smact),) * row.n
        name = f"{row.n}x {row.job}"
        workloads = frozenset([row.job])
        sets.append(MeasuredSet(name, workloads, row.method, alone, row.stp, copies_of=row.job))
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
        in_group = [pair for pair in errors if pair[0].group == group]
        entry = {name: round(value, 6) for name, value in constants[group].items()}
        entry |= _error_summary(in_group) | _rescaled_summary(in_group)
        new = [measured for measured in unseen if measured.group == group]
        new_errors = [(measured, measured.measured_over(constants[group])) for measured in new]
        if new:
            entry["unseen"] = _error_summary(new_errors) | _rescaled_summary(new_errors)
        content["constants"][method][kind] = entry
    for method in DEMAND:
        mixes = [pair for pair in errors if pair[0].method == method and len(pair[0].workloads) > 1]
        if mixes:
            content["mixes"][method] = _error_summary(mixes)
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
