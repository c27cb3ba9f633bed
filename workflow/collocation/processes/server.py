"""The conductor's side of the members: the fork server, two pipes per member, one place to wait."""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from workflow.collocation import ROOT
from workflow.collocation.processes import zygote

EVENTS = {"built", "warm", "started", "progress", "epoch", "done", "stopped", "traced", "error"}
LINE_LIMIT = 1 << 20  # bytes; a longer "line" is no event
QUIT_S = 15.0  # for the kernel to take down members that hold much GPU memory
ANSWER_S = 60.0  # for the zygote, which may still be importing

# Snakemake exports thread counts of its own; libgomp's binding would fight the members' core sets.
THREAD_PREFIXES = ("OMP_", "KMP_", "GOMP_", "MKL_")
THREAD_NAMES = {
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
}

Message = tuple[int | None, dict]  # member (None: the server) and event


def server_environment(threads: int) -> dict[str, str]:
    """Our environment with `threads` OpenMP and MKL threads and the repository importable.

    The user's own CUDA_MPS_* go: whether members are MPS clients is the method's business.
    OpenBLAS gets one thread: it starts its pool on import, and a pool does not survive the fork.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((*THREAD_PREFIXES, "CUDA_MPS_")) and name not in THREAD_NAMES
    }
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return kept | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",  # a killed member's last words reach its log
        "PYTHONFAULTHANDLER": "1",  # and the stack of one that crashes or gets SIGABRT
    }


@dataclass(eq=False)
class Member:
    """One training process as the conductor knows it; `code` and `signal` tell how it ended."""

    index: int
    log: Path
    events: int = field(repr=False)  # descriptors, -1 once closed
    commands: int = field(repr=False)
    pid: int | None = None
    exited: bool = False
    code: int | None = None
    signal: int | None = None
    buffer: bytearray = field(default_factory=bytearray, repr=False)
    garbled: bool = False


class Server:
    """The fork server and its members; leaving the context leaves no process behind.

    `trainer` is the module that members run, `log` takes what the server itself prints,
    `environment` is added to `server_environment(threads)`. Use it from the main thread: the kernel
    ties the server's life to the thread that started it. Nothing but wait() and close() waits, so
    that other set-up can go on while the server imports.

    With a `lender` the server is one that the zygote forks, or else, if that is not to be had, its
    own all the same: `origin` says which, "zygote" or "own".
    """

    def __init__(
        self,
        log: Path,
        trainer: str = "models.train",
        threads: int = 1,
        environment: dict[str, str] | None = None,
        lender: zygote.Zygote | None = None,
    ):
        self.members: dict[int, Member] = {}
        self.log = Path(log)
        self.dead = True
        self.pid: int | None = None  # not known before the zygote has answered
        self.origin = "own"
        self._trainer, self._lender = trainer, lender
        self._environment = server_environment(threads) | (environment or {})
        self._selector = selectors.DefaultSelector()
        self._socket: socket.socket | None = None
        self._news: list[Message] = []  # for the next wait()
        self._outbox: list[tuple[bytes, tuple[int, ...]]] = []
        self._process: subprocess.Popen | zygote.Lent | None = None  # None: yet to be answered
        self._answer_by = 0.0

    def __enter__(self) -> "Server":
        if self._lender is None:
            self._start_own()
        else:
            self._ask()
        self.dead = False
        return self

    def __exit__(self, kind, *_) -> None:
        self.close(grace=5.0 if kind is None else 0.0)

    def start(self, spec: dict, log: Path) -> Member:
        """Ask for the member that `spec` describes, its output going to `log` (a file, replaced).

        Raises OSError when there is no log or pipe to be had, ValueError for a member that exists,
        RuntimeError once the server's death has been told.
        """
        index = spec["member"]
        request = json.dumps({"start": spec}).encode()
        if index in self.members:
            raise ValueError(f"member {index} was started already")
        if self.dead:
            raise RuntimeError("the fork server is not running")
        with contextlib.ExitStack() as undo:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            log_fd = os.open(log, flags, 0o644)
            undo.callback(os.close, log_fd)
            events, their_events = os.pipe()
            undo.callback(os.close, events)
            undo.callback(os.close, their_events)
            their_commands, commands = os.pipe()
            undo.pop_all()
        os.set_blocking(events, False)
        os.set_blocking(commands, False)
        member = self.members[index] = Member(index, Path(log), events, commands)
        self._post(request, (their_events, their_commands, log_fd))
        return member

    def send(self, member: Member, command: str) -> bool:
        """Send "go", "stop" or "trace N"; False when the member is no longer there to read it."""
        if member.commands < 0:
            return False
        try:
            os.write(member.commands, command.encode() + b"\n")
        except (BrokenPipeError, BlockingIOError):
            return False
        return True

    def send_all(self, command: str) -> None:
        for member in self.members.values():
            self.send(member, command)

    def kill(self, member: Member, number: int = signal.SIGKILL) -> None:
        """Signal a member and whatever it started; its `exited` event follows."""
        self._post(json.dumps({"kill": member.index, "signal": int(number)}).encode())

    def wait(self, timeout: float | None) -> list[Message]:
        """Messages as (member or None, event) within `timeout` seconds; [] when there were none.

        Beside the members' own events, all with "t" (monotonic ns):
        (None, {"event": "own", "message"}): the zygote lent no server, and why;
        (None, {"event": "ready", "seconds"}), of which "import" are those that it was waited for;
        (i, {"event": "forked", "pid"}): a member's first;
        (i, {"event": "exited", "code", "signal"}): its last, both None when the server died
        first, so that nobody knows; (None, {"event": "server_died", "code", "signal", "message"}),
        both None of one that was lent,
        the message being the last line of its log. After everyone's end: [] at once.
        What is no event on a member's pipe comes as its `error` event of class ProtocolError,
        phase None, once per member.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._flush()
            if not self._selector.get_map():
                return []
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._process is None:
                patience = max(0.0, self._answer_by - time.monotonic())
                left = patience if left is None else min(left, patience)
            elif self._outbox:  # the socket takes few packets at a time (net.unix.max_dgram_qlen)
                left = 0.05 if left is None else min(left, 0.05)
            messages, self._news = self._news, []
            for key, _ in self._selector.select(0 if messages else left):
                if key.fileobj in self._selector.get_map():  # an earlier one may have closed it
                    messages += key.data()
            if self._process is None and time.monotonic() >= self._answer_by:
                messages += self._do_without("it does not answer")
            over = deadline is not None and time.monotonic() >= deadline
            if messages or over:
                return messages

    def close(self, grace: float = 5.0) -> None:
        """Stop all members, kill after `grace` seconds who is left, end the server. Safe to repeat.

        Raises subprocess.TimeoutExpired when the kernel does not let the server go.
        """
        if self._socket is None:
            return
        try:
            if self._process is None:
                return  # to be closed is what the zygote's answer then meets
            if not self.dead:
                self.send_all("stop")
                self._wait_until(self._all_exited, grace)
                for member in self.members.values():
                    if not member.exited:
                        self.kill(member)
                self._wait_until(self._all_exited, QUIT_S)
                self._post(b'{"quit": true}')
                self._wait_until(lambda: self.dead, QUIT_S)
            self._process.kill()  # if it still runs: PDEATHSIG then takes its members
            self._process.wait(QUIT_S)
            if not self.dead:
                self._read_server()
            self._finish_orphans()
        finally:
            for member in self.members.values():
                self._hang_up(member)
            for _, fds in self._outbox:
                for fd in fds:
                    os.close(fd)
            self._outbox.clear()
            self._selector.close()
            self._socket.close()
            self._socket = self._process = None
            self.dead = True
            _lent.discard(self.pid)

    # --- where it comes from ---

    def _start_own(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "models.serve", "--trainer", self._trainer]
                + ["--socket", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=self._environment,
                process_group=0,  # Ctrl-C is for the conductor alone
            )
        self.pid = self._process.pid
        self._selector.register(self._socket, selectors.EVENT_READ, self._read_server)

    def _ask(self) -> None:
        """Ask the zygote; its answer comes to wait()."""
        try:
            with self.log.open("wb") as log:
                environment = self._environment
                self._socket = self._lender.ask(self._trainer, environment, log.fileno())
        except OSError as error:
            self._news += self._do_without(str(error))
        else:
            self._answer_by = time.monotonic() + ANSWER_S
            self._selector.register(self._socket, selectors.EVENT_READ, self._read_answer)

    def _read_answer(self) -> list[Message]:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return []
        except ConnectionResetError:  # it left our request unread
            data, fds = b"", []
        answer = json.loads(data) if data else {"refused": "it has ended"}
        if "refused" in answer:
            return self._do_without(answer["refused"])
        self.origin, self.pid = "zygote", answer["lent"]
        self._process = zygote.Lent(self.pid, *fds)
        _lent.add(self.pid)
        self._selector.modify(self._socket, selectors.EVENT_READ, self._read_server)
        return []

    def _do_without(self, why: str) -> list[Message]:
        """Start a server after all; what was to be sent is then sent to it."""
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
        self._start_own()
        message = f"no server from the zygote: {why}"
        return [(None, {"event": "own", "t": time.monotonic_ns(), "message": message})]

    # --- to the server ---

    def _post(self, request: bytes, fds: tuple[int, ...] = ()) -> None:
        self._outbox.append((request, fds))
        self._flush()

    def _flush(self) -> None:
        while self._outbox and self._process is not None:
            data, fds = self._outbox[0]
            if not self.dead:
                try:
                    socket.send_fds(self._socket, [data], fds)
                except BlockingIOError:
                    return
                except (BrokenPipeError, ConnectionResetError):
                    pass  # it has died: the end of file on its socket says so to wait()
            self._outbox.pop(0)
            for fd in fds:
                os.close(fd)

    # --- from the server and the members ---

    def _read_server(self) -> list[Message]:
        messages = []
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return messages
            except ConnectionResetError:
                continue  # it left something unread; what it sent before is still to come
            if not data:
                return messages + self._bury_server()
            messages += self._translate(json.loads(data))

    def _translate(self, message: dict) -> list[Message]:
        now = time.monotonic_ns()
        if "ready" in message:
            return [(None, {"event": "ready", "t": now, "seconds": message["seconds"]})]
        member = self.members[message["member"]]
        if "pid" in message:
            member.pid = message["pid"]
            # Listened to from now on only, so that "forked" is a member's first event.
            read = partial(self._read_member, member)
            self._selector.register(member.events, selectors.EVENT_READ, read)
            return [(member.index, {"event": "forked", "t": now, "pid": member.pid})]
        failed = []
        if "error" in message:
            failed = [_error(member, "ForkFailed", message["error"], "build")]
        return failed + self._bury(member, message["exited"], message["signal"])

    def _bury(self, member: Member, code: int | None, number: int | None) -> list[Message]:
        """The member's remaining events, then its end."""
        messages = self._read_member(member)
        self._hang_up(member)
        member.exited, member.code, member.signal = True, code, number
        end = {"event": "exited", "t": time.monotonic_ns(), "code": code, "signal": number}
        return [*messages, (member.index, end)]

    def _bury_server(self) -> list[Message]:
        self.dead = True
        self._selector.unregister(self._socket)
        try:
            status = self._process.wait(QUIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait(QUIT_S)
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        known = status is not None
        end = {
            "event": "server_died",
            "t": time.monotonic_ns(),
            "code": status if known and status >= 0 else None,
            "signal": -status if known and status < 0 else None,
            "message": next((line.strip() for line in reversed(lines) if line.strip()), "")[:500],
        }
        messages: list[Message] = [(None, end)]
        alive = [member for member in self.members.values() if not member.exited]
        for member in alive:
            _kill_group(member)
            messages += self._bury(member, None, None)
        return messages

    def _read_member(self, member: Member) -> list[Message]:
        messages = []
        while member.events >= 0:
            try:
                data = os.read(member.events, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                if member.buffer and not member.exited:
                    messages += self._garbled(member, bytes(member.buffer), "ended in mid-line")
                self._close_events(member)
                break
            member.buffer += data
            *lines, rest = member.buffer.split(b"\n")
            for line in lines:
                messages += self._parse(member, bytes(line))
            if len(rest) > LINE_LIMIT:
                messages += self._garbled(member, bytes(rest[:80]), "is endless")
                rest = bytearray()
            member.buffer = rest
        return messages

    def _parse(self, member: Member, line: bytes) -> list[Message]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return self._garbled(member, line, "is no JSON")
        if not isinstance(event, dict) or event.get("event") not in EVENTS:
            return self._garbled(member, line, "is no known event")
        if event.get("member") != member.index or not isinstance(event.get("t"), int):
            return self._garbled(member, line, "lacks its member or time")
        return [(member.index, event)]

    def _garbled(self, member: Member, line: bytes, what: str) -> list[Message]:
        if member.garbled:
            return []
        member.garbled = True
        return [_error(member, "ProtocolError", f"line {what}: {line[:80]!r}", None)]

    # --- endings ---

    def _hang_up(self, member: Member) -> None:
        self._close_events(member)
        if member.commands >= 0:
            os.close(member.commands)
            member.commands = -1

    def _close_events(self, member: Member) -> None:
        if member.events >= 0:
            if member.events in self._selector.get_map():
                self._selector.unregister(member.events)
            os.close(member.events)
            member.events = -1

    def _all_exited(self) -> bool:
        return all(member.exited for member in self.members.values())

    def _wait_until(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done() and not self.dead and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())

    def _finish_orphans(self) -> None:
        """After a server that died early: see that members whose end nobody reports are gone."""
        deadline = time.monotonic() + QUIT_S
        for member in self.members.values():
            if member.code is None and member.signal is None and member.pid is not None:
                _kill_group(member)
                while _is_alive(member.pid) and time.monotonic() < deadline:
                    time.sleep(0.01)


_lent: set[int] = set()  # PIDs of the zygote's fork servers that are ours for now


def offspring() -> list[psutil.Process]:
    """Every process that lives because of this one: its own, and those of a server it was lent."""
    found = psutil.Process().children(recursive=True)
    for pid in _lent:
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(pid)
            found += [server, *server.children(recursive=True)]
    return found


def _kill_group(member: Member) -> None:
    """SIGKILL the member and whatever else is in its process group."""
    if member.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(member.pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # PID 1 may reap late or never
    except psutil.NoSuchProcess:
        return False


def _error(member: Member, name: str, message: str, phase: str | None) -> Message:
    return member.index, {
        "event": "error",
        "member": member.index,
        "t": time.monotonic_ns(),
        "class": name,
        "message": message,
        "phase": phase,
        "out_of_memory": False,
    }
