"""Figures: what they show are the estimates; without data there is no picture."""

import csv
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from analysis import labels
from analysis.estimates import table
from analysis.estimates.records.flags import ABOVE_COUNT, POWER_CAPPED
from analysis.estimates.table import INTERVAL
from analysis.report.figures import figures, select, style
from analysis.report.pages import FIGURES, layout, tables
from collocate.app import main as collocate
from paper import figures as paper_figures
from paper.gract_lines import line_estimates
from tests.handmade import Estimate, frame, rows_of, written
from tests.simulator import Design, Job
from tests.unit.test_pages import cpu

SMALL_JOB, LARGE_JOB = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
MIX = f"1x_{LARGE_JOB}+2x_{SMALL_JOB}"
JOBS = [
    Job(SMALL_JOB, 2500, 0.2, implementations={"paper_step": 1.0, "graph": 3.6}),
    Job(LARGE_JOB, 600, 0.8, {"naive": 0.92, "mps": 1.3, "mig": 1.1}, memory=9.0),
]
PAPER = [("stp", 2, "naive", 1.9), ("stp", 7, "naive", 3.0), ("gract", 1, "naive", 0.43)]
PAPER += [("stp", 2, "mps", 2.0), ("stp", 7, "mps", 5.0)]
ALL = {"gain_against_slowdown", "gaps_and_overlap", "mixes", "mps_over_separate"}
ALL |= {"rate_against_n", "repeatability", "gain_against_gract", "where_to_share"}
ALL |= {"serving"}


def a_study(**changes) -> list:
    design = {"counts": (2, 3, 7), "mixes": (MIX,), "methods": ("naive", "mps", "mig")}
    found = rows_of(Design(JOBS, **design | {"hosts": 4, "replicates": 2} | changes))
    for quantity, n, method, value in PAPER:
        at = {"scenario": f"{n}x_{SMALL_JOB}", "implementation": "paper_step", "method": method}
        found.append(Estimate(quantity, **at, source="LEC22", n=1, value=value))
    found += [Estimate(**row) for row in line_estimates(frame(found))]
    for job in ("serve_2", "serve_6", "serve_12", "serve_24"):
        found += a_server(job, "mps", (1.05, 1.1, 1.15), (0.77, 0.8, 0.83))
    return found


def a_server(job, method, latency, rate, answered=1.0) -> list:
    """Beside training by this method: its p99 per token (alone 1 ms) and training's samples/s
    (alone 1), with intervals; and what share of the requests it answered.
    """
    at = {"scenario": f"1x_{job}+1x_lm_b8", "implementation": "bf16", "method": method, "n": 1}

    def told(quantity, job, low, value, high):
        ends = {"low": low, "high": high, "spread": INTERVAL}
        return Estimate(quantity, **at, job=job, value=value, **ends)

    alone = {"scenario": f"1x_{job}", "implementation": "bf16", "method": "naive", "n": 1}
    return [
        told("p99_tpot_ms", job, *latency),
        told("p95_e2el_ms", job, *latency),
        told("job_rate", "lm_b8", *rate),
        Estimate("answered_share", **at, job=job, value=answered),
        Estimate("answered_share", **alone, value=1.0),
        Estimate("p99_tpot_ms", **alone, value=1.0),
    ]


def test_a_server_is_named_where_its_interval_is_within_the_bound_and_it_answers(tmp_path):
    """Not the best value: one whose interval reaches further, nor one that leaves a queue."""
    trained = {"scenario": "1x_lm_b8", "implementation": "bf16", "method": "naive", "n": 1}
    trained = Estimate("rate", **trained, value=1.0)
    good = a_server("serve_6", "mps", (1.05, 1.1, 1.15), (0.4, 0.5, 0.6))
    wide = a_server("serve_12", "mps", (0.8, 1.1, 1.5), (0.8, 0.9, 1.0))
    queue = a_server("serve_24", "mps", (1.0, 1.0, 1.1), (0.8, 0.9, 1.0), answered=0.9)
    for rows, named in (([*good, *wide, *queue], True), ([*wide, *queue], False)):
        with style.context():
            drawing = figures()["serving"](frame([trained, *rows]))
        assert ("6 requests/s, MPS" in drawing.title and "40 %" in drawing.title) == named
        assert ("%" in drawing.title) == named and len(drawing.title.split()) <= 12
        marks = [line for line in drawing.figure.axes[0].lines if line.get_marker() != "None"]
        answered = [line.get_color() != style.PALE for line in marks]
        assert answered == [row.full for row in drawing.data.itertuples()]
        assert list(drawing.data["job"][~drawing.data["full"]]) == ["serve_24"]


