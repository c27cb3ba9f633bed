"""run.json files → one table, one row per member, cell and window (columns: records.schema)."""

from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from analysis.estimates.records import flags
from analysis.estimates.records.losses import loss_checks, members_of
from analysis.estimates.records.read import Attempt, read_study
from analysis.estimates.records.schema import SCHEMA
from analysis.files import one_line, read_table, write_table
from workflow.collocation.record.run_json import MemberRecord, Record
from workflow.collocation.record.series import Series
from workflow.collocation.study.names import BEFORE, INTERLEAVED

CARD = "gpu"  # the entity of the whole card
ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama", "fp16", "fp32", "fp64")
_CARD = (*ACTIVITY, "pcie_tx", "pcie_rx", "ctxsw_active", "ctxsw_requests")
_CARD += ("temperature", "sm_clock")
_PARTED = ("cpu", "rss", "read", "write")
_USED = ("entity", "rss", "pss", "read", "write", "gpu_memory")
_ALIKE = ("window", "workload", "input_mode", "sm_percent", "pinned_memory_mb")


def rows_of(record: Record) -> list[dict]:
    """A row per member and window; without members one row, member null."""
    base, rows = _cell_columns(record), []
    seconds = {window.name: window.seconds for window in record.windows}
    for member in record.members:
        columns = base | _member_columns(record, member)
        rows += [columns] * (not member.windows)
        for name, rate in member.windows.items():
            row = columns | {"window": name, "window_s": seconds.get(name)} | rate.model_dump()
            row |= row.pop("latency")
            row |= _seen_in_window(record, name, member.member)
            if row["nominal_train_size"] and rate.samples_per_s:
                row["epoch_time_s"] = row["nominal_train_size"] / rate.samples_per_s
            rows.append(row)
    uneven = record.status == "completed" and _uneven(rows)
    flagged = flags.union([*record.flags, *[flags.UNEVEN] * uneven])
    return [row | {"flags": flagged} for row in rows or [base]]


def _cell_columns(record: Record) -> dict:
    cell, spec, provenance = record.cell, record.spec, record.provenance
    gpu = record.gpu.model_dump() if record.gpu else {}
    versions = provenance.get("versions") or {}
    return {
        **cell.model_dump(include={"scenario", "implementation", "method", "attempt"}),
        "study": record.study,
        "cell": cell.id,
        "replicate": cell.replicate,
        "n": len(record.jobs),
        **{key: getattr(record, key) for key in ("status", "reason", "phase", "device")},
        "measure": (spec.get("measure") or {}).get("kind", "window"),
        **{f"gpu_{key}": gpu.get(key) for key in ("uuid", "name")},
        "gpu_memory_total": gpu.get("memory_bytes"),
        "driver": gpu.get("driver"),
        "hardware": gpu.get("name") or record.host.get("cpu"),
        "method_verified": record.method.verified,
        **{key: versions.get(key) for key in ("torch", "timm", "python")},
        **{key: provenance.get(key) for key in ("digest", "commit", "machine", "started_at")},
        "session": provenance.get("session"),
        "total_s": record.timing.get("total_s"),
        **_seen_in_cell(record),
    }


def _member_columns(record: Record, member: MemberRecord) -> dict:
    spec = record.jobs[member.member]
    data = next((d for d in record.data if d.get("dataset") == spec.get("dataset")), {})
    same_name = ("member", "parameters", "parameter_bytes", "resident_bytes", "threads")
    same_name += ("device_uuid", "sm_count", "input_share", "data_wait_share")
    same_name += ("memory_peak_allocated", "memory_peak_reserved")
    of_spec = ("model", "dataset", "batch_size", "sm_percent", "pinned_memory_mb")
    return {
        **{key: getattr(member, key) for key in same_name},
        "member_status": member.status,
        "member_error": member.error and one_line(member.error),
        "workload": spec.get("workload") or member.workload,
        **{key: spec.get(key) for key in of_spec},
        "source": data.get("source"),
        "input_mode": (spec.get("input") or {}).get("mode"),
        "seed": record.spec.get("seed"),
        "nominal_train_size": data.get("nominal_train_size"),
        "loss_last": member.loss.value[-1] if member.loss.value else None,
        "cores": len(member.cores) or None,
    }


# -- what telemetry saw ---------------------------------------------------------------------------


def _seen_in_cell(record: Record) -> dict:
    """Status, source and a note: why it is incomplete, what it contradicts, what held the GPU."""
    telemetry = record.telemetry
    if telemetry is None:
        return {}
    notes = [telemetry.reason, *telemetry.disagree]
    for reason, share in telemetry.throttled.items():
        notes.append(f"{reason.replace('_', ' ')} {100 * share:.0f} % of the time")
    notes += [f"stranger on the card: {who}" for who in telemetry.strangers or []]
    return {
        "telemetry": telemetry.status,
        "telemetry_source": telemetry.source,
        "telemetry_note": "; ".join(one_line(note) for note in notes if note) or None,
        "idle_power": telemetry.idle.get("power"),
        "idle_memory": telemetry.idle.get("memory_used"),
    }


