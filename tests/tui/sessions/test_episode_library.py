from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym_tui.sessions.episode_files import episode_from_bytes, episode_from_record
from agentgym_tui.sessions.file_library import FileLibrary
from agentgym_tui.sessions.library import StateDirLibrary
from runner.errors import ConfigError, StoreError
from runner.store import EpisodeRecord, EpisodeStore, open_index
from runner.store.journal import JOURNAL_SUFFIX
from runner.types import Action, Outcome
from tests.support.episodes import RecordedEpisode, make_step, new_id, record_episodes


def scan_library(*paths: Path) -> FileLibrary:
    library = FileLibrary(paths)
    for _ in library.scan():
        pass
    return library


def file_of(data_dir: Path, record: EpisodeRecord) -> Path:
    return data_dir / "runs" / record.batch_id / f"{record.episode_id}.json"


def modification_times(folder: Path) -> set[tuple[Path, int]]:
    return {(path, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_an_episode_equals_its_record(tmp_path: Path) -> None:
    [record] = record_episodes(tmp_path, env="Wordle", seed=4, task_index=9)
    episode = episode_from_record(record)
    assert (episode.env, episode.seed, episode.task_index, episode.agent) == ("Wordle", 4, 9, "oracle")
    assert (episode.outcome, episode.success, episode.reward, episode.rounds) == ("success", True, 0.5, 2)
    assert not episode.running and episode.error_type is None
    assert [step.index for step in episode.steps] == [0, 1]
    assert episode.steps[0].action.text == "move up" and episode.steps[0].valid
    assert episode.steps[1].chats == record.timesteps[1].chats
    assert episode.reset_observation == record.reset_observation
    assert episode.spans.all == record.spans and episode.tokens == record.tokens and episode.cost == 1.0
    raw = json.loads(file_of(tmp_path, record).read_bytes())
    error = {"type": "ValueError", "message": "\x1b]0;x\x07", "traceback": "line"}
    episode = episode_from_bytes(json.dumps({**raw, "error": error, "outcome": "error"}).encode(), Path("x"))
    assert episode.outcome == str(Outcome.ERROR)
    assert (episode.error_type, episode.error_message, episode.error_traceback) == tuple(error.values())


def test_chat_entries_of_other_types_become_messages(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    index = open_index(store)
    recording = RecordedEpisode(store, index)
    recording.start()
    recording.play(make_step(0, chats=[["no message", 7]], action=Action(None, [])))
    recording.end()
    index.close()
    episode = episode_from_record(store.load(recording.file))
    assert episode.steps[0].chats == [[{"content": "no message"}, {"content": 7}]]


def test_a_state_directory_lists_the_newest_first_and_loads_each_episode(tmp_path: Path) -> None:
    records = record_episodes(tmp_path, 3)
    library = StateDirLibrary(lambda: tmp_path)
    assert [row.episode_id for row in library.rows()] == sorted((r.episode_id for r in records), reverse=True)
    for record in records:
        episode, data = library.load(record.episode_id)
        assert episode == episode_from_record(record)
        assert data == file_of(tmp_path, record).read_bytes()
    [new] = record_episodes(tmp_path)
    listed = [row.episode_id for row in library.rows()]
    assert listed == [new.episode_id, *sorted((r.episode_id for r in records), reverse=True)]
    library.close()


def test_damaged_files_are_listed_with_the_reason(tmp_path: Path) -> None:
    [record] = record_episodes(tmp_path)
    file_of(tmp_path, record).write_bytes(b"{")
    library = StateDirLibrary(lambda: tmp_path)
    assert library.rows() == []
    assert [bad.path for bad in library.unreadable] == [file_of(tmp_path, record)]
    assert "damaged" in library.unreadable[0].reason
    with pytest.raises(StoreError, match="damaged"):
        library.load(record.episode_id)
    library.close()


@pytest.mark.parametrize("invalid", ["../../etc/passwd", "", "\x1b[2J", "0" * 26])
def test_an_invalid_id_is_rejected(tmp_path: Path, invalid: str) -> None:
    library = StateDirLibrary(lambda: tmp_path)
    with pytest.raises(StoreError):
        library.load(invalid)
    library.close()

    def locate() -> Path:
        raise ConfigError("no such profile")

    with pytest.raises(StoreError, match="no such profile"):
        StateDirLibrary(locate).load(invalid)


def test_a_journal_contains_the_running_episode_with_all_its_steps(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    index = open_index(store)
    recording = RecordedEpisode(store, index)
    recording.start()
    recording.reset()
    for number in range(3):
        recording.play(make_step(number))
    library = StateDirLibrary(lambda: tmp_path)
    [episode] = library.read_journals([recording.header.batch_id, "../..", new_id()])
    assert episode.running and episode.duration_s is None
    assert episode.episode_id == recording.header.episode_id
    assert [step.index for step in episode.steps] == [0, 1, 2]
    assert episode.reset_observation == [{"role": "user", "content": "observation 0"}]
    recording.end()
    assert library.read_journals([recording.header.batch_id]) == []
    library.close()
    index.close()


def test_files_are_found_in_any_named_folder_or_file(tmp_path: Path) -> None:
    records = record_episodes(tmp_path / "state", 2)
    [other] = record_episodes(tmp_path / "other")
    expected = sorted((record.episode_id for record in records), reverse=True)
    for path in (tmp_path / "state", tmp_path / "state" / "runs"):
        assert [row.episode_id for row in scan_library(path).rows()] == expected
    batch = tmp_path / "other" / "runs" / other.batch_id
    for path in (batch, file_of(tmp_path / "other", other)):
        assert [row.episode_id for row in scan_library(path).rows()] == [other.episode_id]
    before = modification_times(tmp_path)
    both = scan_library(tmp_path / "state", batch, file_of(tmp_path / "other", other))
    assert len(both.rows()) == 3 and both.load(other.episode_id)
    assert modification_times(tmp_path) == before


def test_an_episode_file_may_have_any_name(tmp_path: Path) -> None:
    [record] = record_episodes(tmp_path / "state")
    moved = tmp_path / "\x1b[2Jsent by a friend.json"
    file_of(tmp_path / "state", record).rename(moved)
    library = scan_library(moved)
    assert [row.env for row in library.rows()] == ["Maze"]
    episode, data = library.load(record.episode_id)
    assert episode == episode_from_record(record) == episode_from_bytes(data, moved)


def test_files_that_are_no_episodes_are_listed_with_the_reason(tmp_path: Path) -> None:
    [record] = record_episodes(tmp_path / "state")
    folder = file_of(tmp_path / "state", record).parent
    document = json.loads(file_of(tmp_path / "state", record).read_bytes())
    texts = {
        "later.json": json.dumps({**document, "schema": 9}),
        "foreign.json": '{"some": "thing"}',
        "torn.json": json.dumps(document)[:-40],
        "deep.json": "[" * 100_000,
        "binary.json": "\x00\x1b[2J",
        "path.json": json.dumps({**document, "episode_id": "../../x"}),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "loop.json").symlink_to("loop.json")
    (folder / f"{new_id()}{JOURNAL_SUFFIX}").touch()
    library = scan_library(folder, tmp_path / "nothing here")
    assert [row.episode_id for row in library.rows()] == [record.episode_id]
    unreadable = {bad.path.name for bad in library.unreadable}
    assert unreadable >= {*texts, "loop.json", "nothing here"} and len(unreadable) == len(texts) + 3
    assert all(bad.reason for bad in library.unreadable)


def test_a_deleted_file_and_an_unknown_id_are_store_errors(tmp_path: Path) -> None:
    [record] = record_episodes(tmp_path)
    library = scan_library(tmp_path)
    file_of(tmp_path, record).unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        library.load(record.episode_id)
    with pytest.raises(StoreError, match="have no episode"):
        library.load("../x")


def test_rows_are_available_while_files_are_read(tmp_path: Path) -> None:
    records = record_episodes(tmp_path, 60)
    library = FileLibrary([tmp_path])
    parts = library.scan()
    newest = sorted((record.episode_id for record in records), reverse=True)
    assert [row.episode_id for row in next(parts)] == newest[:50]
    assert [row.episode_id for row in library.rows()] == newest[:50]
    assert sum(len(part) for part in parts) == 10
