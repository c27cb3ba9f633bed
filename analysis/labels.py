"""What jobs, methods and implementations are called, and how numbers are written, for readers."""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from analysis.estimates import table
from analysis.estimates.table import CELL, INTERVAL, NONE, PREDICTION, RANGE, Row
from workflow.collocation.study.names import PAPER_IMPLEMENTATION, family_of, parse_scenario
from workflow.collocation.study.regular_files import read_json

_MODELS = ("ResNet", "EfficientNetV2", "EfficientNet", "CaiT", "DLRM", "LM", "ASR")
_DATASETS = ("cifar10", "imagenet64", "imagenet", "criteo", "digits", "sources", "speech")
# Method → title, colour, marker. Colour-blind readers can tell the hues apart, and lightness and
# marker differ in greyscale. A variant without a colour has that of its family.
_METHODS = {
    "serial": ("one after the other", "", ""),
    "naive": ("separate processes", "#E0A224", "o"),
    "mps": ("MPS", "#0B5394", "s"),
    "mps_equal": ("MPS, equal shares", "#5C9BD5", "<"),
    "mps_overlap": ("MPS, overlapping shares", "#2A9D8F", ">"),
    "mps_30": ("MPS, 30 % of SMs", "#5C9BD5", "v"),
    "mps_60": ("MPS, 60 % of SMs", "#5C9BD5", "v"),
    "mps_below": ("MPS, lower priority", "#B4497E", "P"),
    "streams": ("CUDA streams", "#7A5BA8", "D"),
    "mig": ("MIG", "#A1372D", "^"),
    "mig_1g2x": ("MIG 1g, double memory", "", ""),
    "mig_shared": ("MIG, shared memory", "", ""),
}
_IMPLEMENTATIONS = {  # implementation → title, and how its line is drawn
    PAPER_IMPLEMENTATION: ("plain (TF32)", "-"),
    "eager": ("TF32, no waiting", "-."),
    "bf16": ("bf16", (0, (6, 1, 1, 1, 1, 1))),
    "graph": ("bf16 + CUDA graph", "--"),
    "compile": ("bf16, compiled", ":"),
}
GREY = "#888888"
KINDS = {  # kind of set, of analysis.estimates.intervals.set_kinds → title
    "alone_waits": "alone, waits for its host",
    "alone_busy": "alone, keeps the GPU busy",
    "alone_graph": "alone, CUDA graph",
    "set_waits": "together, wait for their host",
    "set_near": "together, wait for their host and just fill the GPU",
    "set_full": "together, wait for their host but fill the GPU",
    "set_busy": "together, each keeps the GPU busy",
    "set_graph": "together, CUDA graphs",
}


def job(workload: str, implementation_name: str = PAPER_IMPLEMENTATION) -> str:
    """Title of a workload, such as `ResNet26 b32` or `EfficientNetV2-S b128`.

    The implementation is added unless it is the paper's: `ResNet26 b32, bf16`.
    """
    if implementation_name != PAPER_IMPLEMENTATION:
        return f"{job(workload)}, {implementation(implementation_name)}"
    if workload.startswith("tiny_"):
        return f"tiny {job(workload.removeprefix('tiny_'))}"
    if workload.startswith("serve_"):
        rate, _, engine = workload.removeprefix("serve_").partition("_")
        title = f"server, {rate} requests/s"
        return f"{title} ({engine})" if engine else title
    match = re.fullmatch(r"(.+)_b(\d+)(?:_(.+))?", workload)
    if match is None:
        return workload.replace("_", " ")
    name, batch, variant = match.groups()
    title = f"{_model(name)} b{batch}"
    if variant:
        title += f", {variant.replace('_', ' ').replace('lora', 'LoRA')}"
    return title


def _model(name: str) -> str:
    """`efficientnetv2_s_imagenet64` → `EfficientNetV2-S`; an unknown model keeps its name."""
    words = [word for word in name.split("_") if word not in _DATASETS] or [name]
    for model in _MODELS:
        if words[0].startswith(model.lower()):
            sizes = [word if word == "small" else word.upper() for word in words[1:]]
            return "-".join([model + words[0][len(model) :], *sizes])
    return " ".join(words)


