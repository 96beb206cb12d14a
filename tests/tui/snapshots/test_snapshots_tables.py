"""Tables and what is done with their rows: flags and selection, filters, clean-up, notes, results, and runs."""

from __future__ import annotations

import pytest

from agentgym_tui.config import UiState
from agentgym_tui.screens.dialogs.curate import ExportForm
from agentgym_tui.screens.dialogs.texts import clean_up_dialog
from agentgym_tui.screens.list_screen import SavedQueries
from runner.formats.format import find_format
from runner.node.retention import PruneReport
from runner.types import Outcome
from runner.types.notes import Note
from tests.support.console.fake_session import (
    FakeCuration,
    FakeSession,
    empty_session,
    ended_session,
    fleet_session,
    mixed_session,
)
from tests.support.console.pilot import SIZE, SMALL, console_app
from tests.support.console.result_sessions import results_session
from tests.support.console.samples import HOSTILE, START, episode_id, row
from tests.support.console.snapshots import LARGE, PicturesOf

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


async def test_filters_flags_and_dialogs_of_the_list(pictures_of: PicturesOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    session = flagged_session()
    session.curation = session.exporter = FakeCuration()
    kept = {"event not delivered": 2, "batch not ended": 10}
    plans = {
        "archive": PruneReport(n_archived=88, n_freed=3_400_000, kept=kept),
        "delete": PruneReport(n_deleted=88, n_freed=3_400_000, kept=kept),
    }
    saved = {"loops": "flag:loop", "failures of BabyAI": "env:babyai outcome:failure,truncated since:2h"}
    queries = SavedQueries(UiState(saved_queries={"episodes": saved}), "episodes", "env:maze reward>0.5 -agent:oracle")
    all_ids = [episode_id(n) for n in range(14)]
    async with pictures_of(console_app(session)) as pictures:
        await pictures.show("2", texts=("14 episodes",))
        for name, dialog, text in (
            ("archive", clean_up_dialog("archive", plans["archive"]), "frees"),
            ("delete", clean_up_dialog("delete", plans["delete"]), "frees"),
            ("saved queries", queries, "loops"),
        ):
            pictures.pilot.app.push_screen(dialog)
            await pictures.compare(name, texts=(text, "14 episodes", "idle"))
            await pictures.show("escape", texts=("14 episodes",))
        pictures.pilot.app.push_screen(ExportForm(FakeCuration(), all_ids, [find_format("atif")], ""))
        await pictures.show(texts=("Export 14 episodes", "idle"))
        await pictures.compare("export", "enter", "enter", texts=("1 left out",))
        await pictures.show("escape", texts=("14 episodes",))
        for name, typed, text in (
            ("fields", "", "failure"),
            ("values", "flag:l", "loop"),
            ("error", "reward>much", "needs a number"),
        ):
            await pictures.compare(f"filter {name}", "slash", *typed, texts=(text,), sizes=(SIZE,))
            await pictures.show("escape", texts=("14 episodes",))
        keys = ("slash", *"env:maze", "enter", "space", "space", "j", "space")
        await pictures.compare("selected", *keys, texts=("3 selected",))


async def test_failure_clusters(pictures_of: PicturesOf) -> None:
    session = results_session()
    session.fake_library.stored += [
        row(900 + n, env="Maze", failure="loop: move … -> The move into the wall fails", flags="loop", success=False)
        for n in range(30)
    ]
    async with pictures_of(console_app(session)) as pictures:
        await pictures.show("2", texts=("270 episodes",))
        await pictures.compare("clusters", "F", texts=("failed episodes", "shortest:", "into the wall"))


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


async def test_notes_of_a_step(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(noted_session())) as pictures:
        await pictures.show("2", texts=("14 episodes",))
        await pictures.show("enter", texts=("guess", "3 notes"))
        await pictures.compare("shown", "j", texts=("note on the step",))
        await pictures.compare("edited", "i", texts=("a new note", "BabyAI task 13"))


async def test_results_matrix_and_comparison(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(results_session())) as pictures:
        await pictures.show("7", texts=("llama4-s",))
        await pictures.show("j", texts=("rewards of 37",))
        await pictures.show("m", texts=("48 attempts",))
        await pictures.show("j", texts=("task 1 ·",))
        await pictures.compare("matrix", "right", texts=("attempt 2 of 4",), sizes=(SMALL, SIZE))
        await pictures.show("escape", texts=("rewards of 37",))
        await pictures.show("c", texts=("◆ compares",))
        await pictures.compare("results", "j", texts=("rewards of 96",), sizes=(SMALL, LARGE))
        pictures.pilot.app.theme = "textual-light"
        await pictures.compare("light", texts=("rewards of 96",), sizes=(SIZE,))
        pictures.pilot.app.theme = "textual-dark"
        await pictures.compare("comparison", "c", texts=("sign test",))


async def test_results_by_batch(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(results_session())) as pictures:
        await pictures.show("7", texts=("llama4-s",))
        await pictures.show("v", texts=("by batch",))
        await pictures.compare("results", "j", texts=("rewards of 37",), sizes=(LARGE,))


async def test_runs_of_each_kind(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(mixed_session())) as pictures:
        await pictures.show("6", texts=("battery of 2",))
        texts = ("· task 3", "▸ SQLGym")
        await pictures.compare("runs", "enter", "j", "enter", texts=texts, sizes=(SMALL, LARGE))


async def test_nodes_of_a_bus(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(fleet_session())) as pictures:
        await pictures.compare("fleet", "8", texts=("5 nodes", "✗ silent since"), sizes=(SMALL, SIZE))


async def test_summary_of_a_battery(pictures_of: PicturesOf) -> None:
    async with pictures_of(console_app(ended_session())) as pictures:
        await pictures.show(texts=("M shows the summary",))
        await pictures.compare("summary", "M", texts=("Summary · battery of 3", "Maze"), sizes=(SMALL, LARGE))
