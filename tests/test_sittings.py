"""Sittings held against each other: hand-made runs whose rates, GRACT and gains are known."""

import pandas as pd
import pytest

from analysis.cells import load, read_runs
from analysis.tables import sittings
from tests.records import merged, record, telemetry
from tests.studies import furnish

ALONE, PAIR = "1x_small", "2x_small"
# Sitting → machine, GPU, start (UTC): by time, not by name.
PLACES = {
    "second": ("m1", "GPU-1", "2026-01-01T10:00:00+00:00"),
    "first": ("m2", "GPU-2", "2026-01-02T10:00:00+00:00"),
}


def at(sitting, scenario, method="naive", replicate=1, **options):
    """A record of one of the PLACES."""
    machine, gpu, start = PLACES[sitting]
    made = record(scenario, method, replicate, sitting=sitting, gpu=gpu, **options)
    made["provenance"] |= {"machine": machine, "started_at": start}
    return made


def gract(share):
    return {"telemetry": telemetry(card={"gract": share})}


def two_sittings():
    """Replicates 1 and 2 in one, 3 in the other, where the job alone is half as fast."""
    return [
        at("second", ALONE, rates=(1000.0,), **gract(0.4)),
        at("second", PAIR, "mps", rates=(500.0, 500.0)),
        at("second", ALONE, replicate=2, rates=(4000.0,), **gract(0.6)),
        at("second", PAIR, "mps", 2, rates=(8000.0, 8000.0)),
        at("first", ALONE, replicate=3, rates=(1000.0,), **gract(0.25)),
        at("first", PAIR, "mps", 3, rates=(900.0, 900.0)),
    ]


def tables_of(records):
    """Rows, and the page."""
    cells = sittings.measured(load(merged(*records)).with_references)
    rows = sittings.table(cells)
    return rows, sittings.markdown(rows, sittings.in_time(cells))


def one(rows, sitting, scenario, method="naive", arm="faithful"):
    wanted = {"sitting": sitting, "scenario": scenario, "method": method, "arm": arm}
    [row] = rows[(rows[list(wanted)] == list(wanted.values())).all(axis=1)].to_dict("records")
    return row


