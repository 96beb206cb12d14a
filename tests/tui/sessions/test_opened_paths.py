"""Recognizing logs among the opened files, and episodes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentgym_tui.sessions.episode_files import is_log, record_from_bytes
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.session import FileSession
from agentgym_tui.state.episode_list import ReadProgress
from runner.errors import StoreError
from runner.store import EpisodeRecord
from runner.store.index_schema import episode_row
from tests.support.episodes import record_episodes


def record_file(data_dir: Path, **fields: Any) -> tuple[EpisodeRecord, bytes]:  # noqa: ANN401
    [record] = record_episodes(data_dir, n_steps=3, **fields)
    return record, (data_dir / "runs" / record.batch_id / f"{record.episode_id}.json").read_bytes()


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
def test_a_log_is_recognized_by_its_name_or_its_beginning(
    tmp_path: Path, name: str, content: bytes, expected: bool
) -> None:
    (tmp_path / name).write_bytes(content)
    assert is_log(tmp_path / name) is expected


def test_a_pipe_is_classified_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.json")
    assert [is_log(tmp_path / name) for name in ("pipe", "pipe.json", ".", "none.json")] == [True, False, False, False]


def test_logs_and_episodes_of_one_command_are_separated(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    session = FileSession([tmp_path / "a.log", tmp_path, tmp_path / "a.log", tmp_path / "none.jsonl"])
    assert [log.path.name for log in session.logs] == ["a.log", "none.jsonl"]


async def test_a_path_that_is_too_long_is_listed_as_unreadable(tmp_path: Path) -> None:
    record_file(tmp_path)
    session = FileSession([tmp_path, tmp_path / ("x" * 300)])
    await session.run()
    assert session.store.n_stored == 1
    assert session.library is not None
    assert [file.path.name for file in session.library.unreadable] == ["x" * 300]


def test_an_opened_file_has_the_row_of_the_index(tmp_path: Path) -> None:
    record, _ = record_file(tmp_path, env="Wordle", seed=4, model="m", node="n")
    assert [row for part in FileLibrary([tmp_path]).scan() for row in part] == [episode_row(record)]


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
def test_an_invalid_document_is_no_episode(tmp_path: Path, changes: dict[str, Any]) -> None:
    _, data = record_file(tmp_path)
    with pytest.raises(StoreError):
        record_from_bytes(json.dumps({**json.loads(data), **changes}).encode(), tmp_path)


async def test_a_session_reports_its_progress_while_reading_files(tmp_path: Path) -> None:
    _, data = record_file(tmp_path)
    for number in range(60):
        (tmp_path / "runs" / f"{number}.json").write_bytes(data)
    assert FileLibrary([tmp_path]).progress == (0, 0)
    session, reported = FileSession([tmp_path]), list[ReadProgress | None]()
    session.store.on_change = lambda: reported.append(session.store.read_progress)
    await session.run()
    assert [progress for progress in reported if progress] == [(50, 61), (61, 61)]
    assert session.store.read_progress is None
