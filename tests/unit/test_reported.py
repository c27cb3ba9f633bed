"""The paper's values: their file is sound, and gives the paper's own conclusions by our metrics."""

from collections import Counter

import pytest
import yaml

from analysis.estimates.table import by_id, identity
from paper.reported import SOURCES, read_reported, reported_estimates
from tests.handmade import frame
from tests.studio import REPOSITORY
from workflow.collocation.study.names import METHODS, scenario_id

S, L = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
PAIR = scenario_id({"dlrm_criteo_b2048": 1, L: 1})
ROWS = read_reported()
NUMBERS = by_id(frame(reported_estimates(ROWS)).drop_duplicates("id"))


def reported_value(quantity, source, scenario, method, job=""):
    where = {"scenario": scenario, "implementation": "paper_step", "method": method, "job": job}
    number = NUMBERS.get(identity(quantity, source=source, **where))
    return None if number is None else number.value


@pytest.mark.parametrize(("source", "tolerance"), [("SUIT25", 0.01), ("LEC22", 0.015)])
def test_times_give_the_gains_that_were_derived_from_them(source, tolerance):
    """Those of LEC22 were digitised in steps of 0.02."""
    derived = ROWS[(ROWS["source"] == source) & (ROWS["kind"] == "derived")]
    assert len(derived) > 20
    checked = 0
    for row in derived.itertuples():
        for workload in row.workload.split():
            if row.metric == "gain" and "+" not in workload and row.method != "serial":
                value = reported_value("stp", source, f"{row.n}x_{workload}", row.method)
                assert value == pytest.approx(row.value, rel=tolerance)
                checked += 1
    assert checked > 20


def test_bars_give_their_means():
    bars = ROWS[(ROWS["source"] == "SUIT25") & (ROWS["metric"] == "epoch_time")]
    single = bars[bars["member"].str.isdigit()]
    means = single.groupby(["workload", "n", "method"])["value"].mean()
    printed = bars[bars["member"] == ""].set_index(["workload", "n", "method"])["value"]
    assert len(means) == 12
    assert ((means / printed[means.index] - 1).abs() < 0.005).all()


@pytest.mark.parametrize(
    ("method", "saved", "slowdown"),
    [("naive", 5, 1.057), ("mps", 13, 1.048), ("mig_shared", 13, 1.33)],
)
def test_what_the_pair_saves_and_its_slowdown_follow_from_its_hours(method, saved, slowdown):
    assert round(100 * reported_value("saving", "SLIDES", PAIR, method)) == saved
    value = reported_value("slowdown", "SLIDES", PAIR, method, job=L)
    assert value == pytest.approx(slowdown, rel=0.005)
    # What DLRM did while it shared the GPU is not known, so the pair has no gain.
    assert reported_value("stp", "SLIDES", PAIR, method) is None


def test_what_is_known_of_bars_and_of_sets_without_any():
    for method in ("naive", "mps", "mig"):
        where = {
            "scenario": f"7x_{L}",
            "implementation": "paper_step",
            "method": method,
            "source": "SUIT25",
        }
        assert NUMBERS[identity("outcome", **where)].status == "out_of_memory"
    assert reported_value("spread", "SUIT25", f"7x_{S}", "mig") == pytest.approx(35.1 / 34.7)
    assert reported_value("spread", "SUIT25", f"2x_{S}", "mps") == pytest.approx(22.1 / 21.73)
    assert reported_value("spread", "LEC22", f"7x_{S}", "mig") is None
    times = [
        reported_value("epoch_time", "SUIT25", f"7x_{S}", method) for method in ("naive", "mps")
    ]
    value = reported_value("rate_over_naive", "SUIT25", f"7x_{S}", "mps")
    assert value == pytest.approx(times[0] / times[1])
    ours = Counter(e.source for e in NUMBERS.values() if e.host == "" and "@" in e.id)
    assert ours.keys() <= SOURCES.keys() and ours.total() == len(NUMBERS)


def test_every_row_stands_beside_workloads_that_are_its_own():
    catalogue = yaml.safe_load((REPOSITORY / "config" / "workloads.yaml").read_text("utf-8"))
    for row in ROWS[ROWS["kind"] != "text"].itertuples():
        for workload in row.workload.split():
            parts = workload.split("+")
            models, datasets = row.model.split("+"), row.dataset.split("+")
            for name, model, dataset in zip(parts, models, datasets, strict=True):
                ours = catalogue[name]
                assert (ours.get("model"), ours.get("dataset")) == (model, dataset) or (
                    ours["kind"] == model == "dlrm" and dataset == "criteo"  # a kind of its own
                )
                assert row.batch in ("", str(ours["batch_size"]))


def test_the_file_holds_what_is_read_of_it():
    allowed = {
        "stamp": ["reported"],
        "source": [*SOURCES],
        "kind": ["label", "vector", "digitised", "derived", "text"],
        "method": [*METHODS, ""],
        "status": ["completed", "out_of_memory", "not_shown"],
    }
    for column, values in allowed.items():
        assert {*ROWS[column]} <= {*values}
    placed = (ROWS["workload"] != "") & (ROWS["method"] != "") & ROWS["n"].str.isdigit()
    assert (placed | (ROWS["kind"] == "text")).all()
    assert ((ROWS["value"] > 0) | (ROWS["value"].isna() & (ROWS["status"] != "completed"))).all()
