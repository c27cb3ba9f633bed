"""A headless Chromium that tests drive by selenium: Debian's, with its own driver.

It reaches nothing: no name resolves, and every request that a page makes is written down.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

NEEDED = "COLLOCATION_NEED_BROWSER"  # set by CI, where these tests must not be skipped
PATIENCE = 20.0  # seconds, for a busy machine
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1300,1600",
    # Of its own it asks for nothing either.
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def programs() -> tuple[str, str]:
    """Paths of Chromium and its driver; without them the test is skipped, in CI it fails."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if None in found:
        reason = "no chromium with chromedriver (Debian: chromium, chromium-driver)"
        (pytest.fail if os.environ.get(NEEDED) == "1" else pytest.skip)(reason)
    return found


class Browser:
    """One window. `messages` and `requests` are those since the last call."""

    def __init__(self):
        chromium, chromedriver = programs()
        options = Options()
        options.binary_location = chromium
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(chromedriver))

    def close(self) -> None:
        self.driver.quit()

    def open(self, page: Path, fragment: str = "") -> None:
        """Forget what went before, and open a file."""
        self.driver.get("about:blank")
        self.messages(), self.requests()
        self.driver.get(page.resolve().as_uri() + (f"#{fragment}" if fragment else ""))

    def size(self, width: int, height: int) -> None:
        """Of the page, as on a screen of that many pixels."""
        how = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", how)

    def run(self, script: str, *arguments: object) -> object:
        """What JavaScript returns."""
        return self.driver.execute_script(f"return {script}", *arguments)

    def press(self, *keys: str) -> None:
        """Keys, to what has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def messages(self) -> list[str]:
        """What the console said: errors and warnings."""
        entries = self.driver.get_log("browser")
        return [e["message"] for e in entries if e["level"] in ("SEVERE", "WARNING")]

    def requests(self) -> list[str]:
        """Addresses that were asked for; what stands in a page itself (data:, blob:) is none."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return [url for url in found if not url.startswith(("data:", "blob:"))]

    def find(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css: str) -> str:
        return self.find(css).text

    def choose(self, css: str, value: str) -> None:
        Select(self.find(css)).select_by_value(value)

    def until(self, true: Callable[[], object]) -> object:
        """Wait until it is, and return what it gave."""
        return WebDriverWait(self.driver, PATIENCE, 0.05).until(lambda _: true())
