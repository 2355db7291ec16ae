"""Report and watch in a real browser: nothing fetched, nothing complained about, everything readable, on any screen."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.report import report
from headrace.report.server import LivePage, PageServer
from tests.report.run_folder import write_run
from tests.report.test_report import SECTIONS

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install -e '.[dev]'")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser here: on Debian, apt-get install chromium chromium-driver"
)
SCREENS = {"desktop": (1200, 900), "phone": (390, 844)}
SPILLS = """
return [...document.querySelectorAll("section, table, td, pre, figure, .tile, .stage dl, .command")]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline")
  .map(e => e.tagName + " " + e.className + ": " + e.textContent.slice(0, 60))
"""
HOVER = """
const chart = document.querySelectorAll("svg.chart")[arguments[0]];
chart.scrollIntoView({block: "center", behavior: "instant"});
const [place, done] = [arguments[1], arguments[2]];
const answer = () => {
  const box = chart.getBoundingClientRect();
  done([box.left + box.width * place, box.top + box.height / 2]);
};
requestAnimationFrame(() => requestAnimationFrame(answer)); // when the page has heard of having been scrolled
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    driver.set_script_timeout(10)
    yield driver
    driver.quit()


def open_page(browser: Any, url: str, screen: str, scheme: str = "light") -> list[str]:
    """Open a page as it is seen on a screen; return the addresses that the browser asked for."""
    width, height = SCREENS[screen]
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": screen == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("performance")
    browser.get(url)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def hover(browser: Any, chart: int, place: float) -> str:
    """Move the pointer over a chart; return what the page then says about the place."""
    x, y = browser.execute_async_script(HOVER, chart, place)
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
    return str(browser.execute_script("return document.querySelector('.tip').innerText"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_a_report_opens(browser: Any, tmp_path: Path, screen: str, scheme: str) -> None:
    page = tmp_path / "report.html"
    page.write_text(report([write_run(tmp_path / "one"), write_run(tmp_path / "two", optimizer=0.3)]))
    asked = open_page(browser, page.as_uri(), screen, scheme)

    assert browser.get_log("browser") == []
    assert browser.title == "headrace: one, two"
    assert all(url.startswith(("file:", "data:")) for url in asked), asked
    for key in SECTIONS:
        section = browser.find_element("id", key)
        assert any(character.isdigit() for character in section.text), f"no numbers in {key}"
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('polyline, circle')].map(e => e.getBoundingClientRect())"
        ".filter(r => r.width > 0 || r.height > 0).length"
    )
    assert drawn > 20
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SCREENS[screen][0]
    assert browser.execute_script(SPILLS) == []
    ink, paper = (
        browser.execute_script(f"return getComputedStyle(document.body).{name}")
        for name in ("color", "backgroundColor")
    )
    assert (_brightness(ink) < _brightness(paper)) == (scheme == "light")
    sizes = browser.execute_script(
        "return [...new Set([...document.querySelectorAll('.tick')].map(e => e.getBoundingClientRect().height))]"
    )
    assert max(sizes) - min(sizes) < 1, "the type of all charts has one size"


@pytest.mark.parametrize("screen", SCREENS)
def test_a_chart_shows_its_values_under_the_pointer(browser: Any, tmp_path: Path, screen: str) -> None:
    page = tmp_path / "report.html"
    page.write_text(report([write_run(tmp_path / "one")]))
    open_page(browser, page.as_uri(), screen)
    assert browser.execute_script("return getComputedStyle(document.querySelector('.tip')).display") == "none"
    shown = hover(browser, 0, 0.999).splitlines()
    assert shown[0] == "step 40"
    assert "training, single batches 4" in shown
    assert "validation 4.1" in shown
    assert hover(browser, 0, 0.001).splitlines()[0] == "step 1"
    box = browser.execute_script("return document.querySelector('.tip').getBoundingClientRect().toJSON()")
    assert 0 <= box["left"] < box["right"] <= SCREENS[screen][0]
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 2, "y": 2})
    assert browser.execute_script("return document.querySelectorAll('.mark').length") == 0
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("screen", SCREENS)
def test_watch_follows_a_run(browser: Any, tmp_path: Path, screen: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with PageServer(LivePage([folder]), port=0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        asked = open_page(browser, server.url, screen)
        assert "no metrics yet" in browser.find_element("tag name", "header").text
        folder.rmdir()
        write_run(folder)
        when_shown = "const done = arguments[0]; setInterval(() => document.querySelector('#story') && done(1), 20)"
        browser.execute_async_script(when_shown)
        assert "40 steps" in browser.find_element("id", "story").text
        assert hover(browser, 0, 0.999).startswith("step 40")
        assert browser.title == "headrace: run"
        assert browser.find_element("class name", "badge").text.endswith("live")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= SCREENS[screen][0]
        assert all(url.startswith((server.url, "data:")) for url in asked), asked
        assert browser.get_log("browser") == []
        browser.get("about:blank")
        server.shutdown()


def _brightness(colour: str) -> int:
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
