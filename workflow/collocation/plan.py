"""Grid, order and what is pending: a study and what has been measured → the cells to run.

`expand` and `pending` are pure functions. What still has to run is planned here, from the run.json
files, when the Snakefile is read, and not left to Snakemake's own metadata, which a clone, a zip
or a folder brought back from another machine does not have.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from workflow.collocation.record import FAULTS, MEASURED, RESULTS, Attempt
from workflow.collocation.settings import ConfigError
from workflow.collocation.study import ARMS, MOST_MEMBERS, Ladder, Mix, Study
from workflow.collocation.workloads import Workload

OVERHEAD_S = 12.0  # start-up and warm-up of a cell that nothing like it has been measured for
OVERHEAD_PER_MEMBER_S = 1.0
EPOCH_S = 20.0
NEW = "not measured yet"
REFUSED_S = 2.0  # a cell that will be 'unsupported'
ANCHOR = "--anchor"  # ends the scenario of a cell that a sitting begins with


@dataclass(frozen=True)
class Cell:
    """One Snakemake job: a scenario under a method, in one arm, in one block."""

    scenario: str
    arm: str
    method: str
    replicate: int
    spec: dict  # all that decides what is measured; JSON types only

    @property
    def id(self) -> str:
        return f"{self.scenario}/{self.arm}/{self.method}/r{self.replicate}"

    @property
    def n(self) -> int:
        return len(self.spec["members"])

    @property
    def needs(self) -> set[str]:
        """Ids of the alone cells of the same block that this cell is normalised by."""
        if self.scenario.endswith(ANCHOR):
            return set()
        return {
            f"{baseline_scenario(member['workload'], member['input']['mode'] == 'files')}"
            f"/{self.arm}/naive/r{self.replicate}"
            for member in self.spec["members"]
        }


def baseline_scenario(workload: str, files: bool) -> str:
    return f"1x_{workload}{'--files' if files else ''}"


@dataclass(frozen=True)
class Job:
    """A pending cell: which attempt it will be, why it runs, and its place in the order."""

    cell: Cell
    attempt: int
    why: str
    rank: int
    estimate_s: float

    @property
    def path(self) -> str:
        """The attempt's folder below results/<study>/cells."""
        return f"{self.cell.id}/a{self.attempt}"


def expand(
    study: Study, workloads: dict[str, Workload], sources: dict[str, str] | None = None
) -> list[Cell]:
    """Every cell of the grid, baselines of all workloads included, in the order in which they run.

    sources: digests of the code of workloads whose model is the user's own. Tier by tier, blocks
    (replicates) come one after the other, and are counted through all tiers, so that each has
    baselines of its own. Within a block workloads come one after the other, a mix with its first,
    for what wavers for minutes, such as a shared host, then weighs less on ratios. The order of
    workloads and that of their cells is random, but a function of the seed and of their names
    alone, so that a cell that is added moves no other.
    """
    drafts = list(_drafts(study, workloads))
    share = _shares(study, drafts)
    cells: dict[str, Cell] = {}
    for draft in sorted(drafts, key=lambda draft: draft.get("baseline", False)):
        cell = _cell(study, workloads, sources or {}, share, **draft)
        known = cells.setdefault(cell.id, cell)
        if known.spec != cell.spec and not draft.get("baseline"):
            raise ConfigError(
                f"{cell.id}: two entries of the study plan this cell with different settings; "
                "allowed: one"
            )

    def place(cell: Cell) -> tuple:
        first = f"{cell.spec['members'][0]['workload']}/r{cell.replicate}"
        return cell.replicate, _shuffle(study.seed, first), _shuffle(study.seed, cell.id)

    return sorted(cells.values(), key=place)


def anchors(
    study: Study,
    workloads: dict[str, Workload],
    numbers: Iterable[int],
    sources: dict[str, str] | None = None,
) -> list[Cell]:
    """The anchor workloads alone, once for each number: what a sitting begins with.

    They are trained as the baselines of the study's first arm are, and are no baseline.
    """
    if not study.anchor:  # as in most studies: the grid need not be gone through again
        return []
    share, arm = _shares(study, _drafts(study, workloads)), study.arms[0]
    found = []
    for number in numbers:
        for name in study.anchor:
            group = Ladder(workloads=[name], counts={1: ["naive"]})
            cell = _cell(
                *(study, workloads, sources or {}, {(name, arm): share.get((name, arm), 1)}),
                *(group, arm, number, [name], "naive"),
                baseline=True,
            )
            files = workloads[name].input.mode == "files"
            scenario = baseline_scenario(name, files) + ANCHOR
            found.append(replace(cell, scenario=scenario))
    return found


