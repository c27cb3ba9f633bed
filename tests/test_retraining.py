"""A job that is retrained as new data come: its delays, what a study may ask, a cell of it."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from release import checks
from release.manifest import attempts
from tests.studio import REPOSITORY, study
from workflow.collocation.record import latency, step_times
from workflow.collocation.record.values import PERCENTILES, Window
from workflow.collocation.spec.errors import ConfigError
from workflow.collocation.spec.load import load_workloads

CATALOGUE = yaml.safe_load((REPOSITORY / "config" / "workloads.yaml").read_text())
STEADY, TRIGGERED = "tiny_resnet_digits_b32", "tiny_resnet_digits_triggered"
TINY = {name: CATALOGUE[name] for name in (STEADY, TRIGGERED)}
BOTH, K = dict.fromkeys(TINY, 1), TINY[TRIGGERED]["triggers"]["steps"]
DELAYS = {f"p{p}_e2el_ms" for p in PERCENTILES} | {"answered_share"}


def test_delays_are_from_trigger_to_trained():
    """Of five triggers one was trained for after the window, and the last not at all."""
    at, trained = np.array([0, 10, 12, 90, 95]), np.array([8, 25, 40, 120])
    told = {"at_ns": at * 10**6, "tokens": np.array([1, 1, 1, 1, 0])}
    told |= {"token_ns": trained * 10**6}
    found = latency.of_window(told, Window(name="w", start_ns=0, end_ns=10**8, seconds=0.1), None)
    assert found.keys() == DELAYS and found["p50_e2el_ms"] == 15 and found["answered_share"] == 0.6
    assert found["p95_e2el_ms"] == np.percentile([8, 15, 28], 95)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"triggers": {"per_s": 0, "steps": 5}}, "triggers.per_s"),
        ({"triggers": {"per_s": 1}}, "triggers.steps"),
        ({"kind": "command", "run": ["python", "a.py"]}, "triggers: unknown key"),
    ],
)
def test_triggers_that_cannot_be_are_refused(tmp_path, changes, why):
    kept = ("triggers", "batch_size") if "kind" in changes else TINY[TRIGGERED]
    job = {key: TINY[TRIGGERED][key] for key in kept} | changes
    (tmp_path / "workloads.yaml").write_text(yaml.safe_dump({"job": job}))
    with pytest.raises(ConfigError, match=why):
        load_workloads(tmp_path / "workloads.yaml")


@pytest.mark.parametrize(
    ("methods", "more"),
    [
        (["naive"], {"measure": {"kind": "completion"}, "work": dict.fromkeys(TINY, 9)}),
        (["alone", "naive"], {"measure": {"kind": "interleaved"}}),
        (["streams"], {}),
    ],
)
def test_triggers_wait_for_nobody(studio, methods, more):
    studio.write(TINY, drill=study(mixes=[{"members": BOTH, "methods": methods} | more]))
    run = studio.plan()
    assert run.code and run.output.count(f"'{TRIGGERED}'") == 1, run.output


@pytest.fixture(scope="module")
def retrained(module_studio):
    """It beside a steady job, and each alone, on the CPU."""
    pytest.importorskip("torch")
    studio = module_studio()
    studio.settings = {"trainer": "models.train"}
    measure = {"kind": "window", "window_s": 2, "min_steps": 5, "warmup_s": 0.2, "settle_s": 0.2}
    mixes = [{"members": BOTH, "methods": ["naive"]}]
    studio.write(TINY, drill=study(mixes=mixes, measure=measure, cores_for=2))
    run = studio.snakemake()
    assert run.code == 0, run.output
    return studio


def test_each_trigger_has_its_steps_and_its_delay_beside_a_job_that_trains_on(retrained):
    [path] = retrained.results.glob("cells/*+*/*/*/*/*/run.json")
    record = json.loads(path.read_text())
    steady, triggered = sorted(record["members"], key=lambda m: m["workload"] == TRIGGERED)
    assert record["status"] == "completed" and "stalled" not in record["flags"]
    found = triggered["windows"]["window"]
    assert found["latency"].keys() == DELAYS and not steady["windows"]["window"]["latency"]
    assert found["drift"] is None  # its gaps are those of its triggers
    ends = step_times.read(pq.read_table(path.with_name(step_times.FILE)))[triggered["member"]][0]
    requests = latency.read(pq.read_table(path.with_name(latency.FILE)))[triggered["member"]]
    trained, n = requests["token_ns"], requests["tokens"].sum()
    asked = requests["at_ns"][:n]  # others came while it trained for the last, or was stopped
    first, last = ends[: n * K : K], ends[K - 1 : n * K : K]
    assert np.abs(trained - last).max() <= step_times.TICK_NS
    assert (first + step_times.TICK_NS > asked).all()
    assert (trained - asked > last - first - step_times.TICK_NS).all()
    assert (np.diff(requests["at_ns"]) > 0).all()


def test_its_delays_and_what_the_other_loses_are_published_drawn_and_checked(retrained):
    estimates = pd.read_csv(retrained.results / "estimates.csv").set_index("id")["value"]
    mix = f"1x_{STEADY}+1x_{TRIGGERED}/paper_step/naive"
    assert (
        0
        < estimates[f"p50_e2el_ms:{mix}/{TRIGGERED}"]
        <= estimates[f"p95_e2el_ms:{mix}/{TRIGGERED}"]
    )
    assert estimates[f"p95_e2el_ms:1x_{TRIGGERED}/paper_step/naive"] > 0
    assert estimates[f"slowdown:{mix}/{STEADY}"] > 0
    assert (retrained.results / "figures" / "retraining.png").exists()
    assert not (retrained.results / "figures" / "serving.png").exists()
    [folder] = retrained.results.glob("cells/*+*/*/*/*/*")
    names = {
        p.relative_to(retrained.results).as_posix(): "" for p in folder.iterdir() if p.is_file()
    }
    [attempt] = attempts(names)
    record = json.loads((folder / "run.json").read_text())
    digests = {name: file["sha256"] for name, file in record["files"].items()} | {"run.json": ""}
    assert checks.examine(retrained.results, attempt, digests).wrong == []
