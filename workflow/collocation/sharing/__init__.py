"""How the jobs of one cell share a GPU: one `Method` class each, registered in `METHODS`.

`refusal` says, without changing anything, why a method cannot run here. `enter` is a context
manager: inside it the method is set up, and on every way out it is torn down.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import NotInForce, Unsupported, require_free
from workflow.collocation.sharing.interleaved import Interleaved
from workflow.collocation.sharing.mig import Mig
from workflow.collocation.sharing.mps import Mps
from workflow.collocation.sharing.naive import Naive
from workflow.collocation.sharing.streams import Streams
from workflow.collocation.study.cell import CellSpec
from workflow.collocation.study.names import SEPARATOR, family_of

# By family: `mps` is the class of the methods mps, mps_equal and mps_<anything>.
METHODS: dict[str, type[Method]] = {
    method.family: method for method in (Naive, Mps, Streams, Mig, Interleaved)
}


def method_class(name: str) -> type[Method]:
    """The class of a method, such as `naive`, `mps_equal` or the interleaved `alone-naive-mps`.

    Raises KeyError for a name of no registered family.
    """
    if name in METHODS:
        return METHODS[name]
    return Interleaved if SEPARATOR in name else METHODS[family_of(name)]


def refusal(spec: CellSpec, device: Device | None) -> str | None:
    """Why the cell's method cannot run on this machine, or None. Changes nothing."""
    method = method_class(spec.method)(spec, device)
    try:
        reason = method.refuse()
        for other in METHODS.values() if device is not None else ():
            if not reason and not isinstance(method, other):
                reason = other.keeps_others_out(device)
    except Unsupported as error:
        reason = str(error)
    except NotInForce:  # The card does not answer now, which is no lasting reason.
        reason = None
    if not reason and device is not None:
        reason = device.too_many(method.process_count())
    return f"{reason}; {method.experimental}" if reason and method.experimental else reason


@contextmanager
def enter(spec: CellSpec, device: Device | None, log_folder: Path) -> Iterator[Method]:
    """Set up the cell's method, and tear it down on every way out.

    The caller holds the device's lock. `log_folder` takes what the method's own programs print.
    Raises GpuBusy, NotInForce or Unsupported; NotInForce also if the card could not be put back as
    it was found.
    """
    if device is not None:
        # What a killed run left must neither share the card nor count as found.
        for method_type in METHODS.values():
            method_type.sweep()
            method_type.recover(device)
    if reason := refusal(spec, device):
        raise Unsupported(reason)
    if device is not None:
        require_free(device)
    method = method_class(spec.method)(spec, device)
    try:
        method.enter(log_folder)
        yield method
    finally:
        method.leave()
