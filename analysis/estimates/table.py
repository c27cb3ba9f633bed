"""estimates.parquet as a DataFrame: one row for each published number.

`read_estimates` gives it with ids as the index, in the order in which pages show numbers. A number
that is missing is NaN. `select` picks rows, `get` one of them. Single rows are named tuples, not
Series, because a Series has attributes `name` and `flags` of its own.
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

pd.options.mode.string_storage = "python"  # Arrow's is slow where text is read row by row

MEASURED = "measured"
# Column `spread`, what low and high are: the interval of a new host; of the next cell on one host;
# of the batches of a single interleaved cell; lowest and highest over hosts; or nothing.
PREDICTION, INTERVAL, CELL, RANGE, NONE = "prediction", "interval", "cell", "range", "none"
# Column `design`: cells of one set each; or those on some hosts, interleaved cells on others.
REPLICATES, MIXED_DESIGNS = "replicates", "both"
# Columns that say what a number is of; with quantity, and host or source, they make its id.
PLACE = ("scenario", "implementation", "method", "window", "job", "name")
_ORDER = ("scenario", "implementation", "method", "window", "job", "name", "host")  # of rows
COLUMNS = ("id", "quantity", *PLACE[:5], "host", "source", "name", "value", "low", "high")
COLUMNS += ("spread", "n", "hosts", "unit", "relative_to", "flags", "status", "note", "design")
COLUMNS += ("replicates",)
_REPLICATE = {"cell": pa.string()}
_REPLICATE |= dict.fromkeys(("value", "numerator", "denominator"), pa.float64())
_REPLICATE |= {"over": pa.string(), "batches": pa.list_(pa.float64())}
_TYPES = dict.fromkeys(("value", "low", "high"), pa.float64())
_TYPES |= {"n": pa.int64(), "hosts": pa.int64(), "replicates": pa.list_(pa.struct(_REPLICATE))}
SCHEMA = pa.schema([(name, _TYPES.get(name, pa.string())) for name in COLUMNS])
Row = namedtuple("Row", (*COLUMNS, "jobs"))  # jobs: how many share the GPU; 0 for the whole study


def replicate(cell: str, value: float, **columns: object) -> dict:
    """One cell of the column `replicates`.

    columns: numerator, denominator and over (cells of the denominator), where it has them.
    """
    empty = {"numerator": None, "denominator": None, "over": "", "batches": ()}
    return {"cell": cell, "value": value} | empty | columns


def read_estimates(path: Path) -> pd.DataFrame:
    """Reads estimates.parquet, sorted as pages show it; column `jobs` is how many share the GPU.

    Raises OSError or ValueError with one line where there is no such file.
    """
    require(path)
    frame = read_table(path).to_pandas()
    if tuple(frame.columns) != COLUMNS:
        raise ValueError(f"{path}: no table of estimates; remove it, and it is made anew")
    return ordered(frame)


def combined(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Joins rows under COLUMNS, and adds their ids, units and what they are relative to."""
    parts = [part for part in parts if len(part)] or [pd.DataFrame()]
    frame = pd.concat(parts, ignore_index=True).reindex(columns=COLUMNS)
    texts = [name for name in COLUMNS if name not in ("value", "low", "high", "replicates")]
    empty = dict.fromkeys(texts, "") | {"n": 0, "hosts": 0, "source": MEASURED, "spread": NONE}
    frame = frame.astype(dict.fromkeys(empty, object)).fillna(empty)
    frame = frame.astype({"n": int, "hosts": int, "value": float, "low": float, "high": float})
    for column in ("unit", "relative_to"):
        defaults = [getattr(QUANTITIES[name], column) for name in frame["quantity"]]
        defaults = pd.Series(defaults, frame.index)
        frame[column] = frame[column].mask(frame[column] == "", defaults)
    replicates = [cells if isinstance(cells, list) else [] for cells in frame["replicates"]]
    frame["replicates"] = pd.Series(replicates, frame.index, dtype=object)
    places = frame[["quantity", *PLACE, "host", "source"]].to_dict("records")
    return frame.assign(id=[identity(**place) for place in places])


