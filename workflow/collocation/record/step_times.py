"""Computes rates and anomalies from the members' step times, and handles steps.parquet."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.record.parquet import numeric_column
from workflow.collocation.record.run_json import Loss, Rate
from workflow.collocation.record.values import PERCENTILES, FileDigest, Window
from workflow.collocation.study.names import COMPLETION

STEPS_FILE = "steps.parquet"
TICK_NS = 10_000  # 10 µs: far below a step, and small deltas compress well
LOSSES_KEPT = 100
# The standard error of drift comes from so many parts of a third of a window. Each is longer than
# the time for which neighbouring steps are correlated.
BATCHES = 10
# A member stalled if a gap between its steps exceeds this share of a window, this many seconds, and
# this many of its median steps (2.5 in the shipped records).
STALL_SHARE, STALL_S, STALL_STEPS = 0.05, 0.25, 3
HALVES_DIFFER = 0.2  # share of the faster half's rate


def window_rate(end_ns: np.ndarray, start_ns: int, stop_ns: int, batch_size: int) -> Rate:
    """The progress of one member in the window [start_ns, stop_ns).

    The rate is from the first to the last step end in the window, so it does not depend on the part
    of a step that lies before the window.

    end_ns: int64 [steps], when each step ended on the device.
    """
    inside = end_ns[(end_ns >= start_ns) & (end_ns < stop_ns)]
    if len(inside) < 2:
        return Rate(steps=len(inside), samples_per_s=None)
    step_ms = np.diff(inside) / 1e6
    third = len(step_ms) // 3
    first, last = step_ms[:third], step_ms[-third:]
    return Rate(
        steps=len(inside),
        samples_per_s=float(batch_size * len(step_ms) / (step_ms.sum() / 1e3)),
        drift=float(last.mean() / first.mean() - 1) if third else None,
        drift_error=_drift_error(first, last) if third >= BATCHES else None,
        **_percentiles(step_ms),
    )


def _percentiles(step_ms: np.ndarray) -> dict[str, float]:
    if not len(step_ms):
        return {}
    values = np.percentile(step_ms, PERCENTILES).tolist()
    return {f"step_ms_p{p}": value for p, value in zip(PERCENTILES, values, strict=True)}


def _drift_error(first: np.ndarray, last: np.ndarray) -> float:
    """Standard error of the ratio of two means, from batch means since steps are correlated."""
    relative_variance = 0.0
    for step_ms in (first, last):
        means = [batch.mean() for batch in np.array_split(step_ms, BATCHES)]
        relative_variance += np.var(means, ddof=1) / BATCHES / step_ms.mean() ** 2
    return float(last.mean() / first.mean() * np.sqrt(relative_variance))


def member_rate(window: Window, end_ns: np.ndarray, batch_size: int, drop_s: float = 0.0) -> Rate:
    """The progress of one member in a window, which may have slices.

    end_ns: int64 [steps]. drop_s: seconds at the beginning of each slice that do not count.
    """
    if window.spans:
        return slices_rate(end_ns, window.spans, round(drop_s * 1e9), batch_size)
    rate = window_rate(end_ns, *window.ends, batch_size)
    if window.name == COMPLETION:  # the last member ends alone, so it gets faster
        rate.drift = rate.drift_error = None
    return rate


def slices_rate(
    end_ns: np.ndarray, spans: list[tuple[int, int]], drop_ns: int, batch_size: int
) -> Rate:
    """The progress of one member in its slices.

    Slices are short, so a step that is partly in a span counts by that part of its time.

    end_ns: int64 [steps]. spans: [start, stop) of each slice that counts. drop_ns: time from the
    resumption of a slice to its span.
    """
    step_counts, span_s, step_ms, ended_steps = [], [], [], 0
    resumed = [start - drop_ns for start, _ in spans] + [np.iinfo(np.int64).max]
    for index, (start, stop) in enumerate(spans):
        first, last = np.searchsorted(end_ns, resumed[index : index + 2], side="right")
        ended = end_ns[first:last]
        began = np.concatenate([[resumed[index]], ended])[:-1]  # each where the previous one ends
        step_counts.append(fractional_steps(began, ended, start, stop))
        span_s.append((stop - start) / 1e9)
        is_whole = (began >= start) & (ended <= stop)
        step_ms.append((ended - began)[is_whole] / 1e6)
        ended_steps += int(np.sum((end_ns > start) & (end_ns <= stop)))
    return Rate(
        steps=ended_steps,
        samples_per_s=batch_size * sum(step_counts) / sum(span_s),
        slices=[batch_size * count / s for count, s in zip(step_counts, span_s, strict=True)],
        **_percentiles(np.concatenate(step_ms)),
    )


def fractional_steps(began: np.ndarray, ended: np.ndarray, start: int, stop: int) -> float:
    """Number of steps in (start, stop], where a step counts by the part of its time inside.

    began, ended: int64 [steps], in ns.
    """
    duration = ended - began
    inside = np.minimum(ended, stop) - np.maximum(began, start)
    share = np.maximum(inside, 0) / np.maximum(duration, 1)
    ended_inside = (ended > start) & (ended <= stop)
    return float(np.where(duration > 0, share, ended_inside).sum())


def pause_shares(
    window: Window, end_ns: np.ndarray, slices: Sequence[float] | None = None
) -> np.ndarray:
    """The gaps between a member's step ends as shares of a window; the last one is at its end.

    slices: rates of the slices, if the window has any; a gap is then a run of slices without steps.
    """
    if window.name == COMPLETION:  # members wait for the last one
        return np.zeros(1)
    if slices is not None:
        edges = np.array([-1, *np.flatnonzero(slices), len(slices)])
        return (np.diff(edges) - 1) / len(slices)
    inside = end_ns[(end_ns >= window.start_ns) & (end_ns < window.end_ns)]
    edges = np.concatenate([[window.start_ns], inside, [window.end_ns]])
    return np.diff(edges) / (window.end_ns - window.start_ns)


def has_stalled(window: Window, end_ns: np.ndarray, slices: Sequence[float] | None = None) -> bool:
    """Whether a member stood still for part of a window, which its rate may not show.

    end_ns: when each step ended. slices: rates in each turn of an interleaved cell; there any turn
    without a step is a stall, elsewhere a pause that is long for the window and for this member.
    """
    *others, longest = np.sort(pause_shares(window, end_ns, slices))
    if slices is not None:
        return bool(longest > 0)
    usual = STALL_STEPS * np.median(others) if others else 0.0
    return bool(longest > max(STALL_SHARE, STALL_S / window.seconds, usual))


def halves_differ(
    window: Window, end_ns: np.ndarray, slices: Sequence[float] | None = None
) -> bool:
    """Whether a member was slower by HALVES_DIFFER, and by STALL_S, in one half of a window.

    The halves are of the time between its first and its last step end in the window.
    """
    if window.name == COMPLETION:
        return False
    if slices is not None:
        half = len(slices) // 2
        halves = sum(slices[:half]), sum(slices[len(slices) - half :])
    else:
        inside = end_ns[(end_ns >= window.start_ns) & (end_ns < window.end_ns)]
        if not len(inside):
            return False
        first = np.interp((inside[0] + inside[-1]) / 2, inside, np.arange(len(inside)))
        halves = first, len(inside) - 1 - first
    lost = 1 - min(halves) / max(*halves, 1e-9)
    return bool(max(halves) > 0 and lost > max(HALVES_DIFFER, STALL_S / (window.seconds / 2)))


def window_flag(window: Window, end_ns: np.ndarray, slices: Sequence[float] | None) -> str | None:
    """The flag of a member's steps in a window: stalled, halves_differ, or None."""
    if has_stalled(window, end_ns, slices):
        return "stalled"
    return "halves_differ" if halves_differ(window, end_ns, slices) else None


