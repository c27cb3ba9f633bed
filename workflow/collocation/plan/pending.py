"""What is pending: a study's cells and what has been measured → the jobs to run. Pure functions.

It is planned from the run.json files when the Snakefile is read, and not left to Snakemake's own
metadata, which a clone, a zip or a folder brought back from another machine does not have.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import cycle, takewhile

from workflow.collocation.plan.attempts import CellAttempt
from workflow.collocation.plan.duration import Attempts, DurationEstimates
from workflow.collocation.record.run_json import FAULTS, MEASURED, RESULTS
from workflow.collocation.study.cell import changed_settings
from workflow.collocation.study.grid import Cell

NEW = "not measured yet"
MAX_NAMED = 3  # settings that have changed; of more the number is given
UNKNOWN_DEVICE = "the GPU of replicate "  # a device's key, until a job has it
REFUSED_S = 2.0  # a cell that will be 'unsupported'
IsStale = Callable[[CellAttempt], bool]


@dataclass(frozen=True)
class PendingCell:
    """A pending cell: which attempt it will be, why it runs, and its place in the order."""

    cell: Cell
    attempt: int
    why: str
    rank: int
    estimate_s: float
    device: str = ""  # that it is to run on: as records name it

    @property
    def path(self) -> str:
        """The attempt's folder below results/<study>/cells."""
        return f"{self.cell.id}/a{self.attempt}"

    def spend(self, spent: dict[str, float]) -> float:
        """Add the job to the seconds that each device has spent; gives when it ends."""
        spent[self.device] = spent.get(self.device, 0.0) + self.estimate_s
        return spent[self.device]

    @property
    def memory_mb(self) -> int:
        """Main memory that it is to be given: a conductor with its server, and members."""
        return 4096 * (1 + self.cell.n)


def choose_devices(
    cells: list[Cell],
    attempts: Attempts,
    devices: list[str],
    most: int = 1,
    stale: IsStale = lambda attempt: False,
) -> dict[int, str]:
    """Replicate → the device of its cells that need others: the one of `devices` on which most of
    these were measured, or else one of the first `most`, in turn, those first on which least is to
    be done.
    """
    measured: dict[int, Counter] = {cell.replicate: Counter() for cell in cells}
    unfinished = set()
    for cell in cells if devices[1:] else ():
        counted = [attempt for attempt in attempts_at(cell, attempts) if not stale(attempt)]
        there = [a.device for a in counted if a.status in MEASURED and a.device in devices]
        # One cell that needs others outweighs all that need none.
        measured[cell.replicate].update(dict.fromkeys(there, len(cells) if cell.needs else 1))
        if _newest(counted) is None:
            unfinished.add(cell.replicate)
    begun = {replicate: max(sorted(on), key=on.get) for replicate, on in measured.items() if on}
    busy = Counter(begun[replicate] for replicate in unfinished & begun.keys())
    free = cycle(sorted(devices[:most], key=busy.__getitem__))
    return {replicate: begun.get(replicate) or next(free) for replicate in sorted(measured)}


def unknown_device(replicate: int) -> str:
    """The key of the device that a cluster will give a replicate."""
    return f"{UNKNOWN_DEVICE}{replicate}"


def pending_cells(
    cells: list[Cell],
    attempts: Attempts,
    place: str | Mapping[int, str],
    refusal: Callable[[Cell], str | None],
    most: int = 3,
    stale: IsStale = lambda attempt: False,
    estimates: DurationEstimates | None = None,
    on_gpu: bool = True,
) -> list[PendingCell]:
    """The cells that still have to run, in order.

    place: the device, or each replicate's. refusal: why a cell's method cannot run here, or None.
    most: how often a cell that failed is tried. stale: attempts to measure again although they are
    results. A replicate's baselines are measured on the device on which it goes on, and a cell that
    was measured on another one without its baselines is measured here again, with them. on_gpu:
    whether the cells are a GPU's; what was tried without one is then as if it had not been.
    """
    if isinstance(place, str):
        place = dict.fromkeys((cell.replicate for cell in cells), place)
    alike = {
        cell.id: [a for a in attempts.get(cell.id, []) if not a.record or a.on_gpu == on_gpu]
        for cell in cells
    }
    tried = {cell.id: attempts_at(cell, alike) for cell in cells}
    refused = {cell.id for cell in cells if refusal(cell) is not None}
    why = {
        cell.id: _why(cell, tried[cell.id], alike[cell.id], cell.id in refused, most, stale)
        for cell in cells
    }
    for cell in cells:
        if not why[cell.id] and cell.id not in refused:
            why[cell.id] = _lacks_baseline(cell, tried, place[cell.replicate], most)
    for cell in cells:
        device, last = place[cell.replicate], _newest(tried[cell.id])
        here = last and last.status in MEASURED and last.device == device
        if here or (why[cell.id] and cell.id not in refused):
            for needed in cell.needs & tried.keys():
                if not why[needed] and not _answered_on(tried[needed], device, most):
                    why[needed] = f"baseline on {device}"
    estimates = estimates or DurationEstimates(attempts)
    return [
        PendingCell(
            cell=cell,
            attempt=max((a.number for a in attempts.get(cell.id, [])), default=0) + 1,
            why=why[cell.id],
            rank=rank,
            estimate_s=REFUSED_S if cell.id in refused else estimates.cell_seconds(cell),
            device=place[cell.replicate],
        )
        for rank, cell in enumerate(cells)
        if why[cell.id]
    ]


def attempts_at(cell: Cell, attempts: Attempts) -> list[CellAttempt]:
    """Attempts at a cell as it is planned now, oldest first."""
    return [a for a in attempts.get(cell.id, []) if a.spec_digest == cell.digest]


