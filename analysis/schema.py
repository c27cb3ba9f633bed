"""The columns of runs.parquet: type, unit and description of each, kept in the field metadata."""

from __future__ import annotations

import pyarrow as pa

_TEXT, _INT, _REAL, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()

_COLUMNS: tuple[tuple[str, pa.DataType, str, str], ...] = (
    ("study", _TEXT, "", "named grid that the cell belongs to"),
    ("cell", _TEXT, "", "cell id: scenario/arm/method/replicate"),
    ("scenario", _TEXT, "", "workloads that share the GPU, with suffixes where not the default"),
    ("arm", _TEXT, "", "how well a job is written: faithful, tuned or tuned_graph"),
    ("method", _TEXT, "", "how the members share the GPU"),
    ("block", _INT, "", "replicate; progress is normalised within it"),
    ("attempt", _INT, "", "attempt of the cell that is shown"),
    ("current", _BOOL, "", "false: an older attempt kept only as another cell's baseline"),
    ("n", _INT, "members", "training processes that share the GPU"),
    ("status", _TEXT, "", "outcome of the cell"),
    ("reason", _TEXT, "", "one line: why the cell did not complete"),
    ("phase", _TEXT, "", "phase in which the cell ended early"),
    ("member", _INT, "", "member index; null in a cell that started none"),
    ("member_status", _TEXT, "", "outcome of the member"),
    ("member_error", _TEXT, "", "the member's error, one line"),
    ("workload", _TEXT, "", "the member's workload"),
    ("model", _TEXT, "", "model name"),
    ("dataset", _TEXT, "", "dataset name"),
    ("source", _TEXT, "", "real or synthetic (generated) data"),
    ("batch_size", _INT, "samples", "samples per step"),
    ("input_mode", _TEXT, "", "files (data loader) or resident (subset kept on the device)"),
    ("seed", _INT, "", "the member's seed"),
    ("measure", _TEXT, "", "window, epochs or departure"),
    ("window", _TEXT, "", "window that the row's rates belong to"),
    ("window_s", _REAL, "s", "length of that window"),
    (
        "samples_per_s",
        _REAL,
        "samples/s",
        "training throughput; in `epochs` samples over training time, validation set apart",
    ),
    ("nominal_train_size", _INT, "samples", "training-set size that an epoch stands for"),
    ("epoch_time_s", _REAL, "s", "time of one epoch of the nominal training set, no validation"),
    (
        "epoch_time_kind",
        _TEXT,
        "",
        "rate: size / throughput; trained: mean of whole epochs; "
        "trained_scaled: the same on a subset, scaled to the nominal size",
    ),
    ("validation_s", _REAL, "s", "mean time of a validation pass"),
    ("steps", _INT, "steps", "steps finished in the window"),
    ("step_ms_p50", _REAL, "ms", "median step time"),
    ("step_ms_p95", _REAL, "ms", "95th percentile of step time"),
    ("step_ms_p99", _REAL, "ms", "99th percentile of step time"),
    ("drift", _REAL, "1", "mean step of the last third over that of the first third, minus 1"),
    ("data_wait_share", _REAL, "1", "share of the time in which the step loop waited for input"),
    ("input_share", _REAL, "1", "resident input: time to make a batch over step time"),
    ("parameters", _INT, "", "parameter count"),
    ("parameter_bytes", _INT, "B", "memory of the parameters"),
    ("resident_bytes", _INT, "B", "resident input on the device, apart from the model"),
    ("memory_peak_allocated", _INT, "B", "peak of tensors on the device"),
    ("memory_peak_reserved", _INT, "B", "peak held by the allocator"),
    ("loss_last", _REAL, "", "last recorded training loss"),
    ("loss_check", _TEXT, "", "does the loss at step k agree with alone runs (analysis.losses)"),
    ("epochs_done", _INT, "epochs", "whole epochs trained"),
    ("accuracy", _REAL, "1", "top-1 validation accuracy after the last whole epoch"),
    ("validation_loss", _REAL, "", "validation loss after the last whole epoch"),
    ("gpu_uuid", _TEXT, "", "physical GPU"),
    ("gpu_name", _TEXT, "", "GPU model"),
    ("driver", _TEXT, "", "GPU driver"),
    ("hardware", _TEXT, "", "GPU model, or the CPU where there is no GPU"),
    ("device", _TEXT, "", "GPU UUID, or the machine's alias where there is no GPU"),
    ("cores", _INT, "cores", "CPU cores of the member"),
    ("threads", _INT, "threads", "torch threads of the member"),
    ("sm_percent", _REAL, "%", "share of the SMs that MPS leaves the member; null: no limit"),
    ("pinned_memory_mb", _INT, "MB", "device memory that MPS leaves the member; null: no limit"),
    ("device_uuid", _TEXT, "", "GPU or MIG device that the member found itself on"),
    ("sm_count", _INT, "SMs", "SMs that the member found it could use"),
    ("flags", _TEXT, "", "what a reader should know, separated by ; (analysis.flags)"),
    ("method_verified", _BOOL, "", "the method's witness was seen"),
    ("digest", _TEXT, "", "digest of what is trained and how"),
    ("torch", _TEXT, "", "torch version"),
    ("timm", _TEXT, "", "timm version"),
    ("python", _TEXT, "", "Python version"),
    ("commit", _TEXT, "", "commit of the repository"),
    ("sitting", _TEXT, "", "invocation that measured the cell"),
    ("machine", _TEXT, "", "alias of the machine"),
    ("started_at", _TEXT, "UTC", "start of the cell"),
    ("total_s", _REAL, "s", "wall time of the cell"),
    ("baseline_cell", _TEXT, "", "alone cell that progress is taken against"),
    ("baseline_samples_per_s", _REAL, "samples/s", "throughput alone: same block, arm and device"),
    ("progress", _REAL, "1", "normalised progress: throughput / throughput alone; not clipped"),
    ("slowdown", _REAL, "1", "inverse of progress"),
)

SCHEMA = pa.schema(
    [
        pa.field(name, kind, metadata={"unit": unit, "description": description})
        for name, kind, unit, description in _COLUMNS
    ]
)
