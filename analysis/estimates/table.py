"""estimates.parquet as a DataFrame: one row for each published number.

`read` gives it with its ids as the index, in the order in which pages show numbers. A number that
is not there is NaN. `of` picks rows, `get` one of them; rows are named tuples (`frame.itertuples()`
gives the same fields), because a Series has own meanings for `name` and `flags`.
"""

import re
from collections import namedtuple
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from analysis.estimates.quantities import QUANTITIES
from analysis.files import read_table, require, write_table
from workflow.collocation.study.names import (
    Scenario,
    implementation_order,
    method_order,
    parse_scenario,
)

pd.options.mode.string_storage = "python"  # text is read row by row, which Arrow's is slow at

MEASURED = "measured"
# What low and high are: the 95 % interval of a new host, or of one host's next cell; what a single
# interleaved cell tells of itself; least and most over hosts; or nothing.
PREDICTION, INTERVAL, CELL, RANGE, NONE = "prediction", "interval", "cell", "range", "none"
# Design of a number that some hosts have of cells of their own, and others of interleaved cells.
REPLICATES, BOTH = "replicates", "both"
# What a number is of; together with quantity, and host or source, they make its id.
PLACE = ("scenario", "implementation", "method", "window", "job", "name")
COLUMNS = ("id", "quantity", *PLACE[:5], "host", "source", "name", "value", "low", "high")
COLUMNS += ("spread", "n", "hosts", "unit", "relative_to", "flags", "status", "note", "design")
COLUMNS += ("replicates",)
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
_TYPES = dict.fromkeys(("value", "low", "high"), pa.float64())
_TYPES |= {"n": pa.int64(), "hosts": pa.int64(), "replicates": pa.list_(_REPLICATE)}
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in COLUMNS])
Row = namedtuple("Row", (*COLUMNS, "jobs"))  # jobs: how many share the GPU; 0 for the whole study


def replicate(cell: str, value: float, **more: object) -> dict:
    """One cell of column `replicates`: numerator, denominator and over, where it has them."""
    empty = {"numerator": None, "denominator": None, "over": "", "batches": ()}
    return {"cell": cell, "value": value} | empty | more


def read(path: Path) -> pd.DataFrame:
    """The table, sorted as pages show it; column `jobs` is how many share the GPU.

    Raises OSError or ValueError with one line where there is no such file.
    """
    require(path)
    frame = read_table(path).to_pandas()
    if tuple(frame.columns) != COLUMNS:
        raise ValueError(f"{path}: no table of estimates; remove it, and it is made anew")
    return ordered(frame)


