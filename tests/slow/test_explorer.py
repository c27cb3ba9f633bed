"""The explorer: its numbers are the estimates; in a browser it works offline, by keyboard.

The browser is Debian's Chromium with its own driver. It reaches nothing: no name resolves, and
every request that a page makes is written down.
"""

import html
import json
import os
import re
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from analysis import labels
from analysis.estimates import table as estimates
from analysis.estimates.table import RANGE
from collocate.app import main as collocate
from tests.handmade import Estimate, written

JOB, OTHER, MIX = "resnet26_cifar10_b32", "resnet152_imagenet_b32", "1x_a_b8+2x_c_b8"
NASTY = '</script><script>document.title = "broken"</script><img src=x onerror="alert(1)">'
SETS = {(1, "naive"): (600.0, 1.0), (2, "mps"): (840.0, 1.4), (7, "mps"): (1200.0, 2.0)}
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
ARGUMENTS += ("--no-first-run", "--disable-background-networking", "--disable-component-update")
ARGUMENTS += ("--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND")


def study() -> list[Estimate]:
    """Two jobs, one of them written in two ways; a mix; an unknown job with a nasty name."""
    found = []
    for job, implementation in (
        (JOB, "paper_step"),
        (JOB, "bf16"),
        (OTHER, "paper_step"),
        (NASTY, "bf16"),
    ):
        for (n, method), values in SETS.items():
            place = {"scenario": f"{n}x_{job}", "implementation": implementation, "method": method}
            found.append(Estimate("outcome", **place, value=1.0, n=1, status="completed"))
            for quantity, value in zip(("rate", "stp"), values, strict=True):
                of = {"value": value, "low": value, "high": 1.1 * value, "spread": RANGE}
                found.append(Estimate(quantity, **place, **of, n=3, hosts=2))
    mix = {"scenario": MIX, "implementation": "paper_step", "method": "mps", "n": 1, "hosts": 1}
    found.append(Estimate("stp", **mix, value=1.9))
    return found + [Estimate("count", name=name, value=2.0) for name in ("cells", "hosts")]


def build(folder, rows):
    """The page of these rows, and what it holds."""
    written(folder, rows)
    page = folder / "explorer.html"
    assert collocate(["step", "explorer", "--folder", str(folder), "--output", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    return page, json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.mktemp("shared & <b>study"), study())


def test_every_number_is_the_estimate_of_its_id(made):
    found = estimates.read_estimates(made[0].parent / "estimates.parquet")
    assert len(made[1]["rows"]) == sum(found["quantity"].isin(["rate", "stp"]))
    for row in made[1]["rows"]:
        e = estimates.get_by_id(found, row["id"])
        assert row["text"] == labels.span(e)
        known = [e.value if x != x else x for x in (e.value, e.low, e.high)]
        assert [row["value"], row["low"], row["high"]] == pytest.approx(known)


def test_no_text_of_the_data_is_markup(made):
    text = made[0].read_text(encoding="utf-8")
    assert "<b>study" not in text and html.escape("shared & <b>study") in text
    assert NASTY not in text and any(NASTY in job for job in made[1]["jobs"])


@pytest.fixture(scope="module")
def chromium():
    """Skipped without it, but in CI, which sets a variable."""
    programs = shutil.which("chromium"), shutil.which("chromedriver")
    if None in programs:
        reason = "no chromium with chromedriver (Debian: chromium, chromium-driver)"
        (pytest.fail if os.environ.get("COLLOCATION_NEED_BROWSER") == "1" else pytest.skip)(reason)
    options = Options()
    options.binary_location = programs[0]
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(programs[1]))
    yield driver
    driver.quit()


class Page:
    """A page in the browser, `width` pixels wide."""

    def __init__(self, driver, path, width=1300, fragment=""):
        self.driver = driver
        how = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", how)
        driver.get("about:blank")
        self.messages(), self.requests()  # forgotten
        driver.get(path.resolve().as_uri() + fragment)

    def text(self, css: str) -> str:
        return self.driver.find_element(By.CSS_SELECTOR, css).text

    def run(self, script: str) -> object:
        return self.driver.execute_script(f"return {script}")

    def choose(self, css: str, value: str) -> None:
        Select(self.driver.find_element(By.CSS_SELECTOR, css)).select_by_value(value)

    def until(self, true) -> None:
        WebDriverWait(self.driver, 20, 0.05).until(lambda _: true())

    def messages(self) -> list[str]:
        """Errors and warnings since the last call."""
        entries = self.driver.get_log("browser")
        return [e["message"] for e in entries if e["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call; what stands in a page itself is none."""
        told = (json.loads(e["message"])["message"] for e in self.driver.get_log("performance"))
        told = (m for m in told if m["method"] == "Network.requestWillBeSent")
        urls = [message["params"]["request"]["url"] for message in told]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]


def test_it_opens_on_a_gain_and_follows_what_is_chosen(chromium, made):
    page = Page(chromium, made[0])
    page.until(lambda: page.run("document.querySelector('#chart svg')"))
    assert "STP" in page.text("#title") and "2.00" in page.text("tbody")
    page.choose("#job", OTHER)
    page.until(lambda: OTHER in page.text("tbody"))
    page.choose("#quantity", "rate")
    page.until(lambda: "1,200" in page.text("tbody"))
    assert page.run("location.hash").startswith(f"#job={OTHER}")
    page.choose("#job", "a_b8+c_b8")
    page.until(lambda: "1 + 2" in page.text("tbody"))
    assert page.messages() == [] and page.requests() == [made[0].resolve().as_uri()]


def test_a_job_is_chosen_by_keyboard_alone(chromium, made):
    page = Page(chromium, made[0])
    page.until(lambda: page.run("document.querySelector('#chart svg')"))
    before = page.text("tbody")
    ActionChains(chromium).send_keys(Keys.TAB, Keys.ARROW_DOWN).perform()
    page.until(lambda: page.text("tbody") != before)


@pytest.mark.parametrize("width", [390, 1000])
def test_nothing_is_wider_than_the_screen(chromium, made, width):
    page = Page(chromium, made[0], width, f"#job={JOB}&implementation=bf16")
    page.until(lambda: page.run("document.querySelector('#chart svg')"))
    assert page.run("document.querySelector('#implementation').value") == "bf16"
    assert page.run("document.documentElement.scrollWidth") <= width


def test_a_study_without_numbers_says_so(chromium, tmp_path):
    page = Page(chromium, build(tmp_path, [e for e in study() if e.quantity == "count"])[0])
    page.until(lambda: "answers nothing" in page.text("#scope"))
    assert page.messages() == []