def _why(cell, tried, others, refused, most, stale) -> str | None:
    """Why a cell must run, or None. others: all attempts, also at the cell as it once was."""
    before = [a.record.spec for a in others if a.record and a.status != "postponed"]
    if last := _newest(tried):
        if last.status == "unsupported":
            possible = not refused and sum(a.refused_when_tried for a in tried) < most
            wanted = "is possible now" if possible else None
        else:
            wanted = "measured with another trainer or version" if stale(last) else None
    elif any(attempt.record is None for attempt in others):
        wanted = "its run.json is corrupt"
    elif before:
        found = changed_settings(before[-1], cell.spec.to_json())
        more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        wanted = f"its settings changed: {', '.join(found[:MAX_NAMED])}{more}"
    else:
        wanted = NEW
    faults = [attempt for attempt in _faults(tried) if not stale(attempt)]
    if wanted and faults:
        return f"{faults[-1].status}, trying again" if len(faults) < most else None
    return wanted


def _faults(tried: list[CellAttempt]) -> list[CellAttempt]:
    """Attempts that failed or timed out since the newest result."""
    since = [*takewhile(lambda attempt: attempt.status not in RESULTS, reversed(tried))]
    return [attempt for attempt in reversed(since) if attempt.status in FAULTS]


def _newest(tried: list[CellAttempt]) -> CellAttempt | None:
    """The newest answer."""
    return next((attempt for attempt in reversed(tried) if attempt.status in RESULTS), None)


def cells_out_of_memory(attempts: Attempts) -> set[str]:
    """Ids of the cells whose newest answer is that memory did not suffice."""
    newest = ((cell, _newest(tried)) for cell, tried in attempts.items())
    return {cell for cell, last in newest if last and last.status == "out_of_memory"}


def refusal_reason(tried: list[CellAttempt]) -> str | None:
    """Why its newest answer is that it cannot be measured; None if it is another."""
    last = _newest(tried)
    return last.record.reason if last and last.status == "unsupported" else None


def _lacks_baseline(cell, tried, device, most) -> str | None:
    """Why a cell is of no use: a baseline of it is missing on the other device it ran on."""
    done = [attempt for attempt in tried[cell.id] if attempt.status in MEASURED]
    if not done or done[-1].device == device or len(_faults(tried[cell.id])) >= most:
        return None
    where = done[-1].device
    for needed in cell.needs & tried.keys():
        hopeless = device.startswith(UNKNOWN_DEVICE) and _answered_on(tried[needed], device, most)
        there = any(a.status in MEASURED and a.device == where for a in tried[needed])
        if not there and not hopeless:
            return f"no baseline on {where}, where it was measured"
    return None


def _answered_on(tried, device, most) -> bool:
    """It was measured there, or failed there as often as it is tried; on an unknown one: it is
    measured on none any more.
    """
    if device.startswith(UNKNOWN_DEVICE):
        return bool(refusal_reason(tried)) or len(_faults(tried)) >= most
    there = [attempt for attempt in tried if attempt.device == device]
    return bool(_newest(there)) or len(_faults(there)) >= most


def cells_without_result(
    cells: list[Cell], attempts: Attempts
) -> list[tuple[Cell, CellAttempt, int]]:
    """Cells that failed since their newest result, if any: (cell, newest fault, how many)."""
    found = ((cell, _faults(attempts_at(cell, attempts))) for cell in cells)
    return [(cell, faults[-1], len(faults)) for cell, faults in found if faults]


def counted_attempts(
    cells: list[Cell], attempts: Attempts, sealed: bool = False
) -> list[CellAttempt]:
    """The attempts that analysis reads: all that were made at the cells as they are planned now.

    A sealed study is an input: all its records count whatever today's study and catalogue say.
    """
    found = [attempts_at(cell, attempts) for cell in cells]
    if sealed:
        planned = {cell.id: None for cell in cells}
        others = sorted(attempts.keys() - planned.keys())
        found = [attempts.get(name, []) for name in (*planned, *others)]
    counted = [attempt for tried in found for attempt in tried if attempt.record]
    return [attempt for attempt in counted if attempt.status != "postponed"]


def split_by_budget(
    jobs: list[PendingCell],
    budget_s: float | None,
    devices: Collection[str] = (),
    most: int = 1,
    refusal: Callable[[Cell, str], str | None] = lambda cell, device: None,
) -> tuple[list[PendingCell], list[PendingCell]]:
    """Split jobs into those that fit a budget in seconds and the rest, both in order.

    Devices work side by side. A job brings the baselines that it waits for: without them its time
    would be spent in vain. A job that needs no other goes to the device on which least is planned
    so far: its replicate's or one of the first of `devices`, `most` in all, but none that refuses
    it. The first job is taken however long it is, or no run would ever end.
    """
    by_id = {job.cell.id: job for job in jobs}
    chosen: set[str] = set()
    spent = Counter()
    for job in jobs:
        if not job.cell.needs and not refusal(job.cell, job.device):
            near = [*dict.fromkeys([job.device, *devices])][:most]
            least = (d for d in sorted(near, key=spent.__getitem__) if not refusal(job.cell, d))
            by_id[job.cell.id] = job = replace(job, device=next(least))
        bundle = ({job.cell.id} | (job.cell.needs & by_id.keys())) - chosen
        seconds = sum(by_id[name].estimate_s for name in bundle)
        if budget_s is None or not chosen or spent[job.device] + seconds <= budget_s:
            spent[job.device] += seconds
            chosen |= bundle
    fits = [by_id[job.cell.id] for job in jobs if job.cell.id in chosen]
    return fits, [job for job in jobs if job.cell.id not in chosen]
