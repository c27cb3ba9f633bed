"""mig: each member has a hardware partition of the card; what it reports of it is the evidence.

A card is divided as a cell needs it (mig_layout plans, mig_nvml asks NVIDIA's library), and put
back as it was found: on every way out, after a kill. The MIG mode is an administrator's, and what
others made is never taken down. Before the first change a note of the instances that are to be made
is left beside the device locks; it is there as long as they are. Whoever holds the device's lock
and finds it knows that its writer is dead.

Experimental: all this ran on a simulated card (tests/fakes), and reading on an H200; no card was
divided by it yet.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.lock import lock_folder
from workflow.collocation.gpu.nvidia import mig_enabled
from workflow.collocation.process_lifetime import defer_signals
from workflow.collocation.sharing import evidence
from workflow.collocation.sharing import mig_nvml as nvml
from workflow.collocation.sharing.base import Method, register
from workflow.collocation.sharing.evidence import (
    NotInForce,
    Report,
    Unsupported,
    called,
    require_free,
)
from workflow.collocation.sharing.mig_layout import Layout, Part, Place, plan
from workflow.collocation.sharing.mig_nvml import Compute, Instance, State

# Before each new try at putting back, for the driver to see that the members have ended.
PAUSES_S = (0, 0.2, 0.8, 2, 3, 4)


class Mig(Method):
    """parts: the GPU instance of each part of the layout, once it is entered."""

    family = "mig"
    experimental = "MIG is experimental: it has divided a simulated card only"

    layout: Layout
    parts: list[Instance]

    def refusal(self) -> str | None:
        if self.device is None:
            return "MIG needs an NVIDIA GPU, and there is none on this machine"
        card = nvml.read(self.device)
        if card is None:
            return f"{self.device.name} has no MIG"
        return blocked(self.device, plan(self.spec, card))

    @contextmanager
    def entered(self, log: Path) -> Iterator[None]:
        self.layout = plan(self.spec, nvml.read(self.device))
        with divided(self.device, self.layout) as self.parts:
            yield

    def seat(self, member: int) -> tuple[Instance, Compute]:
        """Where the member runs."""
        part, number = self.layout.seats[member]
        return self.parts[part], self.parts[part].compute[number]

    def environment(self, member: int) -> dict[str, str]:
        uuid = self.seat(member)[1].uuid
        return {"CUDA_VISIBLE_DEVICES": uuid, evidence.PIPE_FOLDER: evidence.NO_DAEMON}

    def instances(self) -> dict[str, int | None]:
        return {f"gi:{one.id}": one.part.profile.sm_count for one in self.parts}

    def entity(self, member: int) -> str:
        return f"gi:{self.seat(member)[0].id}"

    def witness(self, reports: dict[int, Report]) -> dict:
        self.names = self.names.union(*map(evidence.processes_of, reports.values()))
        there = nvml.state(self.device)
        if _named(matching(self.layout, there) or []) != _named(self.parts):
            raise NotInForce(
                f"MIG: {self.layout} was applied on {self.device.name}, and somebody has changed "
                f"that: there is {there}"
            )
        members = {member: self._facts(member, report) for member, report in reports.items()}
        listed = evidence.require_members(self.name, self.device, reports)
        told = bool(reports) and None not in [report.sm_count for report in reports.values()]
        return {
            "verified": told or None,
            "layout": str(self.layout),
            "members": members,
            "nvml_compute": listed["compute"],
            "nvml_mps": listed["mps"],
        }

    def _facts(self, member: int, report: Report) -> dict:
        """What is evidence of this member's seat; raises NotInForce if it is not in it."""
        instance, mine = self.seat(member)
        part = instance.part
        evidence.require_device(self.name, {member: report}, mine.uuid)
        if report.sm_count not in (None, mine.sm_count):
            raise NotInForce(
                f"{self.name}: {called(member, report)} can use {report.sm_count} SMs; its "
                f"instance {part.profile.name} ({mine.uuid}) has {mine.sm_count}"
            )
        return {
            "pid": report.pid,
            "mig_uuid": report.device_uuid,
            "gpu_instance": instance.id,
            "profile": part.profile.name,
            "placement": f"{part.start}:{part.size}",
            "sm_planned": mine.sm_count,
            "sm_reported": report.sm_count,
        }


# -- the card --------------------------------------------------------------------------------------


