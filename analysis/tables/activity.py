"""What the GPU did in each window of each cell, what it took, and how far that can be trusted."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis.records import headlines
from analysis.names import BEFORE, method_order, parse_scenario
from analysis.words import fixed, percent, significant, told

HEADLINES = (
    "GRACT: share of the window in which a graphics or compute engine was active; SMACT: the same "
    "of the SMs, their mean; under MIG the mean over instances weighted by their SMs. Power and "
    "energy are the whole GPU's, for all members together. Energy saved: against the same samples "
    "trained one job after the other, by the alone runs of the block."
)
LEGEND = (
    f"{HEADLINES} SMOCC: resident warps over the most that fit; TENSO, DRAMA: tensor pipes and "
    "memory interface active. CPU cores and RSS: of all members' processes."
)
SWITCHING = " Switching: the engine was changing contexts, as between processes that run in turn."
_CELL = ["cell", "arm", "scenario", "method", "block", "window", "window_s", "n", "status"]
_CARD = [*headlines.SWITCHES, *headlines.ACTIVITY, "activity_sm_count"]
_CARD += ["pcie_tx", "pcie_rx", "gpu_memory_used", "temperature", "sm_clock"]
_ENERGY = ["power", "idle_power", "energy_j", "energy_above_idle_j", "energy_per_sample"]
_ENERGY += ["serial_energy_per_sample", "energy_saving"]
_TOLD = ["telemetry", "telemetry_source", "telemetry_note", "flags"]
# Of all members together; null where one of them is not known.
_SUMS = ["cpu_cores", "rss", "pss", "read", "write"]
COLUMNS = [*_CELL, *_CARD, *_ENERGY, *_SUMS, *_TOLD]


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per window of the current cells in `runs` (of runs.parquet): COLUMNS."""
    windows = runs[runs["current"] & runs["window"].notna()]
    members: dict[tuple, list[dict]] = {}  # a frame for each takes far longer
    for row in windows[[*COLUMNS, "attempt"]].to_dict("records"):
        members.setdefault((row["cell"], row["attempt"], row["window"]), []).append(row)
    rows = []
    for own in members.values():
        sums = {column: sum(member[column] for member in own) for column in _SUMS}
        rows.append({column: own[0][column] for column in COLUMNS} | sums)
    rows.sort(key=_place)
    return pd.DataFrame(rows, columns=COLUMNS)


def _place(row: dict) -> tuple:
    scenario = parse_scenario(row["scenario"])
    order = (scenario.mixed, scenario.family, scenario.variant, scenario.n, scenario.id)
    return row["arm"], *order, method_order(row["method"]), row["block"], row["window"] != BEFORE


def markdown(rows: pd.DataFrame) -> str:
    """The table for people: no column of which nothing is known."""
    counted = headlines.counts_switches(rows)
    rows = rows if counted else rows.assign(**dict.fromkeys(headlines.SWITCHES, math.nan))
    shown = [_shown(row) for row in rows.to_dict("records")]
    text = tabulate(told(shown), "keys", "github", disable_numparse=True) or "No window yet."
    return f"# Telemetry\n\n{text}\n\n{LEGEND}{SWITCHING if counted else ''}\n"


def _shown(row: dict) -> dict[str, str]:
    saturation = {name.upper() + " %": percent(row[name]) for name in headlines.ACTIVITY}
    telemetry, source, note = (
        row[key] if isinstance(row[key], str) else ""
        for key in ("telemetry", "telemetry_source", "telemetry_note")
    )
    return {
        "cell": row["cell"],
        "window": row["window"] if row["window"] != "window" else "",
        "method": row["method"],
        "switching %": significant(100 * row["ctxsw_active"], 2),
        "switches/s": fixed(row["ctxsw_requests"], 0),
        **saturation,
        "of SMs": fixed(row["activity_sm_count"], 0) if any(saturation.values()) else "",
        "W": fixed(row["power"], 0),
        "J": significant(row["energy_j"]),
        "J above idle": significant(row["energy_above_idle_j"]),
        "J/sample": significant(row["energy_per_sample"]),
        "J/sample serial": significant(row["serial_energy_per_sample"]),
        "energy saved %": fixed(100 * row["energy_saving"], 1),
        "CPU cores": significant(row["cpu_cores"]),
        "RSS GiB": significant(row["rss"] / 2**30),
        "source": source,
        "telemetry": telemetry,
        "note": note.replace("|", "\\|"),
        "flags": row["flags"].replace(";", ", ").replace("_", " "),
    }


def write(rows: pd.DataFrame, stem: Path) -> None:
    """Write STEM.csv and STEM.md."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(stem.with_name(stem.name + ".csv"), index=False)
    stem.with_name(stem.name + ".md").write_text(markdown(rows), encoding="utf-8")
