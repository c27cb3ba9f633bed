"""What the GPU did over time in one cell: activity, power and clock, and its members' step rates.

The telemetry is the study's telemetry.parquet; step rates are from the cell's own steps.parquet,
where the cells lie beside it.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from matplotlib.lines import Line2D

from analysis import style
from analysis.cells import Study
from analysis.names import AFTER, parse_scenario

TITLE = "Timeline of one cell"
CAPTION = (
    "What the GPU's counters read while one cell ran; time 0 is when its window opened. Shaded: "
    "the phases of the cell (building the jobs, warm-up, the measured window, stopping); the black "
    "bar is the window that rates and means are of. Progress: each member's speed over a few steps "
    "at a time, over its throughput alone. Under MIG every instance has a line."
)
_ACTIVITY = {
    "gract": ("GRACT", {"color": style.INK, "ls": "-"}),
    "smact": ("SMACT", {"color": "#0B5394", "ls": (0, (4, 1.2))}),
    "drama": ("DRAMA", {"color": "#5BB89A", "ls": (0, (1, 1))}),
}
_READ = ["t", "entity", "phase", *_ACTIVITY, "power", "sm_clock"]
_COLUMNS = ["part", "cell", "t", "end", *_READ[1:], "member", "workload", "rate", "unit"]
# Inches: what a panel takes by its kind, between panels, and the strip of phases above.
_HEIGHTS = {"activity": 1.05, "power": 0.6, "sm_clock": 0.6, "rate": 0.8}
_LEFT, _GAP, _STRIP = 0.55, 0.12, 0.22
_SHADES = {"idle": "#FFFFFF", "build": "#F1F1F1", "warm": "#E4E4E4", "window": "#FFFFFF"}
_LABELS = {"power": "power (W)", "sm_clock": "clock (MHz)"}
_DASHES = ("-", (0, (4, 1.2)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_SPAN_S = 0.25  # of as many steps as come nearest to it, and one at least
_NARROW = 0.04  # of the width: a phase that is shorter has no name


def draw(study: Study, arm: str | None, cell: str | None = None) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one cell, by id; by default the completed one of MPS (of `arm`) with most members.

    Returns the figure and its data; part: reading, phase, window or steps (a span of a member's).
    """
    found = _choose(study, arm, cell)
    if isinstance(found, str):
        return style.sentence(TITLE, found), pd.DataFrame(columns=_COLUMNS)
    first = found.iloc[0]
    readings = _readings(study.telemetry, first["cell"], int(first["attempt"]))
    if readings.empty:
        text = f"The telemetry holds no reading of {first['cell']}."
        return style.sentence(TITLE, text), pd.DataFrame(columns=_COLUMNS)
    folder = study.telemetry.parent / "cells" / first["cell"] / f"a{int(first['attempt'])}"
    windows, phases = _windows(folder, found), _phases(readings)
    rates = _rates(folder, found)

    scenario = parse_scenario(first["scenario"])
    look = style.looks([first["method"]], study.runs)[first["method"]]
    panels = ["activity", "power", "sm_clock", *(["rate"] if len(rates) else [])]
    fig, top = style.page(
        f"Timeline: {scenario.label}, {look.label}",
        f"cell {first['cell']}; time since its window opened",
        _handles(readings, rates),
        _STRIP + sum(_HEIGHTS[p] + _GAP for p in panels) + 0.25,
        [*style.footer_parts(found), _note(first), study.note],
    )
    limits = readings["t"].min(), phases[-1][2]
    y, width = top + _STRIP, style.PAGE_WIDTH - _LEFT - 0.1
    for panel in panels:
        ax = style.place(fig, _LEFT, y, width, _HEIGHTS[panel])
        ax.set_xlim(limits)
        for name, start, end in phases:
            ax.axvspan(start, end, color=_SHADES.get(name, "#F1F1F1"), lw=0, zorder=0)
        for _, start, end in windows:
            ax.axvline(start, color=style.INK, lw=0.7, zorder=1)
            ax.axvline(end, color=style.INK, lw=0.7, zorder=1)
        _draw_panel(ax, panel, readings, rates)
        ax.yaxis.set_label_coords(-(_LEFT - 0.17) / width, 0.5)
        if panel != panels[-1]:
            ax.tick_params(labelbottom=False)
        if panel == panels[0]:
            _draw_strip(ax, phases, windows, limits)
        y += _HEIGHTS[panel] + _GAP
    ax.set_xlabel("time (s)", labelpad=2)
    return fig, _drawn(first["cell"], readings, phases, windows, rates)


