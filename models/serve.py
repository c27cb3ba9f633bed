"""Fork server: imports the trainer once, then forks one training process (member) per request.

    python -m models.serve --trainer models.train --socket FD
    python -m models.serve --trainer models.train --listen FD --stamp TEXT

FD is one end of an AF_UNIX SOCK_SEQPACKET pair, a JSON object per packet.
In:  {"start": spec} with three descriptors (events write, commands read, log);
     {"kill": member, "signal": n};
     {"quit": true}, or end of file: members are killed and reaped, then the server ends.
Out: {"ready": true, "seconds": {"import": s}}; {"member": i, "pid": p};
     {"member": i, "exited": code or null, "signal": n or null}, with "error" if the fork failed.

With --listen it is a zygote: FD is a listening socket, and each connection gets a fork server of
its own, forked instead of started, once it has asked
In:  {"trainer", "stamp", "executable", "environment", "directory", "t"} with a descriptor (log);
Out: {"lent": pid} with a pidfd of the fork server, or {"refused": why} where that server would not
     be what a new one were.

The server dies with the conductor, members die with the server; a forked one also dies with the
zygote, which dies with who made its socket. None of them ever touches CUDA or NVML: a CUDA context
does not survive a fork.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from select import select
from types import ModuleType

from models.protocol import Channel, die_with_parent

Main = Callable[[dict, Channel], int]

# What may differ between the environments of a zygote and of who asks it, and be adopted later:
# a member sets its number of threads itself, and what is imported looks at none of the others.
ADOPTED = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "SHLVL", "PWD", "OLDPWD", "_"}
ADOPTED |= {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}  # Snakemake sets them for its jobs
ADOPTED |= {"PS1"}  # activate exports it, and the shell of Snakemake's jobs drops it
OURS = "COLLOCATION_"
NAMESPACES = ("cgroup", "mnt", "net", "pid", "user")
LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_CORE"]


class ForkServer:
    """Serves one conductor over `connection` until it says quit or goes away."""

    def __init__(self, connection: socket.socket, main: Main):
        self.connection = connection
        self.main = main
        self.members: dict[int, int] = {}  # pid -> member
        self.woken, wake = socket.socketpair()
        self.woken.setblocking(False)
        wake.setblocking(False)
        self.wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler no wake-up byte
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        try:
            while True:
                readable, _, _ = select([self.connection, self.woken], [], [])
                if self.woken in readable:
                    self.woken.recv(4096)
                    self.reap()
                if self.connection in readable and not self.answer():
                    return
        except (BrokenPipeError, ConnectionResetError):
            return  # the conductor went away while it was being answered
        finally:
            for pid in self.members:
                kill_group(pid, signal.SIGKILL)
            for pid in self.members:
                os.waitpid(pid, 0)

    def send(self, **message) -> None:
        self.connection.send(json.dumps(message).encode())

    def answer(self) -> bool:
        """Carry out one request; False when the conductor wants no more."""
        data, fds, _, _ = socket.recv_fds(self.connection, 1 << 18, 3, socket.MSG_CMSG_CLOEXEC)
        request = json.loads(data) if data else {"quit": True}
        if "start" in request:
            self.start(request["start"], fds)
        elif "kill" in request:
            for pid, member in self.members.items():  # one that has just exited is in here no more
                if member == request["kill"]:
                    kill_group(pid, request["signal"])
        return "quit" not in request

    def start(self, spec: dict, fds: list[int]) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # no process or memory left: the member's failure, not ours
            self.send(member=spec["member"], exited=None, signal=None, error=str(error))
            return
        finally:
            if os.getpid() == server:
                for fd in fds:
                    os.close(fd)
        if pid == 0:
            run_member(self.main, spec, server, *fds)
        with contextlib.suppress(OSError):  # the child does the same; whoever comes first
            os.setpgid(pid, pid)
        self.members[pid] = spec["member"]
        self.send(member=spec["member"], pid=pid)

    def reap(self) -> None:
        for pid in list(self.members):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            # Loader workers that it left. Until the wait below nobody else can have this pid.
            kill_group(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self.send(
                member=self.members.pop(pid),
                exited=code if code >= 0 else None,
                signal=-code if code < 0 else None,
            )


def kill_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def run_member(main: Main, spec: dict, server: int, events: int, commands: int, log: int) -> None:
    """Become the member that `spec` describes; never returns."""
    code = 1
    try:
        die_with_parent(server)
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        # Held here, another's pipe end or the server's socket would never see its end of file.
        for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if fd > 2 and fd not in (events, commands):
                with contextlib.suppress(OSError):  # the listing's own descriptor is closed already
                    os.close(fd)
        for name, value in spec.get("environment", {}).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        code = call_trainer(main, spec, Channel(spec["member"], events, commands))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # a full disk must not change the exit code
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def call_trainer(main: Main, spec: dict, channel: Channel) -> int:
    """The trainer's exit code; an exception becomes an `error` event and code 1 or 3."""
    try:
        return int(main(spec, channel))
    except BaseException as error:
        with contextlib.suppress(BrokenPipeError):  # no conductor: the log still gets it
            channel.emit(
                "error",
                **{"class": type(error).__name__},
                message=" ".join(str(error).split())[:500],
                phase=getattr(error, "phase", "build"),
                out_of_memory=isinstance(error, MemoryError),
            )
        with contextlib.suppress(OSError):  # nor may a full disk hide what happened
            traceback.print_exc()
        return 3 if isinstance(error, MemoryError) else 1


