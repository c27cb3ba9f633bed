"""What the paper adds to a study's estimates: its values, lines read at its GRACT, and verdicts."""

from collections.abc import Iterator

import pandas as pd

from analysis.advice import predict
from paper.claims import claim_estimates
from paper.gract_lines import line_estimates
from paper.reported import read_reported, reported_estimates
from paper.rules import read_rules


def _reported(_estimates: pd.DataFrame) -> Iterator[dict]:
    return reported_estimates(read_reported())


def _verdicts(estimates: pd.DataFrame) -> Iterator[dict]:
    return claim_estimates(read_rules(), estimates)


# In this order: a line is read at the paper's GRACT, and verdicts compare all that is there.
ADDITIONS = (_reported, predict.predicted_estimates, line_estimates, _verdicts)
