"""The explorer: what it holds, and what a reader does with it in a browser, offline."""

import html
import json
import re
from dataclasses import replace
from urllib.parse import parse_qs

import pytest
from selenium.webdriver.common.keys import Keys

from analysis import labels
from analysis.__main__ import main as analysis
from analysis.advice import UNTOLD, advise
from analysis.estimates import schema
from analysis.estimates.schema import INTERVAL, RANGE, Estimate, Replicate, described
from analysis.estimates.table import Estimates
from analysis.explorer import command
from tests.browser import Browser
from workflow.collocation.spec.names import ALTERNATE

JOB, OTHER, MIX = "resnet26_cifar10_b32", "resnet152_imagenet_b32", "1x_a_b8+2x_c_b8"
NASTY = '</script><script>document.title = "broken"</script><img src=x onerror="alert(1)">'
# (count, method) → samples/s, gain, slowdown, memory; 7 under MPS gains most and suffers most.
SETS = {
    (1, "naive"): (600.0, 1.0, None, 10.0),
    (2, "naive"): (630.0, 1.05, 1.9, 20.0),
    (2, "mps"): (840.0, 1.4, 1.45, 21.0),
    (3, "mps"): (942.0, 1.57, 1.97, 32.0),
    (7, "mps"): (1200.0, 2.0, 3.6, 71.0),
}


def numbers(scenario, arm, method, values, hosts=2):
    """Rows of a set: over the hosts, and of each host one per cent more than of the one before."""
    place = {"scenario": scenario, "arm": arm, "method": method}
    for quantity, value in values.items():
        if value is None:
            continue
        points = [value * (1 + i / 100) for i in range(hosts)]
        cells = [Replicate(f"{scenario}/{arm}/{method}/r{i}/a1", p) for i, p in enumerate(points)]
        yield Estimate(quantity, **place, value=value, low=points[0], high=points[-1], spread=RANGE,
                       n=hosts, hosts=hosts, replicates=tuple(cells))  # fmt: skip
        for i, (point, cell) in enumerate(zip(points, cells, strict=True), 1):
            yield Estimate(quantity, **place, host=f"h{i}", value=point, low=point * 0.9, hosts=1,
                           high=point * 1.1, spread=INTERVAL, n=1, replicates=(cell,))  # fmt: skip
    outcome = {"status": "completed"} if values else {"status": "unsupported", "note": NASTY}
    yield Estimate("outcome", **place, value=float(bool(values)), n=1, **outcome)


def study():
    """Two jobs, one of them written in two ways; a mix; a set that could not run."""
    found = []
    names = ("rate", "stp", "slowdown_worst", "memory")
    for job, arm, factor in ((JOB, "paper_step", 1), (JOB, "bf16", 1.3), (OTHER, "paper_step", 3)):
        for (n, method), values in SETS.items():
            held = dict(zip(names, values, strict=True))
            held |= {"rate": held["rate"] * factor, "s": held["stp"] * 0.8, "gract": 0.5}
            held |= {"over_fastest": held["rate"] / 780} if job == JOB else {}
            found += numbers(f"{n}x_{job}", arm, method, held | {"capacity": 150.0})
    fastest = {"scenario": f"1x_{JOB}", "arm": "bf16", "method": "naive", "value": 780.0}
    found += [*numbers(f"2x_{JOB}", "paper_step", "mig", {}), Estimate("fastest_rate", **fastest)]
    found += numbers(MIX, "paper_step", "mps", {"stp": 1.9, "slowdown_worst": 1.6})
    counts = {"cells": 20, "cells_completed": 16, "hosts": 2}
    found += [Estimate("count", name=name, value=float(n)) for name, n in counts.items()]
    return [described(each) for each in found]


