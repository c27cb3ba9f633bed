"""Which cells still have to run, from the study and its run.json files. Pure functions.

Snakemake's own metadata is not used: a clone, an archive or a folder from another machine lacks it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import cycle

from workflow.collocation.plan.attempts import CellAttempt
from workflow.collocation.plan.duration import Attempts, DurationEstimates
from workflow.collocation.record.run_json import FAULTS, MEASURED, RESULTS
from workflow.collocation.study.cell import changed_settings
from workflow.collocation.study.grid import Cell

NEW = "not measured yet"
MAX_NAMED = 3  # changed settings in a message; of more the number is given
UNKNOWN_DEVICE = "the GPU of replicate "  # stands for the device that a cluster will choose
REFUSED_S = 2.0  # duration of a cell that will be 'unsupported'
IsStale = Callable[[CellAttempt], bool]


@dataclass(frozen=True)
class PendingCell:
    """A cell that has to run.

    attempt: the number of the new attempt. rank: position in the order of all cells. device: the
    name in records of the device that it is to run on; "" if any will do.
    """

    cell: Cell
    attempt: int
    reason: str
    rank: int
    estimate_s: float
    device: str = ""

    @property
    def path(self) -> str:
        """The attempt's folder below results/<study>/cells."""
        return f"{self.cell.id}/a{self.attempt}"

    def add_to(self, device_seconds: dict[str, float]) -> float:
        """Add the cell's duration to that of its device, and return the sum."""
        end = device_seconds.get(self.device, 0.0) + self.estimate_s
        device_seconds[self.device] = end
        return end

    @property
    def memory_mb(self) -> int:
        """Main memory that the cell's job asks for: its conductor and each member."""
        return 4096 * (1 + self.cell.n)


def never_stale(attempt: CellAttempt) -> bool:
    return False


def choose_devices(
    cells: list[Cell],
    attempts: Attempts,
    devices: list[str],
    max_devices: int = 1,
    is_stale: IsStale = never_stale,
) -> dict[int, str]:
    """The device of each replicate, on which its baselines and the cells that need them run.

    A replicate keeps to the device on which most of its cells were measured. New ones take turns on
    the first `max_devices`, those with the fewest unfinished replicates first.
    """
    measured_on: dict[int, Counter] = {cell.replicate: Counter() for cell in cells}
    unfinished = set()
    for cell in cells if len(devices) > 1 else ():
        valid = [attempt for attempt in attempts_at(cell, attempts) if not is_stale(attempt)]
        # One cell that needs baselines outweighs all that need none.
        weight = len(cells) if cell.needs else 1
        used = {attempt.device for attempt in valid if attempt.status in MEASURED}
        for device in used & {*devices}:
            measured_on[cell.replicate][device] += weight
        if _newest_result(valid) is None:
            unfinished.add(cell.replicate)
    begun = {
        replicate: max(sorted(weights), key=weights.get)
        for replicate, weights in measured_on.items()
        if weights
    }
    busy = Counter(begun[replicate] for replicate in unfinished & begun.keys())
    free = cycle(sorted(devices[:max_devices], key=busy.__getitem__))
    return {replicate: begun.get(replicate) or next(free) for replicate in sorted(measured_on)}


def unknown_device(replicate: int) -> str:
    """The name of the device that a cluster will give to a replicate."""
    return f"{UNKNOWN_DEVICE}{replicate}"


