"""Measures what `collocate advise` asks: from a request to a probe, and to its advice."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from collocate import ROOT, terminal
from collocate.app import Mistyped, require_packages
from collocate.folders import project_folder

if TYPE_CHECKING:
    from analysis.advice.job.request import Request
    from workflow.collocation.gpu import Device
    from workflow.collocation.member.spec import ViewSpec
    from workflow.collocation.run.visit import ProbeTask
    from workflow.collocation.study.definition import Config
    from workflow.collocation.study.workloads import Workload

NEEDED = ("pandas", "pyarrow", "scipy", "psutil", "pynvml", "yaml")
# Samples of a dataset that are generated where the real ones are not there.
DATASET_SIZES = {"cifar10": 10_000, "imagenet64": 2_048, "imagenet": 512}


def ask(
    request: "Request",
    settings: list[str],
    results: Path | None,
    progress: terminal.Progress,
    write_here: bool,
) -> tuple[dict, Path]:
    """How many copies of a job to run: the content of advice.json, and its folder.

    settings: `key=value` words of config.yaml. results: the folder to which that of this answer is
    added; None for the default. write_here: scripts may write in the folder where they run.
    """
    from analysis.advice.job.advise import SetChoice, advice_of
    from workflow.collocation.record.run_json import GpuRecord
    from workflow.collocation.run.visit import run_probe

    task = _task([request], settings, results, progress, write_here)
    gpu = task.device and GpuRecord.model_validate(task.device, from_attributes=True)
    choice = SetChoice(request, gpu, progress.note)
    record = run_probe(task, progress.with_unit(request.unit), choice)
    return advice_of(request, choice, record, task.folder), task.folder


def ask_about_pair(
    requests: Sequence["Request"],
    settings: list[str],
    results: Path | None,
    progress: terminal.Progress,
    write_here: bool,
) -> tuple[dict, Path]:
    """Whether to run two jobs together: the content of advice.json, and its folder; as `ask`."""
    from analysis.advice.job.pair import advice_on_pair
    from workflow.collocation.run.visit import run_probe

    task = _task(requests, settings, results, progress, write_here)
    record = run_probe(task, progress.with_unit(requests[0].unit))
    return advice_on_pair(requests, record, task.folder), task.folder


def _task(
    requests: Sequence["Request"],
    settings: list[str],
    results: Path | None,
    progress: terminal.Progress,
    write_here: bool,
) -> "ProbeTask":
    """What a probe has to measure, with its new folder."""
    from workflow.collocation.plan.jobs import TRAINING_PACKAGES, unknown_names
    from workflow.collocation.run.visit import SCRIPT_TRAINER, ProbeTask
    from workflow.collocation.study.cell import ImplementationSpec
    from workflow.collocation.study.load import validate
    from workflow.collocation.study.names import IMPLEMENTATIONS
    from workflow.collocation.study.workloads import workload_model

    config, first = _config(settings), requests[0]
    device = _device(config)
    jobs = {}
    for request in requests:
        model = workload_model(request.entry.get("kind", "vision"))
        name = request.job if request.job not in jobs else f"{request.job}_2"
        jobs[name] = validate(model, request.entry, request.job)
        if jobs[name].arrivals or jobs[name].input.mode == "shared":
            raise Mistyped(f"{name}: waits for others; ask with a study of it")
    trainer = SCRIPT_TRAINER if first.command else config.trainer
    if trainer == "models.train":
        require_packages(TRAINING_PACKAGES)
        for sentence in unknown_names(jobs[first.job]).values():
            raise Mistyped(sentence)
    parent = answers_folder(results)
    max_jobs = first.max_jobs if len(jobs) == 1 else len(jobs)
    may_write = write_here or jobs[first.job].kind != "command"
    # Two scripts run in one folder: that in which they were asked about.
    view = None if may_write else _view(Path(jobs[first.job].folder), parent, max_jobs, progress)
    folder = _new_folder(parent, "+".join(jobs))
    return ProbeTask(
        jobs=jobs,
        implementation=ImplementationSpec(**IMPLEMENTATIONS[first.implementation]),
        device=device,
        folder=folder,
        max_jobs=max_jobs,
        seconds=first.budget_s,
        trainer=trainer,
        datasets=_datasets(jobs[first.job], config, folder),
        telemetry=config.telemetry,
        view=view,
    )


def _view(
    folder: Path, results: Path, max_jobs: int, progress: terminal.Progress
) -> "ViewSpec | None":
    """How scripts are kept from writing in the folder where they run; None if a person lets them.

    Raises ValueError if they cannot be kept from it, and nobody agrees.
    """
    from workflow.collocation.run.views import plan_view

    try:
        view = plan_view(folder, results, copies=2 * (max_jobs + 1))
    except ValueError as error:
        question = f"copies of the script would write in its folder: {error}"
        at_terminal = sys.stdin.isatty() and sys.stderr.isatty()
        if at_terminal and typer.confirm(f"{question}. Let them?", err=True):
            return None
        raise ValueError(f"{question}; --write-here lets them") from None
    if view.kind == "copy":
        progress.note("No overlay can cover the script's folder here: it runs in copies of it.")
    return view


def _config(words: list[str]) -> "Config":
    """The configuration of --set. Raises ConfigError."""
    from workflow.collocation.study.load import load_config, read_config_values

    return load_config({"data": str(ROOT / "data"), **read_config_values(words)})


def _device(config: "Config") -> "Device | None":
    """The GPU to measure on; None if the CPU was asked for. Raises ValueError without a GPU."""
    from workflow.collocation.gpu import find_devices

    devices, reason = find_devices(config.gpu)
    if not devices and config.gpu != "cpu":
        raise ValueError(
            f"no GPU is used here ({reason}); --set gpu=cpu tries the command on the CPU, and "
            "says nothing about sharing a GPU"
        )
    return devices[0] if devices else None


def _datasets(job: "Workload", config: "Config", folder: Path) -> dict[str, dict]:
    """Make the dataset of a job ready; by its name, the record of it. Raises ValueError."""
    if job.dataset is None:
        return {}
    record, log = folder / "dataset.json", folder / "dataset.log"
    options = ["--tied", "--root", config.data, "--ready", str(record)]
    options += ["--source", "auto" if job.dataset in ("digits", "sources") else config.source]
    if job.dataset in DATASET_SIZES:
        options += ["--train", str(DATASET_SIZES[job.dataset])]
    if job.input_size:
        options += ["--input-size", str(job.input_size)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "models.data", "prepare", job.dataset, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": path},
        )
    if done.returncode:
        raise ValueError(log.read_text("utf-8").strip().rpartition("\n")[2])
    return {job.dataset: json.loads(record.read_text("utf-8"))}


def answers_folder(results: Path | None) -> Path:
    """Where answers go: the folder that was asked for, or that of the project."""
    return project_folder() if results is None else results.expanduser()


def _new_folder(parent: Path, job: str) -> Path:
    """Make the next of the folders `job-1`, `job-2`, …"""
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = parent / f"{job}-{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder
