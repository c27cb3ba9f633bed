"""The laws of what is pending, its estimates and budgets."""

import itertools
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_plan import SMALL, WORKLOADS, A, C, small_study
from workflow.collocation.plan import pending
from workflow.collocation.plan.attempts import CellAttempt
from workflow.collocation.plan.duration import DurationEstimates
from workflow.collocation.plan.pending import split_by_budget
from workflow.collocation.record.run_json import FAULTS, MEASURED, RESULTS, GpuRecord, Record
from workflow.collocation.study.grid import Cell, expand

# -- a world of cells, attempts and devices --------------------------------------------------------

CELLS = expand(small_study(replicates=2), WORKLOADS)
CPU = "cpu:m"
DEVICES = ["GPU-a", "GPU-b", CPU]
BY_ID = {cell.id: cell for cell in CELLS}
READ = {cell.id: json.loads(json.dumps(cell.spec.to_json())) for cell in CELLS}  # as from a file


def attempt(cell: Cell, number: int, status: str, device: str = "GPU-a", spec=None) -> CellAttempt:
    record = Record.model_construct(
        status=status,
        spec=spec or READ[cell.id],
        gpu=None if device == CPU else GpuRecord.model_construct(uuid=device),
        timing={"total_s": 10.0, "lock_wait_s": 1.0},
        reason="as it is",
        provenance={"machine": "m"},
    )
    path = Path(cell.id, f"a{number}", "run.json")
    return CellAttempt(cell.id, number, path, None if status == "corrupt" else record)


def possible(cell: Cell) -> str | None:
    return None


def no_mig(cell: Cell) -> str | None:
    return "no MIG here" if cell.method.startswith("mig") else None


def by_id(found: list[CellAttempt]) -> dict[str, list[CellAttempt]]:
    attempts: dict[str, list[CellAttempt]] = {}
    for entry in sorted(found, key=lambda a: a.number):
        attempts.setdefault(entry.cell, []).append(entry)
    return attempts


@dataclass
class World:
    """What has been measured so far, and a way to go on."""

    attempts: dict[str, list[CellAttempt]] = field(default_factory=dict)

    def pending(self, device="GPU-a", refusal=possible, **options):
        options.setdefault("on_gpu", device != CPU)
        devices = device if isinstance(device, dict) else dict.fromkeys(range(1, 10), device)
        return pending.pending_cells(CELLS, self.attempts, devices, refusal, **options)

    def run(self, device="GPU-a", refusal=possible, status="completed", only=None, **options):
        """Run all that is pending; cells that cannot run become 'unsupported'."""
        jobs = self.pending(device, refusal, **options)
        for job in jobs:
            if only is None or job.cell.id in only:
                ended = "unsupported" if refusal(job.cell) else status
                made = attempt(job.cell, job.attempt, ended, device)
                self.attempts.setdefault(job.cell.id, []).append(made)
        return jobs

    def why(self, device="GPU-a", refusal=possible, **options) -> dict[str, str]:
        return {job.cell.id: job.reason for job in self.pending(device, refusal, **options)}


STATUSES = [*RESULTS, *FAULTS, "postponed", "corrupt", "changed"]
ends = st.lists(st.sampled_from(list(itertools.product(STATUSES, DEVICES))), max_size=4)


@st.composite
def worlds(draw) -> World:
    """Up to four attempts at every cell, with any end, on any device, some of another spec."""
    attempts = {}
    for cell in CELLS:
        attempts[cell.id] = []
        for number, (status, device) in enumerate(draw(ends), 1):
            spec = {"members": [], "old": True} if status == "changed" else None
            status = "completed" if status == "changed" else status
            attempts[cell.id].append(attempt(cell, number, status, device, spec))
    return World(attempts)


refusals = st.sampled_from([possible, no_mig])
devices = st.sampled_from(DEVICES)


def tried_on(cell: Cell, world: World, device: str) -> list[CellAttempt]:
    """Of a cell, those on a GPU if the device is one, else those on a CPU."""
    same = pending.attempts_at(cell, world.attempts)
    return [a for a in same if (a.device == CPU) == (device == CPU)]


def last_result(cell: Cell, world: World, device: str) -> CellAttempt | None:
    found = [a for a in tried_on(cell, world, device) if a.status in RESULTS]
    return found[-1] if found else None


