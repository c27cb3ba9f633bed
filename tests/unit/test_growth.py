"""A study that grows measures what is new, and nothing that it has again."""

import json
import re
from dataclasses import replace

import pytest

from tests.unit.test_pending import attempt, by_id, possible
from tests.unit.test_plan import SMALL, STUDIES, WORKLOADS, A, small_study
from workflow.collocation import ROOT
from workflow.collocation.plan import pending
from workflow.collocation.plan.attempts import scan_attempts
from workflow.collocation.record.run_json import MEASURED
from workflow.collocation.study.cell import CellSpec, changed_settings, spec_digest
from workflow.collocation.study.definition import Measure
from workflow.collocation.study.grid import expand, merged_cells
from workflow.collocation.study.workloads import CommandWorkload, OwnWorkload

LADDER = {"workloads": [SMALL], "counts": {1: ["naive"], 2: ["naive", "mps"]}}
RUN = ["python", "train.py", "3"]
SCRIPT = {"kind": "command", "run": RUN, "folder": "theirs", "batch_size": 8}
OWN = {"kind": "my_jobs:Toy", "model_args": {"a": {"b": 1}}, "dataset": "digits", "batch_size": 8}


def finished(cells) -> dict:
    """Attempts that completed, as they are read from files."""
    found = json.loads(json.dumps({cell.id: cell.spec.to_json() for cell in cells}))
    return by_id([attempt(cell, 1, "completed", spec=found[cell.id]) for cell in cells])


def to_measure(before, after, workloads=WORKLOADS) -> dict[str, str]:
    """What cells have to be measured after others were: cell → why."""
    cells = after if isinstance(after, list) else expand(after, workloads)
    devices = {cell.replicate: "GPU-a" for cell in cells}
    jobs = pending.pending_cells(cells, finished(expand(before, WORKLOADS)), devices, possible)
    return {job.cell.id: job.reason for job in jobs}


@pytest.mark.parametrize(
    ("added", "new"),
    [
        ({"ladders": [LADDER | {"counts": {**LADDER["counts"], 4: ["naive"]}}]}, f"4x_{SMALL}"),
        ({"ladders": [LADDER, LADDER | {"counts": {24: ["mps"]}}]}, f"24x_{SMALL}"),
        ({"ladders": [LADDER, LADDER | {"implementations": ["bf16"]}]}, "bf16"),
        ({"cores_for_workload": {A: 2}, "mixes": [{"members": {A: 3}, "methods": ["mps"]}]}, A),
        ({"replicates": 3}, "/r3"),
    ],
)
def test_what_is_added_to_a_finished_study_alone_is_measured(added, new):
    content = {"ladders": [LADDER], "mixes": []}
    found = to_measure(small_study(**content), small_study(**content | added))
    assert found and all(new in cell for cell in found)
    assert set(found.values()) == {"not measured yet"}


# -- the code grows -------------------------------------------------------------------------------


def test_a_new_version_of_what_a_spec_means_measures_all_again():
    study = small_study()
    cells = expand(study, WORKLOADS)
    newer = [replace(cell, spec=cell.spec.model_copy(update={"version": 2})) for cell in cells]
    said = "its settings changed: version 1 → 2"
    assert to_measure(study, newer) == {cell.id: said for cell in cells}


# -- kinds of job ---------------------------------------------------------------------------------


def spec_of(*workloads) -> CellSpec:
    named = {f"w{number}": workload for number, workload in enumerate(workloads)}
    mix = {"members": dict.fromkeys(named, 1), "methods": ["naive"]}
    study = small_study(ladders=[], mixes=[mix], replicates=1)
    return max((cell.spec for cell in expand(study, named)), key=lambda spec: len(spec.members))


def test_a_spec_holds_the_settings_of_each_members_kind():
    script, own = CommandWorkload(**SCRIPT, unit="tokens"), OwnWorkload(**OWN)
    others = own, WORKLOADS["tiny_dlrm_criteo_b256"], WORKLOADS[SMALL]
    spec = spec_of(script, *others)
    flat = json.loads(json.dumps(spec.to_json()))
    command = flat["members"][0]
    assert command.items() >= {"run": RUN, "unit": "tokens"}.items()
    assert "classes" not in command
    read = CellSpec.model_validate_json(spec.model_dump_json())
    assert read == spec and read.digest == spec.digest == spec_digest(flat)
    assert [type(member.job) for member in read.members] == [type(job) for job in (script, *others)]
    for key in ("steps", "sync", "warmup_steps"):  # at their defaults, as in older records
        del command[key]
    del flat["measure"]["autotune"], flat["implementation"]["compile"], flat["version"]
    assert spec_digest(flat) == spec.digest
    command["classes"] = 1000  # which is a default of images
    assert spec_digest(flat) != spec.digest

    later = script.model_copy(update={"steps": "loss", "run": ["python", "b.py"]})
    said = changed_settings(spec.to_json(), spec_of(later, *others).to_json())
    assert said == ['run ["python", "train.py", "3"] → ["python", "b.py"]', "steps auto → loss"]


# -- what has changed is named --------------------------------------------------------------------

FEW = "batch_size 32 → 1, .* and 1 more"
OPTIMIZER = WORKLOADS[SMALL].optimizer.model_copy(update={"base_lr": 0.2})


@pytest.mark.parametrize(
    ("changed", "of_the_workload", "said"),
    [
        ({"measure": Measure(window_s=20)}, {}, "window_s 10 → 20"),
        ({"seed": 7}, {}, "seed 42 → 7"),
        ({"cores_for": 3}, {}, "cores_of 7 → 3"),
        ({}, {"batch_size": 64, "optimizer": OPTIMIZER}, "batch_size 32 → 64, optimizer.base_lr 0"),
        ({}, {"batch_size": 1, "warmup_steps": 3, "label_smoothing": 0.2, "classes": 9}, FEW),
    ],
)
def test_the_plan_names_the_settings(changed, of_the_workload, said):
    study = small_study(mixes=[])
    workloads = {**WORKLOADS, SMALL: WORKLOADS[SMALL].model_copy(update=of_the_workload)}
    found = to_measure(study, study.model_copy(update=changed), workloads)
    ids = {cell.id for cell in expand(study, WORKLOADS)}
    assert set(found) == {cell for cell in ids if not of_the_workload or SMALL in cell}
    assert all(re.match(f"its settings changed: {said}", why) for why in found.values())


# -- the study that ships -------------------------------------------------------------------------


def test_no_measured_cell_of_the_shipped_study_is_measured_again():
    folder = ROOT / "results" / "ladder"
    attempts, cells = scan_attempts(folder / "cells"), expand(STUDIES["ladder"], WORKLOADS)
    cells += merged_cells(cells, attempts)
    counted = pending.counted_attempts(cells, attempts, sealed=True)
    listed = (ROOT / attempt for attempt in (folder / "runs.txt").read_text().splitlines())
    assert sorted(attempt.path for attempt in counted) == sorted(listed)
    planned = {cell.id: cell for cell in cells}
    assert len(attempts) > 100 and attempts.keys() <= planned.keys()
    for cell_id, found in attempts.items():
        assert pending.attempts_at(planned[cell_id], attempts) == found
        assert not changed_settings(found[-1].record.spec, planned[cell_id].spec.to_json())
    device = next(a.device for found in attempts.values() for a in found if a.status in MEASURED)
    devices = {cell.replicate: device for cell in cells}
    waiting = pending.pending_cells(cells, attempts, devices, possible)
    assert not [job for job in waiting if "settings" in job.reason]
