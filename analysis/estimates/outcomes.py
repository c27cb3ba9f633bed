"""What became of each planned set, and counts of the whole study."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import pandas as pd

from analysis.estimates.runs import COMPLETED, UNVERIFIED, StudyRuns, steady_runs
from analysis.estimates.table import RANGE, replicate
from workflow.collocation.study.names import INTERLEAVED, Condition, conditions_of

NOT_RUN = "not_run"
STATUSES = (COMPLETED, "out_of_memory", "unsupported", "failed", "timed_out", NOT_RUN)
# Name in a count → the column of runs.parquet.
SOFTWARE = {"CUDA driver": "driver", "GPU": "gpu_name"}
SOFTWARE |= {"python": "python", "timm": "timm", "torch": "torch"}


def set_outcomes(members: pd.DataFrame, plan: Sequence[Mapping]) -> pd.DataFrame:
    """Tells for each planned set how many of its replicates completed, and why not more.

    An interleaved cell is a replicate of each set that is a condition of it. One that did not
    complete says nothing of a single condition: it counts as not run.
    """
    cells: dict[tuple, dict] = defaultdict(dict)  # set → cell → its run, None without any
    for cell in plan:
        for condition in _conditions(cell["scenario"], cell["method"]):
            place = condition.scenario, cell["implementation"], condition.method
            cells[place].setdefault(cell["id"])
    for run in members[members["current"]].drop_duplicates("run").itertuples():
        for condition in _conditions(run.scenario, run.method):
            cells[condition.scenario, run.implementation, condition.method][run.cell] = run
    rows = []
    for (scenario, implementation, method), run_of_cell in cells.items():
        runs = [run for run in run_of_cell.values() if run]
        statuses = Counter(_set_status(run) if run else NOT_RUN for run in run_of_cell.values())
        completed = [run for run in runs if run.status == COMPLETED]
        rows.append(
            {
                "quantity": "outcome",
                "scenario": scenario,
                "implementation": implementation,
                "method": method,
                "value": float(statuses[COMPLETED]),
                "n": statuses.total(),
                "hosts": len({run.host for run in completed}),
                "status": COMPLETED if completed else _most_frequent(statuses),
                "note": next((run.reason for run in runs if run.reason), ""),
                "replicates": [replicate(run.at, 1.0) for run in completed],
            }
        )
    return pd.DataFrame(rows)


def _conditions(scenario: str, method: str) -> list[Condition]:
    """The sets of an interleaved cell, else the cell's only one."""
    return list(conditions_of(scenario, method).values()) or [Condition(scenario, method)]


def _set_status(run: tuple) -> str:
    return run.status if run.condition or INTERLEAVED not in run.variant else NOT_RUN


def _most_frequent(statuses: Counter) -> str:
    """The most frequent status, but NOT_RUN only if there is no other."""
    return max(sorted(statuses), key=lambda status: (status != NOT_RUN, statuses[status]))


def _count(name: str, value: float, note: str, **columns: object) -> dict:
    """A row of estimates with a number of the whole study."""
    return {"quantity": "count", "name": name, "value": float(value), "note": note} | columns


def study_counts(
    study_runs: StudyRuns, plan: Sequence[Mapping], estimates: pd.DataFrame
) -> Iterator[dict]:
    """Yields counts of the whole study: cells by status, hosts, windows, how well rates repeat."""
    members, hosts, left_out = study_runs
    runs = members.drop_duplicates("run")
    current = runs[runs["current"]].drop_duplicates("cell", keep="last")
    statuses = Counter(current["status"])
    planned = {*current["cell"], *(cell["id"] for cell in plan)}
    statuses[NOT_RUN] = len(planned) - statuses.total()
    yield _count("cells", len(planned), "measurements planned")
    for status in (*STATUSES, *sorted(statuses.keys() - {*STATUSES})):
        yield _count(f"cells_{status}", statuses[status], f"of them {status.replace('_', ' ')}")
    yield _count("hosts", len(hosts), "hosts that measured")
    yield _count("sessions", hosts["sessions"].sum(), "visits to them")
    times = [datetime.fromisoformat(time).timestamp() for time in runs["started_at"] if time]
    if times:
        note = "when the first measurement began, since 1970"
        yield _count("began", min(times), note, unit="s")
    for host in hosts.itertuples():
        note = f"{host.machine}: {host.hardware}; {host.named}"
        yield _count("host_cells", host.cells, note, host=host.host)
    for hardware, cells in left_out.items():
        yield _count(f"left_out_{_slug(hardware)}", cells, f"measurements on {hardware}, left out")
    yield from _window_counts(members, runs[runs["current"] & runs["measured"]])
    yield from _variation_counts(estimates)
    checked = members[members["current"] & members["measured"]]
    checked = checked.drop_duplicates(["at", "member"], keep="last")["loss_check"].dropna()
    for verdict, number in sorted(Counter(checked).items()):
        yield _count(f"losses_{_slug(verdict)}", number, f"members whose loss: {verdict}")
    note = "completed measurements whose method was proven in force"
    yield _count("method_proven", statuses[COMPLETED], note)
    yield _count("method_not_proven", statuses[UNVERIFIED], "completed without that proof")


