"""What the stand-in's card does: a history, from which gauges, means and counters follow.

    [{"t": monotonic ns, "gpu": {"gract": 0.5, ...}, "gi:1": {...}}, ...]

Each entry holds from its time until the next one's. A GPU instance without values of its own does
as the card does. Rates are in the vocabulary's units, and counters grow with them.
"""

QUIET = {
    "gract": 0.0,
    "smact": 0.0,
    "smocc": 0.0,
    "tenso": 0.0,
    "drama": 0.0,
    "fp16": 0.0,
    "fp32": 0.0,
    "fp64": 0.0,
    "integer": 0.0,
    "pcie_tx": 1e6,  # being asked is traffic, too
    "pcie_rx": 1e6,
    "nvlink_tx": 0.0,
    "nvlink_rx": 0.0,
    "gpu_util": 0.0,
    "memory_util": 0.0,
    "power": 80.0,  # W; energy grows with it
    "temperature": 40,
    "sm_clock": 1500,
    "memory_clock": 1500,
    "throttle": 0,
}


def now(history: list[dict], name: str, entity: str = "gpu") -> float:
    return _value(history[-1], name, entity)


def total(history: list[dict], name: str, t: int, entity: str = "gpu") -> float:
    """The value times seconds, from the history's beginning to `t`."""
    ends = [entry["t"] for entry in history[1:]] + [max(t, history[-1]["t"])]
    return sum(
        _value(entry, name, entity) * max(0, min(end, t) - entry["t"]) / 1e9
        for entry, end in zip(history, ends, strict=True)
    )


def mean(history: list[dict], name: str, start: int, end: int, entity: str = "gpu") -> float:
    grown = total(history, name, end, entity) - total(history, name, start, entity)
    return grown / ((end - start) / 1e9)


def _value(entry: dict, name: str, entity: str) -> float:
    return (QUIET | entry.get("gpu", {}) | entry.get(entity, {}))[name]
