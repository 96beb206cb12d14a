from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.sessions.episode_files import episode_from_record
from agentgym_tui.state.episode import Episode
from agentgym_tui.state.episode_list import SearchProgress, UnreadableFile
from runner.envs.babyai import BabyAI
from runner.episode.world import pack_cells
from runner.errors import StoreError
from runner.store.index_schema import episode_row
from runner.store.passages import Hit, PassageKind
from runner.types import Action, Outcome
from runner.util.safe_values import encode
from tests.support.are_episodes import MISSED, are_record
from tests.support.console.fake_session import FakeSession, busy_session, empty_session, error_session, files_session
from tests.support.console.known_texts import with_texts
from tests.support.console.pilot import SIZE, console_app, wait_for_widget_text
from tests.support.console.samples import HOSTILE, batch_id, episode, episode_id, row, span, step, user
from tests.support.console.snapshots import ALL_SIZES, SIZES, TABLE_SIZES, RunBefore, SnapCompare, stop_cursor_blink

pytestmark = pytest.mark.usefixtures("utc")
ENVS = ("Wordle", "BabyAI", "TextCraft", "Maze")
AGENTS = (("oracle", None), ("react", "qwen35_9b"), ("random", None))
OUTCOMES = (
    (Outcome.SUCCESS, None),
    (Outcome.FAILURE, None),
    (Outcome.ERROR, "EnvironmentFault"),
    (Outcome.TRUNCATED, None),
    (Outcome.TIMEOUT, None),
    (Outcome.SUCCESS, None),
)
RULES = "You play Wordle. Guess the hidden word; after each guess the matching letters are shown."


def long_episode(n: int, outcome: str) -> Episode:
    """Return an episode of twelve steps with chats and spans."""
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
    """Add stored episodes of all outcomes, one of them damaged, and return the session."""
    for n in (number for number in range(45) if number != 3):  # episode 3 is running
        outcome, error = OUTCOMES[n % 6]
        agent, model = AGENTS[n % 3]
        reward = 1.0 if outcome == Outcome.SUCCESS else -0.25
        fields = {"env": ENVS[n % 4], "agent": agent, "model": model, "reward": reward}
        session.fake_library.stored.append(row(n, outcome=outcome, error_type=error, success=reward > 0, **fields))
    session.fake_library.unreadable = [UnreadableFile(Path("/srv/runs/\x1b[2J.json"), "it is not JSON: \x1b]0;x\x07")]
    session.fake_library.damaged = {episode_id(43): "/srv/runs/x.json is damaged: JSON ends too early"}
    session.fake_library.load = lambda episode_id: _load(session, episode_id)  # type: ignore[method-assign]
    return session


def _load(session: FakeSession, wanted_id: str) -> tuple[Episode, bytes]:
    if (reason := session.fake_library.damaged.get(wanted_id)) is not None:
        raise StoreError(reason)
    stored = next(each for each in session.fake_library.stored if each.episode_id == wanted_id)
    data = b'{"schema": 1, "episode_id": "' + wanted_id.encode() + b'", "timesteps": [{"index": 0, "text": "\x1b[2J"}]}'
    return long_episode(stored.task_index, str(stored.outcome)), data


def when_listed(*texts: str, keys: tuple[str, ...] = ()) -> RunBefore:
    """Open the list of episodes, wait for texts of its summary and press keys."""

    async def run_before(pilot: Pilot[None]) -> None:
        stop_cursor_blink(pilot)
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#summary", *texts)
        await pilot.press(*keys)
        await pilot.pause()

    return run_before


def when_opened(session: FakeSession, key: str, selector: str, text: str, *keys: str) -> RunBefore:
    """Open an episode, press keys and wait for a text of a widget."""

    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.app.push_screen(EpisodeScreen(session, key))
        await wait_for_widget_text(pilot, "#steps", "guess")
        await pilot.press(*keys)
        await wait_for_widget_text(pilot, selector, text)
        await pilot.pause()

    return run_before


