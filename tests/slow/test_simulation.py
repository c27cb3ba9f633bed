"""Studies with known truth (tests.simulator) through estimates, claims and advice."""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from random import Random

import pytest

from analysis.advice.study import advise
from analysis.estimates.records import flags
from analysis.estimates.table import CELL, by_id
from paper.claims import claim_estimates
from paper.rules import ClaimRules
from tests.handmade import built as made
from tests.simulator import BUSY_GAINS, IMPLEMENTATION, Design, Job, Noise, simulate

LAUNCH = [Job(f"thin{k}", 2000.0 + 300 * k, 0.15 + 0.05 * k) for k in range(10)]
BUSY = [Job(f"thick{k}", 500.0 + 20 * k, 0.94 + 0.005 * k, BUSY_GAINS) for k in range(5)]


def built(design, seed):
    """A simulated study, and its estimates by id."""
    study = simulate(design, seed)
    return study, by_id(made(study))


QUIET = Noise(device=0.0, drift=0.0)  # a cell knows nothing of what the next one would read
TURNS = [(f"7x_{job.name}", "alone-naive-naive-mps-mps") for job in LAUNCH]


@pytest.fixture(scope="module")
def turns():
    """(quantity, kind) → for each interval of one interleaved cell of 60 rounds whether it holds
    the truth, on hosts that are quiet and, where it is a ratio of rates, on others that drift.
    """
    found = defaultdict(list)
    for seed in range(2):
        noise = replace(QUIET, drift=0.03 * (seed % 2))
        design = Design(LAUNCH, (), hosts=6, replicates=0, turns=TURNS, noise=noise)
        study, estimates = built(design, seed)
        for e in estimates.values():
            true = study.true.get((e.quantity, e.scenario, e.implementation, e.method, e.host))
            drifts = noise.drift and e.quantity in ("rate", "s")
            if e.host and e.spread == CELL and true is not None and not drifts:
                kind = "alone" if e.jobs == 1 else e.method
                found[e.quantity, kind].append((e.low <= true <= e.high, e.high / e.low))
    return found