def anchor_numbers(attempts: Iterable[str]) -> list[int]:
    """Those of the anchors among cell ids that were tried."""
    parts = [cell.split("/") for cell in attempts]
    return sorted({int(p[-1].removeprefix("r")) for p in parts if p[0].endswith(ANCHOR)})


def _drafts(study: Study, workloads) -> Iterable[dict]:
    groups = (*study.ladders, *study.mixes)
    longest: dict[int, int] = {}  # tier → its blocks
    for group in groups:
        longest[group.tier] = max(longest.get(group.tier, 0), _replicates(study, group))
    for group in groups:
        before = sum(blocks for tier, blocks in longest.items() if tier < group.tier)
        for arm in group.arms or study.arms:
            for replicate in range(before + 1, before + _replicates(study, group) + 1):
                common = {"group": group, "arm": arm, "replicate": replicate}
                for names, methods in _scenarios(group):
                    for method in methods:
                        yield {**common, "names": names, "method": method}
                    for name in dict.fromkeys(names):
                        yield {**common, "names": [name], "method": "naive", "baseline": True}


def _replicates(study: Study, group: Ladder | Mix) -> int:
    return group.replicates or study.replicates


def _scenarios(group: Ladder | Mix):
    if isinstance(group, Mix):
        yield [name for name, count in group.members.items() for _ in range(count)], group.methods
        return
    for workload in group.workloads:
        for count, methods in group.counts.items():
            yield [workload] * count, methods


def _shares(study: Study, drafts) -> dict[tuple, int]:
    """(workload, arm) → the largest number of members that it shares the machine with.

    Cores per member are the machine's divided by this, constant over the ladder, alone included;
    at most by the study's `cores_for`, and members of larger cells have cores in common.
    """
    share: dict[tuple, int] = {}
    most = study.cores_for or MOST_MEMBERS
    for draft in drafts:
        for name in draft["names"]:
            key = (name, draft["arm"])
            share[key] = max(share.get(key, 1), min(len(draft["names"]), most))
    return share


def _cell(
    study, workloads, sources, share, group, arm, replicate, names, method, baseline=False
) -> Cell:
    override = {} if baseline else group.measure.model_dump(exclude_none=True)
    mix = isinstance(group, Mix) and not baseline
    all_cores = isinstance(group, Ladder) and group.cores == "all" and not baseline
    windows = [workloads[name].window_s for name in names if workloads[name].window_s]
    measure = study.measure.model_copy(
        update={**({"window_s": max(windows)} if windows else {}), **override}
    )
    if baseline:
        measure = measure.model_copy(update={"kind": "window"})
    members = [
        _member(name, workloads[name], group, None if all_cores else share[name, arm])
        for name in names
    ]
    for member in members:
        member.update(study.limits(method, member["workload"], len(members)))
        if mix and group.work:
            member["work"] = group.work[member["workload"]]
        if mix and method.startswith("mig"):
            member["slice"] = group.slices[member["workload"]]
        if member["workload"] in sources:
            member["source"] = sources[member["workload"]]
    spec = {
        "members": members,
        "arm": ARMS[arm],
        "method": method,
        "measure": measure.resolved(),
        "seed": study.seed,
        "datasets": {
            name: sizes.model_dump()
            for name, sizes in study.datasets.items()
            if name in {member["dataset"] for member in members}
        },
    }
    if measure.kind == "departure":
        departs = mix and group.departs
        spec["measure"]["departs"] = names.index(departs) if departs else len(names) - 1
    return Cell(
        scenario=_scenario(names, measure.kind, members[0]["input"]["mode"], all_cores),
        arm=arm,
        method=method,
        replicate=replicate,
        spec=spec,
    )


def _member(name: str, workload: Workload, group, share_of: int | None) -> dict:
    settings = workload.model_dump(exclude={"description", "input", "window_s"})
    source = workload.input.model_copy(update={"mode": group.input} if group.input else {})
    return {
        "workload": name,
        **settings,
        "input": source.resolved(),
        "cores_of": share_of,  # the machine's cores divided by this; None: all of them
    }


