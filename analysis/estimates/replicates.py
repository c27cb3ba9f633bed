"""One number per replicate: what a run says by itself, and against other runs of its replicate.

A run is one window of one set, a row of a DataFrame. What it is compared with (its jobs alone, the
same set under another method, ...) is merged into that row, always from its own replicate and GPU,
in an interleaved cell from that cell. FORMULAS then computes each quantity of all rows at once.
"""

import math
from itertools import groupby

import numpy as np
import pandas as pd

from analysis.estimates.formulas import AFTER_DEPARTURE, FORMULAS, GB, JOB, REPEATED, RUN, Formula
from workflow.collocation.study.names import AFTER, BEFORE, COMPLETION, SHARED

# The interval of an interleaved cell comes from batch means. Consecutive rounds, in each of which
# every condition has one slice, form BATCHES batches, or fewer of at least MIN_ROUNDS rounds. A job
# alone that waits for its host is autocorrelated over 0.8 s, and a round takes 1 s or more. Ratios
# are of whole batches: the mean of logs of single slices is off by half their variance.
BATCHES, MIN_ROUNDS = 10, 2
LOADER_COLUMNS = ["cpu_cores", "rss", "data_wait_share", "distinct_samples"]
# An interleaved cell's memory holds all conditions, and power is a mean over more than a slice.
NOT_OF_SLICES = ["power", "energy_j", "gpu_memory_used", "gpu_memory_total"]
COMPARABLE = ["scope", "batch", "replicate", "device", "implementation"]  # same in compared runs
RUN_KEY = ["batch", "run"]
KEY = ["quantity", "run", "job"]


def replicates_of_runs(members: pd.DataFrame) -> pd.DataFrame:
    """Computes every quantity of every completed run.

    members: as of `runs.prepare_runs`. Returns rows with quantity, run, job, value, numerator,
    denominator, over (the cells of the denominator) and, for interleaved cells, `batches`: the
    value in each batch of rounds.
    """
    used = members[members["measured"] & (members["current"] | members["baseline"])].copy()
    used["scope"] = used["at"].where(used["condition"] != "", "")
    used = used.rename(columns={"samples_per_s": "rate"})
    used["rate"] = used["rate"].where(used["rate"] > 0)
    has_loader = (used["input_mode"] == SHARED).any()
    used[LOADER_COLUMNS] = used[LOADER_COLUMNS].astype(float) if has_loader else np.nan
    used.loc[used["condition"] != "", NOT_OF_SLICES] = np.nan
    replicates = _replicates(used.assign(batch=-1))
    parts = _split_into_batches(used)
    replicates["batches"] = [()] * len(replicates)
    if len(parts):
        batch_counts = parts.groupby("at")["batch"].nunique()
        counts = replicates["at"].map(batch_counts).fillna(0)
        batch_values = _replicates(parts).groupby(KEY)["value"].agg(tuple).to_dict()
        keys = zip(*(replicates[name] for name in KEY), strict=True)
        batches = []
        for key, count in zip(keys, counts, strict=True):
            values = batch_values.get(key, ())
            usable = values and len(values) == count and _varies(values)
            batches.append(values if usable else ())
        replicates["batches"] = batches
    return replicates


def _varies(values: tuple[float, ...]) -> bool:
    """Whether batches differ: what slices do not record is equal in all, and has no spread."""
    return max(values) - min(values) > 1e-9 * abs(max(values))