def scenario(identity: str, count: bool = True) -> str:
    """Title of the jobs that share the GPU: `7 × ResNet26 b32`, `DLRM b2048 + ResNet152 b32`.

    count: whether to say how many jobs a set of equal jobs has.
    """
    parsed = parse_scenario(identity)
    parts = []
    for workload, n in parsed.parts:
        counted = count and (n > 1 or parsed.mixed)
        parts.append(f"{n} × {job(workload)}" if counted else job(workload))
    title = " + ".join(parts)
    return f"{title} ({parsed.variant})" if parsed.variant else title


def method(name: str) -> str:
    """Title of a method: `separate processes`, `MPS`; `MPS 1g` for a variant that a study adds."""
    if name in _METHODS:
        return _METHODS[name][0]
    family, _, variant = name.partition("_")
    family = _METHODS[family][0] if family in _METHODS else family
    return f"{family} {variant.replace('_', ' ')}".strip()


def method_phrase(name: str) -> str:
    """How jobs ran, to follow their number: `under MPS`, `as separate processes`."""
    if name == "streams":
        return "on CUDA streams of one process"
    return "as separate processes" if name == "naive" else f"under {method(name)}"


def has_mps_limits(method_name: str) -> bool:
    """True of MPS with limits of SMs or priorities, which no recipe sets."""
    return method_name != "mps" and family_of(method_name) == "mps"


def colour(method_name: str) -> str:
    """Colour of a method in figures; a variant has that of its family."""
    for name in (method_name, family_of(method_name)):
        if name in _METHODS and _METHODS[name][1]:
            return _METHODS[name][1]
    return GREY


def marker(method_name: str) -> str:
    """Matplotlib marker of a method; a variant that a study adds gets one by its name."""
    if method_name in _METHODS and _METHODS[method_name][2]:
        return _METHODS[method_name][2]
    return "pD*"[sum(map(ord, method_name)) % 3]


def implementation(name: str) -> str:
    """Title of an implementation: how well the job is written."""
    return _IMPLEMENTATIONS[name][0] if name in _IMPLEMENTATIONS else name.replace("_", " ")


def line_style(name: str) -> str | tuple:
    """Kind of line, as Matplotlib takes it, of an implementation in figures."""
    return _IMPLEMENTATIONS[name][1] if name in _IMPLEMENTATIONS else "-"


def for_script(folder: Path, text: str) -> str:
    """Adapt a study's text to a user's script, if `collocate advise` measured one in the folder.

    A script is measured as it is written, and its progress may be counted in steps.
    """
    path = folder / "advice.json"
    if not path.exists():
        return text
    advice = read_json(path)
    if advice.get("run"):
        text = text.replace(implementation(PAPER_IMPLEMENTATION), "as it is")
    if advice.get("alone", {}).get("unit") == "steps/s":
        text = re.sub(r"\b([Ss])amples/s\b", r"\1teps/s", text)
        text = re.sub(r"/sample\b", "/step", text)
    return text


def status(name: str) -> str:
    """Title of an outcome: `out of memory`."""
    return name.replace("_", " ")


def number(value: float | None, unit: str = "") -> str:
    """A number with three digits, thousands as k from 10,000 on: `57.9k samples/s`, `1.64`."""
    if value is None or math.isnan(value):
        return "–"
    if abs(value) >= 999_500:
        text = f"{value / 1e6:.3g}M"
    elif abs(value) >= 9_999.5:
        text = f"{value / 1e3:.3g}k"
    elif abs(value) >= 99.5:
        text = f"{value:,.0f}"
    elif abs(value) >= 9.995:
        text = f"{value:.1f}"
    elif 0 < abs(value) < 0.00995:
        text = f"{value:.2g}"
    else:
        text = f"{value:.2f}"
    return f"{text} {unit}" if unit else text


