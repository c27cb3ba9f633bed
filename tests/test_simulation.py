"""Studies with known truth (tests.simulator) through estimates, claims and advice."""

from collections import Counter, defaultdict

import pytest

from analysis.estimates.build import build
from tests.simulator import ARM, BUSY_GAINS, PLAIN_GAINS, Design, Job, Noise, simulate

LAUNCH = [Job(f"thin{k}", 2000.0 + 300 * k, 0.15 + 0.02 * k) for k in range(10)]
BUSY = [Job(f"thick{k}", 500.0 + 20 * k, 0.94 + 0.005 * k, BUSY_GAINS) for k in range(5)]


def built(design, seed):
    """A simulated study, and its estimates by id."""
    study = simulate(design, seed)
    return study, {e.id: e for e in build(study.rows, study.plan, {})}


@pytest.fixture(scope="module")
def covered():
    """(quantity, kind of job) → for each interval of one host whether it holds the truth."""
    found = defaultdict(list)
    for seed in range(60):
        design = Design([*LAUNCH, *BUSY], counts=(7,), failing=0.05, unsteady=0.1)
        study, estimates = built(design, seed)
        for e in estimates.values():
            true = study.true.get((e.quantity, e.scenario, e.arm, e.method, e.host))
            # Of numbers that share their replicates only one is asked.
            asked = e.method == "mps" if e.jobs > 1 else e.quantity == "rate"
            if e.host and e.low is not None and true is not None and asked:
                kind = "alone" if e.jobs == 1 else "busy" if "thick" in e.scenario else "thin"
                found[e.quantity, kind].append(e.low <= true <= e.high)
    return found


@pytest.mark.parametrize("quantity", ["rate", "stp", "s", "gract", "rate_over_naive"])
def test_an_interval_of_one_host_holds_the_truth_95_times_in_a_hundred(covered, quantity):
    hits = [hit for (name, _), each in covered.items() if name == quantity for hit in each]
    assert len(hits) > 800
    assert 0.93 <= sum(hits) / len(hits) <= 0.97


@pytest.mark.parametrize("kind", ["alone", "thin", "busy"])
def test_a_rate_is_covered_for_every_kind_of_job(covered, kind):
    hits = covered["rate", kind]
    assert 0.925 <= sum(hits) / len(hits) <= 0.975


def test_over_several_hosts_low_and_high_are_the_least_and_the_most_of_theirs():
    design = Design([*LAUNCH[:3], *BUSY[:2]], hosts=4, blocks=3, failing=0.2, split=True)
    for seed in range(4):
        _, estimates = built(design, seed)
        seen = Counter()
        for e in estimates.values():
            on = [h for h in estimates.values() if _place(h) == _place(e) and h.host]
            if e.host or not e.scenario or len(on) < 2 or e.quantity == "outcome":
                continue
            points = [h.value for h in on]
            assert (e.low, e.high) == (min(points), max(points)), e.id
            assert e.low * (1 - 1e-12) <= e.value <= e.high * (1 + 1e-12)
            assert (e.hosts, e.n) == (len(on), sum(h.n for h in on))
            assert e.spread == "range"
            seen[e.quantity] += 1
        assert seen.keys() >= {"rate", "stp", "s", "gaps", "gract", "rate_over_naive", "rate_cv"}


def _place(e):
    return e.quantity, e.scenario, e.arm, e.method, e.window, e.job


def test_s_is_the_same_on_every_host_where_the_gain_is_not():
    """A set that fills the GPU: the host slows the job alone and nothing else."""
    design = Design([Job("thin", 3000, 0.5)], hosts=6, noise=Noise(host=0.3))
    _, estimates = built(design, 1)
    s = estimates["s:7x_thin/faithful/mps"]
    stp = estimates["stp:7x_thin/faithful/mps"]
    assert s.high / s.low < 1.03
    assert stp.high / stp.low > 1.5


def test_what_is_flagged_counts_like_the_rest():
    """The same study with and without flags, drift and verdicts on losses has the same numbers."""
    design = Design(LAUNCH[:3], hosts=2, blocks=3)
    study = simulate(design, 5)
    marked = [
        row | {"flags": "cores_shared;uneven", "drift": 0.2, "loss_check": "differs"}
        for row in study.rows
    ]
    plain, flagged = (
        {
            e.id: (e.value, e.low, e.high, e.n)
            for e in build(rows, study.plan, {})
            if e.quantity != "count"
        }
        for rows in (study.rows, marked)
    )
    assert plain == flagged


def test_a_block_that_moved_to_another_device_has_a_baseline_on_each():
    design = Design(LAUNCH[:1], counts=(2, 3, 7), split=True)
    study, estimates = built(design, 2)
    rows = {f"{row['cell']}/a{row['attempt']}": row for row in study.rows}
    last = [row for row in study.rows if row["block"] == 5]
    assert len({row["device"] for row in last}) == 2
    for e in estimates.values():
        for replicate in e.replicates if e.quantity in ("stp", "rate_over_naive") else ():
            for base in replicate.over.split():
                assert rows[base]["device"] == rows[replicate.cell]["device"]
                assert rows[base]["block"] == rows[replicate.cell]["block"]
    assert estimates["rate:1x_thin0/faithful/naive"].n == 5  # the older one is a baseline only
    assert estimates["stp:7x_thin0/faithful/mps"].n == 5


def test_the_fastest_way_alone_is_found_whatever_the_host():
    arms = {ARM: 1.0, "graph": 3.0}
    design = Design([Job("thin", 3000, 0.2, arms=arms)], hosts=3, blocks=3)
    for seed in range(5):
        study, estimates = built(design, seed)
        fastest = estimates["fastest_rate:1x_thin/graph/naive"]
        over = estimates["over_fastest:7x_thin/faithful/mps"]
        assert fastest.value == estimates["rate:1x_thin/graph/naive"].value
        rate, best = (
            study.true["rate", scenario, arm, method, ""]
            for scenario, arm, method in (
                ("7x_thin", ARM, "mps"),
                ("1x_thin", "graph", "naive"),
            )
        )
        assert over.value == pytest.approx(rate / best, rel=0.25)
        assert PLAIN_GAINS["mps"] * 0.75 < over.value * 3 * 0.2 * 1.5