def test_ways_of_writing_a_server_have_a_panel_each():
    rows = a_server("serve_6", "mps", (1.05, 1.1, 1.15), (0.4, 0.5, 0.6))
    rows += a_server("serve_12", "mps", (1.15, 1.2, 1.25), (0.4, 0.5, 0.6))
    compiled = [replace(row, implementation="compile") for row in rows[:6]]
    with style.context():
        drawing = figures()["serving"](frame([*rows, *compiled]))
    panels = [axes.get_title(loc="left") for axes in drawing.figure.axes]
    assert panels == ["LM b8, bf16", "LM b8, bf16, compiled"]
    page = tables.served(frame([*rows, *compiled]))
    assert set(page["written"]) == {"bf16", "bf16, compiled"}
    assert "written" not in tables.served(frame(rows))


@pytest.mark.parametrize(("flag", "sign"), [("", False), (POWER_CAPPED, True)])
def test_a_gpu_at_its_power_limit_is_told_in_the_figure_and_in_the_table(flag, sign):
    rows = a_server("serve_6", "mps", (1.05, 1.1, 1.15), (0.4, 0.5, 0.6))
    rows = frame([replace(row, flags=flag) for row in rows])
    with style.context():
        drawing = figures()["serving"](rows)
    [mark] = [line for line in drawing.figure.axes[0].lines if line.get_marker() != "None"]
    assert (mark.get_markerfacecolor() == "white") == sign
    written = layout.markdown(tables.served(rows))
    assert ("1.10 [1.05, 1.15]‖" in written) == ("power limit" in written) == sign


def test_medians_in_the_title_are_of_what_is_drawn():
    with style.context():
        drawing = figures()["repeatability"](frame(a_study()))
    is_single = drawing.data["jobs"] == 1
    for rows, name in ((is_single, "alone"), (~is_single, "together")):
        assert f"{100 * drawing.data['value'][rows].median():.1f} % {name}" in drawing.title


@pytest.mark.parametrize("name", figures(paper_figures))
def test_a_colour_means_a_method_in_every_figure(name):
    methods = {labels.colour(method): method for method in style.METHODS}
    with style.context():
        drawing = figures(paper_figures)[name](frame(a_study()))
    used = {line.get_color() for axes in drawing.figure.axes for line in axes.lines}
    assert used - methods.keys() <= {style.INK, style.PALE}
    assert {methods[colour] for colour in used & methods.keys()} <= set(drawing.data["method"])


@pytest.mark.parametrize("gains", [1.9, 2.1])
def test_a_title_says_of_a_gain_above_the_number_of_jobs_that_one_alone_ran_slow(gains):
    at = {"scenario": "2x_asr_b240", "implementation": "bf16", "method": "mps", "n": 1, "hosts": 1}
    told = {"stp": gains, "slowdown_worst": 2 / gains, "rate": 10 * gains}
    marks = {"flags": ABOVE_COUNT if gains > 2 else ""}  # as analysis.estimates.build marks it
    rows = [Estimate(name, **at, **marks, value=value) for name, value in told.items()]
    alone = {**at, "scenario": "1x_asr_b240", "method": "naive", "value": 0.3}
    rows += [Estimate(name, **alone) for name in ("smact", "gract")]
    rows = frame(rows)
    for name in ("gain_against_slowdown", "rate_against_n", "where_to_share"):
        with style.context():
            title = figures()[name](rows).title
        assert ("ran slow" in title) == (gains > 2) and len(title.split()) <= 12


def test_a_job_alone_or_sets_with_limits_on_more_hosts_hide_no_set():
    at = {"implementation": "bf16", "value": 1.0, "n": 1}
    rows = [Estimate("rate", "1x_asr_b240", method="naive", hosts=5, **at)]
    rows += [Estimate("rate", f"{n}x_asr_b240", method="mps", hosts=hosts, **at)
             for n, hosts in ((2, 2), (3, 4), (7, 1))]  # fmt: skip
    assert [*select.copies(frame(rows), "rate")["jobs"]] == [1, 2, 3]
    rows.append(Estimate("rate", "7x_asr_b240", method="mps_1g", hosts=5, **at))
    assert [*select.copies(frame(rows), "rate")["jobs"]] == [1, 2, 3, 7]  # the last: mps_1g


