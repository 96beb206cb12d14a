"""Journals, JSON Lines of episodes and logs inside an opened folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.app import Console
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.screens.episode_lists import EpisodesScreen
from agentgym_tui.screens.line_browser import LogScreen
from agentgym_tui.sessions import file_library
from agentgym_tui.sessions.episode_files import UNFINISHED, holds_episodes, line_names, read_line
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.session import FileSession
from agentgym_tui.state.episode_list import FoundLog
from runner.errors import StoreError
from runner.store import EpisodeStore, open_index
from runner.types import Outcome
from tests.support.console.pilot import wait_for_widget_text, wait_until
from tests.support.episodes import RecordedEpisode, make_step, record_episodes


def listed(*paths: Path) -> FileLibrary:
    library = FileLibrary(paths)
    for _ in library.scan():
        pass
    return library


def texts(library: FileLibrary) -> list[tuple[str, str]]:
    return sorted((file.path.name, file.reason) for file in library.unreadable)


def unfinished_episode(data_dir: Path, n_steps: int = 2, **fields: Any) -> RecordedEpisode:  # noqa: ANN401
    store = EpisodeStore(data_dir)
    index = open_index(store)
    recording = RecordedEpisode(store, index, **fields)
    recording.start()
    recording.reset()
    for number in range(n_steps):
        recording.play(make_step(number))
    index.close()
    return recording


def write_lines(path: Path, data_dir: Path, n: int) -> list[str]:
    """Write episodes as JSON Lines; return their ids, the newest first."""
    records = record_episodes(data_dir, n)
    files = [data_dir / "runs" / record.batch_id / f"{record.episode_id}.json" for record in records]
    path.write_bytes(b"".join(file.read_bytes().rstrip(b"\n") + b"\n" for file in files))
    return sorted((record.episode_id for record in records), reverse=True)


def test_a_journal_is_listed_and_opened_as_an_unfinished_episode(tmp_path: Path) -> None:
    recording = unfinished_episode(tmp_path, env="Wordle")
    library = listed(tmp_path)
    [row] = library.rows()
    assert (row.episode_id, row.env, row.outcome, row.rounds) == (
        *(recording.header.episode_id, "Wordle"),
        *(Outcome.INTERRUPTED, 2),
    )
    episode, content = library.load(row.episode_id)
    assert [step.index for step in episode.steps] == [0, 1]
    assert episode.error_message == UNFINISHED
    assert content.startswith(b'{"schema":1')
    assert library.path(row.episode_id) == recording.journal
    assert library.unreadable == []
    copy = recording.journal.rename(tmp_path / "copy.journal.jsonl")
    assert listed(copy).path(row.episode_id) == copy


def test_an_episode_file_takes_precedence_over_its_journal(tmp_path: Path) -> None:
    recording = unfinished_episode(tmp_path)
    journal = recording.journal.read_bytes()
    recording.end()
    recording.journal.write_bytes(journal)
    library = listed(tmp_path)
    assert [row.outcome for row in library.rows()] == [Outcome.SUCCESS]
    assert library.path(recording.header.episode_id) == recording.file


def test_a_damaged_journal_is_listed_up_to_its_damage_or_as_unreadable(tmp_path: Path) -> None:
    recording = unfinished_episode(tmp_path)
    with recording.journal.open("ab") as file:
        file.write(b'{"index": "\x1b[2J"}\n{}\n')
    empty = recording.journal.with_name("x.journal.jsonl")
    empty.write_bytes(b"")
    library = listed(tmp_path)
    episode, _ = library.load(recording.header.episode_id)
    assert len(episode.steps) == 2 and "is damaged" in (episode.error_message or "")
    assert [name for name, _ in texts(library)] == ["x.journal.jsonl"]


def test_the_lines_of_a_file_are_listed_and_opened_as_episodes(tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    folder.mkdir()
    ids = write_lines(folder / "all.jsonl", tmp_path / "data", 3)
    with (folder / "all.jsonl").open("ab") as file:
        file.write(b'\n{"schema":1,"episode_id":"\x1b"}\nnonsense\n')
    library = listed(folder)
    assert [row.episode_id for row in library.rows()] == ids
    assert [library.load(known)[0].episode_id for known in ids] == ids
    assert library.path(ids[0]) == folder / "all.jsonl"
    assert len(library.unreadable) == 2
    (folder / "all.jsonl").write_bytes(b"")
    with pytest.raises(StoreError, match="shorter than before"):
        library.load(ids[0])


def test_other_lines_are_logs_and_their_number_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a.jsonl", "b\x1b[2J.log", "c.ndjson", "below/d.log"):
        (tmp_path / name).write_bytes(b'{"a":1}\n')
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.log").symlink_to(tmp_path / "a.jsonl")
    assert texts(listed(tmp_path)) == [(name, "8 bytes") for name in ("a.jsonl", "b\x1b[2J.log", "c.ndjson", "d.log")]
    monkeypatch.setattr(file_library, "MAX_LOGS", 2)
    library = listed(tmp_path)
    assert [isinstance(file, FoundLog) for file in library.unreadable] == [True, True, False]
    assert "more than 2 logs" in library.unreadable[-1].reason
    record_episodes(tmp_path / "state")
    (tmp_path / "state/logs").mkdir()
    for name in ("batches.jsonl", "logs/node.log"):
        (tmp_path / "state" / name).write_bytes(b"{}\n")
    library = listed(tmp_path / "state")
    assert texts(library) == [("batches.jsonl", "3 bytes"), ("node.log", "3 bytes")]
    assert len(library.rows()) == 1


def shown_log(app: Console) -> str:
    return app.screen.opened.log.path.name if isinstance(app.screen, LogScreen) else ""


async def test_enter_opens_a_log_of_the_folder_and_a_journal(tmp_path: Path) -> None:
    unfinished_episode(tmp_path)
    for name in ("a.jsonl", "b.log"):
        (tmp_path / name).write_bytes(f"line of {name}\n".encode())
    app = Console(FileSession([tmp_path]))
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_until(pilot, lambda: len(app.session.logs) == 2)
        assert isinstance(app.screen, EpisodesScreen)
        await wait_for_widget_text(pilot, "#summary", "1 episode", "2 logs")
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, EpisodeScreen))
        await pilot.press("escape")
        await wait_until(pilot, lambda: isinstance(app.screen, EpisodesScreen))
        await pilot.press("G", "enter")
        await wait_until(pilot, lambda: shown_log(app) == "b.log")
        await pilot.press("p")
        await wait_until(pilot, lambda: shown_log(app) == "a.jsonl")


@given(st.lists(st.binary(max_size=40)), st.booleans())
def test_each_line_is_read_again_by_its_name(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    data = b"\n".join(line.replace(b"\n", b" ") for line in lines) + (b"\n" if ends else b"")
    path.write_bytes(data)
    read = [read_line(path / name).rstrip(b"\n") for name in line_names(path)]
    assert read == [line for line in data.split(b"\n") if line.strip()]
    assert holds_episodes(path) == data.startswith(b'{"schema":')


@pytest.mark.parametrize("name", ["", "..", "1", "x-1", "1-99999999999999999999999", "9" * 18 + "-1", "-1-1"])
def test_a_name_that_is_no_line_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"{}\n")
    with pytest.raises(StoreError):
        read_line(tmp_path / "x.jsonl" / name)
