"""`collocate advise`: how many of a job to run on one GPU, and by which method."""

import itertools
import json
import math
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collocate import ROOT, studies, terminal
from collocate.app import Mistyped, app

if TYPE_CHECKING:
    from analysis.advice.job.request import Request
    from workflow.collocation.gpu import Device
    from workflow.collocation.member.spec import ViewSpec
    from workflow.collocation.study.definition import Config
    from workflow.collocation.study.workloads import Workload

LEAST_BUDGET_S = 60.0
NEEDED = ("pandas", "pyarrow", "scipy", "psutil", "pynvml", "yaml")
# Samples of a dataset that are generated where the real ones are not there.
DATASET_SIZES = {"cifar10": 10_000, "imagenet64": 2_048, "imagenet": 512}
DECIDED = ("study", "studies", "workloads", "attempts", "budget")  # keys that no --set may change
_MEASURING = {"max_jobs", "max_slowdown", "max_memory", "budget", "measure"}
_MEASURING |= {"as_json", "as_markdown", "results", "settings"}
ALLOWED = {  # what is asked about → the options that it has
    "study": {"workload", "max_slowdown", "max_memory", "as_markdown", "results"},
    "command": _MEASURING | {"batch", "steps", "first_step", "write_here"},
    "model": _MEASURING | {"batch", "size"},
    "workload": _MEASURING | {"write_here"},
}


@app.command(context_settings={"allow_interspersed_args": False})
def advise(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[--] COMMAND...", help="of one job, taken word by word as it is"),
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="in place of COMMAND: a model of timm")
    ] = "",
    workload: Annotated[
        str, typer.Option(metavar="NAME", help="in place of COMMAND: one of config/workloads.yaml")
    ] = "",
    study: Annotated[
        str,
        typer.Option(
            metavar="STUDY",
            help="in place of COMMAND: measure nothing, advise on the jobs of this study",
            autocompletion=studies.names_of_results,
        ),
    ] = "",
    max_jobs: Annotated[int, typer.Option(min=2, max=48, metavar="N", help="most at once")] = 8,
    max_slowdown: Annotated[
        float,
        typer.Option(min=1, metavar="X", show_default="any", help="times, of the slowest job"),
    ] = math.inf,
    max_memory: Annotated[
        float, typer.Option(min=0, metavar="GB", show_default="the GPU's", help="of all jobs")
    ] = math.inf,
    budget: Annotated[str, typer.Option(metavar="TIME", help="to aim at, 60s or more")] = "3m",
    measure: Annotated[
        bool, typer.Option(help="measure sets; or only predict them from one job alone")
    ] = True,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default=False, help="samples of a step, to count them"
        ),
    ] = None,
    size: Annotated[int, typer.Option(min=1, metavar="PIXELS", help="with --model: images")] = 224,
    steps: Annotated[
        str,
        typer.Option(metavar="PATTERN", help="regular expression of output that counts steps"),
    ] = "",
    first_step: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", show_default="30", help="to wait for it")
    ] = 0.0,
    write_here: Annotated[
        bool, typer.Option("--write-here", help="let copies of a script write in its folder")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print advice.json")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            show_default="collocate/, in the clone results/",
            help="where its measurements go",
        ),
    ] = None,
    settings: studies.Settings = None,
) -> None:
    """Say how many of your job one GPU should run.

    It runs the job here, alone and in sets, for about three minutes: by its optimizer's steps, so
    the script stays as it is.

    \b
    collocate advise -- python train.py --lr 0.1
    collocate advise --model resnet50 --batch 64
    collocate advise --study ladder
    """
    if sum(map(bool, (command, model, study or workload))) != 1:
        raise Mistyped("give one of: -- COMMAND, --model, --workload, --study")
    if math.isnan(max_slowdown) or math.isnan(max_memory):
        raise Mistyped("--max-slowdown, --max-memory: allowed: a number")
    _refuse_ignored(context)
    if study:
        _advise_on_study(study, results, workload, max_slowdown, max_memory, as_markdown)
        return
    bounds = {"max_jobs": max_jobs, "max_slowdown": max_slowdown, "max_memory_gb": max_memory}
    bounds |= {"budget_s": _seconds(budget), "measure_sets": measure}
    words = studies.setting_pairs(settings)
    for word in words:
        if word.partition("=")[0] in DECIDED:
            raise Mistyped(f"--set {word}: a question has its own; allowed: gpu=, source=, …")
    from analysis.advice.job import request as requests
    from analysis.advice.job import text
    from workflow.collocation.study.load import find_config_file

    try:
        if command:
            script = {"samples": batch or 1, "steps": steps, "first_step_s": first_step}
            request = requests.of_script(command, Path.cwd(), **script, **bounds)
        elif model:
            request = requests.of_model(model, batch or 32, size, **bounds)
        else:
            request = requests.of_catalogue(
                workload, find_config_file("config/workloads.yaml"), **bounds
            )
    except ValueError as error:
        raise Mistyped(str(error)) from None
    config = _config(words)
    with terminal.Progress(bounds["budget_s"]) as progress:
        advice, folder = _ask(request, _folder(results), config, progress, write_here)
    if as_json:
        print(json.dumps(advice, indent=1))
        return
    if as_markdown:
        print(text.markdown(advice))
    else:
        terminal.show(text.terminal(advice))
    _show_next_commands(advice, folder)


