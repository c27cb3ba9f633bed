"""The pages around a study's numbers: why they can be believed, environment, texts, captions."""

import json
import re
from html import unescape

import pandas as pd
import pytest

from analysis import flags
from analysis.figures import NAMES, captions
from analysis.web import belief, environment, explain, readable
from analysis.web.explain import READABLE
from tests import test_faults as drills
from tests.records import merged, record, telemetry
from tests.studies import furnish
from tests.studio import REPOSITORY

ALONE, PAIR = "1x_small_b8", "2x_small_b8"
CURVE, OTHER = [7.0, 6.0, 5.0], [7.0, 7.0, 7.0]


def twins(ratios):
    """A/A pairs: naive and its twin, one replicate per ratio."""
    found = []
    for block, ratio in enumerate(ratios, 1):
        found.append(record(ALONE, replicate=block, rates=[100.0], losses=[CURVE]))
        found.append(record(PAIR, replicate=block, rates=[60.0, 60.0], losses=[CURVE] * 2))
        twin = {"replicate": block, "losses": [CURVE] * 2}
        found.append(record(PAIR, "naive_again", rates=[60.0 * ratio] * 2, **twin))
    return found


def page(folder, records, **bench):
    """The belief page's text, with what make bench measured."""
    furnish(folder, records)
    for name, content in bench.items():
        (folder / "bench").mkdir(exist_ok=True)
        (folder / "bench" / f"{name}.json").write_text(json.dumps(content))
    arguments = ["--runs", "runs.parquet", "--checks", "checks.json"]
    arguments += ["--evidence", "tables/evidence.csv", "--bench", "bench", "--output", "b.html"]
    paths = [a if a.startswith("--") else str(folder / a) for a in arguments]
    assert belief.main(paths) == 0
    text = re.sub(r"<style>.*?</style>", "", (folder / "b.html").read_text(), flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


def test_it_counts_what_the_records_say(tmp_path):
    records = twins([1.0, 1.02, 0.98])
    records += [
        record(PAIR, "mps", rates=[90.0, 90.0], losses=[CURVE, OTHER], flags=["throttled"]),
        record(PAIR, "mps_equal", rates=[80.0, 80.0], losses=[CURVE] * 2, verified=None),
        record("7x_small_b8", "mig", status="unsupported", reason="MIG mode is off"),
        record("3x_small_b8", rates=[30.0] * 3, digest="d2", losses=[CURVE] * 3),
    ]
    text = page(tmp_path, records)
    assert "In 11 of 12 cells measured, the method was proven in force" in text
    assert "21 of 22 members' losses agree" in text and ", 1 differ" in text
    assert "A/A: 1.000" in text and "no difference" in text and "hide differences of up to" in text
    assert "things that should be the same differ: digest" in text
    assert re.search(r"throttled ↓ GPU throttled by heat or hardware 1 list", text)
    assert "mig 0 0 0 0 1 MIG mode is off" in text
    assert "The data of images were generated (synthetic)." in text
    assert text.count("Not measured with this study") == 2  # sampler, SMACT


def test_a_twin_without_a_naive_cell_of_its_block_compares_nothing(tmp_path):
    twin = {"method": "naive_again", "rates": [60.0, 60.0]}
    text = page(tmp_path / "two", [record(PAIR, **twin, replicate=block) for block in (1, 2)])
    said = "measured, {} with a naive cell of its block on its GPU; nothing can be compared."
    assert text.count(f"A/A: 2 cells of naive_again were {said.format('none')}") == 2
    assert "no A/A pair" not in text
    text = page(
        tmp_path / "one", [record(PAIR, **twin), record(PAIR, rates=[6.0] * 2, replicate=2)]
    )
    assert f"A/A: 1 cell of naive_again was {said.format('not')}" in text


def test_cells_that_begin_a_sitting_are_counted_apart(tmp_path):
    text = page(tmp_path, [record(ALONE), record(f"{ALONE}--anchor")])
    assert "In 2 of 2 cells measured (1 of them at the start of a sitting), the method" in text


def test_why_a_loss_cannot_be_told_is_counted(tmp_path):
    """Losses of one run alone are compared, too: what is near them agrees."""
    records = [
        record(ALONE, rates=[100.0], losses=[CURVE]),
        record(PAIR, rates=[60.0, 60.0], losses=[CURVE, OTHER]),
        record("2x_other_b8", rates=[60.0, 60.0], losses=[CURVE] * 2),
        record("1x_silent_b8", rates=[60.0], losses=[[]]),
    ]
    text = page(tmp_path, records)
    assert "1 of 6 members' losses agree" in text and "5 cannot be told" in text
    assert "With one run alone, what is within 2 % of it agrees" in text
    _, _, why = text.partition("Cannot be told: ")
    assert why.startswith(
        "there is no other run alone to compare with, or none that agrees with another (3); "
        "more than 2 % from the only run alone to compare with, and one does not tell how far two "
        "may be apart (1); no loss was recorded (1)."
    )
    assert "fewer than two" not in text


@pytest.mark.parametrize(("limited", "said"), [(1, "1 of these with fewer"), (2, "all of these")])
def test_losses_that_differ_under_a_limit_of_sms_are_told(tmp_path, limited, said):
    own = [record(ALONE, replicate=b, rates=[100.0], losses=[CURVE]) for b in (1, 2)]
    for i in range(2):
        limits = {"sm_percent": 10} if i < limited else {}
        own.append(record(ALONE, f"mps_{i}", rates=[90.0], losses=[OTHER], limits=limits))
    assert f"2 differ ({said}" in page(tmp_path, own)


def test_without_a_loss_that_cannot_be_told_no_reason_is_given(tmp_path):
    assert "Cannot be told:" not in page(tmp_path, twins([1.0, 1.01]))


def test_a_cell_that_ran_out_of_memory_is_counted_apart(tmp_path):
    """One that ended before the window did; of others the witnesses' word counts."""
    seen, untold = {"verified": True}, {"verified": None}
    ended = {"status": "out_of_memory", "rates": [None, 1.0]}
    records = [
        record(PAIR, "mps", rates=[90.0, 90.0]),
        record(PAIR, "mps", 2, **ended, verified=True, evidence={"barrier": seen, "end": seen}),
        record(PAIR, "mps", 3, **ended, verified=None),
        record(PAIR, "mps", 4, **ended, verified=None, evidence={"barrier": seen, "fault": untold}),
        record(PAIR, "mps", 5, **ended, verified=None, evidence={"barrier": seen, "end": untold}),
        record(PAIR, "mps", 6, **ended, verified=False, evidence={"fault": {"verified": False}}),
        record(PAIR, "mps", 7, **ended, verified=None, evidence={"barrier": untold}),
    ]
    text = page(tmp_path, records)
    assert "In 2 of 7 cells measured, the method was proven in force" in text
    assert "; 2 ran out of memory before it could be." in text
    assert "measured proven not proven out of memory first" in text
    assert " mps 7 2 3 2 nothing was witnessed" in text


def test_a_study_whose_other_cells_ran_out_of_memory_is_proven(tmp_path):
    cells = [record(ALONE), record(PAIR, status="out_of_memory", rates=[None] * 2, verified=None)]
    furnish(tmp_path, cells)
    runs, checks = merged(*cells), json.loads((tmp_path / "checks.json").read_text())
    evidence = tmp_path / "tables" / "evidence.csv"
    evidence = pd.read_csv(evidence, dtype=str, keep_default_na=False)
    sentence, good = belief.summary(runs, checks, evidence)[0]
    assert sentence.startswith("In 1 of 2 cells measured") and good
    assert not belief.summary(runs, checks, evidence.iloc[1:])[0][1]  # nothing was proven


def test_what_a_bench_measured_stands_on_it(tmp_path):
    cost = {"loss_percent": 0.123, "low": -0.05, "high": 0.3, "pairs": 20, "cpu": 0.012}
    cost |= {"readings_per_s": 10.0, "within": True}
    sampler = {"device": {"name": "Test GPU"}, "workloads": {"small": {"costs": {"ours": cost}}}}
    smact = {"device": {"name": "Test GPU"}}
    smact["readings"] = [{"busy_sms": 33, "sm_count": 132, "smact": 0.2512}]
    text = page(tmp_path, twins([1.0]), sampler=sampler, smact=smact)
    assert "small our sampler 0.123 -0.050 to 0.300 20 0.0120 10.0 Test GPU" in text
    assert "33 of 132 0.2500 0.2512 Test GPU" in text
    assert "one replicate, no interval" in text
    assert "Not measured with this study" not in text


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record(ALONE)],
        [record(PAIR, status="out_of_memory", rates=[None, None], telemetry=telemetry())],
        [record(ALONE, losses=[[float("inf")] * 3])],
    ],
)
def test_poor_studies_give_a_page(tmp_path, records):
    text = page(tmp_path, records)
    assert "A/A was not measured with this study" in text
    assert all(flag.replace("_", " ") in text for flag in flags.KNOWN)


