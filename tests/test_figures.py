"""Figures: their data are the estimates, their drawings come from the data alone."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.text import Text

from analysis.__main__ import main as analysis
from analysis.estimates import schema
from analysis.estimates.schema import Estimate, described
from analysis.estimates.table import Estimates
from analysis.figures import APPENDIX, NAMES
from analysis.figures.choose import WAYS, Study
from analysis.figures.command import SHEETS, write
from analysis.figures.draw import SMALL, WIDTH, apart, draw
from analysis.figures.sheet import COLUMNS, Sheet
from tests.old_estimates import build
from tests.simulator import Design, Job, Noise, simulate
from tests.test_pages import cpu

ROOT = Path(__file__).parent.parent
ALL = (*NAMES, *APPENDIX)
SMALL_JOB, LARGE_JOB = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
MIX = f"1x_{LARGE_JOB}+2x_{SMALL_JOB}"
LEFT = (f"{MIX}--departure", f"3x_{LARGE_JOB}+1x_{SMALL_JOB}--departure")


def number(quantity: str, value: float, hosts: int = 2, **where: object) -> Estimate:
    """An estimate with the range over two hosts, the interval of one, or of one replicate."""
    spread = {0: "none", 1: "interval", 2: "range"}[hosts]
    ends = {} if spread == "none" else {"low": value * 0.9, "high": value * 1.1}
    n = {0: 1, 1: 4, 2: 5}[hosts]
    where = {"scenario": "", "arm": "paper_step"} | where
    return described(
        Estimate(quantity, value=value, spread=spread, n=n, hosts=max(hosts, 1), **ends, **where)
    )


JOBS = [Job(SMALL_JOB, 2500, 0.2, arms={"paper_step": 1.0, "graph": 3.6})]
JOBS.append(Job(LARGE_JOB, 600, 0.8, {"naive": 0.92, "mps": 1.3, "mig": 1.1}, memory=9.0))
QUIET = Noise(0, 0, 0, 0, 0, 0, 0)
OFF = {"unsupported": "MIG mode is off; switch it on"}


def a_study(hosts: int = 2, blocks: int = 3, **changes) -> list[Estimate]:
    """A study with two jobs, two ways of writing, a mix, a departure, reported values."""
    ends = {(f"7x_{job.name}", "mig"): "unsupported" for job in JOBS}
    design = {"counts": (2, 3, 7), "mixes": (MIX, LEFT[0]), "ends": ends}
    design |= {"methods": ("naive", "mps", "mig"), "hosts": hosts, "blocks": blocks} | changes
    study = simulate(Design(JOBS, **design), 1)
    found = [replace(e, note=OFF.get(e.status, e.note)) for e in build(study.rows, study.plan, {})]
    for n, gain, seconds in ((1, 1.0, 21.0), (2, 1.9, 22.0), (7, 3.0, 50.0)):
        at = {"scenario": f"{n}x_{SMALL_JOB}", "method": "naive", "source": "SUIT25", "hosts": 0}
        found += [number("stp", gain, **at), number("epoch_time", seconds, **at)]
    return found


TURNS = {"turns": [(f"{n}x_{SMALL_JOB}", "alone-naive-mps") for n in (3, 7)], "turn_cells": 3}
STUDIES = {
    "turns": a_study(blocks=1, **TURNS),
    "two hosts": a_study(),
    "one host": a_study(hosts=1),
    "one replicate": a_study(hosts=1, blocks=1, mixes=(MIX, *LEFT)),
    "CPU": cpu(a_study(hosts=1, blocks=1, methods=("naive",), ends={})),
    "empty": [],
}


@pytest.fixture(params=STUDIES)
def study(request) -> Study:
    return Study(Estimates(STUDIES[request.param]), request.param)


def read_back(sheet: Sheet, folder: Path) -> Sheet:
    path = folder / "figure.csv"
    path.write_text(sheet.csv(), encoding="utf-8")
    return Sheet.read(path)


@pytest.mark.parametrize("name", ALL)
def test_every_number_is_the_estimate_of_its_id(study, name, tmp_path):
    for row in read_back(SHEETS[name](study), tmp_path).rows:
        if row["id"] and row["note"] in study.t[row["id"]].cells:
            e = study.t[row["id"]]
            (cell,) = (r for r in e.replicates if r.cell == row["note"])
            assert (row["value"], row["low"], row["high"], row["n"]) == (cell.value, None, None, 1)
        elif row["id"]:
            e = study.t[row["id"]]
            assert (row["value"], row["low"], row["high"]) == (e.value, e.low, e.high)
            assert (row["spread"], row["n"]) == (e.spread, e.n)
        if row["x_id"]:
            e = study.t[row["x_id"]]
            assert (row["x"], row["x_low"], row["x_high"]) == (e.value, e.low, e.high)
        if row["kind"] == "point":
            assert row["x"] is not None
            assert row["id"] or (row["x"], row["value"]) == (1, 1)  # one job alone


def test_every_title_says_that_a_cpu_gives_no_results(study, tmp_path):
    schema.write(study.t, tmp_path / "estimates.parquet")
    write(tmp_path)
    for name in ALL:
        (title,) = Sheet.read(tmp_path / f"figures/{name}.csv").of("title")
        assert ("on a CPU, no result" in title["label"]) == (study.name == "CPU"), name


def test_mps_is_drawn_over_plain_by_the_job_alone_of_the_same_cell():
    t = Estimates(STUDIES["turns"])
    sheet = SHEETS["mps_against_host"](Study(t, "turns"))
    gain = t.get("rate_over_naive", scenario=f"7x_{SMALL_JOB}", arm="paper_step", method="mps")
    alone = t.get("rate", scenario=f"1x_{SMALL_JOB}", arm="paper_step", method="naive")
    rates = {r.cell: r.value for r in alone.replicates}
    drawn = {row["note"]: row["x"] for row in sheet.of("point") if row["id"] == gain.id}
    assert len(drawn) == 6 and drawn == {cell: rates[cell] for cell in gain.cells}
    assert [*drawn.values()] == sorted(drawn.values())


def test_hosts_that_drew_no_sign_are_not_named_beside_mps_over_plain():
    found = STUDIES["turns"]
    hosts = [e for e in found if e.quantity == "count" and e.name == "host_cells"]
    elsewhere = replace(hosts[0], host="h9")
    (said,) = SHEETS["mps_against_host"](Study(Estimates([*found, elsewhere]), "s")).of("subtitle")
    assert [e.host in said["label"] for e in (*hosts, elsewhere)] == [True, True, False]


@pytest.mark.parametrize(("name", "lacks"), [("activity", "gract"), ("gaps_and_overlap", "s"),
                                            ("memory", "memory"), ("epoch_time", "")])  # fmt: skip
def test_nothing_to_draw_has_the_reason_that_is_true(name, lacks):
    """Sets as graphs only, or no such number at all."""
    graph = [e for e in a_study() if e.jobs < 2 or e.arm == "graph"]
    (said,) = SHEETS[name](Study(Estimates(graph), "s")).of("subtitle")
    assert "in paper style" in said["label"] and "read" not in said["label"]
    if lacks:  # of sets; of one job alone it is known
        unread = [e for e in a_study() if e.quantity != lacks or e.jobs < 2]
        (said,) = SHEETS[name](Study(Estimates(unread), "s")).of("subtitle")
        assert "read" in said["label"] and "in paper style" not in said["label"]


@pytest.mark.parametrize(("methods", "only"), [(("naive", "mps"), True), ((*WAYS,), False)])
def test_only_under_mps_is_said_where_no_other_method_wins_by_overlap(methods, only):
    """MIG does here."""
    found = a_study(methods=methods, ends={}, noise=QUIET)
    (title,) = SHEETS["gaps_and_overlap"](Study(Estimates(found), "s")).of("title")
    assert "overlapping kernels up to" in title["label"]
    assert ("only under MPS" in title["label"]) is only


def texts_of(figure) -> list:
    """Every text that is drawn: names of ticks beyond an axis's ends are not."""
    beyond = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks() + axis.get_minor_ticks()
            beyond |= {tick.label1 for tick in ticks if not low <= tick.get_loc() <= high}
    found = figure.findobj(Text)
    return [t for t in found if t.get_visible() and t.get_text().strip() and t not in beyond]


