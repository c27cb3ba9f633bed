"""Run records for the tests of analysis/: their numbers measure nothing."""

from statistics import fmean

from analysis.names import parse_scenario, sides_of
from analysis.records import merge

TRAIN_SIZE = 50_000


def record(scenario, method="naive", replicate=1, rates=(1000.0,), **options):
    """A synthetic run.json: one rate (samples/s) per member; None: a member without a window.

    Options: arm, attempt, status, reason, gpu (uuid or None), gpu_name, study, windows (list of
    per-member dicts of window → rate, in place of rates; lists are rates of slices), epochs,
    losses (per member), source, drift and drift_error (of every window), flags, limits (in every
    member's spec), evidence, verified, sm_count, uuids, telemetry, sitting, gpu_memory (bytes).
    """
    parsed, sides = parse_scenario(scenario), sides_of(scenario, method)
    sets = [parse_scenario(side.scenario) for side in sides.values()] or [parsed]
    names = [name for each in sets for name, count in each.parts for _ in range(count)]
    arm, status = options.get("arm", "paper_step"), options.get("status", "completed")
    started = status not in ("unsupported", "postponed")
    measure = "epochs" if "epochs" in parsed.variant else "window"
    measure = "alternate" if sides else measure
    measure = "departure" if "departure" in parsed.variant else measure
    per_member = options.get("windows") or [
        {} if rate is None else {"epochs" if measure == "epochs" else "window": rate}
        for rate in rates
    ]
    gpu = options.get("gpu", "GPU-1")
    members = [
        {
            "member": i,
            "workload": names[i],
            "status": "completed" if windows else "out_of_memory",
            "error": None,
            "cores": [2 * i, 2 * i + 1],
            "threads": 2,
            "memory_peak_allocated": 2**30,
            "device_uuid": options.get("uuids", ["GPU-1"] * 9)[i],
            "sm_count": options.get("sm_count"),
            "windows": {
                name: {
                    "steps": 100,
                    "samples_per_s": fmean(rate) if isinstance(rate, list) else rate,
                    "slices": rate if isinstance(rate, list) else None,
                    "step_ms_p50": 3.0,
                    "drift": options.get("drift", 0.001),
                    "drift_error": options.get("drift_error"),
                }
                for name, rate in windows.items()
            },
            "epochs": options.get("epochs", []),
            "loss": {"step": [0, 10, 20], "value": options.get("losses", [[7.0, 6.0, 5.0]] * 9)[i]},
        }
        for i, windows in enumerate(per_member)
    ]
    used = sorted({name for windows in per_member for name in windows})
    return {
        "schema_version": 1,
        "study": options.get("study", "records"),
        "cell": {
            "id": f"{scenario}/{arm}/{method}/r{replicate}",
            "scenario": scenario,
            "arm": arm,
            "method": method,
            "replicate": replicate,
            "attempt": options.get("attempt", 1),
        },
        "spec": {
            "members": [
                {
                    "workload": name,
                    "model": name.split("_")[0],
                    "dataset": "images",
                    "batch_size": 32,
                    "input": {"mode": "files" if "files" in parsed.variant else "resident"},
                    "nominal_train_size": TRAIN_SIZE,
                    **options.get("limits", {}),
                }
                for name in names
            ],
            "measure": {"kind": measure, "window_s": 10},
            "seed": 42,
        },
        "status": status,
        "reason": options.get("reason"),
        "phase": None,
        "method": {
            "name": method,
            "verified": options.get("verified", True) if started else None,
            "evidence": options.get("evidence", {}),
        },
        "gpu": gpu
        and {
            "uuid": gpu,
            "name": options.get("gpu_name", "Test GPU"),
            "driver": "580.1",
            "memory_bytes": options.get("gpu_memory"),
        },
        "windows": [{"name": name, "seconds": 10.0} for name in used],
        "members": members if started else [],
        "data": [
            {
                "dataset": "images",
                "source": options.get("source", "synthetic"),
                "nominal_train_size": TRAIN_SIZE,
            }
        ],
        "flags": options.get("flags", []),
        "host": {"cpu": "Test CPU", "cores": 16},
        "provenance": {
            "digest": options.get("digest", "d1"),
            "versions": {"torch": "2.11", "timm": "1.0"},
            "machine": "m1",
            "sitting": options.get("sitting"),
        },
        "timing": {"total_s": 20.0},
    } | ({"telemetry": options["telemetry"]} if "telemetry" in options else {})


def merged(*records):
    """Rows of the merged table as a frame."""
    table, problems = merge.merge(list(records))
    assert problems == []
    return table.to_pandas()


def telemetry(watts=200.0, windows=("window",), members=1, **options):
    """A run.json's `telemetry` of so many members, at so much power in windows of 10 s.

    Options: card (headline metrics besides those here), whole_card, and any key of telemetry.
    """
    card = {"gract": 0.5, "smact": 0.25, "tenso": None, "memory_used": 2e9, "temperature": 50.0}
    used = {"cpu": 1.5, "rss": 2**30, "pss": None, "read": 0.0, "write": 10.0, "gpu_memory": 2**29}
    used |= {"entity": "gpu"}
    window = {
        "seconds": 10.0,
        "entities": {"gpu": card | options.pop("card", {})},
        "series": {"gpu": card | {"gract": 0.51}},
        "energy": {
            "joules": 10 * watts,
            "seconds": 9.98,
            "mean_power": watts,
            "idle_joules": 800.0,
            "above_idle_joules": 10 * watts - 800,
            "integrated_joules": 10 * watts + 1,
        },
        "members": {str(i): used for i in range(members)},
        "host": {"cpu_busy": 3.0},
        "whole_card": options.pop("whole_card", {}),
    }
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
