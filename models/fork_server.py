"""Fork server: imports the trainer once, then forks one training process per request.

    python -m models.fork_server --trainer models.train --listen FD

FD is a listening AF_UNIX SOCK_SEQPACKET socket. Each conductor of this user connects, and gets
members of its own. A packet is JSON.
Out: {"pid": n, "t": s}: the import has ended, at s seconds of the monotonic clock.
In:  [spec, ...]: a MemberSpec for each member of one process, with these descriptors: a socket for
     each member, a log for the process, and, if there is one, the lock of the device, which the
     process and its children keep open as long as they live.
A member's events go over its socket (member/protocol.py).

The members of a connection are killed at its end, and all members with the process that made the
listening socket; so is everything that members started, in other sessions too. The server never
touches CUDA or NVML, because a CUDA context does not survive a fork.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import resource
import socket
import struct
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from select import select
from types import ModuleType

from workflow.collocation.member.protocol import Channel, event_line
from workflow.collocation.member.spec import MemberSpec
from workflow.collocation.process_lifetime import end_with_parent, kill_all

MOST_FDS = 64  # more than members that one process may have


@dataclass(eq=False)
class MemberProcess:
    """A forked process; `channels` maps the index of each of its members to a socket."""

    pid: int
    conductor: socket.socket
    channels: dict[int, int]


class ForkServer:
    """Serves all conductors that connect to `listener`, until the process that made it ends."""

    def __init__(self, listener: socket.socket, trainer: ModuleType):
        self.listener, self.trainer = listener, trainer
        self.owner = os.pidfd_open(peer(listener)[0])  # Readable once the owner has ended.
        end_with_parent(os.getppid(), 0)  # From now on, the members have to be killed first.
        self.conductors: set[socket.socket] = set()
        self.processes: dict[int, MemberProcess] = {}  # by pidfd, readable once it has ended

    def serve(self) -> None:
        hello = json.dumps({"pid": os.getpid(), "t": time.monotonic()}).encode()
        sources = [self.listener, self.owner]
        while True:
            readable, _, _ = select([*sources, *self.conductors, *self.processes], [], [])
            if self.owner in readable:
                for process in self.processes.values():
                    kill_all(process.pid)
                return
            for pidfd in self.processes.keys() & set(readable):
                self.reap(pidfd)
            for conductor in self.conductors & set(readable):
                self.answer(conductor)
            if self.listener in readable:
                self.accept(hello)

    def accept(self, hello: bytes) -> None:
        """Take a new connection, of this user's processes only."""
        conductor, _ = self.listener.accept()
        if peer(conductor)[1] != os.getuid():
            conductor.close()
            return
        self.conductors.add(conductor)
        with contextlib.suppress(ConnectionError):
            conductor.send(hello)

    def answer(self, conductor: socket.socket) -> None:
        """Start the members that a conductor asks for, or kill its members if it has gone."""
        descriptors = []
        try:
            packet, descriptors, _, _ = socket.recv_fds(
                conductor, 1 << 18, MOST_FDS, socket.MSG_CMSG_CLOEXEC
            )
            if packet:
                specs = [MemberSpec.from_json(fields) for fields in json.loads(packet)]
                self.start(conductor, specs, descriptors)
                return
        except ConnectionResetError:
            pass
        # This ends one cell; the other conductors are served on.
        except (OSError, ValueError, TypeError, KeyError):
            traceback.print_exc()
            for descriptor in descriptors:
                os.close(descriptor)
        for process in self.processes.values():
            if process.conductor is conductor:
                kill_all(process.pid)
        self.conductors.discard(conductor)
        conductor.close()

    def start(
        self, conductor: socket.socket, specs: list[MemberSpec], descriptors: list[int]
    ) -> None:
        """Fork the process of these members. descriptors: as in a request, see above."""
        server = os.getpid()
        channels = descriptors[: len(specs)]
        log, *locks = descriptors[len(specs) :]
        forked_s = time.monotonic()
        specs = [replace(spec, lock_descriptors=tuple(locks), forked_s=forked_s) for spec in specs]
        if (pid := os.fork()) == 0:
            run_members(self.trainer, specs, server, channels, log)
        with contextlib.suppress(OSError):  # The child does the same; either may be first.
            os.setpgid(pid, pid)
        by_index = {spec.index: channel for spec, channel in zip(specs, channels, strict=True)}
        self.processes[os.pidfd_open(pid)] = MemberProcess(pid, conductor, by_index)
        for descriptor in (log, *locks):
            os.close(descriptor)

    def reap(self, pidfd: int) -> None:
        """Send `exited` for the members of a process that has ended."""
        process = self.processes.pop(pidfd)
        os.close(pidfd)
        # Loader workers may be left. Until the wait below, no other process can get this PID.
        kill_all(process.pid)
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        end = {"code": code if code >= 0 else None, "signal": -code if code < 0 else None}
        for index, descriptor in process.channels.items():
            with contextlib.suppress(OSError), socket.socket(fileno=descriptor) as channel:
                # The member may have died in the middle of a line. A conductor that does not read
                # must not hold up the others.
                line = b"\n" + event_line("exited", index, **end)
                channel.send(line, socket.MSG_DONTWAIT)


