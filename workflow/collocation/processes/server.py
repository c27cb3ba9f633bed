"""The conductor's side of the members: their fork server, a socket each, one place to wait."""

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from workflow.collocation.processes import preloaded
from workflow.collocation.processes.environment import APART

ANSWER_S = 60.0  # for a server that was started for others, which may still be importing
IMPORT_S = 600.0  # for one of our own


@dataclass(eq=False)
class Member:
    """One training process as the conductor knows it; `code` and `signal` tell how it ended."""

    index: int
    log: Path
    channel: socket.socket = field(repr=False)
    pid: int | None = None
    exited: bool = False
    code: int | None = None
    signal: int | None = None
    rest: bytes = field(default=b"", repr=False)  # of a line, for the next read
    garbled: bool = False


class Server:
    """The members of a fork server; leaving the context leaves none of them behind.

    `name` is the socket of a server that was started for others too; where there is none, or it
    does not answer, we start our own: `origin` says which ("zygote" or "own"), `why_own` why not.
    `trainer` is the module that members run, `log` takes what a server of our own prints. Use it
    from the main thread: the kernel ties the server's life to the thread that started it. To enter
    does not wait for the import, the first `start` does: `import_s` seconds.
    """

    def __init__(self, log: Path, trainer: str = "models.train", name: str | None = None):
        self.members: dict[int, Member] = {}
        self.log = Path(log)
        self.pid: int | None = None  # not known before the import is done
        self.dead = False
        self.origin, self.why_own, self.import_s = "own", None, 0.0
        self._trainer, self._name = trainer, name
        self._selector = selectors.DefaultSelector()
        self._end = contextlib.ExitStack()

    def __enter__(self) -> "Server":
        self._asked = time.monotonic()
        self._end.callback(self._finish_orphans)
        self._end.callback(self._selector.close)
        if not self._name or not self._connect(self._name, "zygote"):
            self._start_own()
        return self

    def __exit__(self, kind, *_) -> None:
        self.close(grace=5.0 if kind is None else 0.0)

    def start(self, spec: dict, log: Path) -> Member:
        """Start the member that `spec` describes, its output going to `log` (a file, replaced).

        Raises OSError when there is no log or socket to be had, RuntimeError without a fork server.
        """
        if self.dead:
            raise RuntimeError("the fork server is not running")
        if self.pid is None:
            self._await_import()
        ours = {name: os.environ.get(name) for name in APART}
        spec = spec | {"environment": ours | spec.get("environment", {})}
        channel, theirs = socket.socketpair()
        with theirs, Path(log).open("wb") as output:
            channel.setblocking(False)
            member = self.members[spec["member"]] = Member(spec["member"], Path(log), channel)
            self._selector.register(channel, selectors.EVENT_READ, partial(self._read, member))
            self._ask({"start": spec}, (theirs.fileno(), output.fileno()))
        return member

    def send(self, index: int, command: str) -> None:
        """Send a command of models/protocol.py to a member, if it is still there to read it."""
        with contextlib.suppress(OSError):
            self.members[index].channel.send(command.encode() + b"\n")

    def send_all(self, command: str) -> None:
        for index in self.members:
            self.send(index, command)

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        """Signal a member and whatever it started; its `exited` event follows."""
        self._ask({"kill": index, "signal": int(number)})

    def wait(self, timeout: float | None) -> list[dict]:
        """The members' events as in models/protocol.py, within `timeout` seconds; [] for none.

        `exited` is a member's last, with neither code nor signal where the server died first, so
        that nobody knows. What is no event on a member's socket comes as its `error` event of class
        ProtocolError, phase None, once per member. After everyone's end: [] at once.
        """
        events = []
        if self._selector.get_map():
            for key, _ in self._selector.select(timeout):
                if key.fileobj.fileno() >= 0:  # an earlier one may have closed it
                    events += key.data()
        return events

    def close(self, grace: float = 5.0) -> None:
        """Stop all members, kill after `grace` seconds who is left. Safe to repeat.

        Raises subprocess.TimeoutExpired when the kernel does not let a server of our own go.
        """
        with self._end:
            self.send_all("stop")
            self._wait_for_exits(grace)
            for member in self._there():
                self.kill(member.index)
            self._wait_for_exits(preloaded.END_S)
            self.dead = True

    # --- the fork server ---

    def _connect(self, name: str, origin: str) -> bool:
        try:
            self._socket, self.origin = preloaded.connect(name), origin
        except OSError as error:
            self.why_own = str(error)
            return False
        self._end.callback(self._socket.close)
        return True

    def _start_own(self) -> None:
        name = self._end.enter_context(preloaded.hold(self._trainer, self.log))
        if not self._connect(name, "own"):
            raise RuntimeError(f"no fork server: {self.why_own}")

    def _await_import(self) -> None:
        if self.origin == "zygote" and (why := self._no_answer(ANSWER_S)):
            self._start_own()
            self.why_own = why
        if self.pid is None and (why := self._no_answer(IMPORT_S)):
            self.dead = True
            lines = self.log.read_text(errors="replace").split("\n")
            said = next((line.strip() for line in reversed(lines) if line.strip()), "")[:500]
            raise RuntimeError(f"the fork server {why}: {said}")
        self._socket.settimeout(preloaded.END_S)  # a server that takes nothing may not hold us up
        self._selector.register(self._socket, selectors.EVENT_READ, self._bury_server)

    def _no_answer(self, seconds: float) -> str | None:
        """Wait for its word that the import is done; why there is none, or None."""
        self._socket.settimeout(seconds)
        try:
            hello = self._socket.recv(1 << 10)
        except TimeoutError:
            return "does not answer"
        except ConnectionResetError:
            hello = b""
        if not hello:
            return "has ended"
        answer = json.loads(hello)
        self.pid, self.import_s = answer["pid"], max(answer["t"] - self._asked, 0.0)
        return None

    def _ask(self, request: dict, fds: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError):  # wait() is told of its end
            if not self.dead:
                socket.send_fds(self._socket, [json.dumps(request).encode()], fds)

    def _bury_server(self) -> list[dict]:
        """All that it ever says after its first word is its end."""
        self.dead = True
        self._selector.unregister(self._socket)
        events = []
        for member in self._there():
            _kill_group(member)
            events += self._read(member)
            if not member.exited:  # what it started holds its socket
                events += self._lose(member)
        return events

    def _lose(self, member: Member) -> list[dict]:
        end = {"event": "exited", "member": member.index, "t": time.monotonic_ns()}
        return self._see(member, end | {"code": None, "signal": None})

    # --- the members ---

    def _there(self) -> list[Member]:
        return [member for member in self.members.values() if not member.exited]

    def _wait_for_exits(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._there() and not self.dead and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())

    def _read(self, member: Member) -> list[dict]:
        events = []
        while not member.exited:
            try:
                data = member.channel.recv(1 << 16)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:  # without `exited`: the server has died
                return events + self._lose(member)
            *lines, member.rest = (member.rest + data).split(b"\n")
            for line in filter(None, lines):
                events += self._parse(member, line)
        return events

    def _parse(self, member: Member, line: bytes) -> list[dict]:
        try:
            event = json.loads(line)
            known = event["member"] == member.index and isinstance(event["event"], str)
            if known and isinstance(event["t"], int):
                return self._see(member, event)
        except (ValueError, RecursionError, TypeError, KeyError):
            pass
        return self._garbled(member, line)

    def _see(self, member: Member, event: dict) -> list[dict]:
        if event["event"] == "forked":
            member.pid = event["pid"]
            _forked.add(member.pid)
        elif event["event"] == "exited":
            member.exited, member.code, member.signal = True, event["code"], event["signal"]
            _forked.discard(member.pid)
            self._selector.unregister(member.channel)
            member.channel.close()
        return [event]

    def _garbled(self, member: Member, line: bytes) -> list[dict]:
        if member.garbled:
            return []
        member.garbled = True
        event = {"event": "error", "member": member.index, "t": time.monotonic_ns()}
        said = {"class": "ProtocolError", "message": f"a line is no event: {line[:80]!r}"}
        return [event | said | {"phase": None, "out_of_memory": False}]

    def _finish_orphans(self) -> None:
        """After a server that died early: see that members whose end nobody reports are gone."""
        for member in self.members.values():
            member.channel.close()
            if member.code is None and member.signal is None and member.pid is not None:
                _kill_group(member)
                with contextlib.suppress(ProcessLookupError):
                    pidfd = os.pidfd_open(member.pid)
                    ended, _, _ = select.select([pidfd], [], [], preloaded.END_S)
                    os.close(pidfd)
                    if not ended:
                        raise RuntimeError(f"process {member.pid} outlived SIGKILL")


_forked: set[int] = set()  # PIDs of our members; their parent need not be a child of ours


def offspring() -> list[psutil.Process]:
    """Every process that lives because of this one: its own, its members and theirs."""
    found = psutil.Process().children(recursive=True)
    for pid in _forked:
        with contextlib.suppress(psutil.NoSuchProcess):
            member = psutil.Process(pid)
            found += [member, *member.children(recursive=True)]
    return found


def _kill_group(member: Member) -> None:
    """SIGKILL the member and whatever else is in its process group."""
    if member.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(member.pid, signal.SIGKILL)
