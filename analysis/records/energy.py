"""Energy per sample of a set, and what its jobs would have taken one after the other.

No counter splits a GPU's energy among processes: all numbers are of the set that shared it.
"""

from __future__ import annotations

from collections import defaultdict

from analysis import metrics


def add_above_idle(rows: list[dict]) -> None:
    """Make idle_power (W) the least that the device had in a sitting, and fill energy_above_idle_j.

    A cell that begins right after another sees more: the card's clocks have not come down yet.
    """
    seen: dict[tuple, list[float]] = defaultdict(list)
    for row in rows:
        if row.get("idle_power") is not None:
            seen[_sitting(row)].append(row["idle_power"])
    for row in rows:
        joules, idle = row.get("energy_j"), min(seen[_sitting(row)], default=None)
        if joules is not None or row.get("idle_power") is not None:
            row["idle_power"] = idle
        if joules is not None and idle is not None:
            row["energy_above_idle_j"] = joules - idle * row["window_s"]


def add_per_sample(rows: list[dict]) -> None:
    """Fill energy_per_sample (J) of completed windows in place, for every row of a window alike.

    Not of whole epochs: their energy holds validation, and members that are early train on.
    """
    for members in _windows(rows):
        rates, watts = [row.get("samples_per_s") for row in members], _watts(members[0])
        if members[0]["status"] == "completed" and watts is not None and all(rates):
            for row in members:
                row["energy_per_sample"] = metrics.energy_per_sample(watts, rates)


def add_saving(rows: list[dict]) -> None:
    """Fill serial_energy_per_sample (J) and energy_saving in place, where every member of a window
    has an alone run whose energy per sample is known (baseline_energy_per_sample).
    """
    for members in _windows(rows):
        own = members[0].get("energy_per_sample")
        alone = [row.get("baseline_energy_per_sample") for row in members]
        if own is None or None in alone:
            continue
        rates = [row["samples_per_s"] for row in members]
        serial = metrics.serial_energy_per_sample(rates, alone)
        for row in members:
            row["serial_energy_per_sample"] = serial
            row["energy_saving"] = metrics.saving(own, serial)


def _sitting(row: dict) -> tuple:
    """Its device and sitting; where that is not known, the cell itself."""
    known = row.get("sitting") is not None
    return row["device"], row["sitting"] if known else (row["cell"], row["attempt"])


def _windows(rows: list[dict]) -> list[list[dict]]:
    """Rows by window, but whole epochs."""
    found: dict[tuple, list[dict]] = defaultdict(list)
    for row in rows:
        if row.get("window") not in (None, "epochs"):
            found[row["cell"], row["attempt"], row["window"]].append(row)
    return list(found.values())


def _watts(row: dict) -> float | None:
    """Mean power by the energy counter; readings of the power alone are no energy."""
    return row.get("power") if row.get("energy_j") is not None else None
