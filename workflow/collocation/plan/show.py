"""What a person reads of a session: its first lines, its plan, and what failed.

`python -m workflow.collocation.plan.show` prints the plan (`make plan`); with --check it says at
the end of a run which cells have no result.
"""

import argparse
import sys
from collections import Counter

from workflow.collocation.gpu import cores
from workflow.collocation.plan import costs, fits, pending
from workflow.collocation.plan.session import Session, open_session, shipped
from workflow.collocation.record.run_json import MEASURED, RESULTS
from workflow.collocation.run import environment
from workflow.collocation.run.outcome import log_of
from workflow.collocation.sharing.base import JOIN, named
from workflow.collocation.spec.errors import ConfigError, NotInForce
from workflow.collocation.spec.load import read_values


def banner(session: Session) -> str:
    """The first lines of a run: which study, why, how many cells, what is there, how long."""
    done = sum(
        any(attempt.status in RESULTS for attempt in pending.same(cell, session.attempts))
        for cell in session.cells
    )
    minutes = session.seconds / 60
    where = session.device.name if session.device else f"CPU, {cores.usable()} cores"
    if session.devices[1:]:
        where = f"{len(session.devices)} GPUs, {', '.join({d.name: None for d in session.devices})}"
    if session.remote:
        where = f"a cluster's {'GPUs' if session.on_gpu else 'CPUs'}"
    said = [f"{len(session.cells)} cells, {done} measured, {len(session.jobs)} to run now"]
    if refused := sum(session.refusal(job.cell) is not None for job in session.jobs):
        said[0] += f" ({refused} of them 'unsupported')"
    if session.elsewhere:
        said.append(f"{len(session.elsewhere)} merged from elsewhere")
    if session.later:
        said.append(f"{len(session.later)} left for later (budget)")
    said.append(f"about {minutes / 60:.1f} h" if minutes >= 57 else f"about {minutes:.0f} min")
    if session.jobs and not done:
        said[-1] += " (a guess: none is measured here yet)"
    lines = [
        f"study '{session.name}' ({session.why}) on {where}: {session.study.description.strip()}",
        ", ".join(said),
    ]
    if session.device and session.no_gpu:
        lines.append(session.no_gpu)
    many, used = len(session.usable), len(session.devices)
    if "," in str(session.config.gpu) and used < many:
        lines.append(
            f"gpu: {session.config.gpu} names {many} GPUs, used at once: {used}; GPUS=all "
            f"(snakemake: --cores all --resources gpu={many}) uses all"
        )
    if session.sealed and not session.measuring:
        left = len(session.cells) - done
        lines.append(
            f"sealed, so nothing is measured, and {left} cells are left (see not_run.txt); "
            "'--config measure=true' (make: CONFIG=measure=true) measures them"
            if left
            else "sealed: all its cells are measured"
        )
    if session.sealed:
        study = f"STUDY={session.name}"
        lines.append(f"'make verify {study}' tells what differs, 'make seal {study}' seals it anew")
    pins = {name: session.datasets.pinned(name) for name in session.datasets.sizes}
    source = session.config.source
    data = [f"{name} {pin} (pinned)" if pin else f"{name} {source}" for name, pin in pins.items()]
    if data:
        lines.append(f"data: {', '.join(data)}")
    corrupt = [a for found in session.attempts.values() for a in found if a.content is None]
    if corrupt:
        lines.append(f"corrupt, measured again: {', '.join(str(a.path) for a in corrupt)}")
    if session.measuring and (mismatched := session.mismatched()):
        lines.append(
            f"{len(mismatched)} cells were measured with other code or versions; "
            "'--config rerun=mismatched' measures them again"
        )
    if session.jobs and (dropped := environment.account()["dropped"]):
        lines.append(
            f"set here, and not passed to the jobs: {', '.join(dropped)}; "
            "a script's 'environment' can have them (docs/study.md)"
        )
    if session.jobs and session.config.study == "auto":
        here = "" if session.device else "on a machine with a CUDA card this runs 'paper'; "
        lines.append(
            f"{here}'--config study=kick' gives all figures on a large CUDA card in 15 minutes"
        )
    return "\n  ".join(lines)


