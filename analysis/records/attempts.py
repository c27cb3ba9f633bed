"""Which of a cell's attempts count: one per cell, and the alone runs that their progress needs."""

from __future__ import annotations

from analysis.records.records import device_of, is_baseline

# What an attempt tells: a result of the cell, a fault on the way to one, or (postponed) nothing.
_WORTH = dict.fromkeys(("completed", "out_of_memory", "unsupported"), 2)
_WORTH |= dict.fromkeys(("failed", "timed_out"), 1)


def select_attempts(records: list[dict]) -> list[tuple[dict, bool]]:
    """Choose which attempts count; returns (record, current) pairs.

    Per cell and device counts the newest attempt with a result (completed, out_of_memory,
    unsupported), else the newest fault (failed, timed_out), else the newest at all. By the same
    rule one of a cell's devices is current, the newest there being what began last: numbers tell
    nothing of what several hosts measured. Of the other devices an alone run stays, not current,
    where a current cell of the same block and arm was measured there: its progress needs it.
    """
    best: dict[tuple, dict] = {}
    for record in sorted(records, key=_weight):
        best[(*_cell_key(record), device_of(record))] = record
    last = sorted(best.values(), key=lambda r: (_weight(r)[0], _began(r), _weight(r)))
    current = {_cell_key(record): record for record in last}
    needed = {
        (*_block_key(record), member.get("workload"))
        for record in current.values()
        for member in record["spec"]["members"]
    }
    chosen = [(record, True) for record in current.values()]
    for record in best.values():
        if record is current[_cell_key(record)] or not is_baseline(record):
            continue
        if (*_block_key(record), record["spec"]["members"][0].get("workload")) in needed:
            chosen.append((record, False))
    return chosen


def _weight(record: dict) -> tuple[int, int]:
    return _WORTH.get(record["status"], 0), record["cell"]["attempt"]


def _began(record: dict) -> str:
    return str((record.get("provenance") or {}).get("started_at") or "")


def _cell_key(record: dict) -> tuple:
    cell = record["cell"]
    return (record.get("study"), *(cell[k] for k in ("scenario", "arm", "method", "replicate")))


def _block_key(record: dict) -> tuple:
    cell = record["cell"]
    return (record.get("study"), cell["replicate"], cell["arm"], device_of(record))
