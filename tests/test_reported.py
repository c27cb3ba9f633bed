"""The paper's values: their file is sound, and gives the paper's own conclusions by our metrics."""

from collections import Counter

import pytest
import yaml

from analysis.estimates import reported
from analysis.estimates.table import Estimates
from tests.studio import REPOSITORY
from workflow.collocation.spec.names import scenario_id

PATH = REPOSITORY / "config" / "reported.csv"
S, L = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
PAIR = scenario_id({"dlrm_criteo_b2048": 1, L: 1})


@pytest.fixture(scope="module")
def rows():
    return reported.read(PATH)


@pytest.fixture(scope="module")
def table(rows):
    return Estimates(reported.estimates(rows))


def one(table, quantity, source, scenario, method, job=""):
    where = {"scenario": scenario, "arm": "paper_step", "method": method, "job": job}
    found = table.get(quantity, source=source, **where)
    return None if found is None else found.value


@pytest.mark.parametrize(("source", "tolerance"), [("SUIT25", 0.01), ("LEC22", 0.015)])
def test_times_give_the_gains_that_were_derived_from_them(rows, table, source, tolerance):
    """Those of LEC22 were digitised in steps of 0.02."""
    derived = [r for r in rows if (r["source"], r["kind"]) == (source, "derived")]
    assert len(derived) > 20
    checked = 0
    for row in derived:
        for workload in row["workload"].split():
            if row["metric"] == "gain" and "+" not in workload and row["method"] != "serial":
                found = one(table, "stp", source, f"{row['n']}x_{workload}", row["method"])
                assert found == pytest.approx(row["value"], rel=tolerance)
                checked += 1
    assert checked > 20


def test_bars_give_their_means(rows):
    bars = [r for r in rows if (r["source"], r["metric"]) == ("SUIT25", "epoch_time")]
    groups = {}
    for row in bars:
        group = groups.setdefault((row["workload"], row["n"], row["method"]), {})
        group[row["member"]] = row["value"]
    checked = 0
    for group in groups.values():
        if single := [value for member, value in group.items() if member.isdigit()]:
            assert sum(single) / len(single) == pytest.approx(group[""], rel=0.005)
            checked += 1
    assert checked == 12


@pytest.mark.parametrize(
    ("method", "saved", "slowdown"),
    [("naive", 5, 1.057), ("mps", 13, 1.048), ("mig_shared", 13, 1.33)],
)
def test_what_the_pair_saves_and_its_slowdown_follow_from_its_hours(table, method, saved, slowdown):
    assert round(100 * one(table, "saving", "SLIDES", PAIR, method)) == saved
    found = one(table, "slowdown", "SLIDES", PAIR, method, job=L)
    assert found == pytest.approx(slowdown, rel=0.005)
    # What DLRM did while it shared the GPU is not known, so the pair has no gain.
    assert one(table, "stp", "SLIDES", PAIR, method) is None


def test_the_pairs_work_is_what_its_jobs_take_alone(rows):
    (jobs,) = reported.work(rows).values()
    assert reported.work(rows).keys() == {PAIR}
    assert jobs.keys() == {"dlrm_criteo_b2048", L} and all(time > 0 for time in jobs.values())


def test_seven_large_jobs_were_out_of_memory(table):
    for method in ("naive", "mps", "mig"):
        where = {"scenario": f"7x_{L}", "arm": "paper_step", "method": method, "source": "SUIT25"}
        assert table.get("outcome", **where).status == "out_of_memory"


def test_spread_is_known_only_where_bars_are_and_a_ratio_is_of_epoch_times(table):
    assert one(table, "spread", "SUIT25", f"7x_{S}", "mig") == pytest.approx(35.1 / 34.7)
    assert one(table, "spread", "SUIT25", f"2x_{S}", "mps") == pytest.approx(22.1 / 21.73)
    assert one(table, "spread", "LEC22", f"7x_{S}", "mig") is None
    times = [one(table, "epoch_time", "SUIT25", f"7x_{S}", method) for method in ("naive", "mps")]
    found = one(table, "rate_over_naive", "SUIT25", f"7x_{S}", "mps")
    assert found == pytest.approx(times[0] / times[1])


def test_every_number_names_its_source_and_none_stands_there_twice(rows, table):
    ids = Counter(e.id for e in reported.estimates(rows))
    assert max(ids.values()) == 1
    for e in table:
        assert e.source in reported.SOURCES and e.id.endswith(f"@{e.source}")
        assert e.host == "" and e.note or e.quantity == "outcome"


def test_every_row_is_stamped_and_stands_beside_workloads_that_are_its_own(rows):
    assert {row["stamp"] for row in rows} == {"reported"}
    catalogue = yaml.safe_load((REPOSITORY / "config" / "workloads.yaml").read_text())
    for row in rows:
        for workload in row["workload"].split() if row["kind"] != "text" else ():
            parts = workload.split("+")
            models, datasets = row["model"].split("+"), row["dataset"].split("+")
            for name, model, dataset in zip(parts, models, datasets, strict=True):
                ours = catalogue[name]
                assert (ours.get("model"), ours.get("dataset")) == (model, dataset) or (
                    ours["kind"] == model == "dlrm" and dataset == "criteo"  # a kind of its own
                )
                assert row["batch"] in ("", str(ours["batch_size"]))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("reported,SUIT25", "measured,SUIT25", "line 2: stamp: 'measured' is not allowed"),
        ("21.57,s", "21.57,min.", "line 2: unit: 'min.' is not allowed; allowed: s, min, h"),
        ("21.57,s", "fast,s", "line 2: value: 'fast' is not allowed; allowed: a number above 0"),
        ("b32,1,naive", "b32,,naive", "line 2: workload, n and method must stand there"),
        ("stamp,source", "stamp,whence", "line 1: the columns must be: stamp, source"),
        ("s,completed,", "s,completed,a,b", "line 2: 16 columns must stand there"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, old, new, said):
    path = tmp_path / "reported.csv"
    path.write_text(PATH.read_text().replace(old, new, 1))
    with pytest.raises(reported.ReportedError) as error:
        reported.read(path)
    assert str(error.value).startswith(f"{path}: {said}")
    assert "\n" not in str(error.value)
    with pytest.raises(reported.ReportedError, match=r"missing\.csv: cannot be read"):
        reported.read(tmp_path / "missing.csv")