def pending_cells(
    cells: list[Cell],
    attempts: Attempts,
    devices: Mapping[int, str],
    refusal: Callable[[Cell], str | None],
    max_attempts: int = 3,
    is_stale: IsStale = never_stale,
    on_gpu: bool = True,
) -> list[PendingCell]:
    """The cells that still have to run, in order.

    A cell and its baselines must come from one device. So the baselines are measured on the
    replicate's device, and a cell that another device measured without baselines runs again.

    devices: replicate → device. refusal: why a cell's method cannot run here, or None.
    max_attempts: how often a failing cell is tried. is_stale: whether a result has to be measured
    again. on_gpu: whether the cells are for a GPU; the other kind of device does not count.
    """
    comparable: Attempts = {}  # attempts on the same kind of device
    current: Attempts = {}  # those of them at the cell as it is planned now
    reasons: dict[str, str | None] = {}
    refused = {cell.id for cell in cells if refusal(cell) is not None}
    for cell in cells:
        comparable[cell.id] = [
            attempt
            for attempt in attempts.get(cell.id, [])
            if attempt.record is None or attempt.on_gpu == on_gpu
        ]
        current[cell.id] = attempts_at(cell, comparable)
        reasons[cell.id] = _reason_to_run(
            cell,
            current[cell.id],
            comparable[cell.id],
            is_refused=cell.id in refused,
            max_attempts=max_attempts,
            is_stale=is_stale,
        )
    for cell in cells:
        if not reasons[cell.id] and cell.id not in refused:
            device = devices[cell.replicate]
            reasons[cell.id] = _missing_baseline(cell, current, device, max_attempts)
    for cell in cells:
        device = devices[cell.replicate]
        newest = _newest_result(current[cell.id])
        measured_here = newest and newest.status in MEASURED and newest.device == device
        will_run = reasons[cell.id] and cell.id not in refused
        for baseline in cell.needs & current.keys() if measured_here or will_run else ():
            settled = _is_settled_on(current[baseline], device, max_attempts)
            if not reasons[baseline] and not settled:
                reasons[baseline] = f"baseline on {device}"
    estimates = DurationEstimates(attempts, on_gpu)
    pending = []
    for rank, cell in enumerate(cells):
        if reasons[cell.id]:
            numbers = [attempt.number for attempt in attempts.get(cell.id, [])]
            pending.append(
                PendingCell(
                    cell=cell,
                    attempt=max(numbers, default=0) + 1,
                    reason=reasons[cell.id],
                    rank=rank,
                    estimate_s=REFUSED_S if cell.id in refused else estimates.cell_seconds(cell),
                    device=devices[cell.replicate],
                )
            )
    return pending


def attempts_at(cell: Cell, attempts: Attempts) -> list[CellAttempt]:
    """The attempts at a cell as it is planned now, oldest first."""
    return [a for a in attempts.get(cell.id, []) if a.spec_digest == cell.digest]


def _reason_to_run(
    cell: Cell,
    current: list[CellAttempt],
    comparable: list[CellAttempt],
    is_refused: bool,
    max_attempts: int,
    is_stale: IsStale,
) -> str | None:
    """Why a cell must run, or None. comparable: includes attempts with other settings."""
    reason = None
    newest = _newest_result(current)
    earlier_specs = [a.record.spec for a in comparable if a.record and a.status != "postponed"]
    if newest and newest.status == "unsupported":
        refusals = sum(attempt.refused_when_tried for attempt in current)
        if not is_refused and refusals < max_attempts:
            reason = "is possible now"
    elif newest:
        if is_stale(newest):
            reason = "measured with another trainer or version"
    elif any(attempt.record is None for attempt in comparable):
        reason = "its run.json is corrupt"
    elif earlier_specs:
        changes = changed_settings(earlier_specs[-1], cell.spec.to_json())
        reason = f"its settings changed: {', '.join(changes[:MAX_NAMED])}"
        if len(changes) > MAX_NAMED:
            reason += f" and {len(changes) - MAX_NAMED} more"
    else:
        reason = NEW
    faults = [attempt for attempt in _newest_faults(current) if not is_stale(attempt)]
    if reason and faults:
        return f"{faults[-1].status}, trying again" if len(faults) < max_attempts else None
    return reason


def _newest_faults(attempts: list[CellAttempt]) -> list[CellAttempt]:
    """The attempts that failed or timed out after the newest result, oldest first."""
    faults: list[CellAttempt] = []
    for attempt in attempts:
        if attempt.status in RESULTS:
            faults.clear()
        elif attempt.status in FAULTS:
            faults.append(attempt)
    return faults


def _newest_result(attempts: list[CellAttempt]) -> CellAttempt | None:
    return next((attempt for attempt in reversed(attempts) if attempt.status in RESULTS), None)


def cells_out_of_memory(attempts: Attempts) -> set[str]:
    """Ids of the cells whose newest result is that memory did not suffice."""
    newest = {cell: _newest_result(cell_attempts) for cell, cell_attempts in attempts.items()}
    return {cell for cell, result in newest.items() if result and result.status == "out_of_memory"}