@ALL_SIZES
def test_list_of_stored_and_running_episodes(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    session = with_history(FakeSession(busy_session().store))
    session.fake_library.stored = [each for each in session.fake_library.stored if each.task_index > 20]
    before = when_listed("episodes", "running", "1 file", keys=("j", "j"))
    assert snap_compare(console_app(session), terminal_size=size, run_before=before)


def test_empty_list(snap_compare: SnapCompare) -> None:
    session = empty_session()
    session.fake_library.stored = []
    assert snap_compare(console_app(session), run_before=when_listed("0 episodes"))


def test_list_when_the_library_fails(snap_compare: SnapCompare, monkeypatch: pytest.MonkeyPatch) -> None:
    session = error_session()
    monkeypatch.setattr(session.fake_library, "rows", lambda: session.fake_library.load(HOSTILE))
    assert snap_compare(console_app(session), run_before=when_listed("✗ there is no episode"))


def test_filtered_list(snap_compare: SnapCompare) -> None:
    session = with_history(files_session(0))

    async def run_before(pilot: Pilot[None]) -> None:
        await wait_for_widget_text(pilot, "#summary", "44 episodes")
        stop_cursor_blink(pilot)
        await pilot.press("slash", *"textcraft success")
        await wait_for_widget_text(pilot, "#summary", "match textcraft success")

    assert snap_compare(console_app(session), run_before=run_before)


@TABLE_SIZES
def test_lines_that_a_search_has_found(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    session = with_history(files_session(0))
    episode_ids = [each.episode_id for each in session.fake_library.stored][::-3]
    texts: list[tuple[int | None, PassageKind, str]] = [
        (None, "observation", "You see a locked door to the north, and a red key in the corner"),
        (2, "thought", "The red key is in the corner behind me, and the locked door needs it. " * 5),
        (3, "tool call", 'open {"what": "locked door"}'),
        (11, "error", f"the locked door \x1b]0;x\x07 {HOSTILE}"),
    ]
    lines = {
        episode_id: [
            Hit(step, kind, text, at := text.index("locked door"), at + 11) for step, kind, text in texts[n % 2 :]
        ]
        for n, episode_id in enumerate(episode_ids)
    }
    with_texts(session, lines, SearchProgress(3_120, 10_000))

    async def run_before(pilot: Pilot[None]) -> None:
        await wait_for_widget_text(pilot, "#summary", "44 episodes")
        await pilot.press("slash", *'text:"locked door"', "enter")
        await wait_for_widget_text(pilot, "#summary", "15 match")
        await pilot.press("L", "j")
        await wait_for_widget_text(pilot, "#summary", "15 episodes read")

    assert snap_compare(console_app(session), terminal_size=size, run_before=run_before)


def test_sorted_list(snap_compare: SnapCompare) -> None:
    before = when_listed("44 episodes", keys=("o", "o", "o", "o", "O", "j"))
    assert snap_compare(console_app(with_history(files_session(0))), run_before=before)


@SIZES
def test_transcript_of_an_episode(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    session = with_history(files_session(0))
    before = when_opened(session, episode_id(44), "#transcript", "Round 2", "j", "j")
    session.fake_library.stored = [row(44, outcome=Outcome.ERROR, error_type="EnvironmentFault")]
    assert snap_compare(console_app(session), terminal_size=size, run_before=before)


def test_search_in_the_whole_episode(snap_compare: SnapCompare) -> None:
    keys = ["f", "K", "slash", *"Round", "enter", "n", "n"]
    before = when_opened(session := with_history(files_session(0)), episode_id(44), "#whole", "Round 2", *keys)
    session.fake_library.stored = [row(44)]
    assert snap_compare(console_app(session), run_before=before)


def test_trace_of_an_episode(snap_compare: SnapCompare) -> None:
    session = with_history(busy_session())
    before = when_opened(session, episode_id(2), "#trace", "agent.act", "w")
    assert snap_compare(console_app(session), run_before=before)


def walked_episode() -> Episode:
    """Return an episode of three moves in BabyAI, with its pictures."""
    world = BabyAI()
    world.reset(task_index=4)
    start, pictures = encode(pack_cells(world.render_cells())), []
    for text in ("turn left", "turn left", "move forward"):
        world.step(Action(text=text))
        pictures.append(encode(pack_cells(world.render_cells())))
    steps = [step(index, world=picture) for index, picture in enumerate(pictures)]
    return episode(1, env="BabyAI", steps=steps, reset_world=start)


def test_world_of_an_episode(snap_compare: SnapCompare) -> None:
    session = files_session(0)
    session.fake_library.stored = [row(1, env="BabyAI")]
    session.fake_library.load = lambda _: (walked_episode(), b"{}")  # type: ignore[method-assign, assignment]
    before = when_opened(session, episode_id(1), "#world", "Mission", "W", "shift+tab", "j")
    assert snap_compare(console_app(session), run_before=before)


def test_json_of_an_episode(snap_compare: SnapCompare) -> None:
    session = with_history(busy_session())
    before = when_opened(session, episode_id(1), "#json", "schema", "d")
    assert snap_compare(console_app(session), run_before=before)


def test_running_episode(snap_compare: SnapCompare) -> None:
    session = busy_session()
    before = when_opened(session, episode_id(3), "#transcript", "the word may be")
    assert snap_compare(console_app(session), run_before=before)


def test_damaged_episode(snap_compare: SnapCompare) -> None:
    session = with_history(files_session(0))

    async def run_before(pilot: Pilot[None]) -> None:
        await wait_for_widget_text(pilot, "#summary", "44 episodes")
        await pilot.press("j", "enter")
        await wait_for_widget_text(pilot, "#transcript", "cannot be shown")
        await wait_for_widget_text(pilot, "#heading", "✗ cannot be shown")

    assert snap_compare(console_app(session), run_before=run_before)


def are_session(evaluation: dict[str, Any]) -> FakeSession:
    """Return a files session with one episode of ARE."""
    record = are_record(evaluation, episode_id=episode_id(1), batch_id=batch_id(0))
    session = files_session(0)
    session.fake_library.stored = [episode_row(record)]
    session.fake_library.load = lambda _: (episode_from_record(record), encode(record))  # type: ignore[method-assign, assignment]
    return session


@pytest.mark.parametrize(
    ("key", "text"), [("t", "tool call SystemApp"), ("v", "missed")], ids=["transcript", "evaluation"]
)
def test_episode_of_are(snap_compare: SnapCompare, key: str, text: str) -> None:
    session = are_session(MISSED)

    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.app.push_screen(EpisodeScreen(session, episode_id(1)))
        await wait_for_widget_text(pilot, "#steps", "EmailClientApp")
        await pilot.press(key)
        await wait_for_widget_text(pilot, "#transcript" if key == "t" else "#evaluation", text)
        await pilot.pause()

    assert snap_compare(console_app(session), terminal_size=SIZE, run_before=run_before)
