"""The page of an episode in a real headless browser: its keys, its colors, and what hostile text does to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.formats.html_page.page import PageWriter
from runner.store import EpisodeRecord
from tests.support.browser import CHROMIUM, Page, open_browser
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory
from tests.support.hostile_pages import hostile_episode

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium"),
]
CHOSEN = "document.querySelector('tbody [aria-selected]').textContent"
VIEW = "document.querySelector('.view').innerText"
BACK = "getComputedStyle(document.body).backgroundColor"
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    """A browser with one page."""
    with open_browser() as page:
        yield page


def show(browser: Page, path: Path, *episodes: EpisodeRecord) -> None:
    with path.open("wb") as file:
        writer = PageWriter(file)
        for episode in episodes:
            writer.write(episode)
        writer.finish()
    browser.events.clear()
    browser.open(path)


def complaints(browser: Page) -> list[object]:
    """Return what the browser logged, caught or asked a server for since the page was opened."""
    methods = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    asked = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event["method"] == "Network.requestWillBeSent" and not event["params"]["request"]["url"].startswith("file:")
    ]
    return [*asked, *(event for event in browser.events if event["method"] in methods)]


def test_keys_go_through_the_steps_views_and_colors(browser: Page, tmp_path: Path) -> None:
    header, steps = episode_header(), [make_step(n, reward=float(n % 3 - 1)) for n in range(500)]
    long = finished_record(header, make_trajectory(header, steps))
    show(
        browser,
        tmp_path / "page.html",
        long,
        finished_record(episode_header(env="Wordle"), make_trajectory(header, [])),
    )
    assert browser.value(CHOSEN).startswith("0move up")
    for keys, step in (
        (("j", "ArrowDown", "ArrowRight", "k"), 2),
        (("G",), 499),
        (("ArrowUp", "Home"), 0),
        (("End",), 499),
    ):
        browser.press(*keys)
        assert browser.value(CHOSEN).startswith(f"{step}move up"), keys
        assert f"observation {step + 1}" in browser.value(VIEW), keys
        assert browser.value("document.querySelector('input').value") == str(step)
        assert browser.value("document.querySelectorAll('.here').length") == 1
    browser.press("f")
    assert "step 0" in browser.value(VIEW)
    assert "observation 500" in browser.value(VIEW)
    browser.press("w")
    assert "0 of 0 recorded spans" in browser.value(VIEW)
    browser.press("?")
    assert "k ↑ ←" in browser.value("document.querySelector('dialog[open]').innerText")
    browser.press("?", "t")
    one = browser.value(BACK)
    browser.press("t")
    assert {one, browser.value(BACK)} == {"rgb(30, 30, 30)", "rgb(251, 251, 250)"}
    browser.press("n")
    assert browser.value("document.title") == "Wordle task 0 · ✓ success"
    browser.press("p", "w")
    assert browser.value(CHOSEN).startswith("0move up")
    assert complaints(browser) == []


def test_a_hostile_episode_is_shown_as_text_on_a_phone_in_both_colors(browser: Page, tmp_path: Path) -> None:
    for scheme, background in (("dark", "rgb(30, 30, 30)"), ("light", "rgb(251, 251, 250)")):
        browser.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        show(browser, tmp_path / f"{scheme}.html", hostile_episode())
        assert browser.value(BACK) == background
        assert "␛]0;x␇</script><!--<script>" in browser.value(CHOSEN)
        assert browser.value(VIEW).count("</script><!--<script>\\u{202e}\\u{2028}&amp;") > 10
        assert browser.value("document.scripts.length") == 2
        browser.press("w")
        assert "2 of 2 recorded spans" in browser.value(VIEW)
        assert browser.value(WIDTH) == 400
        assert complaints(browser) == []


def test_the_policy_of_the_page_runs_and_loads_nothing_else(browser: Page, tmp_path: Path) -> None:
    show(browser, tmp_path / "page.html", hostile_episode())
    markup = "<img src=x.png onerror=document.title=1><style>*{color:red}"
    browser.value(f"document.body.insertAdjacentHTML('beforeend', '{markup}')")
    browser.value("document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 2'}))")
    assert browser.value("document.title").endswith("✓ success")
    blocked = [event["params"]["entry"]["text"] for event in browser.events if event["method"] == "Log.entryAdded"]
    assert len(blocked) == 4
    assert all("Content Security Policy" in text for text in blocked)
