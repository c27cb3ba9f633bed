"""What analysis makes of telemetry: columns of runs.parquet, and telemetry.parquet."""

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.__main__ import main as analysis
from analysis.records import schema
from analysis.records import telemetry as series
from tests.records import merged, record, telemetry
from workflow.collocation.record.values import Telemetry, Window
from workflow.collocation.telemetry import files
from workflow.collocation.telemetry.lines import Lines
from workflow.collocation.telemetry.metrics import METRICS


def test_headline_values_are_columns_and_missing_ones_are_missing():
    card = {"ctxsw_active": 0.02, "sm_clock": 1980.0, "drama": 0.1}
    seen = telemetry(members=2, card=card)
    seen |= {"strangers": ["PID 7"], "throttled": {"hw_slowdown": 0.25}}
    Telemetry.model_validate(seen)  # the test's records are as the runner writes them
    del seen["windows"]["window"]["members"]["1"]
    frame = merged(record("2x_a", rates=[1, 1], telemetry=seen, gpu_memory=42 * 10**9))
    first, second = frame.to_dict("records")
    expected = {"gract": 0.5, "smact": 0.25, "drama": 0.1, "ctxsw_active": 0.02, "power": 200}
    expected |= {"sm_clock": 1980, "gpu_memory_used": 2e9, "idle_power": 80, "temperature": 50}
    expected |= {"energy_j": 2000, "gpu_memory_total": 42e9}
    expected |= {"telemetry": "complete", "telemetry_source": "gpm"}
    assert {key: first[key] for key in expected} == expected
    assert {key: second[key] for key in expected} == expected
    assert pd.isna([first[key] for key in ("tenso", "fp64", "activity_sm_count")]).all()
    assert (first["cpu_cores"], first["read"], first["gpu_memory"]) == (1.5, 0, 2**29)
    assert pd.isna([second[key] for key in ("cpu_cores", "rss", "gpu_memory")]).all()
    assert all(part in first["telemetry_note"] for part in ("hw slowdown 25 %", "PID 7"))


def test_under_mig_the_card_is_the_mean_and_a_member_has_its_own_instance():
    seen = telemetry(
        members=3,
        whole_card={"sm_count": 132.0, "gract": 0.8, "smact": None},
        card={"gract": None, "smact": 0.1},  # what the card itself says is not of its instances
    )
    window = seen["windows"]["window"]
    window["entities"] |= {"gi:1": {"gract": 0.9, "smact": None}, "gi:2": {"gract": 0.4}}
    for member, entity in enumerate(("gi:2", "gi:1", "gi:3")):
        window["members"][str(member)] = {"cpu": 1.0, "entity": entity}
    frame = merged(record("3x_a", "mig", rates=[1, 1, 1], telemetry=seen))
    assert (frame["gract"] == 0.8).all() and (frame["activity_sm_count"] == 132).all()
    assert frame["smact"].isna().all() and frame["entity"].tolist() == ["gi:2", "gi:1", "gi:3"]
    assert frame["gract_instance"].fillna(0).tolist() == [0.4, 0.9, 0]


def watched(folder, number, entities=("gpu",), attempt=1, **metrics):
    """A cell on disk, its files written as a run writes them, three rows of each entity, every
    0.1 s from -0.1 s on; its run.json.
    """
    content = record("1x_a", replicate=number, attempt=attempt)
    place = folder / content["cell"]["id"] / f"a{content['cell']['attempt']}"
    place.mkdir(parents=True)
    gpu = [
        {"t": 10**12 + (i - 1) * 10**8, "e": entity, "v": {n: v[i] for n, v in metrics.items()}}
        for i in range(3)
        for entity in entities
    ]
    lines = Lines(gpu=gpu, phases=[(10**12 - 10**9, "warm"), (10**12, "window")])
    window = Window(name="window", start_ns=10**12, end_ns=10**12 + 10**9, seconds=1.0)
    written = files.write(place, lines, [window]) if metrics else {}
    content["files"] = {name: file.model_dump() for name, file in written.items()}
    (place / "run.json").write_text(json.dumps(content))
    return place / "run.json"


def merged_series(folder, paths):
    """telemetry.parquet of these run.json files as a frame, and what was left out of it."""
    output = folder / "out" / "telemetry.parquet"
    arguments = ["--study", "records", "--output", str(output), *map(str, paths)]
    assert analysis(["telemetry", *arguments]) == 0
    note = output.with_suffix(".unreadable.txt")
    note = note.read_text().splitlines() if note.exists() else []
    written = pq.read_schema(output).remove_metadata()  # but that of its columns
    assert written.equals(schema.TELEMETRY, check_metadata=True)
    return pq.read_table(output).to_pandas(), note


def test_series_of_all_current_cells_are_one_table(tmp_path, monkeypatch):
    monkeypatch.setattr(series, "ROWS", 4)
    values = {"gract": [0.1, 0.2, 0.3], "memory_used": [5 * 10**10, None, 7], "energy": [1, 2, 3.5]}
    paths = [
        watched(tmp_path, 1, attempt=1, **values),
        watched(tmp_path, 1, attempt=2, gract=[0.7] * 3),
        watched(tmp_path, 2, ("gpu", "gi:1"), **values),
        watched(tmp_path, 3),  # on a CPU
    ]
    frame, note = merged_series(tmp_path, paths)
    assert note == []
    first, second = (f"1x_a/paper_step/naive/r{i}" for i in (1, 2))
    assert frame["cell"].tolist() == [first] * 3 + [second] * 6
    assert frame["attempt"].tolist() == [2] * 3 + [1] * 6
    assert frame["t"].tolist()[:3] == pytest.approx([-0.1, 0, 0.1])
    assert frame["phase"].tolist()[:3] == ["warm", "window", "window"]
    assert frame["entity"].tolist()[3:] == ["gpu", "gi:1"] * 3
    assert frame["gract"].tolist()[:4] == pytest.approx([0.7, 0.7, 0.7, 0.1])
    assert frame["memory_used"].iloc[3] == 5 * 10**10 and pd.isna(frame["memory_used"].iloc[5])
    assert frame["energy"].tolist()[-1] == 3.5 and frame["smact"].isna().all()


def test_series_that_cannot_be_read_are_left_out_with_a_line_each(tmp_path):
    paths = [watched(tmp_path, i, power=[1.0, 2.0, 3.0]) for i in range(1, 6)]
    cut, gone, other = (paths[i].with_name("gpu.parquet") for i in (1, 2, 3))
    cut.write_bytes(cut.read_bytes()[:-20])
    gone.unlink()
    pq.write_table(pa.table({"power": [1.0]}), other)
    paths[4].write_text("{")
    frame, note = merged_series(tmp_path, paths)
    assert frame["cell"].unique().tolist() == ["1x_a/paper_step/naive/r1"]
    bad = {str(path) for path in (cut, gone, other, paths[4])}
    assert {line.partition(": ")[0] for line in note} == bad
    assert merged_series(tmp_path, [])[0].empty


def test_columns_have_the_units_of_the_sampler():
    units = {metric.name: metric.unit for metric in METRICS}
    for columns in (schema.TELEMETRY, schema.SCHEMA):
        known = {field.name: field.metadata[b"unit"].decode() for field in columns}
        assert units.items() >= {n: unit for n, unit in known.items() if n in units}.items()
    assert set(units) <= set(schema.TELEMETRY.names)
