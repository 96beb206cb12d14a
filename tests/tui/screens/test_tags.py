"""Tags and notes: shown in list, heading and transcript, found by the filter, edited in a dialog through the node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from textual.widgets import Input

from agentgym_tui.sessions.library import StateDirLibrary
from agentgym_tui.sessions.run_commands import annotate, split_tags, tags_of
from runner.client.node_client import ControlRequestError
from runner.events.control import AnnotateArgs
from runner.store.notes import Notes
from runner.types.notes import MAX_TAG_CHARS, Kind, Note, NoteChange
from runner.util.clock import is_ulid, new_ulid
from tests.support.console.fake_session import FakeSession, busy_session
from tests.support.console.pilot import (
    console_pilot,
    filter_by,
    screen_text,
    wait_for_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.console.samples import HOSTILE, START, episode_id, row
from tests.support.episodes import record_episodes

LIST, SUMMARY, HEADING, NOTE, TRANSCRIPT = "#episodes", "#summary", "#heading", "#report", "#transcript"


def tagged_session() -> FakeSession:
    session = busy_session()
    session.fake_library.stored = [row(number) for number in range(1, 4)]
    session.store.apply_tags({episode_id(1): ("good", "loop"), episode_id(2): (HOSTILE,)})
    session.fake_control.notes[episode_id(1)] = [note("tag", "good"), note("tag", "loop")]
    return session


def note(kind: Kind, text: str, step: int | None = None, author: str = "ada") -> Note:
    return Note(id=new_ulid(), step=step, kind=kind, text=text, at=START, author=author)


async def test_tags_are_shown_safely_found_by_the_filter_and_only_edited_ones_are_changed() -> None:
    session = tagged_session()
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, LIST, "#good #loop")
        assert "\x1b" not in widget_text(pilot, LIST)
        await pilot.press("space", "space")
        await wait_for_widget_text(pilot, SUMMARY, "●2 selected")
        await pilot.press("T")
        await wait_for_text(pilot, "Tags and notes of 2 episodes")
        await pilot.press(*"fresh", "enter", "enter")
        await wait_for_text(pilot, "saved: Tags and notes of 2 episodes")
        changes = session.fake_control.annotations
        assert len({each.episode_id for each in changes}) == 2
        assert all((each.add, each.remove) == (["fresh"], []) for each in changes)
        await pilot.press("k", "space", "k", "space")  # nothing is selected
        await filter_by(pilot, "#loop")
        await wait_for_widget_text(pilot, SUMMARY, "1 match")
        session.store.apply_tags({episode_id(1): ("loop",), episode_id(3): ("loop",)})
        await wait_for_widget_text(pilot, SUMMARY, "2 match")
        session.store.apply_tags({episode_id(1): ("good", "loop")})
        await wait_for_widget_text(pilot, SUMMARY, "1 match")
        changes.clear()
        session.fake_control.notes[episode_id(1)] = [note("tag", "good"), note("tag", "loop")]
        await pilot.press("enter")
        await wait_for_widget_text(pilot, HEADING, "#good #loop")
        await pilot.press("T")
        await wait_for_text(pilot, "Tags and notes of")
        field = pilot.app.screen.query_one("#words", Input)
        assert field.value == "good loop "
        session.fake_control.notes[episode_id(1)].append(note("tag", "from-another-console"))
        field.value = "loop, new  new "
        await pilot.press("enter", "enter")
        await wait_until(pilot, lambda: bool(changes))
        (args,) = changes
        assert (args.episode_id, args.add, args.remove) == (episode_id(1), ["new"], ["good"])
        await wait_for_widget_text(pilot, HEADING, "#new")  # what the node has now


async def test_a_note_on_a_step_is_written_shown_and_removed() -> None:
    session = tagged_session()
    notes = session.fake_control.notes
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await filter_by(pilot, "#loop")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, HEADING, "#good #loop")
        await pilot.press("j", "i")
        await wait_for_text(pilot, "Tags and notes of step 1 of Wordle")
        await pilot.press(*"guesses twice", "enter", "enter")
        await wait_for_widget_text(pilot, TRANSCRIPT, "■ ✎ note on the step", "ada", "guesses twice")
        (args,) = session.fake_control.annotations
        assert (args.step, args.note, args.add, args.remove) == (1, "guesses twice", [], [])
        assert is_ulid(args.note_id or "")
        await wait_for_widget_text(pilot, HEADING, "✎ 1 note")
        await wait_for_widget_text(pilot, "#steps", "✎1")
        await pilot.press("k")
        await wait_until(pilot, lambda: "guesses twice" not in widget_text(pilot, TRANSCRIPT))
        await pilot.press("j", "i")
        await wait_for_text(pilot, "Tags and notes of step 1 of Wordle")
        await pilot.press(*"D", "tab", "D")  # the first D is typed
        await wait_until(pilot, lambda: not any(each.kind == "note" for each in notes[episode_id(1)]))
        await pilot.press("escape")
        await wait_until(pilot, lambda: "✎" not in widget_text(pilot, HEADING))
        await pilot.press("T")
        await wait_for_text(pilot, "Tags and notes of Wordle task")
        await pilot.press("tab", *"of the whole", "enter", "enter")
        await pilot.press("k")
        await wait_for_widget_text(pilot, TRANSCRIPT, "■ ✎ note on the episode", "of the whole")


async def test_notes_of_another_console_appear_and_hostile_ones_are_harmless() -> None:
    session = tagged_session()
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await filter_by(pilot, "#loop")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, HEADING, "#good #loop")
        session.fake_control.notes[episode_id(1)] += [
            note("note", HOSTILE, 0, author=HOSTILE),
            note("tag", HOSTILE, 0),
            note("note", "seen there", 0),
        ]
        session.fake_library.notes_state = 1
        session.store.apply_tags(dict(session.store.tags))
        await wait_for_widget_text(pilot, TRANSCRIPT, "seen there")
        assert "\x1b" not in widget_text(pilot, TRANSCRIPT) + widget_text(pilot, HEADING)
        await pilot.press("i")
        await wait_for_text(pilot, "Tags and notes of step 0", "seen there")
        assert "\x1b" not in screen_text(pilot.app)
        await pilot.press("enter", "enter")  # nothing has changed, so nothing is sent
        await wait_until(pilot, lambda: type(pilot.app.screen).__name__ == "EpisodeScreen")
    assert session.fake_control.annotations == []


async def test_two_consoles_that_write_at_once_lose_none(tmp_path: Path) -> None:
    [record] = record_episodes(tmp_path)
    sessions, notes = [busy_session() for _ in range(2)], Notes(tmp_path)
    for session in sessions:
        session.fake_control.annotate = lambda args: asyncio.to_thread(  # type: ignore[method-assign]
            notes.change, args.episode_id, msgspec.convert(args, NoteChange, from_attributes=True)
        )
    changes = [
        annotate(session, AnnotateArgs(episode_id=record.episode_id, step=n % 2, note=f"{n}", note_id=new_ulid()))
        for n, session in enumerate(sessions * 10)
    ]
    await asyncio.gather(*changes)
    library = StateDirLibrary(lambda: tmp_path)
    assert {each.text for each in library.notes(record.episode_id)} == {f"{n}" for n in range(20)}
    (tmp_path / "index.sqlite").unlink()
    library.close()
    rebuilt = StateDirLibrary(lambda: tmp_path)
    assert len(rebuilt.rows()) == 1
    assert len(rebuilt.notes(record.episode_id)) == 20
    assert list(rebuilt.lookups()["note"]("7", False)) == [record.episode_id]
    rebuilt.close()


async def test_a_refused_change_keeps_the_dialog_and_its_text() -> None:
    session = tagged_session()
    session.fake_control.refusal = ControlRequestError("annotate: no \x1b tag", "join its words")
    async with console_pilot(session) as pilot:
        await pilot.press("2", "T")
        await wait_for_text(pilot, "Tags and notes of")
        await pilot.press(*"a-b", "enter", "enter")
        await wait_for_widget_text(pilot, NOTE, "✗ annotate: no ␛ tag; join its words")
        assert pilot.app.screen.query_one("#words", Input).value == "a-b"
        await pilot.press("escape")
        await wait_for_widget_text(pilot, SUMMARY, "episodes")
        await pilot.press("T")
        await wait_for_text(pilot, "Tags and notes of")
        await pilot.press("enter", "enter")  # nothing has changed
        await wait_for_widget_text(pilot, SUMMARY, "episodes")
    assert session.fake_control.annotations == []


def test_typed_words_and_stored_tags() -> None:
    assert split_tags("  a, b\tc  a,") == ["a", "b", "c"]
    assert split_tags(" ") == []
    assert tags_of([note("tag", "b", 3), note("note", "x"), note("tag", "a")]) == ("a", "b")
    assert MAX_TAG_CHARS == 64
