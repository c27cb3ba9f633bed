"""Pages and tables: their numbers are the estimates; they are made of any study."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from analysis import labels
from analysis.advice.study import NUMBERS, MeasuredOption
from analysis.estimates import table
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.table import INTERVAL, RANGE
from analysis.report import pages
from analysis.report.pages import advice_tables, layout, spelling, tables
from analysis.report.pages.render import StudyPages
from collocate.app import main as collocate
from paper import PAGES
from paper.claims import claim_estimates
from paper.pages import PaperPages
from paper.rules import read_rules
from tests import handmade as numbers
from tests.handmade import Estimate, rows_of
from tests.simulator import BUSY_GAINS, Design, Job
from tests.studio import REPOSITORY

MIX = "1x_thin_b32+1x_thick_b8"
DESIGN = Design(
    [
        Job("thin_b32", implementations={"paper_step": 1.0, "graph": 3.0}),
        Job("thick_b8", 500, 0.97, BUSY_GAINS),
    ],
    methods=("naive", "mps", "mig"),
    mixes=(MIX, f"{MIX}--completion", f"{MIX}--departure"),
    hosts=2,
    replicates=3,
    ends={("7x_thick_b8", "mps"): "out_of_memory", ("7x_thin_b32", "mig"): "unsupported"},
    turns=(("7x_thin_b32", "alone-naive-mps-naive"), ("1x_thin_b32", "naive-mps-naive")),
)
NOTHING = [
    Estimate("count", name="cells", value=2.0),
    Estimate("count", name="cells_completed", value=0.0),
    Estimate("outcome", scenario="1x_thin_b32", implementation="paper_step", method="naive",
             value=0.0, n=2, status="not_run"),
]  # fmt: skip


def written(folder: Path, found: list[Estimate]) -> Path:
    """A study's folder with these numbers, and the verdicts on them."""
    verdicts = claim_estimates(read_rules(), numbers.frame(found))
    return numbers.written(folder, [*found, *verdicts])


def cpu(found: list[Estimate]) -> list[Estimate]:
    """Without what only a GPU tells."""
    unread = {"gract", "smact", "smocc", "tenso", "drama", "power", "s", "gaps", "memory"}
    unread |= {n for n in QUANTITIES if n.startswith(("energy", "gract", "capacity", "parts"))}
    gpu = ("software_gpu_simulated_gpu", "software_gpu_none")
    return [replace(e, name=gpu[1]) if e.name == gpu[0] else e for e in found
            if e.quantity not in unread]  # fmt: skip


@pytest.fixture(scope="module")
def simulated() -> list[Estimate]:
    return rows_of(DESIGN)


@pytest.fixture(scope="module", params=["gpu", "cpu", "nothing"])
def study(request, simulated, tmp_path_factory) -> Path:
    """The folder of a study, with its pages."""
    found = {"gpu": simulated, "cpu": cpu(simulated), "nothing": NOTHING}[request.param]
    folder = written(tmp_path_factory.mktemp("pages") / request.param, found)
    for command in (["figures", "--data-only"], ["pages"]):
        assert collocate(["step", *command, "--paper", "--folder", str(folder)]) == 0
    return folder


def test_all_files_are_written_and_begin_with_what_the_study_can_answer(study):
    made = {p.relative_to(study).as_posix() for p in study.rglob("*") if p.is_file()}
    figures = {name for name in made if name.startswith("figures/")}
    assert made - figures == {*pages.files(PAGES), "estimates.parquet", "estimates.csv"}
    said = {"nothing": "answers nothing", "cpu": "nothing about sharing a GPU",
            "gpu": "how fast these jobs train"}  # fmt: skip
    for page in PAGES:
        assert said[study.name] in (study / f"{page}.md").read_text("utf-8").splitlines()[2]


