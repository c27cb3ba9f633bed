"""What a person reads of a study: its first lines, its plan, and which cells have no result."""

import shlex
from collections import Counter

from workflow.collocation.gpu import cores
from workflow.collocation.plan import pending
from workflow.collocation.plan.session import Session
from workflow.collocation.record.run_json import RESULTS
from workflow.collocation.record.values import FileDigest
from workflow.collocation.run import environment
from workflow.collocation.run.outcome import log_of
from workflow.collocation.sharing.base import named


def banner(session: Session) -> str:
    """The first lines of a run: which study and why, how many cells, how long, and what to know."""
    study = f"study '{session.name}' ({session.why})"
    study += f" on {_where(session)}" * bool(session.jobs)  # where nothing runs it tells nothing
    lines = [f"{study}: {session.study.description.strip()}", _counts(session), *_notes(session)]
    return "\n  ".join(lines)


def _where(session: Session) -> str:
    if session.remote:
        return f"a cluster's {'GPUs' if session.on_gpu else 'CPUs'}"
    if session.devices[1:]:
        names = ", ".join({device.name: None for device in session.devices})
        return f"{len(session.devices)} GPUs, {names}"
    return session.device.name if session.device else f"CPU, {cores.usable()} cores"


def _counts(session: Session) -> str:
    every = [*session.cells, *session.elsewhere]
    done = sum(
        any(attempt.status in RESULTS for attempt in pending.attempts_at(cell, session.attempts))
        for cell in every
    )
    said = f"{len(every)} cells"
    said += f" ({len(session.elsewhere)} merged from elsewhere)" * bool(session.elsewhere)
    said += f", {done} measured, "
    said += f"{len(session.jobs)} to run now" if session.measuring else f"{len(every) - done} not"
    if refused := sum(session.refusal(job.cell) is not None for job in session.jobs):
        said += f" ({refused} of them 'unsupported')"
    if session.later:
        said += f", {len(session.later)} left for later (budget)"
    if session.jobs or session.later:
        minutes = session.seconds / 60
        said += f", about {minutes / 60:.1f} h" if minutes >= 57 else f", about {minutes:.0f} min"
    return said + (" (a guess: none is measured here yet)" if session.jobs and not done else "")


def _notes(session: Session) -> list[str]:
    """What the person may not expect, and what to do about it."""
    notes = [session.no_gpu] if session.device and session.no_gpu else []
    if session.sealed:
        notes.append("sealed: measured only with measure=true; verify tells what differs")
    pins = {name: session.datasets.pinned(name) for name in session.datasets.sizes}
    if pins:
        source = session.config.source
        data = [f"{name} {f'{pin} (pinned)' if pin else source}" for name, pin in pins.items()]
        notes.append(f"data: {', '.join(data)}")
    corrupt = [a for found in session.attempts.values() for a in found if a.record is None]
    if corrupt:
        notes.append(f"corrupt, measured again: {', '.join(str(a.path) for a in corrupt)}")
    if session.measuring and (mismatched := session.mismatched()):
        notes.append(
            f"{len(mismatched)} cells were measured with other code or versions; "
            "rerun=mismatched measures them again"
        )
    if session.jobs and (dropped := environment.dropped()):
        notes.append(f"set here, and not passed to the jobs: {', '.join(dropped)}")
    notes += filter(None, [damage_note(session)])
    if not session.jobs and (page := session.folder / "results.md").exists():
        notes.append(f"read in {session.folder}: {page.name}")
    return notes


def damage_note(session: Session) -> str:
    """Which attempts' files are gone or altered, and what to do; empty if none is.

    Of a sealed study its list tells it, else each record, of what lies beside it.
    """
    expected, listed = {}, session.folder / "raw.sha256"
    if session.sealed and listed.is_file():
        lines = listed.read_text("utf-8", errors="replace").splitlines()
        expected = {session.folder / line[66:]: line[:64] for line in lines if "  cells/" in line}
    else:
        for attempt in pending.counted_attempts(
            [*session.cells, *session.elsewhere], session.attempts
        ):
            files = attempt.record.files.items()
            expected |= {attempt.path.with_name(name): file.sha256 for name, file in files}
    wrong: dict[str, str] = {}  # attempt → what is wrong with one of its files
    for path, digest in expected.items():
        if not path.is_file() or FileDigest.of(path).sha256 != digest:
            how = f"{path.name} {'has changed' if path.is_file() else 'is gone'}"
            wrong.setdefault(path.parent.as_posix(), how)
    named = ", ".join(f"{attempt} ({wrong[attempt]})" for attempt in [*wrong][: pending.MAX_NAMED])
    check = f"collocate {'verify' if session.sealed else 'seal'} {session.name}"
    if session.config.results != "results":
        check += f" --results {shlex.quote(session.config.results)}"
    said = f"damaged, {len(wrong)} of the measured attempts: {named}; {check} names what differs"
    return said if wrong else ""


def plan_table(session: Session) -> str:
    """Every cell to run in order, when it is done, and what will not be measured."""
    jobs = [*session.jobs, *session.later]
    lines, spent = [banner(session)], {}
    if session.forbidden:
        lines.append(f"  {session.forbidden}")
    if jobs:
        lines += ["", f"{'done by':>11}  cell"]
    refused, doubts = Counter(), set()
    for place, job in enumerate(jobs):
        end = job.spend(spent)  # devices work side by side
        if reason := session.refusal(job.cell):
            refused[reason] += 1
            continue
        doubts.add(named(job.cell.method).experimental)
        by = f"{end / 60:7.1f} min" if place < len(session.jobs) else "  won't fit"
        why = "" if job.why == pending.NEW else f"  ({job.why})"
        lines.append(f"{by}  {job.cell.id}{why}")
    if refused:
        lines += ["", "cells that will be 'unsupported':"]
        lines += [f"{count:11}  {reason}" for reason, count in refused.items()]
    lines += [f"\n{word}" for word in sorted(doubts - {None})]
    return "\n".join([*lines, *(["", *said] if (said := fault_lines(session)) else [])])


def fault_lines(session: Session) -> list[str]:
    """Each cell that failed and has no result: with what, where its log says why, what to do."""
    most, exhausted = (
        session.config.attempts,
        pending.cells_without_result(session.cells, session.attempts),
    )
    if not exhausted:
        return []
    lines = [f"{len(exhausted)} cells of study '{session.name}' have no result:"]
    for cell, attempt, count in exhausted:
        then = f"tried again, {most - count} more" if count < most else "not tried again"
        first = (attempt.record.reason or "no reason given").splitlines()[0]
        lines.append(f"  {cell.id}: {attempt.status} (attempt {count}; {then}): {first}")
        lines.append(f"    log: {log_of(attempt.path.parent, first)}")
    return [
        *lines,
        "mend what the logs name; the same command tries again, "
        f"and attempts={most + 1} those that are not tried any more",
    ]
