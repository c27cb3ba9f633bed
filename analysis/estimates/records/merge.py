"""run.json files → runs.parquet, one row per member, cell and window (columns: columns.csv)."""

from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from analysis.estimates.records import flags
from analysis.estimates.records.losses import check_losses, member_losses
from analysis.estimates.records.read import ReadRecord, read_records
from analysis.estimates.records.schema import SCHEMA
from analysis.files import one_line, read_table, write_table
from workflow.collocation.record.run_json import MemberRecord, Record
from workflow.collocation.record.series import Series
from workflow.collocation.study.names import BEFORE, INTERLEAVED

CARD = "gpu"  # the entity of the whole card
# Columns that have the names of telemetry's readings or of the record's fields.
INSTANCE_COLUMNS = ("gract", "smact", "smocc", "tenso", "drama", "fp16", "fp32", "fp64")
CARD_COLUMNS = (*INSTANCE_COLUMNS, "pcie_tx", "pcie_rx", "ctxsw_active", "ctxsw_requests")
CARD_COLUMNS += ("temperature", "sm_clock")
MEMBER_READINGS = ("entity", "rss", "pss", "read", "write", "gpu_memory")
LOADER_READINGS = ("cpu", "rss", "read", "write")  # of a shared loader: each job has its part
MEMBER_COLUMNS = ("member", "parameters", "parameter_bytes", "resident_bytes", "threads")
MEMBER_COLUMNS += ("device_uuid", "sm_count", "input_share", "data_wait_share")
MEMBER_COLUMNS += ("memory_peak_allocated", "memory_peak_reserved")
SPEC_COLUMNS = ("model", "dataset", "batch_size", "sm_percent", "pinned_memory_mb")
# Equal in members that should run alike.
ALIKE_COLUMNS = ("window", "workload", "input_mode", "sm_percent", "pinned_memory_mb")


def record_rows(record: Record) -> list[dict]:
    """Makes the rows of a record: one per member and window; without members one, member null."""
    cell_columns, rows = _cell_columns(record), []
    seconds = {window.name: window.seconds for window in record.windows}
    for member in record.members:
        columns = cell_columns | _member_columns(record, member)
        if not member.windows:
            rows.append(columns)
        for name, rate in member.windows.items():
            row = columns | {"window": name, "window_s": seconds.get(name)} | rate.model_dump()
            row |= row.pop("latency")
            row |= _window_readings(record, name, member.member)
            if row["nominal_train_size"] and rate.samples_per_s:
                row["epoch_time_s"] = row["nominal_train_size"] / rate.samples_per_s
            rows.append(row)
    all_flags = list(record.flags)
    if record.status == "completed" and _is_uneven(rows):
        all_flags.append(flags.UNEVEN)
    return [row | {"flags": flags.union(all_flags)} for row in rows or [cell_columns]]


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
        "gpu_uuid": gpu.get("uuid"),
        "gpu_name": gpu.get("name"),
        "gpu_memory_total": gpu.get("memory_bytes"),
        "driver": gpu.get("driver"),
        "hardware": gpu.get("name") or record.host.get("cpu"),
        "method_verified": record.method.verified,
        **{key: versions.get(key) for key in ("torch", "timm", "python")},
        **{key: provenance.get(key) for key in ("digest", "commit", "machine", "started_at")},
        "session": provenance.get("session"),
        "total_s": record.timing.get("total_s"),
        **_telemetry_columns(record),
    }


def _member_columns(record: Record, member: MemberRecord) -> dict:
    job = record.jobs[member.member]
    datasets = [data for data in record.data if data.get("dataset") == job.get("dataset")]
    data = datasets[0] if datasets else {}
    return {
        **{key: getattr(member, key) for key in MEMBER_COLUMNS},
        "member_status": member.status,
        "member_error": member.error and one_line(member.error),
        "workload": job.get("workload") or member.workload,
        **{key: job.get(key) for key in SPEC_COLUMNS},
        "source": data.get("source"),
        "input_mode": (job.get("input") or {}).get("mode"),
        "seed": record.spec.get("seed"),
        "nominal_train_size": data.get("nominal_train_size"),
        "loss_last": member.loss.value[-1] if member.loss.value else None,
        "cores": len(member.cores) or None,
    }


def _telemetry_columns(record: Record) -> dict:
    """Status, source, and notes: what is missing, contradictory, or held the GPU back."""
    telemetry = record.telemetry
    if telemetry is None:
        return {}
    notes = [telemetry.reason, *telemetry.disagree]
    for reason, share in telemetry.throttled.items():
        notes.append(f"{reason.replace('_', ' ')} {100 * share:.0f} % of the time")
    notes += [f"stranger on the card: {stranger}" for stranger in telemetry.strangers or []]
    return {
        "telemetry": telemetry.status,
        "telemetry_source": telemetry.source,
        "telemetry_note": "; ".join(one_line(note) for note in notes if note) or None,
        "idle_power": telemetry.idle.get("power"),
        "idle_memory": telemetry.idle.get("memory_used"),
    }