def find_stopped_member(
    windows: Iterable[Window],
    pauses: Mapping[tuple[int, str], np.ndarray],
    workloads: Sequence[str],
) -> tuple[int, str] | None:
    """A member that made no step in the last half of a window, and the window's name; else None.

    A job that paused as long when it was alone in this cell does not count.

    pauses: (member, window) → `pause_shares`. workloads: of each member.
    """
    alone_windows = {window.name for window in windows if len(window.members or ()) == 1}
    longest_alone = defaultdict(float)  # workload → share
    for (member, window), shares in pauses.items():
        if window in alone_windows:
            workload = workloads[member]
            longest_alone[workload] = max(longest_alone[workload], *shares[:-1], 0.0)
    for (member, window), shares in pauses.items():
        if shares[-1] >= 0.5 and shares[-1] > longest_alone[workloads[member]]:
            return member, window
    return None


def load_step_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a member's steps.npz, which is complete after the member's event `stopped`."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def distinct_samples(window: Window, arrays: dict[str, np.ndarray]) -> int | None:
    """Number of different samples in a member's steps in a window; None if they have no numbers."""
    ends = arrays["end_ns"]
    if not len(arrays.get("samples", ())):
        return None
    inside = np.any([(ends >= start) & (ends < stop) for start, stop in window.pieces], axis=0)
    return len(np.unique(arrays["samples"][: len(ends)][inside]))


