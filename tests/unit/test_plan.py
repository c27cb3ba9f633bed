"""The grids of the shipped studies, and the laws of a grid and its order."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.collocation.study.cell import CellSpec, spec_digest
from workflow.collocation.study.definition import CONFIG, MEASURE_KINDS, Study
from workflow.collocation.study.grid import Cell, expand
from workflow.collocation.study.load import ConfigError, load_study, load_workloads

WORKLOADS = load_workloads(CONFIG / "workloads.yaml")
NAMES = sorted(path.stem for path in (CONFIG / "studies").glob("*.yaml"))
STUDIES = {name: load_study(CONFIG / "studies", name, WORKLOADS) for name in NAMES}
GRIDS = {name: expand(study, WORKLOADS) for name, study in STUDIES.items()}

# Section 3.2 of the paper's facts: implementations by number of copies.
PAPER_LADDER = {
    1: ("naive", "mps", "mig_7g", "mig_4g"),
    2: ("naive", "mps", "mig"),
    3: ("naive", "mps", "mig"),
    7: ("naive", "mps", "mig"),
}
# Experiment 37: A on a 1g, B on a 2g, C on a 4g instance.
A, B, C = "resnet26_cifar10_b128", "resnet50_imagenet64_b128", "resnet152_imagenet_b32"
SMALL, DLRM = "resnet26_cifar10_b32", "dlrm_criteo_b2048"
MIDDLE = ("efficientnetv2_s_imagenet64_b128", "cait_xxs24_imagenet_b128")


def small_study(**changes) -> Study:
    content = {
        "description": "a test",
        "replicates": 2,
        "ladders": [
            {"workloads": [SMALL], "counts": {1: ["naive"], 3: ["naive", "mps", "mig"]}},
            {"workloads": [A], "counts": {2: ["naive", "mps"]}},
        ],
        "mixes": [{"members": {SMALL: 1, C: 1}, "methods": ["naive", "mps"]}],
    }
    return Study.model_validate(content | changes)


def triples(cells: list[Cell], replicate: int = 1) -> set[tuple[str, str, str]]:
    return {(c.scenario, c.implementation, c.method) for c in cells if c.replicate == replicate}


# -- the shipped grids ----------------------------------------------------------------------------


def test_the_papers_grid_is_in_each_replicate_of_paper():
    expected = {
        (f"{count}x_{workload}", "paper_step", method)
        for workload in (SMALL, A, *MIDDLE, C)
        for count, methods in PAPER_LADDER.items()
        for method in methods
    }
    pairs = {f"{b}x_{B}+{a}x_{A}" for b in (1, 2, 3) for a in (1, 2, 3) if a + b in (2, 3, 4)}
    expected |= {(pair, "paper_step", m) for pair in pairs for m in ("naive", "mps", "mig")}
    shared = ("naive", "mps", "mig_shared")
    expected |= {(f"1x_{DLRM}+1x_{C}", "paper_step", method) for method in shared}
    cells = GRIDS["paper"]
    assert {cell.replicate for cell in cells} == {1, 2, 3}
    assert expected <= triples(cells) & triples(cells, 2) & triples(cells, 3)


def test_members_of_a_mix_have_their_slices():
    cells = {(c.scenario, c.method): c.spec for c in GRIDS["paper"]}
    for scenario, method, slices in (
        (f"2x_{B}+1x_{A}", "mig", ["2g", "2g", "1g"]),
        (f"2x_{B}+1x_{A}", "mps", [None] * 3),
        (f"1x_{DLRM}+1x_{C}", "mig_shared", ["3c.7g", "3c.7g"]),
    ):
        assert [member.slice for member in cells[scenario, method].members] == slices


def test_replicates_are_counted_through_tiers_and_each_has_its_baselines():
    ladders = [
        {"workloads": [SMALL], "counts": {2: ["naive"]}, "tier": 2, "replicates": 1},
        {"workloads": [A], "counts": {2: ["naive"]}},
    ]
    mixes = [{"members": {SMALL: 1, A: 1}, "methods": ["mps"], "tier": 3}]
    cells = expand(small_study(ladders=ladders, mixes=mixes), WORKLOADS)
    replicates: dict[int, set[str]] = {}
    for cell in cells:
        replicates.setdefault(cell.replicate, set()).add(cell.scenario)
    pair = {f"1x_{SMALL}+1x_{A}", f"1x_{SMALL}", f"1x_{A}"}
    assert replicates == {
        **dict.fromkeys((1, 2), {f"2x_{A}", f"1x_{A}"}),
        3: {f"2x_{SMALL}", f"1x_{SMALL}"},
        **dict.fromkeys((4, 5), pair),
    }
    assert [cell.replicate for cell in cells] == sorted(cell.replicate for cell in cells)


@pytest.mark.parametrize("counts", [(1, 2), (2, 24)])
@pytest.mark.parametrize(
    ("said", "shares"),
    [
        ({}, {SMALL: 7, A: 7}),
        ({"cores_for": 3}, {SMALL: 3, A: 3}),
        ({"cores_for_workload": {A: 2}}, {SMALL: 7, A: 2}),
    ],
)
def test_cores_are_divided_as_the_study_says_whatever_else_it_holds(counts, said, shares):
    ladders = [{"workloads": [SMALL, A], "counts": dict.fromkeys(counts, ["naive"])}]
    mixes = [{"members": {SMALL: 1, A: 3}, "methods": ["mps"]}]
    cells = expand(small_study(ladders=ladders, mixes=mixes, **said), WORKLOADS)
    members = [member for cell in cells for member in cell.spec.members]
    assert {(m.workload, m.cores_of) for m in members} == set(shares.items())


def test_graphs_that_have_the_gpu_to_themselves_are_visited():
    """Separate processes beside each other make the GPU switch contexts without being asked."""
    counts = {1: ["naive", "mps"], 3: ["naive", "mps", "mig"]}
    turns = {2: ["alone", "mps"], 3: ["mps", "mps_equal"]}
    ladders = [
        {"workloads": [SMALL], "counts": counts},
        {"workloads": [A], "counts": turns, "measure": {"kind": "interleaved"}},
    ]
    implementations = ["bf16", "graph", "compile"]
    cells = expand(
        small_study(ladders=ladders, mixes=[], implementations=implementations, replicates=1),
        WORKLOADS,
    )
    visited = {(c.n, c.method) for c in cells if c.spec.measure.second_context}
    assert visited == {
        *((1, "naive"), (1, "mps"), (3, "mps"), (3, "mig")),
        (6, "mps-mps_equal"),
    }
    assert {c.implementation for c in cells if c.spec.measure.second_context} == {
        "graph",
        "compile",
    }
    assert all(
        ("second_context" in c.spec.to_json()["measure"])
        == (c.spec.measure.second_context or False)
        for c in cells
    )


def test_a_completion_gives_each_member_its_work():
    mix = {"members": {SMALL: 2, A: 1}, "methods": ["naive"], "work": {SMALL: 30, A: 7}}
    mixes = [mix | {"measure": {"kind": "completion"}}]
    cells = expand(small_study(ladders=[], mixes=mixes, replicates=1), WORKLOADS)
    by_scenario = {cell.scenario: cell.spec for cell in cells}
    spec = by_scenario[f"2x_{SMALL}+1x_{A}--completion"]
    assert [member.work for member in spec.members] == [30, 30, 7]
    times = {"warmup_s": 3.0, "settle_s": 1.0}
    times |= {"autotune": "sequential"}
    assert spec.to_json()["measure"] == {"kind": "completion", **times}
    for alone_cell in (f"1x_{SMALL}", f"1x_{A}"):
        assert by_scenario[alone_cell].measure.kind == "window"
        assert by_scenario[alone_cell].members[0].work is None


VARIANTS = {
    "mps_14": {"sm_percent": 14},
    "mps_small": {"pinned_memory_mb": 2000},
    "mps_first": {"priority": {SMALL: 0, C: 1}},
    "mps_uneven": {"sm_percent": {SMALL: 30, C: 60.5}, "pinned_memory_mb": {SMALL: 9, C: 11}},
}
UNEVEN = [{"sm_percent": p, "pinned_memory_mb": mb} for p, mb in ((30, 9), (60.5, 11))]


@pytest.mark.parametrize(
    ("method", "members", "limits"),
    [
        ("mps", {SMALL: 2}, [{}, {}]),
        ("mps_equal", {SMALL: 7}, [{"sm_percent": 14.29}] * 7),
        ("mps_overlap", {SMALL: 7}, [{"sm_percent": 28.57}] * 7),
        ("mps_overlap", {SMALL: 1}, [{"sm_percent": 100}]),
        ("mps_14", {SMALL: 1, C: 1}, [{"sm_percent": 14}] * 2),
        ("mps_small", {SMALL: 1, C: 1}, [{"pinned_memory_mb": 2000}] * 2),
        ("mps_first", {SMALL: 2, C: 1}, [{"priority": 0}] * 2 + [{"priority": 1}]),
        ("mps_uneven", {SMALL: 1, C: 1}, UNEVEN),
    ],
)
def test_limits_stand_in_the_spec_of_the_members_that_have_them(method, members, limits):
    mixes = [{"members": members, "methods": [method]}]
    cells = expand(small_study(variants=VARIANTS, ladders=[], mixes=mixes), WORKLOADS)
    [cell] = [cell for cell in cells if cell.method == method and cell.replicate == 1]
    keys = ("sm_percent", "pinned_memory_mb", "priority")
    found = cell.spec.to_json()["members"]
    assert [{k: m[k] for k in keys if k in m} for m in found] == limits


def test_smoke_has_each_family_status_and_measure():
    cells = GRIDS["smoke"]
    members = [member for cell in cells for member in cell.spec.members]
    assert {member.job.dataset for member in members} == {
        *("digits", "imagenet64", "imagenet", "criteo", "sources", "speech", None)
    }
    assert {cell.spec.measure.kind for cell in cells} == set(MEASURE_KINDS)
    assert {cell.n for cell in cells} == {1, 2, 3}
    assert {cell.method for cell in cells} >= {"naive", "mps", "mig"}
    assert any(getattr(member.job, "memory_limit_mb", None) for member in members)


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_unique_and_baselines_their_own_and_specs_survive_json(name):
    """Alone, collocated and in mixes, in all implementations; a workload's cores are the same in
    all cells.
    """
    cells, study = {cell.id: cell for cell in GRIDS[name]}, STUDIES[name]
    assert len(cells) == len(GRIDS[name])
    for cell in cells.values():
        assert bool(cell.needs) != (cell.spec.measure.kind == "interleaved")
        for baseline in map(cells.__getitem__, cell.needs):
            assert baseline.needs == {baseline.id} and baseline.n == 1
            assert baseline.spec.measure.kind == "window"
        for member in cell.spec.members:
            own = study.cores_for_workload.get(member.workload, study.cores_for)
            own = None if "--allcores" in cell.scenario else own
            assert member.cores_of == own
    for spec in {(c.scenario, c.implementation, c.method): c.spec for c in cells.values()}.values():
        flat = json.loads(json.dumps(spec.to_json(), allow_nan=False))
        again = CellSpec.model_validate_json(spec.model_dump_json())
        assert again == spec and again.digest == spec.digest == spec_digest(flat)


# -- expand: laws ---------------------------------------------------------------------------------


def test_replicate_by_replicate_and_workload_by_workload_both_in_random_order():
    cells = GRIDS["paper"]
    assert [c.replicate for c in cells] == sorted(c.replicate for c in cells)
    often, orders, jobs = triples(cells, 2), [], []
    for replicate in (1, 2, 3):
        own = [c for c in cells if c.replicate == replicate]
        placed = [(c.scenario, c.implementation, c.method) for c in own]
        orders.append([place for place in placed if place in often])
        jobs.append([n for n, _ in itertools.groupby(c.spec.members[0].workload for c in own)])
        assert len(jobs[-1]) == len(set(jobs[-1]))
    assert set(orders[0]) == set(orders[1]) == set(orders[2])
    for found in (orders, jobs):
        assert found[0] != found[1] != found[2] and found[0] != sorted(found[0])


def test_the_order_is_the_seeds():
    first, again, other = (
        [cell.id for cell in expand(small_study(seed=seed), WORKLOADS)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other and set(first) == set(other)


entry = map(st.sampled_from, ([SMALL, A, B, C], [1, 2, 3, 7], ["naive", "mps", "mps_equal"]))
entries = st.lists(st.tuples(*entry), min_size=2, max_size=8, unique=True)


def study_of(rows, **changes) -> Study:
    ladders = [{"workloads": [w], "counts": {count: [method]}} for w, count, method in rows]
    return small_study(ladders=ladders, mixes=[], **changes)


@given(entries, st.integers(0, 5))
def test_a_cell_that_is_added_moves_no_other(rows, seed):
    before = [cell.id for cell in expand(study_of(rows[:-1], seed=seed), WORKLOADS)]
    after = [cell.id for cell in expand(study_of(rows, seed=seed), WORKLOADS)]
    assert [cell_id for cell_id in after if cell_id in set(before)] == before


@given(entries.flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(rows))))
def test_the_order_of_the_entries_does_not_matter(both):
    first, second = (expand(study_of(rows), WORKLOADS) for rows in both)
    assert first == second


def test_two_entries_with_different_settings_for_one_cell():
    counts = {2: ["naive"]}
    ladders = [
        {"workloads": [A], "counts": counts},
        {"workloads": [A], "counts": counts, "measure": {"window_s": 3}},
    ]
    with pytest.raises(ConfigError, match=rf"2x_{A}/paper_step/naive/r1: two entries"):
        expand(small_study(ladders=ladders), WORKLOADS)


LADDER = {"workloads": [A], "counts": {2: ["mps"]}}


@pytest.mark.parametrize(
    ("content", "kinds"),
    [
        (  # as the study says of the one that it names itself
            {
                "ladders": [LADDER | {"counts": {1: ["naive"]}, "measure": {"window_s": 3}}],
                "mixes": [{"members": {SMALL: 1, A: 1}, "methods": ["mps"]}],
            },
            {f"1x_{SMALL}+1x_{A}": 10, f"1x_{A}": 3, f"1x_{SMALL}": 10},
        ),
        (
            {"ladders": [LADDER], "measure": {"kind": "departure"}},
            {f"2x_{A}--departure": "departure", f"1x_{A}": 10},
        ),
        (
            {"ladders": [LADDER | {"input": "files"}]},
            {f"2x_{A}--files": 10, f"1x_{A}--files": 10},
        ),
    ],
)
def test_baselines_are_windows_and_have_their_cells_input(content, kinds):
    cells = expand(small_study(**{"mixes": [], "replicates": 1} | content), WORKLOADS)
    measures = {cell.scenario: cell.spec.measure for cell in cells}
    found = {s: m.window_s if m.kind == "window" else m.kind for s, m in measures.items()}
    assert found == kinds


def test_who_departs():
    mix = {"members": {SMALL: 2, A: 1}, "methods": ["naive"], "measure": {"kind": "departure"}}
    mixes = [
        {**mix, "leaving_workload": A},
        {**mix, "members": {SMALL: 1, C: 1}, "leaving_workload": SMALL},
    ]
    ladders = [{"workloads": [A], "counts": {3: ["mps"]}, "measure": {"kind": "departure"}}]
    cells = expand(small_study(ladders=ladders, mixes=mixes), WORKLOADS)
    measures = {cell.scenario: cell.spec.measure for cell in cells}
    leaving = {name: m.leaving_member for name, m in measures.items() if m.kind == "departure"}
    sets = (f"2x_{SMALL}+1x_{A}", f"1x_{SMALL}+1x_{C}", f"3x_{A}")
    assert leaving == {f"{s}--departure": who for s, who in zip(sets, (2, 0, 2), strict=True)}
