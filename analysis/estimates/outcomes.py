"""What became of each planned set, and counts of the whole study."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import pandas as pd

from analysis.estimates import runs as of_runs
from analysis.estimates.runs import COMPLETED, UNVERIFIED, Runs
from analysis.estimates.table import RANGE, replicate
from workflow.collocation.study.names import INTERLEAVED, Condition, conditions_of

NOT_RUN = "not_run"
KNOWN = (COMPLETED, "out_of_memory", "unsupported", "failed", "timed_out", NOT_RUN)


def _identity(cell: Mapping) -> str:
    return f"{cell['scenario']}/{cell['implementation']}/{cell['method']}/r{cell['replicate']}"


def outcomes(members: pd.DataFrame, plan: Sequence[Mapping]) -> pd.DataFrame:
    """What became of each planned set: completed replicates of those planned, and why not more.

    An interleaved cell is a replicate of each set that is a condition of it. Where it did not
    complete, that says nothing of one condition: such a replicate was not run.
    """
    cells: dict[tuple, dict] = defaultdict(dict)
    for cell in plan:
        for condition in _sets(cell["scenario"], cell["method"]):
            cells[condition.scenario, cell["implementation"], condition.method].setdefault(
                _identity(cell)
            )
    for run in members[members["current"]].drop_duplicates("run").itertuples():
        for condition in _sets(run.scenario, run.method):
            cells[condition.scenario, run.implementation, condition.method][run.cell] = run
    found = []
    for (scenario, implementation, method), by_cell in cells.items():
        tried = [run for run in by_cell.values() if run]
        counted = Counter(_became(run) if run else NOT_RUN for run in by_cell.values())
        done = [run for run in tried if run.status == COMPLETED]
        rest = sorted({s for s in counted if s != COMPLETED})
        # The most frequent status; what was run before what was not.
        worst = max(rest, key=lambda status: (status != NOT_RUN, counted[status]), default="")
        found.append(
            {"quantity": "outcome", "scenario": scenario}
            | {"implementation": implementation, "method": method}
            | {"value": float(counted[COMPLETED]), "n": counted.total()}
            | {"hosts": len({run.host for run in done}), "status": COMPLETED if done else worst}
            | {"note": next((run.reason for run in tried if run.reason), "")}
            | {"replicates": [replicate(run.at, 1.0) for run in done]}
        )
    return pd.DataFrame(found)


def _sets(scenario: str, method: str) -> list[Condition]:
    return [*conditions_of(scenario, method).values()] or [Condition(scenario, method)]


def _became(run: tuple) -> str:
    return run.status if run.condition or INTERLEAVED not in run.variant else NOT_RUN


def count(name: str, value: float, note: str, **more: object) -> dict:
    """A number of the whole study."""
    return {"quantity": "count", "name": name, "value": float(value), "note": note} | more


def _middle(name: str, found: pd.Series, note: str, **more: str) -> list[dict]:
    """The median, with the least and the most; nothing of nothing."""
    span = {"low": found.min(), "high": found.max(), "spread": RANGE} | more
    return [count(name, found.median(), note, **span)] if len(found) else []


def counts(runs: Runs, plan: Sequence[Mapping], estimates: pd.DataFrame) -> Iterator[dict]:
    """Numbers of the whole study: cells by status, hosts, windows, how well rates repeat."""
    members, hosts, left_out = runs
    every = members.drop_duplicates("run")
    current = every[every["current"]].drop_duplicates("cell", keep="last")
    planned = {*current["cell"], *map(_identity, plan)}
    by_status = Counter(current["status"])
    by_status[NOT_RUN] = len(planned) - by_status.total()
    yield count("cells", len(planned), "cells planned")
    for status in (*KNOWN, *sorted(by_status.keys() - {*KNOWN})):
        yield count(f"cells_{status}", by_status[status], f"cells {status.replace('_', ' ')}")
    yield count("hosts", len(hosts), "hosts that measured cells")
    yield count("sessions", hosts["sessions"].sum(), "visits to them")
    if begun := [datetime.fromisoformat(at).timestamp() for at in every["started_at"] if at]:
        yield count("began", min(begun), "when its first cell was measured, since 1970", unit="s")
    for host in hosts.itertuples():
        note = f"{host.machine}: {host.hardware}; {host.named}"
        yield count("host_cells", host.cells, note, host=host.host)
    for hardware, cells in left_out.items():
        yield count(f"left_out_{_slug(hardware)}", cells, f"cells on {hardware}, left out")
    done = every[every["current"] & every["measured"]]
    plain = done[(done["window"] == "") & (done["condition"] == "") & (done["window_s"] > 0)]
    note = "length of the plain windows"
    yield from _middle("window_s", plain["window_s"], note, unit="s")
    kept = of_runs.steady(members)[done["run"]].dropna()
    yield count("windows", len(kept), "windows whose rate was followed: not turns")
    yield count("windows_unsteady", (~kept).sum(), "windows whose total rate was not steady")
    sets = done["cell"].str.rsplit("/", n=1).str[0]
    for name, turns in (("replicates", False), ("replicates_interleaved", True)):
        times = done[(done["condition"] != "") == turns].groupby(sets)["cell"].nunique()
        what = "an interleaved cell" if turns else "a set"
        yield from _middle(name, times, f"completed replicates of {what}")
    varied = estimates[estimates["quantity"].eq("rate_cv") & estimates["host"].eq("")]
    varied = varied[varied["window"] == ""]  # not what runs on after a job left
    for name, one in (("alone", True), ("together", False)):
        sets = varied[(varied["jobs"] == 1) == one]
        sets = sets[sets["method"] == "naive"] if one else sets
        note = f"variation of throughput over a host's replicates, jobs {name}: middle of the sets"
        yield from _middle(f"cv_{name}", sets["value"], note)
    checked = members[members["current"] & members["measured"]]
    checked = checked.drop_duplicates(["at", "member"], keep="last")["loss_check"].dropna()
    for verdict, number in sorted(Counter(checked).items()):
        yield count(f"losses_{_slug(verdict)}", number, f"members whose loss: {verdict}")
    proven, not_proven = by_status[COMPLETED], by_status[UNVERIFIED]
    yield count("method_proven", proven, "completed cells whose method was proven in force")
    yield count("method_not_proven", not_proven, "completed cells without that proof")


def provenance(members: pd.DataFrame) -> Iterator[dict]:
    """Of what the completed cells were measured on and with; value: how many of them."""
    done = members[members["current"] & (members["status"] == COMPLETED)]
    source = done["source"].replace({"synthetic": "generated (synthetic)"}).astype(str)
    known = done["dataset"].notna() & (done["dataset"] != "")
    data = done["dataset"].astype(object) + ": " + source.astype(object)
    yield from _said("data", done, data.where(known))
    first = done.drop_duplicates("at").fillna({"gpu_name": "none"})
    named = {"CUDA driver": "driver", "GPU": "gpu_name"}
    named |= {name: name for name in ("python", "timm", "torch")}
    for label, column in named.items():
        yield from _said("software", first, f"{label} " + first[column])


def _said(kind: str, done: pd.DataFrame, what: pd.Series) -> Iterator[dict]:
    cells = done["at"].groupby(what).nunique()
    for text, number in sorted(cells.items()):
        yield count(f"{kind}_{_slug(text)}", number, text)


def _slug(text: object) -> str:
    return "".join(c if c.isalnum() else "_" for c in str(text)).strip("_").lower()
