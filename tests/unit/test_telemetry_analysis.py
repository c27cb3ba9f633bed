"""What analysis makes of telemetry: columns of runs.parquet."""

import pandas as pd

from analysis.estimates.records import schema
from tests.records import merged, record, telemetry
from workflow.collocation.record.values import Telemetry
from workflow.collocation.telemetry.sources import GPU_METRICS


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


def test_columns_have_the_units_of_the_sampler():
    units = {metric.name: metric.unit for metric in GPU_METRICS}
    known = {field.name: field.metadata[b"unit"].decode() for field in schema.SCHEMA}
    assert units.items() >= {n: unit for n, unit in known.items() if n in units}.items()