STUDIES = {
    "whole": (a_study(), ALL),
    "one machine, once": (
        a_study(hosts=1, replicates=1, mixes=()),
        ALL - {"repeatability", "mixes", "gain_against_gract"},
    ),
    "CPU": (
        cpu(a_study(hosts=1, methods=("naive",))),
        {"gain_against_slowdown", "mixes", "rate_against_n", "repeatability", "serving"},
    ),
    "nothing": ([], set()),
}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Draws a study by the command, once; gives its folder."""

    @cache
    def draw(name: str):
        folder = tmp_path_factory.mktemp("drawn")
        written(folder, STUDIES[name][0])
        (folder / "figures").mkdir()
        for ending in ("csv", "png", "pdf", "svg"):  # of an earlier run, which had more data
            (folder / f"figures/mixes.{ending}").write_text("old")
        data_only = [] if name == "whole" else ["--data-only"]
        assert collocate(["step", "figures", "--paper", "--folder", str(folder), *data_only]) == 0
        return folder

    return draw


@pytest.mark.parametrize("name", STUDIES)
def test_figures_with_data_are_drawn_and_show_the_estimates(name, drawn):
    (_, expected), folder = STUDIES[name], drawn(name)
    with (folder / FIGURES).open(encoding="utf-8", newline="") as file:
        listed = {row["figure"]: row for row in csv.DictReader(file)}
    assert listed.keys() == ALL == figures(paper_figures).keys()
    assert {name for name, row in listed.items() if row["title"]} == expected
    for ending in ("csv", "png", "pdf", "svg") if name == "whole" else ("csv",):
        there = {path.stem for path in (folder / "figures").glob(f"*.{ending}")} - {"index"}
        assert there == expected
    for row in listed.values():
        assert len(row["title"].split()) <= 12 and row["caption"].endswith((".", ")"))
    found = table.read_estimates(folder / "estimates.parquet") if expected else None
    for name in expected:
        for row in pd.read_csv(folder / f"figures/{name}.csv").itertuples():
            e = table.get_by_id(found, row.id)
            for column in ("value", "low", "high"):
                ours, theirs = getattr(e, column), getattr(row, column)
                assert ours == pytest.approx(theirs, nan_ok=True), (name, row.id)


def xy(axes) -> list[tuple[float, float]]:
    """Where marks are in a panel."""
    marked = (line for line in axes.lines if line.get_marker() not in ("None", ""))
    return [tuple(point) for line in marked for point in line.get_xydata()]


MARKS = {  # figure → columns of where its marks are; no y: one below the other
    "gain_against_slowdown": ("value_beside", "value"),
    "where_to_share": ("smact", "value"),
    "gain_against_gract": ("gract", "value"),
    "mps_over_separate": ("value", None),
    "gaps_and_overlap": ("value", None),
    "repeatability": ("value", None),
    "serving": ("value", "y"),
}


@pytest.mark.parametrize("name", figures(paper_figures))
def test_marks_are_where_the_data_are_text_is_legible_and_the_same_data_give_the_same_bytes(
    name, drawn, tmp_path
):
    folder, function = drawn("whole"), figures(paper_figures)[name]
    with style.context():
        drawing = function(table.read_estimates(folder / "estimates.parquet"))
        style.save(drawing.figure, drawing.title, function.caption, [tmp_path / "again.pdf"])
        box = drawing.figure.bbox.padded(1)
        names = [text for _, text in getattr(drawing.figure, "point_names", [])]
        for text in [*drawing.figure.texts, *names]:
            extent = text.get_window_extent(drawing.figure.canvas.get_renderer())
            assert text.get_fontsize() >= style.SMALL == 7
            assert box.x0 <= extent.x0 and extent.x1 <= box.x1, text.get_text()
            assert box.y0 <= extent.y0 and extent.y1 <= box.y1, text.get_text()
    assert (tmp_path / "again.pdf").read_bytes() == (folder / f"figures/{name}.pdf").read_bytes()
    x, y = MARKS.get(name, (None, None))
    marks = [mark for axes in drawing.figure.axes for mark in xy(axes)]
    places = drawing.data[y] if y else range(len(drawing.data))
    for point in zip(drawing.data[x], places, strict=True) if x else ():
        assert any(point == pytest.approx(mark) for mark in marks), (point, marks)
