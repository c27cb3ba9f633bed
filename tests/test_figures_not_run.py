"""Figures of a partly measured study: what was not run at all is named once and takes no room."""

from dataclasses import replace

import matplotlib.pyplot as plt
import matplotlib.text
import pandas as pd
import pytest

from analysis import reported, style
from analysis.cells import NOT_RUN, load
from analysis.figures import (
    activity,
    arms,
    decomposition,
    energy,
    epoch_time,
    latency,
    memory,
    mixes,
    not_run,
    reported_against_measured,
    scaling,
    slots,
    slowdown_map,
    throughput_gain,
)
from analysis.names import parse_scenario
from tests.records import merged, record, telemetry
from tests.studio import REPOSITORY

A, B = "resnet26_cifar10_b32", "resnet152_imagenet_b32"  # the paper has numbers of both
LIMIT = {"sm_percent": 25}
ALIKE = f"not run: {B} at 1, 2"
PHRASES = {
    epoch_time: ALIKE,
    throughput_gain: f"{ALIKE}; {B} + {A} at 1+1, 1+2",
    slowdown_map: f"{ALIKE}; {B} + {A} at 1+1, 1+2",
    latency: f"{ALIKE}; {B} + {A} at 1+1, 1+2",
    arms: ALIKE,
    mixes: f"not run: {B} + {A} at 1+1, 1+2",
    scaling: f"not run alone under MPS at any share of the SMs: {B}; "
    f"not run under MPS: {B} at 2; {B} + {A} at 1+1, 1+2",
    activity: f"{ALIKE}; {B} + {A} at 1+1, 1+2",
    memory: f"{ALIKE}; {B} + {A} at 1+1, 1+2",
    energy: f"{ALIKE}; {B} + {A} at 1+1, 1+2",
    decomposition: f"not run under MPS: {B} at 2",
    reported_against_measured: f"reported, but not run: {B} at 1, 2",
}
MIX = f"1x_{A}+1x_dlrm_criteo_b2048"


def cells_of(name):
    """Scenario, method and arm of a workload's cells."""
    found = [(f"1x_{name}", "mps_quarter", "faithful")]
    for arm in ("faithful", "tuned"):
        found += [(f"{n}x_{name}", m, arm) for n in (1, 2) for m in ("naive", "mps")]
    return found


def planned():
    """B and its mixes with A."""
    mixed = [(f"{n}x_{A}+1x_{B}", "mps", "faithful") for n in (1, 2)]
    return [*cells_of(B), *mixed]


def run(scenario, method, arm="faithful", status="completed"):
    """A record with everything that any figure reads."""
    n = parse_scenario(scenario).n
    seen = telemetry(members=n, card={"smocc": 0.2, "drama": 0.1})
    options = {"limits": LIMIT} if method == "mps_quarter" else {}
    rates = [900.0] * n if status == "completed" else [None] * n
    found = record(scenario, method, rates=rates, arm=arm, status=status, telemetry=seen, **options)
    for member in found["members"]:
        member["memory_peak_reserved"] = 5 * 10**9
    return found


def study_of(records, expected=()):
    plan = [
        {"scenario": s, "method": m, "arm": arm, "replicate": 1, "n": parse_scenario(s).n}
        for s, m, arm in expected
    ]
    values = reported.read(REPOSITORY / "config" / "reported.csv")
    return replace(load(merged(*records), plan), reported=values)


@pytest.fixture(scope="module")
def partly():
    """A was run, alone, together and in a mix; B is planned only."""
    records = [run(*cell) for cell in cells_of(A)]
    records += [run("1x_dlrm_criteo_b2048", "naive"), run(MIX, "naive")]
    return study_of(records, planned())


@pytest.fixture(scope="module")
def wholly():
    return study_of([run(*cell) for cell in (*cells_of(A), *planned())])