def _window_counts(members: pd.DataFrame, completed: pd.DataFrame) -> Iterator[dict]:
    """Lengths of windows, how many were steady, and how many replicates sets have."""
    interleaved = completed["condition"] != ""
    plain = completed[(completed["window"] == "") & ~interleaved & (completed["window_s"] > 0)]
    yield from _median("window_s", plain["window_s"], "length of the plain windows", unit="s")
    steady = steady_runs(members)[completed["run"]].dropna()
    yield _count("windows", len(steady), "windows whose rate was followed: not turns")
    yield _count("windows_unsteady", (~steady).sum(), "windows whose total rate was not steady")
    sets = completed["cell"].str.rsplit("/", n=1).str[0]
    replicates = completed[~interleaved].groupby(sets)["cell"].nunique()
    yield from _median("replicates", replicates, "completed replicates of the same jobs")
    replicates = completed[interleaved].groupby(sets)["cell"].nunique()
    note = "completed replicates of jobs that take turns"
    yield from _median("replicates_interleaved", replicates, note)


def _variation_counts(estimates: pd.DataFrame) -> Iterator[dict]:
    """How well rates repeat on one host, of jobs alone and of sets."""
    rates = estimates[estimates["quantity"].eq("rate_cv") & estimates["host"].eq("")]
    rates = rates[rates["window"] == ""]  # not of jobs that go on after another left
    alone = rates[(rates["jobs"] == 1) & (rates["method"] == "naive")]
    for name, sets in (("alone", alone), ("together", rates[rates["jobs"] != 1])):
        note = f"variation of throughput over a host's replicates, jobs {name}: the median"
        yield from _median(f"cv_{name}", sets["value"], note)


def _median(name: str, values: pd.Series, note: str, **columns: str) -> Iterator[dict]:
    """A count's median with its range, if there are values."""
    if len(values):
        ends = {"low": values.min(), "high": values.max(), "spread": RANGE}
        yield _count(name, values.median(), note, **ends, **columns)


def provenance_counts(members: pd.DataFrame) -> Iterator[dict]:
    """Yields how many completed cells were measured on which data and with which software."""
    completed = members[members["current"] & (members["status"] == COMPLETED)]
    source = completed["source"].replace({"synthetic": "generated (synthetic)"}).astype(str)
    has_dataset = completed["dataset"].notna() & (completed["dataset"] != "")
    texts = completed["dataset"].astype(object) + ": " + source.astype(object)
    yield from _cells_by_text("data", completed, texts.where(has_dataset))
    first = completed.drop_duplicates("at").fillna({"gpu_name": "none"})
    for label, column in SOFTWARE.items():
        yield from _cells_by_text("software", first, f"{label} " + first[column])


def _cells_by_text(prefix: str, completed: pd.DataFrame, texts: pd.Series) -> Iterator[dict]:
    cells = completed["at"].groupby(texts).nunique()
    for text, number in sorted(cells.items()):
        yield _count(f"{prefix}_{_slug(text)}", number, text)


def _slug(text: object) -> str:
    return "".join(c if c.isalnum() else "_" for c in str(text)).strip("_").lower()
