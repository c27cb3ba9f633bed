"""Figures: what they show are the estimates; without data there is no picture."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pandas as pd
import pytest

from analysis import estimates as table
from analysis.__main__ import main as analysis
from analysis.figures import INDEX, registered, style
from analysis.figures.sharing import predicted
from tests.handmade import Estimate, rows_of, written
from tests.simulator import Design, Job
from tests.test_pages import cpu

SMALL_JOB, LARGE_JOB = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
MIX = f"1x_{LARGE_JOB}+2x_{SMALL_JOB}"
JOBS = [
    Job(SMALL_JOB, 2500, 0.2, arms={"paper_step": 1.0, "graph": 3.6}),
    Job(LARGE_JOB, 600, 0.8, {"naive": 0.92, "mps": 1.3, "mig": 1.1}, memory=9.0),
]
ALL = {
    "gain_against_slowdown",
    "gaps_and_overlap",
    "memory",
    "mixes",
    "mps_over_separate",
    "rate_against_n",
    "repeatability",
    "reported_against_measured",
    "where_to_share",
}


def a_study(**changes) -> list:
    design = {"counts": (2, 3, 7), "mixes": (MIX,), "methods": ("naive", "mps", "mig")}
    found = rows_of(Design(JOBS, **design | {"hosts": 2, "blocks": 3} | changes))
    for n, gain in ((2, 1.9), (7, 3.0)):
        at = {"scenario": f"{n}x_{SMALL_JOB}", "arm": "paper_step", "method": "naive"}
        found.append(Estimate("stp", **at, source="SUIT25", value=gain, n=1))
    return found


STUDIES = {
    "whole": (a_study(), ALL),
    "one machine, once": (a_study(hosts=1, blocks=1), ALL - {"repeatability"}),
    "no mixes": (a_study(mixes=()), ALL - {"mixes"}),
    "CPU": (
        cpu(a_study(hosts=1, methods=("naive",))),
        ALL - {"gaps_and_overlap", "memory", "mps_over_separate", "where_to_share"},
    ),
    "nothing": ([], set()),
}


@pytest.fixture(scope="module", params=STUDIES)
def drawn(request, tmp_path_factory) -> tuple[Path, set[str]]:
    """A study's folder with its figures, and which there must be."""
    found, expected = STUDIES[request.param]
    folder = tmp_path_factory.mktemp("figures")
    written(folder, found)
    (folder / "figures").mkdir()
    for ending in ("csv", "png", "pdf", "svg"):  # of an earlier run, which had more data
        (folder / f"figures/memory.{ending}").write_text("old")
    assert analysis(["figures", "--folder", str(folder)]) == 0
    return folder, expected


def index(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / INDEX).open(encoding="utf-8", newline="") as file:
        return {row["figure"]: row for row in csv.DictReader(file)}


def test_a_figure_with_data_is_drawn_and_one_without_is_not(drawn):
    folder, expected = drawn
    listed = index(folder)
    assert listed.keys() == ALL == registered().keys()
    assert {name for name, row in listed.items() if row["title"]} == expected
    for ending in ("csv", "png", "pdf", "svg"):
        there = {path.stem for path in (folder / "figures").glob(f"*.{ending}")} - {"index"}
        assert there == expected


def test_titles_are_short_and_every_figure_has_a_caption(drawn):
    for row in index(drawn[0]).values():
        assert len(row["title"].split()) <= 12 and row["caption"].endswith((".", ")"))


def test_every_number_drawn_is_the_estimate_of_its_id(drawn):
    folder, expected = drawn
    found = table.read(folder / "estimates.parquet") if expected else None
    for name in expected:
        for row in pd.read_csv(folder / f"figures/{name}.csv").itertuples():
            e = table.at(found, row.id)
            for column in ("value", "low", "high"):
                ours, theirs = getattr(e, column), getattr(row, column)
                assert ours == pytest.approx(theirs, nan_ok=True), (name, row.id)


def test_all_text_is_legible_inside_the_picture(tmp_path):
    written(tmp_path, STUDIES["whole"][0])
    found = table.read(tmp_path / "estimates.parquet")
    with style.context():
        for name, (caption, function) in registered().items():
            drawing = function(found)
            style.save(drawing.figure, drawing.title, caption, [tmp_path / f"{name}.png"])
            box = drawing.figure.bbox.padded(1)
            names = [text for _, text in getattr(drawing.figure, "names", [])]
            for text in [*drawing.figure.texts, *names]:
                extent = text.get_window_extent(drawing.figure.canvas.get_renderer())
                assert text.get_fontsize() >= style.SMALL == 7
                assert box.x0 <= extent.x0 and extent.x1 <= box.x1, (name, text.get_text())
                assert box.y0 <= extent.y0 and extent.y1 <= box.y1, (name, text.get_text())


def test_the_same_data_give_the_same_bytes(tmp_path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        written(folder, STUDIES["no mixes"][0])
        assert analysis(["figures", "--folder", str(folder)]) == 0
    for path in (tmp_path / "a/figures").iterdir():
        assert path.read_bytes() == (tmp_path / "b/figures" / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("n", "activity", "gain"), [(7, 0.01, 7), (2, 0.05, 2), (7, 0.55, 0.91 / 0.55), (7, 1, 0.91)]
)
def test_the_predicted_gain_is_the_count_or_what_the_sms_leave(n, activity, gain):
    assert math.isclose(predicted(n, activity), gain, rel_tol=0.01)
