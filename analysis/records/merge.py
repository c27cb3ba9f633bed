"""run.json files → one table, one row per member, cell and window (columns: records.schema).

python -m analysis merge --study smoke --output results/smoke/runs.parquet CELL/run.json ...
"""

from __future__ import annotations

import math
from argparse import Namespace
from statistics import fmean

import pyarrow as pa

from analysis.records import flags, headlines, slices, survivor
from analysis.records.attempts import select_attempts
from analysis.records.losses import loss_checks, members_of
from analysis.records.records import (
    Problems,
    device_of,
    input_paths,
    note_left_out,
    of_study,
    one_line,
    place_of,
    read_records,
)
from analysis.records.schema import SCHEMA, write
from workflow.collocation.spec.names import ALTERNATE, BEFORE, COMPLETION, family_of, sides_of


def rows_of(record: dict, current: bool = True) -> list[dict]:
    """Rows of one record: a row per member and window; without members one row, member null."""
    base = _cell_columns(record) | {"current": current}
    seconds = {w.get("name"): w.get("seconds") for w in record.get("windows") or []}
    rows = []
    sides = sides_of(base["scenario"], base["method"])
    for member in record.get("members") or []:
        columns = base | _member_columns(record, member)
        windows = member.get("windows") or {}
        if (base["measure"] == ALTERNATE or sides) and not sides.keys() >= windows.keys():
            raise ValueError(f"windows {', '.join(windows)} are no sides of {base['cell']}")
        if not windows:
            rows.append(columns)
        for name, window in windows.items():
            row = columns | {"window": name, "window_s": seconds.get(name)}
            row |= headlines.of_window(record, name)
            row |= headlines.of_member(record, name, member["member"])
            for key in ("steps", "samples_per_s", "step_ms_p50", "step_ms_p95", "step_ms_p99"):
                row[key] = window.get(key)
            row["slices"] = window.get("slices")
            row["drift"], row["drift_error"] = window.get("drift"), window.get("drift_error")
            rows.append(row | _epoch_time(row, member))
    return rows or [base]


def _cell_columns(record: dict) -> dict:
    cell, spec = record["cell"], record["spec"]
    gpu, provenance = record.get("gpu") or {}, record.get("provenance") or {}
    versions = provenance.get("versions") or {}
    return {
        "study": record.get("study"),
        "cell": cell["id"],
        "block": cell["replicate"],
        **{key: cell[key] for key in ("scenario", "arm", "method", "attempt")},
        "n": len(spec["members"]),
        **{key: record.get(key) for key in ("status", "reason", "phase")},
        "measure": (spec.get("measure") or {}).get("kind", "window"),
        "gpu_uuid": gpu.get("uuid"),
        "gpu_name": gpu.get("name"),
        "gpu_memory_total": gpu.get("memory_bytes"),
        "driver": gpu.get("driver"),
        "hardware": gpu.get("name") or (record.get("host") or {}).get("cpu"),
        "device": device_of(record),
        "flags": ";".join([*(record.get("flags") or []), *[flags.UNVISITED] * _unvisited(record)]),
        "method_verified": (record.get("method") or {}).get("verified"),
        **{key: versions.get(key) for key in ("torch", "timm", "python")},
        **{key: provenance.get(key) for key in ("digest", "commit", "machine", "started_at")},
        "session": provenance.get("sitting"),
        "total_s": (record.get("timing") or {}).get("total_s"),
        "other_gpus_busy": (record.get("host") or {}).get("other_gpus_busy"),
        **headlines.of_cell(record),
    }


def _unvisited(record: dict) -> bool:
    """Whether a CUDA graph had the GPU to itself, and no visit was asked for: an older record."""
    cell, spec = record["cell"], record["spec"]
    graph, measure = (spec.get("arm") or {}).get("cuda_graph"), spec.get("measure") or {}
    plain = family_of(cell["method"]) == "naive" and len(spec["members"]) > 1
    beside = plain or measure.get("kind") == ALTERNATE
    return (
        bool(graph) and record.get("status") == "completed" and not (beside or measure.get("visit"))
    )


def _member_columns(record: dict, member: dict) -> dict:
    spec = record["spec"]["members"][member["member"]]
    data = next(
        (d for d in record.get("data") or [] if d.get("dataset") == spec.get("dataset")), {}
    )
    epochs, loss = member.get("epochs") or [], (member.get("loss") or {}).get("value") or []
    last = epochs[-1] if epochs else {}
    validation = [e["validation_s"] for e in epochs if e.get("validation_s") is not None]
    same_name = ("member", "parameters", "parameter_bytes", "resident_bytes", "threads")
    same_name += ("device_uuid", "sm_count", "input_share", "data_wait_share")
    same_name += ("memory_peak_allocated", "memory_peak_reserved")
    return {
        **{key: member.get(key) for key in same_name},
        "member_status": member.get("status"),
        "member_error": _one_line(member.get("error")),
        "workload": spec.get("workload") or member.get("workload"),
        **{key: spec.get(key) for key in ("model", "dataset", "batch_size")},
        **{key: spec.get(key) for key in ("sm_percent", "pinned_memory_mb")},
        "source": data.get("source"),
        "input_mode": (spec.get("input") or {}).get("mode"),
        "seed": spec.get("seed", record["spec"].get("seed")),
        "nominal_train_size": spec.get("nominal_train_size") or data.get("nominal_train_size"),
        "loss_last": loss[-1] if loss else None,
        "epochs_done": len(epochs),
        "accuracy": last.get("accuracy"),
        "validation_loss": last.get("validation_loss"),
        "validation_s": fmean(validation) if validation else None,
        "cores": len(member["cores"]) if member.get("cores") else None,
    }


