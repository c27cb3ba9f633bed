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

# What makes these numbers of their replicates; others are means of them.
_KINDS = {
    "outcome": "completed",
    "rate_cv": "standard deviation of the logs of (over several hosts the middle of theirs)",
    "parts_over_capacity": "sum over jobs of the mean over cells of",
}
_DESIGNS = {
    INTERLEAVED: "slices of conditions that take turns in one cell",
    MIXED_DESIGNS: "slices of conditions that take turns on some hosts, a cell for each set on "
    "others",
}
_SPREAD = {
    PREDICTION: f"{CONFIDENCE_TEXT} interval of a new host",
    INTERVAL: f"{CONFIDENCE_TEXT} interval",
    CELL: f"{CONFIDENCE_TEXT} interval of the cell's own batches",
    RANGE: "range over hosts",
}


def explain(estimates: pd.DataFrame, identity: str) -> str:
    """A few lines of text. Raises ValueError, with ids that are near, where there is none."""
    e = table.get_by_id(estimates, identity)
    if e is None:
        ours = (estimates["source"] == MEASURED) & (estimates["host"] == "")
        every = list(estimates.index[ours])
        inside = [each for each in every if identity in each][:5]
        near = ", ".join(inside or difflib.get_close_matches(identity, every, 5, 0.3))
        told = f"near: {near}" if near else "ids stand in the study's estimates.csv"
        raise ValueError(f"no number has the id {identity!r}; {told}")
    known = QUANTITIES[e.quantity]
    lines = [e.id, f"  {known.title}: {known.meaning}".removesuffix(": ")]
    value = "none" if math.isnan(e.value) else f"{e.value:.6g}"
    lines.append(f"  value {value} {e.unit}".rstrip() + _span(e))
    about = {"relative to": e.relative_to, "measured by:": _DESIGNS.get(e.design, "")}
    told = "; ".join(f"{flag} ({flags.meaning(flag)})" for flag in flags.split(e.flags))
    about |= {"status:": e.status, "flags:": told, "note:": e.note}
    lines += [f"  {label} {text}" for label, text in about.items() if text]
    if e.source != MEASURED:
        return "\n".join([*lines, f"  reported by {e.source}, not measured here"])
    if on := [] if e.host else list(table.on_hosts(estimates, e).itertuples()):
        lines.append(f"  {'the host' if len(on) == 1 else 'by host'}:")
        lines += [f"    {h.host}: {h.value:.6g}{_span(h)}" for h in on]
    if len(e.replicates):
        kind = "geometric mean" if known.scale == LOG else "mean"
        kind += ", of the hosts' means, of" if on[1:] else " of"
        kind = _KINDS.get(e.quantity, kind if len(e.replicates) > 1 else "from")
        kind = "a line through the logs of" if e.quantity.endswith(AT_GRACT) else kind
        lines.append(f"  {kind}:")
    hosts = {r["cell"]: f", on {h.host}" for h in on for r in h.replicates} if on[1:] else {}
    for r in e.replicates:
        parts = f" = {r['numerator']:.6g} / {r['denominator']:.6g}" if r["denominator"] else ""
        over = f"  over {r['over']}" if r["over"] else ""
        over = " (conditions of one cell)" if r["over"] == r["cell"] else over
        host = hosts.get(r["cell"], "")
        lines.append(f"    {r['value']:.6g}{parts}  {r['cell']}{over}{host}")
        if e.spread == CELL:
            batches = len(r["batches"])
            lines.append(f"      its rounds in {batches} batches, which the interval is of:")
            lines.append("      " + " ".join(f"{value:.5g}" for value in r["batches"]))
    return "\n".join(lines)


def _span(e: Row) -> str:
    ends = f" {e.low:.6g} to {e.high:.6g}" if e.spread in _SPREAD else ""
    if e.quantity in ("count", "claim") and not len(e.replicates):
        return f" (least and most{ends})" if ends else ""
    counted = f"{e.n} replicate{'s' if e.n != 1 else ''}"
    counted += f" on {e.hosts} host{'s' if e.hosts != 1 else ''}" if not e.host and e.hosts else ""
    return f" ({_SPREAD[e.spread]}{ends}; {counted})" if ends else f" ({counted})"