def _choose(study: Study, arm: str | None, cell: str | None) -> pd.DataFrame | str:
    """The member rows of the cell to draw, or why there is none."""
    if study.telemetry is None or not study.telemetry.exists():
        return "The study has no telemetry."
    runs = study.runs
    if cell is not None:
        found = runs[runs["cell"] == cell]
        return found if len(found) else f"The study has no cell {cell}."
    runs = runs if arm is None else runs[runs["arm"] == arm]
    watched = runs["telemetry"].isin(["complete", "incomplete"])
    seen = runs[(runs["status"] == "completed") & watched]
    if seen.empty:
        return f"No completed cell{f' of arm {arm}' if arm else ''} has telemetry."
    under_mps = seen[seen["method"] == "mps"]
    seen = seen if under_mps.empty else under_mps
    most = seen.sort_values(["n", "cell"], ascending=[False, True]).iloc[0]["cell"]
    return runs[runs["cell"] == most]


def _readings(path: Path, cell: str, attempt: int) -> pd.DataFrame:
    """The cell's rows of telemetry.parquet by entity and time."""
    only = [("cell", "==", cell), ("attempt", "==", attempt)]
    table = pyarrow.parquet.read_table(path, columns=_READ, filters=only)
    rows = table.to_pandas().astype({"entity": object, "phase": object})
    return rows.sort_values(["entity", "t"], ignore_index=True)


def _phases(readings: pd.DataFrame) -> list[tuple[str, float, float]]:
    """(phase, start, end) in s, by the times of its first reading and of the next one's."""
    rows = readings.drop_duplicates("t").sort_values("t")
    starts = rows[rows["phase"] != rows["phase"].shift()]
    ends = [*starts["t"].iloc[1:], rows["t"].iloc[-1]]
    return list(zip(starts["phase"].fillna(""), starts["t"], ends, strict=True))


def _windows(folder: Path, rows: pd.DataFrame) -> list[tuple[str, float, float]]:
    """(window, start, end) in s: as the cell's run.json says; else the first one's length."""
    try:
        windows = json.loads((folder / "run.json").read_text(encoding="utf-8"))["windows"]
        zero = windows[0]["start_ns"]
        return [
            (w["name"], (w["start_ns"] - zero) / 1e9, (w["end_ns"] - zero) / 1e9) for w in windows
        ]
    except (OSError, ValueError, LookupError, TypeError):
        known = rows[rows["window"] != AFTER].dropna(subset=["window", "window_s"])
        return [(r.window, 0.0, r.window_s) for r in known.head(1).itertuples()]


def _rates(folder: Path, rows: pd.DataFrame) -> pd.DataFrame:
    """How fast each member was over a few steps: member, workload, t (s, middle), rate, unit.

    rate is progress where every member's throughput alone is known, else steps/s. Empty where the
    cell's steps.parquet is not at hand.
    """
    columns = ["member", "workload", "t", "rate", "unit"]
    try:
        table = pyarrow.parquet.read_table(folder / "steps.parquet", columns=["member", "tick"])
        tick_s = int(table.schema.metadata[b"tick_ns"]) / 1e9
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException):
        return pd.DataFrame(columns=columns)
    steps = table.to_pandas()
    ends = {m: np.sort(g.to_numpy()) * tick_s for m, g in steps.groupby("member")["tick"]}
    ends = {member: times for member, times in ends.items() if len(times) > 1}
    if not ends:
        return pd.DataFrame(columns=columns)
    members = rows.drop_duplicates("member").set_index("member")
    samples = members["batch_size"] / members["baseline_samples_per_s"]
    relative = samples.reindex(list(ends)).notna().all()
    found = []
    for member, times in ends.items():
        steps = max(1, round(_SPAN_S / float(np.median(np.diff(times)))))
        times = times[::steps]
        rate = steps / np.diff(times) * (samples[member] if relative else 1.0)
        own = {"member": member, "workload": members["workload"].get(member)}
        own["unit"] = "progress" if relative else "steps/s"
        found.append(pd.DataFrame({"t": (times[:-1] + times[1:]) / 2, "rate": rate} | own))
    return pd.concat(found)[columns]