def save_estimates(frame: pd.DataFrame, output: Path) -> None:
    """Writes estimates.parquet, and beside it a CSV without the replicates, each atomically.

    Raises ValueError where two numbers have one id.
    """
    duplicates = frame.loc[frame["id"].duplicated(), "id"]
    if len(duplicates):
        raise ValueError(f"two numbers have the id {duplicates.iloc[0]}")
    table = pa.Table.from_pandas(frame[list(COLUMNS)], schema=SCHEMA, preserve_index=False)
    write_table(table.replace_schema_metadata(), output, only_parquet=["replicates"])


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Sorts estimates as pages show them, with ids as the index and the column `jobs`.

    By implementation, mixes last, then by workload, count, method and host.
    """
    scenarios = {text: parse_scenario(text) for text in set(frame["scenario"]) - {""}}
    scenarios[""] = Scenario("", (), "")
    keys = []
    for row in frame[[*_ORDER]].itertuples(index=False):
        scenario = scenarios[row.scenario]
        key = (implementation_order(row.implementation), scenario.mixed, scenario.family)
        key += (scenario.variant, scenario.n, row.scenario, method_order(row.method))
        keys.append((*key, row.window, row.job, row.name, row.host))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    frame = frame.assign(jobs=[scenarios[text].n for text in frame["scenario"]])
    return frame.iloc[order].set_index("id", drop=False).rename_axis(None)


def identity(quantity: str, **where: str) -> str:
    """Makes the id of a number from its quantity, place, and host or source.

    `quantity:scenario/implementation/method[/window][/job][@host|@source]`, or `quantity:name`.
    """
    path = "/".join(where[part] for part in PLACE if where.get(part))
    source = where.get("source", MEASURED)
    suffix = where.get("host", "") if source == MEASURED else source
    return f"{quantity}{':' if path else ''}{path}{f'@{suffix}' if suffix else ''}"


def get(frame: pd.DataFrame, quantity: str, **where: str) -> Row | None:
    """Finds the number of exactly this place, or None.

    where: scenario, implementation, method, window, job, host, source, name; "" by default.
    """
    return get_by_id(frame, identity(quantity, **where))


def place(estimate: Row) -> dict[str, str]:
    """Scenario, implementation and method of an estimate, to look up others of the same set."""
    names = ("scenario", "implementation", "method")
    return {name: getattr(estimate, name) for name in names}


def get_by_id(frame: pd.DataFrame, identity: str) -> Row | None:
    """Finds the number with an id, or None."""
    if identity not in frame.index:
        return None
    return Row(*frame.iloc[frame.index.get_loc(identity)])


def by_id(frame: pd.DataFrame) -> dict[str, Row]:
    """Maps ids to numbers: faster than `get` where thousands are looked up."""
    return {row.id: row for row in frame.itertuples(index=False, name="Row")}


def select(frame: pd.DataFrame, quantity: str, **where: str) -> pd.DataFrame:
    """Finds all numbers of a quantity whose columns have these values.

    By default measured ones over all hosts; host="*" selects those of single hosts, and "*" for
    another column any value there.
    """
    for column, value in ({"quantity": quantity, "source": MEASURED, "host": ""} | where).items():
        if value != "*":
            frame = frame[frame[column] == value]
        elif column == "host":
            frame = frame[frame["host"] != ""]
    return frame


def on_hosts(frame: pd.DataFrame, row: Row) -> pd.DataFrame:
    """Finds the same number on each host."""
    ids = [f"{row.id.partition('@')[0]}@{host}" for host in hosts(frame)]
    return frame.loc[[name for name in ids if name in frame.index]]


def ranged(row: Row, values: Sequence[float]) -> Row:
    """Replaces an interval by the lowest and the highest value of several hosts."""
    if len(values) < 2:
        return row
    return row._replace(spread=RANGE, low=min(values), high=max(values))


def hosts(frame: pd.DataFrame) -> list[str]:
    """Labels of the study's hosts, in the order in which they were first used."""
    return sorted({*frame["host"].unique()} - {""}, key=lambda host: int(re.sub(r"\D", "", host)))


def hardware(frame: pd.DataFrame) -> list[str]:
    """Names of the GPUs (or CPUs) of the study's hosts, without repetition."""
    notes = select(frame, "count", host="*", name="host_cells")["note"]
    return list(dict.fromkeys(note.split(": ")[-1].split(";")[0] for note in notes))


def implementations(frame: pd.DataFrame) -> list[str]:
    """Implementations of the study's jobs."""
    names = set(select(frame, "outcome", source="*")["implementation"])
    return sorted(names, key=implementation_order)


def workloads(frame: pd.DataFrame) -> list[str]:
    """Every workload of the study, including those of mixes, small scenarios first."""
    names = {}
    for scenario in select(frame, "outcome")["scenario"]:
        names.update(dict.fromkeys(job for job, _ in parse_scenario(scenario).parts))
    return list(names)
