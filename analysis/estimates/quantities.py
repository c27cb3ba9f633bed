"""What is estimated: each quantity's name, unit, scale and meaning, in one list.

docs/methods.md prints this list; estimates.parquet carries unit and meaning beside each number.
"""

from __future__ import annotations

from dataclasses import dataclass

LOG, PLAIN, SHARE = "log", "plain", "share"


@dataclass(frozen=True)
class Quantity:
    """A kind of number.

    name: as in ids. unit: of the value, empty for a ratio. title: what figures and tables call it.
    relative_to: what it is normalised by, empty for absolute values. scale: how replicates are
    averaged; `log` geometric mean, `plain` arithmetic mean, `share` arithmetic and within 0 to 1.
    better: which way is good, empty where neither is.
    """

    name: str
    title: str
    unit: str
    scale: str
    relative_to: str
    meaning: str
    better: str = ""


def _all() -> tuple[Quantity, ...]:
    alone = "one such job alone: plain, written the same way, same block and GPU"
    return (
        # -- speed ------------------------------------------------------------------------------
        Quantity("rate", "throughput", "samples/s", LOG, "", "samples of all jobs together; only of jobs alike", "more"),
        Quantity("job_rate", "throughput of a job", "samples/s", LOG, "", "mean over the jobs of one workload in a mix", "more"),
        Quantity("epoch_time", "epoch time", "s", LOG, "", "training-set size over a job's throughput, mean over jobs; in whole-epoch cells the time measured", "less"),
        Quantity("stp", "throughput gain (STP)", "", LOG, alone, "sum over jobs of throughput over throughput alone", "more"),
        Quantity("antt", "mean slowdown (ANTT)", "", LOG, alone, "mean over jobs of throughput alone over throughput", "less"),
        Quantity("slowdown_worst", "slowdown of the slowest job", "", LOG, alone, "throughput alone over throughput, of the job that suffers most", "less"),
        Quantity("slowdown", "slowdown", "", LOG, alone, "the same, mean over the jobs of one workload in a mix", "less"),
        Quantity("jain", "fairness (Jain)", "", SHARE, alone, "Jain's index of the jobs' progress; 1: all alike", "more"),
        Quantity("spread", "fastest over slowest job", "", LOG, "the slowest of the set", "of jobs alike", "less"),
        Quantity("s", "device-limited gain (S)", "", LOG, "samples per second of busy GPU of one such job alone (its rate over its GRACT)", "what overlapping kernels wins, whatever the host does", "more"),
        Quantity("gaps", "gain from filling gaps", "", LOG, "S of the same set", "STP over S; of jobs alike 1 / GRACT alone: the gaps of one host thread that others fill", ""),
        Quantity("over_fastest", "gain over the fastest way alone", "", LOG, "one job alone, plain, in its fastest measured way of writing, same host", "sum over jobs of throughput over that throughput", "more"),
        Quantity("fastest_rate", "fastest way alone", "samples/s", LOG, "", "throughput of one job alone in its fastest measured way of writing", "more"),
        Quantity("rate_over_naive", "over plain processes", "", LOG, "the same set as plain processes, same block and GPU", "throughput over throughput; of a mix STP over STP", "more"),
        Quantity("rate_over_mig", "over MIG", "", LOG, "the same set in MIG instances, same block and GPU", "throughput over throughput; of a mix STP over STP", "more"),
        Quantity("stp_over_2", "growth from 2 jobs", "", LOG, "2 such jobs, same method, block and GPU", "throughput over throughput", "more"),
        Quantity("stp_over_3", "growth from 3 jobs", "", LOG, "3 such jobs, same method, block and GPU", "throughput over throughput", "more"),
        Quantity("reclaimed", "speed after a job left", "", LOG, "the same jobs before it left", "geometric mean over the jobs that stay", "more"),
        # -- fixed work -------------------------------------------------------------------------
        Quantity("makespan", "time of fixed work", "s", LOG, "", "from the start to the last step of the last job", "less"),
        Quantity("time_over_serial", "time over one after the other", "", LOG, "the same work, one job after the other at its rate alone", "of jobs that ran to the end of fixed work", "less"),
        Quantity("saving", "time saved", "", PLAIN, "the same work, one job after the other at its rate alone", "1 - time_over_serial", "more"),
        Quantity("saving_by_rates", "time saved, by rates", "", PLAIN, "the paper's work, one job after the other at its rate alone", "computed, not run: jobs overlap at their collocated rates, the rest runs at its rate alone", "more"),
        Quantity("survivor_over_alone", "speed of the last job", "", LOG, alone, "throughput after the other job's end over throughput alone", ""),
        # -- what the GPU did -------------------------------------------------------------------
        Quantity("gract", "GRACT", "", SHARE, "", "share of the window in which a compute engine was active", ""),
        Quantity("smact", "SMACT", "", SHARE, "", "share of it in which an SM had a warp, mean over SMs", ""),
        Quantity("smocc", "SMOCC", "", SHARE, "", "resident warps over the most that fit", ""),
        Quantity("tenso", "TENSO", "", SHARE, "", "share of it in which tensor pipes were active", ""),
        Quantity("drama", "DRAMA", "", SHARE, "", "share of it in which device memory moved data", ""),
        Quantity("gract_over_smact", "GRACT over SMACT", "", LOG, "SMACT of the same window", "", ""),
        Quantity("gract_over_mps", "GRACT over that under MPS", "", LOG, "GRACT of the same set under MPS, same block and GPU", "", ""),
        Quantity("power", "power", "W", PLAIN, "", "mean power of the GPU", "less"),
        Quantity("energy_per_sample", "energy per sample", "J", LOG, "", "energy of the GPU over the samples of all jobs; only of jobs alike", "less"),
        Quantity("energy_over_serial", "energy over one after the other", "", LOG, "energy per sample of one such job alone, same block and GPU", "", "less"),
        Quantity("energy_edge_error", "edge error of the energy", "", SHARE, "energy of the window", "one 0.1 s step of the energy counter over the window's length", ""),
        # -- memory -----------------------------------------------------------------------------
        Quantity("memory", "GPU memory", "GB", PLAIN, "", "in use on the GPU, all jobs and the driver", "less"),
        Quantity("memory_reserved", "memory reserved", "GB", PLAIN, "", "peak held by the jobs' allocators, sum over jobs", "less"),
        Quantity("memory_over_parts", "memory over the jobs' alone", "", LOG, "sum over its jobs of GPU memory alone, same block and GPU", "", ""),
        Quantity("parts_over_capacity", "memory of the jobs alone over the card's", "", PLAIN, "memory of the GPU", "sum over its jobs of GPU memory alone", ""),
        Quantity("capacity", "memory of the card", "GB", PLAIN, "", "", ""),
        # -- how well it repeats ----------------------------------------------------------------
        Quantity("rate_cv", "variation of throughput", "", PLAIN, "mean of the host's blocks", "coefficient of variation over the blocks of one host (standard deviation of logs)", "less"),
        Quantity("outcome", "completed replicates", "", PLAIN, "", "how many replicates of a planned set completed; status: what became of most", ""),
        # -- of the study -----------------------------------------------------------------------
        Quantity("count", "count", "", PLAIN, "", "a count of the study; the note says of what", ""),
        Quantity("claim", "verdict", "", PLAIN, "", "verdict of a claim of the paper; value: tests that hold", ""),
        Quantity("bench", "bench", "", PLAIN, "", "a reading of `make bench`; the note says of what", ""),
    )


QUANTITIES = {quantity.name: quantity for quantity in _all()}
