"""What run.json's telemetry says of a cell and its windows, as columns of runs.parquet.

Of the whole card: under MIG that is what all see of the card, and of its activity the mean over GPU
instances weighted by their SMs. Missing is None.
"""

from __future__ import annotations

from analysis.records.records import one_line

CARD = "gpu"  # the entity of the whole card
ACTIVITY = ("gract", "smact", "smocc", "tenso", "drama", "fp16", "fp32", "fp64")
_CARD = (*ACTIVITY, "pcie_tx", "pcie_rx", "ctxsw_active", "ctxsw_requests")
_CARD += ("temperature", "sm_clock")
# Ours → theirs.
_MEMBER = {"cpu_cores": "cpu"}
_MEMBER |= {k: k for k in ("entity", "rss", "pss", "read", "write", "gpu_memory")}


def of_cell(record: dict) -> dict:
    """Status, source and a note: why it is incomplete, what it contradicts, what held the GPU."""
    telemetry = record.get("telemetry") or {}
    notes = [telemetry.get("reason"), *(telemetry.get("disagree") or [])]
    notes += [
        f"{reason.replace('_', ' ')} {share:.0%} of the time".replace("%", " %")
        for reason, share in (telemetry.get("throttled") or {}).items()
    ]
    notes += [f"stranger on the card: {who}" for who in telemetry.get("strangers") or []]
    return {
        "telemetry": telemetry.get("status"),
        "telemetry_source": telemetry.get("source"),
        "telemetry_note": "; ".join(one_line(note) for note in notes if note) or None,
        "idle_power": (telemetry.get("idle") or {}).get("power"),
        "idle_memory": (telemetry.get("idle") or {}).get("memory_used"),
    }


def of_window(record: dict, name: str) -> dict:
    """What the card did in a window."""
    window = _window(record, name)
    card = _card(window)
    energy = window.get("energy") or {}
    power = energy.get("mean_power")
    sms = card.get("sm_count") or (record.get("gpu") or {}).get("sm_count")
    return {
        **{key: card.get(key) for key in _CARD},
        # Among a window's values it is written as 132.0.
        "activity_sm_count": int(sms) if type(sms) is float and sms.is_integer() else sms,
        "gpu_memory_used": card.get("memory_used"),
        # The counter knows the mean better than readings do.
        "power": card.get("power") if power is None else power,
        "energy_j": energy.get("joules"),
    }


def of_member(record: dict, name: str, member: int) -> dict:
    """What a member's processes used in a window, and under MIG what its GPU instance did."""
    window = _window(record, name)
    found = (window.get("members") or {}).get(str(member)) or {}
    entity = found.get("entity")
    own = {} if entity == CARD else (window.get("entities") or {}).get(entity) or {}
    return {ours: found.get(theirs) for ours, theirs in _MEMBER.items()} | {
        f"{key}_instance": own.get(key) for key in ACTIVITY
    }


def _window(record: dict, name: str) -> dict:
    return ((record.get("telemetry") or {}).get("windows") or {}).get(name) or {}


def _card(window: dict) -> dict:
    """Headline values of the whole card."""
    card = (window.get("entities") or {}).get(CARD) or {}
    return card | (window.get("whole_card") or {})
