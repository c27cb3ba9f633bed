"""What proves that each cell's method was in force, or why there is no proof: one row per cell."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis.records import headlines
from analysis.records.attempts import select_attempts
from analysis.names import family_of, method_order, parse_scenario

MEASURED = ("completed", "out_of_memory")
# Was the method in force? What the witnesses of a measured cell come to, in words.
PROVEN, DENIED, UNTOLD, TOO_EARLY = "yes", "no", "not proven", "out of memory first"
COLUMNS = ["cell", "status", "method", "verified", "in_force", "proof", *headlines.SWITCHES]


def table(records: list[dict]) -> pd.DataFrame:
    """One row per current cell: its id, status and method, whether verified, that in words, a
    phrase, and the GPU's context switches, columns that are only there where some were counted.
    """
    current = [record for record, is_current in select_attempts(records) if is_current]
    current.sort(key=_place)
    rows = [
        {
            "cell": record["cell"]["id"],
            "status": record["status"],
            "method": record["cell"]["method"],
            "verified": (record.get("method") or {}).get("verified"),
            "in_force": in_force(record),
            "proof": proof(record),
            **headlines.switches(record),
        }
        for record in current
    ]
    numbers = dict.fromkeys(headlines.SWITCHES, float)
    found = pd.DataFrame(rows, columns=COLUMNS).astype({"verified": object} | numbers)
    return found if headlines.counts_switches(found) else found.drop(columns=list(numbers))


def _place(record: dict) -> tuple:
    cell = record["cell"]
    scenario = parse_scenario(cell["scenario"])
    order = (scenario.mixed, scenario.family, scenario.variant, scenario.n, scenario.id)
    return cell["arm"], *order, method_order(cell["method"]), cell["replicate"]


def in_force(record: dict) -> str:
    """What the witnesses of a cell come to; nothing where nothing was measured.

    A cell that ran out of memory may have ended before its witnesses could be asked a last time:
    that is no doubt of theirs, unless they had one before.
    """
    if record["status"] not in MEASURED:
        return ""
    method = record.get("method") or {}
    if method.get("verified") is not None:
        return PROVEN if method["verified"] else DENIED
    said = method.get("evidence") or {}
    doubted = "barrier" in said and not said["barrier"].get("verified")
    ended = record["status"] != "completed" and "end" not in said and not doubted
    return TOO_EARLY if ended else UNTOLD


def proof(record: dict) -> str:
    """What the witnesses said of a measured cell; of any other its reason.

    One witness speaks for all: what it says of servers and places, a later one has to find again.
    """
    if record["status"] not in MEASURED:
        return str(record.get("reason") or "no reason was given")
    seen = (record.get("method") or {}).get("evidence") or {}
    when = next((name for name in ("end", "barrier", *seen) if seen.get(name)), None)
    if when is None:
        early = in_force(record) == TOO_EARLY
        return "out of memory before it was witnessed" if early else "nothing was witnessed"
    text = witnessed(record["cell"]["method"], seen[when], record.get("members") or [])
    return text if when == "end" else f"{text} (at the {when} only)"


def witnessed(method: str, seen: dict, members: list[dict]) -> str:
    """One phrase for what a witness saw, and what the members said (device_uuid, sm_count)."""
    if seen.get("verified") is False:
        return str(seen.get("reason") or "not in force")
    say = {"naive": _naive, "mps": _mps, "mig": _mig}.get(family_of(method))
    parts = say(seen, members) if say else []
    return ", ".join(part for part in (*parts, _sms(members)) if part)


def _naive(seen: dict, members: list[dict]) -> list[str]:
    several = _counted(len(seen.get("members") or []), "process", "es")
    if seen.get("device") == "cpu":
        return [f"{several} on the CPU"]
    known = "listed by NVML as such" if seen.get("verified") else "NVML's PIDs do not compare"
    return [f"{several} without MPS", known]


def _mps(seen: dict, members: list[dict]) -> list[str]:
    return [
        f"MPS server {seen.get('server')}: {_counted(len(seen.get('clients') or []), 'client')}",
        "NVML agrees" if seen.get("nvml_agrees") else "NVML's PIDs do not compare",
        *_unproven(seen),
    ]


def _unproven(seen: dict) -> list[str]:
    """Why a limit was not proven, once for all members of which that is said."""
    limits = (seen.get("limits") or {}).values()
    whys = dict.fromkeys(limit["unproven"] for limit in limits if limit.get("unproven"))
    return [f"memory limit not proven ({why})" for why in whys]


def _mig(seen: dict, members: list[dict]) -> list[str]:
    """Layout, devices and, where MPS runs in them, their servers."""
    devices = {member.get("device_uuid") for member in members} - {None}
    servers = [str(served.get("server")) for served in (seen.get("mps") or {}).values()]
    return [
        f"MIG {seen.get('layout')}: {_counted(len(devices), 'device')}",
        f"MPS server{'s' if len(servers) > 1 else ''} {' and '.join(servers)}" if servers else "",
        "NVML agrees" if seen.get("nvml_agrees") else "NVML's PIDs do not compare",
    ]


def _sms(members: list[dict]) -> str:
    """How many SMs the members found they could use."""
    counts = sorted({m["sm_count"] for m in members if m.get("sm_count") is not None})
    if not counts:
        return ""
    each = " each" if len(members) > 1 and len(counts) == 1 else ""
    return f"{' and '.join(map(str, counts))} SMs{each}"


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural if number != 1 else ''}"


def _switches(share: float | None, requests: float | None) -> str:
    """`1.2 % of the time, 340/s`."""
    parts = ["" if pd.isna(share) else f"{100 * share:.2g} % of the time"]
    parts.append("" if pd.isna(requests) else f"{requests:.0f}/s")
    return ", ".join(part for part in parts if part)


def write(rows: pd.DataFrame, stem: Path) -> None:
    """Write STEM.csv and STEM.md."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(stem.with_name(stem.name + ".csv"), index=False)
    shown = rows.assign(proof=[text.replace("|", "\\|") for text in rows["proof"]])
    shown = shown.drop(columns="verified").rename(columns={"in_force": "in force"})
    if headlines.SWITCHES[0] in shown:
        both = zip(*(shown.pop(key) for key in headlines.SWITCHES), strict=True)
        shown["context switches"] = [_switches(*pair) for pair in both]
    text = tabulate(shown, "keys", "github", showindex=False, disable_numparse=True)
    page = stem.with_name(stem.name + ".md")
    page.write_text(f"# Was the method in force?\n\n{text}\n", encoding="utf-8")
