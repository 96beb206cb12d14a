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
DARK, LIGHT = "rgb(30, 30, 30)", "rgb(251, 251, 250)"


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
    browser.open(path)


def complaints(browser: Page) -> list[str]:
    """Return what the browser logged, an exception of the page, and what it asked for beside its own file."""
    found = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Network.requestWillBeSent"}
    events = [str(event) for event in browser.events if event["method"] in found]
    return [event for event in events if not ("requestWillBeSent" in event and "'url': 'file:" in event)]


def test_keys_go_through_steps_views_episodes_and_colors(browser: Page, tmp_path: Path) -> None:
    header, other = episode_header(), episode_header(env="Wordle")
    steps = [make_step(n, reward=float(n % 3 - 1)) for n in range(500)]
    episodes = (
        finished_record(header, make_trajectory(header, steps)),
        finished_record(other, make_trajectory(other, [])),
    )
    show(browser, tmp_path / "page.html", *episodes)
    for keys, step in (
        *(("", 0), ("j", 1), ("ArrowDown", 2), ("ArrowRight", 3), ("k", 2), ("G", 499), ("ArrowUp", 498), ("Home", 0)),
        *(("End", 499), ("g", 0), ("ArrowLeft", 0)),
    ):
        browser.press(*[keys] * bool(keys))
        assert browser.value(CHOSEN).startswith(f"{step}move up"), keys
        assert f"observation {step + 1}" in browser.value(VIEW), keys
        assert browser.value("document.querySelector('input').value") == str(step)
        assert browser.value("document.querySelectorAll('.here').length") == 1
    browser.press("f")
    assert "observation 500" in browser.value(VIEW)
    browser.press("w")
    assert "0 of 0 recorded spans" in browser.value(VIEW)
    browser.press("?")
    assert "k ↑ ←" in browser.value("document.querySelector('dialog[open]').innerText")
    browser.press("?", "n")
    assert browser.value("document.title") == "Wordle task 0 · ✓ success"
    browser.press("p")
    assert browser.value(CHOSEN).startswith("0move up")
    before = browser.value(BACK)
    browser.press("t")
    assert {before, browser.value(BACK)} == {DARK, LIGHT}
    assert complaints(browser) == []


@pytest.mark.parametrize(("scheme", "background"), [("dark", DARK), ("light", LIGHT)])
def test_a_hostile_episode_is_text_on_a_phone(scheme: str, background: str, browser: Page, tmp_path: Path) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    show(browser, tmp_path / "page.html", hostile_episode())
    assert browser.value(BACK) == background
    assert "␛]0;x␇</script><!--<script>" in browser.value(CHOSEN)
    assert browser.value(VIEW).count("</script><!--<script>\\u{202e}\\u{2028}&amp;") > 10
    browser.press("w")
    assert "2 of 2 recorded spans" in browser.value(VIEW)
    assert browser.value("document.scripts.length") == 2
    assert browser.value("document.documentElement.scrollWidth") == 400
    assert complaints(browser) == []


def test_the_policy_of_the_page_runs_and_loads_nothing_else(browser: Page, tmp_path: Path) -> None:
    show(browser, tmp_path / "page.html", hostile_episode())
    markup = "<img src=x.png onerror=document.title=1><style>*{color:red}"
    browser.value(f"document.body.insertAdjacentHTML('beforeend', '{markup}')")
    browser.value("document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 2'}))")
    assert browser.value("document.title").endswith("✓ success")
    blocked = complaints(browser)
    assert len(blocked) == 4
    assert all("Content Security Policy" in each for each in blocked)