@pytest.mark.parametrize("of", ["two hosts", "one replicate", "CPU", "turns"])
@pytest.mark.parametrize("name", ALL)
def test_texts_are_legible_and_inside_and_names_of_lines_do_not_overlap(of, name, tmp_path):
    figure = draw(read_back(SHEETS[name](Study(Estimates(STUDIES[of]), of)), tmp_path))
    box = figure.bbox.padded(1)
    assert figure.get_size_inches()[0] == WIDTH
    for text in texts_of(figure):
        extent = Text.get_window_extent(text)
        assert text.get_fontsize() >= SMALL == 7
        assert box.x0 <= extent.x0 and extent.x1 <= box.x1, text.get_text()
        assert box.y0 <= extent.y0 and extent.y1 <= box.y1, text.get_text()
    lines = [text.get_window_extent() for text in figure.texts]
    for place, line in enumerate(lines):
        assert not line.count_overlaps(lines[place + 1 :])
        assert not line.count_overlaps([axes.bbox for axes in figure.axes])
    for axes in figure.axes:
        boxes = [Text.get_window_extent(text).padded(-1.5) for text in axes.texts]
        for place, one in enumerate(boxes):
            assert not one.count_overlaps(boxes[place + 1 :]), axes.texts[place].get_text()


STROKES = "Solid: MPS; dash-dotted: MIG; SMACT: SMs with a warp, DRAMA: memory moving; "
PROSE = "Signs: means; bars: lowest to highest machine. Not measured: MIG (MIG mode is off). "


