"""Which of the named files are logs, and what lists know of episode files without their steps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentgym_tui.logs.file_types import is_log
from agentgym_tui.sessions.episode_summary import SummaryReader
from agentgym_tui.sessions.file_session import FileLibrary, FileSession
from agentgym_tui.state.models import ReadProgress
from runner.errors import StoreError
from runner.store import EpisodeRecord, EpisodeStore, open_index
from runner.store.index_schema import episode_row
from tests.support.episodes import RecordedEpisode


def stored(data_dir: Path, **fields: Any) -> tuple[EpisodeRecord, bytes]:  # noqa: ANN401
    store = EpisodeStore(data_dir)
    index = open_index(store)
    try:
        record = RecordedEpisode(store, index, **fields).record_episode(n_steps=3)
    finally:
        index.close()
    return record, (store.runs / record.batch_id / f"{record.episode_id}.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("events.jsonl", b"", True),
        ("e.journal.jsonl", b'{"schema":1}\n', True),
        ("node.log", b"INFO started\n", True),
        ("events.json", b'{"a":1}\n{"a":2}\n', True),
        ("events.json", b'{"a":1}\nnonsense', True),
        ("episode.json", b'{"schema":1}\n', False),
        ("pretty.json", b'{\n  "schema": 1\n}\n', False),
        ("damaged.json", b'{"schema": \x1b\nx', False),
        ("renamed", b'{"schema":1,"episode_id":"x"}', False),
        ("nats", b'[#1] Received on "a"\n{"a":1}\n', True),
        ("empty", b"", True),
    ],
)
def test_a_log_is_known_by_its_name_or_its_beginning(tmp_path: Path, name: str, content: bytes, expected: bool) -> None:
    (tmp_path / name).write_bytes(content)
    assert is_log(tmp_path / name) is expected


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.json")
    assert [is_log(tmp_path / name) for name in ("pipe", "pipe.json", ".", "none.json")] == [True, False, False, False]


def test_logs_and_episodes_of_one_command_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    session = FileSession([tmp_path / "a.log", tmp_path, tmp_path / "a.log", tmp_path / "none.jsonl"])
    assert [log.path.name for log in session.logs] == ["a.log", "none.jsonl"]


def test_a_list_knows_of_an_episode_what_its_index_knows(tmp_path: Path) -> None:
    record, data = stored(tmp_path, env="Wordle", seed=4, model="m", node="n")
    assert SummaryReader().row(data, tmp_path) == episode_row(record)
    answered = json.loads(data)
    for number, step in enumerate(answered["timesteps"]):
        step |= {"endpoint": "a" if number else None, "model_s": 0.25, "warnings": ["b: away"]}
    answered |= {"error": {"type": "ValueError", "message": "m", "traceback": "t"}}
    row = SummaryReader().row(json.dumps(answered).encode(), tmp_path)
    assert (row.model_s, row.error_type, row.fallback) == (0.5, "ValueError", "a")


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 2},
        {"episode_id": "../x"},
        {"timesteps": None},
        {"started_at": "2026-01-01T00:00:00"},
        {"env": 7},
        {"reward": "1"},
    ],
)
def test_what_is_no_episode_is_none_in_a_list_either(tmp_path: Path, changes: dict[str, Any]) -> None:
    _, data = stored(tmp_path)
    with pytest.raises(StoreError):
        SummaryReader().row(json.dumps({**json.loads(data), **changes}).encode(), tmp_path)


async def test_how_far_files_were_read_is_known_while_they_are(tmp_path: Path) -> None:
    _, data = stored(tmp_path)
    for number in range(60):
        (tmp_path / "runs" / f"{number}.json").write_bytes(data)
    session, seen = FileSession([tmp_path]), list[ReadProgress | None]()
    session.store.on_change = lambda: seen.append(session.store.read_progress)
    await session.run()
    assert [progress for progress in seen if progress] == [(50, 61), (61, 61)]
    assert session.store.read_progress is None


def test_a_library_says_how_far_it_is(tmp_path: Path) -> None:
    library = FileLibrary([tmp_path])
    assert library.progress == (0, 0)
    stored(tmp_path)
    assert [library.progress for _ in library.scan()] == [(1, 1)]
