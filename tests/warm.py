"""Commands run as `python -m` runs them, but forked from a process that has imported what they
need: the imports of some hundred commands take minutes.

`python -m tests.warm` reads a JSON object a line: {"argv": [module, arguments...], "cwd": folder,
"env": its environment, "out": file, "err": file, "ended": file for its exit code, "data": bytes
that its address space may grow to, or null}, and answers with the PID of a process in a session of
its own.

What differs from a start of its own: /proc shows the command line and environment of this process,
and what is imported was imported before the command's environment was there.
"""

import atexit
import contextlib
import importlib
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
# They import; none computes, for threads would not outlive a fork.
MODULES = [f"release.{name}" for name in ("verify", "merge", "bundle")]
MODULES += [
    "analysis.report.compare",
    "scipy.stats",
    "analysis.estimates.records.merge",
    "analysis.estimates.build",
]
MODULES += ["analysis.report.pages.render", "analysis.report.figures"]
MODULES += ["snakemake.cli", "workflow.collocation.plan.jobs"]
MODULES += [
    "collocate.app",
    "workflow.collocation.plan.show",
    "workflow.collocation.run.cell",
    "tests.fakes.driver",
]
ASKING = threading.Lock()


@dataclass
class Command:
    """One that runs, or has ended: what is needed of subprocess.Popen."""

    pid: int
    ended: Path

    def poll(self) -> int | None:
        """Its exit code, as Popen has it."""
        return int(self.ended.read_text()) if self.ended.exists() else None

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked command", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _server() -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "tests.warm"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, cwd=REPOSITORY, env=environment, text=True, **pipes)
    atexit.register(server.wait, 10)
    atexit.register(server.stdin.close)  # the first to be called
    return server


def start(
    argv: list[str], cwd: Path, out: Path, err: Path, env: dict, data: int | None = None
) -> Command:
    """`python -m` with these arguments; what it says is added to the files."""
    ended = out.with_name(f"{out.name}.ended")
    asked = {"argv": argv, "cwd": str(cwd), "env": dict(env), "data": data}
    asked |= {"out": str(out), "err": str(err), "ended": str(ended)}
    with ASKING:
        server = _server()
        print(json.dumps(asked), file=server.stdin, flush=True)
        return Command(int(server.stdout.readline()), ended)


def run(
    *arguments: object, cwd: Path = REPOSITORY, timeout: float = 600, data: int | None = None
) -> subprocess.CompletedProcess:
    """`python -m` with these arguments, as `subprocess.run` gives it; killed after so long."""
    argv = [*map(str, arguments)]
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch, name) for name in ("out", "err")]
        command = start(argv, cwd, *files, os.environ, data)
        try:
            code = command.wait(timeout)
        except subprocess.TimeoutExpired:
            command.kill()
            code = command.wait(timeout)
        return subprocess.CompletedProcess(
            argv, code, *(file.read_text("utf-8", "replace") for file in files)
        )


def _command(asked: dict) -> None:
    """In the child: be that command."""
    os.setsid()
    said = [os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ("out", "err")]
    print(os.getpid(), flush=True)
    for fd, opened in enumerate(said, 1):
        os.dup2(opened, fd)
        os.close(opened)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    path = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(Path.cwd()), *path, *sys.path[1:]]
    importlib.invalidate_caches()
    tempfile.tempdir = None
    if "COLLOCATION_FAKE_NVML" in os.environ:  # as tests/fakes/nvml has it
        pynvml, driver = import_module("pynvml"), import_module("tests.fakes.driver")
        driver.install(pynvml, driver.folders(os.environ))
    if asked["data"]:
        resource.setrlimit(resource.RLIMIT_DATA, (asked["data"], asked["data"]))
    sys.argv = list(asked["argv"])
    if not hasattr(sys.modules.get(sys.argv[0]), "__path__"):
        sys.modules.pop(sys.argv[0], None)  # or runpy would warn of it
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _keep(pid: int, ended: Path) -> None:
    """Wait for a command's end, and write how it was."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    new = ended.with_name(f".{ended.name}")
    with contextlib.suppress(FileNotFoundError):  # nobody waits for it
        new.write_text(str(code))
        new.rename(ended)
    os._exit(0)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    for name in MODULES:
        import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        if os.fork() == 0:
            if pid := os.fork():
                _keep(pid, Path(asked["ended"]))
            _command(asked)  # which ends as a process does, or with SystemExit
            return
        _reap()
    _reap()


if __name__ == "__main__":
    main()