def _one_line(error: object) -> str | None:
    if isinstance(error, dict):
        error = f"{error.get('class')}: {error.get('message')}"
    return None if error is None else one_line(error)


def _epoch_time(row: dict, member: dict) -> dict:
    """Epoch time of the row, and in `epochs` the rate over training time alone."""
    nominal, rate = row["nominal_train_size"], row["samples_per_s"]
    epochs = [e for e in member.get("epochs") or [] if e.get("train_s") and e.get("samples")]
    if row["window"] == "epochs" and epochs:
        samples, seconds = sum(e["samples"] for e in epochs), sum(e["train_s"] for e in epochs)
        result = {"samples_per_s": samples / seconds}
        if nominal:
            # A dropped last batch is not a subset.
            whole = all(e["samples"] + (row["batch_size"] or 0) > nominal for e in epochs)
            times = [e["train_s"] * (1 if whole else nominal / e["samples"]) for e in epochs]
            result["epoch_time_s"] = fmean(times)
            result["epoch_time_kind"] = "trained" if whole else "trained_scaled"
        return result
    if nominal and rate:
        return {"epoch_time_s": nominal / rate, "epoch_time_kind": "rate"}
    return {}


# What it comes to that a record holds something else than it should.
_BENT = (LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)


def merge(records: list[dict]) -> tuple[pa.Table, Problems]:
    """The table of a study's records, sorted, and what could not be read of them."""
    rows, problems, members = [], [], []
    for record, current in select_attempts(records):
        try:
            found, own = rows_of(record, current), members_of(record)
            for row in found:
                _check_types(row)
        except _BENT as error:
            problems.append((place_of(record), f"{type(error).__name__}: {one_line(error)}"))
            continue
        problems += _add_read(record, found)
        flagged = flags.of_cell(found)
        rows += [row | {"flags": flagged} for row in found]
        members += own
    checks = loss_checks(members)
    for row in rows:
        if check := checks.get((row["cell"], row["attempt"], row.get("member"))):
            row["loss_check"], row["loss_distance"] = check
    rows.sort(
        key=lambda r: (
            *(r[k] for k in ("arm", "scenario", "method", "block", "attempt")),
            -1 if r.get("member") is None else r["member"],
            r.get("window") != BEFORE,
            str(r.get("window")),
        )
    )
    return pa.Table.from_pylist(rows, schema=SCHEMA), problems


_KINDS = {pa.string(): (str,), pa.int64(): (int,), pa.float64(): (float, int), pa.bool_(): (bool,)}
_KINDS[pa.list_(pa.float64())] = (list,)
_COLUMNS = {field.name: _KINDS[field.type] for field in SCHEMA}
_FROM_ZERO = ("window_s", "samples_per_s", "epoch_time_s", "validation_s")


def _check_types(row: dict) -> None:
    """Raise ValueError where a value is not what its column holds, or a time or rate below zero."""
    for name, value in row.items():
        if value is None:
            continue
        fits = type(value) in _COLUMNS[name]
        if type(value) is str:
            value.encode()  # an escaped half of a character cannot be written
        elif type(value) is int:
            fits = fits and abs(value) < 2**63
        elif type(value) is list:
            known = [each for each in value if each is not None]
            fits = fits and all(type(x) in (float, int) and 0 <= x < math.inf for x in known)
        if not fits or (name in _FROM_ZERO and not 0 <= value < math.inf):
            raise ValueError(f"{name} is {value!r}")


def _add_read(record: dict, rows: list[dict]) -> Problems:
    """Fill the column of a completed cell that no run.json holds: of an alternating one, or of one
    with fixed work.
    """
    turns = rows[0]["measure"] == ALTERNATE
    fixed = any(row.get("window") == COMPLETION for row in rows)
    if record["status"] != "completed" or "folder" not in record or not (turns or fixed):
        return []
    source = slices if turns else survivor
    try:
        found = source.read(record)
    except _BENT + (OSError, pa.ArrowException) as error:
        return [(str(record["folder"] / source.FILE), one_line(error))]
    for row in rows:
        row[source.COLUMN] = found.get(row[source.BY])
    return []


def run(given: Namespace) -> None:
    """The command: records of `given.study` → `given.output`, and a note of what was left out."""
    found, problems = read_records(input_paths(given))
    records, foreign = of_study(found, given.study)
    table, unusable = merge(records)
    write(table, given.output, only_parquet=["slices", "gract_slices"])
    note_left_out(given.output, [*problems, *foreign, *unusable])
