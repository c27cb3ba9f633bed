"""What makes drawing quick changes nothing that is drawn."""

import math
import re
import subprocess
import sys

import matplotlib.pyplot as plt
import pytest
from matplotlib.patches import Rectangle
from PIL import Image

from analysis import style
from analysis.explorer import kept
from analysis.figures import marks
from bench import figures as bench
from workflow.collocation import record
from workflow.collocation.plan import expand
from workflow.collocation.settings import load_study, load_workloads
from workflow.collocation.study import CONFIG


@pytest.fixture
def axes():
    _, ax = plt.subplots()
    yield ax
    plt.close("all")


def test_replicates_of_many_bars_are_one_line_with_all_points_in_its_limits(axes):
    marks.replicates(axes, 1.0, 0.5, [3.0, 4.0])
    marks.replicates(axes, 2.0, 0.5, [5.0, 60.0])
    (line,) = axes.lines
    x, y = line.get_xdata(), line.get_ydata()
    assert [*y[:2], *y[3:]] == [3.0, 4.0, 5.0, 60.0] and math.isnan(y[2])
    assert x[0] < 1.0 < x[1] < x[3] < 2.0 < x[4]
    assert axes.get_ylim()[1] > 60.0
    assert not axes.get_legend_handles_labels()[0]


def test_what_looks_alike_is_one_artist_and_other_looks_are_others(axes):
    for x in (1.0, 3.0):
        marks.box(axes, (x, 2.0), 1.0, 7.0, fc="white")
        marks.label(axes, (x, 2.0), "text", 0, 2.5)
        for colour in ("black", "white"):
            marks.strokes(axes, [x, x + 1], [3.0, 3.0], color=colour)
    (boxes,) = axes.patches
    corners = boxes.get_path().vertices.reshape(2, 5, 2)
    assert corners.max(axis=1).tolist() == [[2, 9], [4, 9]]
    assert [line.get_color() for line in axes.lines] == ["black", "white"]
    assert len({id(text.get_transform()) for text in axes.texts}) == 1
    assert axes.get_xlim()[0] < 1 and axes.get_xlim()[1] > 4 and axes.get_ylim()[1] > 9


def test_limits_that_were_set_stay(axes):
    axes.set_ylim(0, 10)
    for at in (1.0, 2.0):
        marks.replicates(axes, at, 0.5, [3.0, 60.0])
    assert axes.get_ylim() == (0, 10)


def test_the_png_is_the_page_in_its_colours(axes, tmp_path):
    figure = axes.figure
    figure.set_size_inches(3, 2)
    marks.box(axes, (0, 0), 1, 1, fc="red")
    figure.text(0.5, 0.95, "letters have edges of many greys", rotation=3)
    figure.add_artist(Rectangle((0, 0), 0.05, 0.05, fc="#F4F4F4"))
    style.save(figure, tmp_path / "x", "")
    with Image.open(tmp_path / "x.png") as image:
        pixels = image.convert("RGB")
    assert pixels.size == (480, 320)
    assert pixels.getpixel((0, 0)) == (255, 255, 255)
    assert pixels.getpixel((240, 160)) == (255, 0, 0)
    assert pixels.getpixel((5, 315)) == (244, 244, 244)  # a faint grey is no white


def test_the_svg_brings_its_fonts_and_keeps_its_spaces(axes, tmp_path):
    axes.set_title("a  resnet26", fontweight="bold")
    style.save(axes.figure, tmp_path / "x", "")
    written = (tmp_path / "x.svg").read_text()
    assert 'xml:space="preserve"' in written and ">a  resnet26</text>" in written
    faces = re.findall(r"font-family:'([^']+)';font-weight:(\w+);src:url\(data:font/ttf", written)
    assert faces == [("DejaVu Sans Lean", "normal"), ("DejaVu Sans Lean", "bold")]


def test_pages_do_not_wait_for_matplotlib():
    code = "import sys, analysis.pages, analysis.explorer.__main__, analysis.web.belief;"
    code += "assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_pdf_embeds_the_lean_fonts_and_no_letter_is_missing(axes, tmp_path, recwarn):
    axes.set_title("N ≥ 7× ± 95 %", fontweight="bold")
    axes.set_xlabel("Ω → time (µs) – ×10⁻³ é €")
    style.save(axes.figure, tmp_path / "x", "")
    written = (tmp_path / "x.pdf").read_bytes()
    embedded = set(re.findall(rb"\+(DejaVu[\w-]+)", written))
    assert b"/FontFile2" in written and embedded == {b"DejaVuSansLean", b"DejaVuSansLean-Bold"}
    assert not [each for each in recwarn if "missing from font" in str(each.message)]


def test_what_the_explorer_needs_for_every_study_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    monkeypatch.setattr(kept, "_bundle", lambda: made.append("vega") or "vega")
    monkeypatch.setattr(kept, "_made", lambda: made.append("charts") or "{}")
    assert [kept.library(), kept.library()] == ["vega", "vega"] and made == ["vega"]
    assert [kept.charts(), kept.charts()] == [{}, {}] and made == ["vega", "charts"]
    (tmp_path / "file").touch()  # a folder where nothing can be written
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept.library() == "vega" and len(made) == 3


def test_a_page_that_is_kept_waits_for_no_altair():
    code = "import sys, analysis.explorer.__main__; assert 'altair' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_bench_makes_a_study_that_is_read_and_changes_one_cell(tmp_path, monkeypatch):
    seen = []

    def draw(folder, study, cores):
        found = record.scan(folder / study / "cells")
        seen.append({a.path: a.content["cell"]["attempt"] for of in found.values() for a in of})
        return [("all", 1.0, 1.0)]

    monkeypatch.setattr(bench, "draw", draw)
    assert bench.main(["--study", "smoke", "--again", "/mps/", "--keep", str(tmp_path)]) == 0
    fresh, nothing, changed = seen
    workloads = load_workloads(CONFIG / "workloads.yaml")
    planned = expand(load_study(CONFIG / "studies", "smoke", workloads), workloads)
    assert fresh == nothing and len(fresh) == len(planned)
    [new] = set(changed) - set(fresh)
    assert "/mps/" in str(new) and changed[new] == 2