def test_the_lies_on_it_are_those_that_tests_tell():
    work = {kind for told in drills.WORK.values() for kind in re.findall(r"\d:(\w+)", told)}
    assert set(belief.LIES) == {*drills.LIES, *work}
    assert set(belief.FAULTS) == set(drills.FAULTS)


def test_environment_counts_cells_and_differences_name_both_sides():
    first = merged(record(ALONE, rates=[1.0]), record(PAIR, rates=[1.0, 1.0], source="real"))
    second = merged(record(ALONE, rates=[1.0], gpu_name="Other GPU", digest="d2"))
    found = environment.values(first)
    assert found["GPU or CPU"] == {"Test GPU": 2} and found["window (s)"] == {"10": 2}
    assert found["data"] == {"images: generated (synthetic)": 1, "images: real": 1}
    assert environment.differences(first, first) == []
    assert environment.differences(first, second) == [
        ("GPU or CPU", "Test GPU", "Other GPU"),
        ("trainer digest", "d1", "d2"),
        ("data", "images: generated (synthetic), images: real", "images: generated (synthetic)"),
    ]
    assert "Nothing was measured." in environment.markdown(first.iloc[:0])


def test_texts_become_pages_that_show_and_run_nothing():
    text = readable.page("# Claims & more\n\n| a | b |\n|---|---|\n| 1 | <script>x</script> |\n")
    assert "<title>Claims &amp; more</title>" in text and "<td>1</td>" in text
    assert "<script" not in text and "default-src 'none'" in text
    assert "<title>Results</title>" in readable.page("")


def test_all_is_explained_in_one_command(tmp_path):
    furnish(tmp_path, twins([1.0]))
    for name in explain.TEXTS:
        if not (tmp_path / name).exists():
            (tmp_path / name).write_text(f"# {name}\n")
    assert explain.main(["--folder", str(tmp_path)]) == 0
    assert all((tmp_path / name).stat().st_size for name in explain.FILES)


def test_captions_are_the_figures_own():
    """make captions"""
    folder = REPOSITORY / "workflow" / "report" / "figures"
    written = {path.stem: path.read_text() for path in folder.glob("*.rst")}
    assert written == captions.captions()
    assert set(written) == set(NAMES)


def test_every_page_of_the_report_has_a_caption():
    there = {path.stem for path in (REPOSITORY / "workflow" / "report").glob("*.rst")}
    assert there == {*READABLE, "belief", "explorer", "runs", "workflow"}
