"""Tags of an episode: shown in list and heading, found by the filter, and edited in a dialog through the node."""

from __future__ import annotations

from textual.widgets import Input

from agentgym_tui.sessions.protocols import ControlRequestError
from agentgym_tui.sessions.run_commands import split_tags, tags_of
from runner.types.notes import MAX_TAG_CHARS
from tests.support.console.fake_session import FakeSession, busy_session, files_session
from tests.support.console.pilot import console_pilot, wait_for_text, wait_for_widget_text, wait_until, widget_text
from tests.support.console.samples import HOSTILE, episode_id, row

LIST, SUMMARY, HEADING, NOTE = "#episodes", "#summary", "#heading", "#note"


def tagged_session() -> FakeSession:
    session = busy_session()
    session.fake_library.stored = [row(number) for number in range(1, 4)]
    session.store.apply_tags({episode_id(1): ("good", "loop"), episode_id(2): (HOSTILE,)})
    return session


async def test_tags_are_shown_safely_and_found_by_the_filter() -> None:
    session = tagged_session()
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, LIST, "#good #loop")
        assert "\x1b" not in widget_text(pilot, LIST)
        await pilot.press("slash", *"#loop", "enter")
        await wait_for_widget_text(pilot, SUMMARY, "1 match")
        session.store.apply_tags({episode_id(1): ("loop",), episode_id(3): ("loop",)})
        await wait_for_widget_text(pilot, SUMMARY, "2 match")
        session.store.apply_tags({episode_id(1): ("good", "loop")})
        await wait_for_widget_text(pilot, SUMMARY, "1 match")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, HEADING, "#good #loop")


async def test_the_dialog_adds_and_removes_only_what_was_edited() -> None:
    session = tagged_session()
    async with console_pilot(session) as pilot:
        await pilot.press("2", "slash", *"#loop", "enter", "enter")
        await wait_for_widget_text(pilot, HEADING, "#good #loop")
        await pilot.press("T")
        await wait_for_text(pilot, "Tags of")
        field = pilot.app.screen.query_one("#words", Input)
        assert field.value == "good loop "
        session.store.apply_tags({episode_id(1): ("from-another-console", "good", "loop")})
        field.value = "loop, new  new "
        await pilot.press("enter")
        await wait_until(pilot, lambda: bool(session.fake_control.annotations))
        (args,) = session.fake_control.annotations
        assert (args.episode_id, args.add, args.remove) == (episode_id(1), ["new"], ["good"])
        await wait_for_widget_text(pilot, HEADING, "#new")  # what the node has now


async def test_a_refused_change_keeps_the_dialog_and_its_text() -> None:
    session = tagged_session()
    session.fake_control.refusal = ControlRequestError("annotate: no \x1b tag", "join its words")
    async with console_pilot(session) as pilot:
        await pilot.press("2", "T")
        await wait_for_text(pilot, "Tags of")
        await pilot.press(*"a-b", "enter")
        await wait_for_widget_text(pilot, NOTE, "✗ annotate: no ␛ tag; join its words")
        assert pilot.app.screen.query_one("#words", Input).value == "a-b"
        await pilot.press("escape")
        await wait_for_widget_text(pilot, SUMMARY, "episodes")
        await pilot.press("T")
        await wait_for_text(pilot, "Tags of")
        await pilot.press("enter")  # nothing has changed
        await wait_for_widget_text(pilot, SUMMARY, "episodes")
    assert session.fake_control.annotations == []


async def test_opened_files_have_no_tags_to_edit() -> None:
    session = files_session(3)
    async with console_pilot(session) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, SUMMARY, "3 episodes")
        await pilot.press("T")
        await wait_for_text(pilot, "nothing can be started")
        assert type(pilot.app.screen).__name__ == "EpisodesScreen"


def test_typed_words_and_stored_tags() -> None:
    assert split_tags("  a, b\tc  a,") == ["a", "b", "c"]
    assert split_tags(" ") == []
    assert tags_of([]) == ()
    assert MAX_TAG_CHARS == 64
