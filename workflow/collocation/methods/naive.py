"""naive: plain processes on one GPU, time-sliced by the driver."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation import gpu
from workflow.collocation.methods.evidence import NotInForce


def refusal(spec: dict, device: gpu.Device | None) -> str | None:
    return None


@contextmanager
def enter(spec: dict, device: gpu.Device | None, log: Path) -> Iterator["Naive"]:
    # An empty pipe folder of one's own: with the default one, any MPS daemon on this machine would
    # silently turn the members into its clients.
    with tempfile.TemporaryDirectory(prefix="no-mps-") as pipe:
        yield Naive(device, pipe)


@dataclass
class Naive:
    device: gpu.Device | None
    pipe: str

    def environment(self, member: int) -> dict[str, str]:
        if self.device is None:
            return {"CUDA_VISIBLE_DEVICES": ""}
        return {
            "CUDA_VISIBLE_DEVICES": self.device.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe,
        }

    def witness(self, pids: dict[int, int]) -> dict:
        if self.device is None:
            return {"verified": True, "device": "cpu", "members": sorted(pids.values())}
        listed = gpu.processes(self.device)
        members = sorted(pids.values())
        clients = sorted(set(listed["mps"] or []) & set(members))
        if clients:
            raise NotInForce(f"naive: NVML lists the members {clients} as MPS clients")
        # A container may show the host's PIDs, which cannot be told apart from a stranger's here.
        verified = listed["compute"] is not None and set(members) <= set(listed["compute"])
        return {"verified": verified or None, "members": members, **listed}
