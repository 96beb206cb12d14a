"""Two stored episodes side by side, by keyboard, from real files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from agentgym_tui.app import Console
from agentgym_tui.presenters.cells import line_width
from agentgym_tui.presenters.episode import MAX_CHARS, aligned_step_lines
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.sessions.session import FileSession
from runner.results.alignment import StepText, align
from runner.store import EpisodeRecord, EpisodeStore, open_index
from runner.types import Action, Outcome
from tests.support.console.pilot import screen_text, wait_for_widget_text, widget_text
from tests.support.console.samples import HOSTILE
from tests.support.episodes import RecordedEpisode, decoded, make_step

STEPS, TEXTS, HEADING = "#aligned", "#texts", "#heading"


def record(data_dir: Path, *played: tuple[str, str], success: bool = False) -> EpisodeRecord:
    """Store an episode with these actions and observations."""
    store = EpisodeStore(data_dir)
    with closing(open_index(store)) as index:
        recording = RecordedEpisode(store, index, env="Maze", agent="react", model="qwen3:8b", task_index=4)
        recording.start()
        recording.reset()
        for number, (action, observation) in enumerate(played):
            answer = [{"role": "user", "content": observation}]
            reward = float(success and number == len(played) - 1)
            recording.play(make_step(number, action=Action(action), observation=answer, reward=reward))
        recording.end(outcome=Outcome.SUCCESS if success else Outcome.FAILURE, success=success)
    assert recording.recorder.content is not None
    return decoded(recording.recorder.content)


@pytest.fixture
def episodes(tmp_path: Path) -> tuple[EpisodeRecord, EpisodeRecord]:
    shared = ("go up", "a wall above you")
    record(tmp_path, shared)  # in neither side
    return (
        record(tmp_path, shared, ("go left", "a red door"), ("open", "done"), success=True),
        record(tmp_path, shared, ("go left", f"a blue door {HOSTILE}")),
    )


async def test_two_marked_episodes_are_compared(tmp_path: Path, episodes: tuple[EpisodeRecord, EpisodeRecord]) -> None:
    session = FileSession([tmp_path])
    async with Console(session).run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        await wait_for_widget_text(pilot, "#summary", "3 episodes")
        await pilot.press("enter")
        await wait_for_widget_text(pilot, HEADING, "Maze task 4")
        await pilot.press("c")
        assert session.store.marked_episode == episodes[1].episode_id
        await pilot.press("c")  # the same key removes the mark
        assert session.store.marked_episode == ""
        await pilot.press("escape", "c")
        assert session.store.marked_episode == episodes[1].episode_id
        await pilot.press("j", "c")
        for size in ((80, 24), (120, 40)):
            await pilot.resize_terminal(*size)
            await wait_for_widget_text(
                pilot, HEADING, "2 of 3 steps differ, the first is step 1", "▸A  ✗ failure", "B  ✓ success"
            )
            await wait_for_widget_text(pilot, TEXTS, "a blue door", "a red door")
            assert not has_unsafe_chars(screen_text(pilot.app))
        await pilot.press("n")
        await wait_for_widget_text(pilot, TEXTS, "(no such step)", "done")
        assert "only B: open" in widget_text(pilot, STEPS)
        await pilot.press("right", "enter")
        await wait_for_widget_text(pilot, HEADING, "success", "Maze task 4", "2 of 2")
        await pilot.press("p")  # the other side
        await wait_for_widget_text(pilot, HEADING, "failure", "1 of 2")
        await pilot.press("escape", "escape")
        await wait_for_widget_text(pilot, "#summary", "3 episodes")
        EpisodeStore(tmp_path).path(episodes[0].batch_id, episodes[0].episode_id).unlink()
        await pilot.press("g", "c", "j", "c")
        await wait_for_widget_text(pilot, HEADING, "cannot be compared")


@pytest.mark.parametrize("width", [20, 77, 200])
def test_texts_stay_in_their_columns(episodes: tuple[EpisodeRecord, EpisodeRecord], width: int) -> None:
    for step in align(*episodes).steps:
        for line in aligned_step_lines(step, width):
            assert line_width(line) <= width
            assert not any(has_unsafe_chars(cell.text) for cell in line)


@pytest.mark.parametrize("other", [[("go", "short")], []])
def test_what_is_cut_of_a_long_text_is_counted(tmp_path: Path, other: list[tuple[str, str]]) -> None:
    long = "word " * (MAX_CHARS // 5 + 10)
    step = align(record(tmp_path, ("go", long)), record(tmp_path, *other)).steps[0]
    assert isinstance(step.left, StepText)
    hidden = len(step.left.observation) - MAX_CHARS
    shown = ["".join(cell.text for cell in line) for line in aligned_step_lines(step, 120)]
    assert any(f"… {hidden} more characters" in line for line in shown)