def _scenario(names: list[str], kind: str, mode: str, all_cores: bool) -> str:
    parts = [f"{count}x_{name}" for name, count in Counter(names).items()]
    suffix = "" if kind == "window" else f"--{kind}"
    suffix += "--files" if mode == "files" else ""
    suffix += "--allcores" if all_cores else ""
    return "+".join(parts) + suffix


def _shuffle(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}/{name}".encode()).hexdigest()


def pending(
    cells: list[Cell],
    attempts: dict[str, list[Attempt]],
    device: str,
    refusal: Callable[[Cell], str | None],
    most: int = 3,
    stale: Callable[[Attempt], bool] = lambda attempt: False,
) -> list[Job]:
    """The cells that still have to run on `device` (GPU UUID or 'cpu'), in order.

    attempts: what `record.scan` found. refusal: why a cell's method cannot run here, or None.
    most: how often a cell that failed is tried. stale: attempts to measure again although they
    are results (another trainer, say); if they failed they do not count. A block's baselines are
    measured on the device on which the block goes on, and a cell that was measured on another one
    without its baselines is measured here again, with them.
    """
    why = {cell.id: _why(cell, attempts, refusal, most, stale) for cell in cells}
    planned = {cell.id: cell for cell in cells}
    for cell in cells:
        if not why[cell.id] and refusal(cell) is None:
            why[cell.id] = _stranded(cell, attempts, device, planned, most)
    for cell in cells:
        runs = why[cell.id] and refusal(cell) is None
        if runs or _measured_on(cell, attempts, device):
            for needed in cell.needs & planned.keys():
                if not why[needed] and not _answered_on(planned[needed], attempts, device, most):
                    why[needed] = f"baseline on {device}"
    estimates = Estimates(attempts)
    return [
        Job(
            cell=cell,
            attempt=_next(attempts.get(cell.id, [])),
            why=why[cell.id],
            rank=rank,
            estimate_s=REFUSED_S if refusal(cell) else estimates.of(cell),
        )
        for rank, cell in enumerate(cells)
        if why[cell.id]
    ]


def begin(anchors: list[Cell], attempts: dict[str, list[Attempt]]) -> list[Job]:
    """The jobs of a sitting's anchors: before all others."""
    estimates = Estimates(attempts)
    return [
        Job(cell, attempt=1, why="begins a sitting", rank=-1, estimate_s=estimates.of(cell))
        for cell in anchors
    ]


def same(cell: Cell, attempts: dict[str, list[Attempt]]) -> list[Attempt]:
    """Attempts at a cell as it is planned now, oldest first."""
    return [a for a in attempts.get(cell.id, []) if a.content and a.content["spec"] == cell.spec]


def _why(cell, attempts, refusal, most, stale) -> str | None:
    """Why a cell must run, or None."""
    wanted = _lacks(cell, attempts, refusal, most, stale)
    faults = [attempt for attempt in _faults(same(cell, attempts)) if not stale(attempt)]
    if wanted and faults:
        return f"{faults[-1].status}, trying again" if len(faults) < most else None
    return wanted


def _lacks(cell, attempts, refusal, most, stale) -> str | None:
    """Why a cell has no answer, or one that is to be had again; None if it has one."""
    results = [attempt for attempt in same(cell, attempts) if attempt.status in RESULTS]
    if results:
        last = results[-1]
        if last.status == "unsupported":
            tried = sum(attempt.refused_in_setup for attempt in results)
            possible = refusal(cell) is None and tried < most
            return "is possible now" if possible else None
        return "measured with another trainer or version" if stale(last) else None
    others = attempts.get(cell.id, [])
    if any(attempt.content is None for attempt in others):
        return "its run.json is corrupt"
    if any(attempt.status != "postponed" for attempt in others):
        return "its settings changed"
    return NEW


def _faults(tried: list[Attempt]) -> list[Attempt]:
    """Attempts that failed or timed out since the newest result."""
    faults: list[Attempt] = []
    for attempt in tried:
        if attempt.status in RESULTS:
            faults = []
        elif attempt.status in FAULTS:
            faults.append(attempt)
    return faults


def _measured_on(cell, attempts, device) -> bool:
    """Its newest answer was measured on this device, so its baselines belong there too."""
    done = [attempt for attempt in same(cell, attempts) if attempt.status in RESULTS]
    return bool(done) and done[-1].status in MEASURED and done[-1].device == device


