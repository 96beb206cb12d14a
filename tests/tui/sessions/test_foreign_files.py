"""``agentgym-tui open`` on files of other tools: rows, episodes, results, and what is malformed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgym_tui.presenters.cells import Cell
from agentgym_tui.presenters.episode import episode_heading
from agentgym_tui.presenters.number_format import UNKNOWN, format_reward
from agentgym_tui.presenters.status_line import outcome_cell
from agentgym_tui.sessions import file_library
from agentgym_tui.sessions.episode_files import is_log
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.session import FileSession
from runner.cli import main
from runner.formats.atif import encode_atif
from runner.results.summary import summarize_results
from runner.util.safe_values import encode
from tests.support.console.line_views import line_text
from tests.unit.formats.conftest import model_episode


def line(text: str, **fields: Any) -> str:  # noqa: ANN401
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "left"}]
    return json.dumps({"messages": messages, **fields}) + "\n"


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text(line("a", success=True, reward=1.0, env="Maze") + "{\n" + line("b"))
    return path


def test_a_file_of_another_tool_is_shown_as_episodes(chats: Path) -> None:
    assert not is_log(chats)
    library = FileLibrary([chats])
    rows = [row for part in library.scan() for row in part]
    assert sorted(row.env for row in rows) == ["Maze", "chats"]
    assert library.rows() == sorted(rows, key=lambda row: row.episode_id, reverse=True)
    for row in rows:
        episode, data = library.load(row.episode_id)
        assert (episode.episode_id, episode.batch_id) == (row.episode_id, row.batch_id)
        assert json.loads(data)["origin"]["format"] == "OpenAI messages"
        assert episode.steps[0].chats[0][-1]["content"] == "left"
        assert library.path(row.episode_id) == chats
        assert episode.imported.startswith("OpenAI messages, which lacks: times")
    assert sorted(str(outcome_cell(row).text) for row in rows) == ["? unknown, unscored", "✓ success"]
    assert {str(outcome_cell(row).text)[0]: str(format_reward(row.reward)) for row in rows} == {"?": UNKNOWN, "✓": "1"}
    assert [problem.reason.split(":")[0] for problem in library.unreadable] == ["line 2"]
    assert sum(row.n for row in summarize_results(library.result_source())) == 2
    episode, _ = library.load(next(row.episode_id for row in rows if row.env == "chats"))
    first, *_, last = map(line_text, episode_heading(episode, "", "", 60, shares=[Cell("model 100%")]))
    assert f"reward {UNKNOWN}" in first, "no reward is invented"
    assert last.startswith("from OpenAI messages, which lacks: times") and len(last) == 60


def test_a_folder_has_files_of_other_tools_and_logs(chats: Path, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"level": "info", "message": "started"}\n')
    (tmp_path / "link.jsonl").symlink_to(chats)
    library = FileLibrary([tmp_path])
    assert len([row for part in library.scan() for row in part]) == 2
    assert {problem.path.name for problem in library.unreadable} == {"events.jsonl", "chats.jsonl"}


def test_an_export_with_a_file_per_episode_is_opened_as_a_folder(tmp_path: Path) -> None:
    data = encode(encode_atif(model_episode()))
    for number in range(3):
        (tmp_path / f"01KA000000000000000000000{number}.json").write_bytes(data.replace(b"a wall", b"wall %d" % number))
    (tmp_path / "manifest.json").write_text('{"format": "atif"}')
    library = FileLibrary([tmp_path])
    assert len([row for part in library.scan() for row in part]) == 3
    assert library.unreadable == []


async def test_the_rows_of_a_session_arrive_while_the_file_is_read(
    chats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_library, "PART_S", 0.0)
    monkeypatch.setattr(file_library, "FIRST_PART_S", 0.0)
    parts = FileLibrary([chats]).scan()
    assert next(parts) == []
    assert len(next(parts)) == 1
    session = FileSession([chats])
    assert not session.logs
    await session.run()
    assert session.store.n_stored == 2


@pytest.mark.parametrize("content", [b'{"foo": 1}', b'{"foo": ', b"[1, 2]", b"PK\3\4garbage"])
def test_what_cannot_be_read_has_the_same_cause_as_in_an_import(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / ("file.zip" if content.startswith(b"PK") else "file.json")
    path.write_bytes(content)
    library = FileLibrary([path])
    assert not [row for part in library.scan() for row in part]
    (problem,) = library.unreadable
    assert main(["import", str(path), "--data-dir", str(tmp_path / "state")]) == 2
    assert problem.reason in capsys.readouterr().err
    assert ("damaged" in problem.reason) is content.startswith(b"PK")
