"""A study's numbers as the old reader's rows, until pages and figures read DataFrames."""

import pandas as pd

from analysis import publish
from analysis.estimates.schema import Estimate, Replicate
from analysis.records.schema import SCHEMA


def build(rows, plan, work):
    """As `publish.build`: a list of Estimate."""
    found = publish.build(pd.DataFrame(rows, columns=SCHEMA.names), plan, work)
    return [Estimate(**_known(row)) for row in found.drop(columns="id").to_dict("records")]


def _known(row):
    row["replicates"] = tuple(
        Replicate(**each | {"batches": tuple(each["batches"])}) for each in row["replicates"]
    )
    return {k: None if k in ("value", "low", "high") and v != v else v for k, v in row.items()}
