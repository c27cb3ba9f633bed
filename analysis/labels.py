"""What things are called and how numbers are spelt, everywhere: figures, pages, explorer."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

from analysis.estimates.table import CELL, INTERVAL, NONE, PREDICTION, RANGE, Row
from workflow.collocation.study.names import PAPER_IMPLEMENTATION, family_of, parse_scenario
from workflow.collocation.study.regular_files import read_json

_MODELS = ("ResNet", "EfficientNetV2", "EfficientNet", "CaiT", "DLRM", "LM", "ASR")
_DATASETS = ("cifar10", "imagenet64", "imagenet", "criteo", "digits", "sources", "speech")
# Method → its title, a hue that colour-blind readers tell from the others, with a lightness of its
# own, and a marker for greyscale. Variants without a hue have their family's.
_METHODS = {
    "serial": ("one after the other", "", ""),
    "naive": ("separate", "#E0A224", "o"),
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
_WRITTEN = {  # implementation → its title, and a colour that is no method's
    PAPER_IMPLEMENTATION: ("paper style", "#333333"),
    "eager": ("TF32, no waiting", "#A6761D"),
    "bf16": ("bf16", "#66A61E"),
    "graph": ("bf16 + CUDA graph", "#1B9E77"),
    "compile": ("bf16, compiled", "#D95F02"),
}
GREY = "#888888"
KINDS = {  # of `intervals.set_kinds`
    "alone_waits": "alone, waits for its host",
    "alone_busy": "alone, keeps the GPU busy",
    "alone_graph": "alone, CUDA graph",
    "set_waits": "set that waits for its host",
    "set_full": "set of jobs that wait, which fill the GPU together",
    "set_busy": "set of jobs that keep the GPU busy",
    "set_graph": "set of CUDA graphs",
}


def _look(name: str) -> tuple[str, str, str]:
    return _METHODS.get(name, ("", "", ""))


def colour(name: str) -> str:
    """Of a method; a variant has its family's hue."""
    return _look(name)[1] or _look(family_of(name))[1] or GREY


def marker(name: str) -> str:
    """Of a method; a study's own variants have signs of their own, by their names."""
    return _look(name)[2] or "pD*"[sum(map(ord, name)) % 3]


def job(workload: str, implementation_name: str = PAPER_IMPLEMENTATION) -> str:
    """`ResNet26 b32`, `EfficientNetV2-S b128`, `ResNet26 b128, roomy`; an unknown name as it is.
    With the way in which it is written, where that is not the paper's.
    """
    if implementation_name != PAPER_IMPLEMENTATION:
        return f"{job(workload)}, {implementation(implementation_name)}"
    if workload.startswith("tiny_"):
        return f"tiny {job(workload.removeprefix('tiny_'))}"
    if workload.startswith("serve_"):
        rate, _, engine = workload.removeprefix("serve_").partition("_")
        return f"server, {rate} requests/s" + f" ({engine})" * bool(engine)
    match = re.fullmatch(r"(.+)_b(\d+)(?:_(.+))?", workload)
    if match is None:
        return workload.replace("_", " ")
    name, batch, more = match.groups()
    words = [word for word in name.split("_") if word not in _DATASETS] or [name]
    text = " ".join(words)
    if label := next((label for label in _MODELS if words[0].startswith(label.lower())), ""):
        sizes = "".join(f"-{word if word == 'small' else word.upper()}" for word in words[1:])
        text = label + words[0][len(label) :] + sizes
    more = (more or "").replace("_", " ").replace("lora", "LoRA")
    return f"{text} b{batch}" + f", {more}" * bool(more)


def scenario(identity: str, count: bool = True) -> str:
    """`7 × ResNet26 b32`, `DLRM b2048 + ResNet152 b32 (to the end)`."""
    parsed = parse_scenario(identity)
    parts = [
        f"{n} × {job(name)}" if count and (n > 1 or parsed.mixed) else job(name)
        for name, n in parsed.parts
    ]
    return " + ".join(parts) + (f" ({parsed.variant})" if parsed.variant else "")


def method(name: str) -> str:
    """`plain`, `MPS`, `MPS 1g` for a study's own variants."""
    family, _, rest = name.partition("_")
    return _look(name)[0] or f"{_look(family)[0] or family} {rest.replace('_', ' ')}".strip()


def implementation(name: str) -> str:
    """How the job is written."""
    return _WRITTEN[name][0] if name in _WRITTEN else name.replace("_", " ")


def written_colour(name: str) -> str:
    """Of an implementation."""
    return _WRITTEN.get(name, ("", GREY))[1]


def of_script(folder: Path, text: str) -> str:
    """A study's text, as is true where somebody's script was measured in it: that is
    written as it is, and may be counted in steps.
    """
    advice = folder / "advice.json"
    told = read_json(advice) if advice.exists() else {}
    if told.get("run"):
        text = text.replace(implementation(PAPER_IMPLEMENTATION), "as it is")
    if told.get("alone", {}).get("unit") == "steps/s":
        text = re.sub(r"/sample\b", "/step", re.sub(r"\b([Ss])amples/s\b", r"\1teps/s", text))
    return text


def status(name: str) -> str:
    return name.replace("_", " ")


def number(value: float | None, unit: str = "") -> str:
    """Three digits, thousands as k from 10,000 on: `57.9k samples/s`, `1.64`, `26.1 GB`."""
    if value is None or math.isnan(value):
        return "–"
    if abs(value) >= 9_999.5:
        text = f"{value / 1e6:.3g}M" if abs(value) >= 999_500 else f"{value / 1e3:.3g}k"
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
    """`1.90 to 3.37`, or one number where the least and the most read alike."""
    ends = dict.fromkeys(number(pick(values)) for pick in (min, max))
    return " to ".join(ends)


def span(e: Row | None) -> str:
    """The number with what is known of its spread.

    `1.30 [1.28, 1.33]` has the interval of a new host or, in the row of a host and where it
    says `, one host`, of its next cell; `, one cell` what that tells of itself. `6.74 (6.19 to
    7.34)` has the range over hosts, `8.08 (one replicate)` nothing.
    """
    if e is None or e.value is None or math.isnan(e.value):
        return "–"
    text = number(e.value, e.unit)
    if e.jobs == 1 and e.value == 1 and (e.spread == NONE or e.low == e.high):
        return text  # one job over itself
    if e.spread in (PREDICTION, INTERVAL, CELL):
        known = {CELL: ", one cell", INTERVAL: ", one host" if e.hosts == 1 and not e.host else ""}
        return f"{text} [{number(e.low)}, {number(e.high)}]{known.get(e.spread, '')}"
    if e.spread == RANGE:
        return f"{text} ({number(e.low)} to {number(e.high)})"
    return f"{text} (one replicate)" if e.n == 1 and len(e.replicates) else text
