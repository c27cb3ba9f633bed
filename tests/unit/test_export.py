"""`make export`: a study in MLflow, and in MLflow as radT has it, as its own client reads it."""

import math
import shutil
import sys
from datetime import datetime
from importlib.util import find_spec

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.estimates import build as publish
from analysis.estimates import table as estimates
from analysis.estimates.records.schema import SCHEMA
from analysis.report.export import SERIES
from collocate.app import main as collocate
from release.manifest import never_ships
from tests.simulator import Design, Job, simulate

BEGAN, TOOK = "2026-01-01T00:00:01Z", 40.0
ENDED = datetime.fromisoformat(BEGAN).timestamp() + TOOK
READINGS = {-2.0: None, 0.0: 0.25, 0.5: 0.75}  # s since the window opened → GRACT
IN_TURNS = "2x_a--interleaved/paper_step/alone-mps/r1/a1"
FULL = "2x_b/paper_step/mps/r1/a1"  # out of memory
JOBS = {IN_TURNS: 3, FULL: 2, "1x_a+1x_b/paper_step/mps/r1/a1": 2, "2x_a/paper_step/mps/r1/a1": 2}
JOBS |= {f"1x_{name}/paper_step/naive/r1/a1": 1 for name in "ab"}

mlflow = pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow-skinny is not installed")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """A folder with what is exported, of six cells."""
    design = Design([Job("a"), Job("b")], [2], ["mps"], ["1x_a+1x_b"], replicates=1)
    made = simulate(Design(**vars(design) | {"turns": [("2x_a", "alone-mps")]}), 1)
    rows = [row | {"started_at": BEGAN, "total_s": TOOK} for row in made.rows]
    full = {"status": "out_of_memory", "window": None, "samples_per_s": None}
    rows = [row | full if FULL.startswith(row["cell"]) else row for row in rows]
    folder = tmp_path_factory.mktemp("study")
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / "runs.parquet")
    numbers = publish.measured_estimates(pd.DataFrame(rows, columns=SCHEMA.names), made.plan)
    estimates.save_estimates(numbers, folder / "estimates.parquet")
    seen = {"t_ns": [int(1e9 * t) for t in READINGS], "entity": ["gpu"] * len(READINGS)}
    seen |= {"gract": [*READINGS.values()], "memory_used": [3 * 2**30] * len(READINGS)}
    seen |= {name: [each] * len(READINGS) for name, each in (("power", 300.0), ("gpu_util", 1.0))}
    seen |= {name: [math.nan] * len(READINGS) for name in SERIES if name not in seen}
    for cell in JOBS:
        (folder / "cells" / cell).mkdir(parents=True)
        pq.write_table(pa.table(seen), folder / "cells" / cell / "gpu.parquet")
    return folder


@pytest.fixture
def study(made_once, tmp_path):
    return shutil.copytree(made_once, tmp_path / "simulated")


@pytest.fixture
def export(study, monkeypatch, capsys):
    """Exports the study, and gives what is said."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def export(to, code=0):
        assert collocate(["export", str(study), "--to", to]) == code
        return "".join(capsys.readouterr())

    return export


def published(study, quantity, cell):
    """The number of a cell, by method, as its study publishes it."""
    found = estimates.select(estimates.read_estimates(study / "estimates.parquet"), quantity)
    return {
        e.method: one["value"]
        for e in found.itertuples()
        for one in e.replicates
        if one["cell"] == cell
    }


def of(study, name):
    """A client, and the runs of an experiment."""
    from mlflow import MlflowClient

    client = MlflowClient((study / "mlruns").as_uri())
    return client, client.search_runs([client.get_experiment_by_name(name).experiment_id])


def nested(runs):
    """Cell → its first run, and those inside it."""
    tags = [run.data.tags for run in runs]
    first = {t["cell"]: r for t, r in zip(tags, runs, strict=True) if "mlflow.parentRunId" not in t}
    inside = {cell: [] for cell in first}
    for run in runs:
        if parent := run.data.tags.get("mlflow.parentRunId"):
            assert parent == first[run.data.tags["cell"]].info.run_id
            inside[run.data.tags["cell"]].append(run)
    return first, inside