@pytest.mark.parametrize(
    ("quantity", "kind", "widest"),
    [
        ("rate", "alone", 1.09),
        ("rate", "naive", 1.004),
        ("stp", "naive", 1.09),
        ("stp", "mps", 1.09),
        ("slowdown_worst", "mps", 1.09),
        ("s", "naive", 1.03),
        ("s", "mps", 1.03),
        ("rate_over_naive", "mps", 1.006),
        ("aa", "naive", 1.006),
        ("aa", "mps", 1.05),
    ],
)
def test_what_one_interleaved_cell_tells_holds_the_truth(turns, quantity, kind, widest):
    """A drift of the host that is common to all conditions is in no ratio. widest: high over
    low.
    """
    hits, widths = zip(*turns[quantity, kind], strict=True)
    assert len(hits) >= 12
    assert 0.9 <= sum(hits) / len(hits) <= 1
    assert sorted(widths)[len(widths) // 2] < widest


def test_a_gain_over_the_fastest_way_has_an_interval_that_holds_the_truth():
    """A host that measured each once has none."""
    implementations, hits = {IMPLEMENTATION: 1.0, "graph": 3.0}, []
    jobs = [replace(job, implementations=implementations) for job in (*LAUNCH, *BUSY)]
    for seed in range(1):
        study, estimates = built(Design(jobs, counts=(7,), hosts=6), seed)
        for e in estimates.values():
            if (
                e.quantity == "over_fastest"
                and e.host
                and e.jobs == 7
                and e.implementation == IMPLEMENTATION
            ):
                one = e.scenario.replace("7x_", "1x_")
                rate = study.true["rate", e.scenario, e.implementation, e.method, e.host]
                best = study.true["rate", one, "graph", "naive", e.host]
                hits.append(e.low <= rate / best <= e.high)
    assert len(hits) > 150 and sum(hits) / len(hits) >= 0.93
    _, estimates = built(Design(jobs, counts=(7,), replicates=1), 1)
    assert all(e.spread == "none" for e in estimates.values() if e.quantity == "over_fastest")


def rules(quantity, scenario, method, **bound):
    """One claim with one test of one set."""
    count, job = scenario.split("x_", 1)
    cells = {"jobs": [job], "counts": [int(count)], "methods": [method]}
    test = {"quantity": quantity, **cells, **bound}
    return ClaimRules.model_validate({"claims": [{"id": "C1", "text": "so", "tests": [test]}]})


def verdict(estimates, *rule, **bound):
    found = claim_estimates(rules(*rule, **bound), estimates)
    return next(row["status"] for row in found if row["quantity"] == "claim")


QUANTITIES = ("stp", "s", "rate_over_naive", "slowdown_worst")


def test_a_claim_is_never_judged_wrongly_on_all_hosts():
    """One that is true on every host by a margin, and one that is false on every host. Of a single
    replicate nothing is said.
    """
    found = {True: Counter(), False: Counter()}
    for seed in range(8):
        hosts, replicates = ((1, 5), (3, 2), (2, 4), (4, 1))[seed % 4]
        design = Design(LAUNCH[:2] + BUSY[:1], counts=(3, 7), hosts=hosts, replicates=replicates)
        study = simulate(design, seed)
        estimates = made(study)
        margin = (1.1, 1.2)[seed // 4]
        precise = "one" if replicates == 1 else "several"
        for quantity in QUANTITIES:
            for scenario in ("7x_thin0", "3x_thin1", "7x_thick0"):
                place = (quantity, scenario, IMPLEMENTATION, "mps")
                points = [study.true[*place, f"h{h}"] for h in range(1, hosts + 1)]
                low, high = min(points) / margin, max(points) * margin
                rule = (quantity, scenario, "mps")
                for so in (True, False):
                    above, below = (low, high) if so else (high, low)
                    found[so][precise, verdict(estimates, *rule, above=above)] += 1
                    found[so][precise, verdict(estimates, *rule, below=below)] += 1
    for so, right in ((True, "holds"), (False, "contradicted")):
        assert found[so].total() == 8 * len(QUANTITIES) * 3 * 2
        assert found[so].keys() <= {("one", "too imprecise"), ("several", "too imprecise"),
                                    ("several", right)}  # fmt: skip
        assert found[so]["several", right] > 0.6 * found[so].total() * 3 / 4


def random_design(seed):
    """Three jobs of any kind, measured on one to three hosts."""
    random = Random(seed)
    jobs = []
    for k in range(3):
        busy = random.random() < 0.3
        most = 1.3 if busy else 1.8
        gains = {"naive": random.uniform(0.85, 1.0), "mps": random.uniform(0.95, most)}
        gract = random.uniform(0.9, 0.99) if busy else random.uniform(0.08, 0.7)
        jobs.append(Job(f"w{k}", random.uniform(300, 5000), gract, gains, random.uniform(1, 15)))
    hosts, replicates = random.choice([(1, 5), (1, 3), (2, 3), (3, 2)])
    return Design(jobs, (2, 3, 7), hosts=hosts, replicates=replicates, failing=0.03, unsteady=0.1)


def truth(study, option, job):
    """STP, slowdown of the slowest and memory (GB) of an option."""
    if option.n == 1:
        return 1.0, 1.0, job.memory
    place = (f"{option.n}x_{job.name}", IMPLEMENTATION, option.method)
    slow = [v for k, v in study.true.items() if k[:4] == ("slowdown_worst", *place)]
    stp, slowdown = study.true["stp", *place, ""], max(slow)  # no host may break the bound
    return stp, slowdown, 0.9 * option.n * job.memory


def asked(designs, truth_of):
    """Of every advice on these studies: the throughput of what is advised, over the best that its
    bounds allow, and by how much it breaks a bound. truth_of: as `truth`.
    """
    for seed, design in enumerate(designs):
        study = simulate(design, seed)
        estimates = made(study)
        jobs = {job.name: job for job in design.jobs}
        for most, memory in ((1.3, math.inf), (2.0, 40.0), (3.0, 20.0), (math.inf, math.inf)):
            for advice in advise(estimates, max_slowdown=most, max_memory=memory):
                job = jobs[advice.job]
                true = {option: truth_of(study, option, job) for option in advice.options}
                best = max(t for t, slow, used in true.values() if slow <= most and used <= memory)
                throughput, slow, used = true[advice.advised]
                yield throughput / best, max(slow / most, used / memory)


@pytest.mark.parametrize("ragged", [False, True])
def test_advice_is_seldom_wrong(ragged):
    """Wrong: over 10 % of the throughput that its bounds allow lost, or a bound broken by 10 %.
    Ragged: four hosts with a replicate each, and 30 % of the cells failing: options come from
    different ones.
    """
    designs = [random_design(seed) for seed in range(3)]
    if ragged:
        designs = [replace(design, hosts=4, replicates=1, failing=0.3) for design in designs]

    def rate(study, option, job):
        place = *option.stp.id[4:].split("/"), ""
        return study.true["rate", *place], *truth(study, option, job)[1:]

    found = list(asked(designs, rate if ragged else truth))
    assert len(found) == len(designs) * 3 * 4
    assert sum(kept < 0.9 for kept, _ in found) < 0.05 * len(found)
    assert ragged or sum(beyond > 1.1 for _, beyond in found) < 0.02 * len(found)


def test_neither_numbers_nor_verdicts_nor_advice_depend_on_flags():
    marks = {"flags": "cores_shared;uneven", "drift": 0.2, "loss_check": "differs"}
    for seed in range(1):
        study, said = simulate(random_design(seed), seed), []
        for rows in (study.rows, [row | marks for row in study.rows]):
            estimates = made(study, change=lambda _, rows=rows: rows)
            chosen = [
                (a.job, a.advised.label, a.sentences()) for a in advise(estimates, max_slowdown=2)
            ]
            judged = verdict(estimates, "stp", "7x_w0", "mps", above=2.0)
            numbers = {e.id: repr((e.value, e.low, e.high, e.n)) for e in estimates.itertuples()}
            same = {name: told for name, told in numbers.items() if name[:6] != "count:"}
            said.append((chosen, judged, same))
        assert said[0] == said[1]
        assert flags.UNSTEADY in flags.split(estimates.at["rate:7x_w0/paper_step/naive", "flags"])
