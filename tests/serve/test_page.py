"""The page of `headrace serve` in a real browser: it streams, stops, shows probabilities, and fetches nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.serve.server import ModelServer
from tests.report.test_report_browser import SCREENS, browser, open_page, pytestmark
from tests.serve.served import serving
from tests.serve.test_server import expected_text

__all__ = ["browser", "pytestmark"]
WHEN_SAID = """
const [pattern, done] = [new RegExp(arguments[0]), arguments[1]];
const look = () => pattern.test(document.getElementById("status").textContent) ? done(true) : setTimeout(look, 10);
look();
"""

SET = """
const field = document.getElementById(arguments[0]);
field.value = arguments[1];
field.dispatchEvent(new Event("input"));
"""


def wait_until_said(browser: Any, pattern: str) -> None:
    assert browser.execute_async_script(WHEN_SAID, pattern)


def set_form(browser: Any, **values: object) -> None:
    for name, value in values.items():
        browser.execute_script(SET, name, str(value))


@pytest.mark.parametrize("screen", SCREENS)
def test_the_page_streams_text(browser: Any, screen: str) -> None:
    with serving() as server:
        asked = open_page(browser, server.url, screen)
        wait_until_said(browser, "It reads up to 32 tokens")
        assert browser.title == "tiny"
        assert all(url.startswith((server.url, "data:")) for url in asked), asked
        set_form(browser, prompt="the mill", temperature=0.5, max_tokens=30, seed=4)
        browser.find_element("id", "generate").click()
        wait_until_said(browser, "^30 tokens")
        wanted = {"prompt": "the mill", "temperature": 0.5, "max_tokens": 30, "seed": 4}
        text = browser.find_element("id", "text").text
        assert text == "the mill" + expected_text(server, **wanted)
        assert len(browser.find_elements("css selector", "#likely li")) == 8
        shares = [float(e.text.rstrip("%")) for e in browser.find_elements("css selector", "#likely span")]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= 100.5
        assert browser.execute_script("return document.documentElement.scrollWidth") <= SCREENS[screen][0]
        assert browser.get_log("browser") == []
        _stop_one(browser, server)
        browser.get("about:blank")


def _stop_one(browser: Any, server: ModelServer) -> None:
    """Stop a long text in the middle, then go on from it."""
    browser.execute_script("document.getElementById('max_tokens').max = 4000")
    set_form(browser, max_tokens=4000)
    browser.find_element("id", "generate").click()
    wait_until_said(browser, "^Generating")
    browser.find_element("id", "stop").click()
    wait_until_said(browser, "^Stopped after")
    assert server.engine.num_steps < 4000
    browser.find_element("id", "further").click()
    taken = browser.execute_script("return document.getElementById('prompt').value")
    assert taken.startswith("the mill")


def test_a_token_comes_with_the_address(browser: Any) -> None:
    with serving(token="open sesame") as server:
        open_page(browser, server.url, "desktop")
        wait_until_said(browser, "needs the token")
        browser.get("about:blank")
        open_page(browser, server.url + "#open%20sesame", "desktop")
        wait_until_said(browser, "It reads up to 32 tokens")
        entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        assert not [e for e in entries if "sesame" in e.get("params", {}).get("request", {}).get("url", "")]
        browser.get("about:blank")
        browser.get_log("browser")
