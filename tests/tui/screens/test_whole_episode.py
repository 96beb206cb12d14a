"""The whole episode as one transcript: jumps, folded kinds, and the search in a view."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from agentgym_tui.presenters.cells import Cell, FixedLines
from agentgym_tui.presenters.transcript import FOLDS, MAX_TEXT, OBSERVATION_TITLE, StepBlocks, step_to_jump, text_block
from agentgym_tui.safe_text import MAX_TEXT_LINES, has_unsafe_chars
from agentgym_tui.screens.episode import EpisodeScreen
from agentgym_tui.state.episode import Episode, Spans
from agentgym_tui.widgets.inputs import words_expression
from agentgym_tui.widgets.lists import FOUND_TONE, LineList, Table, mark_places
from agentgym_tui.widgets.transcript import SELECTED, BlockRows
from runner.types.notes import Note
from tests.support.console.fake_session import busy_session
from tests.support.console.live_items import START, user
from tests.support.console.pilot import (
    screen_text,
    toast_text,
    wait_for_text,
    wait_for_widget_text,
    wait_until,
    widget_text,
)
from tests.support.console.samples import HOSTILE, episode, episode_id, live, span, step, timestep
from tests.tui.screens.test_episode import episode_pilot, session_with_episode, show_episode

WHOLE, STEPS = "#whole", "#steps"


def played() -> Episode:
    """Return an episode of eight steps: two rewards, two actions that are not valid, and a failed endpoint."""
    first = [{"role": "system", "content": "the rules"}, user("observation 0"), {"role": "assistant", "content": "x"}]
    fields: list[dict[str, object]] = [{"reward": 0.0} for _ in range(8)]
    fields[0]["chats"] = [first]
    fields[2]["valid"] = fields[6]["valid"] = False
    fields[4] |= {"reward": 0.5, "endpoint": "lab", "warnings": ("gateway: 503",)}
    fields[7] |= {"reward": 1.0, "done": True}
    return episode(1, steps=[step(index, **each) for index, each in enumerate(fields)])


async def search(pilot: Pilot[None], words: str) -> None:
    await pilot.press("slash")
    assert isinstance(pilot.app.focused, Input)
    pilot.app.focused.value = words
    await pilot.press("enter")


def selected_step(pilot: Pilot[None]) -> str:
    return pilot.app.screen.query_one(STEPS, Table).key


def titles(of: Episode, *folded: str) -> list[str]:
    return [block.title for block in StepBlocks().blocks(of, folded).blocks]


def test_the_whole_episode_has_each_message_once_and_a_heading_for_each_step() -> None:
    whole = StepBlocks().blocks(played())
    texts = ["\n".join(block.lines) for block in whole.blocks]
    for number in range(9):
        assert texts.count(f"observation {number}") == 1
    assert [whole.blocks[start].title for start in whole.starts.values()][3:5] == [
        "step 3 · reward 0",
        "step 4 · reward 0.5",
    ]
    assert whole.step_of(whole.starts[5] + 1) == 5
    assert StepBlocks().blocks(episode(1, steps=[])).step_of(0) == 0


def test_the_whole_episode_has_the_messages_before_the_first_answer_of_the_first_step() -> None:
    chat = [user("example"), {"role": "assistant", "content": "example answer"}, user("task")]
    later = [*chat, {"role": "assistant", "content": "done"}, user("more")]
    of = episode(1, steps=[step(0, chats=[chat]), step(1, chats=[later])])
    texts = ["\n".join(block.lines) for block in StepBlocks().blocks(of).blocks]
    assert [texts.count(text) for text in ("example", "example answer", "task", "more")] == [1, 1, 1, 1]
    assert not any("earlier" in block.title for block in StepBlocks().blocks(of).blocks)


def test_a_new_note_shows_in_steps_that_were_shown_before() -> None:
    of, blocks = played(), StepBlocks()
    assert "wrong door" not in str(blocks.blocks(of).blocks)
    of.notes = [Note(id="1", text="wrong door", kind="note", step=3, at=START)]
    assert str(blocks.blocks(of).blocks).count("wrong door") >= 1


def test_a_folded_block_says_how_many_lines_it_has() -> None:
    assert "system · 1 line folded" in titles(played(), "system")
    assert "system" in titles(played())
    for name in FOLDS:
        assert len(titles(played(), name)) == len(titles(played()))


def test_jumps_find_rewards_errors_and_invalid_actions() -> None:
    of = played()
    assert [step_to_jump(of, "reward", at, 1) for at in (0, 4, 5)] == [4, 5, 7]
    assert [step_to_jump(of, "invalid", at, by) for at, by in ((0, 1), (2, 1), (6, 1), (6, -1))] == [2, 6, None, 2]
    refused = episode(1, steps=[step(0), step(1, refused=True)])
    assert step_to_jump(refused, "invalid", 0, 1) == 1
    assert step_to_jump(of, "error", 0, 1) == 4
    assert step_to_jump(of, "step", 0, -1) is None
    failed = episode(1, steps=[step(0), step(1)], outcome="error")
    assert step_to_jump(failed, "error", 0, 1) == 1


async def test_the_whole_episode_goes_to_the_selected_step_jumps_and_copies_from_what_it_shows() -> None:
    async with episode_pilot(session_with_episode(played()), size=(80, 24)) as pilot:
        await wait_for_widget_text(pilot, "KeyBar", "Back", "Next")
        await pilot.press("f")
        await wait_for_widget_text(pilot, WHOLE, "step 0", "the rules")
        await wait_for_widget_text(pilot, "KeyBar", "Back", ") Step", "} Reward", "] Error", "* Invalid")
        await pilot.press("right_parenthesis", "y")
        await wait_until(pilot, lambda: pilot.app.clipboard.startswith("■ step 1"), "the step")
        assert "observation 2" in pilot.app.clipboard and "step 2" not in pilot.app.clipboard
        await pilot.press("j", "j", "y")
        await wait_until(pilot, lambda: pilot.app.clipboard.startswith("■ action"), "the message")
        assert pilot.app.clipboard.count("■") == 1
        await pilot.press("g", "right_square_bracket")
        await wait_until(pilot, lambda: widget_text(pilot, WHOLE).lstrip("▎ ").startswith("■ step 4 · reward 0.5"))
        assert selected_step(pilot) == "4"
        await pilot.press("right_curly_bracket", "right_curly_bracket")
        await wait_until(pilot, lambda: selected_step(pilot) == "7")
        await pilot.press("right_curly_bracket")
        await wait_until(pilot, lambda: "no later step with another reward" in toast_text(pilot))
        await pilot.press("g", "asterisk")  # from the first step, which is shown, to the first action that is not valid
        await wait_until(pilot, lambda: selected_step(pilot) == "2")
        await pilot.press("S")
        await wait_for_text(pilot, "folded: system")
        await pilot.press("t")
        await wait_until(pilot, lambda: "Reward" not in widget_text(pilot, "KeyBar"))


def test_hidden_blocks_are_left_out_and_the_headings_of_steps_stay() -> None:
    whole = StepBlocks().blocks(played(), ("system",), ("observations", "answers"))
    assert {block.kind for block in whole.blocks if block.lines} <= {"thought", "tool", "note", "warning"}
    assert [whole.blocks[start].title.split(" · ")[0] for start in whole.starts.values()] == [
        f"step {n}" for n in range(8)
    ]
    assert "observation" in whole.kinds and "system · 1 line folded" in [block.title for block in whole.blocks]


async def test_a_key_folds_then_hides_then_shows_a_kind_and_only_what_is_there_is_named() -> None:
    async with episode_pilot(session_with_episode(played()), size=(160, 40)) as pilot:
        await pilot.press("f", "H", "V")  # there are no thoughts
        await wait_for_text(pilot, "folded: observations")
        await wait_until(pilot, lambda: "no texts of the kind: thoughts" in toast_text(pilot))
        await wait_for_widget_text(pilot, WHOLE, "line folded")
        await pilot.press("S", "V")
        await wait_for_text(pilot, "hidden: observations · folded: system")
        assert "observation 1" not in widget_text(pilot, WHOLE)
        await pilot.press("slash", *"observation 1", "enter")
        await wait_for_widget_text(pilot, WHOLE, "observation 1")
        await wait_for_text(pilot, "folded: system", "1 of 1")
        assert "hidden" not in screen_text(pilot.app)
        await pilot.press("S", "S")
        await wait_until(pilot, lambda: "folded" not in screen_text(pilot.app))


async def test_a_search_goes_through_all_steps_unfolds_what_has_the_words_and_goes_on_in_the_file() -> None:
    data = b'{"schema": 1, "guess": 1, "note": "Locked door", "b": ["door"]}'
    async with episode_pilot(session_with_episode(played(), data), size=(120, 40)) as pilot:
        await pilot.press("V")
        await wait_for_text(pilot, "folded: observations")
        await search(pilot, "observation 5")
        await wait_for_text(pilot, "/observation 5", "1 of 1", "n next")
        await wait_for_widget_text(pilot, WHOLE, "observation 5")
        await pilot.press("escape")
        await wait_until(pilot, lambda: "/observation 5" not in screen_text(pilot.app))
        assert isinstance(pilot.app.screen, EpisodeScreen)
        await search(pilot, "guess")
        await wait_for_text(pilot, "/guess", "1 of ")
        await pilot.press("n", "n", "N")
        await wait_for_text(pilot, "2 of ")
        await pilot.press("n", "d")
        await wait_for_widget_text(pilot, "#json", "Locked door")
        await wait_for_text(pilot, "1 of 1")
        views = [pilot.app.screen.query_one(id, LineList) for id in (WHOLE, "#json")]
        assert all(view.found is not None for view in views)
        await pilot.press("escape")  # nothing is marked in any view
        await wait_until(pilot, lambda: [view.found for view in views] == [None, None])
        await search(pilot, "door")
        await wait_for_text(pilot, "1 of 2")
        await search(pilot, "key")  # in place of the words that are there
        await wait_for_text(pilot, "no line has this")
        await search(pilot, "[red")
        await wait_for_text(pilot, "/[red")
        await pilot.press("escape", "n")
        await wait_until(pilot, lambda: "last episode" in toast_text(pilot))
        of = episode(1, steps=[step(0, chats=[[user(HOSTILE)]])])
        await show_episode(pilot, session_with_episode(of))
        await search(pilot, "[red")
        await wait_for_text(pilot, "/[red")
        assert not has_unsafe_chars(screen_text(pilot.app))


async def test_n_goes_through_all_words_of_a_line_that_is_wider_than_the_view() -> None:
    places = ["first door", "second door", "third door"]
    data = json.dumps({"note": (" x" * 150).join(places), "z": "last door", "w": "x" * 5_000 + " the end"}).encode()
    async with episode_pilot(session_with_episode(played(), data), size=(80, 24)) as pilot:
        await pilot.press("d")
        await wait_for_widget_text(pilot, "#json", "note")
        assert "second" not in widget_text(pilot, "#json")
        await search(pilot, "door")
        await wait_for_text(pilot, "1 of 4")
        for key, number, text in (
            *(("n", 2, "second"), ("n", 3, "third"), ("n", 4, "last"), ("n", 1, "first")),
            *(("N", 4, "last"), ("N", 3, "third"), ("N", 2, "second"), ("N", 1, "first")),
        ):
            await pilot.press(key)
            await wait_for_text(pilot, f"{number} of 4")
            await wait_for_widget_text(pilot, "#json", f"{text} door")
        await search(pilot, "the end")
        await wait_for_text(pilot, "1 of 1")
        await wait_for_widget_text(pilot, "#json", "the end")


def long_episode() -> Episode:
    return episode(1, steps=[step(index, reward=float(index == 900), valid=index != 950) for index in range(1_000)])


def first_row(pilot: Pilot[None]) -> str:
    return widget_text(pilot, WHOLE).lstrip("▎ ").partition("\n")[0]


async def test_a_long_episode_is_shown_at_once_and_completed_meanwhile() -> None:
    async with episode_pilot(session_with_episode(long_episode()), size=(80, 24)) as pilot:
        whole = pilot.app.screen.query_one(WHOLE, LineList)
        n_shown: list[int] = []
        show_blocks = whole.show_blocks  # type: ignore[attr-defined]

        def counted(*args: Any, **options: Any) -> None:  # noqa: ANN401
            show_blocks(*args, **options)
            n_shown.append(len(whole.source))

        whole.show_blocks = counted  # type: ignore[attr-defined]
        await pilot.press("f", "G")
        await wait_for_widget_text(pilot, WHOLE, "observation 1000")
        await wait_until(pilot, lambda: len(n_shown) >= 10)
        assert n_shown[0] < len(whole.source) / 5 and n_shown == sorted(n_shown)


async def test_jumps_folds_and_searches_reach_steps_that_are_not_shown_yet() -> None:
    async with episode_pilot(session_with_episode(long_episode()), size=(80, 24)) as pilot:
        await pilot.press("f", "right_curly_bracket")
        await wait_until(pilot, lambda: first_row(pilot).startswith("■ step 900"))
        await show_episode(pilot, session_with_episode(long_episode()))
        await search(pilot, "observation 987")
        await wait_for_text(pilot, "1 of 1")
        await wait_for_widget_text(pilot, WHOLE, "observation 987")
        await pilot.press("V")
        await wait_for_text(pilot, "folded: obser")


async def test_a_search_in_a_running_episode_finds_steps_that_arrive() -> None:
    session = busy_session()
    async with episode_pilot(session, episode_id(3)) as pilot:
        await pilot.press("slash", *"guess")
        await pilot.press("enter")
        await wait_for_text(pilot, "of 4")
        session.store.apply_events([live(timestep(3, 2, seq=9))])
        await wait_for_widget_text(pilot, STEPS, "guess 2")
        await pilot.press("n")
        await wait_for_text(pilot, "of 6")


async def test_a_search_in_the_trace_finds_attributes_and_shows_them() -> None:
    of = played()
    attributes = {"task_id": "Maze/locked door", "reward": 0.5}
    of.spans = Spans([span(1, name="episode"), replace(span(2, parent=1, name="act"), attributes=attributes)])
    async with episode_pilot(session_with_episode(of)) as pilot:
        await pilot.press("w")
        await wait_for_text(pilot, "enter: attributes")
        await wait_for_widget_text(pilot, "#trace", "act")
        assert "locked door" not in widget_text(pilot, "#trace")
        await pilot.press("slash", *"locked door", "enter")
        await wait_for_text(pilot, "1 of 1")
        await wait_for_widget_text(pilot, "#trace", "task_id: Maze/locked door", "reward: 0.5")
        await pilot.press("enter")  # on the attribute: its span is closed again
        await wait_until(pilot, lambda: "task_id" not in widget_text(pilot, "#trace"))
        await pilot.press("n")
        await wait_for_widget_text(pilot, "#trace", "task_id: Maze/locked door")


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=5))
def test_marking_keeps_every_character(words: str, texts: list[str]) -> None:
    cells = [(text, "plain") for text in texts]
    expression = words_expression(words) if words.strip() else re.compile("x")
    places = [match.span() for match in expression.finditer("".join(texts))]
    marked = list(mark_places(cells, places))  # type: ignore[arg-type]
    assert "".join(text for text, _ in marked) == "".join(texts)
    found = "".join(text for text, tone in marked if tone == FOUND_TONE)
    assert found == "".join(match[0] for match in expression.finditer("".join(texts)))


def test_words_with_a_capital_letter_are_found_as_they_are_written() -> None:
    assert words_expression("locked  door").search("a Locked\ndoor")
    assert not words_expression("Door").search("a locked door")
    assert words_expression("a.b").search("a.b") and not words_expression("a.b").search("axb")


def test_answers_fold_but_the_headings_of_steps_stay() -> None:
    folded = StepBlocks().blocks(played(), ("answers",)).blocks
    answers = [block for block in folded if block.title.startswith("action")]
    assert len(answers) == 8
    assert all("folded" in block.title and not block.lines for block in answers)
    assert "step 3 · reward 0" in [block.title for block in folded]


def test_a_search_counts_matches_also_several_of_one_line() -> None:
    rows = BlockRows([text_block("observation", OBSERVATION_TITLE, "door key door\ndoor")], 80)
    assert rows.find_rows(words_expression("door")) == [1, 1, 2]
    assert LineList(FixedLines([[Cell("a b a")]])).find_rows(words_expression("a")) == [0, 0]


def marked_texts(rows: BlockRows, expression: re.Pattern[str]) -> list[str]:
    texts = ["".join(cell.text for cell in rows.line(index, 80)) for index in range(len(rows))]
    return [text[slice(*place)] for index, text in enumerate(texts) for place in rows.found_in(index, expression)]


def test_words_are_found_and_marked_where_a_row_or_a_line_breaks_between_them() -> None:
    expression = words_expression("locked door")
    wrapped = BlockRows([text_block("observation", OBSERVATION_TITLE, "there is a locked door here")], 20)
    assert wrapped.find_rows(expression) == [1]
    assert marked_texts(wrapped, expression) == ["locked", "door"]
    broken = BlockRows([text_block("observation", OBSERVATION_TITLE, "first\nthe locked\ndoor")], 80)
    assert broken.find_rows(expression) == [2]
    assert marked_texts(broken, expression) == ["locked", "door"]
    titles = BlockRows([text_block("tool", "tool call open_door", "{}")], 80)
    assert (titles.find_rows(words_expression("door")), marked_texts(titles, words_expression("door"))) == (
        [0],
        ["door"],
    )


@pytest.mark.parametrize("text", ["x" * (MAX_TEXT + 1) + " key ", "\n" * (MAX_TEXT_LINES + 1) + "key"])
def test_words_in_the_part_that_is_not_shown_lead_to_the_line_that_says_so(text: str) -> None:
    rows = BlockRows([text_block("observation", OBSERVATION_TITLE, text)], 80)
    assert rows.find_rows(words_expression("key")) == [len(rows) - 2]
    assert "see the JSON" in marked_texts(rows, words_expression("key"))[0]
    assert rows.row_of_line("key", words_expression("key"), from_end=False) == len(rows) - 2


def test_words_across_the_place_where_a_text_is_cut_are_found() -> None:
    text = "x" * (MAX_TEXT - len(" the red")) + " the red key " + "x" * 10
    rows = BlockRows([text_block("observation", OBSERVATION_TITLE, text)], 80)
    assert rows.find_rows(words_expression("red key")) == [len(rows) - 2]


def test_a_text_that_is_cut_says_where_the_rest_is() -> None:
    for text in ("x" * (MAX_TEXT + 1), "\n" * (MAX_TEXT_LINES + 1)):
        assert "see the JSON" in text_block("observation", OBSERVATION_TITLE, text).lines[-1]


async def test_dragging_the_mouse_copies_what_it_selects_once_and_a_click_ends_the_selection() -> None:
    long = f"{'word ' * 40}end\x1b"
    of = episode(1, steps=[step(0, chats=[[{"role": "system", "content": long}, user("second message")]])])
    async with episode_pilot(session_with_episode(of), size=(80, 24)) as pilot:
        await pilot.press("f")
        await wait_for_widget_text(pilot, WHOLE, "second message")
        rows = widget_text(pilot, WHOLE).splitlines()
        first = next(at for at, text in enumerate(rows) if "word" in text)
        last = next(at for at, text in enumerate(rows) if "second" in text)
        await pilot.mouse_down(WHOLE, offset=(rows[first].index("word") + 5, first))
        await pilot.hover(WHOLE, offset=(rows[last].index("second") + 5, last))
        await pilot.mouse_up(WHOLE, offset=(rows[last].index("second") + 5, last))
        await wait_until(pilot, lambda: "sent the selection (" in toast_text(pilot))
        copied = pilot.app.clipboard
        assert copied.startswith(f"{'word ' * 39}end␛\n") and copied.endswith("\nsecond")
        assert f"sent the selection ({len(copied.encode())} bytes)" in toast_text(pilot)
        assert ("second", SELECTED) in [*pilot.app.screen.query_one(WHOLE, LineList).row_cells(last, 78)]
        pilot.app.copy_to_clipboard("")
        await pilot.mouse_up(STEPS, offset=(3, 3))  # such as after a scroll bar was dragged
        await pilot.click(WHOLE, offset=(4, last))
        await wait_until(pilot, lambda: not pilot.app.screen.selections, "no selection")
        assert pilot.app.clipboard == ""
