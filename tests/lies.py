"""How members misbehave on request, whatever they train (tests/torchfree.py, tests/gpu_trainer.py).

COLLOCATION_LIES in the environment is a JSON object: part of the path of a cell's folder →
"MEMBER:KIND". It is no part of the cell, which is measured again without it.

Before the member's first CUDA call, which its events then do not show:
  pipe           another pipe folder, so that it is no client of the cell's MPS daemon
  client         the pipe folder of the cell's MPS daemon, of which it is to be no client
  uncapped       no active thread percentage
  unlimited      no limit of pinned memory
After LATER_STEPS steps since go:
  kill           it ends itself by SIGKILL
  assert         a device-side assertion fails
  illegal        a kernel writes where nothing is
  hang           for ever
  kill_server, kill_daemon     it kills the MPS server, or the MPS control daemon, by SIGKILL
"""

import json
import os
import re
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation.member.spec import MemberSpec

VARIABLE = "COLLOCATION_LIES"
PREFIX, MARK = "mps-", "collocation-study"  # of a daemon's folder, as methods/mps_daemon has them
KINDS = (
    *("pipe", "client", "uncapped", "unlimited"),
    *("kill", "assert", "illegal", "hang", "kill_server", "kill_daemon"),
)
LATER_STEPS = 20


def lies(**by_cell: str) -> dict[str, str]:
    """The environment in which these are told."""
    return {VARIABLE: json.dumps(by_cell)}


@dataclass(frozen=True)
class Lie:
    """What this member does; `kind` is empty for an honest one."""

    kind: str = ""

    def before_cuda(self) -> None:
        """Change what CUDA finds in the environment."""
        if self.kind == "pipe":
            os.environ["CUDA_MPS_PIPE_DIRECTORY"] = tempfile.mkdtemp(prefix="other-")
        elif self.kind == "client":
            [mark] = Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{MARK}")
            os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(mark.parent)
        elif self.kind == "uncapped":
            del os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
        elif self.kind == "unlimited":
            del os.environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]

    def after_step(self, steps: int) -> bool:
        """Do what is due after so many steps since go; True when the device is to be hurt now."""
        if steps != LATER_STEPS:
            return False
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "kill_server":
            answer = subprocess.run(
                ["nvidia-cuda-mps-control"],
                input="get_server_list\n",
                capture_output=True,
                text=True,
                check=True,
            )
            for pid in re.findall(r"^\d+$", answer.stdout, re.MULTILINE):
                os.kill(int(pid), signal.SIGKILL)
        elif self.kind == "kill_daemon":
            pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
            pid = (pipe / "nvidia-cuda-mps-control.pid").read_text()
            os.kill(int(pid), signal.SIGKILL)
        while self.kind == "hang":
            signal.pause()
        return self.kind in ("assert", "illegal")


def lie_of(spec: MemberSpec) -> Lie:
    """What COLLOCATION_LIES has the member do. Raises ValueError for an unknown kind."""
    for part, told in json.loads(os.environ.get(VARIABLE, "{}")).items():
        member, kind = told.split(":")
        if kind not in KINDS:
            raise ValueError(f"{VARIABLE}: no kind {kind!r}")
        if int(member) == spec.index and part in spec.folder:
            return Lie(kind)
    return Lie()