def blocked(device: Device, layout: Layout | None) -> str | None:
    """Why a cell cannot have the card divided so (None: whole), with the commands that help; None
    if it can. Reads only.

    Instances that a killed run left, as its note says, block nothing: a cell will not find them.
    Raises Unsupported where the user may not see them, NotInForce where NVML fails.
    """
    on = layout is not None
    if not on and not mig_enabled(device):
        return None
    there = nvml.state(device)
    if there.mode != on:
        why = "" if on else ", and this method needs the whole card"
        how = nvml.how_to_switch(device, on)
        return f"MIG mode is {nvml.WORD[not on]} on {device.name}{why}; {how}"
    if not there.instances or matching(layout, there) or note_path(device).exists():
        return None
    command = f"nvidia-smi mig -i {device.index}"
    return (
        f"MIG instances that are there on {device.name} would have to go: "
        f"{', '.join(map(str, there.instances))}; an administrator removes them with "
        f"'{command} -dci' and '{command} -dgi'"
    )


def matching(layout: Layout, there: State) -> list[Instance] | None:
    """The instances of the layout's parts, wherever they lie; None unless these and no others are
    there, with the SMs that were planned for who fills one.
    """
    left, found = list(there.instances), []
    for part in layout.parts:
        one = next((one for one in left if _is(part, one)), None)
        if one is None:
            return None
        left.remove(one)
        found.append(one)
    return None if left else found


def _named(parts: list[Instance]) -> list[tuple[int, list[str]]]:
    return [(one.id, [compute.uuid for compute in one.compute]) for one in parts]


def _is(part: Part, one: Instance) -> bool:
    planned = part.profile.sm_count if part.whole else None
    alike = (one.part.profile.id, one.part.compute) == (part.profile.id, part.compute)
    return alike and all(planned in (None, compute.sm_count) for compute in one.compute)


@contextmanager
def divided(device: Device, layout: Layout) -> Iterator[list[Instance]]:
    """The card with this layout, by the instance of each of its parts; afterwards none of ours is
    there.

    To be entered where nothing is `blocked` and nobody is on the card. Raises Unsupported if the
    driver does not take the layout, or the user has no rights; NotInForce if NVML fails, or what
    was made could not be removed.
    """
    if found := matching(layout, nvml.state(device)):
        yield found
        return
    made = [part.place for part in layout.parts]
    new = note_path(device).with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(made), encoding="utf-8")
    new.replace(note_path(device))
    try:
        with defer_signals():
            nvml.create(device, layout)
            there = nvml.state(device)
        if not (found := matching(layout, there)):
            sms = [one.sm_count for instance in there.instances for one in instance.compute]
            said = f"there is {there}, with compute instances of {sms} SMs"
            raise NotInForce(f"MIG: {layout} was created on {device.name}, but {said}")
        yield found
    finally:
        _remove(device, made)


def recover(device: Device) -> None:
    """Remove the instances that a killed run of this user made, as its note says; nothing without
    one.

    To be called by who holds the device's lock. Raises GpuBusy if others compute on the card;
    NotInForce, and keeps the note, if it does not succeed. An equal instance that others made
    instead, and left idle, goes with it.
    """
    file = note_path(device)
    if not file.exists():
        return
    try:
        if file.lstat().st_uid != os.getuid():  # in a folder that all may write to
            raise OSError("it is another user's")
        made = [(profile, start, size) for profile, start, size in json.loads(file.read_bytes())]
    except (OSError, ValueError, TypeError) as error:
        raise NotInForce(
            f"MIG: {file}, where a killed run noted how it divided {device.name}, cannot be read: "
            f"{error}; once the card is as it should be, remove it"
        ) from None
    if any(one.part.place in made for one in nvml.state(device).instances):
        require_free(device)
    _remove(device, made)


@defer_signals()
def _remove(device: Device, made: list[Place]) -> None:
    """Raises NotInForce if instances stay; then the note stays, too."""
    for pause in PAUSES_S:
        time.sleep(pause)
        try:
            for one in nvml.state(device).instances:
                if one.part.place in made:
                    nvml.destroy(device, one)
            return note_path(device).unlink()
        except (NotInForce, Unsupported) as error:
            problem = str(error)
    raise NotInForce(
        f"MIG: instances that were made on {device.name} could not be removed: {problem}; "
        f"'nvidia-smi mig -i {device.index} -lgi' shows what is there, and the next run tries "
        f"again, unless {note_path(device)} is removed"
    )


def note_path(device: Device) -> Path:
    """Where this user's run notes what it makes on the card; there as long as that is."""
    card = re.sub(r"[^A-Za-z0-9._-]", "_", device.uuid)
    return lock_folder() / f"{card}.mig-{os.getuid()}.json"


register(Mig)
