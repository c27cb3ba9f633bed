"""The predictor's constants, fitted to studies.

Writes predictor.yaml. Rows are the studies' values over all hosts, of every set of two or
more jobs by the predictor's methods that has an STP, and GRACT and SMACT of each of its jobs alone
(same implementation and input, separate process); nothing else is left out.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares

from analysis.advice import predict
from analysis.advice.predict import ACTIVITY, GAPS, NO_GAPS, Alone, Measured, form, measured
from analysis.estimates import table as estimates

UNSEEN = predict.FILE.with_name("predictor_unseen.csv")
SCALE = 0.05  # log STP; errors beyond it weigh less. About how well a job's rate alone repeats
GROUPS = tuple((method, kind) for method in ACTIVITY for kind in (GAPS, NO_GAPS))


def fitted(sets: Sequence[Measured]) -> dict[tuple[str, str], tuple[float, float]]:
    """k and p by method and kind of job. Raises ValueError where a group has no set."""
    for method, kind in sorted(set(GROUPS) - {each.group for each in sets}):
        raise ValueError(f"{method}, {kind}: sets of at least two jobs are needed to fit it")
    group = np.array([GROUPS.index(each.group) for each in sets])
    n, x = np.array([(len(each.alone), predict.demand(each.method, each.alone)) for each in sets]).T
    stp = np.log([each.stp for each in sets])

    def off(logs: np.ndarray) -> np.ndarray:
        k, p = np.exp(logs).reshape(2, -1)
        return np.log(form(n, x, k[group], p[group])) - stp

    start = [*np.zeros(len(GROUPS)), *np.full(len(GROUPS), np.log(5))]
    # So that all machines agree: an exponent's errors hardly change near the best, so steps decide.
    exact = {"jac": "3-point", "ftol": None, "xtol": 1e-12, "gtol": 1e-12}
    found = least_squares(off, start, bounds=(-3, 4), loss="soft_l1", f_scale=SCALE, **exact)
    k, p = np.exp(found.x).reshape(2, -1)
    return {each: (float(k[i]), float(p[i])) for i, each in enumerate(GROUPS)}


def left_out(sets: Sequence[Measured]) -> np.ndarray:
    """measured / predicted - 1 of each set, by a fit to the sets with none of its jobs."""
    errors = np.zeros(len(sets))
    for jobs in {each.jobs for each in sets}:
        constants = fitted([each for each in sets if not each.jobs & jobs])
        for i, each in enumerate(sets):
            if each.jobs == jobs:
                errors[i] = _off(each, *constants[each.group])
    return errors


def _errors(sets: Sequence[Measured], errors: np.ndarray, chosen: Sequence[bool]) -> dict:
    """Counts, errors and the worst set of those chosen."""
    names, off = [each for each, c in zip(sets, chosen, strict=True) if c], np.array(errors)[chosen]
    middle, most = np.quantile(np.abs(off), [0.5, 0.9])
    worst = int(np.argmax(np.abs(off)))
    found = {"sets": len(names), "jobs": len(frozenset().union(*(each.jobs for each in names)))}
    found |= {"error_50": round(float(middle), 6), "error_90": round(float(most), 6)}
    return found | {"worst": {names[worst].id: round(float(off[worst]), 6)}}


def _off(each: Measured, k: float, p: float) -> float:
    return each.stp / form(len(each.alone), predict.demand(each.method, each.alone), k, p) - 1


def never_fitted(path: Path) -> list[Measured]:
    """Sets of jobs that no study has: copies of one job, measured to try the predictor."""
    return [
        Measured(
            f"{e.n}x {e.job}", frozenset([e.job]), e.method, (Alone(e.gract, e.smact),) * e.n, e.stp
        )
        for e in pd.read_csv(path).itertuples()
    ]


def content(studies: Mapping[str, Sequence[Measured]], unseen: Sequence[Measured] = ()) -> dict:
    """What analysis/advice/predictor.yaml holds, from the sets of each study.

    unseen: sets that nothing is fitted to.

    Raises ValueError where they are too few to fit or to leave a job out.
    """
    sets = [each for found in studies.values() for each in found]
    constants, errors = fitted(sets), left_out(sets)
    made = {"sets": {name: len(found) for name, found in studies.items()}}
    made |= {"constants": {method: {} for method in ACTIVITY}, "mixes": {}}
    for method, kind in GROUPS:
        k, p = constants[method, kind]
        chosen = [each.group == (method, kind) for each in sets]
        made["constants"][method][kind] = {"k": round(k, 6), "p": round(p, 6)}
        made["constants"][method][kind] |= _errors(sets, errors, chosen)
        if new := [each for each in unseen if each.group == (method, kind)]:
            off = [_off(each, k, p) for each in new]
            made["constants"][method][kind]["unseen"] = _errors(new, off, [True] * len(new))
    for method in ACTIVITY:
        mixes = [each.method == method and len(each.jobs) > 1 for each in sets]
        if any(mixes):
            made["mixes"][method] = _errors(sets, errors, mixes)
    return made


def write(folders: Sequence[Path]) -> str:
    """Fit the constants to studies and write predictor.yaml; gives the constants."""
    tables = {folder: estimates.read(folder / "estimates.parquet") for folder in folders}
    studies = {folder.name: [*measured(frame, folder.name)] for folder, frame in tables.items()}
    made = content(studies, never_fitted(UNSEEN))
    command = " ".join(["collocate step fit", *map(str, folders)])
    text = yaml.safe_dump(made, sort_keys=False, width=100, allow_unicode=True)
    about = f"# Written by: {command}\n# What the constants and errors are of: docs/methods.md\n"
    predict.FILE.write_text(about + text, encoding="utf-8")
    return yaml.safe_dump(made["constants"], sort_keys=False, width=100).rstrip()
