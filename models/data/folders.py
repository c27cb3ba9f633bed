"""Folders and files that are either whole or absent."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def make_once(target: Path, made: Callable[[], bool], write: Callable[[Path], None]) -> None:
    """Have `write` fill a folder that becomes `target`, whole or not at all, unless it is `made`.

    A second process waits for the first one, whose lock is free once it is dead.
    """
    if made():  # perhaps where nobody can write
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made():
            return
        building = target.with_name(f".{target.name}.new")
        shutil.rmtree(building, ignore_errors=True)  # of somebody who was killed
        try:
            building.mkdir()
            write(building)
            shutil.rmtree(target, ignore_errors=True)
            building.rename(target)
        finally:
            shutil.rmtree(building, ignore_errors=True)


def write_json(path: Path, value: dict) -> None:
    """Write `value`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
