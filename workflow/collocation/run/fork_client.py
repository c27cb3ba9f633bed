"""The conductor's side of the members: their fork server, a socket each, one place to wait."""

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil

from workflow.collocation.process_lifetime import MEMBERS, kill_all
from workflow.collocation.run.outcome import TrackedMember
from workflow.collocation.run.preloaded import hold
from workflow.collocation.study.variables import TEMPORARY_FOLDERS

CONNECT_S = 0.5  # for a server to have us wait for its import
SEND_S = 5.0  # for a server to take a request
RUN_ENDS_S = 0.2  # where the server died, our own end by a signal may follow within that
END_S = 1.5  # for what was killed to end


class Server:
    """The members of a fork server.

    Leaving the context ends all members. To enter does not wait for the import, the first `start`
    does; it took `import_s`.

    log: takes what a server of our own prints. name: of a server that serves other cells too; where
    it does not answer, we start our own: `origin` says which ("zygote" or "own"). patience: seconds
    for the import. lock: a descriptor that members keep open. Use it from the main thread: the
    kernel ties the server's life to the thread that started it.
    """

    def __init__(
        self,
        log: Path,
        trainer: str = "models.train",
        name: str | None = None,
        patience: float = 600.0,
        lock: int | None = None,
    ):
        self.members: dict[int, TrackedMember] = {}
        self.log = Path(log)
        self.pid: int | None = None  # not known before the import is done
        self.dead = False
        self.origin, self.import_s = "own", 0.0
        self._trainer, self._name, self._patience = trainer, name, patience
        self._kept = () if lock is None else (lock,)
        self._selector = selectors.DefaultSelector()
        self._end = contextlib.ExitStack()

    def __enter__(self) -> "Server":
        self._asked = time.monotonic()
        self._end.callback(self._look_back)
        self._end.callback(self._selector.close)
        if self._name:
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                self._connect(self._name)
                self.origin = "zygote"
        if self.origin == "own":
            self._start_own()
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def start(self, specs: Sequence[dict], log: Path) -> list[TrackedMember]:
        """Start the members of one process, its output going to `log` (a file, replaced).

        Raises OSError when there is no log or socket to be had, RuntimeError without a fork server.
        """
        if self.dead:
            raise RuntimeError("the fork server is not running")
        if self.pid is None:
            self._await_import()
        ours = {name: os.environ.get(name) for name in TEMPORARY_FOLDERS}
        specs = [spec | {"environment": ours | spec.get("environment", {})} for spec in specs]
        with contextlib.ExitStack() as handed, Path(log).open("wb") as output:
            fds, started = [], []
            for spec in specs:
                channel, theirs = socket.socketpair()
                fds.append(handed.enter_context(theirs).fileno())
                channel.setblocking(False)
                about = spec.get("workload", ""), spec.get("batch_size", 0)
                member = TrackedMember(spec["member"], *about, channel=channel)
                self.members[member.member] = member
                started.append(member)
                self._selector.register(channel, selectors.EVENT_READ, partial(self._read, member))
            fds += [output.fileno(), *self._kept]
            with contextlib.suppress(OSError):  # wait() is told of its end
                socket.send_fds(self._socket, [json.dumps(specs).encode()], fds)
        return started

    def send(self, index: int, command: str) -> None:
        """Send a command of models/protocol.py to a member, if it is still there to read it."""
        with contextlib.suppress(OSError):
            self.members[index].channel.send(command.encode() + b"\n")

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        """Signal a member and whatever it started; its `exited` event follows, if it can end."""
        _kill_group(self.members[index], number)

    def wait(self, timeout: float | None) -> list[dict]:
        """The members' events as in models/protocol.py, within `timeout` seconds, once each member
        has seen its own; [] for none.

        `exited` is a member's last, with neither code nor signal where the server died first. After
        everyone's end: [] at once.
        """
        events = []
        if self._selector.get_map():
            for key, _ in self._selector.select(timeout):
                if key.fileobj.fileno() >= 0:  # an earlier one may have closed it
                    events += key.data()
        return events

    def close(self) -> None:
        """Kill all members, and leave behind whom that does not end. Safe to repeat."""
        with self._end:
            for member in self._there():
                self.kill(member.member)
            deadline = time.monotonic() + END_S
            while self._there() and not self.dead and time.monotonic() < deadline:
                self.wait(deadline - time.monotonic())
            self.dead = True

    # --- the fork server ---

    def _connect(self, name: str) -> None:
        pid, _, name = name.partition(":")
        self._process = psutil.Process(int(pid))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._end.callback(self._socket.close)
        self._socket.settimeout(CONNECT_S)
        self._socket.connect(f"\0{name}")

    def _start_own(self) -> None:
        self.origin = "own"
        self._connect(self._end.enter_context(hold(self._trainer, self.log)))

    def _await_import(self) -> None:
        """Raises RuntimeError, with the last line of its log, where there is no server."""
        self._socket.settimeout(self._patience)
        try:
            answer = json.loads(self._socket.recv(1 << 10))
        except (OSError, ValueError):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()  # so that no other cell waits for it
            if self.origin == "own":
                self.dead = True
                last = self.log.read_text(encoding="utf-8", errors="replace").strip()
                why = f"process {self._process.pid}: {last.rpartition(chr(10))[2][:500]}"
                raise RuntimeError(f"the fork server ended, or did not answer: {why}") from None
            self._start_own()
            self._await_import()
            return
        self.pid, self.import_s = answer["pid"], max(answer["t"] - self._asked, 0.0)
        self._socket.settimeout(SEND_S)
        self._selector.register(self._socket, selectors.EVENT_READ, self._bury_server)

    def _bury_server(self) -> list[dict]:
        """All that it ever says after its first word is its end."""
        self.dead = True
        self._selector.unregister(self._socket)
        events = []
        for member in self._there():
            _kill_group(member)
            events += self._read(member)
            if not member.gone:  # what it started holds its socket
                events += self._lose(member)
        return events

    # --- the members ---

    def _there(self) -> list[TrackedMember]:
        return [member for member in self.members.values() if not member.gone]

    def _read(self, member: TrackedMember) -> list[dict]:
        events = []
        while not member.gone:
            try:
                data = member.channel.recv(1 << 16)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:  # without `exited`: the server has died
                time.sleep(RUN_ENDS_S)
                return events + self._lose(member)
            *lines, member.partial_line = (member.partial_line + data).split(b"\n")
            for line in lines:
                if member.gone:  # one on a stream says so itself; that of its process follows
                    break
                try:
                    event = json.loads(line)
                except ValueError:  # the member died in mid-line
                    continue
                events.append(self._see(member, event))
        return events

    def _lose(self, member: TrackedMember) -> list[dict]:
        end = {"event": "exited", "member": member.member, "t": time.monotonic_ns()}
        return [self._see(member, end | {"code": None, "signal": None})]

    def _see(self, member: TrackedMember, event: dict) -> dict:
        member.see(event)
        if event["event"] == "forked":
            with contextlib.suppress(psutil.NoSuchProcess):
                member.process = psutil.Process(event["pid"])
                MEMBERS.add(event["pid"])
        elif event["event"] == "exited":
            if _seen_to_end(member):  # its process may have others
                MEMBERS.difference_update({member.pid} - {other.pid for other in self._there()})
            self._selector.unregister(member.channel)
            member.channel.close()
        return event

    def _look_back(self) -> None:
        for member in self.members.values():  # the server may be stopped, or a member be frozen
            if not _seen_to_end(member):
                _kill_group(member)
                member.channel.close()


def _seen_to_end(member: TrackedMember) -> bool:
    """Whether a server saw the member end; else that has died, and the member may live on."""
    return member.exit_code is not None or member.signal is not None


def _kill_group(member: TrackedMember, number: int = signal.SIGKILL) -> None:
    """Signal the member and whatever it started, unless the PID is another's."""
    process = member.process
    if process is not None and (process.is_running() or not psutil.pid_exists(process.pid)):
        kill_all(process.pid, number)