def _split_into_batches(used: pd.DataFrame) -> pd.DataFrame:
    """Rows of members of interleaved cells, for each batch, with its mean rate and GRACT."""
    rows = {"index": [], "batch": [], "rate": [], "gract": []}
    for _, cell in used[used["condition"] != ""].groupby("at", sort=False):
        slice_counts = {0 if slices is None else len(slices) for slices in cell["slices"]}
        rounds = min(slice_counts)
        batches = np.array_split(np.arange(rounds), max(1, min(BATCHES, rounds // MIN_ROUNDS)))
        if len(slice_counts) > 1 or len(batches) < 2:
            continue
        for member in cell.itertuples():
            for number, batch in enumerate(batches):
                gract = member.gract
                if member.gract_slices is not None and len(member.gract_slices):
                    complete = len(member.gract_slices) == rounds
                    gract = _mean(member.gract_slices, batch) if complete else np.nan
                rows["index"].append(member.Index)
                rows["batch"].append(number)
                rows["rate"].append(_mean(member.slices, batch))
                rows["gract"].append(gract)
    parts = used.loc[rows.pop("index")].assign(batch=rows["batch"], gract=rows["gract"])
    return parts.assign(rate=np.array(rows["rate"], dtype=float))


def _mean(slices: list[float | None], batch: np.ndarray) -> float:
    """The mean of a batch's slices that have a value; NaN where none has."""
    values = [slices[i] for i in batch if slices[i] is not None]
    return math.fsum(values) / len(values) if values else math.nan


def _replicates(used: pd.DataFrame) -> pd.DataFrame:
    members = _add_alone(used)
    all_runs = _runs(members)
    repeated, runs = all_runs[all_runs["again"]], all_runs[~all_runs["again"]]
    current = runs[runs["current"]]
    for method in ("naive", "mig", "mps"):
        same_method = current[current["method"] == method]
        runs = _add_counterpart(runs, same_method, method, ["scenario"])
    three = current[(current["jobs"] == 3) & ~current["mixed"]]
    runs = _add_counterpart(runs, three, "three", ["method", "workload", "variant"])
    repeated = _add_counterpart(repeated, current, "first", ["scenario", "method"])
    members = members.merge(runs[[*RUN_KEY, "alike", "all_progress", "all_rated"]], on=RUN_KEY)
    tables = {RUN: runs, JOB: _jobs(members), REPEATED: repeated}
    tables[AFTER_DEPARTURE] = _after_departure(members)
    rows = []
    for slot, (name, formulas) in enumerate(groupby(FORMULAS, lambda formula: formula.table)):
        rows += [_formula_rows(tables[name], slot, formula) for formula in formulas]
    rows = pd.concat([part for part in rows if len(part)], ignore_index=True)
    rows["interleaved"] = rows["scope"] != ""
    return rows.sort_values(["interleaved", *RUN_KEY, "slot", "job_order"], kind="stable")


def _add_alone(used: pd.DataFrame) -> pd.DataFrame:
    """Adds each member's job alone (`alone_rate`, ...) and its progress, NaN without one."""
    key = [*COMPARABLE, "workload", "input_mode"]
    alone = used[used["baseline"] & ~used["again"]]
    # One that is not current also counts: its replicate was continued on another device.
    alone = pd.concat([alone[~alone["current"]][::-1], alone[alone["current"]]])
    alone = alone.drop_duplicates(key, keep="last")
    alone = alone[alone["rate"].notna()]
    alone = alone[key].assign(
        alone_rate=alone["rate"],
        alone_gract=alone["gract"].where(alone["gract"] != 0),
        alone_memory=_jobs_memory(alone),
        alone_energy=_energy_per_sample(alone, alone["rate"]),
        alone_tpot=alone["p99_tpot_ms"],
        alone_e2el=alone["p95_e2el_ms"],
        alone_at=alone["at"],
    )
    members = used.merge(alone, on=key, how="left")
    members["rate"] = members["rate"].where(members["window"] != COMPLETION)
    samples = (members["steps"] * members["batch_size"]).replace(0, np.nan)
    return members.assign(
        progress=members["rate"] / members["alone_rate"], serial=samples / members["alone_rate"]
    )


def _jobs_memory(table: pd.DataFrame) -> pd.Series:
    """GPU memory in use less what was in use before the members were built, GB."""
    used = table["gpu_memory_used"].replace(0, np.nan)
    return (used - table["idle_memory"].fillna(0.0)) / GB


def _energy_per_sample(table: pd.DataFrame, rate: pd.Series) -> pd.Series:
    """Energy of the whole set per sample, J: no counter splits a GPU's energy among processes."""
    return (table["power"].replace(0, np.nan) / rate).where(table["energy_j"].notna())


def _runs(members: pd.DataFrame) -> pd.DataFrame:
    """A row per run: readings of the GPU, and what its members do together.

    members: a row per member and window, with `progress` (its rate over that alone), `alone_gract`
    and the columns of runs.parquet.
    """
    samples = members["steps"] * members["batch_size"]
    members = members.assign(
        slowdown=1 / members["progress"],
        device_work=members["progress"] * members["alone_gract"],
        samples=samples.where(members["distinct_samples"].notna()),
    )
    group = members.groupby(RUN_KEY, sort=False)
    runs, size = members.drop_duplicates(RUN_KEY).set_index(RUN_KEY), group.size()

    def aggregate(column: str, how: str) -> pd.Series:
        """Aggregates a column over the members; NaN unless all have a value."""
        return group[column].agg(how).where(group[column].count() == size)

    # The rate of a server is that of its requests, so it has no gain.
    trains = group["answered_share"].count() == 0
    progress, rate = aggregate("progress", "sum"), aggregate("rate", "sum")
    stp = progress.where(trains)
    alike = group["workload"].nunique() == 1
    slowest = members.dropna(subset="slowdown")
    slowest = slowest.sort_values("slowdown", ascending=False, kind="stable")
    slowest = slowest.drop_duplicates(RUN_KEY).set_index(RUN_KEY)
    alone = members.fillna({"alone_at": ""}).drop_duplicates([*RUN_KEY, "alone_at"])
    alone_memory = aggregate("alone_memory", "sum")
    alone_memory = alone_memory.where(aggregate("alone_memory", "min") != 0)
    in_completion = runs["window"] == COMPLETION
    return runs.assign(
        several=size > 1,
        alike=alike,
        rate=rate.where(trains),
        highest=aggregate("rate", "max"),
        lowest=aggregate("rate", "min"),
        stp=stp,
        all_progress=progress.notna(),
        all_rated=rate.notna(),
        trains=trains,
        antt=aggregate("slowdown", "mean").where(trains),
        s=aggregate("device_work", "sum").where(trains),
        slowest_alone_rate=slowest["alone_rate"].where(stp.notna()),
        slowest_rate=slowest["rate"],
        slowest_alone_at=slowest["alone_at"],
        alone_cells=alone.groupby(RUN_KEY, sort=False)["alone_at"].agg(" ".join),
        busy=runs["gract"].where(runs["gract"] != 0),
        alone_memory_sum=alone_memory.where(~in_completion),
        jobs_memory=_jobs_memory(runs),
        idle_memory=runs["idle_memory"].fillna(0.0),
        energy_per_sample=_energy_per_sample(runs, rate.where(trains & alike)),
        cpu=aggregate("cpu_cores", "sum"),
        host_memory=aggregate("rss", "sum") / GB,
        data_wait=aggregate("data_wait_share", "mean"),
        distinct=aggregate("distinct_samples", "mean"),
        samples=aggregate("samples", "mean"),
        makespan=runs["window_s"].where((runs["window_s"] != 0) & in_completion),
        serial=aggregate("serial", "sum"),
    ).reset_index()


def _add_counterpart(
    runs: pd.DataFrame, candidates: pd.DataFrame, name: str, keys: list[str]
) -> pd.DataFrame:
    """Adds `<name>_rate`, ... of a run of the same replicate, GPU and window, by keys."""
    keys = [*COMPARABLE, "window", *keys]
    columns = ["rate", "stp", "busy", "at"]
    candidates = candidates[[*keys, *columns]].drop_duplicates(keys, keep="last")
    candidates = candidates.rename(columns={column: f"{name}_{column}" for column in columns})
    return runs.merge(candidates, "left", keys)


def _jobs(members: pd.DataFrame) -> pd.DataFrame:
    """A row per run and workload with its members' means. `job` is "" in sets of jobs alike."""
    trains = members["answered_share"].isna()
    members = members.assign(
        job=members["workload"].where(~members["alike"], ""),
        job_order=members.groupby(RUN_KEY).cumcount(),
        rate=members["rate"].where(members["all_rated"] & trains),
        slowdown=(1 / members["progress"]).where(members["all_progress"] & trains),
    )
    group = members.groupby([*RUN_KEY, "workload"], sort=False)
    jobs = members.drop_duplicates([*RUN_KEY, "workload"]).set_index([*RUN_KEY, "workload"])
    for column in ("rate", "slowdown"):
        jobs[column] = group[column].mean().where(group[column].count() == group.size())
    return jobs.reset_index()


def _after_departure(members: pd.DataFrame) -> pd.DataFrame:
    """Runs after a job left, with the speed-up of the jobs that stay, as a geometric mean."""
    before = members[(members["window"] == BEFORE) & members["current"]]
    keys = [*COMPARABLE, "scenario", "method", "member"]
    before = before[[*keys, "rate", "at"]].rename(columns={"rate": "earlier", "at": "before_at"})
    after = members[members["window"] == AFTER].merge(before, on=keys)
    after["reclaimed"] = np.log(after["rate"] / after["earlier"])
    runs = after.drop_duplicates(RUN_KEY).set_index(RUN_KEY)
    runs["reclaimed"] = np.exp(after.groupby(RUN_KEY)["reclaimed"].mean())
    return runs.reset_index()


def _formula_rows(table: pd.DataFrame, slot: int, formula: Formula) -> pd.DataFrame:
    """The formula's quantity of every row that has a finite value.

    slot: place of the formula in FORMULAS, by which the rows of a run are sorted.
    """
    computed = formula.compute(table)
    if not isinstance(computed, tuple):
        value, numerator, denominator = computed, np.nan, np.nan
    elif len(computed) == 2:
        numerator, denominator = computed
        value = numerator / denominator
    else:
        value, numerator, denominator = computed
    numerator = pd.Series(numerator, table.index)
    denominator = pd.Series(denominator, table.index)
    has_ratio = numerator.notna() & denominator.notna()
    rows = table[[*RUN_KEY, "scope", "at"]].assign(
        quantity=formula.quantity,
        slot=slot,
        value=value,
        over=table[formula.over] if formula.over else "",
        numerator=numerator.where(has_ratio),
        denominator=denominator.where(has_ratio),
        job=table.get("job", ""),
        job_order=table.get("job_order", 0),
    )
    return rows[np.isfinite(rows["value"].astype(float))]
