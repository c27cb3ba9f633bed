"""runs.parquet as runs: one window of one cell, with its members, its block and its host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from analysis.records import flags
from analysis.records.safe import MOST_ROWS, read_table
from analysis.records.schema import SCHEMA
from workflow.collocation.spec.names import (
    ALONE_VARIANTS,
    ANCHOR,
    Scenario,
    Side,
    parse_scenario,
    sides_of,
)

PLAIN = "window"  # the window of a cell that has one only
COMPLETED, NOT_RUN = "completed", "not_run"


@dataclass(frozen=True)
class Run:
    """One window of one cell; `members` are its rows of runs.parquet, one per job.

    side: of an alternating cell, whose sides are runs of the sets that they are: scenario, method
    and members are this side's. again: another side of the cell is the same set.
    """

    cell: str
    scenario: Scenario
    arm: str
    method: str
    block: int
    device: str
    host: str
    status: str
    current: bool
    window: str
    members: tuple[Mapping, ...]
    side: str = ""
    again: bool = False

    def reading(self, name: str) -> float | None:
        """What the GPU did in the window: the same in the rows of all members."""
        return self.members[0].get(name)

    @cached_property
    def flags(self) -> list[str]:
        """Its own, as the column has them, and that its total did not keep its rate."""
        drifted = [flags.UNSTEADY] if steady(self) is False else []
        return [self.members[0]["flags"] or "", *drifted]

    @property
    def rates(self) -> list[float] | None:
        """Samples/s of each member, None where one is not known."""
        found = [member["samples_per_s"] for member in self.members]
        return found if all(found) else None

    @property
    def alike(self) -> bool:
        """Whether all members train the same workload, so that their samples add up."""
        return len({member["workload"] for member in self.members}) == 1

    @property
    def is_baseline(self) -> bool:
        """Whether others are normalised by it: a job alone, plain, completed."""
        return (
            self.status == COMPLETED
            and self.method == "naive"
            and self.scenario.n == 1
            and self.scenario.variant in ALONE_VARIANTS
            and self.window == PLAIN
        )


@dataclass(frozen=True)
class Host:
    """One machine with one model of GPU; hosts are labelled h1, h2, … as they were first used."""

    label: str
    machine: str
    hardware: str
    sessions: tuple[str, ...]
    cells: int


def read(path: Path) -> list[dict]:
    """Member rows of a merged study. Raises OSError, ValueError."""
    try:
        table = read_table(path, most=MOST_ROWS)
    except ValueError as error:
        raise ValueError(f"{path}: remove it, and it is merged anew: {error}") from None
    if missing := sorted(set(SCHEMA.names) - set(table.column_names)):
        raise ValueError(f"{path}: merge it anew: no column {', '.join(missing)}")
    return table.to_pylist()


def main_hardware(rows: Sequence[Mapping]) -> tuple[str, dict[str, int]]:
    """The GPU model with most completed cells, and how many the others have.

    Studies of several GPU models are never mixed: the others are left out, and said so.
    """
    counted: dict[str, set] = defaultdict(set)
    for row in rows:
        if row["status"] == COMPLETED and row["current"]:
            counted[row["hardware"]].add(row["cell"])
    if not counted:
        return "", {}
    ordered = sorted(counted, key=lambda name: (-len(counted[name]), str(name)))
    return ordered[0], {name: len(counted[name]) for name in ordered[1:]}


def hosts_of(rows: Iterable[Mapping]) -> dict[tuple, Host]:
    """(machine, hardware) → host."""
    first: dict[tuple, str] = {}
    cells, sessions = defaultdict(set), defaultdict(set)
    for row in rows:
        if row["status"] != COMPLETED:
            continue
        key = (row["machine"], row["hardware"])
        first[key] = min(first.get(key, "~"), row["started_at"] or "~")
        if row["current"] and parse_scenario(row["scenario"]).variant != ANCHOR:
            cells[key].add(row["cell"])
        sessions[key].add(row["session"] or "")
    ordered = sorted(first, key=lambda key: (first[key], str(key)))
    return {
        key: Host(f"h{place}", *map(str, key), tuple(sorted(sessions[key])), len(cells[key]))
        for place, key in enumerate(ordered, 1)
    }


def runs_of(rows: Iterable[Mapping], hosts: Mapping[tuple, Host]) -> list[Run]:
    """The runs in member rows; a cell that measured nothing is a run without a window."""
    grouped: dict[tuple, list[Mapping]] = defaultdict(list)
    for row in rows:
        grouped[row["cell"], row["attempt"], row["window"] or ""].append(row)
    found = []
    for (cell, attempt, window), members in grouped.items():
        first = members[0]
        sides = sides_of(first["scenario"], first["method"])
        side = sides.get(window) or Side(first["scenario"], first["method"])
        host = hosts.get((first["machine"], first["hardware"]))
        found.append(
            Run(
                cell=f"{cell}/a{attempt}",
                scenario=parse_scenario(side.scenario),
                arm=first["arm"],
                method=side.method,
                block=first["block"],
                device=first["device"] or "",
                host=host.label if host else "",
                status=first["status"],
                current=bool(first["current"]),
                window=PLAIN if window in sides else window,
                members=tuple(members),
                side=window if window in sides else "",
                again=side.again,
            )
        )
    return found


def steady(run: Run) -> bool | None:
    """Whether the set's total kept its rate over the window; None if it took turns, or its steps
    were too few to tell.

    The total's drift is that of its members weighted by their rates; in a mix, whose samples do not
    add up, each counts alike. It is unsteady where the drift between first and last third is 1 % or
    more and beyond two standard errors.
    """
    weights = (run.rates if run.alike else None) or [1.0] * len(run.members)
    known = [
        (weight, member["drift"], member["drift_error"] or 0.0)
        for weight, member in zip(weights, run.members, strict=True)
        if member["drift"] is not None
    ]
    total = sum(weight for weight, _, _ in known)
    if not total:
        return None
    drift = sum(weight * each for weight, each, _ in known) / total
    error = sum((weight * each) ** 2 for weight, _, each in known) ** 0.5 / total
    return abs(drift) < max(DRIFT, DRIFT_ERRORS * error)


# A total that changes by this much between the first and the last third is not steady, unless it is
# within so many standard errors.
DRIFT, DRIFT_ERRORS = 0.01, 2.0
