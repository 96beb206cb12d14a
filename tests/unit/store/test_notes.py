"""Tags and notes: bounded, durable, and written by several processes at once."""

from __future__ import annotations

import multiprocessing
import sqlite3
import tempfile
import warnings
from contextlib import closing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import StoreError
from runner.store.notes import InvalidNote, Notes, checked_tag
from runner.types.notes import MAX_PER_EPISODE, MAX_TAG_CHARS, NoteChange
from tests.support.episodes import new_id


def texts(notes: Notes, episode_id: str) -> list[tuple[str, int | None, str]]:
    return [(note.kind, note.step, note.text) for note in notes.of_episode(episode_id)]


def test_tags_and_notes_of_an_episode_and_its_steps(tmp_path: Path) -> None:
    notes, episode_id, note_id = Notes(tmp_path), new_id(), new_id()
    assert (notes.of_episode(episode_id), notes.tags()) == ([], {})
    notes.change(episode_id, NoteChange(add=("good", "loop"), author="ada"))
    notes.change(episode_id, NoteChange(add=("good",), step=3))
    change = NoteChange(note="It turns\nback here.", note_id=note_id, step=3)
    notes.change(episode_id, change)
    notes.change(episode_id, change)
    found = notes.change(episode_id, NoteChange(add=("good",), remove=("loop", "unknown")))
    assert found == Notes(tmp_path).of_episode(episode_id)
    assert sorted(texts(notes, episode_id), key=str) == [
        ("note", 3, "It turns\nback here."),
        ("tag", 3, "good"),
        ("tag", None, "good"),
    ]
    assert notes.tags() == {episode_id: ("good",)}
    notes.change(new_id(), NoteChange(note_id=note_id))  # the note of another episode
    assert len(notes.of_episode(episode_id)) == 3
    notes.change(episode_id, NoteChange(note_id=note_id))
    assert len(notes.of_episode(episode_id)) == 2
    assert (tmp_path / "notes.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("tag", ["", " ", "a b", "a,b", "a\nb", "\x1b[31m", "a\u202eb", "x" * 65, "\ud800", "\u200b"])
def test_invalid_tags_are_refused(tmp_path: Path, tag: str) -> None:
    with pytest.raises(InvalidNote):
        Notes(tmp_path).change(new_id(), NoteChange(add=(tag,)))


@given(st.text(max_size=80))
def test_a_stored_tag_is_one_printable_word(text: str) -> None:
    try:
        tag = checked_tag(text)
    except InvalidNote:
        return
    assert tag.isprintable()
    assert 0 < len(tag) <= MAX_TAG_CHARS
    assert len(tag.split()) == 1
    assert checked_tag(tag) == tag


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_any_text_is_a_note_that_its_words_find_or_is_refused(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        notes, episode_id = Notes(Path(folder)), new_id()
        try:
            stored = notes.change(episode_id, NoteChange(note=text))[0].text
        except InvalidNote:
            stored = ""
        assert [note.text for note in notes.of_episode(episode_id)] == ([stored] if stored else [])
        for words in filter(None, (stored, stored[1:], stored[:3])):
            assert notes.find("note", words) == {episode_id}
        assert notes.find("tag", text) == set()
        assert notes.find("note", f"{text} and more") == set()


def test_bounds_per_episode_change_nothing_beyond(tmp_path: Path) -> None:
    notes, episode_id = Notes(tmp_path), new_id()
    notes.change(episode_id, NoteChange(add=tuple(f"t{n}" for n in range(MAX_PER_EPISODE))))
    with pytest.raises(InvalidNote, match="at most 200"):
        notes.change(episode_id, NoteChange(add=("one-more",), remove=()))
    notes.change(episode_id, NoteChange(add=("one-more",), remove=("t0",)))
    assert len(notes.of_episode(episode_id)) == MAX_PER_EPISODE
    for invalid in (
        NoteChange(step=-1, add=("a",)),
        NoteChange(note=" "),
        NoteChange(note_id="x"),
        NoteChange(author=""),
    ):
        with pytest.raises(InvalidNote):
            notes.change(episode_id, invalid)
    with pytest.raises(InvalidNote):
        notes.change("../x", NoteChange(add=("a",)))


def _tag(folder: Path, episode_id: str, name: str, start: Barrier) -> None:
    start.wait(60)
    for number in range(20):
        Notes(folder).change(episode_id, NoteChange(add=(f"{name}-{number}",)))


def test_processes_that_write_at_once_lose_none(tmp_path: Path) -> None:
    episode_id, context = new_id(), multiprocessing.get_context("fork")
    start = context.Barrier(2)
    process = context.Process(target=_tag, args=(tmp_path, episode_id, "a", start))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child uses nothing of other threads
        process.start()
    _tag(tmp_path, episode_id, "b", start)
    process.join(60)
    assert process.exitcode == 0
    assert len(Notes(tmp_path).of_episode(episode_id)) == 40


def test_a_damaged_file_is_kept_aside_and_one_of_a_later_version_is_refused(tmp_path: Path) -> None:
    notes, episode_id = Notes(tmp_path), new_id()
    notes.path.write_bytes(b"no database" * 100)
    notes.change(episode_id, NoteChange(add=("a",)))
    assert (tmp_path / "notes.sqlite.damaged").read_bytes() == b"no database" * 100
    with closing(sqlite3.connect(notes.path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    content = notes.path.read_bytes()
    with pytest.raises(StoreError, match=r"schema 2.*the version that wrote it"):
        notes.change(episode_id, NoteChange(add=("b",)))
    assert notes.path.read_bytes() == content


def test_hostile_rows_are_cut_or_skipped(tmp_path: Path) -> None:
    notes, episode_id = Notes(tmp_path), new_id()
    notes.change(episode_id, NoteChange(add=("a",)))
    with closing(sqlite3.connect(notes.path)) as connection, connection:
        rows = [("x", episode_id, "step", "tag", "b", "?", None), ("y", episode_id, None, "tag", "c" * 9999, "?", None)]
        connection.executemany("INSERT INTO notes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    assert texts(notes, episode_id) == [("tag", None, "a")]
    assert [len(tag) for tag in notes.tags()[episode_id]] == [1, 1, 64]
