"""Do the attempts of a study agree with each other, and with what was planned?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from analysis.names import ANCHOR, parse_scenario
from release.cells import UNREADABLE, Checked
from release.contents import NOT_RUN, RUN, listed, read_json, read_text

SLACK_S = 2.0  # a start is told in whole seconds
LOSS_APART, SPREADS = 0.1, 6.0  # relative, and median deviations of its like
FEWEST = 3  # losses that tell what is usual


def check(study: Path, checked: Sequence[Checked]) -> list[str]:
    """Sentences of all that is wrong. Never raises for what the folder holds."""
    said = [*_copies(checked), *_overlaps(checked), *_first_losses(checked), *_numbers(checked)]
    try:
        return [*said, *_listed(study, checked), *_planned(study, checked)]
    except UNREADABLE as error:
        return [*said, f"plan.json or a list: {type(error).__name__}: {error}"]


def not_run(study: Path, recorded: set[str]) -> list[str]:
    """Cells that were planned and have no record. Raises OSError, ValueError."""
    return sorted({cell["id"] for cell in read_json(study / "plan.json")} - recorded)


def _copies(checked: Sequence[Checked]) -> Iterator[str]:
    """Step times to 10 µs never come twice."""
    seen: dict[str, Checked] = {}
    told = set()
    for one in checked:
        for digest in one.steps:
            other = seen.setdefault(digest, one)
            if other is not one and (one.attempt, other.attempt) not in told:
                told.add((one.attempt, other.attempt))
                yield f"cell {one.attempt} has the step times and losses of cell {other.attempt}"


def _overlaps(checked: Sequence[Checked]) -> Iterator[str]:
    """One GPU measures one cell at a time."""
    spans = sorted((one.span, one.attempt) for one in checked if one.span)
    for ((gpu, _, until), first), ((other, start, _), second) in zip(
        spans, spans[1:], strict=False
    ):
        if gpu == other and start < until - SLACK_S:
            yield f"cell {second} held its GPU from {until - start:.0f} s before cell {first} ended"


def _first_losses(checked: Sequence[Checked]) -> Iterator[str]:
    """The loss of step 0 is the same job's in every cell, up to how much it varies."""
    values = defaultdict(list)
    for one in checked:
        for key, found in one.first.items():
            values[key] += [(value, one.attempt) for value in found]
    for (workload, *_), found in values.items():
        usual = median(value for value, _ in found)
        spread = median(abs(value - usual) for value, _ in found)
        for value, attempt in found if len(found) >= FEWEST else ():
            if abs(value - usual) > max(LOSS_APART * abs(usual), SPREADS * spread):
                yield (
                    f"cell {attempt}: {workload} begins with a loss of {value:.6g}, "
                    f"elsewhere with {usual:.6g}"
                )


def _numbers(checked: Sequence[Checked]) -> Iterator[str]:
    """Attempts at a cell are numbered from 1 on; a result is tried no more."""
    of_cell = defaultdict(list)
    for one in checked:
        of_cell[one.attempt.cell].append(one.attempt.number)
    for cell, numbers in of_cell.items():
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"cell {cell} has attempts {', '.join(map(str, numbers))}: one before is missing"


def _listed(study: Path, checked: Sequence[Checked]) -> Iterator[str]:
    """The list of records that the tables are made from, against those that are there."""
    named = set(listed(study))
    there = {f"{one.attempt.folder}/{RUN}": one.attempt for one in checked}
    for name in sorted(named ^ there.keys()):
        where = "is not in runs.txt" if name in there else "is in runs.txt only"
        yield f"cell {there.get(name) or name.removeprefix('cells/')} {where}"


def _planned(study: Path, checked: Sequence[Checked]) -> Iterator[str]:
    """plan.json against the records, and against the list of cells that have none."""
    planned = {cell["id"]: cell for cell in read_json(study / "plan.json")}
    recorded = {one.attempt.cell for one in checked}
    missing = set(not_run(study, recorded))
    if (study / NOT_RUN).exists():
        told = set(read_text(study / NOT_RUN).split())
        for cell in sorted(missing - told):
            yield f"cell {cell} was planned and has no record, and {NOT_RUN} does not name it"
        for cell in sorted(told - missing):
            where = "has a record" if cell in recorded else "was not planned"
            yield f"cell {cell} {where}, and {NOT_RUN} names it"
    else:
        yield f"{NOT_RUN} is missing: nothing says that {len(missing)} planned cells were not run"
    for one in checked:
        if one.record:
            yield from _as_planned(one, planned.get(one.attempt.cell))


def _as_planned(one: Checked, plan: dict | None) -> Iterator[str]:
    cell, spec = one.record["cell"], one.record["spec"]
    found = {key: cell[key] for key in ("scenario", "arm", "method", "replicate")}
    found |= {"n": len(spec["members"]), "measure": spec["measure"]["kind"]}
    found["workloads"] = [member["workload"] for member in spec["members"]]
    if parse_scenario(found["scenario"]).variant == ANCHOR:  # a session's, not the grid's
        if (found["n"], found["method"], found["measure"]) != (1, "naive", "window"):
            yield f"cell {one.attempt.cell}: a reference run is one job alone, in a window"
    elif plan is None:
        yield f"cell {one.attempt.cell} was not planned"
    else:
        for key, value in found.items():
            if plan.get(key) != value:
                yield f"cell {one.attempt.cell}: {key} is {plan.get(key)} in plan.json, not {value}"