@pytest.mark.parametrize(
    ("kind", "text"), [("title", PROSE), ("subtitle", STROKES), ("footer", PROSE)]
)
def test_long_sentences_are_broken_before_the_edge(kind, text):
    sheet = SHEETS["activity"](Study(Estimates([]), "s"))
    sheet.text(kind, 6 * text)
    figure = draw(sheet)
    extents = [text.get_window_extent() for text in texts_of(figure)]
    assert len(extents) > 1 and max(extent.x1 for extent in extents) <= figure.bbox.x1


def said(name: str, estimates: list[Estimate], kind: str = "title") -> str:
    """The words of a kind in this figure of these numbers."""
    rows = SHEETS[name](Study(Estimates(estimates), "s")).of(kind)
    return " ".join(row["label"] for row in rows)


def test_titles_state_what_the_data_show():
    found = a_study(hosts=1, noise=QUIET)
    assert "every job's epoch is shorter under MPS" in said("epoch_time", found)
    slower = [replace(e, low=0.95) if e.quantity == "rate_over_naive" else e for e in found]
    assert "shorter" not in said("epoch_time", slower)
    assert "7 × ResNet26 b32 under MPS do 7.00 times" in said("gain_against_slowdown", found)
    gaps = said("gaps_and_overlap", found)
    assert "filling" in gaps and "up to 5.00 times, overlapping kernels up to 1.40" in gaps
    assert "gains" not in said("gaps_and_overlap", STUDIES["CPU"])


def test_what_is_not_there_is_a_sentence():
    nothing = said("activity", STUDIES["CPU"], "subtitle")
    assert "Nothing to draw: this study has no readings of a GPU" in nothing
    turns = [e for e in STUDIES["two hosts"] if e.quantity != "memory"]
    assert all(
        "sets took turns" in said(n, turns, "subtitle") for n in ("memory", "where_to_share")
    )
    both = [replace(e, design="alternate" if "mps" in e.id else "blocks") for e in turns]
    mixed = [e for e in ALL if "took turns in one cell, others" in said(e, both, "footer")]
    assert {"gain_against_slowdown", "gaps_and_overlap"} <= {*mixed}
    assert "took turns in one cell, others" not in said(mixed[0], turns, "footer")
    assert all("Nothing to draw" in said(name, [], "subtitle") for name in ALL)
    footer = said("epoch_time", STUDIES["two hosts"], "footer")
    assert "Not measured: MIG (MIG mode is off)." in footer and "generated data" in footer
    assert "bars: lowest to highest machine" in footer and "sharing a GPU" not in footer
    footer = said("epoch_time", STUDIES["CPU"], "footer")
    assert "hollow: one replicate" in footer and "says nothing about sharing a GPU" in footer
    footer = said("gaps_and_overlap", STUDIES["one host"], "footer")
    assert "bars of one host: 95 % interval" in footer


def test_sets_under_mps_begin_at_the_plain_job_alone_and_other_ways_are_points():
    """Seven ways of one job; only one was measured in sets, and no job alone under MPS."""
    at = {"scenario": f"1x_{SMALL_JOB}", "method": "naive", "hosts": 0}
    ways = ("paper_step", "eager", "bf16", "graph", "compile")
    found = [number("rate", 100.0 * n, **at, arm=arm) for n, arm in enumerate(ways, 1)]
    found.append(number("rate", 900.0, arm="compile", scenario=f"7x_{SMALL_JOB}", method="mps"))
    sheet = SHEETS["rate_against_n"](Study(Estimates(found), "arms"))
    drawn = {}
    for row in sheet.of("point"):
        drawn.setdefault(row["series"], []).append((row["x"], row["value"]))
    lines = {name: places for name, places in drawn.items() if len(places) > 1}
    assert list(lines.values()) == [[(1, 500.0), (7, 900.0)]] and len(drawn) == len(ways)


