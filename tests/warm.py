"""Commands of `release` and `analysis` run as `python -m` runs them, but forked from a process that
has imported what they need: the imports of a hundred such commands take minutes.

`python -m tests.warm` reads a JSON object a line: {"argv": [module, arguments...], "cwd": folder,
"out": file, "err": file, "data": bytes that its address space may grow to, or null}, and answers
with the exit code that a shell would see. With `data` the commands that `release` has `analysis`
run are forked, too.
"""

import atexit
import contextlib
import json
import os
import resource
import runpy
import subprocess
import sys
import tempfile
import time
from functools import cache
from importlib import import_module
from pathlib import Path

from release import derive

REPOSITORY = Path(__file__).resolve().parents[1]
# They import; none computes, for threads would not outlive a fork.
MODULES = [f"release.{name}" for name in ("verify", "contribute", "merge", "seal", "artifact")]
MODULES += ["analysis.compare", "scipy.stats", "analysis.records.merge", "analysis.publish"]
MODULES += ["analysis.records.telemetry"]


@cache
def _server() -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.warm"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, cwd=REPOSITORY, text=True, **pipes)
    atexit.register(server.wait, 10)
    atexit.register(server.stdin.close)  # the first to be called
    return server


def run(
    *arguments: object, cwd: Path = REPOSITORY, timeout: float = 600, data: int | None = None
) -> subprocess.CompletedProcess:
    """`python -m` with these arguments, as `subprocess.run` gives it."""
    argv = [*map(str, arguments)]
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch, name) for name in ("out", "err")]
        asked = {"argv": argv, "cwd": str(cwd), "data": data, "timeout": timeout}
        asked |= {file.name: str(file) for file in files}
        server = _server()
        print(json.dumps(asked), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(
            argv, code, *(file.read_text("utf-8", "replace") for file in files)
        )


def _command(asked: dict) -> None:
    """In the child: be that command."""
    for fd, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT), fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(asked["cwd"])
    if asked["data"]:
        resource.setrlimit(resource.RLIMIT_DATA, (asked["data"], asked["data"]))
        derive._run = _derived
    sys.argv = list(asked["argv"])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _derived(folder: Path, *commands: list) -> None:
    """In place of `release.derive._run`: its commands one after the other, forked from here."""
    for command in commands:
        if (pid := os.fork()) == 0:
            os.chdir(folder.parents[1])
            os.dup2(os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            sys.argv = ["analysis", *map(str, command)]
            with contextlib.redirect_stdout(sys.stderr):
                code = 1
                try:
                    code = import_module("analysis.__main__").main(sys.argv[1:])
                finally:
                    sys.stderr.flush()
                    os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            said = (folder / "said").read_text().strip().splitlines() or ["killed"]
            (folder / "said").unlink()
            raise ValueError(f"analysis {command[0]}: {said[-1][:300]}")
        (folder / "said").unlink()


def _wait(pid: int, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])


def main() -> None:
    for name in MODULES:
        import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        if (pid := os.fork()) == 0:
            _command(asked)  # which ends as a process does, or with SystemExit
            return
        print(_wait(pid, asked["timeout"]), flush=True)


if __name__ == "__main__":
    main()