def _window_readings(record: Record, name: str, member: int) -> dict:
    """What the card, a member and its GPU instance did in a window."""
    sm_count = record.gpu and record.gpu.sm_count
    window = record.telemetry and record.telemetry.windows.get(name)
    if not window:
        return {"activity_sm_count": sm_count}
    # Under MIG, activity of the whole card is the mean over instances, weighted by their SMs.
    card = window.entities.get(CARD, {}) | window.whole_card
    used, energy = dict(window.members.get(str(member), {})), window.energy
    loader = window.members.get(str(len(record.jobs)), {})
    for key in LOADER_READINGS:
        if loader.get(key) is not None and used.get(key) is not None:
            used[key] += loader[key] / len(record.jobs)
    entity = used.get("entity")
    instance = {} if entity == CARD else window.entities.get(entity, {})
    return {
        **{key: card.get(key) for key in CARD_COLUMNS},
        "activity_sm_count": card.get("sm_count") or sm_count,
        "gpu_memory_used": card.get("memory_used"),
        # The energy counter's mean is better than that of readings.
        "power": energy.mean_power if energy else card.get("power"),
        "energy_j": energy.joules if energy else None,
        "cpu_cores": used.get("cpu"),
        **{key: used.get(key) for key in MEMBER_READINGS},
        **{f"{key}_instance": instance.get(key) for key in INSTANCE_COLUMNS},
    }


def _is_uneven(rows: list[dict]) -> bool:
    """Whether a member's rate is far from the median of the others that should run alike."""
    devices = [(row.get("window"), row.get("device_uuid")) for row in rows]
    members_on, rates_of = Counter(devices), defaultdict(list)
    for row, device in zip(rows, devices, strict=True):
        if row.get("samples_per_s") is not None:
            # Under MIG a device is a part of the GPU, so it counts how many members are on it.
            key = (*map(row.get, ALIKE_COLUMNS), members_on[device])
            rates_of[key].append(row["samples_per_s"])
    for rates in rates_of.values():
        for index, rate in enumerate(rates):
            others_rates = rates[:index] + rates[index + 1 :]
            if not others_rates:
                continue
            middle = median(others_rates)
            if abs(rate - middle) > flags.UNEVEN_FROM * middle:
                return True
    return False


def _gract_slices(read: ReadRecord) -> dict[str, list[float | None]]:
    """GRACT in each slice of a completed interleaved cell's conditions; None without a reading."""
    record, path = read.record, read.path.with_name("gpu.parquet")
    interleaved = (record.spec.get("measure") or {}).get("kind") == INTERLEAVED
    if record.status != "completed" or not interleaved or path.name not in record.files:
        return {}
    table = read_table(path, ["t_ns", "entity", "gract"])
    series = Series.of_table(table.filter(pc.equal(table["entity"], CARD)))
    slices = {}
    for window in record.windows:
        # It is None if it contradicts other readings; then its slices say nothing, either.
        if _window_readings(record, window.name, 0).get("gract", 1.0) is not None:
            slices[window.name] = [series.over("gract", span, [span]) for span in window.spans]
    return slices


def merge_records(records: list[ReadRecord]) -> pa.Table:
    """Makes the table of a study's records, sorted by cell."""
    rows, losses = [], []
    for read in records:
        losses += member_losses(read.record)
        gract_slices = _gract_slices(read)
        for row in record_rows(read.record):
            row |= {"gract_slices": gract_slices.get(row.get("window")), "current": read.current}
            rows.append(row)
    checks = check_losses(losses)
    for row in rows:
        name = row["cell"], row["attempt"], row.get("member")
        row["loss_check"], row["loss_distance"] = checks.get(name, (None, None))
    return pa.Table.from_pylist(sorted(rows, key=_row_order), schema=SCHEMA)


def _row_order(row: dict) -> tuple:
    names = ("implementation", "scenario", "method", "replicate", "attempt")
    member = -1 if row.get("member") is None else row["member"]
    window = row.get("window")
    return (*(row[name] for name in names), member, window != BEFORE, str(window))


def write_runs(study: str, list_file: Path, output: Path) -> None:
    """Writes runs.parquet from a study's records.

    list_file: has the path of a run.json on each line.
    """
    table = merge_records(read_records(study, list_file))
    write_table(table, output, only_parquet=["slices", "gract_slices"])
