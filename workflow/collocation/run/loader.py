"""The data loader that all jobs of a cell share (models/shared.py): one more process."""

from dataclasses import replace
from pathlib import Path

from workflow.collocation.member.spec import InputSpec, MemberSpec, TrainingSpec
from workflow.collocation.run.fork_client import ForkServerClient
from workflow.collocation.run.outcome import TrackedMember
from workflow.collocation.sharing.evidence import NotInForce


class SharedLoader:
    """The process that loads data for all members of a cell, where their input is shared.

    It has as many workers and cores as the members have together. Without a shared input nothing
    is started.
    """

    def __init__(self, specs: list[MemberSpec]):
        self.spec: MemberSpec | None = None
        self.member: TrackedMember | None = None  # once it is started
        if not isinstance(specs[0].job, TrainingSpec) or not specs[0].job.shared_loader:
            return
        workers = sum(spec.job.input.workers for spec in specs)
        self.spec = replace(
            specs[0],
            index=len(specs),
            kind="loader",
            cores=sorted({core for spec in specs for core in spec.cores}),
            job=replace(specs[0].job, input=InputSpec(mode="files", workers=workers)),
            environment={"CUDA_VISIBLE_DEVICES": ""},
        )

    def start(self, server: ForkServerClient, log: Path) -> None:
        if self.spec:
            [self.member] = server.start([self.spec], log / "loader.log")

    @property
    def problem(self) -> str | None:
        """A sentence on how it ended; None while it runs."""
        if self.member and self.member.status:
            return f"the loader of the cell ended: {self.member.error}"
        return None

    def require(self) -> None:
        """Raise NotInForce if it has ended."""
        if self.problem:
            raise NotInForce(self.problem)
