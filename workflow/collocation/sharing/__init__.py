"""How members share a GPU: `base.named` gives a method, and here is what all have in common.

`refusal` says, without changing anything, why a method cannot run here. `enter` gives a context
manager; inside it the method is set up, and on every way out it is torn down.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.sharing import (  # noqa: F401
    interleaved,
    mig,
    mps,
    mps_daemon,
    naive,
    streams,
)
from workflow.collocation.sharing.base import Method, named
from workflow.collocation.sharing.evidence import NotInForce, Unsupported, require_free
from workflow.collocation.sharing.mig import blocked, recover
from workflow.collocation.study.cell import CellSpec
from workflow.collocation.study.methods import is_mig


def refusal(spec: CellSpec, device: Device | None) -> str | None:
    """Why the cell's method cannot run on this machine, or None. Reads only."""
    method = named(spec.method)(spec, device)
    try:
        reason = method.refusal()
        if not reason and device is not None and not is_mig(spec.method):
            reason = blocked(device, None)
    except Unsupported as error:
        reason = str(error)
    except NotInForce:  # the card does not answer now: no reason that lasts
        reason = None
    if not reason and device is not None:
        reason = device.too_many(method.processes())
    return f"{reason}; {method.experimental}" if reason and method.experimental else reason


@contextmanager
def enter(spec: CellSpec, device: Device | None, log: Path) -> Iterator[Method]:
    """Set the cell's method up; `log` is the folder for what the method's own programs print.

    To be entered by who holds the device's lock. Raises GpuBusy, NotInForce or Unsupported;
    NotInForce, too, if afterwards the card could not be put back as it was.
    """
    if device is not None:
        mps_daemon.sweep()  # a server that a killed run left would share the card with this one
        recover(device)  # and a layout that it left would not be the one found
    if reason := refusal(spec, device):
        raise Unsupported(reason)
    if device is not None:
        require_free(device)
    method = named(spec.method)(spec, device)
    with method.entered(log):
        yield method