@given(worlds(), st.data())
def test_on_a_cluster_any_gpu_a_replicate_gets_will_do_and_a_study_ends(world, data):
    """Each run of a replicate has a GPU that nobody knew before, and each cell any end."""
    refused = lambda cell: pending.refusal_reason(tried_on(cell, world, "GPU"))  # noqa: E731
    places = {replicate: pending.unknown_device(replicate) for replicate in (1, 2)}
    for _ in range(12):
        jobs = world.pending(places, refused)
        if not jobs:
            break
        gpu = {
            replicate: data.draw(st.sampled_from(["GPU-a", "GPU-b", "GPU-c"]))
            for replicate in (1, 2)
        }
        for job in jobs:
            ends = ["completed", "out_of_memory", "unsupported", "failed"]
            made = job.cell, job.attempt, data.draw(st.sampled_from(ends)), gpu[job.cell.replicate]
            world.attempts.setdefault(job.cell.id, []).append(attempt(*made))
    assert not world.pending(places, refused)

    def hopeless(cell):
        faults = sum(a.status in FAULTS for a in tried_on(cell, world, "GPU"))
        return refused(cell) or faults >= 3

    for cell in CELLS:  # whatever has an answer can be compared with its jobs alone
        last = last_result(cell, world, "GPU")
        if last and last.status in MEASURED and not hopeless(cell):
            for needed in map(BY_ID.get, cell.needs):
                tried = tried_on(needed, world, "GPU")
                there = any(a.status in MEASURED and a.device == last.device for a in tried)
                assert there or hopeless(needed)


@given(worlds(), devices, refusals)
def test_a_cell_is_pending_without_an_answer_or_as_a_baseline_elsewhere(world, device, refusal):
    """Unless it failed too often; in order, under the next number, and planning changes nothing."""
    before = {cell: list(found) for cell, found in world.attempts.items()}
    jobs = world.pending(device, refusal)
    assert jobs == world.pending(device, refusal) and world.attempts == before
    assert [job.rank for job in jobs] == sorted(job.rank for job in jobs)
    for job in jobs:
        taken = [a.number for a in world.attempts[job.cell.id]]
        assert job.cell == CELLS[job.rank] and job.estimate_s > 0
        assert job.path == f"{job.cell.id}/a{max(taken, default=0) + 1}"
    reasons = {job.cell.id: job.reason for job in jobs}
    for cell in CELLS:
        last, why = last_result(cell, world, device), reasons.get(cell.id)
        if last is None:
            faults = sum(a.status in FAULTS for a in tried_on(cell, world, device))
            assert why or faults >= 3
            if faults >= 3 and cell.needs != {cell.id}:
                assert not why
        elif last.status in MEASURED:
            elsewhere = f"no baseline on {last.device}, where it was measured"
            assert why in (None, f"baseline on {device}", elsewhere)
        elif why is not None:
            assert refusal(cell) is None


@given(worlds(), devices, refusals)
def test_what_completed_leaves_nothing_pending_and_has_its_baselines_there(world, device, refusal):
    world.run(device, refusal)
    assert world.run(device, refusal) == []
    for cell in CELLS:
        last = last_result(cell, world, device)
        if last and last.status in MEASURED and last.device == device and not refusal(cell):
            for needed in cell.needs:
                tried = [a for a in world.attempts[needed] if a.record and a.device == device]
                assert any(a.status in (*RESULTS, *FAULTS) for a in tried)


@given(worlds(), devices, refusals, st.integers(1, 4))
def test_what_always_fails_is_tried_a_few_times_and_then_listed(world, device, refusal, most):
    for _ in range(most):
        world.run(device, refusal, status="failed", max_attempts=most)
    assert world.pending(device, refusal, max_attempts=most) == []
    listed = {cell.id for cell, _, _ in pending.cells_without_result(CELLS, world.attempts)}
    for cell in CELLS:
        ended = [a for a in pending.attempts_at(cell, world.attempts) if a.status != "postponed"]
        assert (cell.id in listed) == (ended[-1].status in FAULTS)


@given(worlds(), devices, refusals, st.floats(0, 1000))
def test_a_budget_takes_the_first_jobs_that_fit_with_their_baselines(
    world, device, refusal, budget
):
    jobs = world.pending(device, refusal)
    now, later = split_by_budget(jobs, budget)
    assert sorted([*now, *later], key=lambda job: job.rank) == jobs
    first = jobs[0].cell.needs | {jobs[0].cell.id} if jobs else set()
    chosen = {job.cell.id for job in now}
    assert sum(job.estimate_s for job in now) <= budget or chosen <= first
    assert bool(now) == bool(jobs), "a run gets on"
    planned = {job.cell.id for job in jobs}
    assert all(job.cell.needs & planned <= chosen for job in now)
    if later:
        next_one = later[0].cell.needs | {later[0].cell.id}
        bundle = [job for job in later if job.cell.id in next_one]
        assert sum(job.estimate_s for job in [*now, *bundle]) > budget
    assert split_by_budget(jobs, None) == (jobs, [])


