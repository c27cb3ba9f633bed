"""The study that a request for advice plans: its files, Snakemake's runs of it, its records."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from analysis.advice.job.answer import PredictedSet
from analysis.advice.job.request import Request
from workflow.collocation import ROOT
from workflow.collocation.process_lifetime import END_SIGNALS, end_with_parent
from workflow.collocation.record import run_json
from workflow.collocation.record.run_json import PROGRESS_FILE, Record
from workflow.collocation.study.layout import RUN
from workflow.collocation.study.load import as_yaml
from workflow.collocation.study.names import ALONE, INTERLEAVED, SEPARATOR, cell_id, scenario_id
from workflow.collocation.study.redaction import redacted, write_private
from workflow.collocation.study.regular_files import open_descriptor

ALONE_S = 12.0  # seconds in which the job alone is measured
SET_S = 10.0  # seconds in which a set is measured that does not take turns
# NVML's power is a mean over one second: after DROP_S a slice reads that of its condition alone.
SLICE_S, DROP_S = 2.5, 1.0
MIN_SLICES, MAX_SLICES = 2, 20  # of each condition
OVERHEAD_S = 100.0  # of the budget: all but slices
DATASET_SIZES = {
    "cifar10": {"train": 10_000, "validation": 2_000},
    "imagenet64": {"train": 2_048, "validation": 256},
    "imagenet": {"train": 512, "validation": 128},
}
POLL_S = 0.5


@dataclass
class AdviceStudy:
    """A study of one job, which Snakemake measures step by step.

    results: the folder that holds the study's folder. settings: `key=value` words of config.yaml.
    progress: called twice a second with what is being measured, and its state with the rate.
    """

    request: Request
    results: Path
    settings: list[str]
    progress: Callable[[str, str], None]

    @property
    def folder(self) -> Path:
        return self.results / self.request.study

    @property
    def plan(self) -> Path:
        """The folder of what is planned: study, catalogue, lock, Snakemake's log."""
        return self.folder / "plan"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the study alone. Raises ValueError if another command answers the same request."""
        path = self.plan / ".lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_descriptor(path, os.O_RDWR | os.O_CREAT)) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{self.request.title}: is being asked already, in {self.folder}"
                ) from None
            yield

    def measure_alone(self) -> Record:
        """Measure the job alone, unless it is measured. Raises ValueError if it failed."""
        self._write_plan([])
        self._snakemake("alone", "--until", "collocate")
        return self._newest_record(self._scenario(1), "naive")

    def measure_sets(self, sets: Sequence[PredictedSet], interleaved: bool) -> Record:
        """Measure sets and estimate their numbers; returns the record of their cell.

        interleaved: they take turns with the job alone in one cell; otherwise the first set has a
        cell of its own, and the others are not measured.
        """
        if interleaved:
            n = max(option.n for option in sets)
            methods = [ALONE, *(f"{option.n}x{option.method}" for option in sets)]
            rounds = int((self.request.budget_s - OVERHEAD_S) / (len(methods) * SLICE_S))
            measure = {"kind": INTERLEAVED, "slice_s": SLICE_S, "drop_s": DROP_S}
            measure["slices"] = min(max(rounds, MIN_SLICES), MAX_SLICES)
            scenario, method = self._scenario(n, INTERLEAVED), SEPARATOR.join(methods)
        else:
            n, method = sets[0].n, sets[0].method
            methods, measure = [method], {"window_s": SET_S}
            scenario = self._scenario(n)
        ladder = {"workloads": [self.request.job], "measure": measure, "counts": {n: methods}}
        self._write_plan([ladder])
        step = ", ".join(["alone", *(option.label for option in sets)])
        self._snakemake(step, "--until", "estimate")
        return self._newest_record(scenario, method)

    def make_pages(self) -> None:
        """Make tables, figures and pages of what was measured. Raises ValueError if that fails."""
        self._snakemake("pages and figures")

    def _scenario(self, n: int, variant: str = "") -> str:
        return scenario_id({self.request.job: n}, variant)

    def _write_plan(self, ladders: list[dict]) -> None:
        """Write the catalogue and the study: the job alone, and these ladders of sets."""
        request = self.request
        dataset = request.entry.get("dataset")
        measure = {"kind": "window", "window_s": ALONE_S, "warmup_s": 3, "settle_s": 0.5}
        study = {
            "description": f"how many of one job fit on a GPU: {redacted(request.title)}",
            "replicates": 1,
            "implementations": [request.implementation],
            "cores_for": request.max_jobs,
            "measure": measure | {"min_steps": 10},
            "datasets": {name: size for name, size in DATASET_SIZES.items() if name == dataset},
            "ladders": [{"workloads": [request.job], "counts": {1: ["naive"]}}, *ladders],
        }
        texts = {"workloads.yaml": {request.job: request.entry}, f"{request.study}.yaml": study}
        for name, content in texts.items():  # private, because the command is in them
            write_private(self.plan / name, yaml.safe_dump(content, sort_keys=False))

    def _snakemake(self, step: str, *arguments: str) -> None:
        """Have Snakemake measure what is left, and report progress meanwhile.

        A signal that ends this command, such as Ctrl-C, is passed on once, and waited for. Raises
        ValueError with Snakemake's last line if it fails.
        """
        log = self.plan.resolve() / "log.txt"
        handlers = {n: signal.signal(n, signal.default_int_handler) for n in END_SIGNALS}
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("w") as output:
            process = subprocess.Popen(
                self._command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=partial(end_with_parent, os.getpid()),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"},
            )
        try:
            while process.poll() is None:
                self.progress(step, self._live_state())
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            for number in END_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if process.returncode:
            lines = log.read_text(encoding="utf-8").splitlines()
            raise ValueError(f"{lines[-1] if lines else 'Snakemake failed'} (all of it: {log})")

    def _command(self, *arguments: str) -> list[str]:
        plan = self.plan.resolve()
        # A failed measurement is not repeated at once, but when the same advice is asked again.
        attempts = self.folder.glob("cells/*/*/*/r1/a*")
        config = {
            "results": ".",
            "studies": str(plan),
            "workloads": str(plan / "workloads.yaml"),
            "study": self.request.study,
            "data": str(ROOT / "data"),
        }
        return [
            *(sys.executable, "-m", "workflow.collocation.plan.terminal", "snakemake"),
            *("--snakefile", str(ROOT / "Snakefile"), "--cores", "1", *arguments),
            *("--directory", str(self.results.resolve()), "--config"),
            *(f"{key}={as_yaml(setting)}" for key, setting in config.items()),
            *self.settings,
            f"attempts={1 + max(map(_attempt_number, attempts), default=0)}",
        ]

    def _live_state(self) -> str:
        """What the cell that is being measured says of itself; empty while there is none."""
        with suppress(OSError, ValueError):  # the file may vanish in between
            live = self.folder.glob(f"cells/*/*/*/r1/a*/log/{PROGRESS_FILE}")
            newest = max(live, key=lambda path: path.stat().st_mtime)
            return newest.read_text(encoding="utf-8").replace("samples/s", f"{self.request.unit}/s")
        return ""

    def _newest_record(self, scenario: str, method: str) -> Record:
        """Record of a cell's newest attempt. Raises ValueError with the reason if that failed."""
        cell = cell_id(scenario, self.request.implementation, method, 1)
        attempts = self.folder.glob(f"cells/{cell}/a*")
        recorded = [path for path in attempts if (path / RUN).exists()]
        if not recorded:
            raise ValueError(f"{cell} was not measured; Snakemake said: {self.plan / 'log.txt'}")
        record = run_json.read_record(max(recorded, key=_attempt_number) / RUN)
        if record.status != "completed":
            raise ValueError(f"{self.request.title}: {record.status}: {record.reason}")
        return record


def _attempt_number(path: Path) -> int:
    """`…/r1/a2` → 2"""
    return int(path.name[1:])
