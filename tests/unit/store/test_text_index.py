"""The full-text index: what it finds, how it follows the episode files, and hostile texts and searches."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import StoreError
from runner.node import text_indexing
from runner.node.text_indexing import index_texts
from runner.store import EpisodeIndex, EpisodeStore, open_index
from runner.store.passages import PassageKind, TextPattern, find_hits, read_passages
from runner.store.text_index import FILE_NAME, STAMPS, TextIndex, find_texts, is_current, read_stamps
from runner.types import Action, ErrorInfo, Outcome, TimeStep, ToolCall
from runner.util.files import file_lock
from tests.support.episodes import RecordedEpisode, damaged_bytes, make_step
from tests.support.examples import examples
from tests.support.node_events import wait_until


@pytest.fixture
def text_index(store: EpisodeStore) -> Iterator[TextIndex]:
    with closing(TextIndex.of(store)) as text_index:
        yield text_index


def record(store: EpisodeStore, index: EpisodeIndex, *observations: str) -> RecordedEpisode:
    steps = [make_step(n, observation=[{"role": "user", "content": text}]) for n, text in enumerate(observations)]
    return record_steps(store, index, steps)


def record_steps(store: EpisodeStore, index: EpisodeIndex, steps: list[TimeStep], **end: Any) -> RecordedEpisode:  # noqa: ANN401
    recording = RecordedEpisode(store, index)
    recording.start()
    recording.reset()
    for step in steps:
        recording.play(step)
    recording.end(**end)
    return recording


def found(text_index: TextIndex, index: EpisodeIndex, text: str) -> list[str]:
    text_index.update(index.select(STAMPS))
    return sorted(text_index.search([TextPattern(text)]))


def count(text_index: TextIndex, patterns: list[TextPattern]) -> int:
    return text_index.count(patterns, set(text_index.search(patterns)))


def test_words_are_found_in_their_order(store: EpisodeStore, index: EpisodeIndex, text_index: TextIndex) -> None:
    first = record(store, index, "You see a locked door.", "the LOCKED,\ndoor")
    second = record(store, index, "The door is locked.")
    ids = [first.header.episode_id, second.header.episode_id]
    assert text_index.update(index.select(STAMPS), at_most=1) == 2
    assert text_index.update(index.select(STAMPS)) == 0
    assert found(text_index, index, "locked door") == ids[:1]
    assert count(text_index, [TextPattern("locked door")]) == 2
    assert found(text_index, index, "door") == ids
    assert found(text_index, index, "lock") == []
    assert sorted(text_index.search([TextPattern("lock", is_prefix=True)])) == ids


def test_every_text_of_an_episode_is_in_a_passage(store: EpisodeStore, index: EpisodeIndex) -> None:
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "in parts"}]},
        {"role": "assistant", "content": "my answer", "reasoning_content": "my thought"},
    ]
    call = ToolCall(id="1", name="open", arguments='{"what": "door"}')
    step = make_step(
        0,
        chats=[chat],
        action=Action(text="my action", tool_calls=[call]),
        observation=[{"role": "user", "content": "my observation"}],
    )
    error = ErrorInfo("Broken", "my error", "trace")
    recording = record_steps(store, index, [step], error_info=error, outcome=Outcome.ERROR)
    passages = read_passages(store.read_bytes(recording.header.episode_id))
    assert {passage.kind for passage in passages} == set(get_args(PassageKind))
    texts = {passage.kind: passage.text for passage in passages if passage.step == 0}
    assert texts["prompt"] == "be brief\nin parts"
    assert texts["tool call"] == 'open {"what": "door"}'
    assert (texts["thought"], texts["answer"], texts["action"]) == ("my thought", "my answer", "my action")
    assert texts["error"] == "Broken\nmy error\ntrace"


def test_a_hit_has_its_line(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = record(store, index, "one\ntwo red keys\nthree red\nkeys")
    data = store.read_bytes(recording.header.episode_id)
    hits = list(find_hits(data, [TextPattern("red keys"), TextPattern("keys")]))
    assert [(hit.step, hit.line, hit.line[hit.start : hit.end]) for hit in hits] == [
        (0, "two red keys", "red keys"),
        (0, "three red", "red"),
        (0, "keys", "keys"),
    ]


def test_the_index_follows_the_files(store: EpisodeStore, index: EpisodeIndex, text_index: TextIndex) -> None:
    recordings = [record(store, index, f"word{number} common") for number in range(3)]
    ids = [recording.header.episode_id for recording in recordings]
    assert found(text_index, index, "common") == ids
    for recording in recordings[:2]:
        store.path(recording.header.batch_id, recording.header.episode_id).unlink()
        index.reconcile()
        assert found(text_index, index, "common") == ids[recordings.index(recording) + 1 :]
        assert found(text_index, index, "word0") == []
    new = record(store, index, "common again")
    assert text_index.update(index.select(STAMPS), go_on=lambda seconds: False) == 0
    assert found(text_index, index, "common") == [ids[2], new.header.episode_id]


def test_what_is_gone_or_changed_is_not_found_in_what_comes_after_it(
    store: EpisodeStore, index: EpisodeIndex, text_index: TextIndex
) -> None:
    first, *later = [record(store, index, f"word{number} common") for number in range(4)]
    ids = [recording.header.episode_id for recording in (first, *later)]
    assert found(text_index, index, "common") == ids
    store.path(later[-1].header.batch_id, ids[-1]).unlink()
    path = store.path(first.header.batch_id, ids[0])
    path.write_bytes(path.read_bytes().replace(b"word0 common", b"changed and common"))
    index.reconcile()
    assert text_index.update(index.select(STAMPS)[:1], is_all=False) == 0
    assert [len(text_index.search([TextPattern(word)])) for word in ("word0", "changed", "common")] == [0, 1, 4]
    new = record(store, index, "new common")
    assert found(text_index, index, "common") == [*ids[:-1], new.header.episode_id]
    assert count(text_index, [TextPattern("common")]) == 4
    assert found(text_index, index, "changed") == ids[:1]
    assert found(text_index, index, "word0") == found(text_index, index, "word3") == []


def test_only_later_files_are_compared_unless_an_earlier_one_has_changed(
    store: EpisodeStore, index: EpisodeIndex, text_index: TextIndex
) -> None:
    def compare() -> bool:
        index.reconcile()
        stamps, is_all = read_stamps(store.data_dir, text_index.summary())
        text_index.build(stamps, lambda seconds: True, is_all=is_all)
        assert is_current(store.data_dir)
        return is_all

    recordings = [record(store, index, "word" + number * "s") for number in range(4)]
    ids = [recording.header.episode_id for recording in recordings]
    paths = [store.path(recording.header.batch_id, recording.header.episode_id) for recording in recordings]
    contents = [path.read_bytes() for path in paths]
    for path in paths[1:]:
        path.unlink()
    assert not compare()
    for later, (path, content) in enumerate(zip(paths[1:3], contents[1:3], strict=True), start=1):
        path.write_bytes(content)
        os.utime(path, (later << 32, later << 32))
        assert not compare()
    assert text_index.search([TextPattern("word", is_prefix=True)]) == ids[:3]
    paths[3].write_bytes(contents[3])
    os.utime(paths[3], (1, 1))
    paths[0].unlink()
    assert compare()
    assert text_index.search([TextPattern("word", is_prefix=True)]) == ids[1:]


@pytest.mark.parametrize("damage", ["deleted", "deleted while open", "cut", "later", "other"])
def test_a_missing_or_damaged_index_is_built_again(
    store: EpisodeStore, index: EpisodeIndex, text_index: TextIndex, damage: str
) -> None:
    recording = record(store, index, "a locked door")
    assert found(text_index, index, "door") == [recording.header.episode_id]
    if damage != "deleted while open":
        text_index.close()
    path = store.data_dir / FILE_NAME
    match damage:
        case "deleted" | "deleted while open":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "later":
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA user_version = 99")
        case "other":
            path.write_bytes(b"no database")
    assert found(text_index, index, "door") == [recording.header.episode_id]


def test_an_index_whose_words_are_damaged_is_built_again(
    store: EpisodeStore, index: EpisodeIndex, text_index: TextIndex
) -> None:
    recording = record(store, index, "a locked door")
    assert found(text_index, index, "door") == [recording.header.episode_id]
    with closing(sqlite3.connect(text_index.path)) as connection, connection:
        connection.execute("UPDATE passages_data SET block = x'0102' WHERE id > 10")
    with pytest.raises(StoreError):
        text_index.search([TextPattern("door")])
    assert found(text_index, index, "door") == [recording.header.episode_id]


def test_a_rebuild_of_the_episode_index_leaves_it_as_it_is(
    store: EpisodeStore, index: EpisodeIndex, text_index: TextIndex
) -> None:
    recording = record(store, index, "a locked door")
    assert text_index.update(index.select(STAMPS)) == 0
    index.close()
    (store.data_dir / "index.sqlite").unlink()
    with closing(open_index(store)) as rebuilt:
        assert text_index.update(rebuilt.select(STAMPS), at_most=0) == 0
    assert text_index.search([TextPattern("door")]) == [recording.header.episode_id]


def test_large_episodes_are_added_one_by_one(
    store: EpisodeStore, index: EpisodeIndex, text_index: TextIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        record(store, index, f"door {number}")
    monkeypatch.setattr("runner.store.text_index.BYTES_PER_TRANSACTION", 10)
    worked: list[float] = []

    def go_on(seconds: float) -> bool:
        worked.append(seconds)
        return len(worked) < 2

    assert text_index.update(index.select(STAMPS), go_on=go_on) == 1
    assert text_index.update(index.select(STAMPS)) == 0
    assert count(text_index, [TextPattern("door")]) == 3


def test_only_one_process_builds_the_index(store: EpisodeStore, index: EpisodeIndex, text_index: TextIndex) -> None:
    record(store, index, "a locked door")
    with file_lock(store.data_dir / "text.building", wait_s=60, create=True):
        text_index.build(index.select(STAMPS), lambda seconds: True)
        assert count(text_index, [TextPattern("door")]) == 0
    text_index.build(index.select(STAMPS), lambda seconds: True)
    assert count(text_index, [TextPattern("door")]) == 1


def test_without_a_writable_index_the_files_are_searched(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = record(store, index, "a locked door")
    (store.data_dir / "text.sqlite-wal").mkdir()
    path = store.data_dir / FILE_NAME
    path.symlink_to(store.data_dir / "missing" / "folder")
    assert find_texts(store.data_dir, TextPattern("locked door")) == [recording.header.episode_id]
    assert find_texts(store.data_dir, TextPattern("door locked")) == []


async def test_while_episodes_play_the_process_starts_seldom_and_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_checks, rests, started = 0, list[float](), asyncio.Event()

    async def run(data_dir: Path, rest: float) -> None:
        rests.append(rest)
        started.set()

    def is_idle() -> bool:
        nonlocal n_checks
        n_checks += 1
        return False

    monkeypatch.setattr(text_indexing, "_run", run)
    monkeypatch.setattr(text_indexing, "is_current", lambda data_dir: False)
    (tmp_path / "index.sqlite").touch()
    indexing = asyncio.create_task(index_texts(tmp_path, is_idle, interval_s=0))
    await asyncio.wait_for(started.wait(), 10)
    indexing.cancel()
    await asyncio.wait([indexing], timeout=10)
    assert (n_checks, rests) == (text_indexing.INTERVALS_WHILE_PLAYING, [text_indexing.REST_WHILE_PLAYING])


async def test_a_node_indexes_new_episodes(store: EpisodeStore, index: EpisodeIndex) -> None:
    recording = record(store, index, "a locked door")
    index.write_waiting()
    assert not is_current(store.data_dir)

    def is_idle() -> bool:
        return True

    indexing = asyncio.create_task(index_texts(store.data_dir, is_idle, interval_s=0.01))
    with closing(TextIndex.of(store)) as text_index:
        ids = [recording.header.episode_id]
        await wait_until(lambda: text_index.search([TextPattern("door")]) == ids, timeout_s=20)
        await wait_until(lambda: is_current(store.data_dir))
    indexing.cancel()
    await asyncio.wait([indexing], timeout=10)
    assert indexing.cancelled()


@settings(max_examples=examples(60))
@given(
    st.lists(st.text(st.sampled_from('ab C1_-*^:"(){}[]+.,\n\t\x00\x1b'), max_size=12), min_size=1, max_size=4),
    st.sampled_from(
        ["a", "ab", "a b", "AND", "a OR b", "NEAR(a b)", '"', 'a" OR "b', "text: a", "b*", "^a", "C1", "\0a"]
    ),
    st.booleans(),
)
def test_the_index_and_the_lines_agree_on_hostile_texts(texts: list[str], words: str, is_prefix: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = EpisodeStore(Path(folder))
        with closing(open_index(store)) as index, closing(TextIndex.of(store)) as text_index:
            recording = record(store, index, *texts)
            text_index.update(index.select(STAMPS))
            pattern = TextPattern(words, is_prefix)
            data = store.read_bytes(recording.header.episode_id)
            steps = {(hit.step, hit.kind) for hit in find_hits(data, [pattern])}
            assert count(text_index, [pattern]) == len(steps)


@given(st.text(st.characters(exclude_categories=())), st.booleans())
def test_no_search_is_an_error(text_of_user: str, is_prefix: bool) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE VIRTUAL TABLE t USING fts5(text)")
        expression = TextPattern(text_of_user, is_prefix).match_expression
        assert connection.execute("SELECT * FROM t WHERE t MATCH ?", (expression,)).fetchall() == []
    TextPattern(text_of_user, is_prefix).compiled()


@given(damaged_bytes(b'{"reset_observation": [], "timesteps": [{"chats": [[1]], "action": {}, "observation": [{}]}]}'))
def test_damaged_episodes_raise_only_store_errors(data: bytes) -> None:
    with suppress(StoreError):
        read_passages(data)
