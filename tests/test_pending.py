"""The laws of what is pending, its estimates and budgets."""

import itertools
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_plan import SMALL, WORKLOADS, A, small_study
from workflow.collocation.plan import pending
from workflow.collocation.plan.attempts import Attempt
from workflow.collocation.plan.duration import Estimates
from workflow.collocation.plan.pending import within
from workflow.collocation.record.run_json import FAULTS, MEASURED, RESULTS
from workflow.collocation.spec.grid import Cell, expand

# -- pending: a world of cells, attempts and devices -----------------------------------------------

CELLS = expand(small_study(replicates=2), WORKLOADS)
DEVICES = ["GPU-a", "GPU-b", "cpu"]
BY_ID = {cell.id: cell for cell in CELLS}
READ = {cell.id: json.loads(json.dumps(cell.spec.to_json())) for cell in CELLS}  # as from a file


def attempt(cell: Cell, number: int, status: str, device: str = "GPU-a", spec=None) -> Attempt:
    content = {
        "status": status,
        "spec": spec or READ[cell.id],
        "gpu": None if device == "cpu" else {"uuid": device},
        "timing": {"total_s": 10.0, "lock_wait_s": 1.0},
        "reason": "as it is",
    }
    path = Path(cell.id, f"a{number}", "run.json")
    return Attempt(cell.id, number, path, None if status == "corrupt" else content)


def possible(cell: Cell) -> str | None:
    return None


def no_mig(cell: Cell) -> str | None:
    return "no MIG here" if cell.method.startswith("mig") else None


def by_id(found: list[Attempt]) -> dict[str, list[Attempt]]:
    attempts: dict[str, list[Attempt]] = {}
    for entry in sorted(found, key=lambda a: a.number):
        attempts.setdefault(entry.cell, []).append(entry)
    return attempts


@dataclass
class World:
    """What has been measured so far, and a way to go on."""

    attempts: dict[str, list[Attempt]] = field(default_factory=dict)

    def pending(self, device="GPU-a", refusal=possible, **options):
        return pending.jobs(CELLS, self.attempts, device, refusal, **options)

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
        return {job.cell.id: job.why for job in self.pending(device, refusal, **options)}


STATUSES = [*RESULTS, *FAULTS, "postponed", "corrupt", "changed"]
ends = st.lists(st.sampled_from(list(itertools.product(STATUSES, DEVICES))), max_size=4)


@st.composite
def worlds(draw) -> World:
    """Up to four attempts at every cell, with any end, on any device, some of another spec."""
    attempts = {}
    for cell in CELLS:
        found = []
        for number, (status, device) in enumerate(draw(ends), 1):
            spec = {"members": [], "old": True} if status == "changed" else None
            status = "completed" if status == "changed" else status
            found.append(attempt(cell, number, status, device, spec))
        attempts[cell.id] = found
    return World(attempts)


refusals = st.sampled_from([possible, no_mig])
devices = st.sampled_from(DEVICES)


def tried_on(cell: Cell, world: World, device: str) -> list[Attempt]:
    """Of a cell, those on a GPU if the device is one, else those on a CPU."""
    same = pending.same(cell, world.attempts)
    return [a for a in same if (a.device == "cpu") == (device == "cpu")]


def last_result(cell: Cell, world: World, device: str) -> Attempt | None:
    found = [a for a in tried_on(cell, world, device) if a.status in RESULTS]
    return found[-1] if found else None


@given(worlds(), st.data())
def test_on_a_cluster_any_gpu_a_block_gets_will_do_and_a_study_ends(world, data):
    """Each run of a block has a GPU that nobody knew before, and each cell any end."""
    refused = lambda cell: pending.refused(tried_on(cell, world, "GPU"))  # noqa: E731
    places = {block: pending.unknown(block) for block in (1, 2)}
    for _ in range(12):
        jobs = world.pending(places, refused)
        if not jobs:
            break
        gpu = {block: data.draw(st.sampled_from(["GPU-a", "GPU-b", "GPU-c"])) for block in (1, 2)}
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
def test_pending_is_in_order_and_a_function_that_changes_nothing(world, device, refusal):
    before = {cell: list(found) for cell, found in world.attempts.items()}
    jobs = world.pending(device, refusal)
    assert jobs == world.pending(device, refusal) and world.attempts == before
    assert [job.cell.id for job in jobs] == [CELLS[job.rank].id for job in jobs]
    assert [job.rank for job in jobs] == sorted(job.rank for job in jobs)
    for job in jobs:
        taken = [a.number for a in world.attempts[job.cell.id]]
        assert job.attempt == max(taken, default=0) + 1
        assert job.path == f"{job.cell.id}/a{job.attempt}"
        assert job.why and job.estimate_s > 0