def range_of(values: Iterable[float]) -> str:
    """Lowest and highest value: `1.90 to 3.37`, or one number where both are written alike."""
    values = list(values)
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def interval(value: float, low: float | None, high: float | None) -> str:
    """`1.30 [1.28, 1.33]`, or the value alone if the interval is not known."""
    if low is None or high is None or math.isnan(low):
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"


def span(estimate: Row | None) -> str:
    """An estimate with its interval or range.

    `1.30 [1.28, 1.33]` has the interval of a new host; of the next cell in the row of a host,
    and where it adds `, one host`; of the cell itself where it adds `, one measurement`.
    `6.74 (6.19 to 7.34)` has the range over hosts, `8.08 (one replicate)` neither.
    """
    if estimate is None or estimate.value is None or math.isnan(estimate.value):
        return "–"
    text, spread = number(estimate.value, estimate.unit), estimate.spread
    low, high = estimate.low, estimate.high
    one_over_itself = estimate.jobs == 1 and estimate.value == 1
    if one_over_itself and (spread == NONE or low == high):
        return text
    if spread in (PREDICTION, INTERVAL, CELL):
        remark = ", one measurement" if spread == CELL else ""
        if spread == INTERVAL and estimate.hosts == 1 and not estimate.host:
            remark = ", one host"
        return f"{text} [{number(low)}, {number(high)}]{remark}"
    if spread == RANGE:
        return f"{text} ({number(low)} to {number(high)})"
    once = estimate.n == 1 and len(estimate.replicates)
    return f"{text} (one replicate)" if once else text


def on_cpu(estimates: pd.DataFrame) -> bool:
    """True if the study's cells ran without a GPU."""
    return "count:software_gpu_none" in estimates.index


def scope(estimates: pd.DataFrame) -> str:
    """What a study was measured on, how often, and what it can and cannot answer."""
    hosts = table.get(estimates, "count", name="hosts")
    in_windows = table.get(estimates, "count", name="replicates")
    interleaved = table.get(estimates, "count", name="replicates_interleaved")
    if not hosts or not (in_windows or interleaved):
        return "Nothing has been measured yet, so this study answers nothing."
    device = "a CPU, no GPU" if on_cpu(estimates) else "a GPU"
    count = "1 host" if hosts.value == 1 else f"{hosts.value:.0f} hosts"
    machines = ", ".join([*table.hardware(estimates), count])
    designs = []
    if interleaved:
        designs.append(f"jobs that take turns, {_times(interleaved)}")
    if in_windows:
        designs.append(f"jobs in windows{_window(estimates)}, {_times(in_windows)}")
    measured = f"Measured on {device} ({machines}): {', and '.join(designs)}."
    return f"{measured} {_answers(estimates)}"


def _answers(estimates: pd.DataFrame) -> str:
    if on_cpu(estimates):
        return (
            "This tries out the workflow. It says nothing about sharing a GPU, and its rates, "
            "gains and slowdowns are no results."
        )
    if not (estimates["host"].ne("") & estimates["spread"].ne(NONE)).any():
        return (
            "With so few replicates only large differences mean something; how much a number "
            "would change if it were measured again is hardly known."
        )
    return (
        "It tells how fast these jobs train side by side on this GPU. It does not tell how "
        "they converge, what happens in hours of training, or what other GPUs do."
    )


def _window(estimates: pd.DataFrame) -> str:
    """` of 60.0 s`: the length of windows, or their range; empty if unknown."""
    window = table.get(estimates, "count", name="window_s")
    if window is None:
        return ""
    alike = number(window.low) == number(window.high)
    return f" of {number(window.value, window.unit) if alike else span(window)}"


def _times(count: Row) -> str:
    """`once`, `3 times`, `1 to 9 times (median 3)`."""
    if count.low < count.high:
        return f"{count.low:.0f} to {count.high:.0f} times (median {count.value:g})"
    return "once" if count.value == 1 else f"{count.value:.0f} times"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows, of which the first is the head, as a table of Markdown; empty without rows."""
    if not rows:
        return ""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])
