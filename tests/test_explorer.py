"""The explorer: what it holds, and what a reader does with it in a browser, offline."""

import csv
import io
import json
import re
import shutil
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from analysis import pages as texts
from analysis.explorer import __main__ as explorer
from analysis.explorer import points, timelines
from analysis.figures import stem, stems
from analysis.records.schema import TELEMETRY
from analysis.statistics import pooled_estimates
from analysis.web import explain
from tests.browser import Browser
from tests.records import merged, record, telemetry
from tests.studies import furnish
from tests.studio import REPOSITORY, study, workload

SMALL, LARGE = "resnet26_cifar10_b128", "resnet152_imagenet_b32"
ALONE, PAIR, MIG = f"1x_{SMALL}", f"2x_{SMALL}", f"2x_{SMALL}/faithful/mig/r1"
CLICKED = f"{PAIR}/faithful/mps/r1"


def records():
    """Two replicates of a ladder, a mix, cells without a result, and another arm."""
    seen = {"telemetry": telemetry(members=2)}
    found = [
        record(ALONE, rates=[1000.0], losses=[[7.0, 6.0, 5.0]], telemetry=telemetry()),
        record(ALONE, replicate=2, rates=[1100.0], flags=["cores_shared"]),
        record(PAIR, rates=[600.0, 620.0], **seen),
        record(PAIR, replicate=2, rates=[650.0, 640.0], **seen),
        record(PAIR, "mps", rates=[900.0, 910.0], **seen),
        record(PAIR, "mps", replicate=2, rates=[950.0, 960.0], **seen),
        record(PAIR, "mig", rates=[800.0, 800.0], **seen),
        record(f"7x_{SMALL}", "naive", status="out_of_memory", rates=[None] * 3 + [90.0] * 4),
        record(f"7x_{SMALL}", "mig", status="unsupported", reason="MIG mode is off"),
        record(f"1x_{LARGE}", rates=[50.0]),
        record(f"1x_{LARGE}+1x_{SMALL}", "mps", rates=[40.0, 500.0]),
        record(ALONE, arm="tuned", rates=[2000.0]),
        record(PAIR, "naive_again", rates=[610.0, 610.0]),
    ]
    found[3]["reason"] = None
    return found


NOT_RUN = {"scenario": f"7x_{SMALL}", "arm": "faithful", "method": "mps", "replicate": 1, "n": 7}
# A replicate that is missing where another is there.
LATER = {"scenario": f"2x_{SMALL}", "arm": "faithful", "method": "mps", "replicate": 9, "n": 2}


def readings(cell, entity="gpu", **columns):
    """Ten readings a second of a cell from -2 to 8 s; `columns` are constant, or None."""
    times = np.arange(-20, 80) / 10
    phases = np.where(times < 0, "warm", "window")
    rows = pd.DataFrame({"t": times, "phase": phases}).assign(cell=cell, attempt=1, entity=entity)
    return rows.assign(**columns).reindex(columns=TELEMETRY.names)


def write_telemetry(path, *frames):
    table = pa.Table.from_pandas(pd.concat(frames), schema=TELEMETRY, preserve_index=False)
    pq.write_table(table, path)
    return path


