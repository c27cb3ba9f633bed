"""What a person reads about a study: its first lines, its plan, and the cells without a result."""

import shlex
from collections import Counter
from pathlib import Path

from workflow.collocation.gpu import cores
from workflow.collocation.plan import pending
from workflow.collocation.plan.session import Session
from workflow.collocation.record.run_json import RESULTS
from workflow.collocation.record.values import FileDigest
from workflow.collocation.run import environment
from workflow.collocation.run.outcome import log_of
from workflow.collocation.sharing import method_class
from workflow.collocation.study.layout import RAW


def banner(session: Session) -> str:
    """The first lines of a run: which study and why, how many cells, how long, and notes."""
    study = f"study '{session.name}' ({session.study_reason})"
    if session.jobs:
        study += f" on {_device_text(session)}"
    description = session.study.description.strip()
    return "\n  ".join([f"{study}: {description}", _counts(session), *_notes(session)])


def _device_text(session: Session) -> str:
    if session.remote:
        return f"a cluster's {'GPUs' if session.on_gpu else 'CPUs'}"
    if len(session.devices) > 1:
        names = ", ".join(dict.fromkeys(device.name for device in session.devices))
        return f"{len(session.devices)} GPUs, {names}"
    return session.device.name if session.device else f"CPU, {cores.usable()} cores"


def _counts(session: Session) -> str:
    cells = [*session.cells, *session.merged_cells]
    measured = 0
    for cell in cells:
        attempts = pending.attempts_at(cell, session.attempts)
        measured += any(attempt.status in RESULTS for attempt in attempts)
    text = f"{len(cells)} cells"
    if session.merged_cells:
        text += f" ({len(session.merged_cells)} merged from elsewhere)"
    text += f", {measured} measured, "
    if session.measuring:
        text += f"{len(session.jobs)} to run now"
    else:
        text += f"{len(cells) - measured} not"
    if refused := sum(session.refusal(job.cell) is not None for job in session.jobs):
        text += f" ({refused} of them 'unsupported')"
    if session.later:
        text += f", {len(session.later)} left for later (budget)"
    if session.jobs or session.later:
        minutes = session.seconds / 60
        text += f", about {minutes / 60:.1f} h" if minutes >= 57 else f", about {minutes:.0f} min"
    if session.jobs and not measured:
        text += " (a guess: none is measured here yet)"
    return text


def _notes(session: Session) -> list[str]:
    """Sentences on what a person may not expect, and what to do about it."""
    notes = []
    if session.device and session.no_gpu_reason:
        notes.append(session.no_gpu_reason)
    if session.sealed:
        notes.append("sealed: measured only with measure=true; verify tells what differs")
    sources = []
    for name in session.datasets.sizes:
        pinned = session.datasets.pinned_source(name)
        sources.append(f"{name} {f'{pinned} (pinned)' if pinned else session.config.source}")
    if sources:
        notes.append(f"data: {', '.join(sources)}")
    all_attempts = [attempt for tried in session.attempts.values() for attempt in tried]
    corrupt = [str(attempt.path) for attempt in all_attempts if attempt.record is None]
    if corrupt:
        notes.append(f"corrupt, measured again: {', '.join(corrupt)}")
    if session.measuring and (other_code_cells := session.mismatched()):
        notes.append(
            f"{len(other_code_cells)} cells were measured with other code or versions; "
            "rerun=mismatched measures them again"
        )
    if session.jobs and (dropped := environment.dropped()):
        notes.append(f"set here, and not passed to the jobs: {', '.join(dropped)}")
    if note := damage_note(session):
        notes.append(note)
    if not session.jobs and (page := session.folder / "results.md").exists():
        notes.append(f"read in {session.folder}: {page.name}")
    return notes


def damage_note(session: Session) -> str:
    """A sentence on attempts whose files are missing or changed; empty if none is."""
    problems: dict[str, str] = {}  # attempt's folder → what is wrong with one of its files
    for path, digest in _expected_digests(session).items():
        if not path.is_file():
            problems.setdefault(path.parent.as_posix(), f"{path.name} is gone")
        elif FileDigest.of(path).sha256 != digest:
            problems.setdefault(path.parent.as_posix(), f"{path.name} has changed")
    if not problems:
        return ""
    examples = [f"{attempt} ({problem})" for attempt, problem in problems.items()]
    check = f"collocate {'verify' if session.sealed else 'seal'} {session.name}"
    if session.config.results != "results":
        check += f" --results {shlex.quote(session.config.results)}"
    named_attempts = ", ".join(examples[: pending.MAX_NAMED])
    count = f"{len(problems)} of the measured attempts"
    return f"damaged, {count}: {named_attempts}; {check} names what differs"


def _expected_digests(session: Session) -> dict[Path, str]:
    """Path → SHA-256 of the files of all attempts: a sealed study lists them, else each record."""
    raw_list = session.folder / RAW
    if session.sealed and raw_list.is_file():
        lines = raw_list.read_text("utf-8", errors="replace").splitlines()
        return {session.folder / line[66:]: line[:64] for line in lines if "  cells/" in line}
    digests = {}
    cells = [*session.cells, *session.merged_cells]
    for attempt in pending.counted_attempts(cells, session.attempts):
        for name, file in attempt.record.files.items():
            digests[attempt.path.with_name(name)] = file.sha256
    return digests


def plan_table(session: Session) -> str:
    """Every cell to run, in order, with when it will be done, and what will not be measured."""
    lines = [banner(session)]
    if session.forbidden:
        lines.append(f"  {session.forbidden}")
    if session.jobs or session.later:
        lines += ["", f"{'done by':>11}  cell"]
    device_seconds: dict[str, float] = {}
    refused, caveats = Counter(), set()
    for index, job in enumerate([*session.jobs, *session.later]):
        end = job.add_to(device_seconds)
        if reason := session.refusal(job.cell):
            refused[reason] += 1
            continue
        caveats.add(method_class(job.cell.method).experimental)
        done_by = f"{end / 60:7.1f} min" if index < len(session.jobs) else "  won't fit"
        note = "" if job.reason == pending.NEW else f"  ({job.reason})"
        lines.append(f"{done_by}  {job.cell.id}{note}")
    if refused:
        lines += ["", "cells that will be 'unsupported':"]
        lines += [f"{count:11}  {reason}" for reason, count in refused.items()]
    lines += [f"\n{caveat}" for caveat in sorted(caveats - {None})]
    if faults := fault_lines(session):
        lines += ["", *faults]
    return "\n".join(lines)


def fault_lines(session: Session) -> list[str]:
    """For each cell that failed and has no result: why, its log, and whether it runs again."""
    max_attempts = session.config.attempts
    failed = pending.cells_without_result(session.cells, session.attempts)
    if not failed:
        return []
    lines = [f"{len(failed)} cells of study '{session.name}' have no result:"]
    for cell, attempt, count in failed:
        future = "not tried again"
        if count < max_attempts:
            future = f"tried again, {max_attempts - count} more"
        reason = (attempt.record.reason or "no reason given").splitlines()[0]
        lines.append(f"  {cell.id}: {attempt.status} (attempt {count}; {future}): {reason}")
        lines.append(f"    log: {log_of(attempt.path.parent, reason)}")
    lines.append(
        "mend what the logs name; the same command tries again, "
        f"and attempts={max_attempts + 1} those that are not tried any more"
    )
    return lines
