"""The trainer for cells whose jobs are all scripts: it needs no torch, so it starts in no time.

The fork server calls `preload()` once, and in each process `main(spec, channel)`.
"""

from models.jobs.command import ScriptMember
from models.member import run_member
from workflow.collocation.member.protocol import Channel
from workflow.collocation.member.spec import MemberSpec


def preload() -> None:
    """Nothing is left to import: this module has imported what members need."""


def main(spec: MemberSpec, channel: Channel) -> int:
    """Run one script under the commands of the channel; returns 0 after `stopped`."""
    return run_member(ScriptMember, spec, channel)
