"""Advice on hand-made estimates with known answers."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.advice import NEAR
from analysis.advice import study as advice
from collocate.app import main as collocate
from tests.handmade import frame, number, on_hosts, written
from workflow.collocation.study.names import IMPLEMENTATIONS, INTERLEAVED

JOB = "resnet26_cifar10_b32"


def option(n, stp, slowdown=1.0, memory=10.0, method="mps", rate=None, **fields):
    """Numbers of a set; a list has one for each host."""
    scenario, rows = f"{n}x_{JOB}", [number("outcome", f"{n}x_{JOB}", method, status="completed")]
    known = {"stp": stp, "rate": rate, "memory": memory}
    known |= {"slowdown_worst": slowdown} if n > 1 else {}
    for quantity, value in known.items():
        if value is not None:
            values = value if isinstance(value, list) else [value]
            rows += on_hosts(quantity, scenario, *values, method=method, **fields)
    return rows


ALONE = option(1, 1.0, memory=5.0, method="naive")
LARGE = [*ALONE, *option(2, 1.38, 1.38, 18), *option(3, [1.5, 1.64], [1.6, 2.1, 1.9], 26)]
LARGE += option(7, 1.72, 4.2, 55)


def one(rows, **bounds):
    (found,) = advice.advise(frame(rows), **bounds)
    return found


def place(chosen):
    return chosen and (chosen.method, chosen.n)


def said(rows, **bounds):
    return " ".join(one(rows, **bounds).sentences())


def test_the_fewest_jobs_within_a_tenth_of_the_best_are_advised():
    found = one(LARGE)
    assert (place(found.best), place(found.advised)) == (("mps", 7), ("mps", 3))
    assert [place(each) for each in found.pareto] == [
        *(("naive", 1), ("mps", 2), ("mps", 3), ("mps", 7))
    ]
    text = said(LARGE)
    assert "Run 3 under MPS: throughput gain 1.64 (1.50 to 1.64), slowdown of the slowest" in text
    assert "The most throughput: 7 under MPS" in text and "slowdown of the slowest job 4.20" in text
    # Fewer jobs, though they are slowed more; of as many, those that do most.
    rows = [*ALONE, *option(2, 1.6, 1.9), *option(3, 1.65, 1.8), *option(2, 1.5, 1.2, method="mig")]
    assert place(one(rows).advised) == ("mps", 2)


@pytest.mark.parametrize(
    ("bounds", "chosen"),
    [
        ({"max_slowdown": 2.5}, 3),
        ({"max_slowdown": 2.0}, 2),  # which 3 break on h2 only
        ({"max_memory": 20.0}, 2),
        ({"max_slowdown": 1.0}, 1),
        ({"max_memory": 1.0}, None),
    ],
)
def test_no_host_breaks_a_bound_with_what_is_advised(bounds, chosen):
    found = one(LARGE, **bounds)
    knee = {None: None, 1: ("naive", 1)}.get(chosen, ("mps", chosen))
    assert place(found.best) == place(found.advised) == knee
    assert (found.advised is None) == (
        "No measured option respects the bounds." in said(LARGE, **bounds)
    )


@pytest.mark.parametrize(
    ("gain", "undecided"),
    [
        ((0.67, 1.14, 1.96), True),
        ((1.01, 1.14, 1.3), False),
        ([(0.9, 0.95, 1.0), (1.2, 1.3, 1.4)], True),  # one host gains, and one does not
        ((0.8, 1.02, 1.3), True),
        ((0.98, 1.0, 1.02), False),  # no gain, for certain
        (1.14, False),  # one replicate is said to be one
    ],
)
def test_an_interval_that_holds_no_gain_and_a_gain_is_undecided(gain, undecided):
    rows = [*ALONE, *option(2, gain, 1.4)]
    text = said(rows)
    assert text.startswith("Undecided: 2 under MPS: throughput gain") == undecided
    assert not (undecided and "Run" in text)


def test_unknown_memory_is_no_broken_bound():
    unknown = [row for row in LARGE if row["quantity"] != "memory"]
    assert place(one(unknown, max_memory=80.0).advised) == ("mps", 3)
    assert advice.BOUND_UNCHECKED in said(unknown, max_memory=80.0)
    assert not one(unknown, max_memory=80.0).any_bound and one(LARGE, max_memory=80.0).any_bound
    assert advice.BOUND_UNCHECKED not in said(unknown) + said(LARGE, max_memory=80.0)
    some = [*unknown, number("memory", f"2x_{JOB}", value=10.0)]
    assert place(one(some, max_memory=80.0).advised) == ("mps", 2)  # of which it is known
    turned = [row | {"design": INTERLEAVED} for row in unknown]
    assert advice.MEMORY_UNREAD in said(turned) and advice.MEMORY_UNREAD not in said(unknown)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (
            option(3, [1.0, 1.03], 2.9),
            "within a tenth of the best, 3",
        ),
        (option(2, [0.6, 0.62], 3.3), "sharing does no more. The best is 2"),
        (option(2, [1.09, 1.08], 1.85), "slowdown of the slowest job 1.85"),
        (option(3, [1.5, 1.02, 1.4], 2.1), "Run 3 under MPS: throughput gain 1.40 (1.02 to 1.50)"),
        (option(3, [1.5], 2.1), "Measured on one host only."),
        ([], "Sharing was not measured."),
    ],
)
def test_what_is_advised_and_what_is_known_of_it(sets, words):
    assert words in said([*ALONE, *sets])


@pytest.mark.parametrize(("flag", "means"), [("stalled", "no step"), ("halves_differ", "half of")])
def test_a_window_that_collapsed_is_told_of_what_is_shared_and_of_one_alone(flag, means):
    fine = [*option(3, 1.5, 1.8), *option(7, 1.55, 4.0, flags=flag)]
    assert "Beware" not in said([*ALONE, *fine])  # of another set
    alone = said([*option(1, 1.0, memory=5.0, method="naive", flags=flag), *fine])
    assert "Beware of one at a time: a job made" in alone and means in alone
    shared = said([*ALONE, *option(3, 1.5, 1.8, flags=flag)])
    assert "Beware of 3 under MPS: a job made" in shared and means in shared


def test_throughput_ranks_whatever_host_the_gain_is_from():
    """The gain is over the job alone, which was slower on the host of 3 jobs."""
    rows = option(1, 1.0, method="naive", rate=500.0)
    rows += [*option(3, 1.8, 1.9, rate=800.0), *option(7, 1.6, 4.0, rate=1000.0)]
    assert place(one(rows).best) == ("mps", 7)
    without = [r for r in rows if (r["quantity"], r["scenario"][:1]) != ("rate", "7")]
    assert place(one(without).best) == ("mps", 3)  # not all have one: all are ranked by the gain


@pytest.mark.parametrize(("over", "first"), [(0.2, True), (0.88, True), (0.92, False), (1, False)])
def test_a_job_is_written_better_first_where_that_does_a_tenth_more(over, first):
    one_job = f"1x_{JOB}"
    rows = [
        number("rate", one_job, "naive", value=200.0),
        number("over_fastest", one_job, "naive", value=over),
        number("fastest_rate", one_job, "naive", value=1000.0, implementation="graph"),
    ]
    for sets in (LARGE, [*ALONE, *option(2, 1.0, 2.0)]):  # whether sharing gains or not
        assert ("Write it better first" in said([*sets, *rows])) == first


def test_what_is_no_option_and_sets_of_different_hosts():
    others = [
        *option(1, 9.0, method="mps_1g"),
        *(row | {"scenario": f"2x_{JOB}--files"} for row in option(2, 9.0)),
        *(row | {"scenario": f"1x_{JOB}+1x_x"} for row in option(2, 9.0)),
    ]
    (found,) = advice.advise(frame([*LARGE, *others]), job=JOB)
    assert [place(each) for each in found.options] == [place(each) for each in one(LARGE).options]
    rows = [*ALONE, *option(2, [1.4, 1.5]), *option(3, [1.6, 1.7])]
    assert "same hosts" not in said(rows)
    assert "not all measured on the same hosts" in said([*rows, *option(7, [1.7], 4.0)])


@pytest.mark.parametrize("lacks", [(), ("graph", "compile")])
def test_ways_in_which_a_job_was_not_measured_alone_are_named(lacks):
    """One job alone in such a way may do more than the set that is advised."""
    rows = LARGE[:]
    for implementation in {*IMPLEMENTATIONS} - {*lacks}:
        rows += option(1, 1.0, method="naive", rate=9.0, implementation=implementation)[1:]
    rows = frame(rows[len(ALONE) :])
    text = advice.unmeasured(rows, advice.advise(rows))
    assert bool(text) == bool(lacks)
    assert "in these ways: bf16 + CUDA graph; bf16, compiled." in text or not lacks


# Laws


sets = st.lists(
    st.tuples(
        st.sampled_from(["naive", "mps", "streams"]),
        st.integers(2, 7),
        st.floats(0.5, 7),
        st.floats(0.9, 8),
        st.one_of(st.none(), st.floats(1, 140)),
    ),
    max_size=8,
    unique_by=lambda found: found[:2],
)
bounds = st.tuples(
    st.one_of(st.just(inf), st.floats(1, 8)), st.one_of(st.just(inf), st.floats(5, 140))
)


@settings(max_examples=40)
@given(sets, bounds)
def test_what_is_chosen_respects_the_bounds_and_is_beaten_by_nothing(found, limits):
    slowdown, memory = limits
    rows = [*ALONE]
    for method, n, stp, slower, used in found:
        rows += option(n, stp, slower, used, method)
    made = one(rows, max_slowdown=slowdown, max_memory=memory)
    assert len(made.options) == len(found) + 1
    for each in made.options:
        assert (each in made.pareto) != any(each.is_dominated_by(other) for other in made.options)
    allowed = [o for o in made.options if o.costs[1] <= slowdown and o.costs[2] <= memory]
    assert made.best in made.pareto and {made.best, made.advised} <= {*allowed}
    assert made.best.stp.value == max(each.stp.value for each in allowed)
    near = [each for each in allowed if each.stp.value >= NEAR * made.best.stp.value]
    assert made.advised in near and made.advised.n == min(each.n for each in near)


# The command


def test_the_command_advises_on_one_job_or_all(tmp_path, capsys):
    other = "resnet152_imagenet_b32"
    more = [row | {"scenario": row["scenario"].replace(JOB, other)} for row in LARGE]
    folder = written(tmp_path / "s", [*LARGE, *more])
    command = ["advise", "--study", str(folder)]
    assert collocate(command) == 0
    assert capsys.readouterr().out.count("Run 3 under MPS") == 2
    assert collocate([*command, "--workload", JOB, "--max-slowdown", "2"]) == 0
    text = capsys.readouterr().out
    assert "ResNet26 b32, plain (TF32)" in text and "ResNet152" not in text
    assert "Run 2 under MPS" in text and "over the fastest" not in text.lower()
    assert "Bounds: slowdown ≤ 2." in text
    wrong = (([*command, "--workload", "none"], JOB, 1), (["advise", "--study", "x"], "x: no", 2))
    for words, says, code in wrong:
        assert collocate(words) == code
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1