@given(worlds(), devices, refusals)
def test_a_cell_is_pending_without_an_answer_or_as_a_baseline_elsewhere(world, device, refusal):
    """Unless it failed too often."""
    pending_cells = world.why(device, refusal)
    for cell in CELLS:
        last, why = last_result(cell, world, device), pending_cells.get(cell.id)
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
def test_what_all_completed_leaves_nothing_pending(world, device, refusal):
    world.run(device, refusal)
    assert world.run(device, refusal) == []


@given(worlds(), devices, refusals, st.integers(1, 4))
def test_what_always_fails_is_tried_a_few_times_and_then_listed(world, device, refusal, most):
    for _ in range(most):
        world.run(device, refusal, status="failed", most=most)
    assert world.pending(device, refusal, most=most) == []
    listed = {cell.id for cell, _, _ in pending.exhausted(CELLS, world.attempts)}
    for cell in CELLS:
        tried = pending.same(cell, world.attempts)
        ended = [a for a in tried if a.status != "postponed"]
        assert (cell.id in listed) == (ended[-1].status in FAULTS)


@given(worlds(), devices)
def test_every_measured_cell_has_its_baselines_where_it_was_measured(world, device):
    world.run(device)
    for cell in CELLS:
        last = last_result(cell, world, device)
        if last and last.status in MEASURED and last.device == device:
            for needed in cell.needs:
                assert any(
                    a.device == device and a.status in (*RESULTS, *FAULTS)
                    for a in world.attempts[needed]
                    if a.content
                )


@given(worlds(), devices, refusals, st.floats(0, 1000))
def test_a_budget_takes_the_first_jobs_that_fit_with_their_baselines(
    world, device, refusal, budget
):
    jobs = world.pending(device, refusal)
    now, later = within(jobs, budget)
    assert sorted([*now, *later], key=lambda job: job.rank) == jobs
    first = jobs[0].cell.needs | {jobs[0].cell.id} if jobs else set()
    assert sum(job.estimate_s for job in now) <= budget or {j.cell.id for j in now} <= first
    assert bool(now) == bool(jobs), "a run gets on"
    pending_ids = {job.cell.id for job in jobs}
    chosen = {job.cell.id for job in now}
    assert all(job.cell.needs & pending_ids <= chosen for job in now)
    if later:
        next_one = later[0].cell.needs | {later[0].cell.id}
        bundle = [job for job in later if job.cell.id in next_one]
        assert sum(job.estimate_s for job in [*now, *bundle]) > budget
    assert within(jobs, None) == (jobs, [])


# -- pending: what a person would tell ------------------------------------------------------------


def cell_of(scenario: str, method: str, replicate: int = 1) -> Cell:
    [found] = [
        c for c in CELLS if (c.scenario, c.method, c.replicate) == (scenario, method, replicate)
    ]
    return found


ALONE, THREE = cell_of(f"1x_{SMALL}", "naive"), cell_of(f"3x_{SMALL}", "mps")
MIG = cell_of(f"3x_{SMALL}", "mig")
LONG = {"window_s": 60}


def measured_world(refusal=possible) -> World:
    world = World()
    world.run(refusal=refusal)
    return world


@pytest.mark.parametrize(
    ("tried", "number", "why"),
    [
        ({1: "corrupt"}, 2, "its run.json is corrupt"),
        ({1: "postponed"}, 2, "not measured yet"),  # as if nothing had happened
        ({4: "failed"}, 5, "failed, trying again"),  # though somebody removed the first ones
        ({1: "failed", 2: "timed_out"}, 3, "timed_out, trying again"),
    ],
)
def test_what_has_no_answer_is_tried_again_under_the_next_number(tried, number, why):
    world = measured_world()
    world.attempts[THREE.id] = [attempt(THREE, *each) for each in tried.items()]
    [job] = world.pending()
    assert (job.cell, job.attempt, job.why) == (THREE, number, why)


