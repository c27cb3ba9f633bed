"""`collocate advise`: how many of a job to run on one GPU, and by which method."""

import json
import math
import shlex
from pathlib import Path
from typing import Annotated

import typer

from collocate import ROOT, studies, terminal
from collocate.app import Mistyped, app

LEAST_BUDGET_S = 60.0
NEEDED = ("snakemake", "pandas", "pyarrow", "scipy", "psutil", "pynvml", "yaml")
OURS = ("study", "studies", "workloads", "attempts", "budget")  # keys that the question decides


@app.command(context_settings={"allow_interspersed_args": False})
def advise(
    command: Annotated[
        list[str],
        typer.Argument(metavar="[--] COMMAND...", help="of one job, taken word by word as it is"),
    ] = [],  # noqa: B006, Typer reads it and copies it
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
    settings: studies.Settings = [],  # noqa: B006, Typer reads it and copies it
) -> None:
    """Say how many of your job one GPU should run.

    It runs the job here, alone and in sets, for about three minutes: by its optimizer's steps, so
    the script stays as it is.

    \b
    collocate advise -- python train.py --lr 0.1
    collocate advise --model resnet50 --batch 64
    collocate advise --study ladder
    """
    asked = [name for name in (command, model, study or workload) if name]
    if len(asked) != 1:
        raise Mistyped("give one of: -- COMMAND, --model, --workload, --study")
    if math.isnan(max_slowdown) or math.isnan(max_memory):
        raise Mistyped("--max-slowdown, --max-memory: allowed: a number")
    if study:
        if as_json or steps or first_step or batch:
            raise Mistyped("--study takes --workload, --max-slowdown, --max-memory, --markdown")
        _of_study(study, results, workload, max_slowdown, max_memory, as_markdown)
        return
    bounds = {"max_jobs": max_jobs, "max_slowdown": max_slowdown, "max_memory_gb": max_memory}
    bounds |= {"budget_s": _seconds(budget), "measure_sets": measure}
    words = studies.pairs(settings)
    for word in words:
        if word.partition("=")[0] in OURS:
            raise Mistyped(f"--set {word}: a question has its own; allowed: gpu=, source=, …")
    from analysis.advice.job import advise as answers
    from analysis.advice.job import request as requests
    from analysis.advice.job import text
    from analysis.advice.job.measuring import AdviceStudy
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
    _able(words)
    folder = _folder(results)
    with terminal.live(bounds["budget_s"]) as progress:
        advice = answers.advise(request, AdviceStudy(request, folder, words, progress))
    path = folder / request.study
    if as_json:
        print(json.dumps(advice, indent=1))
        return
    shown = text.markdown(advice) if as_markdown else text.terminal(advice)
    print(shown) if as_markdown else terminal.show(shown)
    _what_next(advice, path)


def _able(words: list[str]) -> None:
    """Say at once what measuring lacks here. Raises ValueError."""
    from workflow.collocation.gpu import find_devices
    from workflow.collocation.plan.jobs import missing_packages
    from workflow.collocation.study.load import load_config, read_config_values

    if missing := missing_packages(NEEDED):
        raise ValueError(f"not installed: {', '.join(missing)}; `make install` in {ROOT} does")
    wanted = load_config(read_config_values(words)).gpu
    devices, why_not = find_devices(wanted)
    if not devices and wanted != "cpu":
        raise ValueError(
            f"no GPU is used here ({why_not}); --set gpu=cpu tries the command on the CPU, and "
            "says nothing about sharing a GPU"
        )


def _folder(results: Path | None) -> Path:
    """Where measurements go; a new folder of ours is none that git looks into."""
    if results is not None or Path.cwd() == ROOT:
        return (results or Path("results")).expanduser()
    folder = Path("collocate")
    if not folder.exists():
        folder.mkdir()
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    return folder


def _what_next(advice: dict, folder: Path) -> None:
    """Print what to type next: in one piece each, so that it can be copied."""
    if advice["jobs"] > 1 and advice["run"] and advice["card"] != "CPU":
        path = shlex.quote(str(folder / "advice.json"))
        print(f"\nStart it:\n  collocate recipe {path} > start.sh\n  bash start.sh")
    if (folder / "explorer.html").exists():
        print(f"\nRead on:\n  {folder / 'results.md'}\n  {folder / 'explorer.html'}")


def _of_study(
    name: str, results: Path | None, job: str, slowdown: float, memory_gb: float, markdown: bool
) -> None:
    folder = studies.folder_of(name, results)
    from analysis.report.advice_text import advice_on_study

    text = advice_on_study(folder, job, slowdown, memory_gb, markdown)
    print(text) if markdown else terminal.show(text)
    studies.warn_if_outdated(folder)


def _seconds(budget: str) -> float:
    from workflow.collocation.study.definition import check_duration, parse_seconds

    try:
        found = parse_seconds(check_duration(budget))
    except ValueError as error:
        raise Mistyped(f"--budget {budget}: {error}") from None
    if found < LEAST_BUDGET_S:
        raise Mistyped(f"--budget {budget}: allowed: {LEAST_BUDGET_S:g}s or more")
    return found
