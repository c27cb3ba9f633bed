"""`collocate run`: a sweep of many runs, some at a time on each GPU."""

import math
import os
import shlex
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collocate import terminal
from collocate.app import Mistyped, app, require_packages, seconds_of
from collocate.folders import project_folder
from collocate.recipe import SharingMethod

if TYPE_CHECKING:
    from workflow.collocation.gpu import Device
    from workflow.collocation.sweep.journal import Sweep
    from workflow.collocation.sweep.record import Run
    from workflow.collocation.sweep.session import Supervisors

NEEDED = ("psutil", "pynvml", "yaml")
FORECAST = ("numpy", "pandas", "pyarrow")  # without --jobs


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND...",
            help="of a run, word by word: {n} is its number, from 0; {{ and }} are braces",
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, metavar="N", help="with COMMAND: how many"),
    ] = None,
    commands: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="in place of COMMAND: a command a line, # comments"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=48,
            metavar="N",
            show_default="as many as have room",
            help="runs at once on a GPU",
        ),
    ] = None,
    method: Annotated[
        SharingMethod | None,
        typer.Option(show_default="mps; separate on the CPU", help="how they share a GPU"),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default="none",
            help="such as 2h; a longer run is ended and failed",
        ),
    ] = None,
    gpus: Annotated[
        str,
        typer.Option(
            metavar="GPUS", show_default="the first", help="0,1 (or UUIDs), all, or cpu to try it"
        ),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", show_default="collocate/run-1, …", help="of this sweep"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the commands only")] = False,
) -> None:
    """Run a sweep of many runs, some at a time on each GPU.

    The same command carries on where it was stopped or killed. Output and records are in the
    sweep's folder, which each run finds in COLLOCATION_FOLDER, and its number in COLLOCATION_RUN.

    \b
    collocate run --jobs 4 --runs 40 -- python train.py --seed {n}
    collocate run --jobs 4 --gpus all --commands runs.txt
    """
    lines = _commands(words, runs, commands)
    limit_s = math.inf if timeout is None else seconds_of("--timeout", timeout, least_s=1.0)
    if dry_run:
        for number, line in enumerate(lines):
            print(f"{number:04}  {shlex.join(line)}")
        return
    require_packages(NEEDED if jobs else NEEDED + FORECAST)
    devices = _devices(gpus)
    method = method or (SharingMethod.separate if devices == [None] else SharingMethod.mps)
    _refuse(devices, jobs, method)
    from workflow.collocation.gpu.lock import local_locks
    from workflow.collocation.sweep.journal import Sweep
    from workflow.collocation.sweep.session import Supervisors
    from workflow.collocation.sweep.supervisor import Sharing

    sweep = Sweep(_sweep_folder(folder, lines))
    if words and lines[0] == lines[-1] and len(lines) > 1:
        terminal.complain("runs are alike: have each write to its $COLLOCATION_FOLDER, or use {n}")
    if option := local_locks(sweep.folder):
        place = f"{sweep.folder} is mounted with {option}"
        terminal.complain(
            f"{place}: run this sweep on one machine only, as locks do not reach others"
        )
    sharing = Sharing(method.value, jobs, predicted_gain, limit_s)
    _carry_out(Supervisors(sweep, devices, sharing), sweep)


def _commands(words: list[str] | None, runs: int | None, path: Path | None) -> list[list[str]]:
    """The commands of all runs. Raises Mistyped."""
    from workflow.collocation.sweep.commands import listed, missing_program, numbered

    if bool(words) == bool(path):
        raise Mistyped("give one of: -- COMMAND, --commands")
    if bool(words) != bool(runs):
        raise Mistyped("--runs N goes with -- COMMAND, and not with --commands")
    try:
        lines = numbered(words, runs) if words else listed(path)
    except FileNotFoundError:
        raise Mistyped(f"{path}: no such file") from None
    except (ValueError, OSError) as error:
        raise Mistyped(str(error)) from None
    if problem := missing_program(lines):
        raise Mistyped(problem)
    return lines


def _devices(gpus: str) -> "list[Device | None]":
    """The GPUs to use; None stands for the CPU. Raises ConfigError, ValueError."""
    from workflow.collocation.gpu import find

    if gpus == "cpu":
        return [None]
    devices = find(gpus if gpus not in ("", "all") else "auto")
    for device in devices:
        if not device.shown_to(os.environ):
            raise Mistyped(f"--gpus: CUDA_VISIBLE_DEVICES hides GPU {device.index}")
    if not devices:
        raise ValueError("no GPU was found; --gpus cpu tries the command on the CPU")
    return devices if gpus else devices[:1]


