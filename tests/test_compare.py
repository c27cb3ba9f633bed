"""Two studies side by side: what differs comes first, nothing is averaged over the two."""

import math

import pandas as pd
import pytest

from analysis.cells import load
from analysis.compare import page as compare
from analysis.compare import side_by_side
from analysis.statistics import pooled_estimates
from tests.records import merged, record, telemetry
from tests.studies import furnish

ALONE, PAIR = "1x_small_b8", "2x_small_b8"


def study(alone, together, watts, **more):
    """A ladder of a replicate per entry: rates alone, rates of each of two under MPS."""
    found = []
    for block, (one, two) in enumerate(zip(alone, together, strict=True), 1):
        seen = {"telemetry": telemetry(watts, members=2)} if watts else {}
        found.append(record(ALONE, replicate=block, rates=[one], **seen, **more))
        found.append(record(PAIR, "mps", block, [two, two], **seen, **more))
    return found


A = study([100.0, 110.0], [90.0, 95.0], 200.0)
A += [record(PAIR, "mig", rates=[70.0, 70.0])]
B = study([200.0, 210.0], [120.0, 125.0], 400.0, gpu_name="Other GPU", gpu="GPU-2", digest="d2")
B += [record(PAIR, "mig", status="unsupported", gpu_name="Other GPU")]
B += [record("3x_small_b8", "mps", rates=[80.0] * 3, gpu_name="Other GPU", gpu="GPU-2")]


@pytest.fixture(scope="module")
def rows():
    found = side_by_side.rows(load(merged(*A)), load(merged(*B)))
    return found.set_index(["quantity", "scenario", "method"])


def test_each_study_keeps_its_own_mean_and_interval(rows):
    gain = rows.loc["gain", PAIR, "mps"]
    for side, ratios in (("a", [180 / 100, 190 / 110]), ("b", [240 / 200, 250 / 210])):
        wanted = pooled_estimates({PAIR: dict(enumerate(ratios))})[PAIR]
        assert gain[side] == pytest.approx(wanted.mean)
        assert gain[f"{side}_low"] == pytest.approx(wanted.low, rel=1e-3)
        assert gain[f"{side}_n"] == 2
    assert gain["ratio"] == pytest.approx(gain["b"] / gain["a"])
    alone = rows.loc["alone", ALONE, "naive"]
    assert alone["a"] == pytest.approx(math.sqrt(100 * 110)) and alone["unit"] == "samples/s"
    energy = rows.loc["energy", PAIR, "mps"]
    assert energy["a"] == pytest.approx(math.sqrt(200 / 180 * 200 / 190))


def test_cells_of_one_study_and_cells_without_a_result_are_told(rows):
    mig = rows.loc["gain", PAIR, "mig"]
    assert (mig["a_n"], mig["b_n"], mig["b_status"]) == (1, 0, "unsupported")
    assert math.isnan(mig["b"]) and math.isnan(mig["ratio"])
    assert rows.loc["gain", "3x_small_b8", "mps"]["a_status"] == "not planned"


def test_the_command_says_what_differs_first(tmp_path, capsys):
    for name, records in (("a", A), ("b", B)):
        furnish(tmp_path / name, records)
    command = [str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "c")]
    assert compare.main(command) == 0
    said, page = capsys.readouterr().out.splitlines()
    assert said.startswith("in both studies: 3 sets of jobs under a method; what differs: ")
    assert "trainer digest" in said and page.endswith("comparison.md")
    page = (tmp_path / "c" / "comparison.md").read_text()
    assert page.index("Test GPU") < page.index("trainer digest") < page.index("## Throughput gain")
    assert "- A: a, records, Test GPU\n- B: b, records, Other GPU" in page
    assert "1 of B" in page and "unsupported" in page
    drawn = pd.read_csv(tmp_path / "c" / "side_by_side_faithful.csv")
    assert set(drawn["method"]) == {"naive", "mps"} and drawn["a"].notna().all()
    assert (tmp_path / "c" / "side_by_side_faithful.png").stat().st_size > 10_000


def test_studies_without_a_cell_in_common_get_no_figure(tmp_path, capsys):
    furnish(tmp_path / "a", A)
    furnish(tmp_path / "b", [record("1x_large", rates=[1.0])])
    command = [str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "c")]
    assert compare.main(command) == 0
    assert "in both studies: 0 sets" in capsys.readouterr().out
    assert not list((tmp_path / "c").glob("*.png"))


@pytest.mark.parametrize("records", [[], [record(PAIR, status="out_of_memory", rates=[None, 5.0])]])
def test_poor_studies_give_a_sentence(tmp_path, records):
    furnish(tmp_path / "a", A)
    furnish(tmp_path / "b", records)
    command = [str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "c")]
    assert compare.main(command) == 0
    assert "nothing measured" in (tmp_path / "c" / "comparison.md").read_text()


def test_a_folder_without_a_study_is_refused_in_a_line(tmp_path):
    with pytest.raises(SystemExit, match="is it in the folder of a merged study"):
        compare.main([str(tmp_path), str(tmp_path), "--output", str(tmp_path / "c")])
