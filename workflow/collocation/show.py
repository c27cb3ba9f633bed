"""What a person reads of a sitting: its first lines, its plan, and what failed.

`python -m workflow.collocation.show` prints the plan (`make plan`); with --check it says at the end
of a run which cells have no result.
"""

import argparse
import os
import sys

from workflow.collocation import plan, record
from workflow.collocation.grid import Cell
from workflow.collocation.methods import named
from workflow.collocation.settings import ConfigError, read_values
from workflow.collocation.sitting import Sitting, open_sitting


def banner(sitting: Sitting) -> str:
    """The first lines of a run: which study, why, how many cells, what is there, how long."""
    done = sum(1 for cell in sitting.cells if _done(sitting, cell))
    hours = sum(job.estimate_s for job in sitting.jobs) / 3600
    device = sitting.device
    where = device.name if device else f"CPU, {len(os.sched_getaffinity(0))} cores"
    lines = [
        f"study '{sitting.name}' ({sitting.why}) on {where}: {sitting.study.description.strip()}",
        f"  {len(sitting.cells)} cells, {done} measured, {len(sitting.jobs)} to run now"
        + (f", {len(sitting.later)} left for later (budget)" if sitting.later else "")
        + (f", about {hours:.1f} h" if hours >= 0.95 else f", about {hours * 60:.0f} min")
        + ("" if done or not sitting.jobs else " (by a rule of thumb, as nothing is measured yet)"),
    ]
    if sitting.sealed and not sitting.measuring:
        lines.append(
            f"  sealed: it ships as it is, {len(sitting.cells) - done} cells not measured; "
            "'--config measure=true' (make: CONFIG=measure=true) measures them"
        )
    if sitting.datasets:
        lines.append(f"  data: {', '.join(_source(sitting, name) for name in sitting.datasets)}")
    corrupt = [a for found in sitting.attempts.values() for a in found if a.content is None]
    if corrupt:
        lines.append(f"  corrupt, measured again: {', '.join(str(a.path) for a in corrupt)}")
    if sitting.measuring and (mismatched := sitting.mismatched()):
        lines.append(
            f"  {len(mismatched)} cells were measured with other code or versions; "
            "'--config rerun=mismatched' measures them again"
        )
    if sitting.measuring and sitting.name != "kick":
        auto = sitting.config.study == "auto" and not device
        here = "on a machine with a CUDA card this runs 'paper'; " if auto else ""
        lines.append(
            f"  {here}'--config study=kick' gives all figures on any CUDA card in 15 minutes"
        )
    return "\n".join(lines)


def _done(sitting: Sitting, cell: Cell) -> bool:
    return any(a.status in record.RESULTS for a in plan.same(cell, sitting.attempts))


def _source(sitting: Sitting, dataset: str) -> str:
    pinned = sitting.pinned(dataset)
    return f"{dataset} {pinned} (pinned)" if pinned else f"{dataset} {sitting.config.source}"


def table(sitting: Sitting) -> str:
    """`make plan`: every cell to run, in order, with its time and what fits the budget."""
    lines, spent = [banner(sitting)], 0.0
    refused: dict[str, int] = {}
    if sitting.jobs or sitting.later:
        lines += ["", f"{'done by':>11}  cell"]
    fits = {job.path for job in sitting.jobs}
    for job in (*sitting.jobs, *sitting.later):
        spent += job.estimate_s
        if reason := sitting.refusal(job.cell):
            refused[reason] = refused.get(reason, 0) + 1
            continue
        by = f"{spent / 60:7.1f} min" if job.path in fits else "  won't fit"
        why = "" if job.why == plan.NEW else f"  ({job.why})"
        lines.append(f"{by}  {job.cell.id}{why}")
    if refused:
        lines += ["", "cells that will be 'unsupported':"]
        lines += [f"{count:11}  {reason}" for reason, count in refused.items()]
    jobs = [job for job in (*sitting.jobs, *sitting.later) if sitting.refusal(job.cell) is None]
    if warnings := {named(job.cell.method).experimental for job in jobs} - {None}:
        lines += ["", *sorted(warnings)]
    if sitting.study.impossible:
        lines += ["", "rows of the authors' schedule that cannot exist:"]
        lines += [f"  {entry.row}: {entry.reason}" for entry in sitting.study.impossible]
    return "\n".join(lines)


def faults(sitting: Sitting) -> list[str]:
    """One line for each cell that failed or timed out and has no result."""
    lines = []
    for cell, attempt, count in plan.exhausted(sitting.cells, sitting.attempts):
        more = sitting.config.attempts - count
        then = f"tried again next time, {more} more" if more > 0 else "not tried again"
        first = (attempt.content["reason"] or "no reason given").splitlines()[0]
        lines.append(f"{cell.id}: {attempt.status} (attempt {count}; {then}): {first}")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--check", action="store_true", help="list failed cells; 1 if there are any"
    )
    args = parser.parse_args(argv)
    try:
        sitting = open_sitting(read_values(args.config))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if not args.check:
        print(table(sitting))
        return 0
    if found := faults(sitting):
        print(f"{len(found)} cells of study '{sitting.name}' have no result:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
