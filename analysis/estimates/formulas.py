"""How each quantity is computed of a run, of a job in it, or of two runs: FORMULAS.

quantities.csv names the quantities, with units and meaning; replicates.py makes the tables whose
columns the formulas read.
"""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from workflow.collocation.record.values import REQUEST_METRICS

GB = 1e9
ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama")
LOADER_QUANTITIES = ("data_wait", "host_memory", "samples", "distinct")
COUNTER_STEP_S = 0.1  # energy counters of the GPUs seen so far are updated ten times a second
RUN, JOB, REPEATED, AFTER_DEPARTURE = "run", "job", "repeated", "after_departure"  # tables
Columns = tuple[pd.Series, ...]


class Formula(NamedTuple):
    """How one quantity is computed of the rows of a table.

    compute: function of the table that gives the values; or numerators and denominators; or values,
    numerators and denominators. over: name of the column with the cells of the denominator.
    """

    table: str
    quantity: str
    compute: Callable[[pd.DataFrame], pd.Series | Columns]
    over: str = ""


def _column(table: str, quantity: str, over: str = "") -> Formula:
    """A quantity that is a column of the table."""
    return Formula(table, quantity, lambda rows: rows[quantity], over)


def _set_over_alone(quantity: str, column: str, alone: str) -> Formula:
    """A column of sets of several jobs over one of their jobs alone."""

    def compute(run: pd.DataFrame) -> Columns:
        return run[column].where(run.jobs > 1), run[alone]

    return Formula(RUN, quantity, compute, "alone_cells")


def _job_over_alone(quantity: str, column: str, alone: str) -> Formula:
    """A column of a job in a mix over one of the job alone."""

    def compute(job: pd.DataFrame) -> Columns:
        return job[column].where(~job.alike), job[alone]

    return Formula(JOB, quantity, compute, "alone_at")


def _throughput_over(
    counterpart: str, except_method: str = "", prefixes: tuple[str, ...] = ("",)
) -> Callable[[pd.DataFrame], Columns]:
    """Throughput over that of the counterpart; of a mix, whose samples do not add up, STP over STP.

    Only for methods whose names begin with a prefix, and not for except_method.
    """

    def compute(run: pd.DataFrame) -> Columns:
        """Numerators, NaN for other methods, and denominators; one row per run."""
        wanted = (run.method != except_method) & run.method.str.startswith(prefixes)
        throughput = run.rate.where(run.alike, run.stp)
        denominator = run[f"{counterpart}_rate"].where(run.alike, run[f"{counterpart}_stp"])
        return throughput.where(wanted), denominator

    return compute


def _slowed(run: pd.DataFrame) -> pd.Series:
    """Whether jobs can be slowed down: not a job alone as a separate process."""
    return (run.jobs > 1) | (run.method != "naive")


def _stp(run: pd.DataFrame) -> Columns:
    return run.stp, run.rate.where(run.alike), run.alone_rate


def _slowdown_worst(run: pd.DataFrame) -> Columns:
    return run.slowest_alone_rate.where(_slowed(run)), run.slowest_rate


def _s(run: pd.DataFrame) -> Columns:
    return run.s, run.rate.where(run.alike), run.alone_rate / run.alone_gract


def _waits(run: pd.DataFrame) -> pd.Series:
    return (1 - run.busy).clip(lower=0).where(run.baseline & run.trains)


def _gract_over_mps(run: pd.DataFrame) -> Columns:
    return run.busy.where((run.method == "naive") & run.rate.notna()), run.mps_busy


def _stp_over_3(run: pd.DataFrame) -> Columns:
    return run.rate.where(run.alike & ~run.mixed & (run.jobs > 3)), run.three_rate


def _energy_edge_error(run: pd.DataFrame) -> pd.Series:
    """The share of the window by which the energy counter can be off."""
    return (COUNTER_STEP_S / run.window_s).clip(upper=1).where(run.energy_per_sample.notna())


# In this order: replicates of a run are sorted by it.
FORMULAS = (
    _column(RUN, "makespan"),
    Formula(RUN, "time_over_serial", lambda run: (run.makespan, run.serial), "alone_cells"),
    Formula(RUN, "saving", lambda run: 1 - run.makespan / run.serial, "alone_cells"),
    Formula(RUN, "rate", lambda run: run.rate.where(run.alike)),
    Formula(RUN, "spread", lambda run: (run.highest.where(run.alike & run.several), run.lowest)),
    Formula(JOB, "job_rate", lambda job: job.rate.where(~job.alike)),
    Formula(RUN, "stp", _stp, "alone_cells"),
    Formula(RUN, "antt", lambda run: run.antt.where(_slowed(run)), "alone_cells"),
    Formula(RUN, "slowdown_worst", _slowdown_worst, "slowest_alone_at"),
    Formula(JOB, "slowdown", lambda job: job.slowdown.where(~job.alike), "alone_at"),
    Formula(RUN, "s", _s, "alone_cells"),
    Formula(RUN, "gaps", lambda run: (run.stp, run.s), "alone_cells"),
    *(_column(RUN, name) for name in ACTIVITY),
    Formula(RUN, "gract_over_smact", lambda run: (run.busy, run.smact.where(run.smact != 0))),
    Formula(RUN, "waits", _waits),
    Formula(RUN, "device_rate", lambda run: (run.rate.where(run.baseline), run.busy)),
    _column(RUN, "power"),
    Formula(RUN, "memory", lambda run: run.gpu_memory_used / GB),
    Formula(RUN, "memory_of_jobs", lambda run: run.jobs_memory),
    Formula(RUN, "capacity", lambda run: run.gpu_memory_total / GB),
    Formula(RUN, "capacity_for_jobs", lambda run: (run.gpu_memory_total - run.idle_memory) / GB),
    Formula(RUN, "rate_over_naive", _throughput_over("naive", "naive"), "naive_at"),
    Formula(RUN, "rate_over_mig", _throughput_over("mig", "mig"), "mig_at"),
    Formula(RUN, "rate_over_mps", _throughput_over("mps", prefixes=("streams", "mps_")), "mps_at"),
    Formula(RUN, "gract_over_mps", _gract_over_mps, "mps_at"),
    Formula(RUN, "stp_over_3", _stp_over_3, "three_at"),
    _column(RUN, "energy_per_sample"),
    Formula(RUN, "energy_edge_error", _energy_edge_error),
    _set_over_alone("energy_over_serial", "energy_per_sample", "alone_energy"),
    _set_over_alone("memory_over_parts", "jobs_memory", "alone_memory_sum"),
    Formula(RUN, "cpu_per_sample", lambda run: (run.cpu.where(run.alike), run.rate)),
    *(_column(RUN, name) for name in LOADER_QUANTITIES),
    *(_column(JOB, name) for name in REQUEST_METRICS),
    _job_over_alone("tpot_over_alone", "p99_tpot_ms", "alone_tpot"),
    _job_over_alone("e2el_over_alone", "p95_e2el_ms", "alone_e2el"),
    _column(AFTER_DEPARTURE, "reclaimed", "before_at"),
    Formula(REPEATED, "aa", _throughput_over("first"), "first_at"),
)