def table(session: Session) -> str:
    """`make plan`: every cell to run, in order, with its time and what fits the budget."""
    jobs = [*session.jobs, *session.later]
    lines, spent = [banner(session)], dict.fromkeys((job.device for job in jobs), 0.0)
    if session.forbidden:
        lines.append(f"  {session.forbidden}; 'make plan CARD=FILE' plans for a card")
    refused = Counter(filter(None, (session.refusal(job.cell) for job in jobs)))
    if jobs:
        lines += ["", f"{'done by':>11}  cell"]
    for place, job in enumerate(jobs):
        end = job.spend(spent, job.estimate_s)  # devices work side by side
        if session.refusal(job.cell) is None:
            in_time = place < len(session.jobs)
            by = f"{end / 60:7.1f} min" if in_time else "  won't fit"
            why = "" if job.why == pending.NEW else f"  ({job.why})"
            lines.append(f"{by}  {job.cell.id}{why}")
    if refused:
        lines += ["", "cells that will be 'unsupported':"]
        lines += [f"{count:11}  {reason}" for reason, count in refused.items()]
    lines += _in_turns(session)
    lines += _costs(session, jobs)
    if session.device:
        measured = {**shipped(), **session.attempts}
        place = fits.whole(session.device.memory_bytes)
        lines += ["", *fits.lines([job.cell for job in jobs], fits.peaks(measured), place)]
    possible = [job.cell.method for job in jobs if session.refusal(job.cell) is None]
    if warnings := {named(method).experimental for method in possible} - {None}:
        lines += ["", *sorted(warnings)]
    if session.study.impossible:
        lines += ["", "rows of the authors' schedule that cannot exist:"]
        lines += [f"  {entry.row}: {entry.reason}" for entry in session.study.impossible]
    return "\n".join(lines)


def _costs(session: Session, jobs: list[pending.Job]) -> list[str]:
    """What verdicts and figures still need of these jobs."""
    seconds = {job.cell.id: job.estimate_s for job in jobs if not session.refusal(job.cell)}
    none = {
        cell.id
        for cell in session.cells
        if cell.id not in seconds
        and not any(attempt.status in MEASURED for attempt in session.attempts.get(cell.id, ()))
    }
    return costs.lines(session.cells, seconds, none)


def _in_turns(session: Session) -> list[str]:
    """Of each set how it is measured, where a study has some whose sides take turns in one cell."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for cell in session.cells:
        kind = cell.spec.measure.kind
        if kind == "alternate" or (kind == "window" and cell.n > 1):
            how = "in turns" if kind == "alternate" else "in blocks"
            name = f"{cell.scenario.replace('--alternate', '')}/{cell.arm}"
            methods = found.setdefault(name, {}).setdefault(how, {})
            methods[cell.method.replace(JOIN, ", ")] = None
    if not any("in turns" in how for how in found.values()):
        return []
    lines = ["", "sides that take turns in one cell, and cells of their own in blocks:"]
    for name, how in sorted(found.items()):
        said = (f"{', '.join(methods)} {which}" for which, methods in how.items())
        lines.append(f"  {name}: {'; '.join(said)}")
    return lines


def faults(session: Session) -> list[str]:
    """What each cell failed with that has no result, where its log says why, and what to do."""
    lines, last = [], False
    for cell, attempt, count in pending.exhausted(session.cells, session.attempts):
        more = session.config.attempts - count
        then = f"tried again next time, {more} more" if more > 0 else "not tried again"
        first = (attempt.content["reason"] or "no reason given").splitlines()[0]
        lines.append(f"  {cell.id}: {attempt.status} (attempt {count}; {then}): {first}")
        lines.append(f"    log: {log_of(attempt.path.parent, first)}")
        last |= more <= 0
    if lines:
        todo = "mend what the logs name; the same command tries again"
        if last:
            todo += f"; '--config attempts={session.config.attempts + 1}' tries the others as well"
        lines.insert(0, f"{len(lines) // 2} cells of study '{session.name}' have no result:")
        lines.append(todo)
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--gpus", type=int, default=1, help="how many are used at once, at most")
    parser.add_argument("--check", action="store_true", help="list failed cells")
    args = parser.parse_args(argv)
    try:
        session = open_session(read_values(args.config), args.gpus)
    except (ConfigError, NotInForce) as error:
        print(error, file=sys.stderr)
        return 2
    if not args.check:
        print(table(session))
        return 0
    found = faults(session)
    print(end="".join(f"{line}\n" for line in found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
