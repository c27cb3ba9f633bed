"""`collocate advise`: how many of a job to run on one GPU, and by which method."""

import json
import math
import shlex
from pathlib import Path
from typing import Annotated

import typer

from collocate import probing, studies, terminal
from collocate.app import Mistyped, app, require_packages, seconds_of

LEAST_BUDGET_S = 60.0
SEPARATOR = "---"  # between the commands of two jobs
DECIDED = ("study", "studies", "workloads", "attempts", "budget", "wait", "timeout", "rerun")
DECIDED += ("session", "measure", "results")  # keys that no --set may change
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
        typer.Option(
            min=1,
            metavar="X",
            show_default="any",
            help="times as long as alone, of the slowest job",
        ),
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
    collocate advise -- python a.py --- python b.py
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
    bounds |= {"budget_s": seconds_of("--budget", budget, LEAST_BUDGET_S), "measure_sets": measure}
    words = studies.setting_pairs(settings)
    for word in words:
        if word.partition("=")[0] in DECIDED:
            raise Mistyped(f"--set {word}: a question has its own; allowed: gpu=, source=, …")
    require_packages(probing.NEEDED)
    from analysis.advice.job import request as requests
    from analysis.advice.job import text
    from workflow.collocation.study.load import find_config_file

    try:
        if command:
            script = {"samples": batch or 1, "steps": steps, "first_step_s": first_step} | bounds
            asked = [requests.of_script(one, Path.cwd(), **script) for one in _split(command)]
        elif model:
            asked = [requests.of_model(model, batch or 32, size, **bounds)]
        else:
            catalogue = find_config_file("config/workloads.yaml")
            asked = [requests.of_catalogue(workload, catalogue, **bounds)]
    except ValueError as error:
        raise Mistyped(str(error)) from None
    with terminal.Progress(bounds["budget_s"]) as progress:
        if len(asked) > 1:
            advice, folder = probing.ask_about_pair(asked, words, results, progress, write_here)
        else:
            advice, folder = probing.ask(asked[0], words, results, progress, write_here)
    if as_json:
        print(json.dumps(advice, indent=1))
        return
    if as_markdown:
        print(text.markdown(advice))
    else:
        terminal.show(text.terminal(advice))
    _show_next_commands(advice, folder, command)


def _split(command: list[str]) -> list[list[str]]:
    """The command of one job, or those of two, which `---` separates. Raises Mistyped."""
    if SEPARATOR not in command:
        return [command]
    position = command.index(SEPARATOR)
    commands = [command[:position], command[position + 1 :]]
    if not all(commands) or SEPARATOR in commands[1]:
        raise Mistyped(f"{SEPARATOR}: stands between the commands of two jobs")
    return commands


def _refuse_ignored(context: typer.Context) -> None:
    """Raises Mistyped for an option that this question would ignore."""
    question = next(name for name in ALLOWED if context.params[name])
    for parameter in context.command.params:
        typed = context.get_parameter_source(parameter.name).name == "COMMANDLINE"
        allowed = ALLOWED[question] | {question}
        if typed and parameter.name not in allowed:
            subject = "a command" if question == "command" else f"--{question}"
            raise Mistyped(f"{parameter.opts[0]}: {subject} takes no such option")


def _show_next_commands(advice: dict, folder: Path, command: list[str]) -> None:
    """Print what to type next, unwrapped, so that it can be copied."""
    if advice.get("jobs", 1) > 1 and advice["run"] and advice["card"] != "CPU":
        path = shlex.quote(str(folder / "advice.json"))
        print(f"\nStart it:\n  collocate recipe {path} > start.sh\n  bash start.sh")
        method = "mps" if advice["method"] == "mps" else "separate"
        sweep = f"collocate run --jobs {advice['jobs']} --method {method} --runs 40 --"
        words = [word.replace("{", "{{").replace("}", "}}") for word in command]
        print(f"\nRun 40 of it{_share_of_time(advice)} ({{n}} in a word is a run's number):")
        print(f"  {sweep} {shlex.join(words)}")


def _share_of_time(advice: dict) -> str:
    """How long a sweep takes, relative to one run after the other; empty if not measured."""
    started = (advice["jobs"], advice["method"])
    for measured in advice["measured"]:
        if (measured["jobs"], measured["method"]) == started:
            return f", in {1 / measured['stp'][0]:.0%} of the time of one after the other"
    return ""


def _advise_on_study(
    name: str, results: Path | None, job: str, slowdown: float, memory_gb: float, markdown: bool
) -> None:
    folder = studies.folder_of(name, results)
    from analysis.report.advice_text import advice_on_study

    text = advice_on_study(folder, job, slowdown, memory_gb, markdown)
    print(text) if markdown else terminal.show(text)
    studies.warn_if_outdated(folder)