def build(folder, rows):
    """The page of these rows, and what it holds."""
    schema.write(rows, folder / "estimates.parquet")
    page = folder / "explorer.html"
    assert analysis(["explorer", "--folder", str(folder), "--output", str(page)]) == 0
    text = re.search(r'type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    return page, json.loads(text[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.mktemp("shared & <b>study"), study())


def test_every_number_is_an_estimate(made):
    estimates = Estimates([described(each) for each in study()])
    seen = 0
    for job in made[1]["jobs"]:
        for number in (n for s in job["sets"] for n in s["numbers"].values()):
            e = estimates[number["id"]]
            for name in ("value", "low", "high"):
                assert number[name] == pytest.approx(getattr(e, name), rel=1e-5)
            assert number["span"] == f"{number['text']} ({number['spread']})"
            assert (number["span"], number["n"], number["cells"]) == (
                labels.span(e),
                e.n,
                len(e.cells),
            )
            for host, value, text in number["on"]:
                single = estimates[f"{e.id}@{host}"]
                assert value == pytest.approx(single.value, rel=1e-5)
                assert text == labels.span(single)
            seen += 1
    assert seen == sum(e.quantity in command.SHOWN and not e.host for e in estimates)


def test_numbers_are_spelt_as_everywhere_whatever_their_spread(tmp_path):
    """An interval keeps its brackets, a range and a single replicate their words."""
    ends = {"range": (840.0, 860.0), "interval": (840.0, 860.0), "none": (None, None)}
    for spread, (low, high) in ends.items():
        rows = [replace(e, spread=spread, low=low, high=high, n=1) for e in study()
                if e.id == f"rate:2x_{JOB}/paper_step/mps"]  # fmt: skip
        kept = [e for e in study() if e.quantity in ("outcome", "count")]
        _, held = build(tmp_path / spread, [*rows, *kept])
        (number,) = (s["numbers"]["rate"] for s in held["jobs"][0]["sets"] if s["numbers"])
        assert number["span"] == labels.span(rows[0]) and "840" in number["spread"] or low is None


def test_no_text_of_the_data_is_markup(made):
    text = made[0].read_text()
    assert "<b>study" not in text and html.escape("shared & <b>study") in text
    assert NASTY not in text and NASTY in {s["why"] for job in made[1]["jobs"] for s in job["sets"]}
    assert not re.search(r"""(src|href)=["']|@import|url\(|https?://(?!www\.w3\.org)""", text)


# -- in a browser ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture
def page(browser, made):
    browser.size(1300, 900)
    browser.open(made[0])
    browser.until(lambda: browser.text("#advice h2"))
    yield browser
    assert browser.messages() == []
    assert browser.requests() == [made[0].resolve().as_uri()]


def click(browser, name, value):
    """A choice, by its label."""
    browser.find(f'label:has(input[name="{name}"][value="{value}"])').click()


def state(browser):
    return {name: values[0] for name, values in parse_qs(browser.run("location.hash")[1:]).items()}


def test_two_clicks_give_the_advice(page):
    click(page, "job", OTHER)
    assert page.text("#advice h2") == "Run 7 × ResNet152 b32 under MPS"
    click(page, "want", "slowdown")
    assert page.text("#advice h2") == "Run 3 × ResNet152 b32 under MPS"
    assert "1.57 (1.57 to 1.59)" in page.text("#advice") and "32.0 GB" in page.text("#advice")
    assert "3 × MPS" in page.text("#options tr.chosen")
    page.find('[data-key="bound:slowdown"]').send_keys(Keys.BACKSPACE, "1.5", Keys.ENTER)
    page.until(lambda: "2 × ResNet152 b32 under MPS" in page.text("#advice h2"))


def test_it_advises_as_the_command_does(page):
    estimates = Estimates([described(each) for each in study()])
    for want, bounds in {"slowdown": (1.0, 1.6, 2.0, 9.0), "memory": (5.0, 25.0, 80.0)}.items():
        for bound in bounds:
            for advice in advise(estimates, **{want: bound}):
                view = {"want": want, "bound": bound, "job": advice.job, "arm": advice.arm}
                page.run("choose(arguments[0])", view)
                sets = "measured(jobNow(), state.arm)"
                found = page.run(f"(s => s && [s.n, s.method])(advised({sets}))")
                assert found == (advice.knee and [advice.knee.n, advice.knee.method])
                said, ours = page.text("#advice"), " ".join(advice.sentences())
                rule = re.compile("Write it better(?: first)?") if advice.knee else re.compile("$x")
                assert rule.findall(said) == rule.findall(ours), (advice.job, want, bound)


def test_the_address_restores_the_view(page, made):
    click(page, "job", JOB)
    click(page, "arm", "bf16")
    click(page, "want", "memory")
    page.choose("#y", "stp")
    page.find('#options [data-key^="set:2x_"]').click()
    wanted, title = state(page), page.text("#advice")
    assert wanted["arm"] == "bf16" and "You chose 2 ×" in title
    page.open(made[0], page.run("location.hash")[1:])
    page.until(lambda: page.text("#advice") == title)
    assert page.run("document.querySelector('#y').value") == "stp"
    page.run("location.hash = '#job=nobody&want=nothing&bound=x&y=z'")
    page.until(lambda: "bf16" not in page.run("state.arm"))
    assert page.text("#advice h2").startswith("Run 7")


def test_keys_walk_the_numbers_and_say_where_they_come_from(page):
    click(page, "job", JOB)
    page.find("#options tbody button").send_keys(Keys.ARROW_RIGHT, "")
    page.press(Keys.ARROW_RIGHT)
    page.press(Keys.ARROW_DOWN)
    assert page.text("#id") == f"stp:3x_{JOB}/paper_step/mps"
    told = page.text("#detail")
    assert "2 replicates on 2 hosts, 2 cells" in told and "h2: 1.59 [1.43, 1.74]" in told
    assert "make explain STUDY=" in told and "ID='stp:3x_" in told
    page.press(Keys.ESCAPE)
    assert not page.find("#detail").is_displayed()
    page.run("document.querySelector('.point').focus()")
    assert page.run("document.querySelectorAll('.host').length") == 2
    page.press(Keys.ARROW_RIGHT)
    page.press(Keys.ENTER)
    assert "set" in state(page) and page.text("#advice h2").startswith("You chose")


def test_radio_buttons_and_headers_work_by_keyboard(page):
    page.find('input[value="rate"]').send_keys(Keys.ARROW_RIGHT)
    assert state(page)["want"] == "slowdown"
    page.find('[data-key="sort:memory"]').send_keys(Keys.ENTER)
    assert state(page)["sort"] == "memory" and page.text("tbody tr").startswith("1 × plain")
    assert page.run("document.activeElement.dataset.key") == "sort:memory"


def test_only_what_was_measured_is_drawn(page):
    click(page, "job", JOB)
    assert page.text("#legend").split() == ["plain", "MPS"]
    assert "Unsupported: 2 × MIG" in page.text(".missing")
    page.find(".missing summary").click()
    assert "document.title" in page.text(".missing") and page.driver.title.startswith("Explorer")


def test_a_mix_counts_each_job(page):
    click(page, "job", "a_b8+c_b8")
    assert page.text("#options tbody tr").startswith("1 + 2, MPS")
    assert page.run("document.querySelector('#y').value") == "stp"


@pytest.mark.parametrize("size", [(360, 740), (1000, 420)])
def test_nothing_is_wider_than_a_phone_or_taller_than_the_window(browser, made, size):
    browser.size(*size)
    browser.open(made[0], f"job={OTHER}&want=slowdown")
    browser.until(lambda: browser.text("#advice h2"))
    browser.find("#options .num").click()
    assert browser.run("document.documentElement.scrollWidth") <= size[0]
    assert browser.run("document.querySelector('#chart svg').clientHeight") <= 0.73 * size[1]
    if size[0] == 360:
        assert browser.run("document.querySelector('#advice').getBoundingClientRect().top") < 370


def test_it_works_inside_a_frame_without_an_address(browser, made, tmp_path):
    frame = tmp_path / "frame.html"
    inside = html.escape(made[0].read_text())
    frame.write_text(f'<iframe sandbox="allow-scripts" width=900 height=900 srcdoc="{inside}">')
    browser.size(1300, 900)
    browser.open(frame)
    browser.driver.switch_to.frame(browser.find("iframe"))
    click(browser, "job", OTHER)
    assert "ResNet152" in browser.text("#advice h2")


PROCESSOR = {"rate", "stp", "slowdown_worst", "outcome", "count"}
POOR = {
    "smoke": ([replace(e, flags="unsteady") for e in study() if e.quantity in PROCESSOR], "Run 7"),
    "nothing": ([described(e) for e in numbers(f"2x_{JOB}", "paper_step", "mps", {})], ""),
}


def test_a_study_without_a_gpu_is_given_no_advice(browser, tmp_path):
    counts = {"replicates": 1, "software_gpu_none": 9}
    found = [Estimate("count", name=name, value=float(v), low=float(v), high=float(v))
             for name, v in counts.items()]  # fmt: skip
    browser.open(build(tmp_path, [*POOR["smoke"][0], *found])[0])
    browser.until(lambda: browser.text("#options"))
    assert "says nothing about sharing a GPU" in browser.text("#said")
    assert browser.text("#advice") == "" and browser.messages() == []


def test_sets_that_took_turns_are_marked_and_their_memory_said_to_be_unknown(browser, tmp_path):
    rows = [replace(e, design=ALTERNATE) for e in study() if e.quantity != "memory"]
    browser.size(1300, 900)
    browser.open(build(tmp_path, rows)[0], f"job={JOB}")
    assert UNTOLD in browser.until(lambda: browser.text("#advice"))
    assert browser.text("#options thead th:last-child") == "design"
    assert browser.text("#options tbody td:last-child") == ALTERNATE
    browser.find("#options .num").click()
    assert "Design: alternate." in browser.text("#detail")
    assert browser.messages() == []


@pytest.mark.parametrize("name", POOR)
def test_poor_studies_open(browser, tmp_path, name):
    rows, advice = POOR[name]
    browser.size(1300, 900)
    browser.open(build(tmp_path, rows)[0])
    said = browser.until(lambda: browser.text("body"))
    assert advice in said and browser.messages() == []
    assert advice or "No set of jobs has completed" in said
    assert "GPU memory" not in said and "GRACT" not in said


def test_unasked_it_shows_a_job_that_was_measured_with_others(browser, tmp_path):
    alone = {"rate": 600.0, "stp": 1.0}
    rows = [*numbers(f"1x_{OTHER}", "paper_step", "naive", alone)]
    rows += numbers(f"1x_{JOB}", "paper_step", "naive", alone)
    for n, method in ((1, "naive"), (3, "mps")):
        rows += numbers(f"{n}x_{JOB}", "graph", method, {"rate": 900.0 * n, "stp": n})
    browser.open(build(tmp_path, [described(each) for each in rows])[0])
    browser.until(lambda: browser.text("#advice h2"))
    assert browser.text("#advice h2").startswith("Run 3 ")
