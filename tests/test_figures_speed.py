"""What makes drawing quick changes nothing that is drawn."""

import matplotlib.pyplot as plt
import pytest

from analysis import style
from analysis.explorer import __main__ as explorer
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
    assert list(line.get_ydata()) == [3.0, 4.0, 5.0, 60.0]
    assert line.get_xdata()[0] < 1.0 < line.get_xdata()[1] < line.get_xdata()[2] < 2.0
    assert axes.get_ylim()[1] > 60.0
    assert not axes.get_legend_handles_labels()[0]


def test_limits_that_were_set_stay(axes):
    axes.set_ylim(0, 10)
    for at in (1.0, 2.0):
        marks.replicates(axes, at, 0.5, [3.0, 60.0])
    assert axes.get_ylim() == (0, 10)


def test_a_pdfs_fonts_hold_no_tables_of_layout(axes, tmp_path):
    axes.set_title("AV fi")
    written = tmp_path / "drawn.pdf"
    axes.figure.savefig(written, metadata={"CreationDate": None})
    assert b"DejaVuSans" in written.read_bytes()
    assert {"GSUB", "GPOS"} <= set(style.subset.Options().drop_tables)


def test_the_explorers_library_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    monkeypatch.setattr(
        explorer.vl_convert, "javascript_bundle", lambda **_: made.append(1) or "vega"
    )
    assert [explorer.bundle(), explorer.bundle()] == ["vega", "vega"] and made == [1]
    (tmp_path / "file").touch()  # a folder where nothing can be written
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert explorer.bundle() == "vega" and len(made) == 2


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
