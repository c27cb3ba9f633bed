"""Fork server: imports the trainer once, then forks one training process (member) per request.

    python -m models.serve --socket FD --trainer models.train

FD is one end of an AF_UNIX SOCK_SEQPACKET pair, a JSON object per packet.
In:  {"start": spec} with three descriptors (events write, commands read, log);
     {"kill": member, "signal": n};
     {"quit": true}, or end of file: members are killed and reaped, then the server ends.
Out: {"ready": true, "seconds": {"import": s}}; {"member": i, "pid": p};
     {"member": i, "exited": code or null, "signal": n or null}, with "error" if the fork failed.

The server dies with the conductor, members die with the server. It never touches CUDA or NVML:
a CUDA context does not survive a fork.
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
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from select import select

from models.protocol import Channel, die_with_parent

# Before torch is imported: its plain availability check initialises CUDA, the one by NVML does not.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

Main = Callable[[dict, Channel], int]


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


def peer_pid(connection: socket.socket) -> int:
    """The pid that made the socket pair: the conductor."""
    layout = struct.Struct("3i")  # pid, uid, gid
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    return layout.unpack(data)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", type=int, required=True, metavar="FD")
    parser.add_argument("--trainer", default="models.train", metavar="MODULE")
    arguments = parser.parse_args()
    connection = socket.socket(fileno=arguments.socket)
    os.set_inheritable(arguments.socket, False)
    die_with_parent(peer_pid(connection))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a member's memory is no result

    began = time.monotonic()
    gc.disable()  # importing makes millions of objects and no garbage: a third of the time
    trainer = importlib.import_module(arguments.trainer)
    trainer.preload()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        sys.exit(f"{arguments.trainer}: preload() initialised CUDA; no forked member could use it")
    gc.freeze()  # what is imported stays shared between members, untouched by their collectors
    gc.enable()
    server = ForkServer(connection, trainer.main)
    server.send(ready=True, seconds={"import": round(time.monotonic() - began, 3)})
    server.serve()


if __name__ == "__main__":
    main()
