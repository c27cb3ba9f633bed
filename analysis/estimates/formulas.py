"""How each quantity is computed of a run, of a job in it, or of two runs: FORMULAS.

quantities.csv names them, with units and meaning; replicates.py makes the tables
whose columns the formulas read.
"""

from collections.abc import Callable

import pandas as pd

from workflow.collocation.record.values import REQUEST_METRICS

GB = 1e9
ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama")
FED = ("data_wait", "host_memory", "samples", "distinct")
COUNTER_STEP_S = 0.1  # the energy counter of the GPUs seen moves ten times a second


def _over(
    method: str, but: str = "", only: tuple[str, ...] = ("",)
) -> Callable[[pd.DataFrame], object]:
    """Throughput over throughput; of a mix, whose samples do not add up, STP over STP.

    only: methods whose names begin so.
    """
    return lambda r: (
        r.total.where(r.alike, r.stp).where((r.method != but) & r.method.str.startswith(only)),
        r[f"{method}_total"].where(r.alike, r[f"{method}_stp"]),
    )


def _slowed(r: pd.DataFrame) -> pd.Series:
    """Sets, and a job alone by another method: a job alone is not slowed down."""
    return (r.jobs > 1) | (r.method != "naive")


# A table of the runs, or of the jobs in them, and the quantities that are computed of its rows; in
# this order: (name, function of the table → value, or (numerator, denominator), or (value,
# numerator, denominator), and the column that names the cells of the denominator, if there is one).
FORMULAS = (
    (
        "run",
        ("makespan", lambda r: r.took),
        ("time_over_serial", lambda r: (r.took, r.serial), "over"),
        ("saving", lambda r: 1 - r.took / r.serial, "over"),
    ),
    (
        "run",
        ("rate", lambda r: r.total.where(r.alike)),
        ("spread", lambda r: (r.most.where(r.alike & (r.members > 1)), r.least)),
    ),
    ("job", ("job_rate", lambda j: j.rate.where(~j.alike))),
    (
        "run",
        ("stp", lambda r: (r.stp, r.total.where(r.alike), r.first_alone), "over"),
        ("antt", lambda r: r.antt.where(_slowed(r)), "over"),
        ("slowdown_worst", lambda r: (r.worst_alone.where(_slowed(r)), r.worst_rate), "worst_at"),
    ),
    ("job", ("slowdown", lambda j: j.slower.where(~j.alike), "alone_at")),
    (
        "run",
        ("s", lambda r: (r.s, r.total.where(r.alike), r.first_alone / r.first_busy), "over"),
        ("gaps", lambda r: (r.stp, r.s), "over"),
        *((name, lambda r, name=name: r[name]) for name in ACTIVITY),
        ("gract_over_smact", lambda r: (r.busy, r.smact.where(r.smact != 0))),
        ("waits", lambda r: (1 - r.busy).clip(lower=0).where(r.baseline & r.trains)),
        ("device_rate", lambda r: (r.total.where(r.baseline), r.busy)),
        ("power", lambda r: r.power),
        ("memory", lambda r: r.gpu_memory_used / GB),
        ("memory_of_jobs", lambda r: r.of_jobs),
        ("capacity", lambda r: r.gpu_memory_total / GB),
        ("capacity_for_jobs", lambda r: (r.gpu_memory_total - r.idle_memory) / GB),
        ("rate_over_naive", _over("naive", "naive"), "naive_at"),
        ("rate_over_mig", _over("mig", "mig"), "mig_at"),
        ("rate_over_mps", _over("mps", only=("streams", "mps_")), "mps_at"),
        (
            "gract_over_mps",
            lambda r: (r.busy.where((r.method == "naive") & r.total.notna()), r.mps_busy),
            "mps_at",
        ),
        (
            "stp_over_3",
            lambda r: (r.total.where(r.alike & ~r.mixed & (r.jobs > 3)), r.three_total),
            "three_at",
        ),
        ("energy_per_sample", lambda r: r.energy),
        (
            "energy_edge_error",
            lambda r: (COUNTER_STEP_S / r.window_s).clip(upper=1).where(r.energy.notna()),
        ),
        ("energy_over_serial", lambda r: (r.energy.where(r.jobs > 1), r.alone_energy), "over"),
        ("memory_over_parts", lambda r: (r.of_jobs.where(r.jobs > 1), r.parts), "over"),
        ("cpu_per_sample", lambda r: (r.cpu.where(r.alike), r.total)),
        *((name, lambda r, name=name: r[name]) for name in FED),
    ),
    (
        "job",
        *((name, lambda j, name=name: j[name]) for name in REQUEST_METRICS),
        ("tpot_over_alone", lambda j: (j.p99_tpot_ms.where(~j.alike), j.alone_tpot), "alone_at"),
        ("e2el_over_alone", lambda j: (j.p95_e2el_ms.where(~j.alike), j.alone_e2el), "alone_at"),
    ),
    ("stayed", ("reclaimed", lambda r: r.reclaimed, "before_at")),
    ("again", ("aa", _over("first"), "first_at")),
)
