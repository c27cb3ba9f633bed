"""Advice on hand-made estimates with known answers."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import advice
from analysis.__main__ import main as analysis
from analysis.estimates import schema
from analysis.estimates.schema import INTERVAL, Estimate, described
from analysis.estimates.table import Estimates
from analysis.pages import advised
from workflow.collocation.spec.names import ALTERNATE, ARMS, CONTROL_ARMS

JOB = "resnet26_cifar10_b32"


def option(n, stp, slowdown=1.0, memory=10.0, method="mps", hosts=(), rate=None, **fields):
    """Estimates of a set: over all hosts, and the gain (or gain and slowdown) of single hosts."""
    place = {"scenario": f"{n}x_{JOB}", "arm": "paper_step", "method": method} | fields
    rows = [Estimate("outcome", **place, status="completed", value=1.0)]
    numbers = {"stp": stp, "rate": rate, "memory": memory} | (
        {"slowdown_worst": slowdown} if n > 1 else {}
    )
    for quantity, value in numbers.items():
        if value is not None:
            rows.append(described(Estimate(quantity, **place, value=value, n=3)))
    for number, host in enumerate(hosts, 1):
        gain, slower = host if isinstance(host, tuple) else (host, slowdown)
        where = place | {"host": f"h{number}"}
        rows.append(described(Estimate("stp", **where, value=gain, n=1)))
        rows.append(described(Estimate("slowdown_worst", **where, value=slower, n=1)))
    return rows


ALONE = option(1, 1.0, memory=5.0, method="naive")
LARGE = [*ALONE, *option(2, 1.38, 1.38, 18), *option(3, 1.57, 1.97, 26, hosts=(1.5, (1.6, 2.1)))]
LARGE += option(7, 1.72, 4.2, 55)


def one(rows, **bounds):
    (found,) = advice.advise(Estimates(rows), **bounds)
    return found


def place(chosen):
    return chosen and (chosen.method, chosen.n)


def test_the_knee_has_the_least_slowdown_within_a_tenth_of_the_best():
    found = one(LARGE)
    assert place(found.best) == ("mps", 7)
    assert place(found.knee) == ("mps", 3)
    assert found.pays and not found.against
    assert [place(each) for each in found.pareto] == [
        *(("naive", 1), ("mps", 2), ("mps", 3), ("mps", 7))
    ]
    text = " ".join(found.sentences())
    assert "Run 3 under MPS" in text
    assert "One after the other, the same work takes 1.57 times as long." in text
    assert (
        "The most throughput, with more slowdown: 7 under MPS has a throughput gain of 1.72" in text
    )


@pytest.mark.parametrize("bounds", [{}, {"memory": 80.0}])
def test_sets_that_took_turns_have_no_memory_and_the_advice_says_so(bounds):
    """One such cell has an interval, and so is not said to be chance."""
    turns = [replace(e, design=ALTERNATE, n=1, low=e.value / 1.1, high=e.value * 1.1)
             for e in LARGE if e.quantity != "memory"]  # fmt: skip
    text = " ".join(one(turns, **bounds).sentences())
    assert text.count("GPU memory and energy of these sets are not known") == 1
    assert ("No option is known to respect the bounds." in text) == bool(bounds)
    assert "measured option" not in text and "Measured once" not in text
    assert "not known" not in " ".join(one(LARGE, **bounds).sentences())


@pytest.mark.parametrize(
    ("cells", "off", "told"),
    [(1, 0.04, "on one cell,"), (2, 0.04, "on 2 cells,"), (1, 0.005, ""), (3, 0.04, "")],
)
def test_a_gain_of_few_alternating_cells_says_so_where_a_set_waits_for_its_host(cells, off, told):
    """off: half the interval of a rate, over it. What fills the card repeats."""
    rows = [*option(1, 1.0, method="naive", rate=9.0), *option(3, 1.2, hosts=(1.2,), rate=9.0)]
    rows += [replace(e, host="h1") for e in rows if e.quantity == "rate"]
    rows = [replace(e, design=ALTERNATE, n=cells, low=e.value * (1 - off), high=e.value * (1 + off),
                    spread=INTERVAL) for e in rows if e.quantity in ("rate", "stp")]  # fmt: skip
    text = " ".join(one([*rows, *ALONE[:1]]).sentences())
    assert told in text and ("rests on" in text) == bool(told)


@pytest.mark.parametrize(
    ("bounds", "best", "knee"),
    [
        ({"slowdown": 2.0}, ("mps", 3), ("mps", 3)),
        ({"slowdown": 1.5}, ("mps", 2), ("mps", 2)),
        ({"memory": 20.0}, ("mps", 2), ("mps", 2)),
        ({"slowdown": 1.0}, ("naive", 1), ("naive", 1)),
        ({"memory": 1.0}, None, None),
    ],
)
def test_best_and_knee_under_bounds(bounds, best, knee):
    found = one(LARGE, **bounds)
    assert (place(found.best), place(found.knee)) == (best, knee)


def test_a_host_beyond_the_bound_is_named():
    found = one(LARGE, slowdown=2.0)
    assert [e.host for e in found.exceeding] == ["h2"]
    assert "On h2 it exceeds the bound: 2.10." in found.sentences()
    assert one(LARGE).exceeding == ()


@pytest.mark.parametrize(
    ("sets", "knee", "against", "said"),
    [
        (
            option(3, 1.03, 2.9, hosts=(1.0, 1.06)),
            ("naive", 1),
            ["h2"],
            "Sharing gains nothing: 3 under MPS has a throughput gain of 1.03. "
            "The gain is above 5 % on h2 (1.06) only, of 2 hosts.",
        ),
        (
            [*option(2, 1.08, 1.85, hosts=(1.08, 1.09)), *option(7, 1.07, 6.5)],
            ("naive", 1),
            [],
            "Sharing gains little: 2 under MPS has a throughput gain of 1.08, and its slowest job "
            "takes 1.85 times as long. The gain is above 5 % on each of 2 hosts.",
        ),
        (
            option(3, 1.4, 2.1, hosts=(1.5, 1.02)),
            ("mps", 3),
            ["h2"],
            "on each of 2 hosts, but not on h2 (1.02).",
        ),
    ],
)
def test_sharing_pays_where_it_gains_a_tenth_and_hosts_that_differ_are_named(
    sets, knee, against, said
):
    found = one([*ALONE, *sets])
    assert place(found.knee) == knee and found.pays == (knee != ("naive", 1))
    assert [e.host for e in found.against] == against
    assert said in " ".join(found.sentences())


def test_throughput_ranks_whatever_host_the_gain_is_from():
    """The gain is over the job alone, which was slower on the host of 3 jobs."""
    rows = option(1, 1.0, method="naive", rate=500.0)
    rows += [*option(3, 1.8, 1.9, rate=800.0), *option(7, 1.6, 4.0, rate=1000.0)]
    found = one(rows)
    assert place(found.best) == place(found.knee) == ("mps", 7)
    without = [e for e in rows if e.id != "rate:7x_resnet26_cifar10_b32/paper_step/mps"]
    assert place(one(without).best) == ("mps", 3)  # not all have one: all are ranked by the gain


@pytest.mark.parametrize(("most", "told"), [(1.58, False), (1.7, True)])
def test_a_larger_set_is_mentioned_where_it_does_more(most, told):
    found = one([*ALONE, *option(3, 1.57, 1.97), *option(7, most, 4.2)])
    assert ("The most throughput" in " ".join(found.sentences())) == told


@pytest.mark.parametrize(("gain", "close"), [(1.45, False), (1.5, True), (1.57, False)])
def test_what_just_misses_the_tenth_and_slows_jobs_less_is_mentioned(gain, close):
    """Below a tenth and a twentieth of 1.72 nothing is near; within the tenth it is the knee."""
    found = one([*ALONE, *option(2, gain, 1.4), *option(3, 1.6, 2.0), *option(7, 1.72, 4.2)])
    assert place(found.close) == (("mps", 2) if close else None)
    assert place(found.knee) == ("mps", 2 if gain == 1.57 else 3)
    assert ("2 under MPS has a throughput gain" in " ".join(found.sentences())) == close


def test_what_holds_for_all_jobs_is_said_once_and_empty_columns_are_left_out(tmp_path, capsys):
    rows = [replace(e, design=ALTERNATE) for e in LARGE if e.quantity != "memory"]
    rows = [replace(e, host="h1") if e.host else e for e in rows if e.host != "h2"]
    rows += [replace(e, scenario=e.scenario.replace(JOB, "resnet152_imagenet_b32")) for e in rows]
    schema.write(rows, tmp_path / "estimates.parquet")
    assert analysis(["advise", "--folder", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.count("Run 3 under MPS") == 2
    assert text.count(advice.UNTOLD) == 1 and "memory   " not in text and "over fastest" not in text
    assert "slowest takes" in text
    (found, other) = advice.advise(Estimates(rows))
    assert advice.UNTOLD in advice.common([found, other]) and advice.common([found]) == []
    assert advice.common([found, one(LARGE)]) == []


@pytest.mark.parametrize(
    ("over", "together", "first"),
    [(0.2, 1.1, True), (0.9, 1.1, False), (1.0, 1.1, False), (0.7, 0.95, True)],
)
def test_a_job_is_written_better_first_where_that_does_more(over, together, first):
    """More than a good deal of it alone, or than the set that is advised."""
    alone = {"scenario": f"1x_{JOB}", "method": "naive"}
    shared = {"scenario": f"3x_{JOB}", "method": "mps", "arm": "paper_step"}
    rows = [
        *LARGE,
        Estimate("rate", **alone, arm="paper_step", value=200.0, unit="samples/s"),
        Estimate("over_fastest", **alone, arm="paper_step", value=over),
        Estimate("fastest_rate", **alone, arm="graph", value=1000.0, unit="samples/s"),
        Estimate("over_fastest", **shared, value=together),
    ]
    found = one(rows)
    text = " ".join(found.sentences())
    assert ("Write it better first" in text) == first
    assert [e.quantity for e in found.rewrite] == (
        ["rate", "fastest_rate", "over_fastest"] if first else []
    )
    out_of_bounds = one(rows, memory=1.0)
    assert out_of_bounds.knee is None and out_of_bounds.sentences()
    nothing = one([*rows[len(LARGE) :], *ALONE, *option(2, 1.0, 2.0)])
    assert bool(nothing.rewrite) == (over < 1)  # where sharing gains nothing, any faster way counts


def test_mixes_variants_the_twin_and_partial_gpus_are_no_options():
    others = [
        *option(2, 9.0, method="naive_again"),
        *option(1, 9.0, method="mps_1g"),
        *(replace(e, scenario=f"2x_{JOB}--files") for e in option(2, 9.0)),
        *(replace(e, scenario=f"1x_{JOB}+1x_x") for e in option(2, 9.0)),
        *(replace(e, window="epochs") for e in option(2, 9.0)[1:]),
    ]
    (found,) = advice.advise(Estimates([*LARGE, *others]), job=JOB)
    assert len(found.options) == 4
    assert found.ids == one(LARGE).ids


def test_the_command_says_which_gain_is_above_the_number_of_jobs():
    rows = [replace(e, flags="above_count") if e.scenario.startswith("2x") else e for e in LARGE]
    said = [line for line in advice.table(one(rows)).splitlines() if "ran slow" in line]
    assert len(said) == 1 and said[0].startswith("  2 under MPS: more than the number of jobs")


def test_what_gave_no_number_is_told():
    where = {"scenario": f"2x_{JOB}", "arm": "paper_step", "method": "mig"}
    found = one([*LARGE, Estimate("outcome", **where, status="unsupported", value=0.0)])
    assert [e.status for e in found.missing] == ["unsupported"]
    assert "2 MIG (unsupported)" in advice.table(found)
    assert advice.table(found).count("*") == len(found.pareto)


@pytest.mark.parametrize("lacks", [(), ("graph", "compile")])
def test_ways_in_which_a_job_was_not_measured_alone_are_named(lacks, tmp_path, capsys):
    """One job alone in such a way may do more than the set that is advised."""
    rows = LARGE[len(ALONE) :]
    for arm in {*ARMS} - {*CONTROL_ARMS, *lacks}:
        rows += option(1, 1.0, method="naive", rate=9.0, arm=arm)
    schema.write(rows, tmp_path / "estimates.parquet")
    assert analysis(["advise", "--folder", str(tmp_path)]) == 0
    said = "not measured alone in these ways: bf16 + CUDA graph; bf16, compiled."
    assert (said in capsys.readouterr().out) == bool(lacks)


# Laws


gains, slowdowns = st.floats(0.5, 7), st.floats(0.9, 8)
memories = st.one_of(st.none(), st.floats(1, 140))
sets = st.lists(
    st.tuples(
        st.sampled_from(["naive", "mps", "mps_equal"]), st.integers(2, 7), gains, slowdowns
    ).flatmap(lambda found: memories.map(lambda memory: (*found, memory))),
    max_size=8,
    unique_by=lambda found: found[:2],
)
bounds = st.tuples(
    st.one_of(st.just(inf), st.floats(1, 8)), st.one_of(st.just(inf), st.floats(5, 140))
)


def study(found):
    rows = list(ALONE)
    for method, n, stp, slowdown, memory in found:
        rows += option(n, stp, slowdown, memory, method)
    return rows


@given(sets, bounds)
def test_best_and_knee_respect_the_bounds_and_stand_on_the_pareto_set(found, limits):
    slowdown, memory = limits
    made = one(study(found), slowdown=slowdown, memory=memory)
    for chosen in (made.best, made.knee):
        assert chosen in made.pareto
        assert chosen.costs[1] <= slowdown and chosen.costs[2] <= memory
    allowed = [o for o in made.options if o.costs[1] <= slowdown and o.costs[2] <= memory]
    assert made.best.stp.value == max(each.stp.value for each in allowed)
    assert made.knee.costs[1] <= made.best.costs[1]
    assert made.knee.stp.value * advice.NEAR >= made.best.stp.value


@given(sets)
def test_the_pareto_set_holds_what_no_other_beats(found):
    made = one(study(found))
    assert len(made.options) == len(found) + 1
    for each in made.options:
        beaten = any(each.dominated_by(other) for other in made.options)
        assert (each in made.pareto) != beaten
    for each in made.pareto:
        assert not any(each.dominated_by(other) for other in made.pareto)


def test_sets_of_different_hosts_are_named():
    rows = [*ALONE, *option(2, 1.4, 1.4, hosts=(1.4, 1.5)), *option(3, 1.6, 1.9, hosts=(1.6, 1.7))]
    assert not one(rows).ragged
    found = one([*rows, *option(7, 1.7, 4.0, hosts=(1.7,))])
    assert found.ragged and [option.hosts for option in found.options[1:]] == [
        *(("h1", "h2"), ("h1", "h2"), ("h1",))
    ]
    assert "not all measured on the same hosts" in " ".join(found.sentences())
    assert "h1, h2" in advice.table(found)


# The command


@pytest.fixture
def folder(tmp_path):
    schema.write(LARGE, tmp_path / "estimates.parquet")
    return tmp_path


def test_command(folder, capsys):
    """A bad value is one line."""
    command = ["advise", "--folder", str(folder), "--job"]
    assert analysis([*command, JOB, "--slowdown", "2"]) == 0
    text = capsys.readouterr().out
    assert "ResNet26 b32, paper style" in text and "Run 3 under MPS" in text
    for wrong, says in (([*command, "none"], JOB), (["advise", "--folder", "nowhere"], "nowhere")):
        assert analysis(wrong) == 1
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1


def test_a_bound_that_nothing_respects_says_so(folder, capsys):
    for bound in ("0.5", "nan"):
        assert analysis(["advise", "--folder", str(folder), "--slowdown", bound]) == 0
        assert "No measured option respects the bounds." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        analysis(["advise", "--folder", str(folder), "--slowdown", "much"])


@pytest.mark.parametrize("low", [0.9, 1.1])
def test_an_interval_that_includes_no_gain_is_told(low):
    rows = [
        replace(e, low=low, high=1.8) if e.quantity == "stp" and not e.host else e
        for e in option(3, 1.4, 2.0)
    ]
    text = " ".join(one([*ALONE, *rows]).sentences())
    assert ("includes no gain" in text) == (low < 1)


def test_one_at_a_time_is_no_advice_where_sharing_was_not_measured():
    assert advised.summary([one(ALONE)]).empty and advised.alone_only([one(ALONE)])
    (row,) = advised.summary([one([*ALONE, *option(2, 0.9, 2.2)])]).itertuples()
    assert row.run == "one at a time"