def _ask(
    request: "Request",
    parent: Path,
    config: "Config",
    progress: terminal.Progress,
    write_here: bool,
) -> tuple[dict, Path]:
    """Measure what a request asks for; returns the content of advice.json and its folder.

    parent: the folder to which that of this answer is added. write_here: copies of a script may
    write in the folder where it runs.
    """
    from analysis.advice.job.advise import SetChoice, advice_of
    from workflow.collocation.plan.jobs import TRAINING_PACKAGES, missing_packages, unknown_names
    from workflow.collocation.record.run_json import GpuRecord
    from workflow.collocation.run.visit import SCRIPT_TRAINER, ProbeTask, run_probe
    from workflow.collocation.study.cell import ImplementationSpec
    from workflow.collocation.study.load import validate
    from workflow.collocation.study.names import IMPLEMENTATIONS
    from workflow.collocation.study.workloads import workload_model

    device = _device(config)
    job = validate(workload_model(request.entry.get("kind", "vision")), request.entry, request.job)
    trainer = SCRIPT_TRAINER if request.command else config.trainer
    if trainer == "models.train":
        if missing := missing_packages(TRAINING_PACKAGES):
            raise ValueError(f"not installed: {', '.join(missing)}; `make install` in {ROOT} does")
        for sentence in unknown_names(job).values():
            raise Mistyped(sentence)
    may_write = write_here or job.kind != "command"
    view = None if may_write else _view(Path(job.folder), parent, request.max_jobs, progress)
    task = ProbeTask(
        workload=request.job,
        job=job,
        implementation=ImplementationSpec(**IMPLEMENTATIONS[request.implementation]),
        device=device,
        folder=_new_folder(parent, request.job),
        max_jobs=request.max_jobs,
        seconds=request.budget_s,
        trainer=trainer,
        datasets={},
        telemetry=config.telemetry,
        view=view,
    )
    task = replace(task, datasets=_datasets(job, config, task.folder))
    gpu = device and GpuRecord.model_validate(device, from_attributes=True)
    choice = SetChoice(request, gpu, progress.note)

    def report(name: str, state: str) -> None:
        progress(name, state.replace("samples", request.unit))

    record = run_probe(task, choice, report)
    return advice_of(request, choice, record, task.folder), task.folder


def _view(
    folder: Path, results: Path, max_jobs: int, progress: terminal.Progress
) -> "ViewSpec | None":
    """How copies of a script are kept from writing in its folder; None if a person lets them.

    Raises ValueError if they cannot be kept from it, and nobody agrees.
    """
    from workflow.collocation.run.views import plan_view

    try:
        view = plan_view(folder, results, copies=1 + 2 * max_jobs)
    except ValueError as error:
        question = f"copies of the script would write in its folder: {error}"
        at_terminal = sys.stdin.isatty() and sys.stderr.isatty()
        if at_terminal and typer.confirm(f"{question}. Let them?", err=True):
            return None
        raise ValueError(f"{question}; --write-here lets them") from None
    if view.kind == "copy":
        progress.note("No overlay can cover the script's folder here: it runs in copies of it.")
    return view


def _refuse_ignored(context: typer.Context) -> None:
    """Raises Mistyped for an option that this question would ignore."""
    question = next(name for name in ALLOWED if context.params[name])
    for parameter in context.command.params:
        typed = context.get_parameter_source(parameter.name).name == "COMMANDLINE"
        allowed = ALLOWED[question] | {question}
        if typed and parameter.name not in allowed:
            subject = "a command" if question == "command" else f"--{question}"
            raise Mistyped(f"{parameter.opts[0]}: {subject} takes no such option")


def _config(words: list[str]) -> "Config":
    """The configuration of --set. Raises ValueError with what measuring lacks on this machine."""
    from workflow.collocation.plan.jobs import missing_packages
    from workflow.collocation.study.load import load_config, read_config_values

    if missing := missing_packages(NEEDED):
        raise ValueError(f"not installed: {', '.join(missing)}; `make install` in {ROOT} does")
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
    options += ["--source", "auto" if job.dataset == "digits" else config.source]
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


def _folder(results: Path | None) -> Path:
    """Where answers go. A new folder in the user's project is hidden from git."""
    if results is not None or Path.cwd() == ROOT:
        return (results or Path("results")).expanduser()
    folder = Path("collocate")
    if not folder.exists():
        folder.mkdir()
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    return folder


def _new_folder(parent: Path, job: str) -> Path:
    """Make the next of the folders `job-1`, `job-2`, …"""
    parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = parent / f"{job}-{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def _show_next_commands(advice: dict, folder: Path) -> None:
    """Print what to type next, unwrapped, so that it can be copied."""
    if advice["jobs"] > 1 and advice["run"] and advice["card"] != "CPU":
        path = shlex.quote(str(folder / "advice.json"))
        print(f"\nStart it:\n  collocate recipe {path} > start.sh\n  bash start.sh")


def _advise_on_study(
    name: str, results: Path | None, job: str, slowdown: float, memory_gb: float, markdown: bool
) -> None:
    folder = studies.folder_of(name, results)
    from analysis.report.advice_text import advice_on_study

    text = advice_on_study(folder, job, slowdown, memory_gb, markdown)
    print(text) if markdown else terminal.show(text)
    studies.warn_if_outdated(folder)


def _seconds(budget: str) -> float:
    """The value of --budget in seconds. Raises Mistyped."""
    from workflow.collocation.study.definition import check_duration, parse_seconds

    try:
        budget_s = parse_seconds(check_duration(budget))
    except ValueError as error:
        raise Mistyped(f"--budget {budget}: {error}") from None
    if budget_s < LEAST_BUDGET_S:
        raise Mistyped(f"--budget {budget}: allowed: {LEAST_BUDGET_S:g}s or more")
    return budget_s
