"""The columns of runs.parquet and telemetry.parquet: type, unit and description of each, kept in
the field metadata.
"""

from __future__ import annotations

import pyarrow as pa

_TEXT, _INT, _REAL, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_NAME, _SINGLE = pa.dictionary(pa.int32(), pa.string()), pa.float32()

_COLUMNS: tuple[tuple[str, pa.DataType, str, str], ...] = (
    ("study", _TEXT, "", "named grid that the cell belongs to"),
    ("cell", _TEXT, "", "cell id: scenario/arm/method/replicate"),
    ("scenario", _TEXT, "", "workloads that share the GPU, with suffixes where not the default"),
    ("arm", _TEXT, "", "how well a job is written: faithful, tuned or tuned_graph"),
    ("method", _TEXT, "", "how the members share the GPU"),
    ("block", _INT, "", "replicate; jobs are compared with their jobs alone within it"),
    ("attempt", _INT, "", "attempt of the cell that is shown"),
    ("current", _BOOL, "", "false: an older attempt, kept as the job alone of cells on its GPU"),
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
    ("measure", _TEXT, "", "window, epochs, departure or completion"),
    ("window", _TEXT, "", "window that the row's rates belong to"),
    ("window_s", _REAL, "s", "length of that window"),
    (
        "samples_per_s",
        _REAL,
        "samples/s",
        "training throughput; in `epochs` samples over training time, validation set apart",
    ),
    (
        "samples_per_s_alone_after",
        _REAL,
        "samples/s",
        "fixed work: throughput of the member that ends last, from the end of the others on",
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
    ("drift_error", _REAL, "1", "standard error of drift, by batch means; null for a few steps"),
    ("data_wait_share", _REAL, "1", "share of the time in which the step loop waited for input"),
    ("input_share", _REAL, "1", "resident input: time to make a batch over step time"),
    ("parameters", _INT, "", "parameter count"),
    ("parameter_bytes", _INT, "B", "memory of the parameters"),
    ("resident_bytes", _INT, "B", "resident input on the device, apart from the model"),
    ("memory_peak_allocated", _INT, "B", "peak of tensors on the device"),
    ("memory_peak_reserved", _INT, "B", "peak held by the allocator"),
    ("loss_last", _REAL, "", "last recorded training loss"),
    ("loss_check", _TEXT, "", "does the loss at step k agree with alone runs (records.losses)"),
    ("loss_distance", _REAL, "1", "RMS distance to the alone runs' median curve, over its RMS"),
    ("epochs_done", _INT, "epochs", "whole epochs trained"),
    ("accuracy", _REAL, "1", "top-1 validation accuracy after the last whole epoch"),
    ("validation_loss", _REAL, "", "validation loss after the last whole epoch"),
    ("gpu_uuid", _TEXT, "", "physical GPU"),
    ("gpu_name", _TEXT, "", "GPU model"),
    ("gpu_memory_total", _INT, "B", "memory of the whole GPU"),
    ("driver", _TEXT, "", "GPU driver"),
    ("hardware", _TEXT, "", "GPU model, or the CPU where there is no GPU"),
    ("device", _TEXT, "", "GPU UUID, or the machine's alias where there is no GPU"),
    ("cores", _INT, "cores", "CPU cores of the member"),
    ("threads", _INT, "threads", "torch threads of the member"),
    ("sm_percent", _REAL, "%", "share of the SMs that MPS leaves the member; null: no limit"),
    ("pinned_memory_mb", _INT, "MB", "device memory that MPS leaves the member; null: no limit"),
    ("device_uuid", _TEXT, "", "GPU or MIG device that the member found itself on"),
    ("sm_count", _INT, "SMs", "SMs that the member found it could use"),
    ("flags", _TEXT, "", "what a reader should know, separated by ; (analysis.records.flags)"),
    ("method_verified", _BOOL, "", "the method was proven in force; null: could not be told"),
    ("in_force", _TEXT, "", "the same in words; null where nothing was measured"),
    ("proof", _TEXT, "", "what proves it, or why nothing was measured"),
    ("digest", _TEXT, "", "digest of what is trained and how"),
    ("torch", _TEXT, "", "torch version"),
    ("timm", _TEXT, "", "timm version"),
    ("python", _TEXT, "", "Python version"),
    ("commit", _TEXT, "", "commit of the repository"),
    ("session", _TEXT, "", "visit to a host in which the cell was measured"),
    ("machine", _TEXT, "", "alias of the machine"),
    ("started_at", _TEXT, "UTC", "start of the cell"),
    ("total_s", _REAL, "s", "wall time of the cell"),
    ("telemetry", _TEXT, "", "complete, incomplete or off"),
    ("telemetry_source", _TEXT, "", "what read the GPU: gpm, dcgm or nvml"),
    ("telemetry_note", _TEXT, "", "why incomplete, contradictions, throttling, strangers"),
    ("gract", _REAL, "1", "share of the window in which a graphics or compute engine was active"),
    ("smact", _REAL, "1", "share of it in which an SM had a warp, mean over SMs"),
    ("smocc", _REAL, "1", "resident warps over the most that fit, mean over SMs"),
    ("tenso", _REAL, "1", "share of it in which the tensor pipes were active"),
    ("drama", _REAL, "1", "share of it in which device memory moved data"),
    ("fp16", _REAL, "1", "share of it in which the FP16 pipes were active"),
    ("fp32", _REAL, "1", "share of it in which the FP32 pipes were active"),
    ("fp64", _REAL, "1", "share of it in which the FP64 pipes were active"),
    ("activity_sm_count", _INT, "SMs", "SMs of the card that gract … fp64 are a mean over"),
    ("pcie_tx", _REAL, "B/s", "sent by the GPU over PCIe"),
    ("pcie_rx", _REAL, "B/s", "received by the GPU over PCIe"),
    ("ctxsw_active", _REAL, "1", "share of the window in which the engine switched contexts"),
    ("ctxsw_requests", _REAL, "1/s", "context switches asked for"),
    ("gpu_memory_used", _REAL, "B", "device memory in use, by whomever"),
    ("temperature", _REAL, "C", "mean temperature of the GPU"),
    ("sm_clock", _REAL, "MHz", "mean clock of the SMs"),
    ("power", _REAL, "W", "mean power of the GPU in the window"),
    ("idle_memory", _REAL, "B", "device memory in use before members were built"),
    (
        "idle_power",
        _REAL,
        "W",
        "least of the mean powers before members were built, over the cells of device and session: "
        "right after another cell the clocks are still up",
    ),
    ("energy_j", _REAL, "J", "the GPU's energy in the window, by its counter, for all members"),
    ("energy_above_idle_j", _REAL, "J", "the same less idle power over the window"),
    ("cpu_cores", _REAL, "cores", "CPU that the member used, with its loader workers; 1: a core"),
    ("rss", _REAL, "B", "resident memory of the member's processes"),
    ("pss", _REAL, "B", "the same, shared pages split among those that share them"),
    ("read", _REAL, "B/s", "read from storage by the member's processes"),
    ("write", _REAL, "B/s", "written to storage by them"),
    ("gpu_memory", _REAL, "B", "device memory of the member, as NVML lists it"),
    ("entity", _TEXT, "", "where the member ran: gpu, the whole card; gi:<id>, an instance of MIG"),
    *(
        (
            f"{name}_instance",
            _REAL,
            "1",
            f"{name} of that GPU instance, of its SMs; null without MIG",
        )
        for name in ("gract", "smact", "smocc", "tenso", "drama", "fp16", "fp32", "fp64")
    ),
)

# What telemetry.parquet holds of every reading; names and units are those of the cells' files.
_READINGS: tuple[tuple[str, pa.DataType, str, str], ...] = (
    ("gract", _SINGLE, "1", "graphics or compute engine active"),
    ("smact", _SINGLE, "1", "SMs with a warp"),
    ("smocc", _SINGLE, "1", "resident warps over the most that fit"),
    ("tenso", _SINGLE, "1", "tensor pipes active"),
    ("drama", _SINGLE, "1", "device memory moving data"),
    ("fp16", _SINGLE, "1", "FP16 pipes active"),
    ("fp32", _SINGLE, "1", "FP32 pipes active"),
    ("fp64", _SINGLE, "1", "FP64 pipes active"),
    ("integer", _SINGLE, "1", "integer pipes active"),
    ("pcie_tx", _SINGLE, "B/s", "sent by the GPU over PCIe"),
    ("pcie_rx", _SINGLE, "B/s", "received by the GPU over PCIe"),
    ("nvlink_tx", _SINGLE, "B/s", "sent by the GPU over all NVLinks"),
    ("nvlink_rx", _SINGLE, "B/s", "received by the GPU over all NVLinks"),
    ("ctxsw_active", _SINGLE, "1", "context switches going on"),
    ("ctxsw_requests", _SINGLE, "1/s", "context switches asked for"),
    ("gpu_util", _SINGLE, "1", "NVML utilisation: a kernel was running"),
    ("memory_util", _SINGLE, "1", "NVML utilisation: memory was read or written"),
    ("memory_used", _INT, "B", "device memory in use, by whomever"),
    ("power", _SINGLE, "W", "power of the board"),
    ("energy", _REAL, "J", "energy of the board since the driver was loaded"),
    ("temperature", _SINGLE, "C", "temperature of the GPU"),
    ("memory_temperature", _SINGLE, "C", "temperature of the device memory"),
    ("sm_clock", _SINGLE, "MHz", "clock of the SMs"),
    ("memory_clock", _SINGLE, "MHz", "clock of the device memory"),
    ("throttle", _INT, "bitmask", "why clocks are below their most: NVML event reasons"),
    ("power_violation", _REAL, "s", "time in which a power limit held the clocks down"),
    ("thermal_violation", _REAL, "s", "time in which heat held the clocks down"),
)


def _schema(columns: tuple[tuple[str, pa.DataType, str, str], ...]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, kind, metadata={"unit": unit, "description": description})
            for name, kind, unit, description in columns
        ]
    )


SCHEMA = _schema(_COLUMNS)
TELEMETRY = _schema(
    (
        ("cell", _NAME, "", "cell id: scenario/arm/method/replicate"),
        ("attempt", pa.int16(), "", "attempt of the cell"),
        ("t", _REAL, "s", "since the cell's first window opened; without one, since its first row"),
        ("entity", _NAME, "", "gpu: the whole card; gi:<id>: a GPU instance of MIG"),
        ("phase", _NAME, "", "phase of the cell"),
        *_READINGS,
    )
)