@pytest.mark.parametrize("name", pages.TABLES)
def test_values_of_a_table_are_those_of_the_ids_beside_them(study, name):
    found = table.read_estimates(study / "estimates.parquet")
    with (study / f"tables/{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert bool(rows) == (study.name != "nothing") or study.name == "cpu"
    for row in rows:
        estimates = [table.get_by_id(found, identity) for identity in row.pop("id").split()]
        known = {f"{number:.9g}" for e in estimates for number in (e.value, e.low, e.high)}
        given = {value for title, value in row.items() if value and f"{title} low" in row}
        assert given <= known
        for title in (title for title in row if row.get(f"{title} low")):
            ends = [float(row[f"{title}{end}"]) for end in (" low", "", " high")]
            assert ends == sorted(ends), title


SHOWN = {"samples/s": "rate", "STP": "stp", "slowest takes": "slowdown_worst", "GRACT": "gract"}


def test_columns_hold_what_they_are_called(simulated, tmp_path):
    study = PaperPages(written(tmp_path / "gpu", simulated))
    rows = tables.sets(study.estimates).itertuples(index=False)
    seven = next(r for r in rows if r[:4] == ("thin b32", "plain (TF32)", "7", "MPS"))
    at = {"scenario": "7x_thin_b32", "implementation": "paper_step", "method": "mps"}
    for title, cell in zip(tables.sets(study.estimates), seven, strict=True):
        if title in SHOWN:
            assert cell.estimate.id == table.identity(SHOWN[title], **at)


def test_the_table_of_advice_marks_what_is_advised_and_what_does_most():
    e = Estimate("stp", "2x_a_b1", "paper_step", "mps", value=1.5, n=1)
    row = next(numbers.frame([e]).itertuples(index=False, name="Row"))
    told = dict.fromkeys(NUMBERS) | {"stp": row}
    two, seven = (MeasuredOption("mps", n, told, 1.0, (), 2.0, 9.0) for n in (2, 7))
    of = {"job": "a_b1", "implementation": "paper_step", "options": (two, seven), "pareto": (two,)}
    of |= {"sets": (two, seven), "advised": two, "best": seven, "undecided": False}
    rows = advice_tables.all_options([SimpleNamespace(**of, any_bound=False)])
    assert list(rows["chosen"]) == ["advised", "most throughput"]
    rows = advice_tables.all_options([SimpleNamespace(**of, any_bound=True)])
    assert list(rows["chosen"]) == ["advised", "most throughput within the bounds"]


def test_a_page_shows_figures_that_are_drawn_and_names_the_others(study):
    text = (study / "results.md").read_text(encoding="utf-8")
    with (study / "figures/index.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if study.name != "nothing" and row["figure"] != "repeatability":
                shown = f"figures/{row['figure']}.png" in text
                named = f"{spelling.plain(row['figure'])}" in text.rpartition("not drawn")[2]
                assert shown == bool(row["title"]) and named != shown


def test_html_holds_the_page_and_asks_for_nothing(study):
    text = (study / "report/results.html").read_text(encoding="utf-8")
    assert "<h1>Results of study" in text and 'name="viewport"' in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    for link in re.findall('(?:src|href)="([^"]*)"', text):
        if "figures/" not in link:  # drawn by another command
            assert (study / "report" / link).exists(), link


def test_the_last_lines_begin_with_advice_and_are_few(study):
    lines = pages.closing(study).splitlines()
    assert 3 <= len(lines) <= 15 and "advice.md" in lines[-3]
    assert ("Run " in "".join(lines)) == (study.name == "gpu")
    assert lines[-2].endswith(f"collocate explain {study} ID")
    assert lines[-1].endswith(f"collocate seal {study}")
    assert pages.closing(study / "tables") == "", "none without estimates"


def test_the_best_set_does_most_samples_and_not_most_over_a_slow_job_alone(simulated, tmp_path):
    of = {
        "quantity": "stp",
        "scenario": "2x_thin_b32",
        "implementation": "paper_step",
        "method": "mps",
    }
    high = [replace(e, value=50.0) if of.items() <= vars(e).items() else e for e in simulated]
    folder = written(tmp_path / "high", high)
    rows = tables.gains(table.read_estimates(folder / "estimates.parquet"))
    best = {(row.job, row.written): row.run for row in rows.itertuples()}
    assert best["thin b32", "plain (TF32)"] == "7 under MPS"


@pytest.mark.parametrize(
    ("jobs", "low", "high", "shown"),
    [
        (7, None, None, "not shown"),
        (7, 0.998, 1.002, "yes"),
        (7, 0.998, 1.004, "not shown"),
        (7, 1.001, 1.002, "yes"),
        (7, 1.005, 1.007, "no"),
        (1, 0.98, 1.02, "yes"),
        (1, 0.96, 1.02, "not shown"),
    ],
)
def test_belief_says_yes_where_the_interval_excludes_a_difference(jobs, low, high, shown):
    of = {
        "implementation": "paper_step",
        "method": "naive",
        "hosts": 1,
        "value": 1.0,
        "low": low,
        "high": high,
    }
    of |= {"spread": "none" if low is None else INTERVAL, "n": 3, "host": "h1"}
    aa = Estimate("aa", scenario=f"{jobs}x_thin_b32", **of)
    (row,) = tables.agreement(numbers.frame([*NOTHING, aa])).itertuples(index=False)
    assert row[-1].partition(" (")[0] == shown


@pytest.mark.parametrize("checked", [True, False])
def test_belief_says_yes_to_equal_work_only_where_losses_were_compared(
    simulated, tmp_path, checked
):
    found = [e for e in simulated if checked or not e.name.startswith("losses_")]
    text = StudyPages(written(tmp_path / "work", found)).page("belief")
    (row,) = re.findall(r"^\| Each job did the same work.* \| (.*) \|$", text, re.M)
    assert row.strip() == ("yes" if checked else "not shown")


def test_sets_that_have_a_part_of_the_gpu_only_have_a_table_of_their_own():
    methods = ("naive", "mps", "mps_1g", "mig", "mig_2g", "streams")
    place = [
        {"scenario": "2x_thin_b32", "implementation": "paper_step", "method": m} for m in methods
    ]
    found = [Estimate("outcome", **at, value=1.0, n=1, status="completed") for at in place]
    found += [Estimate("rate", **at, value=float(100 * i)) for i, at in enumerate(place, 1)]
    found.append(Estimate("rate_over_mps", **place[2], value=1.5))
    shown = tables.limited(numbers.frame(found))
    assert [*shown["method"]] == ["MPS 1g", "MIG", "MIG 2g"]
    assert [cell.estimate.value for cell in shown["samples/s"]] == [300, 400, 500]
    over = [
        cell.estimate and cell.estimate.value for cell in shown["samples/s over MPS without limits"]
    ]
    assert over == [1.5, None, None]


def test_claims_of_which_a_study_planned_a_set_are_shown_and_the_others_named(tmp_path):
    sets = [Estimate("outcome", f"{n}x_resnet152_imagenet_b32", "paper_step", "mps", value=0.0,
                     n=1, status="not_run") for n in (1, 2)]  # fmt: skip
    text = PaperPages(written(tmp_path / "few", [*NOTHING, *sets])).page("claims")
    (others,) = re.findall(r"planned nothing that would test them: (.*)\.", text)
    shown = {"C1a", "C6b", "C6c", "C16a", "C16b"}
    for claim in read_rules().claims:
        if claim.untestable:
            assert f"- {claim.id}: {spelling.plain(claim.text)}" in text
            continue
        assert (claim.id in shown) != (claim.id in others.split(", ")), claim.id
        assert bool(re.findall(rf"^\| {claim.id}: ", text, re.M)) == (claim.id in shown)


def test_marks_say_what_a_reader_has_to_know_of_a_number():
    e = Estimate("stp", "2x_a_b1", "paper_step", "mps", value=2.5, n=1, flags="above_count")
    rows = numbers.frame(
        [e, replace(e, implementation="graph", flags="no_second_context")]
    ).itertuples(name="Row")
    text = layout.markdown(pd.DataFrame([{"STP": layout.Number(row)} for row in rows]))
    assert r"| 2.50\* |" in text and "| 2.50‡ |" in text
    assert text.count("the job alone ran slow") == 1 and text.count("no other process opened") == 1
    for flag, mark in (("stalled", "§"), ("halves_differ", "¶")):
        [row] = numbers.frame([replace(e, flags=flag)]).itertuples(name="Row")
        text = layout.markdown(pd.DataFrame([{"STP": layout.Number(row)}]))
        assert f"| 2.50{mark} |" in text and f"{mark} a job made" in text


@pytest.mark.parametrize(
    ("spell", "value", "text"),
    [
        (spelling.num, 57_912.0, "57.9k samples/s"),
        (spelling.span, 57_912.0, "57.9k (57.9k to 57.9k)"),
        (spelling.bare, 1.638, "1.64"),
        (spelling.millis, 0.25, "250"),
        (spelling.share, 0.065, "6 %"),
        (spelling.percent, 0.065, "6.5 % (6.5 to 6.5 %)"),
        (spelling.how_many, 1.0, "3 replicates on 2 hosts"),
        (spelling.num, None, "–"),
    ],
)
def test_how_numbers_are_spelt(spell, value, text):
    e = Estimate("rate", value=value, low=value, high=value, spread=RANGE, n=3, hosts=2)
    assert spell(next(numbers.frame([e]).itertuples(name="Row"))) == text


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("efficientnetv2_s_imagenet64_b128", "EfficientNetV2-S b128"),
        ("resnet26_cifar10_b128_roomy", "ResNet26 b128, roomy"),
        ("my_convnext_cifar10_b64", "my convnext b64"),
    ],
)
def test_what_a_job_is_called(workload, name):
    assert labels.job(workload) == name
    assert labels.job(workload, "graph") == f"{name}, bf16 + CUDA graph"


def test_every_page_of_the_report_has_a_caption():
    captions = {path.stem for path in (REPOSITORY / "workflow/report").glob("*.rst")}
    assert captions >= {*PAGES, "figure", "explorer", "estimates", "runs", "workflow"}


def test_beside_our_number_of_a_mix_stands_the_papers():
    of = {"quantity": "saving", "implementation": "paper_step", "method": "mps", "n": 1}
    ours = Estimate(scenario=f"{MIX}--completion", window="completion", value=0.1, **of)
    theirs = Estimate(scenario=MIX, source="ABSE", value=0.3, **of)
    first = tables.pair(numbers.frame([ours, theirs])).iloc[0]
    assert (first["ours"].estimate.value, first["the paper"].estimate.value) == (0.1, 0.3)
