"""The conductor's side of the members: their fork server, a socket each, one place to wait."""

import contextlib
import json
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from workflow.collocation.process_lifetime import MEMBERS, lives
from workflow.collocation.run import preloaded
from workflow.collocation.run.environment import APART

SEND_S = 5.0  # for a server to take a request
RUN_ENDS_S = 0.2  # where the server died, our own end by a signal may follow within that
END_S = 1.5  # for what was killed to end


@dataclass(eq=False)
class Member:
    """One training process as the conductor knows it; `code` and `signal` tell how it ended."""

    index: int
    log: Path
    channel: socket.socket = field(repr=False)
    process: psutil.Process | None = None
    exited: bool = False
    code: int | None = None
    signal: int | None = None
    rest: bytes = field(default=b"", repr=False)  # of a line, for the next read

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid


class Server:
    """The members of a fork server.

    Leaving the context ends all members. Those that outlive SIGKILL are left behind, their PIDs in
    `left`. To enter does not wait for the import, the first `start` does; it took `import_s`.

    log: takes what a server of our own prints. trainer: the module that members run. name: of a
    server that serves other cells too; where there is none, or it does not answer, we start our
    own: `origin` says which ("zygote" or "own"), `why_own` why not. patience: seconds for the
    import. lock: a descriptor that members keep open. Use it from the main thread: the kernel ties
    the server's life to the thread that started it.
    """

    def __init__(
        self,
        log: Path,
        trainer: str = "models.train",
        name: str | None = None,
        patience: float = 600.0,
        lock: int | None = None,
    ):
        self.members: dict[int, Member] = {}
        self.log = Path(log)
        self.pid: int | None = None  # not known before the import is done
        self.dead = False
        self.left: list[int] = []
        self.origin, self.why_own, self.import_s = "own", None, 0.0
        self._trainer, self._name, self._patience = trainer, name, patience
        self._kept = () if lock is None else (lock,)
        self._selector = selectors.DefaultSelector()
        self._end = contextlib.ExitStack()

    def __enter__(self) -> "Server":
        self._asked = time.monotonic()
        self._end.callback(self._look_back)
        self._end.callback(self._selector.close)
        if self._name:
            try:
                self._connect(self._name, "zygote")
                return self
            except OSError as error:
                self.why_own = str(error)
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
            self._ask({"start": spec}, (theirs.fileno(), output.fileno(), *self._kept))
        return member

    def send(self, index: int, command: str) -> None:
        """Send a command of models/protocol.py to a member, if it is still there to read it."""
        with contextlib.suppress(OSError):
            self.members[index].channel.send(command.encode() + b"\n")

    def send_all(self, command: str) -> None:
        for index in self.members:
            self.send(index, command)

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        """Signal a member and whatever it started; its `exited` event follows, if it can end."""
        member = self.members[index]
        if member.process is None:
            self._ask({"kill": index, "signal": int(number)})
        _kill_group(member, number)

    def wait(self, timeout: float | None) -> list[dict]:
        """The members' events as in models/protocol.py, within `timeout` seconds; [] for none.

        `exited` is a member's last, with neither code nor signal where the server died first. A
        line that is no event becomes an `error` event. After everyone's end: [] at once.
        """
        events = []
        if self._selector.get_map():
            for key, _ in self._selector.select(timeout):
                if key.fileobj.fileno() >= 0:  # an earlier one may have closed it
                    events += key.data()
        return events

    def abandon(self) -> list[dict]:
        """The last events of members that do not end; `stuck`, the PID, if that is their fault."""
        events = []
        for member in self._there():
            stuck = member.process is not None and lives(member.process)
            events += self._lose(member, {"stuck": member.pid} if stuck else {})
        return events

    def close(self, grace: float = 5.0) -> None:
        """Stop all members, kill after `grace` seconds who is left, and leave behind whom that does
        not end. Safe to repeat.
        """
        with self._end:
            self.send_all("stop")
            self._wait_for_exits(grace)
            for member in self._there():
                self.kill(member.index)
            self._wait_for_exits(END_S)
            self.dead = True

    # --- the fork server ---

    def _connect(self, name: str, origin: str) -> None:
        (self._socket, self._process), self.origin = preloaded.connect(name), origin
        self._end.callback(self._socket.close)

    def _start_own(self) -> None:
        self._connect(self._end.enter_context(preloaded.hold(self._trainer, self.log)), "own")

    def _await_import(self) -> None:
        """Raises RuntimeError, with the last line of its log, where there is no server."""
        why = self._no_answer()
        if why and self.origin == "zygote":
            self._start_own()
            self.why_own = why
            why = self._no_answer()
        if why:
            self.dead = True
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            said = next((line.strip() for line in reversed(lines) if line.strip()), "")[:500]
            raise RuntimeError(": ".join(filter(None, (f"the fork server {why}", said))))
        self._socket.settimeout(SEND_S)
        self._selector.register(self._socket, selectors.EVENT_READ, self._bury_server)

    def _no_answer(self) -> str | None:
        """Wait for its word that the import is done; why there is none, or None.

        One that does not answer is killed, so that no other cell waits for it.
        """
        self._socket.settimeout(self._patience)
        try:
            hello = self._socket.recv(1 << 10)
        except TimeoutError:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()
            return f"(process {self._process.pid}) does not answer, and was killed"
        except ConnectionResetError:
            hello = b""
        if not hello:
            return "has ended"
        answer = json.loads(hello)
        self.pid, self.import_s = answer["pid"], max(answer["t"] - self._asked, 0.0)
        return None

    def _ask(self, request: dict, fds: tuple[int, ...] = ()) -> None:
        if not self.dead:
            with contextlib.suppress(OSError):  # wait() is told of its end
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

    def _lose(self, member: Member, more: dict | None = None) -> list[dict]:
        end = {"event": "exited", "member": member.index, "t": time.monotonic_ns()}
        return self._see(member, end | {"code": None, "signal": None} | (more or {}))

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
                time.sleep(RUN_ENDS_S)
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
        event = {"event": "error", "member": member.index, "t": time.monotonic_ns()}
        said = {"class": "ProtocolError", "message": f"a line is no event: {line[:80]!r}"}
        return [event | said | {"phase": None, "out_of_memory": False}]

    def _see(self, member: Member, event: dict) -> list[dict]:
        if event["event"] == "forked":
            with contextlib.suppress(psutil.NoSuchProcess):
                member.process = psutil.Process(event["pid"])
            MEMBERS.add(event["pid"])
        elif event["event"] == "exited":
            member.exited, member.code, member.signal = True, event["code"], event["signal"]
            MEMBERS.discard(member.pid)
            self._selector.unregister(member.channel)
            member.channel.close()
        return [event]

    def _look_back(self) -> None:
        """When all should have ended: see to it, and who has not."""
        for member in self.members.values():
            member.channel.close()
            if member.code is None and member.signal is None:  # nobody has reported its end
                _kill_group(member)
        groups = {member.pid for member in self.members.values()} - {None}
        own = [self._process] if self.origin == "own" else []
        until = time.monotonic() + END_S / 4
        while True:
            self.left = [server.pid for server in own if lives(server)] + _of_groups(groups)
            if not self.left or time.monotonic() > until:
                return
            time.sleep(0.02)


def _kill_group(member: Member, number: int = signal.SIGKILL) -> None:
    """Signal the member and whatever else is in its process group, unless the PID is another's."""
    pid, process = member.pid, member.process
    if process is not None and (process.is_running() or not psutil.pid_exists(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)


def _of_groups(groups: set[int]) -> list[int]:
    """PIDs of those who live in these process groups."""
    found = []
    for pid in psutil.pids() if groups else ():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(pid) in groups and lives(psutil.Process(pid)):
                found.append(pid)
    return found