def _refuse(devices: "list[Device | None]", jobs: int | None, method: SharingMethod) -> None:
    """Raise Mistyped or ValueError where these devices cannot be shared so."""
    from workflow.collocation.gpu.nvidia import mig_enabled
    from workflow.collocation.sharing.evidence import CONTROL

    if devices == [None]:
        if jobs is None:
            raise Mistyped("--jobs: give a number; on the CPU nothing shows how many have room")
        if method is SharingMethod.mps:
            raise Mistyped("--method mps: needs a GPU; allowed: separate")
        return
    if method is SharingMethod.mps and shutil.which(CONTROL) is None:
        raise ValueError(f"{CONTROL} is not on PATH; --method separate does without")
    for device in devices:
        if jobs is None and device.memory_bytes is None:
            raise Mistyped(f"--jobs: give a number; the memory of GPU {device.index} is not known")
        if mig_enabled(device):
            raise ValueError(f"GPU {device.index} is in MIG mode; a sweep shares whole GPUs only")
        if problem := device.too_many(1 if method is SharingMethod.mps else jobs or 2):
            raise ValueError(problem)


def _sweep_folder(folder: Path | None, lines: list[list[str]]) -> Path:
    """The folder of this sweep, which is made if need be. Raises Mistyped."""
    from workflow.collocation.gpu.lock import LockHeld
    from workflow.collocation.sweep.journal import find_or_make, open_or_make

    is_told = False
    while True:
        try:
            if folder is None:
                return find_or_make(project_folder(), lines, Path.cwd())
            open_or_make(folder.expanduser(), lines, Path.cwd())
            return folder.expanduser()
        except LockHeld as held:  # the same command on another machine
            if not is_told:
                terminal.complain(f"waits: {held}")
            is_told = True
            time.sleep(0.2)
        except ValueError as error:
            raise Mistyped(f"--folder: {error}") from None


def _carry_out(supervisors: "Supervisors", sweep: "Sweep") -> None:
    """Work off a sweep, write its table, and print a summary. Raises ValueError if runs failed."""
    from workflow.collocation.sweep import table

    before = table.counts(sweep.runs(), sweep.session)
    with terminal.Progress(None) as progress:
        earlier = f": {before['ended']} runs are done; to run all again, give a new --folder"
        progress.note(f"{sweep.folder}{earlier if before['ended'] else ''}")
        noted = {""}

        def show(runs: "list[Run]", waits_for: str) -> None:
            number = table.counts(runs, sweep.session)
            name = f"{number['ended']} of {len(runs)} runs done, {number['running']} running"
            name += f", {number['failed']} failed" if number["failed"] else ""
            progress.set_seconds_left(table.seconds_left(runs, sweep.session, datetime.now(UTC)))
            progress(name, waits_for)
            if waits_for not in noted:
                progress.note(waits_for)
            noted.add(waits_for)

        try:
            if before["ended"] < len(sweep.commands):
                supervisors.work(show)
        finally:
            path = table.write_table(sweep.folder, sweep.runs(), sweep.session)
    for name, problem in supervisors.problems.items():
        terminal.complain(f"{name}: {problem}")
    _summarize(sweep, path, complete=not supervisors.problems)


def _summarize(sweep: "Sweep", path: Path, complete: bool) -> None:
    """Print how many runs ended well. Raises ValueError if any did not, or was left.

    complete: whether all supervisors ended as they should; then what still runs, runs elsewhere.
    """
    from workflow.collocation.sweep import table

    runs = sweep.runs()
    number = table.counts(runs, sweep.session)
    terminal.show(f"{number['ended']} of {len(runs)} runs ended well: {path}")
    if numbers := table.without_mps(runs):
        terminal.complain(f"these ran without MPS (its daemon never listed them): {_few(numbers)}")
    failed = [run.run for run in runs if run.state(sweep.session) == "failed"]
    if failed:
        reason = runs[failed[0]].attempts[-1].reason
        raise ValueError(f"failed: {_few(failed)}; run {failed[0]}: {reason}")
    left = number["waiting"] + (0 if complete else number["running"])
    if left:
        raise ValueError(f"{left} runs are left; the same command carries on")
    if number["running"]:
        raise ValueError(f"{number['running']} runs go on under other commands of this sweep")


def _few(numbers: list[int]) -> str:
    """The first ten of them, and how many more there are."""
    more = f" and {len(numbers) - 10} more" if len(numbers) > 10 else ""
    return ", ".join(map(str, numbers[:10])) + more


def predicted_gain(method: str, activity: list[tuple[float, float]]) -> float:
    """Predicted work of runs with one more like their mean, over that without it.

    activity: GRACT and SMACT of each run; where there is none, nothing is against one more.
    """
    if not activity:
        return math.inf
    import numpy as np

    from analysis.advice.predict import AloneActivity, predict_stp

    name = "mps" if method == SharingMethod.mps else "naive"
    jobs = [AloneActivity(*shares) for shares in activity]
    mean = AloneActivity(*np.mean(activity, axis=0).tolist())
    before = predict_stp(name, jobs).stp if len(jobs) > 1 else 1.0
    return predict_stp(name, [*jobs, mean]).stp / before
