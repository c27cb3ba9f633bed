"""What is said of a card's MIG state: why a cell cannot run, and who can do what about it."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml

from workflow.collocation.gpu import Device
from workflow.collocation.methods import mig_journal, mig_nvml
from workflow.collocation.methods.evidence import NotInForce, Unsupported
from workflow.collocation.methods.mig_nvml import Found, Instance, State

HOPPER = (9, 0)  # the compute capability from which on MIG mode is switched without a reset
# Who may read the device file that this names may create instances.
CAPABILITY = Path("/proc/driver/nvidia/capabilities/mig/config")
CAPABILITY_DEVICES = Path("/dev/nvidia-caps")


def missing_rights() -> str | None:
    """What this user lacks to create instances; None where nothing says so."""
    try:
        minor = re.search(r"DeviceFileMinor: *(\d+)", CAPABILITY.read_text())
    except OSError:
        return None
    file = CAPABILITY_DEVICES / f"nvidia-cap{minor[1]}" if minor else None
    if file is None or os.geteuid() == 0 or not file.exists() or os.access(file, os.R_OK):
        return None
    return (
        f"creating MIG instances needs root or the right to read {file}; an administrator grants "
        f"that with 'chmod a+r {file}'"
    )


@contextmanager
def in_words(device: Device, doing: str, hint: str | None = None) -> Iterator[None]:
    """NVML's errors as the sentences that a cell ends with. hint: who else can do it."""
    try:
        yield
    except pynvml.NVMLError_NoPermission:
        raise Unsupported(
            f"MIG: no permission on {device.name} for {doing}; "
            + (
                hint
                or missing_rights()
                or "it takes root, in a container with NVIDIA_MIG_CONFIG_DEVICES=all"
            )
        ) from None
    except pynvml.NVMLError as error:
        raise NotInForce(f"MIG: {doing} failed on {device.name}: {error}") from error


def described(state: State) -> str:
    """Such as "MIG mode on and 14 at 0:2, 9 at 4:4"; ids of profiles, as nvidia-smi takes them."""
    if not state.mode:
        return "MIG mode off"
    return f"MIG mode on and {', '.join(map(named, state.instances)) or 'no instances'}"


def named(instance: Instance) -> str:
    return f"profile {instance.profile} at {instance.start}:{instance.size}"


def not_to_be_touched(device: Device, there: list[Found]) -> str:
    names = {info.id: mig_nvml.name(info) for _, info in mig_nvml.profiles(device)}
    listed = ", ".join(
        f"{names[one.profile]} at {one.start}:{one.size}"
        for one in (found.instance for found in there)
    )
    return (
        f"MIG instances that are there on {device.name} would have to go: {listed}; "
        "mig_mode=switch allows the workflow to take them down and put them back (their UUIDs may "
        "change)"
    )


def left_by_others(device: Device) -> str:
    return "".join(
        f"; a killed run of user {owner} may have left it so, and that user's next run puts back "
        f"what {file} says"
        for owner, file in mig_journal.others(device).items()
    )


def mode_is_wrong(device: Device, on: bool, switch: bool, why: str = "") -> str | None:
    where = f"on {device.name}" if on else f"({device.name})"
    wrong = f"MIG mode is {word(not on)} {where}{why}"
    mode = mig_nvml.mode(device)
    if mode and mode[0] != mode[1]:
        return (
            f"{wrong}, and a change of it waits for a GPU reset; an administrator gives it with "
            f"'{_reset(device)}'"
        )
    if switch and device.capability >= HOPPER:
        return None
    return f"{wrong}; {how_to_switch(device, on)}"


def how_to_switch(device: Device, on: bool) -> str:
    """What gives the card another MIG mode, to be read after a semicolon."""
    remedy = f"an administrator switches it {word(on)} with {_commands(device, on)}"
    if device.capability >= HOPPER:
        return f"{remedy}, or allow it with mig_mode=switch"
    return f"{remedy}; mig_mode=switch does not, for that may reset such a card"


def hint_of(device: Device, on: bool, pending: bool = False) -> str:
    return f"an administrator does it with {_commands(device, on, pending)}"


def _commands(device: Device, on: bool, pending: bool = False) -> str:
    """What an administrator runs. pending: the new mode may wait for a reset, on any card."""
    switch = f"'nvidia-smi -i {device.index} -mig {int(on)}'"
    if pending or device.capability < HOPPER:
        return f"{switch} and, where it stays pending, '{_reset(device)}'"
    return switch


def not_switched(device: Device, on: bool) -> str:
    return f"the MIG mode of {device.name} cannot be switched {word(on)}"


def word(on: bool) -> str:
    return "on" if on else "off"


def _reset(device: Device) -> str:
    return f"nvidia-smi -i {device.index} --gpu-reset"
