"""The throughput gain (STP) of a set, predicted from what each of its jobs shows alone.

The form is n / (1 + (k X)^p)^(1/p): n while the GPU has room for all, n / (k X) when it is full.
X is a sum over the members: of GRACT alone for separate processes, which take turns, of SMACT alone
under MPS, where kernels run side by side. config/predictor.yaml holds the constants, and how far
off they were on jobs left out of the fit; `python -m analysis fit` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml

FILE = Path(__file__).resolve().parents[1] / "config/predictor.yaml"
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


class Constants(NamedTuple):
    """Of one method and kind of job; `error`: 90 % quantile of |measured / predicted - 1|."""

    k: float
    p: float
    error: float


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
def read(path: Path = FILE) -> Mapping[tuple[str, str], Constants]:
    """Constants by method and kind. Raises OSError, or ValueError with the file's name."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))["constants"]
        return {
            (method, kind): Constants(of["k"], of["p"], of.get("unseen", of)["error_90"])
            for method in ACTIVITY
            for kind in (GAPS, NO_GAPS)
            for of in [found[method][kind]]
        }
    except KeyError as error:
        raise ValueError(f"{path}: no {error}; 'python -m analysis fit' makes it anew") from None
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def predict(method: str, alone: Sequence[Alone], path: Path = FILE) -> Prediction:
    """STP of the jobs together by `naive` or `mps`; one entry for each member.

    Raises ValueError for another method, no job, or shares outside 0 to 1; OSError or ValueError
    where the constants cannot be read.
    """
    if method not in ACTIVITY:
        raise ValueError(f"{method}: only {' and '.join(ACTIVITY)} can be predicted")
    if not alone or not all(0 <= share <= 1 for job in alone for share in job):
        raise ValueError("a prediction needs GRACT and SMACT of each job alone, from 0 to 1")
    kind = kind_of(alone)
    constants = read(path)[method, kind]
    stp = form(len(alone), demand(method, alone), constants.k, constants.p)
    ends = stp * (1 - constants.error), stp * (1 + constants.error)
    return Prediction(stp, *ends, constants.error, kind)