# -- what a person would tell ----------------------------------------------------------------------


def cell_of(scenario: str, method: str, replicate: int = 1) -> Cell:
    wanted = (scenario, method, replicate)
    return next(c for c in CELLS if (c.scenario, c.method, c.replicate) == wanted)


ALONE, THREE = cell_of(f"1x_{SMALL}", "naive"), cell_of(f"3x_{SMALL}", "mps")
MIG = cell_of(f"3x_{SMALL}", "mig")


@pytest.fixture
def world() -> World:
    """In which all is measured, on GPU-a."""
    made = World()
    made.run()
    return made


@pytest.mark.parametrize("status", ["failed", "unsupported"])
def test_what_goes_wrong_when_tried_is_tried_three_times_or_as_often_as_is_asked_for(world, status):
    tried = [attempt(MIG, number, status) for number in (1, 2, 3)]
    for entry in tried:
        entry.record.phase = "warm"
    world.attempts[MIG.id] = tried[:2]
    assert [job.attempt for job in world.pending()] == [3]
    world.attempts[MIG.id] = tried
    assert world.pending() == []
    assert [job.attempt for job in world.pending(max_attempts=4)] == [4]
    listed = [
        (cell, last.number, n)
        for cell, last, n in pending.cells_without_result(CELLS, world.attempts)
    ]
    assert listed == ([(MIG, 3, 3)] if status == "failed" else [])


def test_unsupported_is_asked_again_only_when_it_has_become_possible():
    world = World()
    world.run(refusal=no_mig)
    assert world.pending(refusal=no_mig) == []
    of_mig = [cell.id for cell in CELLS if cell.method.startswith("mig")]
    assert world.why() == dict.fromkeys(of_mig, "is possible now")


def test_a_replicate_that_goes_on_on_another_gpu_measures_its_baselines_there(world):
    """Also after an interruption; a cell that will be refused needs none."""
    world.attempts[THREE.id] = []
    assert world.why("GPU-b") == {
        THREE.id: "not measured yet",
        ALONE.id: "baseline on GPU-b",  # of this replicate and workload; no other
    }
    world.run("GPU-b", only=[THREE.id])
    assert world.why("GPU-b") == {ALONE.id: "baseline on GPU-b"}
    assert world.why("GPU-a") == {THREE.id: "no baseline on GPU-b, where it was measured"}
    world.run("GPU-b")
    assert world.pending("GPU-b") == world.pending("GPU-a") == []
    world.attempts[MIG.id] = []
    assert world.why("GPU-c", no_mig) == {MIG.id: "not measured yet"}


@pytest.mark.parametrize(
    ("status", "spec"), [("postponed", None), ("failed", None), ("completed", {"old": True})]
)
def test_a_baseline_that_did_not_come_about_on_this_gpu_is_measured_again(world, status, spec):
    """Or came about with other settings."""
    world.attempts[THREE.id] = []
    world.attempts[ALONE.id].insert(0, attempt(ALONE, 2, status, "GPU-b", spec))
    assert world.why("GPU-b")[ALONE.id] == "baseline on GPU-b"


@pytest.mark.parametrize(("there", "here"), [(CPU, "GPU-a"), ("GPU-a", CPU)])
@pytest.mark.parametrize("status", ["completed", "failed", "unsupported"])
def test_what_a_cpu_did_never_stands_for_a_gpu_nor_the_other_way_round(there, here, status):
    world = World()
    for _ in range(3):
        world.run(there, status=status)
    first, *_ = jobs = world.pending(here)
    assert len(jobs) == len(CELLS) and first.reason == "not measured yet"
    assert first.attempt == len(world.attempts[first.cell.id]) + 1


def test_stale_results_are_measured_again_on_request(world):
    old = {THREE.id: 1}

    def stale(entry: CellAttempt) -> bool:
        return entry.number <= old.get(entry.cell, 0)

    assert world.why(is_stale=stale) == {THREE.id: "measured with another trainer or version"}
    world.attempts[THREE.id] = [attempt(THREE, n, "failed") for n in (1, 2, 3)]
    old[THREE.id] = 3  # they failed with other code: that does not count
    assert [job.attempt for job in world.run(is_stale=stale)] == [4]
    assert world.pending(is_stale=stale) == []


