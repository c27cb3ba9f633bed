"""Method `mig`: each member has a hardware partition of the card; its report of it is the evidence.

The card is divided as a cell needs it (mig_layout plans, mig_nvml asks NVIDIA's library), and put
back as it was found on every way out, and after a kill. The MIG mode is an administrator's to
change, and instances that others made are never removed. Before the first change a note of the
planned instances is written beside the device locks, and it stays as long as they do. Whoever holds
the device's lock and finds a note knows that its writer is dead.

Experimental: all this ran on a simulated card (tests/fakes), and the reading on an H200; no real
card was divided by it yet.
"""

import json
import os
import re
import time
from pathlib import Path

from workflow.collocation.gpu import Device
from workflow.collocation.gpu.lock import lock_folder
from workflow.collocation.gpu.nvidia import mig_enabled
from workflow.collocation.process_lifetime import defer_signals
from workflow.collocation.sharing import evidence
from workflow.collocation.sharing import mig_nvml as nvml
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import NotInForce, Report, Unsupported
from workflow.collocation.sharing.mig_layout import Layout, Partition, PartitionKey, plan_layout
from workflow.collocation.sharing.mig_nvml import ComputeInstance, GpuInstance, MigState
from workflow.collocation.study.cell import CellSpec

# Before each attempt at removal, for the driver to see that the members have ended.
PAUSES_S = (0, 0.2, 0.8, 2, 3, 4)


class Mig(Method):
    """Members run on MIG devices.

    layout: the planned partitions, once entered. partitions: the GPU instance of each of them.
    created: keys of the instances that this cell makes, and removes when it leaves.
    """

    family = "mig"
    experimental = "MIG is experimental: it has divided a simulated card only"

    layout: Layout
    partitions: list[GpuInstance]

    def __init__(self, spec: CellSpec, device: Device | None):
        super().__init__(spec, device)
        self.created: list[PartitionKey] = []

    @classmethod
    def recover(cls, device: Device) -> None:
        """Remove the instances that a killed run of this user made, as its note says.

        An equal instance that others made since, and left idle, goes with them. Raises GpuBusy if
        others compute on the card; NotInForce, and keeps the note, if it does not succeed.
        """
        note = note_path(device)
        if not note.exists():
            return
        try:
            if note.lstat().st_uid != os.getuid():  # the folder is one that all may write to
                raise OSError("it is another user's")
            keys = [
                (profile, start, size) for profile, start, size in json.loads(note.read_bytes())
            ]
        except (OSError, ValueError, TypeError) as error:
            raise NotInForce(
                f"MIG: {note}, where a killed run noted how it divided {device.name}, cannot be "
                f"read: {error}; once the card is as it should be, remove it"
            ) from None
        present = {instance.partition.key for instance in nvml.read_state(device).instances}
        if present & set(keys):
            evidence.require_free(device)
        _remove(device, keys)

    @classmethod
    def keeps_others_out(cls, device: Device) -> str | None:
        if not mig_enabled(device):
            return None
        advice = nvml.how_to_switch(device, on=False)
        return f"MIG mode is on on {device.name}, and this method needs the whole card; {advice}"

    def refuse(self) -> str | None:
        """Instances that a killed run left, as its note says, are no reason: the cell that comes
        removes them.
        """
        if self.device is None:
            return "MIG needs an NVIDIA GPU, and there is none on this machine"
        card = nvml.read_card(self.device)
        if card is None:
            return f"{self.device.name} has no MIG"
        layout, state = plan_layout(self.spec, card), nvml.read_state(self.device)
        if not state.mode:
            advice = nvml.how_to_switch(self.device, on=True)
            return f"MIG mode is off on {self.device.name}; {advice}"
        if not state.instances or matching(layout, state) or note_path(self.device).exists():
            return None
        command = f"nvidia-smi mig -i {self.device.index}"
        return (
            f"MIG instances that are there on {self.device.name} would have to go: "
            f"{', '.join(map(str, state.instances))}; an administrator removes them with "
            f"'{command} -dci' and '{command} -dgi'"
        )

    def enter(self, log_folder: Path) -> None:
        """Divide the card, unless it is divided so already.

        Raises Unsupported if the driver does not take the layout, or the user has no rights;
        NotInForce if NVML fails.
        """
        self.layout = plan_layout(self.spec, nvml.read_card(self.device))
        instances = matching(self.layout, nvml.read_state(self.device))
        if not instances:
            self.created = [partition.key for partition in self.layout.partitions]
            note = note_path(self.device).with_suffix(f".{os.getpid()}")
            note.write_text(json.dumps(self.created), encoding="utf-8")
            note.replace(note_path(self.device))
            with defer_signals():
                nvml.create_instances(self.device, self.layout)
                state = nvml.read_state(self.device)
            instances = matching(self.layout, state)
            if not instances:
                sms = [c.sm_count for instance in state.instances for c in instance.compute]
                raise NotInForce(
                    f"MIG: {self.layout} was created on {self.device.name}, but there is {state}, "
                    f"with compute instances of {sms} SMs"
                )
        self.partitions = instances

    def leave(self) -> None:
        if self.created:
            _remove(self.device, self.created)

    def seat(self, member: int) -> tuple[GpuInstance, ComputeInstance]:
        """The instances that the member runs on."""
        partition, compute = self.layout.seats[member]
        return self.partitions[partition], self.partitions[partition].compute[compute]

    def environment(self, member: int) -> dict[str, str]:
        uuid = self.seat(member)[1].uuid
        return {"CUDA_VISIBLE_DEVICES": uuid, evidence.PIPE_FOLDER: evidence.NO_DAEMON}

    def instances(self) -> dict[str, int | None]:
        return {f"gi:{part.id}": part.partition.profile.sm_count for part in self.partitions}

    def entity_of(self, member: int) -> str:
        return f"gi:{self.seat(member)[0].id}"

    def evidence(self, reports: dict[int, Report]) -> dict:
        for report in reports.values():
            self.pids |= evidence.processes_of(report)
        state = nvml.read_state(self.device)
        if _identities(matching(self.layout, state) or []) != _identities(self.partitions):
            raise NotInForce(
                f"MIG: {self.layout} was applied on {self.device.name}, and somebody has changed "
                f"that: there is {state}"
            )
        members = {m: self._evidence_of_member(m, report) for m, report in reports.items()}
        listed = evidence.require_members(self.name, self.device, reports)
        sms_known = all(report.sm_count is not None for report in reports.values())
        return {
            "verified": (bool(reports) and sms_known) or None,
            "layout": str(self.layout),
            "members": members,
            "nvml_compute": listed["compute"],
            "nvml_mps": listed["mps"],
        }

    def _evidence_of_member(self, member: int, report: Report) -> dict:
        """The record of a member's seat; raises NotInForce if it runs elsewhere."""
        instance, compute = self.seat(member)
        partition = instance.partition
        evidence.require_device(self.name, {member: report}, compute.uuid)
        if report.sm_count not in (None, compute.sm_count):
            raise NotInForce(
                f"{self.name}: {evidence.describe(member, report)} can use {report.sm_count} SMs; "
                f"its instance {partition.profile.name} ({compute.uuid}) has {compute.sm_count}"
            )
        return {
            "pid": report.pid,
            "mig_uuid": report.device_uuid,
            "gpu_instance": instance.id,
            "profile": partition.profile.name,
            "placement": f"{partition.start}:{partition.size}",
            "sm_planned": compute.sm_count,
            "sm_reported": report.sm_count,
        }


