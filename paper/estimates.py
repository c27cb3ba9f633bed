"""What the paper adds to a study's estimates: its values, lines read at its GRACT, and verdicts."""

from collections.abc import Iterator

import pandas as pd

from analysis.advice import predict
from paper import claims, gract_lines, reported, rules


def _reported(_estimates: pd.DataFrame) -> Iterator[dict]:
    return reported.estimates(reported.read(reported.REPORTED))


def _verdicts(estimates: pd.DataFrame) -> Iterator[dict]:
    return claims.verdicts(rules.read(rules.CLAIMS), estimates)


# In this order: a line is read at the paper's GRACT, and verdicts compare all that is there.
ADDITIONS = (_reported, predict.predicted_estimates, gract_lines.read, _verdicts)
