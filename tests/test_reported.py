"""The paper's values: their file is sound, and gives the paper's own conclusions by our metrics."""

import pytest
import yaml

from analysis import quantities, reported
from analysis.quantities import Measurements
from analysis.views import Key
from tests.studio import REPOSITORY

PATH = REPOSITORY / "config" / "reported.csv"
S, L = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
PAIR = "dlrm_criteo_b2048+resnet152_imagenet_b32"


@pytest.fixture(scope="module")
def rows():
    return reported.read(PATH)


@pytest.fixture(scope="module")
def table(rows):
    return reported.conclusions(rows)


def one(table, source, workload, n, method):
    found = table[
        (table["source"] == source)
        & (table["workload"] == workload)
        & (table["n"] == n)
        & (table["method"] == method)
    ]
    assert len(found) == 1
    return found.iloc[0]


@pytest.mark.parametrize(("n", "label"), [(2, 1.98), (3, 2.90), (7, 5.36)])
def test_labelled_bars_give_their_labels(table, n, label):
    row = one(table, "SUIT25", S, n, "mps")
    assert row["gain_of_label"] == pytest.approx(label, rel=0.005)
    assert row["gain_printed"] == pytest.approx(row["gain_of_label"], rel=0.005)


def test_bars_give_their_means(rows):
    bars = rows[(rows["source"] == "SUIT25") & (rows["metric"] == "epoch_time")]
    groups = 0
    for _, group in bars.groupby(["workload", "n", "method"]):
        single = group[group["member"].str.isdigit()]["value"]
        if len(single):
            mean = group[group["member"] == ""]["value"].item()
            assert single.mean() == pytest.approx(mean, rel=0.005)
            groups += 1
    assert groups == 12


@pytest.mark.parametrize(("source", "tolerance"), [("SUIT25", 0.005), ("LEC22", 0.015)])
def test_times_give_the_gains_that_were_derived_from_them(rows, table, source, tolerance):
    """Those of LEC22 were digitised in steps of 0.02."""
    derived = rows[(rows["source"] == source) & (rows["kind"] == "derived")]
    assert len(derived) > 20
    for row in derived.to_dict("records"):
        for workload in row["workload"].split():
            found = one(table, source, workload, int(row["n"]), row["method"])
            assert found["gain"] == pytest.approx(row["value"], rel=tolerance)


@pytest.mark.parametrize(("method", "saved"), [("naive", 5), ("mps", 13), ("mig_shared", 13)])
def test_what_the_pair_saves(table, method, saved):
    row = one(table, "SLIDES", PAIR, 2, method)
    assert round(100 * row["saving"]) == round(100 * row["saving_printed"]) == saved


def test_seven_large_jobs_were_out_of_memory(table):
    for method in ("naive", "mps", "mig"):
        assert one(table, "SUIT25", L, 7, method)["status"] == "out_of_memory"


def test_derived_slowdowns_of_the_pair_follow_from_its_hours(rows):
    measured = Measurements(reported.views(rows)["SLIDES"])
    for method, slowdown in (("naive", 1.057), ("mps", 1.048), ("mig_shared", 1.33)):
        key = Key.of(dict.fromkeys(PAIR.split("+"), 1), method)
        found = measured.mean(quantities.quantity("slowdown", L), key)
        assert found == pytest.approx(slowdown, rel=0.005)
        # What DLRM did while it shared the GPU is not known, so the pair has no gain.
        assert measured.mean(quantities.quantity("gain"), key) is None


def test_views_say_what_the_conclusions_say(rows, table):
    measured = Measurements(reported.views(rows)["SUIT25"])
    gain = quantities.quantity("gain")
    for row in table[(table["source"] == "SUIT25") & table["gain"].notna()].to_dict("records"):
        found = measured.mean(gain, Key.of({row["workload"]: row["n"]}, row["method"]))
        assert found == pytest.approx(row["gain"], rel=0.005)


def test_spread_is_known_only_where_bars_are(rows):
    spread = quantities.quantity("spread")
    seven = Key.of({S: 7}, "mig")
    suit, lecture = (Measurements(reported.views(rows)[s]) for s in ("SUIT25", "LEC22"))
    assert suit.mean(spread, seven) == pytest.approx(35.1 / 34.7)
    assert suit.mean(spread, Key.of({S: 2}, "mps")) == pytest.approx(22.1 / 21.73)
    assert lecture.mean(spread, seven) is None


def test_every_row_is_stamped_and_stands_beside_workloads_that_are_its_own(rows):
    assert set(rows["stamp"]) == {"reported"}
    assert "results" not in PATH.parts
    catalogue = yaml.safe_load((REPOSITORY / "config" / "workloads.yaml").read_text())
    for row in rows[rows["kind"] != "text"].to_dict("records"):
        for workload in row["workload"].split():
            parts = workload.split("+")
            models, datasets = row["model"].split("+"), row["dataset"].split("+")
            for name, model, dataset in zip(parts, models, datasets, strict=True):
                ours = catalogue[name]
                assert (ours["model"], ours["dataset"]) == (model, dataset)
                assert row["batch"] in ("", str(ours["batch_size"]))


def test_no_value_stands_there_twice(rows):
    key = ["source", "kind", "workload", "n", "method", "member", "metric", "status", "note"]
    assert not rows.duplicated(key).any()


def test_values_beside_a_workload_whatever_the_order_of_a_mix(table):
    assert set(reported.beside(table, S)["source"]) == {"SUIT25", "LEC22"}
    turned = "+".join(reversed(PAIR.split("+")))
    assert len(reported.beside(table, turned)) == 4
    assert reported.beside(table, "another").empty


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("reported,SUIT25", "measured,SUIT25", "line 2: stamp: 'measured' is not allowed"),
        (",naive,,epoch_time,21.57", ",nave,,epoch_time,21.57", "line 2: method: 'nave'"),
        ("21.57,s", "21.57,min.", "line 2: unit: 'min.' is not allowed; allowed: s, min, h"),
        ("21.57,s", "fast,s", "line 2: value: 'fast' is not allowed; allowed: a number above 0"),
        ("21.57,s", "nan,s", "line 2: value: 'nan' is not allowed"),
        ("b32,1,naive", "b32,,naive", "line 2: workload, n and method must stand there"),
        ("stamp,source", "stamp,whence", "line 1: the columns must be: stamp, source"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, old, new, said):
    path = tmp_path / "reported.csv"
    path.write_text(PATH.read_text().replace(old, new, 1))
    with pytest.raises(reported.ReportedError) as error:
        reported.read(path)
    assert str(error.value).startswith(f"{path}: {said}")
    assert "\n" not in str(error.value)


def test_the_command(tmp_path, capsys):
    output = tmp_path / "conclusions.csv"
    assert reported.main(["--reported", str(PATH), "--output", str(output), "--print"]) == 0
    assert output.read_text().count("\nreported,") > 100
    assert "mig_shared" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"missing\.csv: cannot be read"):
        reported.main(["--reported", str(tmp_path / "missing.csv")])
