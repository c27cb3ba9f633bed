"""The study beneath a question: its files, its runs by Snakemake, and the records they leave."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from analysis.advice.job.request import Request
from analysis.choose import way
from workflow.collocation import ROOT
from workflow.collocation.process_lifetime import END_SIGNALS, end_with_parent
from workflow.collocation.record import run_json
from workflow.collocation.record.run_json import PROGRESS_FILE, Record
from workflow.collocation.study.load import as_yaml
from workflow.collocation.study.names import ALONE, INTERLEAVED, SEPARATOR, cell_id, scenario_id
from workflow.collocation.study.redaction import redacted, write_private
from workflow.collocation.study.regular_files import open_descriptor

ALONE_S = 12.0  # seconds of the job alone
SET_S = 10.0  # of a set whose rival does not fit beside it
# Slices so long that the power read in them, a mean over a second, is of the condition alone.
SLICE_S, DROP_S, SLICES = 2.5, 1.0, (2, 20)
OVERHEAD_S = 100.0  # of the budget: all but slices
SIZES = {
    "cifar10": {"train": 10_000, "validation": 2_000},
    "imagenet64": {"train": 2_048, "validation": 256},
    "imagenet": {"train": 512, "validation": 128},
}
POLL_S = 0.5


@dataclass
class Study:
    """The study beneath a question.

    results: the folder that holds its own. settings: `key=value` words of config.yaml. progress:
    gets twice a second what is being measured, and its newest state with the rate.
    """

    request: Request
    results: Path
    settings: list[str]
    progress: Callable[[str, str], None]

    @property
    def folder(self) -> Path:
        """What is planned stands in its folder `plan`."""
        return self.results / self.request.study

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises ValueError where the same question is being asked already."""
        place = self.folder / "plan" / ".lock"
        place.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_descriptor(place, os.O_RDWR | os.O_CREAT)) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                said = f"{self.request.title}: is being asked already, in {self.folder}"
                raise ValueError(said) from None
            yield

    def alone(self) -> Record:
        """The job alone, measured now or before. Raises ValueError with the reason if it failed."""
        self._plan([])
        self._run("alone", "--until", "collocate")
        return self._record(self._scenario(1), "naive")

    def sets(self, sets: list[tuple[int, str]], together: bool) -> Record:
        """These sets, (jobs, method), and the job alone, in turns in one cell; not together: a cell
        for the first alone. Then estimates of all.
        """
        most = max(n for n, _ in sets) if together else sets[0][0]
        if together:
            methods = [ALONE, *(f"{n}x{method}" for n, method in sets)]
            per_round = len(methods) * SLICE_S
            rounds = int((self.request.budget_s - OVERHEAD_S) / per_round)
            measure = {"kind": INTERLEAVED, "slice_s": SLICE_S, "drop_s": DROP_S}
            measure |= {"slices": min(max(rounds, SLICES[0]), SLICES[1])}
            scenario, method = self._scenario(most, INTERLEAVED), SEPARATOR.join(methods)
        else:
            methods, measure = [sets[0][1]], {"window_s": SET_S}
            scenario, method = self._scenario(most), methods[0]
        ladder = {"workloads": [self.request.job], "measure": measure, "counts": {most: methods}}
        self._plan([ladder])
        what = ", ".join(["alone", *(f"{n} {way(m)}" for n, m in sets)])
        self._run(what, "--until", "estimate")
        return self._record(scenario, method)

    def pages(self) -> None:
        """Tables, figures and pages of what there is. Raises ValueError with what failed."""
        self._run("pages and figures")

    def _scenario(self, n: int, variant: str = "") -> str:
        return scenario_id({self.request.job: n}, variant)

    def _plan(self, more: list[dict]) -> None:
        """Write the catalogue and the study, if they are not as they are to be."""
        request, path = self.request, self.folder / "plan" / f"{self.request.study}.yaml"
        dataset = request.entry.get("dataset")
        measure = {"kind": "window", "window_s": ALONE_S, "warmup_s": 3, "settle_s": 0.5}
        study = {
            "description": f"how many of one job fit on a GPU: {redacted(request.title)}",
            "replicates": 1,
            "implementations": [request.implementation],
            "cores_for": request.most,
            "measure": measure | {"min_steps": 10},
            "datasets": {name: size for name, size in SIZES.items() if name == dataset},
            "ladders": [{"workloads": [request.job], "counts": {1: ["naive"]}}, *more],
        }
        catalogue = {request.job: request.entry}
        for place, content in ((path.with_name("workloads.yaml"), catalogue), (path, study)):
            write_private(place, yaml.safe_dump(content, sort_keys=False))  # the command is in it

    def _run(self, what: str, *arguments: str) -> None:
        """Have Snakemake measure what is left; a line that lives tells how far it is.

        What ends this command, such as Ctrl-C, is passed on once, and waited for.
        """
        plan = self.folder.resolve() / "plan"
        tries = self.folder.glob("cells/*/*/*/r1/a*")
        paths = {"results": ".", "studies": str(plan), "workloads": str(plan / "workloads.yaml")}
        paths |= {"study": self.request.study, "data": str(ROOT / "data")}
        config = [f"{key}={as_yaml(value)}" for key, value in paths.items()] + self.settings
        # A failure is told at once, and asked again it is tried again.
        config += [f"attempts={1 + max((int(path.name[1:]) for path in tries), default=0)}"]
        command = [sys.executable, "-m", "workflow.collocation.plan.terminal", "snakemake"]
        command += ["--snakefile", str(ROOT / "Snakefile"), "--cores", "1", *arguments]
        command += ["--directory", str(self.results.resolve())]
        command += ["--config", *config]
        log = plan / "log.txt"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        before = {each: signal.signal(each, signal.default_int_handler) for each in END_SIGNALS}
        with log.open("w") as said:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT}
            environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
            end = partial(end_with_parent, os.getpid())
            pipes |= {"process_group": 0, "preexec_fn": end}
            process = subprocess.Popen(command, **pipes, env=environment)
        try:
            while process.poll() is None:
                self.progress(what, self._now())
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            for each in END_SIGNALS:
                signal.signal(each, signal.SIG_IGN)
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
        if process.returncode:
            lines = log.read_text(encoding="utf-8").splitlines()
            raise ValueError(f"{lines[-1] if lines else 'Snakemake failed'} (all of it: {log})")

    def _now(self) -> str:
        """What the cell under way says of itself, such as its rate; empty while none is."""
        with suppress(OSError, ValueError):  # it may end in between
            live = self.folder.glob(f"cells/*/*/*/r1/a*/log/{PROGRESS_FILE}")
            newest = max(live, key=lambda path: path.stat().st_mtime)
            return newest.read_text(encoding="utf-8").replace("samples/s", f"{self.request.unit}/s")
        return ""

    def _record(self, scenario: str, method: str) -> Record:
        """Of the newest attempt at a cell. Raises ValueError with the reason if that failed."""
        cell = cell_id(scenario, self.request.implementation, method, 1)
        tries = self.folder.glob(f"cells/{cell}/a*/run.json")
        newest = max(tries, key=lambda path: int(path.parent.name[1:]), default=None)
        if newest is None:
            log = self.folder / "plan" / "log.txt"
            raise ValueError(f"{cell} was not measured; Snakemake said: {log}")
        record = run_json.read_record(newest)
        if record.status != "completed":
            raise ValueError(f"{self.request.title}: {record.status}: {record.reason}")
        return record