def test_a_failed_cell_is_tried_three_times_or_as_often_as_is_asked_for():
    world = measured_world()
    world.attempts[THREE.id] = [attempt(THREE, n, status) for n, status in enumerate(FAULTS, 1)]
    world.attempts[THREE.id] += [attempt(THREE, 3, "failed")]
    assert world.pending() == []
    [(cell, last, count)] = pending.exhausted(CELLS, world.attempts)
    assert (cell, last.number, count) == (THREE, 3, 3)
    assert [job.attempt for job in world.pending(most=5)] == [4]


def test_unsupported_is_asked_again_only_when_it_has_become_possible():
    world = measured_world(no_mig)
    assert world.pending(refusal=no_mig) == []
    of_mig = [cell.id for cell in CELLS if cell.method.startswith("mig")]
    assert world.why() == dict.fromkeys(of_mig, "is possible now")


@pytest.mark.parametrize("phase", ["setup", "warm"])
def test_what_only_trying_showed_to_be_unsupported_is_tried_three_times(phase):
    world = measured_world()
    tried = [attempt(MIG, number, "unsupported") for number in (1, 2, 3)]
    for entry in tried:
        entry.content["phase"] = phase
    world.attempts[MIG.id] = tried[:2]
    assert world.why() == {MIG.id: "is possible now"}
    world.attempts[MIG.id] = tried
    assert world.pending() == []
    assert len(world.pending(most=4)) == 1


