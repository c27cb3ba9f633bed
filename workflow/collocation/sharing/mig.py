"""mig: each member has a hardware partition of the card; what it reports of it is the evidence.

mig_layout plans, pure; mig_card divides a card for a cell and puts it back, also after a kill;
mig_nvml asks NVIDIA's library.

Experimental: all this ran on a simulated card (tests/fakes), and reading on an H200; no card was
divided by it yet.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workflow.collocation.sharing import evidence, mig_card, mig_nvml
from workflow.collocation.sharing.base import Method, register
from workflow.collocation.sharing.evidence import NotInForce, Report, called
from workflow.collocation.sharing.mig_layout import Layout, plan
from workflow.collocation.sharing.mig_nvml import Compute, Instance


class Mig(Method):
    """parts: the GPU instance of each part of the layout, once it is entered."""

    family = "mig"
    experimental = "MIG is experimental: it has divided a simulated card only"

    layout: Layout
    parts: list[Instance]

    def refusal(self) -> str | None:
        if self.device is None:
            return "MIG needs an NVIDIA GPU, and there is none on this machine"
        card = mig_nvml.read(self.device)
        if card is None:
            return f"{self.device.name} has no MIG"
        return mig_card.blocked(self.device, plan(self.spec, card))

    @contextmanager
    def entered(self, log: Path) -> Iterator[None]:
        self.layout = plan(self.spec, mig_nvml.read(self.device))
        with mig_card.divided(self.device, self.layout) as self.parts:
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
        there = mig_nvml.state(self.device)
        if mig_card.matching(self.layout, there) != self.parts:
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


register(Mig)
