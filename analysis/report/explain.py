"""The cells, baselines and arithmetic behind one published number."""

import difflib
import math

import pandas as pd

from analysis.estimates import table
from analysis.estimates.intervals import CONFIDENCE_TEXT
from analysis.estimates.quantities import AT_GRACT, LOG, QUANTITIES
from analysis.estimates.records import flags
from analysis.estimates.table import CELL, INTERVAL, MEASURED, MIXED_DESIGNS, PREDICTION, RANGE, Row
from workflow.collocation.study.names import INTERLEAVED

# How these quantities follow from their replicates; the others are means of them.
_AGGREGATES = {
    "outcome": "completed",
    "rate_cv": "standard deviation of the logs of (over several hosts the middle of theirs)",
    "parts_over_capacity": "sum over jobs of the mean over measurements of",
}
_DESIGNS = {
    INTERLEAVED: "slices of conditions that take turns in one measurement",
    MIXED_DESIGNS: "slices of conditions that take turns on some hosts, a measurement "
    "for each on others",
}
_SPREADS = {
    PREDICTION: f"{CONFIDENCE_TEXT} interval of a new host",
    INTERVAL: f"{CONFIDENCE_TEXT} interval",
    CELL: f"{CONFIDENCE_TEXT} interval of the measurement's own batches",
    RANGE: "range over hosts",
}


def explain(estimates: pd.DataFrame, identity: str) -> str:
    """Explain the estimate of an id in a few lines.

    Raises ValueError, with ids that are near, if there is none.
    """
    estimate = table.get_by_id(estimates, identity)
    if estimate is None:
        near = ", ".join(_near(estimates, identity))
        hint = f"near: {near}" if near else "ids stand in the study's estimates.csv"
        raise ValueError(f"no number has the id {identity!r}; {hint}")
    quantity = QUANTITIES[estimate.quantity]
    lines = [estimate.id, f"  {quantity.title}: {quantity.meaning}".removesuffix(": ")]
    number = "none" if math.isnan(estimate.value) else f"{estimate.value:.6g}"
    lines.append(f"  value {number} {estimate.unit}".rstrip() + _spread(estimate))
    flagged = [f"{flag} ({flags.meaning(flag)})" for flag in flags.split(estimate.flags)]
    remarks = {
        "relative to": estimate.relative_to,
        "measured by:": _DESIGNS.get(estimate.design, ""),
        "status:": estimate.status,
        "flags:": "; ".join(flagged),
        "note:": estimate.note,
    }
    lines += [f"  {label} {text}" for label, text in remarks.items() if text]
    if estimate.source != MEASURED:
        return "\n".join([*lines, f"  reported by {estimate.source}, not measured here"])
    on_hosts = []
    if not estimate.host:
        on_hosts = list(table.on_hosts(estimates, estimate).itertuples())
    if on_hosts:
        lines.append(f"  {'the host' if len(on_hosts) == 1 else 'by host'}:")
        lines += [f"    {e.host}: {e.value:.6g}{_spread(e)}" for e in on_hosts]
    if len(estimate.replicates):
        lines.append(f"  {_aggregate(estimate, len(on_hosts))}:")
    cell_hosts = {}
    if len(on_hosts) > 1:
        cell_hosts = {cell["cell"]: e.host for e in on_hosts for cell in e.replicates}
    for replicate in estimate.replicates:
        lines += _replicate(replicate, cell_hosts, estimate.spread == CELL)
    return "\n".join(lines)


def _near(estimates: pd.DataFrame, identity: str) -> list[str]:
    """Up to five ids that hold this text, or else resemble it."""
    overall = (estimates["source"] == MEASURED) & (estimates["host"] == "")
    ids = list(estimates.index[overall])
    containing = [candidate for candidate in ids if identity in candidate]
    return containing[:5] or difflib.get_close_matches(identity, ids, 5, 0.3)


def _aggregate(estimate: Row, host_count: int) -> str:
    """What the estimate is of its replicates: `geometric mean of`."""
    if estimate.quantity.endswith(AT_GRACT):
        return "a line through the logs of"
    if estimate.quantity in _AGGREGATES:
        return _AGGREGATES[estimate.quantity]
    if len(estimate.replicates) == 1:
        return "from"
    mean = "geometric mean" if QUANTITIES[estimate.quantity].scale == LOG else "mean"
    return f"{mean}, of the hosts' means, of" if host_count > 1 else f"{mean} of"


def _replicate(replicate: dict, cell_hosts: dict[str, str], with_batches: bool) -> list[str]:
    """Lines on one replicate: `1.9 = 3800 / 2000  CELL  over CELL, on h1`."""
    cell, over = replicate["cell"], replicate["over"]
    line = f"    {replicate['value']:.6g}"
    if replicate["denominator"]:
        line += f" = {replicate['numerator']:.6g} / {replicate['denominator']:.6g}"
    line += f"  {cell}"
    if over:
        line += " (conditions of one measurement)" if over == cell else f"  over {over}"
    if cell in cell_hosts:
        line += f", on {cell_hosts[cell]}"
    if not with_batches:
        return [line]
    batches = " ".join(f"{mean:.5g}" for mean in replicate["batches"])
    count = len(replicate["batches"])
    remark = f"      its rounds in {count} batches, which the interval is of:"
    return [line, remark, f"      {batches}"]


def _spread(estimate: Row) -> str:
    """` (95 % interval 1.2 to 1.4; 6 replicates on 2 hosts)`."""
    name = _SPREADS.get(estimate.spread, "")
    ends = f" {estimate.low:.6g} to {estimate.high:.6g}" if name else ""
    if estimate.quantity in ("count", "claim") and not len(estimate.replicates):
        return f" (least and most{ends})" if ends else ""
    counted = f"{estimate.n} replicate{'s' if estimate.n != 1 else ''}"
    if not estimate.host and estimate.hosts:
        counted += f" on {estimate.hosts} host{'s' if estimate.hosts != 1 else ''}"
    return f" ({name}{ends}; {counted})" if ends else f" ({counted})"