def test_analysis_reads_every_attempt_at_todays_cells_and_of_a_sealed_study_at_any():
    old = attempt(THREE, 2, "completed", spec={"old": True})
    more = ((3, "failed"), (4, "corrupt"), (5, "postponed"))
    tried = {THREE.id: [attempt(THREE, 1, "completed"), old, *(attempt(THREE, *m) for m in more)]}
    gone = replace(THREE, scenario="gone")
    tried[gone.id] = [attempt(gone, 1, "completed", spec=READ[THREE.id])]
    assert [a.number for a in pending.counted_attempts([THREE], tried)] == [1, 3]
    found = pending.counted_attempts([THREE], tried, sealed=True)
    expected = [(THREE.id, 1), (THREE.id, 2), (THREE.id, 3), (gone.id, 1)]
    assert [(a.cell, a.number) for a in found] == expected


# -- how long it takes -----------------------------------------------------------------------------

TWIN = cell_of(f"3x_{SMALL}", "mps", 2)


def took(cell: Cell, *seconds: float, waited: float = 0.0) -> dict[str, list[CellAttempt]]:
    """Attempts that took so long from start to end."""
    made = [attempt(cell, number, "completed") for number, _ in enumerate(seconds, 1)]
    for each, total in zip(made, seconds, strict=True):
        each.record.timing = {"total_s": total, "lock_wait_s": waited}
    return {cell.id: made}


def test_estimates_are_what_other_replicates_took():
    found = took(TWIN, 100.0, 61.0, 20.0, waited=1.0)
    found[TWIN.id] += [attempt(TWIN, 4, "failed"), attempt(TWIN, 5, "corrupt")]
    assert DurationEstimates(found).cell_seconds(THREE) == 60.0  # the median, less the waiting
    unlike = cell_of(f"3x_{SMALL}", "naive")
    guessed = DurationEstimates({}).cell_seconds(unlike)
    assert DurationEstimates(found).cell_seconds(unlike) == guessed


def windowed(measure: dict, *counts: int) -> list[Cell]:
    ladders = [{"workloads": [A], "counts": dict.fromkeys(counts, ["mps"]), "measure": measure}]
    cells = expand(small_study(ladders=ladders, mixes=[]), WORKLOADS)
    return [next(c for c in cells if c.n == n and c.method == "mps") for n in counts]


def test_a_longer_window_takes_as_much_longer_and_what_is_unknown_by_a_rule_of_thumb():
    [short], [long] = windowed({"window_s": 10}, 2), windowed({"window_s": 60}, 2)
    [twice] = windowed({"window_s": 10, "kind": "departure"}, 2)
    measured = attempt(short, 1, "completed", spec=short.spec.to_json())
    for estimates in (DurationEstimates({}), DurationEstimates({short.id: [measured]})):
        assert estimates.cell_seconds(long) == estimates.cell_seconds(short) + 50
    guess = DurationEstimates({}).cell_seconds
    assert guess(twice) == guess(short) + 10
    [at_once] = windowed({"window_s": 10, "autotune": "concurrent"}, 2)
    assert guess(at_once) == 9 + 2 * 3.5 + 3 + 10 + 1  # warm-up, window, settling
    assert guess(short) == guess(at_once) + 2 * 4  # one after the other
    two, seven = windowed({}, 2, 7)
    assert 10 < guess(two) < guess(seven)
    assert DurationEstimates({}, on_gpu=False).cell_seconds(two) < guess(two)


# -- several devices -------------------------------------------------------------------------------

GPUS = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


def turns(tier: int = 1, slices: int = 10, names=(SMALL, A), **more) -> dict:
    """A ladder of interleaved cells, which hold their jobs alone; larger ones take longer."""
    measure = {"kind": "interleaved", "slices": slices, "slice_s": 1.0}
    counts = {n: ["alone", "naive", "mps"] for n in (2, 3, 5, 7, 9)}
    return {"workloads": [*names], "counts": counts, "measure": measure, "tier": tier, **more}


def dealt(cells, budget=None, attempts=None, most=4, devices=GPUS, refusal=None, place=None):
    """The jobs to run now and later, each with its device."""
    attempts, refusal = attempts or {}, refusal or (lambda cell, device: None)
    place = place or pending.choose_devices(cells, attempts, devices, most)
    own = lambda cell: refusal(cell, place[cell.replicate])  # noqa: E731
    jobs = pending.pending_cells(cells, attempts, place, own)
    return pending.split_by_budget(jobs, budget, devices, most, refusal)


def loads(jobs) -> dict[str, float]:
    spent: dict[str, float] = {}
    for job in jobs:
        job.add_to(spent)
    return spent


