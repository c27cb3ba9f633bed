"""Do the attempts of a study agree with each other, and with what was planned?"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from analysis.records.safe import read_json, read_text
from release import contents
from release.cells import Checked
from release.contents import NOT_RUN, PLAN, RUNS, one_line
from workflow.collocation.spec.names import ALTERNATE, ANCHOR, parse_scenario

# Relative, at step 0 and later, as training on a GPU repeats less and less; and median deviations.
LOSS_APART, LATER_APART, SPREADS = 0.1, 0.3, 6.0
FEWEST = 3  # losses that tell what is usual
# Steps, and the rank correlation of how long they took that two measurements do not reach; then
# what two cells do not whose jobs took turns. In 1,700 series of H200s it is at most 0.92 over 24
# steps, 0.81 over 64, 0.80 over 128; in turns, where each second step was slower, 0.93 over 64.
ALIKE = ((24, 0.97, 0.97), (64, 0.9, 0.97), (128, 0.9, 0.9))
AT_ONCE = 1000  # series that are held against all others: of 10,000 cells that takes 0.2 GB


def check(study: Path, checked: Sequence[Checked]) -> list[str]:
    """Sentences of all that is wrong. Never raises for what the folder holds."""
    said = [*_copies(checked), *_alike(checked), *_first_losses(checked)]
    try:
        return [*said, *_listed(study, checked), *_planned(study, checked)]
    except Exception as error:  # whatever the lists hold, it is named
        return [*said, f"{PLAN} or a list cannot be read: {one_line(error)}"]


def _copies(checked: Sequence[Checked]) -> Iterator[str]:
    """Step times to 10 µs never come twice."""
    seen: dict[str, Checked] = {}
    for one in checked:
        others = {seen.setdefault(digest, one).attempt for digest in one.steps} - {one.attempt}
        for other in sorted(others):
            yield f"cell {one.attempt} has the step times and losses of cell {other}"


def _alike(checked: Sequence[Checked]) -> Iterator[str]:
    """Which steps were slow never comes twice, and outlasts a little noise on all times."""
    told = set()
    for steps, most, most_in_turns in ALIKE:
        found = [(one, took[:steps]) for one in checked for took in one.took if len(took) >= steps]
        if len(found) < 2:
            continue
        ranks = np.argsort(np.argsort([took for _, took in found], axis=1, kind="stable"), axis=1)
        ranks = ranks - (steps - 1) / 2
        turns = np.array([ALTERNATE in one.attempt.cell for one, _ in found])
        for start in range(0, len(ranks), AT_ONCE):
            alike = ranks[start : start + AT_ONCE] @ ranks[start:].T / (steps * (steps**2 - 1) / 12)
            both = turns[start : start + AT_ONCE, None] & turns[start:]
            bound = np.where(both, most_in_turns, most)
            for one, other in start + np.argwhere(np.triu(alike, 1) > bound):
                told.add((found[other][0].attempt, found[one][0].attempt))
    for one, other in sorted(told):
        if one != other:
            yield f"cell {one} has step times that rise and fall as those of cell {other} do"


def _first_losses(checked: Sequence[Checked]) -> Iterator[str]:
    """The losses of its warm-up are the same job's in every cell, up to how much they vary."""
    values = defaultdict(list)
    for one in checked:
        for key, value in one.first:
            values[key].append((value, one.attempt))
    for (workload, *_, step), found in values.items():
        most = LATER_APART if step else LOSS_APART
        usual = median(value for value, _ in found)
        spread = median(abs(value - usual) for value, _ in found)
        for value, attempt in found if len(found) >= FEWEST else ():
            if abs(value - usual) > max(most * abs(usual), SPREADS * spread):
                begins = f"has at step {step} of its warm-up" if step else "begins with"
                loss = f"a loss of {value:.6g}, elsewhere {usual:.6g}"
                yield f"cell {attempt}: {workload} {begins} {loss}"


def _listed(study: Path, checked: Sequence[Checked]) -> Iterator[str]:
    """The records that tables are made of, against those there, which are numbered from 1 on."""
    there = {f"{one.attempt.folder}/{contents.RUN}" for one in checked}
    for name in sorted({*contents.listed(study)} ^ there):
        yield f"{contents.owner(name)} is {'not in' if name in there else 'only in'} {RUNS}"
    numbered = {one.attempt for one in checked}
    for cell, number in sorted(numbered):
        if number > 1 and (cell, number - 1) not in numbered:
            yield f"cell {cell} has attempt {number} and none before it"


def _planned(study: Path, checked: Sequence[Checked]) -> Iterator[str]:
    """plan.json against the records, and against the list of cells that have none."""
    planned = {cell["id"]: cell for cell in read_json(study / PLAN)}
    missing = planned.keys() - {one.attempt.cell for one in checked}
    told = {*read_text(study / NOT_RUN).split()}
    for cell in sorted(missing - told):
        yield f"cell {cell} was planned and has no record, and {NOT_RUN} does not name it"
    for cell in sorted(told - missing):
        yield f"cell {cell} has a record or was not planned, and {NOT_RUN} names it"
    for one in (one for one in checked if one.record):
        yield from _as_planned(planned.get(one.attempt.cell), **one.record)


def _as_planned(plan: dict | None, cell: dict, spec: dict) -> Iterator[str]:
    found = {key: cell[key] for key in ("scenario", "arm", "method", "replicate")}
    found |= {"n": len(spec["members"]), "measure": spec["measure"]["kind"]}
    found["workloads"] = [member["workload"] for member in spec["members"]]
    if parse_scenario(found["scenario"]).variant == ANCHOR:  # a session's, not the grid's
        plan = found | {"n": 1, "method": "naive", "measure": "window"}
    if plan is None:
        yield f"cell {cell['id']} was not planned"
    for key, value in found.items() if plan else ():
        if plan.get(key) != value:
            yield f"cell {cell['id']}: {key} is {plan.get(key)} in {PLAN}, not {value}"