def _stranded(cell, attempts, device, planned, most) -> str | None:
    """Why a cell is of no use: a baseline of it is missing on the other device it ran on."""
    tried = same(cell, attempts)
    done = [attempt for attempt in tried if attempt.status in MEASURED]
    if not done or done[-1].device == device or len(_faults(tried)) >= most:
        return None
    for needed in cell.needs & planned.keys():
        found = same(planned[needed], attempts)
        if not any(a.status in MEASURED and a.device == done[-1].device for a in found):
            return f"no baseline on {done[-1].device}, where it was measured"
    return None


def _answered_on(cell, attempts, device, most) -> bool:
    """It was measured there, or failed there as often as it is tried."""
    there = [attempt for attempt in same(cell, attempts) if attempt.device == device]
    return any(a.status in RESULTS for a in there) or len(_faults(there)) >= most


def _next(attempts: list[Attempt]) -> int:
    return max((attempt.number for attempt in attempts), default=0) + 1


def exhausted(
    cells: list[Cell], attempts: dict[str, list[Attempt]]
) -> list[tuple[Cell, Attempt, int]]:
    """Cells that failed since their newest result, if any: (cell, newest fault, how many)."""
    found = []
    for cell in cells:
        if faults := _faults(same(cell, attempts)):
            found.append((cell, faults[-1], len(faults)))
    return found


def finished(
    cells: list[Cell], attempts: dict[str, list[Attempt]], sealed: bool = False
) -> list[Attempt]:
    """The attempts that analysis reads: all that were made at the cells as they are planned now.

    A sealed study is an input: its records count whatever today's catalogue says.
    """
    return [
        attempt
        for cell in cells
        for attempt in (attempts.get(cell.id, []) if sealed else same(cell, attempts))
        if attempt.content and attempt.status != "postponed"
    ]


class Estimates:
    """Seconds that cells will take, from what others of the study took."""

    def __init__(self, attempts: dict[str, list[Attempt]]):
        self._took: dict[str, list[tuple[dict, float]]] = {}  # cell but for its block: measure, s
        off = []
        for attempt in itertools.chain.from_iterable(attempts.values()):
            timing = (attempt.content or {}).get("timing", {})
            if attempt.status in MEASURED and "total_s" in timing:
                seconds = timing["total_s"] - timing.get("lock_wait_s", 0)
                measure = attempt.content["spec"].get("measure")
                self._took.setdefault(_blockless(attempt.cell), []).append((measure, seconds))
                # Others end early, or with work of which nobody knows how long it takes.
                if attempt.status == "completed" and "window_s" in (measure or {}):
                    off.append(seconds / _rule_of_thumb(attempt.content["spec"]))
        # On this machine cells may all be faster than the rule has it.
        self._off = _median(off) if off else 1.0

    def of(self, cell: Cell) -> float:
        """As another replicate of it took, else by a rule of thumb, as far off as it was so far."""
        measure = cell.spec["measure"]
        took = [s for known, s in self._took.get(_blockless(cell.id), []) if known == measure]
        return _median(took) if took else self._off * _rule_of_thumb(cell.spec)


def _blockless(cell_id: str) -> str:
    return cell_id.rsplit("/", 1)[0]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _rule_of_thumb(spec: dict) -> float:
    measure = spec["measure"]
    times = {"window": 1, "departure": 2, "completion": 2, "epochs": measure.get("epochs", 0)}
    windows = times[measure["kind"]]
    return (
        OVERHEAD_S
        + OVERHEAD_PER_MEMBER_S * len(spec["members"])
        + measure.get("settle_s", 0)
        + measure.get("warmup_s", 0)
        + windows * measure.get("window_s", EPOCH_S)
    )


def within(jobs: list[Job], budget_s: float | None) -> tuple[list[Job], list[Job]]:
    """Split jobs into those that fit a budget in seconds and the rest, both in order.

    A job brings the baselines that it waits for: without them its time would be spent in vain.
    """
    if budget_s is None:
        return jobs, []
    by_id = {job.cell.id: job for job in jobs}
    chosen: set[str] = set()
    spent = 0.0
    for job in jobs:
        bundle = ({job.cell.id} | (job.cell.needs & by_id.keys())) - chosen
        spent += sum(by_id[name].estimate_s for name in bundle)
        if spent > budget_s:
            break
        chosen |= bundle
    fits = [job for job in jobs if job.cell.id in chosen]
    return fits, [job for job in jobs if job.cell.id not in chosen]
