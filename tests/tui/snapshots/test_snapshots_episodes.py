from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
from tests.support.console.fake_session import FakeSession, busy_session, error_session, files_session
from tests.support.console.known_texts import with_texts
from tests.support.console.pilot import SIZE, SMALL, console_app
from tests.support.console.samples import HOSTILE, batch_id, episode, episode_id, row, span, step, user
from tests.support.console.snapshots import ALL_SIZES, LARGE, PicturesOf

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


async def test_stored_and_running_episodes(pictures_of: PicturesOf) -> None:
    session = with_history(FakeSession(busy_session().store))
    every = session.fake_library.stored
    session.fake_library.stored = [each for each in every if each.task_index > 20]
    async with pictures_of(console_app(session)) as pictures:
        await pictures.show("2", texts=("episodes", "running", "1 file"))
        await pictures.compare("list", "j", "j", sizes=ALL_SIZES)


async def test_views_of_an_episode(pictures_of: PicturesOf) -> None:
    session = with_history(busy_session())
    app = console_app(session)
    async with pictures_of(app) as pictures:
        await app.push_screen(EpisodeScreen(session, episode_id(3)))
        await pictures.compare("running", texts=("guess", "the word may be"))
        await app.push_screen(EpisodeScreen(session, episode_id(2)))
        await pictures.compare("trace", "w", texts=("guess", "agent.act"))
        await app.push_screen(EpisodeScreen(session, episode_id(1)))
        await pictures.compare("json", "d", texts=("guess", "schema"))


async def test_list_when_the_library_fails(pictures_of: PicturesOf, monkeypatch: pytest.MonkeyPatch) -> None:
    session = error_session()
    monkeypatch.setattr(session.fake_library, "rows", lambda: session.fake_library.load(HOSTILE))
    async with pictures_of(console_app(session)) as pictures:
        await pictures.compare("list", "2", texts=("✗ there is no episode",))


async def test_list_is_filtered_and_sorted(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(with_history(files_session(0)))) as pictures:
        await pictures.show(texts=("44 episodes",))
        await pictures.compare("filtered", "slash", *"textcraft success", texts=("match textcraft success",))
        await pictures.show("escape", texts=("44 episodes",))
        await pictures.compare("sorted", "o", "o", "o", "o", "O", "j")
        await pictures.show("O", "o", "k", texts=("44 episodes",))
        await pictures.compare("damaged", "j", "enter", texts=("✗ cannot be shown",))


async def test_lines_that_a_search_has_found(pictures_of: PicturesOf) -> None:
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
    async with pictures_of(console_app(session)) as pictures:
        await pictures.show(texts=("44 episodes",))
        await pictures.show("slash", *'text:"locked door"', "enter", texts=("15 match",))
        await pictures.compare("lines", "L", "j", texts=("15 episodes read",), sizes=(SMALL, LARGE))


async def test_transcript_of_an_episode_and_a_search_in_all_of_it(pictures_of: PicturesOf) -> None:
    session = with_history(files_session(0))
    session.fake_library.stored = [row(44, outcome=Outcome.ERROR, error_type="EnvironmentFault")]
    app = console_app(session)
    async with pictures_of(app) as pictures:
        await app.push_screen(EpisodeScreen(session, episode_id(44)))
        await pictures.show(texts=("guess",))
        await pictures.compare("transcript", "j", "j", texts=("Round 2",), sizes=(SMALL, SIZE))
    session.fake_library.stored = [row(44)]
    app = console_app(session)
    async with pictures_of(app) as pictures:
        await app.push_screen(EpisodeScreen(session, episode_id(44)))
        await pictures.show(texts=("guess",))
        await pictures.compare("whole", "f", "K", "slash", *"Round", "enter", "n", "n", texts=("Round 2",))


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


async def test_world_of_an_episode(pictures_of: PicturesOf) -> None:
    session = files_session(0)
    session.fake_library.stored = [row(1, env="BabyAI")]
    session.fake_library.load = lambda _: (walked_episode(), b"{}")  # type: ignore[method-assign, assignment]
    app = console_app(session)
    async with pictures_of(app) as pictures:
        await app.push_screen(EpisodeScreen(session, episode_id(1)))
        await pictures.show(texts=("guess",))
        await pictures.compare("world", "W", "shift+tab", "j", texts=("Mission",))


async def test_episode_of_are(pictures_of: PicturesOf) -> None:
    record = are_record(MISSED, episode_id=episode_id(1), batch_id=batch_id(0))
    session = files_session(0)
    session.fake_library.stored = [episode_row(record)]
    session.fake_library.load = lambda _: (episode_from_record(record), encode(record))  # type: ignore[method-assign, assignment]
    app = console_app(session)
    async with pictures_of(app) as pictures:
        await app.push_screen(EpisodeScreen(session, episode_id(1)))
        await pictures.show(texts=("EmailClientApp",))
        await pictures.compare("transcript", "t", texts=("tool call SystemApp",), sizes=(SIZE,))
        await pictures.compare("evaluation", "v", texts=("missed",), sizes=(SIZE,))
