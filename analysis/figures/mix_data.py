"""What the figure of mixes draws: estimates of an arm's mixes and departures, and its table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from analysis import flags, style
from analysis.figures import marks
from analysis.names import AFTER, BEFORE, method_order, parse_scenario
from analysis.pooling import pooled
from analysis.statistics import Estimate

COLUMNS = ["part", "scenario", "n", "method", "quantity", "member", "workload", "window", "block"]
COLUMNS += ["value", "mean", "low", "high", "status"]
_CELL = ["scenario", "method"]


@dataclass(frozen=True)
class Member:
    """A member of a cell in a window: its values by block."""

    workload: str
    progress: pd.Series
    ratio: pd.Series  # its rate after another left over before; only in the window after


@dataclass(frozen=True)
class MixData:
    """An arm's cells and members; estimates are by scenario, method and window, those of members
    and the members themselves also by member.
    """

    cells: dict[tuple, pd.DataFrame]  # by scenario, method: a row per block and window
    looks: dict[str, style.Look]
    members: dict[tuple, Member]
    progress: dict[tuple, Estimate]
    stp: dict[tuple, Estimate]
    antt: dict[tuple, Estimate]
    reclaimed: dict[tuple, Estimate]  # by scenario, method, member
    table: list[dict] = field(default_factory=list)

    def methods(self, scenario: str) -> list[str]:
        return sorted((m for s, m in self.cells if s == scenario), key=method_order)

    def statuses(self, scenario: str, method: str) -> pd.Series:
        """How each replicate ended, by block."""
        status = self.cells[scenario, method]["status"]
        return status[~status.index.duplicated()]

    def sign(self, scenario: str, method: str) -> str:
        """What stands behind a number: `*` where not all replicates completed, marks of flags."""
        partial = set(self.statuses(scenario, method)) != {"completed"}
        return ("*" if partial else "") + flags.marks(
            flags.union(self.cells[scenario, method]["flags"])
        )

    def note(self, *place: str, status: str, **more) -> None:
        """A row of the table for a cell without a number."""
        self._add(place, more | {"status": status})

    def note_outcomes(self, *place: str) -> None:
        """A row of the table per replicate of a cell that gave no number; place: as in note_all."""
        for block, status in self.statuses(*place[1:3]).items():
            self.note(*place, block=block, status=marks.missing(status))

    def note_all(self, values: pd.Series, estimate: Estimate, *place: str, **more) -> None:
        """A row of the table per value (by block); place: part, scenario, method, quantity."""
        numbers = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
        for block, value in values.items():
            told = {"block": block, "value": value, "status": "completed"}
            self._add(place, more | numbers | told)

    def _add(self, place: tuple, told: dict) -> None:
        part, scenario, method, quantity = place
        base = {"part": part, "scenario": scenario, "n": parse_scenario(scenario).n}
        self.table.append(base | {"method": method, "quantity": quantity} | told)


def gather(
    cells: pd.DataFrame,
    runs: pd.DataFrame,
    looks: dict[str, style.Look],
    stp: Mapping[tuple[str, str, str], Estimate],
) -> MixData:
    """Of the cells and their member rows; stp: by scenario, method and window (`cells.gains`).

    The variance of progress and ANTT is pooled over a mix's cells that are drawn; of rates after
    over before over its cells of one method, as in analysis.quantities.
    """
    runs = runs[(runs["status"] == "completed") & runs["window"].notna()]
    families = [parse_scenario(scenario).family for scenario in runs["scenario"]]
    runs = runs.assign(family=pd.Series(families, index=runs.index, dtype=object))
    keys = [*_CELL, "block", "member"]
    before = runs.loc[runs["window"] == BEFORE, [*keys, "samples_per_s"]]
    runs = runs.merge(before, on=keys, how="left", suffixes=("", "_before"))
    after = runs["window"] == AFTER
    runs["ratio"] = (runs["samples_per_s"] / runs["samples_per_s_before"]).where(after)
    found = defaultdict(list)
    columns = ["window", "member", "workload", "block", "progress", "ratio"]
    for row in runs.sort_values("block")[[*_CELL, *columns]].itertuples(index=False, name=None):
        found[row[:4]].append(row[4:])
    members = {key: _member(rows) for key, rows in found.items()}
    own = cells.set_index("block")[[*_CELL, "status", "flags", "stp", "antt"]]
    return MixData(
        dict(list(own.groupby(_CELL))),
        looks,
        members,
        pooled(runs, "progress", [*_CELL, "window", "member"]),
        stp,
        pooled(cells, "antt", [*_CELL, "window"]),
        pooled(runs, "ratio", [*_CELL, "member"], ["family", "method"]),
    )


def _member(rows: list[tuple]) -> Member:
    """Of rows of workload, block, progress and ratio."""
    blocks = pd.Index([row[1] for row in rows], name="block")
    values = (pd.Series([row[i] for row in rows], blocks, dtype=float).dropna() for i in (2, 3))
    return Member(rows[0][0], *values)
