"""What a figure is given of a study, and a digest of that: what it is not given it cannot draw.

So one whose digest is known need not be made to see that nothing about it has changed. Of the
figures of every arm that saves those of the arms in which no cell was measured again.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.cells import Study
from analysis.figures import EVERY_ARM

# These read files besides the tables, and are made each time.
_OF_FILES = ("timeline", "mig_layouts")
Task = tuple[str, str | None]  # figure and arm
_LOOKS = ["method", "sm_percent"]  # what methods of other arms are drawn with decides on one's own


def plain(study: Study) -> Study:
    """The study with text as objects: choosing rows of a column of pandas' own takes far longer."""

    def plainer(table: pd.DataFrame) -> pd.DataFrame:
        text = [name for name, kind in table.dtypes.items() if isinstance(kind, pd.StringDtype)]
        return table.astype(dict.fromkeys(text, object)).copy()  # copied: in few blocks

    tables = ("runs", "cells", "with_references")
    return replace(study, **{name: plainer(getattr(study, name)) for name in tables})


def seen(study: Study, name: str, arm: str | None) -> Study:
    """What a figure is given: of the arms that it does not show, looks alone."""
    if name in _OF_FILES:
        return study
    study = replace(study, telemetry=None, mig_layouts=None)
    if name not in EVERY_ARM:
        return study
    runs = _of_arm(study.runs, arm)
    return replace(study, runs=runs, cells=_of_arm(study.cells, arm), with_references=runs)


def digests(study: Study, tasks: list[Task]) -> dict[Task, str | None]:
    """Of all that `seen` gives to each; None where that is not all that is drawn."""
    known: dict[str | None, str] = {}
    found: dict[Task, str | None] = {}
    for name, arm in tasks:
        scope = arm if name in EVERY_ARM else None
        if name not in _OF_FILES and scope not in known:
            known[scope] = _digest(seen(study, name, arm))
        found[name, arm] = None if name in _OF_FILES else known[scope]
    return found


def _digest(study: Study) -> str:
    """Runs are among those with references."""
    found = hashlib.sha256(repr((study.hardware, study.note)).encode())
    for table in (study.cells, study.with_references, study.reported):
        if table is not None:
            found.update(repr(list(table.dtypes.items())).encode())
            found.update(pd.util.hash_pandas_object(table, index=False).to_numpy().tobytes())
    return found.hexdigest()[:16]


def _of_arm(table: pd.DataFrame, arm: str | None) -> pd.DataFrame:
    """Rows of an arm, and one for each look in the others, in which nothing else stands."""
    own = table["arm"] == arm
    looks = [name for name in _LOOKS if name in table]
    others = table[~own].drop_duplicates(looks).sort_values(looks)
    for name in others.columns.difference([*looks, "arm"]):
        kind = others[name].dtype
        others[name] = None if kind.hasobject else np.zeros(len(others), dtype=kind)
    others["arm"] = ""
    return pd.concat([table[own], others], ignore_index=True)
