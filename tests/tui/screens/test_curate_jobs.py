"""The jobs of finding, comparing and tidying up, each by keyboard alone, on a real state directory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot

from agentgym_tui.sessions.library import ExportJob, ExportStopped, StateDirLibrary
from runner.events.control import AnnotateArgs
from runner.formats.format import find_format
from runner.formats.selection import Candidate
from runner.store import EpisodeStore, open_index
from runner.store.notes import Notes
from runner.types import Action, Outcome
from runner.types.notes import Note, NoteChange
from tests.support.console.fake_session import FakeSession, curating_session
from tests.support.console.pilot import (
    console_pilot,
    filter_by,
    screen_text,
    wait_for_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.episodes import RecordedEpisode, make_step

LIST, SUMMARY, HEADING, TRANSCRIPT = "#episodes", "#summary", "#heading", "#transcript"
PLAYED = (
    *(("BabyAI", "random", Outcome.FAILURE, 0.0, "The door is locked.") for _ in range(12)),
    *(("BabyAI", "random", Outcome.SUCCESS, 0.9, "You found the key.") for _ in range(2)),
    *(("BabyAI", "oracle", Outcome.SUCCESS, 0.97, "You open the door.") for _ in range(2)),
    *(("Maze", "random", Outcome.FAILURE, 0.0, "You walk into a wall.") for _ in range(3)),
    ("Maze", "react", Outcome.TRUNCATED, 0.1, "A violet lantern flickers."),
)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[FakeSession]:
    store = EpisodeStore(tmp_path)
    with closing(open_index(store)) as index:
        for number, (env, agent, outcome, reward, text) in enumerate(PLAYED):
            recording = RecordedEpisode(store, index, env=env, agent=agent, model=None, task_index=number)
            recording.start()
            for step in range(2):
                observation = [{"role": "user", "content": text if step else "You look around."}]
                action = Action("go left" if agent == "oracle" else "go right")
                recording.play(make_step(step, action=action, observation=observation, reward=reward * step))
            recording.end(outcome=outcome, success=outcome is Outcome.SUCCESS)
    notes = Notes(tmp_path)

    async def annotate(args: AnnotateArgs) -> list[Note]:
        change = msgspec.convert(args, NoteChange, from_attributes=True)
        return await asyncio.to_thread(notes.change, args.episode_id, change)

    with curating_session(tmp_path) as session:
        session.fake_control.annotate = annotate  # type: ignore[method-assign]
        yield session


async def show(pilot: Pilot[None], query: str, *texts: str) -> None:
    await pilot.press("2", "escape")
    await wait_for_widget_text(pilot, SUMMARY, "20 episodes")
    await filter_by(pilot, query)
    await wait_for_widget_text(pilot, SUMMARY, *texts)


async def test_failures_are_clustered_and_opened_from_the_list_and_from_results(session: FakeSession) -> None:
    assert session.library is not None
    session.store.apply_tags({row.episode_id: ["hard"] for row in session.library.rows() if row.task_index < 2})
    async with console_pilot(session) as pilot:
        await show(pilot, "env:babyai agent:random outcome:failure", "12 match")
        assert widget_text(pilot, LIST).count("✗ failure") == 12
        await pilot.press("F")
        await wait_for_widget_text(pilot, SUMMARY, "12 failed episodes · 1 cluster", "agent:random")
        await wait_for_widget_text(pilot, "#results", "wrong", "go …", "The door is locked")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, SUMMARY, "12 match", "env:babyai agent:random")
        await show(pilot, 'text:"door is locked" (task:2..3 OR tag:hard)', "4 match")
        await pilot.press("F")
        await wait_for_widget_text(pilot, SUMMARY, "4 failed episodes · 1 cluster")
        await pilot.press("space")
        await wait_for_widget_text(pilot, HEADING, "BabyAI task 0", "4 of 4")
        await pilot.press("p")  # goes on among those of the filtered list
        await wait_for_widget_text(pilot, HEADING, "BabyAI task 1", "3 of 4")
        await pilot.press("7")
        await wait_for_widget_text(pilot, "#results", "BabyAI", "Maze")
        await filter_by(pilot, "env:maze agent:random")
        await pilot.press("F")
        await wait_for_widget_text(pilot, SUMMARY, "3 failed episodes · 1 cluster")
        await wait_for_widget_text(pilot, "#detail", "the environment ended it without success: go …", "shortest: ")
        await pilot.press("space")
        await wait_for_widget_text(pilot, HEADING, "Maze task", "of 3")
        await pilot.press("escape", "enter")
        await wait_for_widget_text(pilot, SUMMARY, "20 episodes · 3 match")


async def test_the_highest_reward_a_word_of_a_transcript_and_two_to_compare_are_found(
    session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session.library is not None
    find, may_find = session.library.texts.find, threading.Event()

    def find_late(query: str) -> None:
        assert may_find.wait(60)
        find(query)

    async with console_pilot(session) as pilot:
        await show(pilot, "reward>0.5", "4 match")
        for _ in range(5):  # until the column of rewards
            if "by reward" in widget_text(pilot, SUMMARY):
                break
            await pilot.press("o")
        await wait_for_widget_text(pilot, SUMMARY, "by reward")
        if "▼" not in widget_text(pilot, SUMMARY):
            await pilot.press("O")
        await wait_for_widget_text(pilot, SUMMARY, "by reward ▼")
        await pilot.press("g", "enter")
        await wait_for_widget_text(pilot, HEADING, "reward 0.97", "agent oracle")
        await show(pilot, "env:babyai task:13..14", "2 match")
        await pilot.press("c", "j", "c")
        await wait_until(pilot, lambda: type(pilot.app.screen).__name__ == "CompareScreen")
        await wait_for_text(pilot, "go left", "go right")
        await pilot.press("escape")
        monkeypatch.setattr(session.library.texts, "find", find_late)
        await show(pilot, 'text:"violet lantern"')
        await wait_until(pilot, lambda: pilot.app.focused is pilot.app.screen.query_one(LIST), "the list")
        may_find.set()  # enter leaves the filter while the texts are still searched
        await wait_for_widget_text(pilot, SUMMARY, "1 match")
        assert pilot.app.focused is pilot.app.screen.query_one(LIST)
        await pilot.press("enter", "j")
        await wait_for_widget_text(pilot, TRANSCRIPT, "A violet lantern flickers.")


async def test_a_selection_is_audited_which_writes_nothing_and_then_exported(
    session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with console_pilot(session) as pilot:
        await show(pilot, "env:babyai agent:random", "14 match")
        await pilot.press("ctrl+a", "e")
        await wait_for_text(pilot, "Export 14 episodes")
        await pilot.press("enter", "right", "enter")
        await wait_for_text(pilot, "this export would train 0% of its groups (0 of 14)", "trained steps")
        await wait_for_text(pilot, "zero-variance groups    100% (14 of 14)")
        assert await asyncio.to_thread(lambda: [*tmp_path.glob("episodes*")]) == []
        await pilot.press("escape")
        await wait_for_widget_text(pilot, SUMMARY, "●14 selected")
        await pilot.press("e")
        await wait_for_text(pilot, "Export 14 episodes")
        form = pilot.app.screen
        while "ATIF" not in screen_text(pilot.app):
            await pilot.press("right")
        await pilot.press("down", *["backspace"] * 40, *"atif", "down", "space", "enter", "enter")
        await wait_for_text(pilot, "✓ 2 episodes as ATIF", "/atif", "12 left out: not the first success of its task")
        manifest = await asyncio.to_thread((tmp_path / "atif/manifest.json").read_bytes)
        found = msgspec.json.decode(manifest)
        assert (found["query"], found["filters"]) == ("env:babyai agent:random", ["first_success"])
        await pilot.press("enter")
        await wait_for_text(pilot, "✗", "exists")
        assert pilot.app.screen is form
        await pilot.press("escape")
        await wait_for_widget_text(pilot, SUMMARY, "●14 selected")


async def test_a_stopped_export_leaves_nothing(session: FakeSession, tmp_path: Path) -> None:
    assert session.curation is not None
    target = find_format("atif")
    job = ExportJob(
        [row.episode_id for row in StateDirLibrary(lambda: tmp_path).rows()], target, tmp_path / "x", [], ""
    )
    counted = job.counted

    def stop_after_three(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        for candidate in counted(candidates):
            if job.n_done == 3:
                job.stop()
            yield candidate

    job.counted = stop_after_three  # type: ignore[method-assign]
    with pytest.raises(ExportStopped):
        await session.curation.export(job)
    assert 3 <= job.n_done <= 4
    assert await asyncio.to_thread(lambda: [*tmp_path.glob("x*")]) == []


async def test_one_is_annotated_and_found_and_ten_are_archived(session: FakeSession, tmp_path: Path) -> None:
    async with console_pilot(session) as pilot:
        await show(pilot, "env:babyai agent:random outcome:failure", "12 match")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, "#steps", "go right")
        await pilot.press("j", "i")
        await wait_for_text(pilot, "Tags and notes of step 1")
        await pilot.press(*"needs the key", "enter", "enter")
        await wait_for_widget_text(pilot, TRANSCRIPT, "needs the key")
        await pilot.press("escape")
        await wait_for_widget_text(pilot, SUMMARY, "12 match")
        await pilot.press("slash", *'note:"the key"', "enter")
        await wait_for_widget_text(pilot, SUMMARY, "1 match")
        await show(pilot, "env:babyai agent:random outcome:failure", "12 match")
        await pilot.press("g", *["space"] * 10, "A")
        await wait_for_text(pilot, "Archive 10 episodes?")
        await pilot.press("escape")
        await wait_for_widget_text(pilot, SUMMARY, "●10 selected")
        await pilot.press("A")
        await wait_for_text(pilot, "Archive 10 episodes?")
        await pilot.press("y")
        await wait_for_text(pilot, "10 episodes archived")
        assert await asyncio.to_thread(lambda: len([*tmp_path.glob("runs/*/*.json")])) == 10
        await wait_for_widget_text(pilot, SUMMARY, "20 episodes", "12 match")
        assert "selected" not in widget_text(pilot, SUMMARY)
        await pilot.press("g", "enter")  # an archived episode is still shown
        await wait_for_widget_text(pilot, "#steps", "go right")