def lines(page):
    """The cells of each line of its tables."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| ")
    ]


def test_each_sitting_has_its_own_means():
    rows, _ = tables_of(two_sittings())
    alone, pair = one(rows, "second", ALONE), one(rows, "second", PAIR, "mps")
    assert (alone["machine"], alone["replicates"], alone["n"]) == ("m1", 2, 1)
    assert alone["samples_per_s"] == pytest.approx(2000)  # of 1000 and 4000
    assert alone["gract"] == pytest.approx(0.5)
    assert alone["gain"] == 1
    assert pair["gain"] == pytest.approx(2)  # of 1 and 4
    assert pair["samples_per_s"] == pytest.approx(4000)  # of 1000 and 16000
    other = one(rows, "first", PAIR, "mps")
    assert (other["machine"], other["replicates"]) == ("m2", 1)
    assert other["gain"] == pytest.approx(1.8)


def test_the_page_has_a_column_per_sitting_the_earliest_first():
    _, page = tables_of(two_sittings())
    head, job, gains, pair = lines(page)
    assert head[2:4] == ["second: samples/s", "first: samples/s"]
    assert job[1:6] == ["1× small", "2000 (2)", "1000 (1)", "2.00", "4.00"]
    assert job[6:] == ["50", "25", "2.00"]
    assert gains[:3] == ["arm", "jobs", "method"] and gains[5:] == [
        *("ratio", "second: gain", "first: gain", "gain ratio")
    ]
    assert pair[:6] == ["faithful", "2× small", "mps", "4000", "1800", "2.22"]
    assert pair[6:] == ["2.00 (2)", "1.80 (1)", "1.11"]
    assert "second on m1, first on m2" in page and "no interval" in page


def test_columns_are_in_time_where_the_first_cell_was_not_in_the_first_sitting():
    records = [*two_sittings(), at("first", "1x_first", rates=(1.0,))]
    _, page = tables_of(records)
    assert lines(page)[0][2:4] == ["second: samples/s", "first: samples/s"]


def test_sittings_without_a_time_are_in_the_order_of_their_names():
    records = two_sittings()
    for made in records:
        made["provenance"]["started_at"] = None
    _, page = tables_of(records)
    assert lines(page)[0][2:4] == ["first: samples/s", "second: samples/s"]


def test_an_arm_that_one_sitting_lacks_is_a_dash_there():
    tuned = [
        at("second", ALONE, rates=(100.0,), arm="tuned"),
        at("second", PAIR, "mps", rates=(75.0, 75.0), arm="tuned"),
    ]
    rows, page = tables_of([*two_sittings(), *tuned])
    assert set(rows.loc[rows["arm"] == "tuned", "sitting"]) == {"second"}
    assert lines(page)[-1] == [
        *("tuned", "2× small", "mps", "150.0", "–", "–", "1.50 (1)", "–", "–")
    ]


def test_gract_that_is_not_known_is_a_dash():
    records = [made for made in two_sittings() if made["provenance"]["sitting"] == "second"]
    records += [at("first", ALONE, replicate=3)]
    rows, page = tables_of(records)
    assert pd.isna(one(rows, "first", ALONE)["gract"])
    assert lines(page)[1][6:] == ["50", "–", "–"]
    del records[0]["telemetry"]
    rows, _ = tables_of(records)
    assert one(rows, "second", ALONE)["gract"] == pytest.approx(0.6)


def test_one_sitting_or_none_is_a_sentence():
    _, page = tables_of([made for made in two_sittings() if made["cell"]["replicate"] == 3])
    assert "in one sitting, first on m2" in page and "|" not in page
    _, page = tables_of([record(ALONE, status="out_of_memory", rates=(None,))])
    assert page.endswith("\n\nNo cell yet.\n")


def test_only_what_completed_in_a_window_counts():
    more = [
        at("first", "3x_small", "mps", rates=(None,) * 3, status="out_of_memory"),
        at("first", f"{PAIR}--epochs", rates=(1.0, 1.0)),
        at("first", f"{PAIR}--departure", windows=[{"before": 1.0, "after": 1.0}, {"before": 1.0}]),
    ]
    rows, _ = tables_of([*two_sittings(), *more])
    assert set(rows["scenario"]) == {ALONE, PAIR}


def test_a_set_without_its_job_alone_is_counted_but_has_no_gain():
    rows, page = tables_of([*two_sittings(), at("first", PAIR, "mps", 4, rates=(1.0, 1.0))])
    row = one(rows, "first", PAIR, "mps")
    assert (row["replicates"], row["gains"]) == (2, 1) and row["gain"] == pytest.approx(1.8)
    assert "1.80 (1)" in page


def test_a_job_alone_counts_in_each_sitting_that_a_replicate_was_measured_in():
    """The first attempt stays for the pair that was held against it on that GPU."""
    records = [
        at("second", ALONE, rates=(1000.0,)),
        at("second", PAIR, "mps", rates=(700.0, 700.0)),
        at("first", ALONE, rates=(800.0,), attempt=2),
        at("first", PAIR, "naive", rates=(400.0, 400.0)),
    ]
    rows, _ = tables_of(records)
    assert one(rows, "second", ALONE)["samples_per_s"] == pytest.approx(1000)
    assert one(rows, "first", ALONE)["samples_per_s"] == pytest.approx(800)
    assert one(rows, "second", PAIR, "mps")["gain"] == pytest.approx(1.4)


def test_a_gain_over_what_another_sitting_measured_is_neithers():
    """A block that goes on in another sitting on the same GPU."""
    records = [
        at("second", ALONE, rates=(1000.0,)),
        at("second", PAIR, "mps", rates=(700.0, 700.0)),
        at("first", PAIR, "naive", rates=(400.0, 400.0)),
    ]
    records[-1]["gpu"]["uuid"] = "GPU-1"
    rows, page = tables_of(records)
    row = one(rows, "first", PAIR)
    assert (row["replicates"], row["gains"]) == (1, 0) and pd.isna(row["gain"])
    assert one(rows, "second", PAIR, "mps")["gain"] == pytest.approx(1.4)
    assert lines(page)[-2][1:] == ["2× small", "naive", "–", "800.0", "–", "–", "–", "–"]


def test_a_sitting_on_two_machines_has_a_column_of_each():
    records = two_sittings()
    for made in records:
        made["provenance"]["sitting"] = "one"
    _, page = tables_of(records)
    assert lines(page)[2][6:8] == ["one m1: gain", "one m2: gain"]
    for made in records:
        made["provenance"]["sitting"] = None
    assert "unknown on m1, unknown on m2" in tables_of(records)[1]


def test_both_files_are_written(tmp_path):
    folder = furnish(tmp_path / "study", two_sittings())
    stem = tmp_path / "out" / "sittings"
    arguments = ["--runs", str(folder / "runs.parquet"), "--output", str(stem)]
    assert sittings.main(arguments) == 0
    written = pd.read_csv(stem.with_name("sittings.csv"))
    assert list(written.columns) == sittings.COLUMNS and len(written) == 4
    cells = sittings.measured(load(read_runs(folder / "runs.parquet")).with_references)
    page = sittings.markdown(sittings.table(cells), sittings.in_time(cells))
    assert stem.with_name("sittings.md").read_text(encoding="utf-8") == page
