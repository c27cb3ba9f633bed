"""Figures of a partly measured study: what was not run at all is named once and takes no room."""

from dataclasses import replace

import matplotlib.pyplot as plt
import matplotlib.text
import pandas as pd
import pytest

from analysis import reported
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
    scaling: f"not run under MPS: {B} at 1, 2; {B} + {A} at 1+1, 1+2",
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
    assert " ".join(beside).count("not run") == 1
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


def test_a_row_of_the_map_whose_job_alone_was_run_names_the_sets_that_were_not():
    """The job alone as a plain process has no cell in the map."""
    records = [run(*cell) for cell in cells_of(A)] + [run(f"1x_{B}", "naive")]
    _, beside, within = look(slowdown_map, study_of(records, cells_of(B)))
    assert beside[-1].endswith(f"not run: {B} at 2") and B not in within


def test_jobs_alone_that_are_planned_under_limits_only_are_named():
    expected = [(f"1x_{B}", "mps_quarter", "faithful")]
    records = [run(f"1x_{A}", "naive"), run(f"1x_{A}", "mps_quarter")]
    _, beside, within = look(scaling, study_of(records, expected))
    assert beside[-1].endswith(f"not run under MPS: {B} at 1") and B not in within
