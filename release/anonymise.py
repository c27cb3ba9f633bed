"""A record without what is private of the machine that measured it.

Texts keep their sense: a path becomes <path>, a host name <host name>. Other people's processes are
counted, but not named.
"""

from __future__ import annotations

from release.private import Detector


def record(content: dict, detector: Detector, kept: set[str]) -> dict:
    """run.json's content with private strings replaced, and only the `kept` of its files."""
    clean = _texts(content, detector)
    telemetry = clean.get("telemetry") or {}
    if telemetry.get("strangers"):
        numbers = range(1, len(telemetry["strangers"]) + 1)
        telemetry["strangers"] = [f"a stranger's process {number}" for number in numbers]
    clean["files"] = {name: f for name, f in (clean.get("files") or {}).items() if name in kept}
    return clean


def _texts(value: object, detector: Detector) -> object:
    """The value with every text in it stripped; keys stay, and are looked at by who asked."""
    if isinstance(value, dict):
        return {key: _texts(item, detector) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item, detector) for item in value]
    return detector.strip(value) if isinstance(value, str) else value
