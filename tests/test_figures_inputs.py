"""What figures are given of a study is all that they draw, and a digest of it tells a change."""

from dataclasses import replace
from importlib import import_module

import pytest

from analysis import reported, style
from analysis.cells import load
from analysis.figures import EVERY_ARM, inputs, stems
from analysis.figures.__main__ import content
from tests.records import merged, record, telemetry
from tests.studio import REPOSITORY

SMALL = "resnet26_cifar10_b128"


def study(tuned=2.0):
    """Two arms, of which one has a method of its own; tuned: a rate of the other's."""
    seen = {"telemetry": telemetry(members=2)}
    found = [
        record(f"1x_{SMALL}", rates=[1000.0], telemetry=telemetry()),
        record(f"2x_{SMALL}", rates=[600.0, 610.0], **seen),
        record(f"2x_{SMALL}", "mps_equal", rates=[700.0, 710.0], **seen),
        record(f"1x_{SMALL}", arm="tuned", rates=[1500.0], telemetry=telemetry()),
        record(f"2x_{SMALL}", "mps", arm="tuned", rates=[tuned * 500, 900.0], **seen),
    ]
    values = reported.read(REPOSITORY / "config" / "reported.csv")
    return inputs.plain(replace(load(merged(*found)), reported=values))


TASKS = stems(["faithful", "tuned"])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: "-".join(map(str, task)))
def test_a_figure_is_the_same_from_what_it_is_given(task):
    whole, (name, arm) = study(), task
    module, shown = import_module(f"analysis.figures.{name}"), []
    for given in (whole, inputs.seen(whole, name, arm)):
        figure, drawn = module.draw(given, arm)
        shown.append(content(figure, drawn.to_csv(index=False), ""))
        style.close(figure)
    assert shown[0] == shown[1]


def test_another_arms_cells_leave_the_figures_of_an_arm_as_they_are():
    before, after = (inputs.digests(study(tuned), TASKS) for tuned in (2.0, 2.1))
    same = {task for task in TASKS if before[task] and before[task] == after[task]}
    assert same == {(name, "faithful") for name in EVERY_ARM}
    assert before == inputs.digests(study(2.0), TASKS)


def test_what_reads_files_is_made_each_time():
    found = inputs.digests(study(), TASKS)
    assert {name for (name, _), digest in found.items() if not digest} == set(inputs._OF_FILES)


@pytest.mark.parametrize("change", [{"note": "left out"}, {"hardware": "H"}, {"reported": None}])
def test_whatever_else_is_drawn_is_in_the_digest(change):
    whole = study()
    before, after = (inputs.digests(each, TASKS) for each in (whole, replace(whole, **change)))
    assert all(before[task] != after[task] for task in TASKS if before[task])
