"""The row of estimates.parquet, and how such rows are written and read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pyarrow as pa

from analysis.quantities import QUANTITIES
from analysis.records import schema as records
from analysis.records.safe import MOST_ROWS, read_table
from workflow.collocation.spec.names import parse_scenario

MEASURED = "measured"
# What low and high are: a 95 % interval of one host, least and most over hosts, or nothing.
INTERVAL, RANGE, NONE = "interval", "range", "none"
# How a number was measured (BOTH: its sides took turns in one cell).
BLOCKS, BOTH = "blocks", "both"


@dataclass(frozen=True)
class Replicate:
    """One block's part in a number.

    cell: scenario/arm/method/r<block>/a<attempt>. value = numerator / denominator where both are
    given. over: the cells that the denominator comes from, separated by blanks. batches: of an
    alternating cell the value in each batch of its rounds, where slices tell it.
    """

    cell: str
    value: float
    numerator: float | None = None
    denominator: float | None = None
    over: str = ""
    batches: tuple[float, ...] = ()


@dataclass(frozen=True)
class Estimate:
    """One published number: a row of estimates.parquet.

    quantity: a name of estimates.quantities. scenario: who shares the GPU; empty for numbers of the
    whole study. window: `before`, `after`, `completion` or `epochs` where the cell has several or
    another than the plain one. job: the workload, where the number is of one job of a mix. host:
    label of one host; empty: over all hosts. source: `measured`, or the key of a reported value.
    spread says what low and high are. n: replicates. hosts: hosts they come from. status: of an
    `outcome` what became of the cells, of a `claim` its verdict. flags: separated by ;. design:
    `alternate` (sides that take turns in one cell), `blocks` (a cell each), or over hosts `both`.
    """

    quantity: str
    scenario: str = ""
    arm: str = ""
    method: str = ""
    window: str = ""
    job: str = ""
    host: str = ""
    source: str = MEASURED
    name: str = ""  # of numbers of the whole study: which of their quantity
    value: float | None = None
    low: float | None = None
    high: float | None = None
    spread: str = NONE
    n: int = 0
    hosts: int = 0
    unit: str = ""
    relative_to: str = ""
    flags: str = ""
    status: str = ""
    note: str = ""
    design: str = ""
    replicates: tuple[Replicate, ...] = ()

    @property
    def id(self) -> str:
        """`quantity:scenario/arm/method[/window][/job][@host|@source]`, or `quantity:name`."""
        where = [self.scenario, self.arm, self.method, self.window, self.job, self.name]
        path = "/".join(part for part in where if part)
        at = self.host if self.source == MEASURED else self.source
        return f"{self.quantity}{':' if path else ''}{path}{f'@{at}' if at else ''}"

    @property
    def jobs(self) -> int:
        """How many share the GPU; 0 for numbers of the whole study."""
        return parse_scenario(self.scenario).n if self.scenario else 0

    @property
    def over_itself(self) -> bool:
        """True if it is one job's, over the same job: 1, without a spread."""
        return self.jobs == 1 and self.value == 1 and self.low == self.high

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its replicates."""
        return tuple(replicate.cell for replicate in self.replicates)


_REPLICATE = pa.struct(
    [
        ("cell", pa.string()),
        ("value", pa.float64()),
        ("numerator", pa.float64()),
        ("denominator", pa.float64()),
        ("over", pa.string()),
        ("batches", pa.list_(pa.float64())),
    ]
)
_TYPES = {"value": pa.float64(), "low": pa.float64(), "high": pa.float64()}
_TYPES |= {"n": pa.int64(), "hosts": pa.int64(), "replicates": pa.list_(_REPLICATE)}
COLUMNS = ("id", *(field.name for field in fields(Estimate)))
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in COLUMNS])


def described(estimate: Estimate) -> Estimate:
    """The estimate with unit and relative_to of its quantity, where it has none of its own."""
    known = QUANTITIES[estimate.quantity]
    return replace(
        estimate,
        unit=estimate.unit or known.unit,
        relative_to=estimate.relative_to or known.relative_to,
    )


def write(estimates: Sequence[Estimate], output: Path) -> None:
    """Write estimates.parquet, and beside it a CSV without the replicates, each atomically.

    Raises ValueError where two numbers have one id.
    """
    ids: set[str] = set()
    for estimate in estimates:
        if estimate.id in ids:
            raise ValueError(f"two numbers have the id {estimate.id}")
        ids.add(estimate.id)
    rows = [
        {"id": e.id, **vars(e), "replicates": [vars(each) for each in e.replicates]}
        for e in estimates
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    records.write(table, output, only_parquet=["replicates"])


def rows(path: Path) -> Iterable[Estimate]:
    """The rows of estimates.parquet. Raises OSError or ValueError where it is no such file."""
    if path.parent.is_dir() and not path.exists():
        raise FileNotFoundError(f"{path}: 'make figures STUDY={path.parent.name}' makes it")
    if not path.exists():
        others = sorted(other.parent.name for other in path.parents[1].glob(f"*/{path.name}"))
        known = f"; there are: {', '.join(others)}" if others else ""
        raise FileNotFoundError(f"{path.parent}: no results of a study{known}")
    try:
        table = read_table(path, most=MOST_ROWS)
        if not table.schema.equals(SCHEMA):
            raise ValueError("it has other columns")
        for row in table.to_pylist():
            row.pop("id")
            row["replicates"] = tuple(map(_replicate, row["replicates"] or ()))
            _check(found := Estimate(**row))
            yield found
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise ValueError(
            f"{path}: no table of estimates; remove it, and it is made anew: {error}"
        ) from error


def _replicate(row: dict) -> Replicate:
    return Replicate(**row | {"batches": tuple(row["batches"] or ())})


def _check(found: Estimate) -> None:
    """Raise ValueError unless every reader can rely on the row."""
    for name, value in vars(found).items():
        if value is None and name not in ("value", "low", "high"):
            raise ValueError(f"a row has no {name}")
    if found.quantity not in QUANTITIES or found.spread not in (INTERVAL, RANGE, NONE):
        raise ValueError(f"no quantity or spread {found.quantity[:60]!r}, {found.spread[:60]!r}")
    if not re.fullmatch(r"(h\d{1,9})?", found.host):
        raise ValueError(f"{found.host[:60]!r} is no host")
    if found.spread != NONE and None in (found.value, found.low, found.high):
        raise ValueError(f"{found.id[:200]!r} has a spread and not its ends")
    if found.scenario:
        parse_scenario(found.scenario)
