"""Do the attempts of a study agree with each other, and with what was planned?"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from analysis.records.untrusted_files import read_json, read_text
from release.attempt_checks import Checked
from release.manifest import NOT_RUN, PLAN, RUN, RUNS, listed
from workflow.collocation.spec.names import ANCHOR, parse_scenario

# Between a cell's start and its first window lie at most 111 s in the shipped records. Clocks of
# two machines, which count from when they booted, are hours apart.
ONE_CLOCK_S = 600


def check(study: Path, checked: Sequence[Checked]) -> list[str]:
    """Sentences of all that is wrong. Never raises for what the folder holds."""
    told = [one for one in checked if one.record]
    try:
        return [
            *_copies(checked),
            *_one_at_a_time(told),
            *_one_clock(told),
            *_listed(study, checked),
            *_planned(study, told),
        ]
    except Exception as error:  # whatever the lists hold, it is named
        return [f"{PLAN}, a list or a record cannot be read: {type(error).__name__}: {error}"[:300]]


def _copies(checked: Sequence[Checked]) -> Iterator[str]:
    """Step times to 10 µs never come twice."""
    seen: dict[str, Checked] = {}
    for one in checked:
        others = {seen.setdefault(digest, one).attempt for digest in one.steps} - {one.attempt}
        for other in sorted(others):
            yield f"cell {one.attempt} has the step times and losses of cell {other}"


def _began(record: dict) -> float:
    return datetime.fromisoformat(record["provenance"]["started_at"]).timestamp()


def _booted(record: dict) -> float:
    """Unix time at which the clock of its windows began, but for what came before the first."""
    return _began(record) - min(window["start_ns"] for window in record["windows"]) / 1e9


def _by_gpu(checked: Sequence[Checked]) -> Iterator[list[Checked]]:
    """Measured attempts of each GPU; a GPU's UUID, or the machine where there is none."""
    found = defaultdict(list)
    for one in checked:
        if one.record.get("windows"):
            machine, gpu = one.record["provenance"].get("machine"), one.record.get("gpu") or {}
            found[machine, gpu.get("uuid")].append(one)
    yield from found.values()


def _one_at_a_time(checked: Sequence[Checked]) -> Iterator[str]:
    """No two cells have a GPU at one time: by their windows, and by when they began."""
    for cells in _by_gpu(checked):
        spans = []
        for one in cells:
            windows, timing = one.record["windows"], one.record.get("timing") or {}
            own = min(w["start_ns"] for w in windows), max(w["end_ns"] for w in windows)
            waited = timing.get("lock_wait_s") or 0
            spans.append((*own, _began(one.record) + waited, one.attempt))
        spans.sort()
        for (_, end, began, one), (start, _, then, other) in zip(spans, spans[1:], strict=False):
            if start < end or abs(then - began) < 1:
                yield f"cells {one} and {other} had one GPU at the same time"


def _one_clock(checked: Sequence[Checked]) -> Iterator[str]:
    """Windows are told by a machine's clock since it booted: a cell of another machine shows."""
    for cells in _by_gpu(checked):
        booted = sorted((_booted(one.record), one.attempt) for one in cells)
        for at, (when, attempt) in enumerate(booted):
            beside = [booted[i][0] for i in (at - 1, at + 1) if 0 <= i < len(booted)]
            if beside and min(abs(when - other) for other in beside) > ONE_CLOCK_S:
                yield f"cell {attempt} has another clock than the machine that it names"


def _listed(study: Path, checked: Sequence[Checked]) -> Iterator[str]:
    """The records that tables are made of, against those there, which are numbered from 1 on."""
    there = {f"{one.attempt.folder}/{RUN}" for one in checked}
    for name in sorted({*listed(study)} ^ there):
        yield f"{name} is {'not in' if name in there else 'only in'} {RUNS}"
    numbered = {one.attempt for one in checked}
    for cell, number in sorted(numbered):
        if number > 1 and (cell, number - 1) not in numbered:
            yield f"cell {cell} has attempt {number} and none before it"


def _planned(study: Path, checked: Sequence[Checked]) -> Iterator[str]:
    """plan.json against the records, and against the list of cells that have none."""
    planned = {cell["id"]: cell for cell in read_json(study / PLAN)}
    missing = planned.keys() - {one.attempt.cell for one in checked}
    for cell in sorted(missing ^ {*read_text(study / NOT_RUN).split()}):
        if cell in missing:
            yield f"cell {cell} was planned and has no record, and {NOT_RUN} does not name it"
        else:
            yield f"cell {cell} has a record or was not planned, and {NOT_RUN} names it"
    for one in checked:
        cell, members = one.record["cell"], one.record["spec"]["members"]
        if parse_scenario(cell["scenario"]).variant == ANCHOR:  # a session's, not the grid's
            continue
        plan = planned.get(one.attempt.cell)
        found = {"n": len(members), "workloads": [member["workload"] for member in members]}
        if plan is None or any(plan[key] != value for key, value in found.items()):
            yield f"cell {one.attempt} is not as {PLAN} has it"
