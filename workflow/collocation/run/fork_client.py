"""The conductor's connection to a fork server: starts members, receives their events, ends them."""

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from workflow.collocation.member.spec import MemberSpec
from workflow.collocation.process_lifetime import MEMBERS, kill_all
from workflow.collocation.run.outcome import TrackedMember
from workflow.collocation.run.preloaded import running_fork_server
from workflow.collocation.study.variables import TEMPORARY_FOLDERS

CONNECT_S = 0.5  # for a shared server to accept the connection
SEND_S = 5.0  # for a server to take a request
# Where the server has died, a signal that ends this process may follow within so long.
RUN_ENDS_S = 0.2
END_S = 1.5  # for killed members to end


class ForkServerClient:
    """A connection to a fork server, and the members that it has started for this conductor.

    A context manager: leaving it ends all members. Entering does not wait until the server has
    imported the trainer; the first `start` does, and `import_s` says how long that took.

    log: file for the output of a server that is started here. address: "PID:NAME" of a server that
    is shared with other cells; where it does not answer, a new one is started. `origin` is
    "zygote" for a shared server and "own" for a new one. import_timeout_s: for the import. lock: a
    descriptor that members keep open. Use it from the main thread, because the kernel ties the
    life of the server to the thread that started it.
    """

    def __init__(
        self,
        log: Path,
        trainer: str = "models.train",
        address: str | None = None,
        import_timeout_s: float = 600.0,
        lock: int | None = None,
    ):
        self.members: dict[int, TrackedMember] = {}
        self.log = Path(log)
        self.pid: int | None = None  # Known once the import is done.
        self.dead = False
        self.origin, self.import_s = "own", 0.0
        self._trainer, self._address = trainer, address
        self._import_timeout_s = import_timeout_s
        self._inherited = () if lock is None else (lock,)
        self._partial_lines: dict[int, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._end = contextlib.ExitStack()

    def __enter__(self) -> "ForkServerClient":
        self._entered_s = time.monotonic()
        self._end.callback(self._abandon_members)
        self._end.callback(self._selector.close)
        if self._address:
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                self._connect(self._address)
                self.origin = "zygote"
        if self.origin == "own":
            self._start_server()
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def start(self, specs: Sequence[MemberSpec], log: Path) -> list[TrackedMember]:
        """Start the members of one process. Its output goes to the file `log`, which is replaced.

        Raises OSError when there is no log or socket to be had, RuntimeError without a fork server.
        """
        if self.dead:
            raise RuntimeError("the fork server is not running")
        if self.pid is None:
            self._await_import()
        inherited_variables = {name: os.environ.get(name) for name in TEMPORARY_FOLDERS}
        requests, descriptors, started = [], [], []
        with contextlib.ExitStack() as member_ends, Path(log).open("wb") as output:
            for spec in specs:
                spec = replace(spec, environment=inherited_variables | spec.environment)
                requests.append(spec.to_json())
                channel, member_end = socket.socketpair()
                descriptors.append(member_ends.enter_context(member_end).fileno())
                channel.setblocking(False)
                member = TrackedMember(spec.index, spec.workload, spec.batch_size, channel=channel)
                self.members[spec.index] = member
                started.append(member)
                read = partial(self._read_events, member)
                self._selector.register(channel, selectors.EVENT_READ, read)
            descriptors += [output.fileno(), *self._inherited]
            with contextlib.suppress(OSError):  # wait() reports the end of the server.
                socket.send_fds(self._socket, [json.dumps(requests).encode()], descriptors)
        return started

    def send(self, index: int, command: str) -> None:
        """Send a command (member/protocol.py) to a member, unless it has ended."""
        with contextlib.suppress(OSError):
            self.members[index].channel.send(command.encode() + b"\n")

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        """Signal a member and all that it started; its `exited` event follows, if it can end."""
        _kill_group(self.members[index], number)

    def wait(self, timeout: float | None) -> list[dict]:
        """Events of members (member/protocol.py) within `timeout` seconds; [] for none.

        Each event has already updated its member. `exited` is a member's last; it has neither code
        nor signal where the server died first. Once all have ended, returns [] at once.
        """
        events = []
        if self._selector.get_map():
            for key, _ in self._selector.select(timeout):
                if key.fileobj.fileno() >= 0:  # An earlier event may have closed it.
                    events += key.data()
        return events

    def close(self) -> None:
        """Kill all members, and abandon those that do not end. Safe to repeat."""
        with self._end:
            for member in self._running():
                self.kill(member.member)
            deadline = time.monotonic() + END_S
            while self._running() and not self.dead and time.monotonic() < deadline:
                self.wait(deadline - time.monotonic())
            self.dead = True

    # --- the fork server ---

    def _connect(self, address: str) -> None:
        pid, _, name = address.partition(":")
        self._process = psutil.Process(int(pid))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._end.callback(self._socket.close)
        self._socket.settimeout(CONNECT_S)
        self._socket.connect(f"\0{name}")

    def _start_server(self) -> None:
        self.origin = "own"
        self._connect(self._end.enter_context(running_fork_server(self._trainer, self.log)))

    def _await_import(self) -> None:
        """Wait for the server's first message. Raises RuntimeError with the last line of its log
        where none comes.
        """
        self._socket.settimeout(self._import_timeout_s)
        try:
            answer = json.loads(self._socket.recv(1 << 10))
        except (OSError, ValueError):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()  # No other cell should wait for it.
            if self.origin != "own":
                self._start_server()
                self._await_import()
                return
            self.dead = True
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().split("\n")
            raise RuntimeError(
                "the fork server ended, or did not answer: "
                f"process {self._process.pid}: {lines[-1][:500]}"
            ) from None
        self.pid, self.import_s = answer["pid"], max(answer["t"] - self._entered_s, 0.0)
        self._socket.settimeout(SEND_S)
        self._selector.register(self._socket, selectors.EVENT_READ, self._lose_server)

    def _lose_server(self) -> list[dict]:
        """Note that the server has ended: its socket, on which no more is sent, is readable."""
        self.dead = True
        self._selector.unregister(self._socket)
        events = []
        for member in self._running():
            _kill_group(member)
            events += self._read_events(member)
            if not member.gone:  # A process that it started still holds its socket.
                events.append(self._lose_member(member))
        return events

    # --- the members ---

    def _running(self) -> list[TrackedMember]:
        return [member for member in self.members.values() if not member.gone]

    def _read_events(self, member: TrackedMember) -> list[dict]:
        events = []
        while not member.gone:
            try:
                chunk = member.channel.recv(1 << 16)
            except BlockingIOError:
                break
            except ConnectionResetError:
                chunk = b""
            if not chunk:  # The end without `exited`: the server has died.
                time.sleep(RUN_ENDS_S)
                return [*events, self._lose_member(member)]
            buffered = self._partial_lines.get(member.member, b"") + chunk
            *lines, self._partial_lines[member.member] = buffered.split(b"\n")
            for line in lines:
                # A member on a stream sends `exited` itself; the one of its process follows.
                if member.gone:
                    break
                try:
                    event = json.loads(line)
                except ValueError:  # The member died in the middle of a line.
                    continue
                events.append(self._take_in(member, event))
        return events

    def _lose_member(self, member: TrackedMember) -> dict:
        """Note that a member ended without anybody who saw how."""
        event = {"event": "exited", "member": member.member, "t": time.monotonic_ns()}
        return self._take_in(member, event | {"code": None, "signal": None})

    def _take_in(self, member: TrackedMember, event: dict) -> dict:
        member.see(event)
        if event["event"] == "forked":
            with contextlib.suppress(psutil.NoSuchProcess):
                member.process = psutil.Process(event["pid"])
                MEMBERS.add(event["pid"])
        elif event["event"] == "exited":
            # Other members may still run in the same process.
            in_use = {other.pid for other in self._running()}
            if _has_known_end(member) and member.pid not in in_use:
                MEMBERS.discard(member.pid)
            self._selector.unregister(member.channel)
            member.channel.close()
        return event

    def _abandon_members(self) -> None:
        """Kill members whose end nobody saw: the server may be stopped, or a member frozen."""
        for member in self.members.values():
            if not _has_known_end(member):
                _kill_group(member)
                member.channel.close()


def _has_known_end(member: TrackedMember) -> bool:
    """Whether a server saw the member end; otherwise the server died, and the member may live."""
    return member.exit_code is not None or member.signal is not None


def _kill_group(member: TrackedMember, number: int = signal.SIGKILL) -> None:
    """Signal the member and all that it started, unless its PID belongs to another process now."""
    process = member.process
    if process is not None and (process.is_running() or not psutil.pid_exists(process.pid)):
        kill_all(process.pid, number)
