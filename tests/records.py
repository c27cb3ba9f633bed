"""Run records for the tests of analysis/: their numbers measure nothing."""

from pathlib import Path
from statistics import fmean

from analysis.estimates.records.merge import merge_records
from analysis.estimates.records.read import ReadRecord, records_that_count
from workflow.collocation.record.run_json import SCHEMA_VERSION, Record
from workflow.collocation.study.names import conditions_of, parse_scenario

TRAIN_SIZE = 50_000


def record(scenario, method="naive", replicate=1, rates=(1000.0,), **options):
    """A synthetic run.json: one rate (samples/s) per member; None: a member without a window.

    Options: implementation, attempt, status, reason, gpu (uuid or None), study, windows
    (list of per-member dicts of window → rate, in place of rates; lists are rates of slices),
    losses (per member), source, flags, limits (in every
    member's spec), verified, sm_count, uuids, telemetry, session, gpu_memory (bytes), digest (of
    the code).
    """
    parsed, conditions = parse_scenario(scenario), conditions_of(scenario, method)
    sets = [parse_scenario(condition.scenario) for condition in conditions.values()] or [parsed]
    names = [name for each in sets for name, count in each.parts for _ in range(count)]
    implementation = options.get("implementation", "paper_step")
    status = options.get("status", "completed")
    started = status not in ("unsupported", "postponed")
    measure = "interleaved" if conditions else "window"
    measure = "departure" if "departure" in parsed.variant else measure
    plain = [{} if rate is None else {"window": rate} for rate in rates]
    per_member = options.get("windows") or plain
    gpu, memory = options.get("gpu", "GPU-1"), options.get("gpu_memory")
    uuids = options.get("uuids", ["GPU-1"] * 9)
    losses = options.get("losses", [[7.0, 6.0, 5.0]] * 9)

    def window(rate) -> dict:
        interleaved = isinstance(rate, list)
        found = {"steps": 100, "samples_per_s": fmean(rate) if interleaved else rate}
        found |= {"slices": rate if interleaved else None, "step_ms_p50": 3.0}
        return found | {"drift": 0.001, "drift_error": None}

    members = [
        {"member": i, "workload": names[i], "status": "completed" if windows else "out_of_memory"}
        | {"error": None, "cores": [2 * i, 2 * i + 1], "threads": 2}
        | {"memory_peak_allocated": 2**30, "device_uuid": uuids[i]}
        | {"sm_count": options.get("sm_count")}
        | {"windows": {name: window(rate) for name, rate in windows.items()}}
        | {"loss": {"step": [0, 10, 20], "value": losses[i]}}
        for i, windows in enumerate(per_member)
    ]
    used = sorted({name for windows in per_member for name in windows})
    cell = {
        "id": f"{scenario}/{implementation}/{method}/r{replicate}",
        "scenario": scenario,
        "implementation": implementation,
    }
    cell |= {"method": method, "replicate": replicate, "attempt": options.get("attempt", 1)}
    job = {"dataset": "images", "batch_size": 32}
    job["input"] = {"mode": parsed.variant if parsed.variant in ("files", "shared") else "resident"}
    job |= options.get("limits", {})
    spec = {"measure": {"kind": measure, "window_s": 10}, "seed": 42}
    spec["members"] = [{"workload": n, "model": n.split("_")[0]} | job for n in names]
    in_force = {"name": method, "evidence": {}}
    in_force["verified"] = options.get("verified", True) if started else None
    card = {"uuid": gpu, "name": "Test GPU", "driver": "580.1"}
    data = {"dataset": "images", "source": options.get("source", "synthetic")}
    versions = {"torch": "2.11", "timm": "1.0"}
    provenance = {"digest": options.get("digest", "d1"), "versions": versions, "machine": "m1"}
    return {
        "schema_version": SCHEMA_VERSION,
        "study": options.get("study", "records"),
        "cell": cell,
        "spec": spec,
        "status": status,
        "reason": options.get("reason"),
        "phase": None,
        "method": in_force,
        "gpu": gpu and card | {"memory_bytes": memory},
        "windows": [{"name": n, "start_ns": 0, "end_ns": 10**10, "seconds": 10.0} for n in used],
        "members": members if started else [],
        "data": [data | {"nominal_train_size": TRAIN_SIZE}],
        "flags": options.get("flags", []),
        "host": {"cpu": "Test CPU", "cores": 16},
        "provenance": provenance | {"session": options.get("session")},
        "timing": {"total_s": 20.0},
    } | ({"telemetry": options["telemetry"]} if "telemetry" in options else {})


def merged(*records, folder=Path()):
    """Rows of the merged table as a frame; folder: where the files beside them are."""
    attempts = [ReadRecord(Record.model_validate(each), folder / "run.json") for each in records]
    return merge_records(records_that_count(attempts)).to_pandas()


def telemetry(watts=200.0, windows=("window",), members=1, **options):
    """A run.json's `telemetry` of so many members, at so much power in windows of 10 s.

    Options: card (headline metrics besides those here), whole_card, and any key of telemetry.
    """
    card = {"gract": 0.5, "smact": 0.25, "tenso": None, "memory_used": 2e9, "temperature": 50.0}
    used = {"cpu": 1.5, "rss": 2**30, "pss": None, "read": 0.0, "write": 10.0, "gpu_memory": 2**29}
    used |= {"entity": "gpu"}
    energy = {"joules": 10 * watts, "seconds": 9.98, "mean_power": watts, "idle_joules": 800.0}
    energy |= {"above_idle_joules": 10 * watts - 800, "integrated_joules": 10 * watts + 1}
    window = {"seconds": 10.0, "entities": {"gpu": card | options.pop("card", {})}}
    window |= {"series": {"gpu": card | {"gract": 0.51}}, "energy": energy}
    window |= {"members": {str(i): used for i in range(members)}, "host": {"cpu_busy": 3.0}}
    window["whole_card"] = options.pop("whole_card", {})
    return {
        "status": "complete",
        "reason": None,
        "source": "gpm",
        "hz": 10.0,
        "idle": {"power": 80.0, "seconds": 2.0},
        "windows": dict.fromkeys(windows, window),
        "disagree": [],
        "throttled": {},
        "strangers": None,
        "sampler": {},
    } | options
