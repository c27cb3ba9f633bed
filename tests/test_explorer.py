"""The explorer: its numbers are the estimates; in a browser it works offline, by keyboard."""

import html
import json
import re

import pytest
from selenium.webdriver.common.keys import Keys

from analysis import estimates, labels
from analysis.__main__ import main as analysis
from analysis.estimates import RANGE
from tests.browser import Browser
from tests.handmade import Estimate, written

JOB, OTHER, MIX = "resnet26_cifar10_b32", "resnet152_imagenet_b32", "1x_a_b8+2x_c_b8"
NASTY = '</script><script>document.title = "broken"</script><img src=x onerror="alert(1)">'
SETS = {(1, "naive"): (600.0, 1.0), (2, "mps"): (840.0, 1.4), (7, "mps"): (1200.0, 2.0)}


def study() -> list[Estimate]:
    """Two jobs, one of them written in two ways; a mix; an unknown job with a nasty name."""
    found = []
    for job, arm in ((JOB, "paper_step"), (JOB, "bf16"), (OTHER, "paper_step"), (NASTY, "bf16")):
        for (n, method), values in SETS.items():
            place = {"scenario": f"{n}x_{job}", "arm": arm, "method": method}
            found.append(Estimate("outcome", **place, value=1.0, n=1, status="completed"))
            for quantity, value in zip(("rate", "stp"), values, strict=True):
                of = {"value": value, "low": value, "high": 1.1 * value, "spread": RANGE}
                found.append(Estimate(quantity, **place, **of, n=3, hosts=2))
    mix = {"scenario": MIX, "arm": "paper_step", "method": "mps", "n": 1, "hosts": 1}
    found.append(Estimate("stp", **mix, value=1.9))
    found += [Estimate("count", name=name, value=2.0) for name in ("cells", "hosts")]
    return found


def build(folder, rows):
    """The page of these rows, and what it holds."""
    written(folder, rows)
    page = folder / "explorer.html"
    assert analysis(["explorer", "--folder", str(folder), "--output", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    return page, json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.mktemp("shared & <b>study"), study())


def test_every_number_is_the_estimate_of_its_id(made):
    found = estimates.read(made[0].parent / "estimates.parquet")
    assert len(made[1]["rows"]) == sum(found["quantity"].isin(["rate", "stp"]))
    for row in made[1]["rows"]:
        e = estimates.at(found, row["id"])
        assert row["text"] == labels.span(e) and row["value"] == pytest.approx(e.value)


def test_no_text_of_the_data_is_markup(made):
    text = made[0].read_text(encoding="utf-8")
    assert "<b>study" not in text and html.escape("shared & <b>study") in text
    assert NASTY not in text and any(NASTY in job for job in made[1]["jobs"])


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture
def page(browser, made):
    browser.size(1300, 900)
    browser.open(made[0])
    browser.until(lambda: browser.all("#chart svg"))
    yield browser
    assert browser.messages() == []
    assert browser.requests() == [made[0].resolve().as_uri()]


def test_it_opens_on_a_gain_and_follows_what_is_chosen(page):
    assert "STP" in page.text("#title") and "2.00" in page.text("tbody")
    page.choose("#job", OTHER)
    page.until(lambda: OTHER in page.text("tbody"))
    page.choose("#quantity", "rate")
    page.until(lambda: "1,200" in page.text("tbody"))
    assert page.run("location.hash").startswith(f"#job={OTHER}")
    page.choose("#job", "a_b8+c_b8")
    page.until(lambda: "1 + 2" in page.text("tbody"))


def test_a_job_is_chosen_by_keyboard_alone(page):
    before = page.text("tbody")
    page.press(Keys.TAB, Keys.ARROW_DOWN)
    page.until(lambda: page.text("tbody") != before)


@pytest.mark.parametrize("width", [390, 1000])
def test_nothing_is_wider_than_the_screen(browser, made, width):
    browser.size(width, 800)
    browser.open(made[0], f"job={JOB}&arm=bf16")
    browser.until(lambda: browser.all("#chart svg"))
    assert browser.run("document.querySelector('#arm').value") == "bf16"
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_a_study_without_numbers_says_so(browser, tmp_path):
    browser.open(build(tmp_path, [e for e in study() if e.quantity == "count"])[0])
    assert "answers nothing" in browser.until(lambda: browser.text("#said"))
    assert browser.messages() == []