def _seen_in_window(record: Record, name: str, member: int) -> dict:
    """What the card did in a window, what a member used of it, and what its GPU instance did.

    Of the whole card: under MIG that is what all see of the card, and of its activity the mean over
    GPU instances weighted by their SMs.
    """
    sms = record.gpu and record.gpu.sm_count
    window = record.telemetry and record.telemetry.windows.get(name)
    if not window:
        return {"activity_sm_count": sms}
    card = window.entities.get(CARD, {}) | window.whole_card
    own, energy = window.members.get(str(member), {}), window.energy
    beside = window.members.get(str(len(record.jobs)), {})  # a loader: each job has its part
    parts = {key: beside[key] / len(record.jobs) for key in _PARTED if beside.get(key) is not None}
    own = own | {key: own[key] + part for key, part in parts.items() if own.get(key) is not None}
    entity = own.get("entity")
    instance = {} if entity == CARD else window.entities.get(entity, {})
    return {
        **{key: card.get(key) for key in _CARD},
        "activity_sm_count": card.get("sm_count") or sms,
        "gpu_memory_used": card.get("memory_used"),
        # The counter knows the mean better than readings do.
        "power": energy.mean_power if energy else card.get("power"),
        "energy_j": energy.joules if energy else None,
        "cpu_cores": own.get("cpu"),
        **{key: own.get(key) for key in _USED},
        **{f"{key}_instance": instance.get(key) for key in ACTIVITY},
    }


# -- a flag that follows from a record ------------------------------------------------------------


def _uneven(rows: list[dict]) -> bool:
    """Whether a member's rate is further than SPREAD from the median of the others like it.

    Alike: same workload, input, limits and window, and as many neighbours on its device, which is
    a part of the GPU under MIG.
    """
    places = [(row.get("window"), row.get("device_uuid")) for row in rows]
    crowd, alike = Counter(places), defaultdict(list)
    for row, place in zip(rows, places, strict=True):
        if row.get("samples_per_s") is not None:
            alike[(*map(row.get, _ALIKE), crowd[place])].append(row["samples_per_s"])
    for rates in alike.values():
        for place, rate in enumerate(rates):
            others = rates[:place] + rates[place + 1 :]
            if others and abs(rate - median(others)) > flags.SPREAD * median(others):
                return True
    return False


# -- what no run.json holds -----------------------------------------------------------------------


def _busy_slices(attempt: Attempt) -> dict[str, list[float | None]]:
    """Of a completed interleaved cell: condition → GRACT of the GPU in each slice, None where no
    reading is of this slice alone. Without a condition whose GRACT other readings contradict.
    """
    record, path = attempt.record, attempt.path.with_name("gpu.parquet")
    interleaved = (record.spec.get("measure") or {}).get("kind") == INTERLEAVED
    if record.status != "completed" or not interleaved or path.name not in record.files:
        return {}
    table = read_table(path, ["t_ns", "entity", "gract"])
    series = Series.of_table(table.filter(pc.equal(table["entity"], CARD)))
    busy = {w.name: _seen_in_window(record, w.name, 0).get("gract", 1.0) for w in record.windows}
    known = [window for window in record.windows if busy[window.name] is not None]
    return {w.name: [series.over("gract", s, [s]) for s in w.spans] for w in known}


# -- the table ------------------------------------------------------------------------------------


def merge(attempts: list[Attempt]) -> pa.Table:
    """The table of a study's attempts that count, sorted."""
    rows = []
    for attempt in attempts:
        busy = _busy_slices(attempt)
        for row in rows_of(attempt.record):
            slices = busy.get(row.get("window"))
            rows.append(row | {"gract_slices": slices, "current": attempt.current})
    checks = loss_checks(member for each in attempts for member in members_of(each.record))
    for row in rows:
        name = row["cell"], row["attempt"], row.get("member")
        row["loss_check"], row["loss_distance"] = checks.get(name, (None, None))
    rows.sort(
        key=lambda r: (
            *(r[k] for k in ("implementation", "scenario", "method", "replicate", "attempt")),
            -1 if r.get("member") is None else r["member"],
            r.get("window") != BEFORE,
            str(r.get("window")),
        )
    )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def write(study: str, paths: Path, output: Path) -> None:
    """Write the table of a study's records; `paths` is a file with a record's path a line."""
    table = merge(read_study(study, paths))
    write_table(table, output, only_parquet=["slices", "gract_slices"])
