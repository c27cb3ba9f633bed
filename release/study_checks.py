"""Whether the attempts of a study agree with each other, with its plan and with its lists."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from release.checks import AttemptCheck
from release.manifest import NOT_RUN, analysed_records, attempts, cells_not_run
from workflow.collocation.plan.session import open_session
from workflow.collocation.study.cell import changed_settings, spec_digest
from workflow.collocation.study.layout import PLAN, RUN, RUNS
from workflow.collocation.study.load import find_config_file, load_config, read_config_values
from workflow.collocation.study.regular_files import read_json, read_text

# Between a cell's start and its first window lie at most 460 s in the shipped records. Monotonic
# clocks of two machines differ by hours: they count from when a machine booted.
SAME_CLOCK_S = 600
MAX_POWER_W = 1500  # of a card between two cells; 293 W in the shipped records
# The energy counter starts from 0 where the driver is loaded anew: for a cell, or by somebody in a
# pause as long as SAME_CLOCK_S. Less than 4,324 J is in no shipped record.
RELOADED_J = 3000


@dataclass
class _Timed:
    """A measured attempt, and when it had its GPU.

    start_ns, end_ns: of its windows, since the machine booted. locked, boot: Unix time at which it
    got the GPU, and at which its machine booted.
    """

    check: AttemptCheck
    start_ns: int
    end_ns: int
    locked: float
    boot: float

    @classmethod
    def of(cls, check: AttemptCheck) -> "_Timed":
        record = check.record
        began = datetime.fromisoformat(record.provenance["started_at"]).timestamp()
        start_ns = min(window.start_ns for window in record.windows)
        end_ns = max(window.end_ns for window in record.windows)
        locked = began + (record.timing.get("lock_wait_s") or 0)
        return cls(check, start_ns, end_ns, locked, locked - start_ns / 1e9)


def check_study(study: Path, checks: Iterable[AttemptCheck], names: Iterable[str]) -> list[str]:
    """Sentences on what is wrong between attempts, and between them and the study's lists.

    names: files of the study. Never raises for what the folder holds.
    """
    measured = defaultdict(list)
    for check in checks:
        if check.record and check.record.windows:
            machine = check.record.provenance.get("machine")
            measured[machine, check.record.device].append(check)
    try:
        problems = [*_copy_problems(checks)]
        for checks_of_gpu in measured.values():
            problems += _order_problems([_Timed.of(check) for check in checks_of_gpu])
        records = {f"{attempt.folder}/{RUN}" for attempt in attempts(names)}
        for name in sorted({*analysed_records(study)} ^ records):
            problems.append(f"{name} is {'not in' if name in records else 'only in'} {RUNS}")
        for cell in sorted({*cells_not_run(study, names)} ^ {*read_text(study / NOT_RUN).split()}):
            problems.append(f"cell {cell}: whether it has a record, {PLAN} and {NOT_RUN} disagree")
        return [*problems, *_plan_problems(study, checks)]
    except Exception as error:  # the lists may hold anything
        return [f"{PLAN}, a list or a record cannot be read: {type(error).__name__}: {error}"[:300]]


def _copy_problems(checks: Iterable[AttemptCheck]) -> Iterator[str]:
    """No two attempts have the same step times, which differ by parts of a millisecond."""
    first_with = {}
    for check in filter(lambda check: check.step_ticks, checks):
        first = first_with.setdefault(check.step_ticks, check)
        if first is not check:
            yield f"cells {first.attempt} and {check.attempt} are copies: of equal step times"


def _plan_problems(study: Path, checks: Iterable[AttemptCheck]) -> Iterator[str]:
    """The plan, and the settings of each record, are those of the study in config/, if it is there.

    It is not for a study that was planned elsewhere.
    """
    values = read_config_values([])
    if not (find_config_file(load_config(values).studies) / f"{study.name}.yaml").exists():
        return
    values |= {"study": study.name, "results": str(study.parent), "measure": False}
    session = open_session(values, remote=True)
    cells = {cell.id: cell for cell in (*session.cells, *session.merged_cells)}
    planned = {cell["id"]: cell for cell in json.loads(session.plan_json)}
    recorded = {cell["id"]: cell for cell in read_json(study / PLAN)}
    for cell in sorted(planned.keys() | recorded.keys()):
        if planned.get(cell) != recorded.get(cell):
            yield f"cell {cell}: in {PLAN} it is not what {study.name}.yaml plans"
    for check in checks:
        cell = check.record and cells.get(check.record.cell.id)
        if cell and spec_digest(check.record.spec) != cell.digest:
            changes = ", ".join(changed_settings(cell.spec.to_json(), check.record.spec)[:3])
            yield f"cell {check.attempt} has other settings than {study.name}.yaml: {changes}"


def _order_problems(attempts_of_gpu: list[_Timed]) -> Iterator[str]:
    """One GPU has one cell at a time, by its windows and by when it began; its energy only grows.

    Windows are in a machine's time since it booted, so that a cell of another machine shows.
    """
    boots = [[]]
    for timed in sorted(attempts_of_gpu, key=lambda timed: timed.boot):
        if boots[-1] and timed.boot - boots[-1][-1].boot > SAME_CLOCK_S:
            boots.append([])
        boots[-1].append(timed)
    for since_boot in boots:
        others = [boot for boot in boots if boot is not since_boot]
        if len(since_boot) == 1 and any(_overlap(since_boot, boot) for boot in others):
            attempt = since_boot[0].check.attempt
            yield f"cell {attempt} has another clock than the machine that it names"
        in_order = sorted(since_boot, key=lambda timed: (timed.start_ns, timed.end_ns))
        for earlier, later in pairwise(in_order):
            yield from _pair_problems(earlier, later)


def _overlap(first: list[_Timed], second: list[_Timed]) -> bool:
    """Whether their times from boot to the last window do: then they are of two machines."""
    ends = [max(timed.boot + timed.end_ns / 1e9 for timed in boot) for boot in (first, second)]
    return first[0].boot < ends[1] and second[0].boot < ends[0]


def _pair_problems(earlier: _Timed, later: _Timed) -> Iterator[str]:
    """What is wrong between two attempts that follow each other on one GPU."""
    names = f"cells {earlier.check.attempt} and {later.check.attempt}"
    if later.start_ns < earlier.end_ns or abs(later.locked - earlier.locked) < 1:
        yield f"{names} had one GPU at the same time"
    if not (earlier.check.energy_j and later.check.energy_j):
        return
    gap_s = (later.start_ns - earlier.end_ns) / 1e9
    before_j, after_j = earlier.check.energy_j[1], later.check.energy_j[0]
    falls = after_j < before_j and after_j > RELOADED_J and gap_s < SAME_CLOCK_S
    if falls or after_j - before_j > MAX_POWER_W * gap_s:
        yield f"{names}: the GPU's energy counter goes from {before_j:.0f} J to {after_j:.0f} J"