def first_losses(arrays: dict[str, np.ndarray]) -> Loss:
    """The first losses, by global step; one that is not finite becomes null."""
    step, value = arrays["loss_step"][:LOSSES_KEPT], arrays["loss"][:LOSSES_KEPT]
    return Loss(
        step=[int(s) for s in step],
        value=[round(float(v), 6) if np.isfinite(v) else None for v in value],
    )


def write_steps(
    path: Path, members: dict[int, dict[str, np.ndarray]], origin_ns: int
) -> FileDigest:
    """Write steps.parquet, with the member, time and loss of each step.

    members: member → the arrays of its steps.npz, and `first_step`, the global number of its first
    step. origin_ns: the time of tick 0.
    """
    columns = {"member": [], "tick": [], "loss": []}
    for index, arrays in sorted(members.items()):
        columns["member"].append(np.full(len(arrays["end_ns"]), index))
        columns["tick"].append((arrays["end_ns"] - origin_ns) // TICK_NS)
        columns["loss"].append(_losses_by_step(arrays))
    schema = pa.schema(
        [
            pa.field("member", pa.int16()),
            pa.field("tick", pa.int64(), metadata={"unit": "10 us", "source": "step end"}),
            pa.field("loss", pa.float32(), metadata={"unit": "1", "source": "training loss"}),
        ],
        metadata={"tick_ns": str(TICK_NS), "origin_ns": str(origin_ns)},
    )
    content = [numeric_column(np.concatenate(columns[field.name]), field.type) for field in schema]
    pq.write_table(
        pa.Table.from_arrays(content, schema=schema),
        path,
        compression="zstd",
        use_dictionary=["member"],
        column_encoding={"tick": "DELTA_BINARY_PACKED"},
    )
    return FileDigest.of(path)


def read_steps(table: pa.Table) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Member → the ends of its steps (int64 ns, rounded to TICK_NS), and their losses or NaN.

    table: rows of steps.parquet. Raises LookupError, TypeError or ValueError for any other table.
    """
    tick_ns, origin_ns = (int(table.schema.metadata[key]) for key in (b"tick_ns", b"origin_ns"))
    member, end_ns = table["member"].to_numpy(), table["tick"].to_numpy() * tick_ns + origin_ns
    loss = table["loss"].to_numpy()
    return {int(m): (end_ns[member == m], loss[member == m]) for m in np.unique(member)}


def _losses_by_step(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The loss of each step after the warm-up; NaN if it was not computed."""
    column = np.full(len(arrays["end_ns"]), np.nan, dtype=np.float32)
    index = arrays["loss_step"] - arrays["first_step"]
    is_inside = (index >= 0) & (index < len(column))
    column[index[is_inside]] = arrays["loss"][is_inside]
    return column