def combined(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several kinds under COLUMNS, with their ids, units and what they are relative to."""
    found = pd.concat([part for part in parts if len(part)] or [pd.DataFrame()], ignore_index=True)
    found = found.reindex(columns=COLUMNS)
    words = [name for name in COLUMNS if name not in ("value", "low", "high", "replicates")]
    empty = dict.fromkeys(words, "") | {"n": 0, "hosts": 0, "source": MEASURED, "spread": NONE}
    found = found.astype(dict.fromkeys(empty, object)).fillna(empty)
    found = found.astype({"n": int, "hosts": int, "value": float, "low": float, "high": float})
    for column in ("unit", "relative_to"):
        own = [getattr(QUANTITIES[name], column) for name in found["quantity"]]
        found[column] = found[column].mask(found[column] == "", pd.Series(own, found.index))
    lists = [r if isinstance(r, list) else [] for r in found["replicates"]]
    found["replicates"] = pd.Series(lists, found.index, dtype=object)
    places = found[["quantity", *PLACE, "host", "source"]].to_dict("records")
    return found.assign(id=[identity(**place) for place in places])


def write(found: pd.DataFrame, output: Path) -> None:
    """Write estimates.parquet, and beside it a CSV without the replicates, each atomically.

    Raises ValueError where two numbers have one id.
    """
    if (twice := found["id"].duplicated()).any():
        raise ValueError(f"two numbers have the id {found.loc[twice, 'id'].iloc[0]}")
    made = pa.Table.from_pandas(found[list(COLUMNS)], schema=SCHEMA, preserve_index=False)
    write_table(made.replace_schema_metadata(), output, only_parquet=["replicates"])


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """With `jobs`, by id, in the order of pages: implementation, mixes last, workload, count,
    method, host.
    """
    parsed = {s: parse_scenario(s) if s else Scenario("", (), "") for s in set(frame["scenario"])}
    frame = frame.assign(jobs=[parsed[s].n for s in frame["scenario"]])
    keys = [
        (implementation_order(e.implementation), p.mixed, p.family, p.variant, p.n, e.scenario)
        + (method_order(e.method), e.window, e.job, e.name, e.host)
        for e in frame.itertuples()
        for p in (parsed[e.scenario],)
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return frame.iloc[order].set_index("id", drop=False).rename_axis(None)


def identity(quantity: str, **where: str) -> str:
    """`quantity:scenario/implementation/method[/window][/job][@host|@source]`, or
    `quantity:name`.
    """
    path = "/".join(where[part] for part in PLACE if where.get(part))
    source = where.get("source", MEASURED)
    at = where.get("host", "") if source == MEASURED else source
    return f"{quantity}{':' if path else ''}{path}{f'@{at}' if at else ''}"


def get(frame: pd.DataFrame, quantity: str, **where: str) -> Row | None:
    """The number of exactly this place (scenario, implementation, method, window, job, host,
    source, name; empty by default), or None.
    """
    return at(frame, identity(quantity, **where))


def place(estimate: Row) -> dict[str, str]:
    """Scenario, implementation and method of an estimate, to look up others of the same set."""
    names = ("scenario", "implementation", "method")
    return {name: getattr(estimate, name) for name in names}


def at(frame: pd.DataFrame, identity: str) -> Row | None:
    """The number of an id, or None."""
    if identity not in frame.index:
        return None
    return Row(*frame.iloc[frame.index.get_loc(identity)])


def by_id(frame: pd.DataFrame) -> dict[str, Row]:
    """Every number by its id: for who looks up thousands."""
    return {e.id: e for e in frame.itertuples(index=False, name="Row")}


def of(frame: pd.DataFrame, quantity: str, **where: str) -> pd.DataFrame:
    """All numbers of a quantity whose columns are as given: measured ones over all hosts by
    default. host="*" gives those of single hosts, another "*" those with any value there.
    """
    for column, value in ({"quantity": quantity, "source": MEASURED, "host": ""} | where).items():
        if value == "*":
            frame = frame[frame["host"] != ""] if column == "host" else frame
        else:
            frame = frame[frame[column] == value]
    return frame


def on_hosts(frame: pd.DataFrame, e: Row) -> pd.DataFrame:
    """The same number host by host."""
    ids = [f"{e.id.partition('@')[0]}@{host}" for host in hosts(frame)]
    return frame.loc[[each for each in ids if each in frame.index]]


def ranged(e: Row, values: Sequence[float]) -> Row:
    """With the lowest and the highest value of several hosts in place of an interval."""
    several = len(values) > 1
    return e._replace(spread=RANGE, low=min(values), high=max(values)) if several else e


def hosts(frame: pd.DataFrame) -> list[str]:
    """Labels of the study's hosts, in the order in which they were first used."""
    return sorted(set(frame["host"]) - {""}, key=lambda host: int(re.sub(r"\D", "", host)))


def hardware(frame: pd.DataFrame) -> list[str]:
    """Names of the GPUs (or CPUs) of the study's hosts, each once."""
    notes = of(frame, "count", host="*", name="host_cells")["note"]
    return list(dict.fromkeys(note.split(": ")[-1].split(";")[0] for note in notes))


def implementations(frame: pd.DataFrame) -> list[str]:
    """Ways in which the study's jobs are written."""
    return sorted(set(of(frame, "outcome", source="*")["implementation"]), key=implementation_order)


def workloads(frame: pd.DataFrame) -> list[str]:
    """Every workload of the study, those of mixes included, small scenarios first."""
    scenarios = of(frame, "outcome")["scenario"]
    return list(dict.fromkeys(name for s in scenarios for name, _ in parse_scenario(s).parts))
