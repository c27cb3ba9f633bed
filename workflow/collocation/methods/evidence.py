"""What the methods' evidence has in common."""

import time

import psutil

from workflow.collocation import gpu

GRACE_S = 3.0  # for the last cell's processes to leave the card


class NotInForce(Exception):
    """The method that a cell is about was not in force; the cell fails with this sentence."""


def refuse_company(device: gpu.Device) -> None:
    """Raise NotInForce, naming PID and owner, if others compute on the card. Kills nobody."""
    deadline = time.monotonic() + GRACE_S
    while found := {pid for pids in gpu.processes(device).values() for pid in pids or []}:
        if time.monotonic() > deadline:
            owners = ", ".join(_owner(pid) for pid in sorted(found))
            raise NotInForce(f"a cell needs the GPU to itself, and others compute on it: {owners}")
        time.sleep(0.2)


def _owner(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"PID {pid} ({process.name()}, owner {process.username()})"
    except psutil.Error:
        return f"PID {pid} (owner not visible from here)"