def matching(layout: Layout, state: MigState) -> list[GpuInstance] | None:
    """The instances of the layout's partitions, wherever they lie on the card.

    None unless the card has these and no others, with the SMs that were planned.
    """
    unmatched, instances = list(state.instances), []
    for partition in layout.partitions:
        alike = [instance for instance in unmatched if _is_alike(partition, instance)]
        if not alike:
            return None
        unmatched.remove(alike[0])
        instances.append(alike[0])
    return None if unmatched else instances


def _is_alike(planned: Partition, instance: GpuInstance) -> bool:
    """Whether the instance serves as the planned partition. Only of a compute instance that fills
    its GPU instance is the number of SMs planned.
    """
    actual = instance.partition
    if (actual.profile.id, actual.compute) != (planned.profile.id, planned.compute):
        return False
    sm_count = planned.profile.sm_count
    if not planned.whole or sm_count is None:
        return True
    return all(compute.sm_count == sm_count for compute in instance.compute)


def _identities(instances: list[GpuInstance]) -> list[tuple[int, list[str]]]:
    return [(gi.id, [compute.uuid for compute in gi.compute]) for gi in instances]


def note_path(device: Device) -> Path:
    """The note of the instances that this user's run makes on the card."""
    card = re.sub(r"[^A-Za-z0-9._-]", "_", device.uuid)
    return lock_folder() / f"{card}.mig-{os.getuid()}.json"


@defer_signals()
def _remove(device: Device, keys: list[PartitionKey]) -> None:
    """Remove these instances, and then the note. Raises NotInForce, and keeps it, if some stay."""
    for pause in PAUSES_S:
        time.sleep(pause)
        try:
            for instance in nvml.read_state(device).instances:
                if instance.partition.key in keys:
                    nvml.destroy_instance(device, instance)
            return note_path(device).unlink(missing_ok=True)
        except (NotInForce, Unsupported) as error:
            problem = str(error)
    raise NotInForce(
        f"MIG: instances that were made on {device.name} could not be removed: {problem}; "
        f"'nvidia-smi mig -i {device.index} -lgi' shows what is there, and the next run tries "
        f"again, unless {note_path(device)} is removed"
    )
