"""What was measured of the jobs that a claim's verdict rests on: why it came out as it did."""

from __future__ import annotations

import pandas as pd

from analysis.words import fixed

# Alone, with its input on the device, a job needs nothing of the host but launches: where the GPU
# idles, these are what it waits for. Filling the gaps of a job above this bound gains less than a
# quarter (1 / 0.8), which config/claims.yaml calls slight.
LAUNCH_BOUND = 0.8
RULE = (
    "A job is called launch-bound where its input is on the device and yet, alone, it keeps the "
    f"GPU busy for less than {LAUNCH_BOUND:g} of the time (GRACT): the GPU waits for the host."
)
_GB = 1e9


def facts(claim: dict, runs: pd.DataFrame) -> str:
    """Sentences on the finding that decides a claim: its number beside the paper's; the jobs alone
    (GRACT, SMACT, memory), the set's memory and the card. Empty where nothing was measured.

    claim: as claims.json has it; runs: the study's (analysis.cells.read_runs).
    """
    finding = _deciding(claim)
    if finding is None:
        return ""
    own = runs[runs["cell"].isin(finding["cells"]) & runs["current"]]
    said = [_number(finding), *_alone(own, runs), _memory(own)]
    return " ".join(filter(None, said))


def _deciding(claim: dict) -> dict | None:
    """The first finding with cells, of those with the claim's verdict if any has it."""
    measured = [finding for finding in claim["findings"] if finding["cells"]]
    measured.sort(key=lambda finding: finding["verdict"] != claim["verdict"])
    return next(iter(measured), None)


def _number(finding: dict) -> str:
    estimate = finding["estimate"]
    if estimate is None:
        return ""
    text = f"Measured: {finding['what']} {fixed(estimate['mean'], 2)}"
    if estimate["low"] is not None:
        text += f" [{fixed(estimate['low'], 2)}, {fixed(estimate['high'], 2)}]"
    text = f"{text} {finding['unit']}".rstrip()
    told = [r for r in finding["reported"] if r["value"] is not None][:1]
    text += "".join(f"; reported {fixed(r['value'], 2)} ({r['source']})" for r in told)
    return f"{text}."


def _alone(own: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """A sentence per job, of its alone cells in the same blocks on the same GPU."""
    wanted = set(own[["baseline_cell", "gpu_uuid"]].dropna().itertuples(index=False, name=None))
    places = pd.Series(zip(runs["cell"], runs["gpu_uuid"], strict=True), index=runs.index)
    alone = runs[places.isin(wanted) & (runs["status"] == "completed")]
    return [_job(str(name), rows) for name, rows in alone.groupby("workload", sort=True)]


def _job(name: str, rows: pd.DataFrame) -> str:
    gract, smact, memory = (rows[column].mean() for column in ("gract", "smact", "gpu_memory_used"))
    said = []
    if pd.notna(gract):
        said.append(f"GRACT {gract:.2f}")
    if pd.notna(smact):
        sms = rows["activity_sm_count"].max()
        said.append(f"SMACT {smact:.2f}" + (f" of {sms:.0f} SMs" if pd.notna(sms) else ""))
    if pd.notna(memory):
        said.append(f"{memory / _GB:.1f} GB")
    if not said:
        return ""
    if pd.notna(gract) and (rows["input_mode"] == "resident").all():
        said.append("launch-bound" if gract < LAUNCH_BOUND else "not launch-bound")
    return f"Alone, {name}: {', '.join(said)}."


def _memory(own: pd.DataFrame) -> str:
    """What the largest of the sets took of its card; nothing for a job alone."""
    own = own[own["n"] == own["n"].max()]
    used = own.groupby("cell")["gpu_memory_used"].max().mean()
    card = own["gpu_memory_total"].max()
    if pd.isna(used) or pd.isna(card) or own["n"].max() < 2:
        return ""
    return f"The {own['n'].max():.0f} together: {used / _GB:.1f} of the card's {card / _GB:.1f} GB."
