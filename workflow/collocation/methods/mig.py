"""mig: hardware partitions. This version refuses with the reason; it never touches the card."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow.collocation import gpu
from workflow.collocation.methods.evidence import NotInForce


def refusal(spec: dict, device: gpu.Device | None) -> str | None:
    if device is None:
        return "MIG needs an NVIDIA GPU, and there is none on this machine"
    enabled = gpu.mig_enabled(device)
    if enabled is None:
        return f"{device.name} has no MIG"
    if not enabled:
        return (
            f"MIG mode is off on {device.name}; an administrator switches it on with "
            f"'nvidia-smi -i {device.index} -mig 1'"
        )
    return "MIG mode is on, but this version of the workflow does not create MIG layouts yet"


@contextmanager
def enter(spec: dict, device: gpu.Device | None, log: Path) -> Iterator[None]:
    raise NotInForce(refusal(spec, device))
    yield