def refusal_reason(attempts: list[CellAttempt]) -> str | None:
    """Why the newest result is that the cell is unsupported; None if it is another one."""
    newest = _newest_result(attempts)
    return newest.record.reason if newest and newest.status == "unsupported" else None


def _missing_baseline(cell: Cell, current: Attempts, device: str, max_attempts: int) -> str | None:
    """Why a result from another device than the replicate's is useless; None if it is not."""
    measured = [attempt for attempt in current[cell.id] if attempt.status in MEASURED]
    if not measured or measured[-1].device == device:
        return None
    if len(_newest_faults(current[cell.id])) >= max_attempts:
        return None
    other_device = measured[-1].device
    for baseline in cell.needs & current.keys():
        tried = current[baseline]
        if device.startswith(UNKNOWN_DEVICE) and _is_settled_on(tried, device, max_attempts):
            continue
        if not any(a.status in MEASURED and a.device == other_device for a in tried):
            return f"no baseline on {other_device}, where it was measured"
    return None


def _is_settled_on(attempts: list[CellAttempt], device: str, max_attempts: int) -> bool:
    """Whether a cell has a result on a device, or failed there as often as it is tried.

    On a device that is not known yet: whether it will not be measured on any device.
    """
    if device.startswith(UNKNOWN_DEVICE):
        return bool(refusal_reason(attempts)) or len(_newest_faults(attempts)) >= max_attempts
    on_device = [attempt for attempt in attempts if attempt.device == device]
    return bool(_newest_result(on_device)) or len(_newest_faults(on_device)) >= max_attempts


def cells_without_result(
    cells: list[Cell], attempts: Attempts
) -> list[tuple[Cell, CellAttempt, int]]:
    """Cells that failed since their newest result: (cell, newest fault, number of faults)."""
    failed = []
    for cell in cells:
        if faults := _newest_faults(attempts_at(cell, attempts)):
            failed.append((cell, faults[-1], len(faults)))
    return failed


def counted_attempts(
    cells: list[Cell], attempts: Attempts, sealed: bool = False
) -> list[CellAttempt]:
    """The attempts that analysis reads: those at the cells as they are planned now.

    sealed: the study ships, so all its records count, whatever its cells are today.
    """
    if sealed:
        planned = [cell.id for cell in cells]
        others = sorted(attempts.keys() - {*planned})
        candidates = [attempts.get(name, []) for name in dict.fromkeys((*planned, *others))]
    else:
        candidates = [attempts_at(cell, attempts) for cell in cells]
    return [a for tried in candidates for a in tried if a.record and a.status != "postponed"]


def split_by_budget(
    pending: list[PendingCell],
    budget_s: float | None,
    devices: Collection[str] = (),
    max_devices: int = 1,
    refusal: Callable[[Cell, str], str | None] = lambda cell, device: None,
) -> tuple[list[PendingCell], list[PendingCell]]:
    """Split cells into those that fit a budget and those that do not, both in order.

    Devices work in parallel. A cell needs its pending baselines as well, or its time would be
    wasted. A cell without baselines goes to the device with the least work among its replicate's
    and the first `devices`, `max_devices` in all, and never to one that refuses it. The first cell
    is always taken, or no run would make progress.

    budget_s: seconds; None: no limit. refusal: why a cell cannot run on a device, or None.
    """
    by_id = {job.cell.id: job for job in pending}
    chosen: set[str] = set()
    device_seconds = Counter()
    for job in pending:
        if not job.cell.needs and not refusal(job.cell, job.device):
            candidates = list(dict.fromkeys([job.device, *devices]))[:max_devices]
            possible = [device for device in candidates if not refusal(job.cell, device)]
            job = replace(job, device=min(possible, key=device_seconds.__getitem__))
            by_id[job.cell.id] = job
        bundle = ({job.cell.id} | (job.cell.needs & by_id.keys())) - chosen
        seconds = sum(by_id[name].estimate_s for name in bundle)
        if budget_s is None or not chosen or device_seconds[job.device] + seconds <= budget_s:
            device_seconds[job.device] += seconds
            chosen |= bundle
    fitting = [by_id[job.cell.id] for job in pending if job.cell.id in chosen]
    return fitting, [job for job in pending if job.cell.id not in chosen]