def build(folder, found, expected=(), seen=None):
    """The page of these records, and what it holds."""
    furnish(folder, found, expected)
    arguments = ["--runs", folder / "runs.parquet", "--expected", folder / "plan.json"]
    arguments += ["--reported", REPOSITORY / "config" / "reported.csv"]
    arguments += ["--telemetry", seen] if seen else []
    output = folder / "explorer.html"
    assert explorer.main([str(a) for a in [*arguments, "--output", output]]) == 0
    text = output.read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return output, json.loads(data[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explorer")
    seen = write_telemetry(
        folder / "telemetry.parquet",
        readings(CLICKED, gract=0.5, power=300.0, memory_used=10_000_000_000),
        readings(MIG, power=200.0),
        readings(MIG, "gi:1", smact=0.25),
        readings(MIG, "gi:2", smact=0.75),
        readings(f"{PAIR}/faithful/naive/r1", gract=np.nan, power=np.nan),
    )
    return build(folder, records(), [NOT_RUN, LATER], seen)


# -- what it holds -----------------------------------------------------------------------------


def rows_of(data, method, place, **more):
    wanted = {"method": method, "place": place, "workload": SMALL, "arm": "faithful"} | more
    return [row for row in data["rows"] if wanted.items() <= row.items()]


def test_it_holds_every_cell_with_its_values_and_where_they_come_from(made):
    data = made[1]
    first, second, later = rows_of(data, "mps", "2×")
    assert later["status"] == "not run"
    assert (first["id"], first["values"]["stp"]) == (CLICKED, pytest.approx(1.81))
    assert second["values"]["progress"] == pytest.approx([950 / 1100, 960 / 1100], rel=1e-5)
    assert first["values"]["samples_per_s"] == 1810 and first["values"]["power"] == 200
    assert first["values"]["gract"] == 50 and first["values"]["drama"] is None
    assert first["about"] == {
        "GPU": "Test GPU, GPU-1",
        "driver": "580.1",
        "data": "images: generated (synthetic)",
        "telemetry": "gpm",
        "torch": "2.11",
    }
    assert rows_of(data, "naive", "1×")[1]["flags"] == ["cores shared"]
    assert "naive_again" not in {row["method"] for row in data["rows"]}
    [mix] = [row for row in data["rows"] if "+" in row["workload"]]
    assert (mix["place"], mix["members"]) == ("1 + 1", [LARGE, SMALL])


def test_a_cell_without_a_result_says_why_and_shows_no_survivor(made):
    ended = {
        method: (row["status"], row["why"], row["values"]["stp"], row["values"]["progress"])
        for method in ("naive", "mig", "mps")
        for row in rows_of(made[1], method, "7×")
    }
    assert ended == {
        "naive": ("out of memory", "", None, []),
        "mig": ("unsupported", "MIG mode is off", None, []),
        "mps": ("not run", "", None, []),
    }


def test_estimates_are_those_of_the_statistics_or_medians(made):
    def estimate(metric, method, place="2×"):
        wanted = {"metric": metric, "method": method, "place": place, "workload": SMALL}
        [found] = [
            e for e in made[1]["estimates"] if (wanted | {"arm": "faithful"}).items() <= e.items()
        ]
        return found

    ratios = {
        "alone": [1.0, 1.0],
        "naive": [1220 / 1000, 1290 / 1100],
        "mps": [1810 / 1000, 1910 / 1100],
        "mig": [1.6],
        "mix": [40 / 50 + 500 / 1000],
    }
    blocks = {method: dict(enumerate(values, 1)) for method, values in ratios.items()}
    expected = pooled_estimates(blocks, {"alone"})
    for method in ("naive", "mps", "mig"):
        found, wanted = estimate("stp", method), expected[method]
        assert found["mean"] == pytest.approx(wanted.mean, rel=1e-5)
        assert found["low"] == (wanted.low and pytest.approx(wanted.low, rel=1e-5))
    assert estimate("stp", "naive", "1×")["low"] is None
    time = estimate("epoch_time_s", "naive")
    assert time["mean"] == pytest.approx(
        np.median([50_000 / r for r in (600, 620, 650, 640)]), rel=1e-5
    )
    assert time["low"] is None and time["replicates"] == 2


def test_the_papers_values_are_stamped_and_stand_at_our_places(made):
    reported = made[1]["reported"]
    assert {row["stamp"] for row in reported} == {"reported"}
    assert {"2×", "7×"} <= {row["place"] for row in reported if row["workload"] == SMALL}


def test_a_timeline_is_the_mean_of_equal_bins(made):
    found = made[1]["timelines"]
    assert set(found) == {CLICKED, MIG, f"{PAIR}/faithful/naive/r1"}
    line = found[CLICKED]
    assert line["phases"] == [["warm", -2.0, 0.0], ["window", 0.0, 7.9]]
    assert set(line["entities"]["gpu"]["gract"]) == {500}  # in steps of 0.1 %
    assert set(line["entities"]["gpu"]["memory_used"]) == {1000}  # in steps of 0.01 GB
    assert len(line["entities"]["gpu"]["power"]) == 100 and line["bin"] == pytest.approx(9.9 / 100)
    assert set(found[MIG]["entities"]) == {"gpu", "gi:1", "gi:2"}
    assert found[f"{PAIR}/faithful/naive/r1"]["entities"] == {}


def test_a_ramp_survives_the_reduction_and_a_gap_stays_a_gap():
    rows = readings("a")
    rows["power"] = np.where(np.arange(100) // 10 == 3, np.nan, np.arange(100.0))
    [line] = timelines.reduced(rows, 10).values()
    means = [round(np.mean(range(10 * i, 10 * i + 10))) for i in range(10)]
    assert line["entities"]["gpu"]["power"] == means[:3] + [None] + means[4:]
    assert timelines.reduced(rows.iloc[:0], 10) == {}


def test_long_studies_get_coarser_timelines(tmp_path, monkeypatch):
    monkeypatch.setattr(timelines, "LIMIT", 20_000)
    cells = [f"cell{i}" for i in range(40)]
    path = write_telemetry(
        tmp_path / "t.parquet", *(readings(c, power=123.0, gract=0.4) for c in cells)
    )
    found = timelines.of_cells(path, set(cells))
    assert set(found) == set(cells)
    assert len(json.dumps(found, separators=(",", ":"))) <= 20_000
    lengths = {len(line["entities"]["gpu"]["power"]) for line in found.values()}
    assert len(lengths) == 1 and timelines.LEAST <= lengths.pop() < 100


def test_four_hundred_cells_fit_into_six_megabytes(made):
    """Rows are as many as cells; timelines have a limit of their own."""
    page, data = made
    fixed = page.stat().st_size - len(json.dumps(data))
    per_cell = len(json.dumps([data["rows"], data["estimates"]])) / len(data["rows"])
    assert fixed + timelines.LIMIT + 400 * per_cell < 6e6


def test_several_gpu_models_are_kept_apart():
    runs = merged(
        record(ALONE, rates=[1000.0]),
        record(PAIR, rates=[600.0, 600.0]),
        record(ALONE, replicate=2, rates=[10.0], gpu="GPU-2", gpu_name="Other GPU"),
    )
    found = [study.hardware for study in explorer.studies(runs, [NOT_RUN])]
    assert found == ["Test GPU", "Other GPU"]
    rows = [row for study in explorer.studies(runs, []) for row in points.cell_rows(study)]
    assert [row["hardware"] for row in rows].count("Other GPU") == 1


def test_without_a_gpu_it_speaks_of_none(tmp_path):
    """Neither in its own words nor in those of a cell."""
    page, data = build(tmp_path, PROCESSORS)
    assert data["gpu"] is False and data["rows"][0]["about"]["CPU"] == "Test CPU"
    assert all("GPU" not in row["about"] for row in data["rows"])
    words = re.sub(r"<(script|style).*?</\1>", "", page.read_text(), flags=re.S)
    assert "share one machine" in words and "GPU" not in words.replace("without a GPU", "")
    blocks = {e["replicates"] for e in data["estimates"] if e["metric"] == "stp"}
    assert blocks == {2}


def test_with_a_gpu_it_says_what_a_click_shows(made):
    words, data = " ".join(made[0].read_text().split()), made[1]
    assert data["gpu"] is True and "jobs share one GPU." in words
    assert "for what the GPU did over time" in words and "Timelines hold" in words


# Two replicates of a pair on the CPU, of a workload of which the paper reports nothing.
PROCESSORS = [
    record(f"{n}x_small_b8", replicate=block, rates=[1e3 / n] * n, gpu=None, study="processors")
    for n in (1, 2)
    for block in (1, 2)
]
POOR = {
    "empty": [],
    "single": [record(ALONE, rates=[1000.0])],
    "exhausted": [record(PAIR, status="out_of_memory", rates=[None, 5.0])],
    "blind": [record(ALONE, telemetry=telemetry(card={"gract": None, "smact": None}))],
}


@pytest.fixture(scope="module")
def poor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("poor")
    seen = write_telemetry(folder / "t.parquet", readings(f"{ALONE}/faithful/naive/r1", power=None))
    return {name: build(folder / name, found, (), seen) for name, found in POOR.items()}


def test_poor_studies_give_pages(poor):
    assert {name: len(data["rows"]) for name, (_, data) in poor.items()} == {
        "empty": 0,
        "single": 1,
        "exhausted": 1,
        "blind": 1,
    }
    assert "Nothing was measured yet" in poor["empty"][0].read_text()


# -- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("downloads"))
    yield opened
    opened.close()


@pytest.fixture
def page(browser, made):
    """The explorer, just opened, and drawn."""
    browser.open(made[0])
    browser.choose("#workload", SMALL)
    browser.until(lambda: SMALL in browser.text("#chart"))
    yield browser
    assert browser.messages() == []
    assert browser.requests() == [made[0].as_uri()]


def marks(browser):
    """The cells' points that are drawn; their labels say which cell, and its value."""
    return browser.all('#chart path[aria-label^="cell "]')


def drawn(browser, number):
    return browser.until(lambda: len(marks(browser)) == number)


def test_a_request_would_be_seen(browser, tmp_path):
    asking = tmp_path / "asking.html"
    asking.write_text('<img src="http://example.invalid/x.png"><script>broken(</script>')
    browser.open(asking)
    assert browser.requests() == [asking.as_uri(), "http://example.invalid/x.png"]
    assert any("SyntaxError" in message for message in browser.messages())


def test_it_opens_with_every_point_and_hole(page):
    drawn(page, 7)  # of the gain: 2 alone, 2 naive, 2 MPS, 1 MIG
    text = page.text("#chart")
    assert all(words in text for words in ("out of memory", "unsupported", "not run"))
    assert "generated (synthetic)" in page.text("header") and "generated (synthetic)" in text
    assert text.count("not run") == 1  # and no word of a replicate where another was measured
    assert page.text("#status").startswith("11 cells shown, 7 points; 4 cells without a result")


def test_controls_change_the_chart(page):
    drawn(page, 7)
    page.choose("#metric", "epoch_time_s")
    drawn(page, 12)  # one per member
    assert "Epoch time of each member" in page.text("#chart")
    page.find('input[name="method"][value="mps"]').click()
    drawn(page, 8)
    page.find('input[name="count"][value="1"]').click()
    drawn(page, 6)
    page.choose("#workload", f"{LARGE} + {SMALL}")
    page.until(lambda: "No cell is chosen" in page.text("#status"))
    page.find('input[name="method"][value="mps"]').click()
    drawn(page, 2)
    assert f"1 + 1: {LARGE}" in page.text("#chart")
    page.choose("#workload", "*")
    page.choose("#arm", "tuned")
    page.find('input[name="count"][value="1"]').click()
    drawn(page, 1)
    assert page.find('#metric option[value="drama"]').get_attribute("disabled")


def test_hover_shows_the_cell(page):
    drawn(page, 7)
    point = next(p for p in marks(page) if "/mps/" in p.get_attribute("aria-label"))
    ActionChains(page.driver).move_to_element(point).perform()
    tip = page.until(lambda: page.text("#vg-tooltip-element"))
    assert f"{PAIR}/faithful/mps/r" in tip
    for words in ("completed", "Test GPU", "580.1", "generated (synthetic)", "95 % interval 1."):
        assert words in tip


def test_a_click_on_a_point_opens_its_timeline(page):
    drawn(page, 7)
    found = [p for p in marks(page) if "/mps/" in p.get_attribute("aria-label")]
    ActionChains(page.driver).click(found[0]).perform()
    title = page.until(lambda: page.text("#timeline-title"))
    assert title.startswith(f"What the GPU did: {PAIR}/faithful/mps/r")


def test_a_timeline_by_keyboard(page):
    page.find(f'#cells button[data-cell="{CLICKED}"]').send_keys(Keys.ENTER)
    chart = page.until(lambda: page.text("#timeline-chart"))
    assert all(words in chart for words in ("GRACT", "power (W)", "memory (GB)", "window"))
    assert "SMACT" not in chart
    assert page.driver.switch_to.active_element.get_attribute("id") == "timeline-title"
    page.find(f'#cells button[data-cell="{MIG}"]').send_keys(Keys.ENTER)
    page.until(lambda: "SMACT" in page.text("#timeline-chart"))
    assert page.find("#entity").get_attribute("value") == "gi:1"
    page.choose("#entity", "gpu")
    page.until(lambda: "the whole card" in page.text("#timeline-chart"))
    page.find(f'#cells button[data-cell="7x_{SMALL}/faithful/mig/r1"]').click()
    page.until(lambda: "MIG mode is off" in page.text("#timeline-text"))
    page.find("#close").click()
    page.until(lambda: not page.find("#timeline").is_displayed())


def test_svg_and_csv_are_saved(page):
    page.find("#save-csv").click()
    rows = list(csv.DictReader(io.StringIO(page.downloaded("records-stp.csv"))))
    kinds = [row["kind"] for row in rows]
    assert kinds.count("replicate") == 7 and kinds.count("no value") == 3
    first = next(row for row in rows if row["cell"] == CLICKED)
    assert float(first["value"]) == pytest.approx(1.81) and first["GPU"] == "Test GPU, GPU-1"
    mean = next(r for r in rows if r["kind"] == "geometric mean" and r["method"] == "mps")
    assert float(mean["low"]) < float(mean["value"]) < float(mean["high"])
    assert {r["source"][:6] for r in rows if r["kind"] == "reported"} <= {
        "SUIT25",
        "LEC22,",
        "SLIDES",
    }
    page.find("#save-svg").click()
    picture = page.downloaded("records-stp.svg")
    assert picture.startswith("<svg") and "out of memory" in picture


def test_nothing_can_leave_the_page(browser, made):
    browser.open(made[0])
    ask = (
        "fetch('http://example.invalid/').then(() => arguments[0]('out'), () => arguments[0]('in'))"
    )
    assert browser.driver.execute_async_script(ask) == "in"
    assert browser.requests() == [made[0].as_uri()]
    assert any("Content Security Policy" in message for message in browser.messages())


@pytest.mark.parametrize("name", POOR)
def test_poor_studies_open(browser, poor, name):
    browser.open(poor[name][0])
    browser.until(lambda: browser.text("#status"))
    assert browser.messages() == []


def test_a_cell_without_a_gpu_has_details(browser, tmp_path):
    browser.open(build(tmp_path, PROCESSORS)[0])
    browser.until(lambda: marks(browser))
    ActionChains(browser.driver).move_to_element(marks(browser)[0]).perform()
    tip = browser.until(lambda: browser.text("#vg-tooltip-element"))
    assert "CPU Test CPU" in tip and "details" in tip and "GPU" not in tip
    browser.find("#cells button").click()
    title = browser.until(lambda: browser.text("#timeline-title"))
    assert title.startswith("Details: 1x_small_b8/") and "GPU" not in browser.text("#timeline")
    browser.find("#save-csv").click()
    head = browser.downloaded("processors-stp.csv").splitlines()[0].split(",")
    assert "CPU" in head and "GPU" not in head
    assert browser.messages() == []


EMPTY = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'

# -- the report --------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def begun(request, made, module_studio):
    """The report of a study whose results are there, begun before the tests that need none of it.

    Its figures and tables are stand-ins: how those are made is tested elsewhere.
    """
    if not any("report" in item.fixturenames for item in request.session.items):
        return None
    ladder = {"workloads": ["plain"], "counts": {1: ["naive"]}}
    studio = module_studio().write({"plain": workload()}, drill=study(ladders=[ladder]))
    results = studio.results
    (results / "cells").mkdir(parents=True)
    furnish(results, records())
    pictures = [f"figures/{stem(*task)}" for task in stems(["faithful"])]
    drawn = [f"{picture}.{kind}" for picture in pictures for kind in ("svg", "png", "pdf", "csv")]
    for path in (results / name for name in ("telemetry.parquet", *texts.FILES, *drawn)):
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(EMPTY if path.suffix == ".svg" else f"# {path.stem}\n")
    assert explain.main(["--folder", str(results)]) == 0
    shutil.copyfile(made[0], results / "explorer.html")
    return studio, studio.start("--", "report", config={"measure": "false"})


@pytest.fixture(scope="module")
def report(begun):
    """The folder with report.html and, unpacked, report.zip."""
    studio, running = begun
    result = running.end()
    assert result.code == 0 and "rule explore" not in result.output, result.output
    with zipfile.ZipFile(studio.results / "report.zip") as archive:
        archive.extractall(studio.results)
    return studio.results


def follow(browser, text):
    """Click a link by its words."""
    browser.until(lambda: [a for a in browser.all("a") if a.text == text])[0].click()


def look_at(browser, page):
    """Open a result of the report; its frame is what is looked at then.

    That of the result before it stays until the new one takes its place.
    """
    row = browser.until(lambda: [r for r in browser.all("tbody tr") if r.text.startswith(page)])[0]
    before = browser.all("iframe")
    row.find_element("css selector", "a").click()
    new = browser.until(lambda: [f for f in browser.all("iframe") if f not in before])
    browser.driver.switch_to.frame(new[0])


@pytest.mark.parametrize("kind", ["report.html", "report/report.html"])
def test_the_report_opens_offline(browser, report, kind):
    browser.open(report / kind)
    browser.until(lambda: "What happens when several training jobs" in browser.text("body"))
    follow(browser, "Figures")
    follow(browser, "Throughput")
    browser.until(lambda: "throughput gain" in browser.text("body"))
    follow(browser, "Results")
    follow(browser, "Why you can believe it")
    look_at(browser, "belief")
    browser.until(lambda: "was proven in force" in browser.text("body"))
    browser.driver.switch_to.default_content()
    follow(browser, "Results")
    follow(browser, "Explorer")
    look_at(browser, "explorer")
    browser.until(lambda: marks(browser))
    assert all(url.startswith("file:") for url in browser.requests())
    # Snakemake's page says of itself that its style library stands in it as a whole.
    assert [message for message in browser.messages() if "tailwindcss" not in message] == []


def test_every_result_of_the_report_has_a_caption(report):
    text = (report / "report.html").read_text()
    results = json.loads(re.search(r"var results = (\{.*?\});\n", text, re.S)[1])
    assert len(results) > 15
    assert all(len(result["caption"]) > 100 for result in results.values())
    assert {result["labels"].get("page") for result in results.values()} >= {
        "claims", "guidelines", "belief", "explorer", "evidence", "summary", "environment", "runs"
    }  # fmt: skip
