"""One number per replicate: what a run says by itself, and against other runs of its replicate.

A run is one window of one set, a row of a DataFrame. What it is held against (its jobs alone, the
same set under another method, ...) is merged into that row, always of its own replicate and GPU, in
an interleaved cell of that cell. FORMULAS then gives each quantity as columns of all rows at once.
"""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.estimates.formulas import FORMULAS, GB
from workflow.collocation.study.names import AFTER, BEFORE, COMPLETION, SHARED

# An interval of an interleaved cell is by batch means: consecutive rounds, in each of which every
# condition has one slice, make BATCHES batches, but fewer where one would have fewer than ROUNDS
# rounds. A job alone that waits for its host is autocorrelated over 0.8 s, and a round takes 1 s or
# more. Ratios are of whole batches: the mean of logs of single slices is off by half their
# variance.
BATCHES, ROUNDS = 10, 2
FED = ["cpu_cores", "rss", "data_wait_share", "distinct_samples"]  # of studies of shared loaders
# What compared runs have in common.
WITHIN = ["scope", "batch", "replicate", "device", "implementation"]
RUN = ["batch", "run"]


def replicates(members: pd.DataFrame) -> pd.DataFrame:
    """Every quantity of every completed run: a row with quantity, run, job, value, and what it is
    made of (numerator, denominator, over). `batches`: of an interleaved cell the value in each.
    """
    used = members[members["measured"] & (members["current"] | members["baseline"])].copy()
    used["scope"] = used["at"].where(used["condition"] != "", "")
    used = used.rename(columns={"samples_per_s": "rate"})
    used["rate"] = used["rate"].where(used["rate"] > 0)
    used[FED] = used[FED].astype(float) if (used["input_mode"] == SHARED).any() else np.nan
    # The GPU's memory holds all conditions; power is read as a mean over longer than a slice.
    shared = ["power", "energy_j", "gpu_memory_used", "gpu_memory_total"]
    used.loc[used["condition"] != "", shared] = np.nan
    found = _values(used.assign(batch=-1))
    of, parts = ["quantity", "run", "job"], _batches(used)
    found["batches"] = [()] * len(found)
    if len(parts):
        made = parts.groupby("at")["batch"].nunique()
        by = _values(parts).groupby(of)["value"].agg(tuple).to_dict()
        own = [by.get(key, ()) for key in zip(*(found[name] for name in of), strict=True)]
        full = found["at"].map(made).fillna(0).tolist()
        found["batches"] = [
            b if b and len(b) == n and _varies(b) else () for b, n in zip(own, full, strict=True)
        ]
    return found


def _varies(found: tuple[float, ...]) -> bool:
    """What no slice tells is the same in all batches, and so says nothing of its spread."""
    return max(found) - min(found) > 1e-9 * abs(max(found))


