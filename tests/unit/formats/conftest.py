"""Episodes to write and read again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.formats.format import Source, recognise
from runner.formats.importing import Importer, ImportReport, ReadEpisode, read_episodes
from runner.formats.reading import LIMITS, Limits, Malformed
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeStore
from runner.types import Action, Chat, Message, Tokens, ToolCall
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory, newest_rows

CALL = {"id": "c1", "type": "function", "function": {"name": "move", "arguments": '{"direction":"left"}'}}
SYSTEM: Message = {"role": "system", "content": "You walk through a maze."}
FILES = Path(__file__).parent / "files"
NOW = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)


def chat_of(reply: Message, *earlier: Message) -> list[Chat]:
    return [[SYSTEM, *earlier, reply]]


def model_episode() -> EpisodeRecord:
    """Return two steps of a model: a tool call with a thought, then a text that is no action."""
    steps = [
        make_step(
            0,
            chats=chat_of({"role": "assistant", "content": "Go on.", "reasoning_content": "hm", "tool_calls": [CALL]}),
            action=Action(tool_calls=[ToolCall("c1", "move", '{"direction":"left"}')], refused=True),
            observation=[{"role": "tool", "content": "a wall", "tool_call_id": "c1"}],
            endpoint="local",
            model="qwen3:8b",
            tokens=Tokens(100, 7, 3, 50),
            reward=-1.0,
        ),
        make_step(
            1,
            chats=chat_of({"role": "assistant", "content": "Where am I?"}),
            action=Action("Where am I?", valid=False),
            observation=[{"role": "user", "content": "not an action"}],
            endpoint="local",
            model="qwen3:14b",
            reward=0.5,
            done=True,
        ),
    ]
    header = episode_header(agent="react", model="qwen3:8b", task_index=17)
    return finished_record(header, make_trajectory(header, steps))


@pytest.fixture
def episode() -> EpisodeRecord:
    """An episode of a model."""
    return model_episode()


def imported(store: EpisodeStore, index: EpisodeIndex, path: Path, limits: Limits = LIMITS) -> ImportReport:
    return Importer(store, index, NOW, limits).import_path(path)


def stored(store: EpisodeStore, index: EpisodeIndex) -> list[EpisodeRecord]:
    paths = [store.path(row.batch_id, row.episode_id) for row in newest_rows(index)]
    return [store.load_with_tokens(path) for path in paths][::-1]


def read_all(path: Path, limits: Limits = LIMITS) -> tuple[list[ReadEpisode], list[Malformed]]:
    """Return the episodes of a file whose format is recognised, and what is malformed."""
    source = Source(path, recognise(path))
    assert source.format is not None, path
    found = list(read_episodes(source, limits))
    return [each for each in found if isinstance(each, ReadEpisode)], [
        each for each in found if isinstance(each, Malformed)
    ]