@mlflow
def test_mlflow_has_a_run_for_each_cell_with_its_jobs_inside(study, export):
    assert export("mlflow").startswith("6 cells exported, 0 were there")
    client, runs = of(study, "simulated")
    cells, jobs = nested(runs)
    assert {cell: len(inside) for cell, inside in jobs.items()} == JOBS
    assert {cell for cell, run in cells.items() if run.info.status == "FAILED"} == {FULL}
    cell = cells[IN_TURNS]
    assert (cell.info.start_time, cell.info.end_time) == (1000 * (ENDED - TOOK), 1000 * ENDED)
    expected = published(study, "stp", IN_TURNS)
    assert cell.data.metrics["stp/mps"] == expected["mps"] > 1
    assert cell.data.metrics["stp/alone"] == expected["naive"] == 1
    params = {"implementation": "paper_step", "method": "alone-mps", "replicate": "1", "jobs": "3"}
    assert cell.data.params.items() >= (params | {"host": "h1"}).items()
    history = client.get_metric_history(cell.info.run_id, "system/gract")
    assert [(m.value, m.timestamp) for m in history] == [
        (0.25, 1000 * ENDED - 500),
        (0.75, 1000 * ENDED),
    ]
    rows = pq.read_table(study / "runs.parquet").to_pylist()
    rates = {row["samples_per_s"] for row in rows if IN_TURNS.startswith(row["cell"])}
    assert {job.data.metrics["samples_per_s"] for job in jobs[IN_TURNS]} == rates
    assert [job.data.params["method"] for job in jobs[IN_TURNS]].count("mps") == 2


@mlflow
def test_a_run_of_radt_is_a_job_with_its_names(study, export):
    export("radt")
    client, runs = of(study, "simulated radT")
    first, others = nested(runs)
    assert {cell: 1 + len(inside) for cell, inside in others.items()} == JOBS
    workloads = {cell: run.data.params["workload"] for cell, run in first.items()}
    assert sorted(workloads.values()) == list("123456")
    for cell, run in first.items():
        for each in (run, *others[cell]):
            workload, letter = (each.data.params[name] for name in ("workload", "letter"))
            assert each.info.run_name.startswith(f"({workload} {letter}) ")
            assert workload == workloads[cell]
    letters = [run.data.params["letter"] for run in (first[IN_TURNS], *others[IN_TURNS])]
    assert sorted(letters) == ["0_A", "0_B_MPS", "0_C_MPS"]
    seen = {name: m for name, m in first[IN_TURNS].data.metrics.items() if "system/" in name}
    expected = {"DCGMI - GR Engine Active": 0.75, "DCGMI - Power Usage": 300}
    expected |= {"SMI - Power Draw": 300, "SMI - GPU Util": 1, "SMI - Mem Used": 3 * 1024}
    assert seen == {f"system/{name}": value for name, value in expected.items()}
    run = first[IN_TURNS].info.run_id
    history = client.get_metric_history(run, "system/SMI - Power Draw")
    assert {(m.step, m.timestamp) for m in history} == {
        (0, round(1000 * (ENDED - 0.5 + t))) for t in READINGS
    }


@mlflow
@pytest.mark.parametrize(("to", "name"), [("mlflow", "simulated"), ("radt", "simulated radT")])
def test_exporting_again_adds_what_is_missing(study, export, to, name):
    export(to)
    client, runs = of(study, name)
    before = {run.info.run_id for run in runs}
    assert export(to).startswith("0 cells exported, 6 were there")
    assert {run.info.run_id for run in of(study, name)[1]} == before
    first, _ = nested(runs)
    client.update_run(first[IN_TURNS].info.run_id, "RUNNING")  # an export was interrupted
    assert export(to).startswith("1 cells exported, 5 were there")
    again = of(study, name)[1]
    assert len(again) == len(runs) and len(before - {r.info.run_id for r in again}) in (3, 4)
    assert {run.info.status for run in again} == {"FINISHED", "FAILED"}


@pytest.mark.parametrize(
    "address", ["127.0.0.1:5000", "localhost:5000/", "[::1]:80", "ada:pw@" + "host.org:443/mlflow"]
)
def test_an_address_without_a_scheme_is_refused_before_anything_is_written(
    export, monkeypatch, tmp_path, address
):
    """MLflow takes it for a folder."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    message = export("mlflow", code=1)
    assert message.count("\n") == 1 and f"http://{address}" in message
    assert sorted(tmp_path.rglob("*")) == before


@mlflow
def test_a_folder_is_an_address(export, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for address in ((tmp_path / "a:1").as_uri(), "runs"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert export("mlflow").startswith("6 cells exported")


@pytest.mark.parametrize("to", ["mlflow", "radt"])
def test_a_package_that_is_missing_is_one_line(export, monkeypatch, to):
    for name in ["mlflow", *(name for name in sys.modules if name.startswith("mlflow."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "analysis.report.export.mlflow_runs", raising=False)
    message = export(to, code=1)
    assert message.count("\n") == 1
    assert message.rstrip().endswith("constraints.txt mlflow-skinny")


def test_secrets_are_not_exported(study, export):
    path = study / "runs.parquet"
    rows = pq.read_table(path).to_pylist()
    rows = [row | {"telemetry_source": "gh" + "p_" + 36 * "a"} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    said = export("mlflow", code=1)
    assert "it holds secrets: GitHub Token, token" in said and said.count("\n") == 1
    assert not (study / "mlruns").exists()


def test_what_is_exported_holds_paths_and_does_not_ship():
    assert never_ships("mlruns/1/meta.yaml")