def _batches(used: pd.DataFrame) -> pd.DataFrame:
    """Members of interleaved cells batch by batch, with the rate and GRACT of these rounds."""
    found = []
    for _, cell in used[used["condition"] != ""].groupby("at", sort=False):
        counted = {0 if slices is None else len(slices) for slices in cell["slices"]}
        rounds = min(counted)
        parts = np.array_split(np.arange(rounds), max(1, min(BATCHES, rounds // ROUNDS)))
        if len(counted) > 1 or len(parts) < 2:
            continue
        for member in cell.itertuples():
            for number, part in enumerate(parts):
                rate = _mean(member.slices, part)
                busy = member.gract
                if member.gract_slices is not None and len(member.gract_slices):
                    whole = len(member.gract_slices) == rounds
                    busy = _mean(member.gract_slices, part) if whole else np.nan
                found.append((member.Index, number, rate, busy))
    index, number, rate, busy = zip(*found, strict=True) if found else ((),) * 4
    parts = used.loc[[*index]].assign(batch=number, gract=busy)
    return parts.assign(rate=np.array(rate, dtype=float))


def _mean(values: list[float | None], part: np.ndarray) -> float:
    """Of the rounds of a batch that are known; NaN where none is."""
    known = [values[i] for i in part if values[i] is not None]
    return math.fsum(known) / len(known) if known else math.nan


# -- what a run is held against -------------------------------------------------------------------


def _values(used: pd.DataFrame) -> pd.DataFrame:
    members = _with_alone(used)
    runs = _runs(members)
    sets, again = runs[runs["current"] & ~runs["again"]], runs[runs["again"]]
    runs = runs[~runs["again"]]
    for method in ("naive", "mig", "mps"):
        runs = _beside(runs, sets[sets["method"] == method], method, "scenario")
    three = sets[(sets["jobs"] == 3) & ~sets["mixed"]]
    runs = _beside(runs, three, "three", "method", "workload", "variant")
    again = _beside(again, sets, "first", "scenario", "method")
    members = members.merge(runs[[*RUN, "alike", "known", "rated"]], on=RUN)
    tables = {"run": runs, "job": _jobs(members), "again": again, "stayed": _stayed(members)}
    found = [
        _rows(tables[kind], slot, *formula)
        for slot, (kind, *formulas) in enumerate(FORMULAS)
        for formula in formulas
    ]
    order = ["turned", *RUN, "slot", "at_job"]
    found = pd.concat([rows for rows in found if len(rows)], ignore_index=True)
    return found.assign(turned=found["scope"] != "").sort_values(order, kind="stable")


def _with_alone(used: pd.DataFrame) -> pd.DataFrame:
    """With each member's job alone (`alone_rate`, ...) and its progress, NaN where it has none.

    A job alone that was measured again because its replicate went on elsewhere is one, too.
    """
    key = [*WITHIN, "workload", "input_mode"]
    alone = used[used["baseline"] & ~used["again"]]
    alone = pd.concat([alone[~alone["current"]][::-1], alone[alone["current"]]])
    alone = alone.drop_duplicates(key, keep="last")
    alone = alone[alone["rate"].notna()]
    base = alone[key].assign(
        alone_rate=alone["rate"],
        alone_gract=alone["gract"].where(alone["gract"] != 0),
        alone_memory=_of_jobs(alone),
        alone_energy=_per_sample(alone, alone["rate"]),
        alone_tpot=alone["p99_tpot_ms"],
        alone_e2el=alone["p95_e2el_ms"],
        alone_at=alone["at"],
    )
    found = used.merge(base, on=key, how="left")
    found["rate"] = found["rate"].where(found["window"] != COMPLETION)
    work = (found["steps"] * found["batch_size"]).replace(0, np.nan)
    return found.assign(
        progress=found["rate"] / found["alone_rate"], serial=work / found["alone_rate"]
    )


def _of_jobs(table: pd.DataFrame) -> pd.Series:
    """GPU memory in use less what was in use before the members were built, GB."""
    used = table["gpu_memory_used"].replace(0, np.nan)
    return (used - table["idle_memory"].fillna(0.0)) / GB


def _per_sample(table: pd.DataFrame, rate: pd.Series) -> pd.Series:
    """Energy of the whole set per sample, J: no counter splits a GPU's energy among processes."""
    return (table["power"].replace(0, np.nan) / rate).where(table["energy_j"].notna())


def _runs(members: pd.DataFrame) -> pd.DataFrame:
    """A row per run: readings of the GPU, and what its members do together."""
    members = members.assign(
        slower=1 / members["progress"],
        device_work=members["progress"] * members["alone_gract"],
        work=(members["steps"] * members["batch_size"]).where(members["distinct_samples"].notna()),
    )
    group = members.groupby(RUN, sort=False)
    runs, size = members.drop_duplicates(RUN).set_index(RUN), group.size()

    def every(column: str, how: str) -> pd.Series:
        """Of a column that all members must have."""
        return group[column].agg(how).where(group[column].count() == size)

    # The rate of what answers requests is that of the requests: it tells no gain.
    trains = group["answered_share"].count() == 0
    progress, total = every("progress", "sum"), every("rate", "sum")
    stp = progress.where(trains)
    rated, total = total.notna(), total.where(trains)
    alike = group["workload"].nunique() == 1
    slowest = members.dropna(subset="slower").sort_values("slower", ascending=False, kind="stable")
    worst = slowest.drop_duplicates(RUN).set_index(RUN)
    over = members.fillna({"alone_at": ""}).drop_duplicates([*RUN, "alone_at"])
    memory = every("alone_memory", "sum").where(every("alone_memory", "min") != 0)
    return runs.assign(
        members=size,
        alike=alike,
        total=total,
        most=every("rate", "max"),
        least=every("rate", "min"),
        first_alone=runs["alone_rate"],
        first_busy=runs["alone_gract"],
        stp=stp,
        known=progress.notna(),
        rated=rated,
        trains=trains,
        antt=every("slower", "mean").where(trains),
        s=every("device_work", "sum").where(trains),
        worst_alone=worst["alone_rate"].where(stp.notna()),
        worst_rate=worst["rate"],
        worst_at=worst["alone_at"],
        over=over.groupby(RUN, sort=False)["alone_at"].agg(" ".join),
        busy=runs["gract"].where(runs["gract"] != 0),
        parts=memory.where(runs["window"] != COMPLETION),
        of_jobs=_of_jobs(runs),
        idle_memory=runs["idle_memory"].fillna(0.0),
        energy=_per_sample(runs, total.where(alike)),
        cpu=every("cpu_cores", "sum"),
        host_memory=every("rss", "sum") / GB,
        data_wait=every("data_wait_share", "mean"),
        distinct=every("distinct_samples", "mean"),
        samples=every("work", "mean"),
        took=runs["window_s"].where((runs["window_s"] != 0) & (runs["window"] == COMPLETION)),
        serial=every("serial", "sum"),
    ).reset_index()


def _beside(runs: pd.DataFrame, others: pd.DataFrame, name: str, *same: str) -> pd.DataFrame:
    """With another run of the same replicate and GPU, and the same window: `<name>_total`, ..."""
    keys = [*WITHIN, "window", *same]
    columns = ["total", "stp", "busy", "at"]
    others = others[[*keys, *columns]].drop_duplicates(keys, keep="last")
    return runs.merge(others.rename(columns={c: f"{name}_{c}" for c in columns}), "left", keys)


def _jobs(members: pd.DataFrame) -> pd.DataFrame:
    """A row per run and workload with its members' means. `job` is "" of jobs alike."""
    members = members.assign(
        job=members["workload"].where(~members["alike"], ""),
        at_job=members.groupby(RUN).cumcount(),
        rate=members["rate"].where(members["rated"] & members["answered_share"].isna()),
        slower=(1 / members["progress"]).where(members["known"] & members["answered_share"].isna()),
    )
    group = members.groupby([*RUN, "workload"], sort=False)
    jobs = members.drop_duplicates([*RUN, "workload"]).set_index([*RUN, "workload"])
    for column in ("rate", "slower"):
        jobs[column] = group[column].mean().where(group[column].count() == group.size())
    return jobs.reset_index()


def _stayed(members: pd.DataFrame) -> pd.DataFrame:
    """Runs after a job left: how much faster those that stay are, as a geometric mean."""
    before = members[(members["window"] == BEFORE) & members["current"]]
    keys = [*WITHIN, "scenario", "method", "member"]
    before = before[[*keys, "rate", "at"]].rename(columns={"rate": "earlier", "at": "before_at"})
    after = members[members["window"] == AFTER].merge(before, on=keys)
    after["reclaimed"] = np.log(after["rate"] / after["earlier"])
    found = after.drop_duplicates(RUN).set_index(RUN)
    found["reclaimed"] = np.exp(after.groupby(RUN)["reclaimed"].mean())
    return found.reset_index()


def _rows(
    table: pd.DataFrame, slot: int, quantity: str, of: Callable, over: str = ""
) -> pd.DataFrame:
    """The formula's value of every row that has one."""
    made = of(table)
    made = made if isinstance(made, tuple) else (made, np.nan, np.nan)
    value, *parts = made if len(made) == 3 else (made[0] / made[1], *made)
    numerator, denominator = (pd.Series(part, table.index) for part in parts)
    both = numerator.notna() & denominator.notna()
    rows = table[[*RUN, "scope", "at"]].assign(
        quantity=quantity,
        slot=slot,
        value=value,
        over=table[over] if over else "",
        numerator=numerator.where(both),
        denominator=denominator.where(both),
        job=table.get("job", ""),
        at_job=table.get("at_job", 0),
    )
    return rows[np.isfinite(rows["value"].astype(float))]
