"""The report in a real browser: nothing fetched, nothing complained about, everything drawn, on any screen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.report import report
from tests.report.run_folder import write_run
from tests.report.test_report import SECTIONS

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install -e '.[dev]'")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser here: on Debian, apt-get install chromium chromium-driver"
)
SCREENS = {"desktop": (1200, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_a_report_opens(browser: Any, tmp_path: Path, screen: str, scheme: str) -> None:
    page = tmp_path / "report.html"
    page.write_text(report([write_run(tmp_path / "one"), write_run(tmp_path / "two", optimizer=0.3)]))
    width, height = SCREENS[screen]
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": screen == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())

    assert browser.get_log("browser") == []
    assert browser.title == "headrace: one, two"
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert all(url.startswith(("file:", "data:")) for url in asked), asked

    for key in SECTIONS:
        section = browser.find_element("id", key)
        assert any(character.isdigit() for character in section.text), f"no numbers in {key}"
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('polyline, circle')].map(e => e.getBoundingClientRect())"
        ".filter(r => r.width > 0 || r.height > 0).length"
    )
    assert drawn > 20
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    ink, paper = (
        browser.execute_script(f"return getComputedStyle(document.body).{name}")
        for name in ("color", "backgroundColor")
    )
    assert (_brightness(ink) < _brightness(paper)) == (scheme == "light")
    assert browser.save_screenshot(str(tmp_path / f"{screen}-{scheme}.png"))


def _brightness(colour: str) -> int:
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
