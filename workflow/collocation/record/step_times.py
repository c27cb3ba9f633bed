"""From the members' step times to rates, and to the cell's steps.parquet."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.record.parquet import numeric_column
from workflow.collocation.record.run_json import Loss, Rate
from workflow.collocation.record.values import FileDigest, Window
from workflow.collocation.study.names import COMPLETION

STEPS_FILE = "steps.parquet"
TICK_NS = 10_000  # 10 µs: far below a step, and small deltas compress well
LOSSES_KEPT = 100
# A third of a window in so many parts: each longer than what makes neighbouring steps alike.
BATCHES = 10
# A member stood still if one gap between its steps is over this share of a window, this many
# seconds, and this many of its usual steps (2.5 in the shipped records).
STALL_SHARE, STALL_S, STALL_STEPS = 0.05, 0.25, 3
HALVES_DIFFER = 0.2  # of the faster half's rate


def window_rate(end_ns: np.ndarray, start_ns: int, stop_ns: int, batch_size: int) -> Rate:
    """What one member did in the window [start_ns, stop_ns).

    end_ns: int64 [steps], when each step had finished on the device. Throughput is from the first
    to the last step end in the window, so that it does not depend on where in a step that opens.
    drift: mean step of the last third / of the first third - 1, and its standard error.
    """
    inside = end_ns[(end_ns >= start_ns) & (end_ns < stop_ns)]
    if len(inside) < 2:
        return Rate(steps=len(inside), samples_per_s=None)
    took = np.diff(inside) / 1e6
    third = len(took) // 3
    ends = (took[:third], took[-third:])
    return Rate(
        steps=len(inside),
        samples_per_s=float(batch_size * len(took) / (took.sum() / 1e3)),
        drift=float(ends[1].mean() / ends[0].mean() - 1) if third else None,
        drift_error=_drift_error(*ends) if third >= BATCHES else None,
        **_percentiles(took),
    )


def _percentiles(took: np.ndarray) -> dict[str, float]:
    return {f"step_ms_p{p}": float(np.percentile(took, p)) for p in (50, 95, 99) if len(took)}


def _drift_error(first: np.ndarray, last: np.ndarray) -> float:
    """Standard error of the ratio of two means, by batch means: neighbouring steps are slow
    together, which their own scatter hides.
    """
    relative = 0.0
    for steps in (first, last):
        means = [batch.mean() for batch in np.array_split(steps, BATCHES)]
        relative += np.var(means, ddof=1) / BATCHES / steps.mean() ** 2
    return float(last.mean() / first.mean() * np.sqrt(relative))


def member_rate(window: Window, end_ns: np.ndarray, batch_size: int, drop_s: float = 0.0) -> Rate:
    """What one member did in a window of the cell's. drop_s: of a slice, before what counts."""
    if window.spans:
        return slices_rate(end_ns, window.spans, round(drop_s * 1e9), batch_size)
    found = window_rate(end_ns, *window.ends, batch_size)
    if window.name == COMPLETION:  # whose end is alone, and faster
        found.drift = found.drift_error = None
    return found


def slices_rate(
    end_ns: np.ndarray, spans: list[tuple[int, int]], drop_ns: int, batch_size: int
) -> Rate:
    """What one member did in what counts of its slices, each resumed `drop_ns` before: short, so
    that steps which a span cuts count by the share of them that lies in it.
    """
    done, took = [], []
    resumed = [start - drop_ns for start, _ in spans] + [np.iinfo(np.int64).max]
    for (start, stop), since, until in zip(spans, resumed, resumed[1:], strict=False):
        first, last = np.searchsorted(end_ns, [since, until], side="right")
        ended = end_ns[first:last]
        began = np.concatenate([[since], ended])[:-1]  # a step begins where the one before ends
        done.append(fractional_steps(began, ended, start, stop))
        whole = (began >= start) & (ended <= stop)
        took.append((ended - began)[whole] / 1e6)
    seconds = [(stop - start) / 1e9 for start, stop in spans]
    return Rate(
        steps=sum(int(np.sum((end_ns > start) & (end_ns <= stop))) for start, stop in spans),
        samples_per_s=batch_size * sum(done) / sum(seconds),
        slices=[batch_size * each / s for each, s in zip(done, seconds, strict=True)],
        **_percentiles(np.concatenate(took)),
    )


def fractional_steps(began: np.ndarray, ended: np.ndarray, start: int, stop: int) -> float:
    """Steps made in (start, stop], each by the share of it that lies there."""
    took, inside = ended - began, np.minimum(ended, stop) - np.maximum(began, start)
    at_once = (took == 0) & (ended > start) & (ended <= stop)  # as their clock saw it
    share = np.maximum(inside, 0) / np.maximum(took, 1)
    return float(np.where(took > 0, share, at_once).sum())