def test_each_job_that_was_written_in_several_ways_has_a_panel_and_the_largest_gain_the_title():
    found, gains = [], {"a_b1": 1.1, "b_b1": 1.3, "c_b1": 1.9, "d_b1": 1.2, "e_b1": 1.0}
    for job, gain in gains.items():
        one, seven = f"1x_{job}", {"scenario": f"7x_{job}", "method": "mps"}
        for arm, rate in (("graph", 10.0), ("compile", 20.0)):
            found.append(number("rate", rate, scenario=one, method="naive", arm=arm))
            found.append(number("rate", gain * rate, arm=arm, **seven))
        found.append(number("over_fastest", gain, arm="compile", **seven))
        found.append(number("fastest_rate", 20.0, scenario=one, method="naive", arm="compile"))
    sheet = SHEETS["rate_against_n"](Study(Estimates(found), "arms"))
    panels = [row["panel"] for row in sheet.of("panel")]
    assert panels[0] == "c_b1" and sorted(set(panels)) == sorted(gains)
    (title,) = (row["label"] for row in sheet.of("title"))
    assert "1.90 times" in title


@pytest.mark.parametrize("jobs", [3, 20])
def test_of_many_jobs_only_those_measured_in_sets_are_named(jobs):
    found = [e for e in a_study() if LARGE_JOB not in e.scenario and e.arm == "paper_step"]
    for n in range(jobs):
        at = {"scenario": f"1x_resnet50_imagenet64_b{n}", "method": "naive"}
        found += [number(name, 0.3, **at) for name in ("smact", "memory", "rate")]
    sheet = SHEETS["where_to_share"](Study(Estimates(found), "many"))
    assert len(list(sheet.of("point"))) == (1 + jobs if jobs == 3 else 1)


def test_only_what_changed_is_written_anew(tmp_path):
    schema.write(STUDIES["two hosts"], tmp_path / "estimates.parquet")
    assert {path.stem for path in write(tmp_path)} == set(ALL)
    assert write(tmp_path) == []
    found = STUDIES["two hosts"]
    changed = [replace(e, value=e.value * 1.01) if e.quantity == "power" else e for e in found]
    schema.write(changed, tmp_path / "estimates.parquet")
    assert [path.stem for path in write(tmp_path)] == ["activity"]


def test_drawing_needs_the_csv_alone_and_repeats_to_the_byte(tmp_path):
    """Also in another process."""
    text = SHEETS["activity"](Study(Estimates(STUDIES["two hosts"]), "s")).csv()
    assert tuple(next(csv.reader(io.StringIO(text)))) == COLUMNS
    (tmp_path / "f.csv").write_text(text, encoding="utf-8")
    program = (
        "import sys; from analysis.__main__ import main; assert main(sys.argv[1:]) == 0; "
        "assert not {'pandas', 'pyarrow', 'scipy', 'torch'} & set(sys.modules)"
    )
    made = [[tmp_path / f"{run}{ending}" for ending in (".png", ".pdf", ".svg")] for run in "ab"]
    draws = ["draw", "--data", str(tmp_path / "f.csv"), "--output"]
    subprocess.run([sys.executable, "-c", program, *draws, *made[0]], cwd=ROOT, check=True)
    assert analysis([*draws, *map(str, made[1])]) == 0
    one, other = ([path.read_bytes() for path in paths] for paths in made)
    assert one == other


def test_names_are_known_without_drawing():
    program = (
        "import sys; from analysis.figures import NAMES, APPENDIX; "
        "assert not {'matplotlib', 'pandas', 'pyarrow', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    captions = (ROOT / "workflow" / "report" / "figures").glob("*.rst")
    assert [*ALL] == list(SHEETS) and {path.stem for path in captions} == set(SHEETS)


def test_no_csv_of_a_figure_is_told_in_one_line(tmp_path, capsys):
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n", encoding="utf-8")
    assert analysis(["draw", "--data", str(wrong), "--output", str(tmp_path / "x.png")]) == 1
    assert capsys.readouterr().err == f"{wrong}: not the data of a figure\n"
    assert analysis(["figures", "--folder", str(tmp_path)]) == 1


def test_places_apart():
    assert apart([0, 50, 100], 10, 0, 100) == [0, 50, 100]
    assert apart([50, 50, 50], 10, 0, 100) == [40, 50, 60]
    assert apart([99, 100], 10, 0, 100) == [90, 100]
    assert apart([], 10, 0, 100) == []
