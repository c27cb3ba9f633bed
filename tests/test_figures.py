"""Figures: their data are the estimates, their drawings come from the data alone."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.text import Text

from analysis.__main__ import main as analysis
from analysis.estimates import schema
from analysis.estimates.schema import Estimate, described
from analysis.estimates.table import Estimates
from analysis.figures import APPENDIX, NAMES
from analysis.figures.choose import Study
from analysis.figures.command import SHEETS, write
from analysis.figures.draw import SMALL, WIDTH, apart, draw
from analysis.figures.sheet import COLUMNS, Sheet

ROOT = Path(__file__).parent.parent
ALL = (*NAMES, *APPENDIX)
SMALL_JOB, LARGE_JOB = "resnet26_cifar10_b32", "resnet152_imagenet_b32"
MIX = f"1x_{LARGE_JOB}+2x_{SMALL_JOB}"


def number(quantity: str, value: float, hosts: int = 2, **where: object) -> Estimate:
    """An estimate with the range over two hosts, the interval of one, or of one replicate."""
    spread = {0: "none", 1: "interval", 2: "range"}[hosts]
    ends = {} if spread == "none" else {"low": value * 0.9, "high": value * 1.1}
    n = {0: 1, 1: 4, 2: 5}[hosts]
    where = {"scenario": "", "arm": "paper_step"} | where
    return described(
        Estimate(quantity, value=value, spread=spread, n=n, hosts=max(hosts, 1), **ends, **where)
    )


def sets_of(job: str, arm: str, rate: float, busy: float, hosts: int, gpu: bool):
    """A job alone and sets of 2, 3, 7 under two methods: MPS gains more."""
    for n in (1, 2, 3, 7):
        for method, gain in (("naive", min(n, 1 / busy)), ("mps", min(n, 1.4 / busy))):
            gain = max(gain, 0.8) if n > 1 else 1.0
            at = {"scenario": f"{n}x_{job}", "arm": arm, "method": method, "hosts": hosts}
            yield number("rate", rate * gain, **at)
            yield number("stp", gain, **at)
            yield number("slowdown_worst", n / gain * 1.05, **at)
            yield number("epoch_time", 50_000 / rate * n / gain, **at)
            yield number("over_fastest", gain, **at)
            yield number("rate_cv", 0.05 / n, **at)
            yield number("outcome", 5.0, **at | {"hosts": 0}, status="completed")
            if method == "mps":
                yield number("rate_over_naive", 1.3, **at)
            if gpu:
                shares = {"gract": 1 if n > 1 else busy, "smact": busy * 0.7, "drama": busy / 3}
                for name, share in shares.items():
                    yield number(name, min(share, 0.995) / 1.1, **at)
                yield number("s", gain * busy, **at)
                yield number("gaps", 1 / busy, **at)
                yield number("memory", 2.0 * n, **at)
                yield number("capacity", 80.0, **at)
                yield number("power", 200.0 + 30 * n, **at)


def a_study(hosts: int = 2) -> list[Estimate]:
    """A study with two jobs, two ways of writing, a mix, a departure, reported values."""
    found = [*sets_of(SMALL_JOB, "paper_step", 2500, 0.2, hosts, True)]
    found += sets_of(LARGE_JOB, "paper_step", 600, 0.8, hosts, True)
    found += sets_of(SMALL_JOB, "graph", 9000, 0.95, 0, True)
    for job, arm, rate in ((SMALL_JOB, "graph", 9000), (LARGE_JOB, "paper_step", 600)):
        at = {"scenario": f"1x_{job}", "arm": arm, "method": "naive", "hosts": hosts}
        found.append(number("fastest_rate", rate, **at))
    for method, factor in (("naive", 1.4), ("mps", 1.1)):
        at = {"scenario": MIX, "method": method, "hosts": hosts}
        found.append(number("stp", 3 / factor, **at))
        found += [number("slowdown", factor, **at, job=job) for job in (SMALL_JOB, LARGE_JOB)]
        found.append(number("outcome", 5.0, **at | {"hosts": 0}, status="completed"))
        gone = {"scenario": f"{MIX}--departure", "method": method, "window": "after"}
        found.append(number("reclaimed", 1.02, hosts, **gone))
    for n, gain, seconds in ((1, 1.0, 21.0), (2, 1.9, 22.0), (7, 3.0, 50.0)):
        at = {"scenario": f"{n}x_{SMALL_JOB}", "method": "naive", "source": "SUIT25", "hosts": 0}
        found += [number("stp", gain, **at), number("epoch_time", seconds, **at)]
    off = {"status": "unsupported", "note": "MIG mode is off; switch it on", "hosts": 0}
    found.append(number("outcome", 0.0, scenario=f"7x_{SMALL_JOB}", method="mig", **off))
    return [*found, *counted("NVIDIA H200", 2)]


def small_study() -> list[Estimate]:
    """On a CPU: two tiny jobs, one replicate of most, no reading of a GPU, MPS unsupported."""
    found = []
    for job in ("tiny_resnet_digits_b8", "tiny_mlp_digits_b8"):
        for n, gain in ((1, 1.0), (2, 1.3)):
            at = {"scenario": f"{n}x_{job}", "method": "naive", "hosts": 0}
            found += [number("rate", 100 * gain, **at), number("stp", gain, **at)]
            found += [number("epoch_time", 9 / gain, **at)]
            found += [number("slowdown_worst", n / gain, **at)]
            found += [number("outcome", 1.0, **at, status="completed")]
    off = {"status": "unsupported", "note": "no NVIDIA GPU here", "hosts": 0}
    found.append(number("outcome", 0.0, scenario=f"2x_{job}", method="mps", **off))
    found.append(Estimate("count", name="software_gpu_none", value=4.0, note="GPU none"))
    return [*found, *counted("some CPU", 1)]


def counted(hardware: str, hosts: int) -> list[Estimate]:
    found = [Estimate("count", name="hosts", value=float(hosts))]
    note = "cifar10: generated (synthetic)"
    found.append(Estimate("count", name="data_cifar10__generated", value=9.0, note=note))
    return found + [
        Estimate("count", name="host_cells", host=f"h{i}", value=9.0, note=f"m{i}: {hardware}; v1")
        for i in range(1, hosts + 1)
    ]


STUDIES = {
    "two hosts": a_study(),
    "one host": a_study(hosts=1),
    "one replicate": a_study(hosts=0),
    "CPU": small_study(),
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
        if row["id"]:
            e = study.t[row["id"]]
            assert (row["value"], row["low"], row["high"]) == (e.value, e.low, e.high)
            assert (row["spread"], row["n"]) == (e.spread, e.n)
        if row["x_id"]:
            e = study.t[row["x_id"]]
            assert (row["x"], row["x_low"], row["x_high"]) == (e.value, e.low, e.high)
        if row["kind"] == "point":
            assert row["x"] is not None
            assert row["id"] or (row["x"], row["value"]) == (1, 1)  # one job alone


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


@pytest.mark.parametrize("of", ["two hosts", "one replicate", "CPU"])
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


def said(name: str, estimates: list[Estimate], kind: str = "title") -> str:
    """The words of a kind in this figure of these numbers."""
    rows = SHEETS[name](Study(Estimates(estimates), "s")).of(kind)
    return " ".join(row["label"] for row in rows)


def test_titles_state_what_the_data_show():
    found = STUDIES["two hosts"]
    assert "every job's epoch is shorter under MPS" in said("epoch_time", found)
    slower = [
        described(Estimate(**{**vars(e), "low": 0.95})) if e.quantity == "rate_over_naive" else e
        for e in found
    ]
    assert "shorter" not in said("epoch_time", slower)
    assert "7 × ResNet26 b32 under MPS do 7.00 times" in said("gain_against_slowdown", found)
    gaps = said("gaps_and_overlap", found)
    assert "filling" in gaps and "up to 5.00 times, overlapping kernels up to 1.40" in gaps
    assert "gains" not in said("gaps_and_overlap", STUDIES["CPU"])


def test_what_is_not_there_is_a_sentence():
    nothing = said("activity", STUDIES["CPU"], "subtitle")
    assert "Nothing to draw: this study has no readings of a GPU" in nothing
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


@pytest.mark.parametrize("jobs", [3, 20])
def test_of_many_jobs_only_those_measured_in_sets_are_named(jobs):
    found = [*sets_of(SMALL_JOB, "paper_step", 2500, 0.2, 2, True)]
    for n in range(jobs):
        at = {"scenario": f"1x_resnet50_imagenet64_b{n}", "method": "naive"}
        found += [number(name, 0.3, **at) for name in ("smact", "memory", "rate")]
    sheet = SHEETS["where_to_share"](Study(Estimates(found), "many"))
    assert len(list(sheet.of("point"))) == (1 + jobs if jobs == 3 else 1)


def test_only_what_changed_is_written_anew(tmp_path):
    schema.write(STUDIES["two hosts"], tmp_path / "estimates.parquet")
    assert {path.stem for path in write(tmp_path)} == set(ALL)
    assert write(tmp_path) == []
    changed = [
        described(Estimate(**{**vars(e), "value": e.value * 1.01})) if e.quantity == "power" else e
        for e in STUDIES["two hosts"]
    ]
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