def run_members(
    trainer: ModuleType, specs: list[MemberSpec], server: int, channels: list[int], log: int
) -> None:
    """Turn this forked process into that of the members; never returns.

    server: PID of the fork server. channels: a socket for each member. log: for stdout and stderr.
    """
    code = 1
    try:
        end_with_parent(server)
        os.setpgid(0, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        close_other_descriptors({0, 1, 2, *channels, *specs[0].lock_descriptors})
        for name, value in specs[0].environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None  # It has to be looked up again in the new environment.
        connections = []
        for spec, channel in zip(specs, channels, strict=True):
            connections.append(Channel(spec.index, channel, channel))
            connections[-1].emit("forked", pid=os.getpid())
        code = call_trainer(trainer, specs, connections)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # A full disk must not change the exit code.
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def close_other_descriptors(needed: set[int]) -> None:
    """Close what was inherited: a socket that is open here would never show its end of file."""
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor not in needed:
            with contextlib.suppress(OSError):  # The one of the listing itself is closed already.
                os.close(descriptor)


def call_trainer(trainer: ModuleType, specs: list[MemberSpec], channels: list[Channel]) -> int:
    """Run the members by the trainer module; returns the exit code.

    An exception becomes an `error` event, and code 1, or 3 if memory did not suffice.
    """
    try:
        if specs[0].on_stream:
            return int(trainer.together(specs, channels))
        return int(trainer.main(specs[0], channels[0]))
    except BaseException as error:
        return max(channel.failed(error) for channel in channels)


def peer(connection: socket.socket) -> tuple[int, int]:
    """PID and user of the process that connected, or that made the listening socket."""
    layout = struct.Struct("3i")  # pid, uid, gid
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    return layout.unpack(credentials)[:2]


def search_repository_last() -> None:
    """Move this repository to the end of the import path, here and in scripts.

    A user's project may have a package `models` too, which then wins.
    """
    repository = str(Path(__file__).parents[1])
    sys.path.sort(key=lambda path: path == repository)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    searched_first = [path for path in inherited if path and path != repository]
    os.environ["PYTHONPATH"] = os.pathsep.join([*searched_first, repository])


def load_trainer(name: str) -> ModuleType:
    """Import a trainer and all that its members need, so that they share it."""
    # Torch's plain availability check initialises CUDA, the one by NVML does not.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # Importing makes millions of objects and no garbage; collecting takes a third of the time.
    gc.disable()
    trainer = importlib.import_module(name)
    trainer.preload()
    search_repository_last()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        sys.exit(f"{name}: preload() initialised CUDA; no forked member could use it")
    gc.freeze()  # The collectors of members then leave the shared objects alone.
    gc.enable()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", default="models.train", metavar="MODULE")
    parser.add_argument("--listen", type=int, required=True, metavar="FD")
    arguments = parser.parse_args()
    listener = socket.socket(fileno=arguments.listen)
    os.set_inheritable(arguments.listen, False)
    end_with_parent(peer(listener)[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # A member that crashes leaves no core file.
    ForkServer(listener, load_trainer(arguments.trainer)).serve()


if __name__ == "__main__":
    main()
