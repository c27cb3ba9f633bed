"""A working folder with a study of its own, and the real command line run in it.

Members are torch-free (tests/torchfree.py) unless a test asks for another trainer. A studio may
have a GPU that is not there (tests/fakes). Every process that comes of it carries a mark in its
environment, by which `alive` finds what was left.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import yaml

from tests import warm
from tests.fakes import machine
from workflow.collocation.run.task import Task
from workflow.collocation.study.cell import CellSpec

REPOSITORY = Path(__file__).resolve().parents[1]
PATIENCE = 900.0  # seconds, for a busy machine; nothing waits that long when all is well
GONE_WITHIN = 60.0  # seconds, for everything to be gone after a signal
MARK = "COLLOCATION_DRILL"
STUDY = "drill"
TAKEN = ("trainer", "timeout", "telemetry", "wait")  # keys that a cell's command takes

PLAIN = {
    "model": "none",
    "dataset": "digits",
    "input_size": 32,
    "batch_size": 32,
    "classes": 10,
    "warmup_steps": 3,
    "model_args": {"step_s": 0.003},
}
SHORT = {"kind": "window", "window_s": 0.3, "min_steps": 3, "warmup_s": 0, "settle_s": 0}


def workload(**model_args) -> dict:
    """A torch-free workload of the catalogue; see tests/torchfree.py for the arguments."""
    return PLAIN | {"model_args": PLAIN["model_args"] | model_args}


def study(**content) -> dict:
    return {"description": "a drill", "replicates": 1, "measure": SHORT} | content


def alone(*names: str) -> list[dict]:
    """The ladders of cells with one member of each of these workloads."""
    return [{"workloads": list(names), "counts": {1: ["naive"]}}]


@dataclass
class Result:
    """How a command ended: its exit code and all that it printed."""

    code: int
    output: str

    @property
    def planned(self) -> int:
        """Cells that a dry run would run."""
        found = re.search(r"^collocate +(\d+)$", self.output, re.MULTILINE)
        return int(found[1]) if found else 0

    @property
    def nothing_to_do(self) -> bool:
        return self.code == 0 and "Nothing to be done" in self.output


@dataclass
class Running:
    """A command that is running, in a session of its own."""

    process: subprocess.Popen | warm.Command
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def signal_group(self, number: int) -> None:
        """As a terminal does: to every process of the group."""
        os.killpg(self.process.pid, number)

    def kill(self, name: str) -> None:
        """By a signal as `kill` sends it, to one process, or a terminal, to all."""
        one = name in ("SIGKILL", "SIGTERM")
        (self.process.send_signal if one else self.signal_group)(getattr(signal, name))

    def descendants(self, module: str = "") -> list[psutil.Process]:
        """Those that run `python -m module`, parents first; all of them without a module."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if not module or module in process.cmdline():
                        found.append(process)
        return found

    def find(self, module: str) -> psutil.Process:
        """The first descendant that runs `python -m module`."""
        return self.descendants(module)[0]

    def end(self, timeout: float = PATIENCE) -> Result:
        """Wait for its end."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end: {self.output}") from None
        return Result(code, self.output)


def until(done: Callable[[], bool], what: Callable[[], str], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


def flags_of(record: dict) -> list[str]:
    """A record's flags, less the one that a GPU's cell has on machines with few CPUs."""
    return [flag for flag in record["flags"] if flag != "sampler_shares_cores"]


class Freezer:
    """Holds processes in state D, where SIGKILL does not end them: a cgroup (v1) freezer."""

    ROOT = Path("/sys/fs/cgroup/freezer")

    def __init__(self):
        self.group = self.ROOT / f"collocation-{uuid.uuid4().hex}"

    def freeze(self, *pids: int) -> None:
        self.group.mkdir(exist_ok=True)
        for pid in pids:
            (self.group / "cgroup.procs").write_text(str(pid))
        (self.group / "freezer.state").write_text("FROZEN")
        state = self.group / "freezer.state"
        until(lambda: state.read_text() == "FROZEN\n", state.read_text)

    def thaw(self) -> None:
        """Let all go on, and wait until they have ended."""
        (self.group / "freezer.state").write_text("THAWED")
        procs = self.group / "cgroup.procs"
        until(lambda: not procs.read_text(), procs.read_text)
        self.group.rmdir()


@contextlib.contextmanager
def freezer() -> Iterator[Freezer]:
    """A freezer of which nothing is left. The test is skipped where there is none."""
    made = Freezer()
    try:
        made.group.mkdir()
    except OSError:
        pytest.skip("no cgroup (v1) freezer may be made here")
    try:
        yield made
    finally:
        if made.group.exists():
            for pid in (made.group / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            made.thaw()


# A package that gives way to the real one where it is imported, and not only looked at.
REAL_TORCH = """
import importlib, sys
sys.path.remove({!r})
del sys.modules["torch"]
importlib.import_module("torch")
"""


@dataclass
class Studio:
    """A working folder with workloads.yaml and studies/; `data` and `locks` may be shared."""

    folder: Path
    data: Path
    locks: Path
    gpu: str = "cpu"
    card: Path | None = None  # the state of a GPU that is not there
    surroundings: dict[str, str] = field(default_factory=dict)  # what comes with it
    settings: dict = field(default_factory=dict)  # config keys, over the ones below
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    cold: bool = False  # whether commands are started by themselves, and not forked (tests/warm.py)
    by_make: bool = False  # whether Snakemake is started as `make study` does it
    _forked: list[warm.Command] = field(default_factory=list, init=False)

    def write(self, workloads: dict, **studies: dict) -> "Studio":
        """The catalogue and the studies, by name."""
        (self.folder / "studies").mkdir(parents=True, exist_ok=True)
        (self.folder / "workloads.yaml").write_text(yaml.safe_dump(workloads))
        for name, content in studies.items():
            self.write_study(name, content)
        return self

    def write_study(self, name: str, content: dict) -> None:
        (self.folder / "studies" / f"{name}.yaml").write_text(yaml.safe_dump(content))

    def with_card(self, name: str = "h200_141", more: int = 0, **settings) -> "Studio":
        """Give this studio a GPU from tests/cards (see tests/fakes/machine.py), its own UUID, and a
        torch that says it was built for CUDA. more: how many others there are, `card-1` and so on.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.gpu, self.card = "auto", self.folder / "card"
        own = f"GPU-{uuid.uuid4()}"
        self.surroundings = machine.create(self.card, name, uuid=own, **settings)
        folders = [str(self.card)]
        for number in range(1, more + 1):
            folders.append(f"{self.card}-{number}")
            machine.create(Path(folders[-1]), name, uuid=f"GPU-{uuid.uuid4()}", **settings)
        self.surroundings["COLLOCATION_FAKE_NVML"] = os.pathsep.join(folders)
        torch = self.card / "site" / "torch"
        torch.mkdir(parents=True)
        (torch / "__init__.py").write_text(REAL_TORCH.format(str(torch.parent)))
        (torch / "version.py").write_text('cuda = "13.0"\n')
        path = [str(torch.parent), self.surroundings["PYTHONPATH"], os.environ.get("PYTHONPATH")]
        self.surroundings["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        return self

    def config(self, **changes) -> list[str]:
        values = {
            "study": STUDY,
            "gpu": self.gpu,
            "workloads": "workloads.yaml",
            "studies": "studies",
            "trainer": "tests.torchfree",
            "data": str(self.data),
            **self.settings,
            **changes,
        }
        return [f"{key}={value}" for key, value in values.items() if value is not None]

    def environment(self, **more: str) -> dict[str, str]:
        # The last are scikit-learn's, which some tests import.
        foreign = ("COLLOCATION_", "SNAKEMAKE_", "FAKE_", "CUDA_", "KMP_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        path = filter(None, [str(REPOSITORY), kept.get("PYTHONPATH")])
        return kept | {
            "PYTHONPATH": os.pathsep.join(path),
            "COLLOCATION_LOCK_DIR": str(self.locks),
            "PS1": "(.venv) $ ",  # as an activated environment exports it
            "TMPDIR": str(self.folder),  # what a SIGKILL leaves goes with the test's folder
            MARK: self.mark,
            **self.surroundings,
            **more,
        }

    def start(
        self,
        *arguments: str,
        config: dict | None = None,
        snakefile: Path = REPOSITORY / "Snakefile",
        **environment: str,
    ) -> Running:
        """`snakemake --cores 1 ...` in a session of its own."""
        wrapper = ["workflow.collocation.plan.terminal"] if self.by_make else []
        command = [sys.executable, "-m", *wrapper, "snakemake"]
        command += ["--snakefile", str(snakefile), "--directory", "."]
        command += [] if "--cores" in arguments else ["--cores", "1"]
        command += ["--config", *self.config(**(config or {})), *arguments]
        return self._start(command, environment)

    def run(self, *arguments: str) -> Running:
        """`python -m` with these arguments, in a session of its own."""
        return self._start([sys.executable, "-m", *arguments], {})

    def _start(self, command: list[str], environment: dict[str, str]) -> Running:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"output-{uuid.uuid4().hex[:8]}.txt"
        environment = self.environment(**environment)
        if not self.cold:
            self._forked.append(warm.start(command[2:], self.folder, log, log, environment))
            return Running(self._forked[-1], log)
        return self.spawn(command, log, environment)

    def spawn(self, command: list[str], log: Path, environment: dict[str, str]) -> Running:
        """A command in a session of its own, with its output in `log`."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Running(process, log)

    def snakemake(self, *arguments: str, **options) -> Result:
        """`snakemake --cores 1 ...`, to its end; options as of `start`."""
        return self.start(*arguments, **options).end()

    def measure(self, *cells: str, config: dict | None = None, **environment: str) -> Result:
        """Run these attempts only, or all that is pending, without merging and drawing."""
        target = self.only(*cells) if cells else ["--until", "collocate"]
        return self.snakemake(*target, config=config, **environment)

    def only(self, *cells: str) -> list[str]:
        """The arguments that have these attempts run alone."""
        return ["--", *(self.path(cell).as_posix() for cell in cells)]

    def prepare(self) -> Result:
        """The plan and the data, so that `conduct` can follow."""
        return self.snakemake("--until", "dataset")

    def conduct(self, cell: str, **environment: str) -> Running:
        """One attempt at a cell without Snakemake, by the command that its job runs."""
        job = self.folder / f"job-{uuid.uuid4().hex[:8]}.json"
        self.task(cell).write(job)
        command = [sys.executable, "-m", "workflow.collocation.run.cell", job.name]
        return self._start(command, environment)

    def measured(self, cell: str, seconds: float = PATIENCE, **environment: str) -> dict:
        """The record of such an attempt."""
        run = self.conduct(cell, **environment).end(seconds)
        assert run.code == 0, run.output
        return self.record(cell)

    def task(self, cell: str) -> Task:
        """An attempt at a cell as it was planned last, to be run without Snakemake."""
        name, _, attempt = cell.rpartition("/a")
        planned = next((self.results / "jobs" / name).glob("a*.json"))
        planned = json.loads(planned.read_text())
        told = {"trainer": "tests.torchfree"} | self.settings
        told = {
            key: yaml.safe_load(value) if isinstance(value, str) else value
            for key, value in told.items()
        }
        return Task.model_validate(
            {
                "study": STUDY,
                "cell": name,
                "attempt": int(attempt),
                "output": self.path(cell),
                "spec": planned["spec"],
                "gpu": self.gpu,
                "data": list(self.results.glob("ready/*.json")),
                **{key: told[key] for key in TAKEN if key in told},
            }
        )

    def write_job(self, cell: str, spec: CellSpec, digits: Path) -> None:
        """Plan an attempt at a cell without Snakemake; its digits are ready in that folder."""
        job, ready = self.results / "jobs" / f"{cell}.json", self.results / "ready" / "digits.json"
        for path in (job, ready):
            path.parent.mkdir(parents=True)
        job.write_text(json.dumps({"spec": spec.model_dump(mode="json")}))
        ready.write_text(json.dumps({"dataset": "digits", "path": str(digits)}))

    def plan(self, *arguments: str, config: dict | None = None, **environment: str) -> Result:
        """`collocate plan`."""
        name, *settings = self.config(**(config or {}))
        command = [sys.executable, "-m", "collocate", "plan", name.removeprefix("study=")]
        settings = ["results=results", *settings]  # of this folder, not of the clone
        command += [*arguments, *(word for pair in settings for word in ("--set", pair))]
        return self._start(command, environment).end()

    def check(self) -> Result:
        """The workflow's last step: which cells have no result."""
        command = [sys.executable, "-m", "collocate", "step", "check", *self.config()]
        return self._start(command, {}).end()

    # -- what is there --------------------------------------------------------------------------

    @property
    def results(self) -> Path:
        return self.folder / "results" / STUDY

    def path(self, cell: str) -> Path:
        """run.json of an attempt 'scenario/implementation/method/r1/a1', relative to the folder."""
        return Path("results", STUDY, "cells", cell, "run.json")

    def record(self, cell: str) -> dict:
        return json.loads((self.folder / self.path(cell)).read_text())

    def records(self) -> dict[str, dict]:
        """Every attempt that has a run.json."""
        return {
            path.parent.relative_to(self.results / "cells").as_posix(): json.loads(path.read_text())
            for path in sorted(self.results.glob("cells/*/*/*/*/*/run.json"))
        }

    def says(self, pattern: str, word: str, since: float) -> bool:
        """Whether a file of the study that has been written since then has that word."""
        files = [path for path in self.results.glob(pattern) if path.stat().st_mtime > since]
        return any(word in path.read_text("utf-8", "replace") for path in files)

    def wrong(self, folder: Path) -> list[str]:
        """What a release would find wrong in the folder of an attempt."""
        from release import checks
        from release.manifest import attempts

        [attempt] = attempts(
            {p.relative_to(self.results).as_posix(): "" for p in folder.iterdir() if p.is_file()}
        )
        files = json.loads((folder / "run.json").read_text())["files"]
        digests = {name: file["sha256"] for name, file in files.items()} | {"run.json": ""}
        return checks.check_attempt(self.results, attempt, digests).problems

    def partial_files(self) -> list[Path]:
        """What a write that was cut off would have left."""
        names = [*self.folder.rglob(".run.json*"), *self.folder.rglob("*.partial")]
        return names + [p for p in self.folder.rglob("run.json") if not _is_json(p)]

    def log(self, cell: str) -> str:
        """What the conductor of an attempt has said so far."""
        path = (self.folder / self.path(cell)).with_name("log") / "conductor.log"
        return path.read_text() if path.exists() else ""

    # -- processes ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self, cell: str, *arguments: str, **options) -> Iterator[tuple[Running, Path]]:
        """A run that stands still in the window of this attempt until the file it gives is gone."""
        hold = self.folder / f"hold-{uuid.uuid4().hex[:8]}"
        self.folder.mkdir(parents=True, exist_ok=True)
        hold.touch()
        running = self.start(*arguments, COLLOCATION_HOLD=str(hold), **options)
        try:
            until(
                lambda: "started:" in self.log(cell) or running.process.poll() is not None,
                lambda: running.output,
            )
            assert running.process.poll() is None, running.output
            yield running, hold
        finally:
            hold.unlink(missing_ok=True)
            self.kill_all()
            running.process.wait(PATIENCE)

    def alive(self) -> list[psutil.Process]:
        """Every process that came of this studio."""
        forked = [each.pid for each in self._forked if each.poll() is None]
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ended = process.status() == psutil.STATUS_ZOMBIE
                ours = process.pid in forked or process.environ().get(MARK) == self.mark
                if ours and not ended:
                    found.append(process)
        return found

    def assert_no_orphans(self) -> None:
        until(
            lambda: not self.alive(),
            lambda: f"left running: {[process.cmdline() for process in self.alive()]}",
            GONE_WITHIN,
        )

    def left(self, seconds: float) -> list[str]:
        """What runs or is locked after so long; those processes are killed.

        A process whose first thread has ended is a zombie, yet holds its locks until all have.
        """
        deadline = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.kill_all()
        return left

    def _left(self) -> list[str]:
        left = [f"left running: {process}" for process in self.alive()]
        return left + [f"left locked: {path}" for path in self.held_locks()]

    def held_locks(self) -> list[Path]:
        """Locks, of devices and of folders of results, that somebody has."""
        held = []
        for path in [*self.locks.glob("*.lock"), *self.folder.glob("results/*/.lock")]:
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(path)
        return held

    def kill_all(self) -> None:
        for process in self.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def copy(self, folder: Path) -> "Studio":
        """As in a clone or an unpacked archive: no .snakemake, and new modification times."""
        ignored = shutil.ignore_patterns(".snakemake", "output-*", ".lock")
        shutil.copytree(self.folder, folder, ignore=ignored, copy_function=shutil.copyfile)
        return Studio(folder, self.data, self.locks)


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True