def pause_shares(
    window: Window, end_ns: np.ndarray, slices: Sequence[float] | None = None
) -> np.ndarray:
    """Shares of a window between one step end of a member and the next, the last one at its end.
    Of slices, whose rates are given, by those without any step.
    """
    if window.name == COMPLETION:  # where it waits for others
        return np.zeros(1)
    if slices is not None:
        edges = np.array([-1, *np.flatnonzero(slices), len(slices)])
        return (np.diff(edges) - 1) / len(slices)
    inside = end_ns[(end_ns >= window.start_ns) & (end_ns < window.end_ns)]
    edges = np.concatenate([[window.start_ns], inside, [window.end_ns]])
    return np.diff(edges) / (window.end_ns - window.start_ns)


def has_stalled(window: Window, end_ns: np.ndarray, slices: Sequence[float] | None = None) -> bool:
    """Whether a member stood still for a part of the window that its rate may not tell of."""
    *others, longest = np.sort(pause_shares(window, end_ns, slices))
    if slices is not None:
        return bool(longest > 0)
    usual = STALL_STEPS * np.median(others) if others else 0.0
    return bool(longest > max(STALL_SHARE, STALL_S / window.seconds, usual))


def halves_differ(
    window: Window, end_ns: np.ndarray, slices: Sequence[float] | None = None
) -> bool:
    """Whether a member made over HALVES less in one half of a window than in the other, between its
    first and its last step end there, and so lost STALL_S.
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
    """Of a member's steps in a window: that it stood still, else that its halves differ, or none.

    slices: the rates in those that the window consists of, if it does.
    """
    if has_stalled(window, end_ns, slices):
        return "stalled"
    return "halves_differ" if halves_differ(window, end_ns, slices) else None


def find_stopped_member(
    windows: Iterable[Window], paused: Mapping[tuple[int, str], np.ndarray], workload: Sequence[str]
) -> tuple[int, str] | None:
    """A member, and a window in whose last half it made no step, though it never paused for so long
    where a job like it was alone in this cell.

    paused: (member, window) → `pauses`. workload: of each member.
    """
    alone = defaultdict(float)
    lone = {window.name for window in windows if window.members and len(window.members) == 1}
    for (member, name), shares in paused.items():
        if name in lone:
            alone[workload[member]] = max(alone[workload[member]], *shares[:-1], 0.0)
    for (member, name), shares in paused.items():
        if shares[-1] >= 0.5 and shares[-1] > alone[workload[member]]:
            return member, name
    return None


def load_step_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a member's steps.npz, which is whole once the member has said `stopped`."""
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def distinct_samples(window: Window, arrays: dict[str, np.ndarray]) -> int | None:
    """How many samples the member's steps in the window were of; None of such without numbers."""
    ends = arrays["end_ns"]
    if not len(arrays.get("samples", ())):
        return None
    inside = np.any([(ends >= start) & (ends < stop) for start, stop in window.pieces], axis=0)
    return len(np.unique(arrays["samples"][: len(ends)][inside]))


def first_losses(arrays: dict[str, np.ndarray]) -> Loss:
    """The first losses by global step; a loss that is not finite is null."""
    step, value = arrays["loss_step"][:LOSSES_KEPT], arrays["loss"][:LOSSES_KEPT]
    return Loss(
        step=[int(s) for s in step],
        value=[round(float(v), 6) if np.isfinite(v) else None for v in value],
    )


def write_steps(
    path: Path, members: dict[int, dict[str, np.ndarray]], origin_ns: int
) -> FileDigest:
    """Write steps.parquet: member, tick (since origin_ns, one clock for all) and loss of each step.

    members: the arrays of steps.npz and `first_step`, the global number of the first step. Losses
    of warm-up steps stand in run.json alone.
    """
    columns, ordered = {}, sorted(members.items())
    columns["member"] = [np.full(len(arrays["end_ns"]), index) for index, arrays in ordered]
    columns["tick"] = [(arrays["end_ns"] - origin_ns) // TICK_NS for _, arrays in ordered]
    columns["loss"] = [_by_step(arrays) for _, arrays in ordered]
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
    """Member → when its steps had ended (int64 ns, to TICK_NS), and their losses (NaN: not kept).

    table: of steps.parquet. Raises LookupError, TypeError or ValueError where it is none.
    """
    tick_ns, origin_ns = (int(table.schema.metadata[key]) for key in (b"tick_ns", b"origin_ns"))
    member, end_ns = table["member"].to_numpy(), table["tick"].to_numpy() * tick_ns + origin_ns
    loss = table["loss"].to_numpy()
    return {int(m): (end_ns[member == m], loss[member == m]) for m in np.unique(member)}


def _by_step(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Losses laid beside the steps since go; NaN where not kept."""
    column = np.full(len(arrays["end_ns"]), np.nan, dtype=np.float32)
    at = arrays["loss_step"] - arrays["first_step"]
    kept = (at >= 0) & (at < len(column))
    column[at[kept]] = arrays["loss"][kept]
    return column
