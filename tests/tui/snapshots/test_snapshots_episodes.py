from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.app.console import Console
from agentgym_tui.screens.episode.screen import EpisodeScreen
from agentgym_tui.state.episode_list import UnreadableFile
from agentgym_tui.state.models import Episode
from runner.errors import StoreError
from runner.types import Outcome
from tests.support.console.fake_session import FakeSession, busy_session, empty_session, error_session, files_session
from tests.support.console.pilot import wait_for_widget_text
from tests.support.console.samples import HOSTILE, FakeClock, episode, episode_id, row, span, step, user

pytestmark = pytest.mark.usefixtures("utc")
Compare = Callable[..., bool]
Before = Callable[[Pilot[None]], Awaitable[None]]

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
ENVS = ("Wordle", "BabyAI", "TextCraft", "Maze")
PLAYERS = (("oracle", None), ("react", "qwen35_9b"), ("random", None))
ENDS = (
    (Outcome.SUCCESS, None),
    (Outcome.FAILURE, None),
    (Outcome.ERROR, "EnvironmentFault"),
    (Outcome.TRUNCATED, None),
    (Outcome.TIMEOUT, None),
    (Outcome.SUCCESS, None),
)
RULES = "You play Wordle. Guess the hidden word; after each guess you are told which letters are right."


def app_of(session: FakeSession) -> Console:
    app = Console(session, now=FakeClock())
    app.animation_level = "none"
    return app


def played(n: int, outcome: str) -> Episode:
    """A battery's worth of text in an episode."""
    steps = [
        step(
            index,
            chats=[
                [
                    {"role": "system", "content": RULES},
                    user(f"Round {index}. " + "So far the letters c, r and e are somewhere in the word. " * 3),
                    {"role": "assistant", "content": f"guess {index}", "reasoning_content": "Perhaps it is crane."},
                ]
            ],
            reward=(0.0, 0.5, -1.0)[index % 3],
            valid=index != 4,
            done=index == 11,
        )
        for index in range(12)
    ]
    spans = [span(1, end=12_000_000_000, name="episode")]
    for index in range(12):
        start = index * 1_000_000_000
        spans.append(span(10 + index, parent=1, start=start, end=start + 900_000_000, name="timestep"))
        spans.append(span(30 + index, parent=10 + index, start=start, end=start + 700_000_000, name="agent.act"))
    failure: dict[str, Any] = {"error_type": "EnvironmentFault", "error_message": "the server is gone\nTraceback"}
    return episode(n, steps=steps, spans=spans, outcome=outcome, **failure if outcome == "error" else {})


def with_history(session: FakeSession) -> FakeSession:
    """Stored episodes of all kinds around those of the store, one of them damaged."""
    for n in (number for number in range(45) if number != 3):
        outcome, error = ENDS[n % 6]
        agent, model = PLAYERS[n % 3]
        reward = 1.0 if outcome == Outcome.SUCCESS else -0.25
        known = {"env": ENVS[n % 4], "agent": agent, "model": model, "reward": reward}
        session.fake_library.stored.append(row(n, outcome=outcome, error_type=error, success=reward > 0, **known))
    session.fake_library.unreadable = [UnreadableFile(Path("/srv/runs/\x1b[2J.json"), "it is not JSON: \x1b]0;x\x07")]
    session.fake_library.damaged = {episode_id(43): "/srv/runs/x.json is damaged: JSON ends too early"}
    session.fake_library.load = lambda known: _load(session, known)  # type: ignore[method-assign, assignment]
    return session


def _load(session: FakeSession, known: str) -> tuple[Episode, bytes]:
    if (reason := session.fake_library.damaged.get(known)) is not None:
        raise StoreError(reason)
    stored = next(found for found in session.fake_library.stored if found.episode_id == known)
    data = b'{"schema": 1, "episode_id": "' + known.encode() + b'", "timesteps": [{"index": 0, "text": "\x1b[2J"}]}'
    return played(stored.task_index, str(stored.outcome)), data


def listed(*texts: str, keys: tuple[str, ...] = ()) -> Before:
    async def go(pilot: Pilot[None]) -> None:
        for blinking in pilot.app.screen.query(Input):
            blinking.cursor_blink = False
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#summary", *texts)
        await pilot.press(*keys)
        await pilot.pause()

    return go


