"""A Slurm of one node on this machine, with two GPUs that are not there, while a test runs.

Debian's slurmctld, slurmd and slurm-client, started as root in a folder, on free ports of
127.0.0.1. The job steps of Snakemake's plugin forget SLURM_CONF, so /etc/slurm has links to the
folder's files meanwhile.

It has no munge (auth/none), no accounting and no cgroups: a job sees the node's cores and memory.
Its GPUs are two device files that everybody has. A task prolog gives each job what a node with
constrained devices would: the card (tests/fakes) of the GPU that Slurm gave it, and no other.
"""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.studio import Studio, until

NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "srun", "scancel", "scontrol")
ETC = Path("/etc/slurm")
GPUS = 2
CONF = """\
ClusterName=drill
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/prolog
ReturnToService=2
KillWait=5
MinJobAge=300
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
SwitchType=switch/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=1000000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PROLOG = """\
#!/bin/sh
cat "{folder}/gpu$CUDA_VISIBLE_DEVICES" 2> /dev/null || true
"""


@dataclass
class Slurm:
    folder: Path
    host: str = socket.gethostname()

    def ask(self, *command: str) -> str:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=60
        ).stdout

    def queue(self) -> list[list[str]]:
        """Job and state of all that waits or runs."""
        return [line.split() for line in self.ask("squeue", "-h", "-o", "%i %T").splitlines()]

    def node(self, state: str) -> None:
        """Have an administrator change it."""
        self.ask("scontrol", "update", f"NodeName={self.host}", f"State={state}", "Reason=drill")

    def install(self, cards: list[Studio]) -> None:
        """What jobs find where Slurm gives them the first GPU, the second, and so on."""
        for index, card in enumerate(cards):
            given = card.surroundings | {"CUDA_VISIBLE_DEVICES": "0"}
            lines = "".join(f"export {name}={value}\n" for name, value in given.items())
            (self.folder / f"gpu{index}").write_text(lines)


def missing() -> str | None:
    """Why there can be none here."""
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (make test-slurm)"
    if os.geteuid():
        return "Slurm's daemons need root"
    return "there is a Slurm here" if (ETC / "slurm.conf").exists() else None


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    """Start the daemons; in the end nothing of them is left."""
    cluster = Slurm(folder)
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(2)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in probes]
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    words = {"folder": folder, "host": cluster.host, "ports": ports, "gpus": GPUS}
    (folder / "slurm.conf").write_text(CONF.format(**words))
    (folder / "gres.conf").write_text(
        f"NodeName={cluster.host} Name=gpu File=/dev/null,/dev/zero\n"
    )
    (folder / "prolog").write_text(PROLOG.format(**words))
    (folder / "prolog").chmod(0o755)
    with contextlib.ExitStack() as stack:
        for name in ("slurm.conf", "gres.conf"):
            (ETC / name).symlink_to(folder / name)
            stack.callback((ETC / name).unlink)
        # In the foreground, so that they are children of this process and end with it.
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", cluster.host]):
            log = stack.enter_context((folder / f"{command[0]}.out").open("wb"))
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(daemon.wait, 30)
            stack.callback(daemon.terminate)
        until(lambda: "idle" in _state(cluster), lambda: (folder / "slurmctld.log").read_text(), 60)
        stack.callback(lambda: until(lambda: not cluster.queue(), lambda: "jobs are left", 60))
        stack.callback(cluster.ask, "scancel", "--user", "root")
        yield cluster


def _state(cluster: Slurm) -> str:
    with contextlib.suppress(subprocess.CalledProcessError):
        return cluster.ask("sinfo", "-h", "-o", "%T")
    return ""
