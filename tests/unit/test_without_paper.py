"""A study that is not held against the paper: nothing of its pages, tables and figures names it."""

import re

import pytest

from collocate.app import main as collocate
from tests.handmade import rows_of, written
from tests.simulator import BUSY_GAINS, Design, Job
from tests.studio import REPOSITORY

MIX = "1x_thin_b32+1x_thick_b8"
DESIGN = Design(
    [
        Job("thin_b32", implementations={"paper_step": 1.0, "graph": 3.0}),
        Job("thick_b8", 500, 0.97, BUSY_GAINS),
    ],
    mixes=(MIX, f"{MIX}--completion", f"{MIX}--departure"),
    hosts=2,
    replicates=3,
)
# The ids of an implementation and a quantity, the title of the first, and a colour of style sheets.
NAMES = r"paper_step|alone_over_paper|paper style|--paper\b"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A simulated study's folder, with all that is made of its estimates."""
    folder = written(tmp_path_factory.mktemp("results") / "simulated", rows_of(DESIGN))
    explorer = ["explorer", "--output", str(folder / "explorer.html")]
    for step in (["figures", "--data-only"], ["pages"], explorer):
        assert collocate(["step", *step, "--folder", str(folder)]) == 0
    return folder


def test_no_page_table_or_figure_names_the_paper(folder):
    paths = [path for path in folder.rglob("*.*") if path.suffix in (".md", ".html", ".csv")]
    paths.remove(folder / "estimates.csv")  # its texts are those of analysis/estimates
    assert {path.suffix for path in paths} == {".md", ".html", ".csv"} and len(paths) > 15
    for path in paths:
        text = re.sub(NAMES, "", path.read_text("utf-8"))
        named = re.findall(r".{,40}(?:paper|claim|SUIT25|LEC22).{,40}", text, re.I)
        assert not named, (path.name, named)


def test_the_smoke_study_is_not_held_against_the_paper():
    assert "paper:" not in (REPOSITORY / "config/studies/smoke.yaml").read_text("utf-8")