def opened(session: FakeSession, key: str, selector: str, text: str, *keys: str) -> Before:
    async def go(pilot: Pilot[None]) -> None:
        pilot.app.push_screen(EpisodeScreen(session, key))
        await wait_for_widget_text(pilot, "#steps", "guess")
        await pilot.press(*keys)
        await wait_for_widget_text(pilot, selector, text)
        await pilot.pause()

    return go


@SIZES
def test_a_list_of_stored_and_running_episodes(snap_compare: Compare, size: tuple[int, int]) -> None:
    session = with_history(FakeSession(busy_session().store))
    session.fake_library.stored = [found for found in session.fake_library.stored if found.task_index > 20]
    before = listed("episodes", "running", "1 file", keys=("j", "j"))
    assert snap_compare(app_of(session), terminal_size=size, run_before=before)


@SIZES
def test_an_empty_list(snap_compare: Compare, size: tuple[int, int]) -> None:
    session = empty_session()
    session.fake_library.stored = []
    assert snap_compare(app_of(session), terminal_size=size, run_before=listed("0 episodes"))


@SIZES
def test_a_list_that_cannot_be_read(
    snap_compare: Compare, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    session = error_session()
    monkeypatch.setattr(session.fake_library, "rows", lambda: session.fake_library.load(HOSTILE))
    assert snap_compare(app_of(session), terminal_size=size, run_before=listed("✗ there is no episode"))


@SIZES
def test_a_filtered_list(snap_compare: Compare, size: tuple[int, int]) -> None:
    session = with_history(files_session(0))

    async def go(pilot: Pilot[None]) -> None:
        await wait_for_widget_text(pilot, "#summary", "44 episodes")
        pilot.app.screen.query_one(Input).cursor_blink = False
        await pilot.press("slash", *"textcraft success")
        await wait_for_widget_text(pilot, "#summary", "match textcraft success")

    assert snap_compare(app_of(session), terminal_size=size, run_before=go)


@SIZES
def test_a_sorted_list(snap_compare: Compare, size: tuple[int, int]) -> None:
    before = listed("44 episodes", keys=("o", "o", "o", "o", "O", "j"))
    assert snap_compare(app_of(with_history(files_session(0))), terminal_size=size, run_before=before)


@SIZES
def test_an_episode_with_its_transcript(snap_compare: Compare, size: tuple[int, int]) -> None:
    session = with_history(files_session(0))
    before = opened(session, episode_id(44), "#transcript", "Round 2", "j", "j")
    session.fake_library.stored = [row(44, outcome=Outcome.ERROR, error_type="EnvironmentFault")]
    assert snap_compare(app_of(session), terminal_size=size, run_before=before)


@SIZES
def test_an_episode_with_its_trace(snap_compare: Compare, size: tuple[int, int]) -> None:
    session = with_history(busy_session())
    before = opened(session, episode_id(2), "#trace", "agent.act", "w")
    assert snap_compare(app_of(session), terminal_size=size, run_before=before)


@SIZES
def test_an_episode_with_its_file(snap_compare: Compare, size: tuple[int, int]) -> None:
    session = with_history(busy_session())
    before = opened(session, episode_id(1), "#json", "schema", "J")
    assert snap_compare(app_of(session), terminal_size=size, run_before=before)


@SIZES
def test_an_episode_that_runs(snap_compare: Compare, size: tuple[int, int]) -> None:
    session = busy_session()
    before = opened(session, episode_id(3), "#transcript", "the word may be")
    assert snap_compare(app_of(session), terminal_size=size, run_before=before)


@SIZES
def test_an_episode_that_cannot_be_shown(snap_compare: Compare, size: tuple[int, int]) -> None:
    session = with_history(files_session(0))

    async def go(pilot: Pilot[None]) -> None:
        await wait_for_widget_text(pilot, "#summary", "44 episodes")
        await pilot.press("j", "enter")
        await wait_for_widget_text(pilot, "#transcript", "cannot be shown")
        await wait_for_widget_text(pilot, "#heading", "✗ cannot be shown")

    assert snap_compare(app_of(session), terminal_size=size, run_before=go)
