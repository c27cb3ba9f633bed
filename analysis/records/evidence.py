"""What proves that a cell's method was in force, or why there is no proof, in words."""

from __future__ import annotations

from analysis.names import family_of

MEASURED = ("completed", "out_of_memory")
# Was the method in force? What the checks of a measured cell come to, in words.
PROVEN, DENIED, UNTOLD, TOO_EARLY = "yes", "no", "not proven", "out of memory first"


def in_force(record: dict) -> str | None:
    """Whether the method was in force, by the checks of a measured cell; of any other None.

    A cell that ran out of memory may have ended before the last check: that is no doubt of the
    method, unless an earlier check had one.
    """
    if record["status"] not in MEASURED:
        return None
    method = record.get("method") or {}
    if method.get("verified") is not None:
        return PROVEN if method["verified"] else DENIED
    said = method.get("evidence") or {}
    doubted = "barrier" in said and not said["barrier"].get("verified")
    ended = record["status"] != "completed" and "end" not in said and not doubted
    return TOO_EARLY if ended else UNTOLD


def proof(record: dict) -> str:
    """What the checks of a measured cell saw; of any other its reason.

    The last check speaks for all: it has to find the servers and devices of the earlier ones again.
    """
    if record["status"] not in MEASURED:
        return str(record.get("reason") or "no reason was given")
    seen = (record.get("method") or {}).get("evidence") or {}
    when = next((name for name in ("end", "barrier", *seen) if seen.get(name)), None)
    if when is None:
        early = in_force(record) == TOO_EARLY
        return "out of memory before it was checked" if early else "nothing was checked"
    text = seen_by_check(record["cell"]["method"], seen[when], record.get("members") or [])
    return text if when == "end" else f"{text} (at the {when} only)"


def seen_by_check(method: str, seen: dict, members: list[dict]) -> str:
    """One phrase for what a check saw, and what the members said (device_uuid, sm_count)."""
    if seen.get("verified") is False:
        return str(seen.get("reason") or "not in force")
    say = {"naive": _naive, "mps": _mps, "mig": _mig}
    if {"naive", "mps"} <= seen.keys():  # an alternating cell, of which each proves its own sides
        parts = [part for name in ("naive", "mps") for part in say[name](seen[name], members)]
    else:
        by_side = "mps" if "server" in seen else "naive"
        family = by_side if "-" in method else family_of(method)
        parts = say[family](seen, members) if family in say else []
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