def test_a_block_that_goes_on_on_another_gpu_measures_its_baselines_there():
    """Also after an interruption; a cell that will be refused needs none."""
    world = measured_world()
    world.attempts[THREE.id] = []
    assert world.why("GPU-b") == {
        THREE.id: "not measured yet",
        ALONE.id: "baseline on GPU-b",  # of this block and workload; no other
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
def test_a_baseline_that_did_not_come_about_on_this_gpu_is_measured_again(status, spec):
    """Or came about with other settings."""
    world = measured_world()
    world.attempts[THREE.id] = []
    world.attempts[ALONE.id].insert(0, attempt(ALONE, 2, status, "GPU-b", spec))
    assert world.why("GPU-b")[ALONE.id] == "baseline on GPU-b"


@pytest.mark.parametrize(("there", "here"), [("cpu", "GPU-a"), ("GPU-a", "cpu")])
@pytest.mark.parametrize("status", ["completed", "failed", "unsupported"])
def test_what_a_cpu_did_never_stands_for_a_gpu_nor_the_other_way_round(there, here, status):
    world = World()
    for _ in range(3):
        world.run(there, status=status)
    first, *_ = jobs = world.pending(here)
    assert len(jobs) == len(CELLS) and first.why == "not measured yet"
    assert first.attempt == len(world.attempts[first.cell.id]) + 1
    # Whichever kind the cells are, not where they are planned, decides.
    moved = [replace(job, device=there) for job in world.pending(here, on_gpu=there != "cpu")]
    assert moved == world.pending(there)


def test_stale_results_are_measured_again_on_request():
    world = measured_world()
    old = {THREE.id: 1}

    def stale(entry: Attempt) -> bool:
        return entry.number <= old.get(entry.cell, 0)

    assert world.why(stale=stale) == {THREE.id: "measured with another trainer or version"}
    world.attempts[THREE.id] = [attempt(THREE, n, "failed") for n in (1, 2, 3)]
    old[THREE.id] = 3  # they failed with other code: that does not count
    assert [job.attempt for job in world.run(stale=stale)] == [4]
    assert world.pending(stale=stale) == []


def test_analysis_reads_every_attempt_at_todays_cells_and_of_a_sealed_study_at_any():
    old = attempt(THREE, 2, "completed", spec={"old": True})
    more = ((3, "failed"), (4, "corrupt"), (5, "postponed"))
    tried = {THREE.id: [attempt(THREE, 1, "completed"), old, *(attempt(THREE, *m) for m in more)]}
    gone = replace(THREE, scenario="gone")
    tried[gone.id] = [attempt(gone, 1, "completed", spec=READ[THREE.id])]
    assert [a.number for a in pending.finished([THREE], tried)] == [1, 3]
    found = pending.finished([THREE], tried, sealed=True)
    expected = [(THREE.id, 1), (THREE.id, 2), (THREE.id, 3), (gone.id, 1)]
    assert [(a.cell, a.number) for a in found] == expected


# -- estimates ------------------------------------------------------------------------------------

OTHER, TWIN = cell_of(f"2x_{A}", "mps"), cell_of(f"3x_{SMALL}", "mps", 2)
NO_WORD = Estimates({})


def took(cell: Cell, *seconds: float) -> dict[str, list[Attempt]]:
    """Attempts that took so long from start to end."""
    spec = cell.spec.to_json()
    made = [attempt(cell, n, "completed", spec=spec) for n in range(1, len(seconds) + 1)]
    for each, total in zip(made, seconds, strict=True):
        each.content["timing"] = {"total_s": total}
    return {cell.id: made}


def beside(estimates: Estimates, cell: Cell) -> float:
    """What a cell is thought to take beside what its measure says."""
    measure = cell.spec.measure
    return estimates.of(cell) - measure.window_s - measure.warmup_s - measure.settle_s


def test_estimates_are_what_other_replicates_took():
    found = took(TWIN, 100.0, 61.0, 20.0)
    for entry in found[TWIN.id]:
        entry.content["timing"]["lock_wait_s"] = 1.0
    found[TWIN.id] += [attempt(TWIN, 4, "failed"), attempt(TWIN, 5, "corrupt")]
    assert Estimates(found).of(THREE) == 60.0  # the median, less the waiting
    other = {"kind": "departure"}
    found[TWIN.id].append(attempt(TWIN, 6, "completed", spec=READ[TWIN.id] | {"measure": other}))
    assert Estimates(found).of(THREE) == 60.0
    untimed = attempt(TWIN, 7, "completed")
    del untimed.content["timing"]
    assert Estimates(by_id([untimed])).of(THREE) == NO_WORD.of(THREE)


def test_what_a_study_that_ships_took_is_known_and_what_this_one_took_is_known_better():
    shipped = took(TWIN, 30.0) | took(OTHER, 20.0)
    known = Estimates({}, lambda kind: shipped)
    assert known.of(THREE) == 30.0
    long = {"ladders": [{"workloads": [SMALL], "counts": {3: ["mps"]}, "measure": LONG}]}
    [longer] = [c for c in expand(small_study(**long), WORKLOADS) if c.id == THREE.id]
    # The same job in a longer window.
    assert known.of(longer) == 30.0 + LONG["window_s"] - THREE.spec.measure.window_s
    unlike = cell_of(f"3x_{SMALL}", "naive")
    assert known.of(unlike) == NO_WORD.of(unlike)

    assert Estimates(took(THREE, 50.0), lambda kind: shipped).of(THREE) == 50.0


@pytest.mark.parametrize("measure", ["window", "departure"])
def test_a_rule_of_thumb_for_cells_that_nothing_like_was_measured(measure):
    ladders = [{"workloads": [A], "counts": {2: ["mps"], 7: ["mps"]}, "measure": {"kind": measure}}]
    cells = expand(small_study(ladders=ladders, mixes=[]), WORKLOADS)
    two, seven = (
        next(c for c in cells if c.n == n and c.spec.measure.kind == measure) for n in (2, 7)
    )
    assert 10 < NO_WORD.of(two) < NO_WORD.of(seven)


# -- several devices ------------------------------------------------------------------------------


def test_blocks_are_dealt_out_and_stay_where_they_were_begun():
    world, devices = World(), ["GPU-a", "GPU-b"]
    blocks = sorted({cell.replicate for cell in CELLS})
    dealt = pending.places(CELLS, {}, devices, 2)
    assert [dealt[block] for block in blocks] == (devices * len(blocks))[: len(blocks)]
    world.run("GPU-b", only=[next(cell.id for cell in CELLS if cell.replicate == blocks[0])])
    begun = pending.places(CELLS, world.attempts, devices, 2)
    assert begun[blocks[0]] == "GPU-b"
    assert pending.places(CELLS, world.attempts, ["GPU-a", "GPU-c"])[blocks[0]] == "GPU-a"
    jobs = pending.jobs(CELLS, world.attempts, begun, possible)
    assert {job.device for job in jobs if job.cell.replicate == blocks[0]} == {"GPU-b"}


def test_a_budget_is_for_each_device():
    cells = [replace(cell, replicate=block) for block in (1, 2) for cell in CELLS[:1]]
    jobs = pending.jobs(cells, {}, {1: "GPU-a", 2: "GPU-b"}, possible)
    longest = max(job.estimate_s for job in jobs)
    assert pending.within(jobs, longest) == (jobs, [])
    same = [replace(job, device="GPU-a") for job in jobs]
    assert pending.within(same, longest) == (same[:1], same[1:])
