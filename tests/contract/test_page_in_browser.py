"""The page of an episode in a real headless browser: its keys, its colors, and what hostile text does to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import IO, Any

import pytest

from runner.formats.html_page.page import PageWriter
from runner.store import EpisodeRecord
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory
from tests.support.hostile_pages import hostile_episode

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)


class Page:
    """A page of the browser; ``events`` has the messages of the browser that answer no call."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._commands, self._answers, self._unread = commands, answers, b""
        self._n_calls, self._session = 0, dict[str, str]()
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session["sessionId"] = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> Any:  # noqa: ANN401 - any JSON
        self._n_calls += 1
        command = {"id": self._n_calls, "method": method, "params": params, **self._session}
        self._commands.write(json.dumps(command).encode() + b"\0")
        while (answer := self._read()).get("id") != self._n_calls:
            self.events.append(answer)
        return answer["result"]

    def open(self, path: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def value(self, expression: str) -> Any:  # noqa: ANN401 - any JSON
        """Return the value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            data = self._answers.read(1 << 16)
            assert data, "the browser has ended"
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def open_browser() -> Iterator[Page]:
    assert CHROMIUM is not None
    with TemporaryDirectory() as profile:
        command = (
            "bash",
            "-c",
            'exec "$@" 3<&0 4>&1 >/dev/null',
            "bash",
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={profile}",
        )
        with Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, bufsize=0) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield Page(process.stdin, process.stdout)
            finally:
                process.terminate()
                process.wait(timeout=30)


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