@dataclass(frozen=True)
class Zygote:
    """What was imported, from which code (`stamp`) and under which environment, and when (`t`)."""

    main: Main
    trainer: str
    stamp: str
    environment: dict[str, str]
    t: float  # seconds of the monotonic clock at the end of the import

    def listen(self, listener: socket.socket) -> None:
        """Lend a fork server to each process of this user that connects; never returns."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
        zygote = os.getpid()
        while True:
            connection, _ = listener.accept()
            with connection:  # here it would hide the conductor's or the server's end
                pid, uid = peer(connection)
                if uid != os.getuid():
                    continue
                try:
                    forked = os.fork()
                except OSError:  # no process or memory left: the end of file says no
                    continue
                if forked == 0:
                    self.lend(listener, connection, zygote, pid)

    def lend(
        self, listener: socket.socket, connection: socket.socket, zygote: int, conductor: int
    ) -> None:
        """Become the fork server of `conductor`; never returns."""
        code = 1
        try:
            die_with_parent(zygote)
            os.setpgid(0, 0)  # Ctrl-C is for the conductor alone
            listener.close()
            data, fds, _, _ = socket.recv_fds(connection, 1 << 18, 1, socket.MSG_CMSG_CLOEXEC)
            request = json.loads(data)
            if why := self.differs(request, conductor):
                connection.send(json.dumps({"refused": why}).encode())
            else:
                self.adopt(request, *fds)
                lent = json.dumps({"lent": os.getpid()}).encode()
                socket.send_fds(connection, [lent], [os.pidfd_open(os.getpid())])
                run(ForkServer(connection, self.main), max(self.t - request["t"], 0.0))
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0  # who asked has gone away
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def differs(self, request: dict, conductor: int) -> str | None:
        """Why a fork server that `conductor` started itself would be another one, or None."""
        theirs, environment = place(conductor), request["environment"]
        ours = place(os.getpid())
        for name in ("trainer", "stamp"):
            ours[name], theirs[name] = getattr(self, name), request[name]
        ours["executable"], theirs["executable"] = sys.executable, request["executable"]
        names = [name for name in ours if ours[name] != theirs[name]]
        for name in sorted(self.environment.keys() | environment.keys()):
            free = name.startswith(OURS) or name in ADOPTED
            if not free and self.environment.get(name) != environment.get(name):
                names.append(name)
        return f"imported with another {', '.join(names)}" if names else None

    def adopt(self, request: dict, log: int) -> None:
        """Log, directory and environment as of a server that the conductor started itself."""
        for target in (1, 2):
            os.dup2(log, target)
        os.close(log)
        os.chdir(request["directory"])
        environment = request["environment"]
        for name in self.environment.keys() - environment.keys():
            os.environ.pop(name, None)
        for name, value in environment.items():
            if self.environment.get(name) != value:  # what imported code has set, stays
                os.environ[name] = value
        tempfile.tempdir = None  # to be found anew


def place(pid: int) -> dict:
    """What a process has from where it runs and its children inherit, by name. Raises OSError."""
    proc = Path(f"/proc/{pid}")
    found = {f"{name} namespace": str((proc / "ns" / name).readlink()) for name in NAMESPACES}
    found["cgroup"] = (proc / "cgroup").read_text()
    found["CPU affinity"] = os.sched_getaffinity(pid)
    return found | {name: resource.prlimit(pid, getattr(resource, name)) for name in LIMITS}


def peer(connection: socket.socket) -> tuple[int, int]:
    """PID and user of who made the socket pair, connected to us, or made the listening socket."""
    layout = struct.Struct("3i")  # pid, uid, gid
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    return layout.unpack(data)[:2]


def load(name: str) -> ModuleType:
    """Import a trainer and all that its members need, to be shared with them."""
    # Torch's plain availability check initialises CUDA, the one by NVML does not.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    gc.disable()  # importing makes millions of objects and no garbage: a third of the time
    trainer = importlib.import_module(name)
    trainer.preload()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        sys.exit(f"{name}: preload() initialised CUDA; no forked member could use it")
    gc.freeze()  # what is imported stays shared between members, untouched by their collectors
    gc.enable()
    return trainer


def run(server: ForkServer, waited: float) -> None:
    """Serve, after a word of the seconds that the conductor had to wait for the import."""
    server.send(ready=True, seconds={"import": round(waited, 3)})
    server.serve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", default="models.train", metavar="MODULE")
    parser.add_argument("--stamp", default="", metavar="TEXT", help="names the code, for --listen")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--socket", type=int, metavar="FD")
    which.add_argument("--listen", type=int, metavar="FD")
    arguments = parser.parse_args()
    fd = arguments.listen if arguments.socket is None else arguments.socket
    ours = socket.socket(fileno=fd)
    os.set_inheritable(fd, False)
    die_with_parent(peer(ours)[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a member's memory is no result

    began, environment = time.monotonic(), dict(os.environ)
    trainer = load(arguments.trainer)
    now = time.monotonic()
    if arguments.listen is None:
        run(ForkServer(ours, trainer.main), now - began)
    else:
        stamp = arguments.stamp
        Zygote(trainer.main, arguments.trainer, stamp, environment, now).listen(ours)


if __name__ == "__main__":
    main()