def _draw_panel(ax: plt.Axes, panel: str, readings: pd.DataFrame, rates: pd.DataFrame) -> None:
    if panel == "rate":
        _draw_rates(ax, rates)
        return
    names = list(_ACTIVITY) if panel == "activity" else [panel]
    if readings[names].isna().all(axis=None):
        ax.text(0.5, 0.5, "not recorded", transform=ax.transAxes, ha="center", va="center")
        ax.set_yticks([])
    for name in names:
        look = _ACTIVITY[name][1] if panel == "activity" else {"color": style.INK, "ls": "-"}
        # Of the card where it has a reading, else (MIG) of every instance.
        lines = readings.dropna(subset=[name])
        lines = lines[lines["entity"] == "gpu"] if (lines["entity"] == "gpu").any() else lines
        for entity in lines["entity"].unique():
            own = readings[readings["entity"] == entity]
            scale = 100.0 if panel == "activity" else 1.0
            width = 1.0 if entity == "gpu" else 0.6
            ax.plot(own["t"], own[name] * scale, lw=width, zorder=3, **look)
    if panel == "activity":
        ax.set_ylim(0, 104)
        ax.set_ylabel("active (%)")
    else:
        top = readings[panel].max()
        ax.set_ylim(0, 1.12 * top if pd.notna(top) and top > 0 else 1)
        ax.yaxis.set_major_locator(plt.MaxNLocator(3))
        ax.set_ylabel(_LABELS[panel])


def _draw_rates(ax: plt.Axes, rates: pd.DataFrame) -> None:
    """A line per member; workloads differ in dashes and colour."""
    relative = rates["unit"].iloc[0] == "progress"
    for (_, workload), rows in rates.groupby(["member", "workload"], sort=False, dropna=False):
        scale = 100.0 if relative else 1.0
        ax.plot(rows["t"], rows["rate"] * scale, lw=0.7, zorder=3, **_look(rates, workload))
    top = rates["rate"].max() * (100.0 if relative else 1.0)
    ax.set_ylim(0, 1.12 * top if top > 0 else 1)
    ax.yaxis.set_major_locator(plt.MaxNLocator(4))
    ax.set_ylabel("progress (%)" if relative else "steps/s")


def _look(rates: pd.DataFrame, workload: str | None) -> dict:
    colours = ("#0B5394", style.INK, "#2F7D63", "#9A5B86")
    place = list(rates["workload"].unique()).index(workload) % len(colours)
    return {"color": colours[place], "ls": _DASHES[place]}


def _draw_strip(
    ax: plt.Axes,
    phases: list[tuple[str, float, float]],
    windows: list[tuple[str, float, float]],
    limits: tuple[float, float],
) -> None:
    """Names of the phases above the first panel, and a bar for each window."""
    above = {"transform": ax.get_xaxis_transform(), "clip_on": False}
    height = _STRIP / _HEIGHTS["activity"]
    if len(windows) > 1:
        phases = [p for p in phases if p[0] != "window"] + windows
    for name, start, end in phases:
        if end - start > _NARROW * (limits[1] - limits[0]):
            look = {"ha": "center", "va": "bottom", "size": style.SMALL, "color": style.GREY}
            ax.text((start + end) / 2, 1 + 0.35 * height, name, **look, **above)
    for _, start, end in windows:
        look = {"color": style.INK, "lw": 2.2, "solid_capstyle": "butt"}
        ax.plot([start, end], [1 + 0.15 * height] * 2, **look, **above)


def _handles(readings: pd.DataFrame, rates: pd.DataFrame) -> list[Line2D]:
    seen = [look for name, look in _ACTIVITY.items() if readings[name].notna().any()]
    handles = [Line2D([], [], lw=1.0, label=label, **look) for label, look in seen]
    handles.append(Line2D([], [], color=style.INK, lw=2.2, label="measured window"))
    for workload in rates["workload"].unique():
        handles.append(
            Line2D([], [], lw=0.7, label=f"member: {workload}", **_look(rates, workload))
        )
    return handles


def _note(row: pd.Series) -> str:
    """What the telemetry of the cell lacks or contradicts."""
    note = row["telemetry_note"]
    source = row["telemetry_source"]
    told = f"read by {source}" if isinstance(source, str) else ""
    return "; ".join(part for part in (told, note if isinstance(note, str) else "") if part)


def _drawn(
    cell: str,
    readings: pd.DataFrame,
    phases: list[tuple[str, float, float]],
    windows: list[tuple[str, float, float]],
    rates: pd.DataFrame,
) -> pd.DataFrame:
    rows = [{"part": "phase", "phase": name, "t": a, "end": b} for name, a, b in phases]
    rows += [{"part": "window", "phase": name, "t": a, "end": b} for name, a, b in windows]
    parts = [pd.DataFrame(rows), readings.assign(part="reading"), rates.assign(part="steps")]
    drawn = [part.dropna(axis=1, how="all") for part in parts if len(part)]
    return pd.concat(drawn, ignore_index=True).assign(cell=cell).reindex(columns=_COLUMNS)