def look(module, study):
    """The drawn table, the texts on the page beside its axes, and all that stands in these."""
    figure, table = module.draw(study, None if module is arms else "faithful")
    figure.draw_without_rendering()
    beside = [" ".join(text.get_text().split()) for text in figure.texts]
    within = [text.get_text() for ax in figure.axes for text in ax.findobj(matplotlib.text.Text)]
    plt.close(figure)
    return table, beside, " ".join(within)


@pytest.mark.parametrize("module", PHRASES, ids=lambda module: module.__name__.split(".")[-1])
def test_what_was_not_run_is_named_once_and_has_no_panel(module, partly):
    table, beside, within = look(module, partly)
    assert [text.endswith(PHRASES[module]) for text in beside].count(True) == 1
    assert " ".join(beside).count("not run") == PHRASES[module].count("not run")
    assert B not in within and (A in within or module is mixes)
    places = table.columns.intersection(["panel", "workload", "row", "group", "jobs", "scenario"])
    own = table[places].apply(lambda column: column.astype(str).str.contains(B)).any(axis=1)
    assert NOT_RUN in set(table.loc[own, "status"])


@pytest.mark.parametrize("module", PHRASES, ids=lambda module: module.__name__.split(".")[-1])
def test_of_a_study_that_was_run_nothing_is_said(module, wholly):
    table, beside, within = look(module, wholly)
    assert "not run" not in " ".join(beside) and B in within
    assert NOT_RUN not in set(table["status"])


@pytest.mark.parametrize("module", PHRASES, ids=lambda module: module.__name__.split(".")[-1])
def test_where_nothing_was_run_a_sentence_says_so(module):
    table, beside, within = look(module, study_of([], [*cells_of(A), *planned()]))
    assert beside[1].startswith(("None of the cells planned", "No workload was measured"))
    assert not within and len(table)
    assert set(table["status"]) <= {NOT_RUN, "reported"}


@pytest.mark.parametrize("module", PHRASES, ids=lambda module: module.__name__.split(".")[-1])
@pytest.mark.parametrize("status", ["failed", "unsupported", "out_of_memory"])
def test_a_cell_that_gave_no_number_was_run(module, status):
    tried = [run(*cell, status) for cell in planned() if cell[2] == "faithful"]
    records = [run(*cell) for cell in cells_of(A)] + tried
    _, beside, within = look(module, study_of(records, planned()))
    assert "not run" not in " ".join(beside) and B in within


def test_phrases_name_variants_and_mixes():
    scenarios = ["2x_b+1x_a", "7x_a--files", "1x_a", "10x_a", "2x_a", "1x_a+1x_b", "1x_a+2x_b"]
    told = "not run: a at 1, 2, 10; a (files) at 7; a + b at 1+1, 1+2"
    assert not_run.phrase([*scenarios, "1x_a"]) == told
    assert not_run.phrase([]) == ""


def test_one_cell_of_a_group_that_was_run_is_enough():
    cells = pd.DataFrame({"family": ["a", "a", "b"], "status": ["failed", NOT_RUN, NOT_RUN]})
    assert list(not_run.untouched(cells, ["family"])["family"]) == ["b"]
    assert not_run.ran(["failed", NOT_RUN]) and not not_run.ran([NOT_RUN]) and not not_run.ran([])


def test_a_job_alone_that_stands_nowhere_else_keeps_its_mix():
    expected = [(f"1x_{A}+1x_{B}", "mps", "faithful"), (f"2x_{A}", "mps", "faithful")]
    found = slots.panels(study_of([run(f"1x_{A}", "naive")], expected), "faithful", [])
    assert list(slots.shown(found)) == [A]
    found = slots.panels(study_of([run(f"1x_{B}", "naive")], expected), "faithful", [])
    assert list(slots.shown(found)) == [f"{B} + {A}"]


