"""Fork server: imports the trainer once, then forks one training process per request.

    python -m models.fork_server --trainer models.train --listen FD

FD is a listening AF_UNIX SOCK_SEQPACKET socket. Each process of this user that connects gets
members of its own; a packet is JSON.
Out: {"pid": n, "t": s}: the import is done, and was at s (seconds of the monotonic clock).
In:  [spec, ...], the members of one process, with a descriptor for each one's socket,
     one for its log, and one that the process and what it forks keep open for as long as they
     live, if there is any: the lock of the device.
What becomes of members is told on their sockets: see models/protocol.py.

The members of a connection are killed at its end, and all with the process that made the socket;
so are those that members started, in sessions of their own, too. The server never touches CUDA or
NVML: a CUDA context does not survive a fork.
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
from dataclasses import dataclass
from pathlib import Path
from select import select
from types import ModuleType

from models.protocol import Channel, to_line
from workflow.collocation.process_lifetime import end_with_parent, kill_all

MOST_FDS = 64  # more than members that one process may have


@dataclass(eq=False)
class Process:
    """A process that was forked for a conductor; `channels`: its members' sockets, by index."""

    pid: int
    conductor: socket.socket
    channels: dict[int, int]


class ForkServer:
    """Serves all conductors that connect to `listener`, which its owner has made."""

    def __init__(self, listener: socket.socket, trainer: ModuleType):
        self.listener, self.trainer = listener, trainer
        self.owner = os.pidfd_open(peer(listener)[0])  # readable once that has ended
        end_with_parent(os.getppid(), 0)  # from now on others have to end first
        self.conductors: set[socket.socket] = set()
        self.processes: dict[int, Process] = {}  # by pidfd, which is readable once it has ended

    def serve(self) -> None:
        hello = json.dumps({"pid": os.getpid(), "t": time.monotonic()}).encode()
        sources = [self.listener, self.owner]
        while True:
            readable, _, _ = select([*sources, *self.conductors, *self.processes], [], [])
            if self.owner in readable:
                for process in self.processes.values():
                    kill_all(process.pid)
                return
            for ended in self.processes.keys() & set(readable):
                self.reap(ended)
            for conductor in self.conductors & set(readable):
                self.answer(conductor)
            if self.listener in readable:
                self.welcome(hello)

    def welcome(self, hello: bytes) -> None:
        conductor, _ = self.listener.accept()
        if peer(conductor)[1] != os.getuid():
            conductor.close()
            return
        self.conductors.add(conductor)
        with contextlib.suppress(ConnectionError):
            conductor.send(hello)

    def answer(self, conductor: socket.socket) -> None:
        """Start members, or kill all, which the end of the connection asks for."""
        fds = []
        try:
            close = socket.MSG_CMSG_CLOEXEC
            data, fds, _, _ = socket.recv_fds(conductor, 1 << 18, MOST_FDS, close)
            if data:
                self.start(conductor, json.loads(data), *fds)
                return
        except ConnectionResetError:
            pass
        except (OSError, ValueError):  # of one cell, whose end it is: the others are served on
            traceback.print_exc()
            for fd in fds:
                os.close(fd)
        for process in self.processes.values():  # one that has just ended is in here no more
            if process.conductor is conductor:
                kill_all(process.pid)
        self.conductors.discard(conductor)
        conductor.close()

    def start(self, conductor: socket.socket, specs: list[dict], *fds: int) -> None:
        server, channels, (log, *kept) = os.getpid(), fds[: len(specs)], fds[len(specs) :]
        for spec in specs:  # a script keeps those open, too
            spec |= {"kept": kept, "forked_s": time.monotonic()}
        if (pid := os.fork()) == 0:
            run_members(self.trainer, specs, server, channels, log, *kept)
        with contextlib.suppress(OSError):  # the child does the same; whoever comes first
            os.setpgid(pid, pid)
        ended = os.pidfd_open(pid)
        indices = [spec["member"] for spec in specs]
        self.processes[ended] = Process(pid, conductor, dict(zip(indices, channels, strict=True)))
        for fd in (log, *kept):
            os.close(fd)

    def reap(self, pidfd: int) -> None:
        """Tell how members ended; a conductor that reads nothing must not hold up the others."""
        process = self.processes.pop(pidfd)
        os.close(pidfd)
        kill_all(process.pid)  # workers that it left; until the wait below the PID is no other's
        code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        how = {"code": code if code >= 0 else None, "signal": -code if code < 0 else None}
        for member, fd in process.channels.items():
            with contextlib.suppress(OSError), socket.socket(fileno=fd) as channel:
                line = b"\n" + to_line("exited", member, **how)  # it may have died in mid-line
                channel.send(line, socket.MSG_DONTWAIT)


def run_members(
    trainer: ModuleType, specs: list[dict], server: int, channels: list[int], log: int, *kept: int
) -> None:
    """Become the process of these members, and leave `kept` open; never returns."""
    code = 1
    try:
        end_with_parent(server)
        os.setpgid(0, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Held here, another's socket or the server's would never see its end of file.
        for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if fd > 2 and fd not in (*channels, *kept):
                with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                    os.close(fd)
        for name, value in specs[0].get("environment", {}).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None  # to be found anew
        pairs = zip(specs, channels, strict=True)
        told = [Channel(spec["member"], fd, fd) for spec, fd in pairs]
        for channel in told:
            channel.emit("forked", pid=os.getpid())
        code = call_trainer(trainer, specs, told)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # a full disk must not change the exit code
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def call_trainer(trainer: ModuleType, specs: list[dict], channels: list[Channel]) -> int:
    """The trainer's exit code; an exception becomes an `error` event and code 1, or 3 of memory."""
    try:
        if specs[0].get("process") is not None:
            return int(trainer.together(specs, channels))
        return int(trainer.main(specs[0], channels[0]))
    except BaseException as error:
        return max(channel.failed(error) for channel in channels)


def peer(connection: socket.socket) -> tuple[int, int]:
    """PID and user of who connected to us, or made the listening socket."""
    layout = struct.Struct("3i")  # pid, uid, gid
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    return layout.unpack(data)[:2]


def give_way() -> None:
    """From now on, ours are imported last, here and in scripts: a user may have a `models`, too."""
    ours = str(Path(__file__).parents[1])
    sys.path.sort(key=lambda path: path == ours)
    theirs = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != ours]
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, theirs), ours])


def load(name: str) -> ModuleType:
    """Import a trainer and all that its members need, to be shared with them."""
    # Torch's plain availability check initialises CUDA, the one by NVML does not.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    gc.disable()  # importing makes millions of objects and no garbage: a third of the time
    trainer = importlib.import_module(name)
    trainer.preload()
    give_way()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        sys.exit(f"{name}: preload() initialised CUDA; no forked member could use it")
    gc.freeze()  # what is imported stays shared between members, untouched by their collectors
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
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a member's memory is no result
    ForkServer(listener, load(arguments.trainer)).serve()


if __name__ == "__main__":
    main()