def grid(*ladders, mixes=(), replicates=1) -> list[Cell]:
    content = {"ladders": [*ladders], "mixes": [*mixes], "replicates": replicates}
    return expand(small_study(**content), WORKLOADS)


WINDOWS = {"workloads": [SMALL, A], "counts": {1: ["mps"], 3: ["naive", "mps"]}}
ONE_PASS = grid(turns(names=(SMALL, A, C)))
assert len(ONE_PASS) == 15 and not any(cell.needs for cell in ONE_PASS)
BOTH = grid(turns(), WINDOWS, replicates=2)


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize("cells", [ONE_PASS, grid(turns(), replicates=3), BOTH])
def test_cells_that_need_no_other_are_dealt_out_one_by_one(cells, most):
    """In order; so the GPUs end within the longest cell of each other, whoever has the replicate.
    Those that need others stay together.
    """
    place = pending.choose_devices(cells, {}, GPUS, most)
    now, later = dealt(cells, most=most)
    assert [job.cell for job in now] == cells and not later
    assert all(job.device == place[job.cell.replicate] for job in now if job.cell.needs)
    assert {job.device for job in now} == {*GPUS[:most]}
    if cells is not BOTH:
        for end in range(1, len(now) + 1):
            spent = [loads(now[:end]).get(gpu, 0.0) for gpu in GPUS[:most]]
            assert max(spent) - min(spent) <= max(job.estimate_s for job in now[:end])


def measured(cells: list[Cell], device: str) -> dict[str, list[CellAttempt]]:
    return {c.id: [attempt(c, 1, "completed", device, spec=c.spec.to_json())] for c in cells}


OWN, TIED = ([c for c in BOTH if bool(c.needs) == needs] for needs in (False, True))
FIRST = {name: [c for c in its if c.replicate == 1] for name, its in (("own", OWN), ("tied", TIED))}


@pytest.mark.parametrize(
    ("done", "most", "goes_on"),
    [
        (measured(FIRST["tied"][:2], "GPU-c"), 4, "GPU-c"),
        (measured(FIRST["tied"][:2], "GPU-c"), 1, "GPU-c"),
        # cells that others are compared with count, however many more ran elsewhere
        (measured(FIRST["own"][:6], "GPU-b") | measured(FIRST["tied"][:1], "GPU-c"), 4, "GPU-c"),
        (measured(FIRST["own"][:2], "GPU-c"), 1, "GPU-c"),
        (measured(FIRST["tied"][:2], "GPU-of-another-host"), 4, "GPU-a"),
    ],
)
def test_a_replicate_goes_on_where_it_was_begun(done, most, goes_on):
    """With one GPU all of it does; with several, cells that need no other run on any."""
    now, _ = dealt(BOTH, attempts=done, most=most)
    first = [job for job in now if job.cell.replicate == 1]
    assert {job.device for job in first if job.cell.needs} == {goes_on}
    own = {job.device for job in first if not job.cell.needs}
    assert own == {goes_on} if most == 1 else len(own) > 1


def test_what_is_measured_is_measured_nowhere_again_and_the_rest_is_dealt_out_anew():
    now, _ = dealt(ONE_PASS, attempts=measured(ONE_PASS[:7], "GPU-a"))
    assert [job.cell for job in now] == ONE_PASS[7:] and len(loads(now)) == 4


@pytest.mark.parametrize("place", [pending.unknown_device(1), "cpu:host"])
def test_a_cluster_and_a_cpu_have_one_device_for_a_replicate(place):
    now, later = dealt(ONE_PASS, devices=[place], most=1, place={1: place})
    assert {job.device for job in now} == {place} and not later


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0, 1.3])
def test_a_budget_fills_all_gpus_with_the_first_tier_before_the_next_one(share):
    """A cell is left for later only where no GPU has room for it; what was left takes no room."""
    cells = grid(turns(slices=20), turns(tier=2, slices=2), WINDOWS | {"tier": 3})
    first = [cell for cell in cells if cell.replicate == 1]
    every, _ = dealt(first)
    budget = share * max(loads(every).values())
    now, later = dealt(cells, budget)
    assert max(loads(now).values()) <= budget
    assert {job.device for job in now if job.cell.replicate == 1} == {*GPUS}
    for job in later:
        if not job.cell.needs:
            spent = loads(each for each in now if each.rank < job.rank)
            assert min(spent.get(gpu, 0.0) for gpu in GPUS) + job.estimate_s > budget
    if share >= 1:
        assert {job.cell.id for job in every} <= {job.cell.id for job in now}
