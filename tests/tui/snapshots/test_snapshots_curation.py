"""Episodes with flags and a selection, the dialogs of clean-up, the note of a filter, and the saved queries."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from agentgym_tui.config import UiState
from agentgym_tui.screens.dialogs.curate import ExportForm
from agentgym_tui.screens.dialogs.texts import clean_up_dialog
from agentgym_tui.screens.list_screen import SavedQueries
from runner.formats.format import find_format
from runner.node.retention import CleanUpAction, PruneReport
from runner.types import Outcome
from runner.types.notes import Note
from tests.support.console.fake_session import FakeCuration, FakeSession, empty_session
from tests.support.console.pilot import SIZE, console_app, wait_for_text, wait_for_widget_text
from tests.support.console.result_sessions import results_session
from tests.support.console.samples import HOSTILE, START, episode_id, row
from tests.support.console.snapshots import RunBefore, SnapCompare, stop_cursor_blink

pytestmark = pytest.mark.usefixtures("utc")
FOUND = ("", "loop", "truncated,unearned", "loop,invalid", "fallback", None)
OUTCOMES = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED, Outcome.FAILURE, Outcome.SUCCESS, Outcome.TIMEOUT)


def flagged_session() -> FakeSession:
    """Return a session with episodes of all flags."""
    session = empty_session()
    session.fake_library.stored = [
        row(
            n,
            env=("Maze", "BabyAI")[n % 2],
            agent="random",
            outcome=OUTCOMES[n % 6],
            success=OUTCOMES[n % 6] is Outcome.SUCCESS,
            flags=FOUND[n % 6],
        )
        for n in range(14)
    ]
    return session


def when_pressed(*keys: str, texts: tuple[str, ...]) -> RunBefore:
    """Open the list of episodes, press keys and wait for texts."""

    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#summary", "14 episodes")
        await pilot.press(*keys)
        await wait_for_text(pilot, *texts)
        stop_cursor_blink(pilot)
        await pilot.pause()

    return run_before


def when_open(dialog: Screen[str], text: str) -> RunBefore:
    """Open a dialog over the list of episodes, and wait for a text of the dialog."""

    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#summary", "14 episodes")
        pilot.app.push_screen(dialog)
        await wait_for_text(pilot, text, "14 episodes", "idle")
        stop_cursor_blink(pilot)
        await pilot.pause()

    return run_before


def test_selected_episodes_with_flags(snap_compare: SnapCompare) -> None:
    before = when_pressed("slash", *"env:maze", "enter", "space", "space", "j", "space", texts=("3 selected",))
    assert snap_compare(console_app(flagged_session()), run_before=before)


def test_export_form(snap_compare: SnapCompare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    session = flagged_session()
    session.curation = session.exporter = FakeCuration()

    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#summary", "14 episodes")
        pilot.app.push_screen(ExportForm(FakeCuration(), [episode_id(n) for n in range(14)], [find_format("atif")], ""))
        await wait_for_text(pilot, "Export 14 episodes", "idle")
        await pilot.press("enter", "enter")
        await wait_for_text(pilot, "1 left out")
        stop_cursor_blink(pilot)
        await pilot.pause()

    assert snap_compare(console_app(session), run_before=run_before)


def test_failure_clusters(snap_compare: SnapCompare) -> None:
    session = results_session()
    session.fake_library.stored += [
        row(900 + n, env="Maze", failure="loop: move … -> The move into the wall fails", flags="loop", success=False)
        for n in range(30)
    ]

    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#summary", "270 episodes")
        await pilot.press("F")
        await wait_for_text(pilot, "failed episodes", "shortest:", "into the wall")
        await pilot.pause()

    assert snap_compare(console_app(session), run_before=run_before)


def noted_session() -> FakeSession:
    """Return a session whose newest episode and its second step have tags and notes."""
    session, at = flagged_session(), START
    session.fake_control.notes[episode_id(13)] = [
        Note(id="1", kind="tag", text="todo", at=at),
        Note(id="2", kind="note", text="compare it with the oracle", at=at, author="ada"),
        Note(id="3", step=1, kind="tag", text="wrong-turn", at=at),
        Note(id="4", step=1, kind="note", text="walks into the wall, and the door is on the left", at=at, author="ada"),
        Note(id="5", step=1, kind="note", text=HOSTILE, at=at, author=HOSTILE),
    ]
    session.store.apply_tags({episode_id(13): ("todo", "wrong-turn")})
    return session


@pytest.mark.parametrize("edited", [False, True], ids=["shown", "edited"])
def test_notes_of_a_step(snap_compare: SnapCompare, edited: bool) -> None:
    async def run_before(pilot: Pilot[None]) -> None:
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#summary", "14 episodes")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, "#steps", "guess")
        await wait_for_text(pilot, "3 notes")
        await pilot.press("j")
        await wait_for_text(pilot, "note on the step")
        if edited:
            await pilot.press("i")
            await wait_for_text(pilot, "a new note", "BabyAI task 13")
        stop_cursor_blink(pilot)
        await pilot.pause()

    assert snap_compare(console_app(noted_session()), run_before=run_before)


@pytest.mark.parametrize("action", ["archive", "delete"])
def test_confirmation_of_clean_up(snap_compare: SnapCompare, action: CleanUpAction) -> None:
    plan = PruneReport(
        n_archived=88 if action == "archive" else 0,
        n_deleted=88 if action == "delete" else 0,
        n_freed=3_400_000,
        kept={"event not delivered": 2, "batch not ended": 10},
    )

    before = when_open(clean_up_dialog(action, plan), "frees")
    assert snap_compare(console_app(flagged_session()), run_before=before)


@pytest.mark.parametrize(
    ("typed", "text"),
    [("", "failure"), ("flag:l", "loop"), ("reward>much", "needs a number")],
    ids=["fields", "values", "error"],
)
def test_note_of_the_filter(snap_compare: SnapCompare, typed: str, text: str) -> None:
    before = when_pressed("slash", *typed, texts=(text,))
    assert snap_compare(console_app(flagged_session()), terminal_size=SIZE, run_before=before)


def test_saved_queries(snap_compare: SnapCompare) -> None:
    saved = {"loops": "flag:loop", "failures of BabyAI": "env:babyai outcome:failure,truncated since:2h"}
    dialog = SavedQueries(UiState(saved_queries={"episodes": saved}), "episodes", "env:maze reward>0.5 -agent:oracle")
    before = when_open(dialog, "loops")
    assert snap_compare(console_app(flagged_session()), run_before=before)