def test_methods_are_named_of_scenarios_of_which_another_cell_was_run():
    cells = pd.DataFrame(
        [("1x_a", "naive", "failed"), ("1x_a", "mig", NOT_RUN), ("1x_a", "mps", NOT_RUN)]
        + [("2x_a", "mps", NOT_RUN), ("1x_b+2x_a", "naive", "completed")],
        columns=["scenario", "method", "status"],
    )
    absent = [("1x_a", "mig"), ("1x_a", "mps"), ("2x_a", "mps"), ("2x_a+1x_b", "mps")]
    under = not_run.under(absent, cells, style.LOOKS)
    told = not_run.phrase([scenario for scenario, _ in absent], "not run", under)
    assert told == "not run: a at 1 (MPS, MIG), 2; a + b at 2+1 (MPS)"


@pytest.fixture(scope="module")
def alone():
    """A was run; of B only the job alone as a plain process."""
    records = [run(*cell) for cell in cells_of(A)] + [run(f"1x_{B}", "naive")]
    return study_of(records, cells_of(B))


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (slowdown_map, "not run"),
        (throughput_gain, "not run"),
        (reported_against_measured, "reported, but not run"),
    ],
)
def test_what_was_not_run_beside_a_job_alone_is_named_by_its_methods(module, what, alone):
    """The job alone as a plain process says nothing where it is 1 by construction."""
    _, beside, within = look(module, alone)
    assert beside[-1].endswith(f"{what}: {B} at 1 (MPS), 2") and B not in within


def test_a_ladder_of_which_jobs_alone_were_run_has_no_marks_of_the_paper_either(alone):
    table, _, _ = look(throughput_gain, alone)
    own = table[table["panel"] == B]
    assert set(own["status"]) == {"completed", NOT_RUN}
    assert "reported" in set(table.loc[table["panel"] == A, "status"])


def test_nothing_but_jobs_alone_is_no_gain():
    expected = [cell for cell in cells_of(A) if cell[2] == "faithful"]
    _, beside, within = look(throughput_gain, study_of([run(f"1x_{A}", "naive")], expected))
    told = "None of the cells planned for this figure but jobs alone was run in arm faithful yet."
    assert beside[1] == told and not within


def test_a_job_alone_that_did_not_complete_is_drawn():
    records = [run(*cell) for cell in cells_of(A)]
    records.append(run(f"1x_{B}", "naive", status="out_of_memory"))
    _, beside, within = look(throughput_gain, study_of(records, cells_of(B)))
    assert "not run" not in " ".join(beside) and "out of memory" in within


def crosses(study):
    """How many sets the figure of scaling marks as without a gain, and whether it says so."""
    figure, _ = scaling.draw(study, "faithful")
    lines = [line for ax in figure.axes for line in ax.lines if line.get_marker() == "x"]
    texts = figure.findobj(lambda artist: isinstance(artist, matplotlib.text.Text))
    said = [text.get_text() for text in texts].count("no gain measured")
    plt.close(figure)
    return len(lines), said


def test_sets_that_were_not_run_have_no_cross_among_the_predictions(alone):
    assert crosses(alone) == (0, 0)


def test_sets_that_gave_no_gain_have_a_cross_among_the_predictions():
    records = [run(*cell) for cell in cells_of(A)] + [run(f"1x_{B}", "naive")]
    records.append(run(f"2x_{B}", "mps", status="out_of_memory"))
    drawn, said = crosses(study_of(records, cells_of(B)))
    assert drawn and said == 1


@pytest.mark.parametrize("left", [True, False])
def test_a_share_of_the_gain_is_explained_where_one_is_drawn(left):
    tuned = [cell for cell in cells_of(A) if cell[0] == f"2x_{A}" and cell[2] == "tuned"]
    records = [run(*cell) for cell in cells_of(A) if left or cell not in tuned]
    _, beside, within = look(arms, study_of(records, tuned))
    assert ("per cent" in " ".join(beside)) == (" %" in within) == left


def test_jobs_alone_that_are_planned_under_limits_only_are_named():
    expected = [(f"1x_{B}", "mps_quarter", "faithful")]
    records = [run(f"1x_{A}", "naive"), run(f"1x_{A}", "mps_quarter")]
    _, beside, within = look(scaling, study_of(records, expected))
    told = f"not run alone under MPS at any share of the SMs: {B}"
    assert beside[-1].endswith(told) and B not in within
