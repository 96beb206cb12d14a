from __future__ import annotations

from itertools import pairwise

import pytest

from agentgym_tui.presenters.cells import display_width, fit, wrap_offsets
from agentgym_tui.presenters.transcript import step_blocks
from agentgym_tui.state.episode import StreamingAnswer
from agentgym_tui.widgets.transcript import UNSAFE_BADGE, BlockRows, Transcript, Waterfall
from runner.events.live import LiveAction
from tests.support.console.line_views import list_pilot, scroll_top, visible_rows
from tests.support.console.pilot import wait_until
from tests.support.console.samples import episode, hostile_episode, span, step, user

WORDS = "the quick brown fox jumps over the lazy dog"


TEXTS = [WORDS, "a" * 50, "漢字" * 20, f"go 漢字 {WORDS} 🎲", f"  {WORDS}", "e\u0301 " * 30, "", " " * 40]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("width", [2, 3, 7, 20])
def test_wrapped_rows_fit_and_drop_only_spaces(text: str, width: int) -> None:
    offsets = wrap_offsets(text, width)
    assert all(display_width(text[start:stop]) <= width for start, stop in offsets)
    dropped = [text[stop:start] for (_, stop), (start, _) in pairwise(offsets)]
    assert set(dropped) <= {"", " "}
    assert (offsets[0][0], offsets[-1][1]) == (0, len(text))


def test_lines_break_at_spaces_and_inside_words_only_when_necessary() -> None:
    narrow = [WORDS[start:stop] for start, stop in wrap_offsets(WORDS, 15)]
    assert narrow == ["the quick brown", "fox jumps over", "the lazy dog"]
    wide = "漢字漢字 漢字"
    assert [wide[start:stop] for start, stop in wrap_offsets(wide, 8)] == ["漢字漢字", "漢字"]
    assert [wide[start:stop] for start, stop in wrap_offsets(wide, 5)] == ["漢字", "漢字", "漢字"]


@pytest.mark.parametrize(
    ("text", "width", "right", "fitted"),
    [
        ("ab", 4, False, "ab  "),
        ("ab", 4, True, "  ab"),
        ("abcde", 4, True, "abc…"),
        ("漢字漢", 4, False, "漢 …"),
        ("abcd漢字", 4, False, "abc…"),
        ("abc漢字", 4, False, "abc…"),
        ("abcde\u0301", 5, False, "abcde\u0301"),
        ("", 3, False, "   "),
        ("ab", 0, False, ""),
        ("ab", 1, False, "…"),
    ],
)
def test_texts_fit_their_columns(text: str, width: int, right: bool, fitted: str) -> None:
    assert fit(text, width, right=right) == fitted
    assert display_width(fitted) == width


def block_kind(view: Transcript) -> str | None:
    rows = view.source
    assert isinstance(rows, BlockRows)
    return rows.blocks[rows.block(view.cursor)].kind if len(rows) else None


async def test_blocks_have_headings_and_wrapped_text() -> None:
    view = Transcript()
    played = episode(steps=[step(0, chats=[[user(WORDS)]], action=LiveAction("bad\x1b[2J"))])
    async with list_pilot(view, (24, 20)) as (_, pilot):
        view.show_blocks(step_blocks(played, 0), subject="0")
        await pilot.pause()
        assert visible_rows(view)[:8] == [
            "■ observation",
            "  the quick brown fox",
            "  jumps over the lazy",
            "  dog",
            "",
            f"■ action  {UNSAFE_BADGE.text}"[:21].rstrip(),
            "  bad␛[2J",
            "",
        ]
        assert block_kind(view) == "observation"
        assert view.unsafe_text() == "bad\x1b[2J"
        await pilot.press(*["j"] * 5)
        assert block_kind(view) == "action"
        await pilot.resize_terminal(60, 20)
        await wait_until(pilot, lambda: visible_rows(view)[1] == f"  {WORDS}", "lines as wide as the terminal")


async def test_another_step_opens_at_its_top_and_an_update_keeps_the_scroll_position() -> None:
    view = Transcript()
    long_steps = [step(index, chats=[[user("\n".join(f"{index}.{n}" for n in range(40)))]]) for index in range(2)]
    played = episode(steps=long_steps, outcome=None)
    async with list_pilot(view) as (_, pilot):
        view.show_blocks(step_blocks(played, 1), subject="1")
        await pilot.press("ctrl+d")
        position = scroll_top(view)
        played.streaming = StreamingAnswer(text="more")
        view.show_blocks(step_blocks(played, 1), subject="1")
        await pilot.pause()
        assert scroll_top(view) == position > 0
        view.show_blocks(step_blocks(played, 0), subject="0")
        await pilot.pause()
        assert (scroll_top(view), view.cursor) == (0, 0)
        unsafe = step(0, action=LiveAction("x\n" * 3_000 + "\x1b[2J"))
        view.show_blocks(step_blocks(episode(steps=[unsafe]), 0), subject="2")
        await pilot.press("G")
        excerpt = view.unsafe_text()
        assert excerpt is not None, "it starts near the first unsafe character"
        assert (len(excerpt) < 100, excerpt[-4:]) == (True, "\x1b[2J")


async def test_streamed_text_is_followed() -> None:
    view = Transcript()
    played = episode(n_steps=1, outcome=None, streaming=StreamingAnswer(text="x\n" * 30))
    async with list_pilot(view) as (_, pilot):
        view.show_blocks(step_blocks(played, 0), subject="0", follow=True)
        played.streaming = StreamingAnswer(text="x\n" * 30 + "last")
        view.show_blocks(step_blocks(played, 0), subject="0")
        await pilot.pause()
        assert visible_rows(view)[-2:] == ["  last", ""]
        await pilot.press("k")
        played.streaming = StreamingAnswer(text="x\n" * 30 + "last words")
        view.show_blocks(step_blocks(played, 0), subject="0")
        await pilot.pause()
        assert not view.follow
        assert visible_rows(view)[-1] == "  last words"


async def test_a_long_streaming_line_shows_its_end_and_is_complete_when_finished() -> None:
    view = Transcript()
    text = " ".join(f"number {index}," for index in range(1_000))
    played = episode(n_steps=1, outcome=None)
    async with list_pilot(view) as (_, pilot):
        for stop in (3_000, 8_000, len(text)):
            played.streaming = StreamingAnswer(text=text[:stop])
            view.show_blocks(step_blocks(played, 1), subject="1", follow=True)
            await pilot.pause()
            assert visible_rows(view)[-2].split() == text[:stop].split()[-len(visible_rows(view)[-2].split()) :]
        finished = episode(steps=[step(0, chats=[], action=LiveAction(text))])
        view.show_blocks(step_blocks(finished, 0), subject="0", follow=False)
        await pilot.press("G")
        assert any(row.endswith("number 999,") for row in visible_rows(view))


def test_unchanged_blocks_are_not_wrapped_again() -> None:
    played = episode(n_steps=1, outcome=None, streaming=StreamingAnswer(text="a"))
    before = BlockRows(step_blocks(played, 0), 40)
    played.streaming = StreamingAnswer(text="ab")
    after = BlockRows(step_blocks(played, 0), 40, previous=before)
    same = [new is old for (_, new), (_, old) in zip(after.wrapped_blocks, before.wrapped_blocks, strict=True)]
    assert same == [True, True, True, True, False]


@pytest.mark.parametrize("width", [1, 3, 80])
async def test_hostile_episodes_are_drawn_within_the_widget(width: int) -> None:
    transcript, waterfall = Transcript(), Waterfall()
    played = hostile_episode()
    for view in (transcript, waterfall):
        async with list_pilot(view, (width, 12)) as (_, pilot):
            transcript.show_blocks(step_blocks(played, 0, full=True))
            waterfall.show_spans(played.spans.all)
            for keys in (["j"] * 3, ["G"], ["l", "h"]):
                await pilot.press(*keys)
                drawn = view.render_lines(view.size.region)
                assert all(sum(segment.cell_length for segment in strip) == width for strip in drawn)
            assert view.unsafe_text()


async def test_a_waterfall_shows_names_bars_and_durations_under_an_axis() -> None:
    view = Waterfall()
    async with list_pilot(view, (60, 6)) as (_, pilot):
        view.show_spans([span(1, end=8_000_000, name="episode"), span(2, parent=1, start=4_000_000, end=8_000_000)])
        await pilot.pause()
        axis, first, second, *_ = visible_rows(view)
        assert axis == "span" + " " * 16 + "0" + " " * 20 + "8.0 ms"
        assert first == "episode" + " " * 13 + "█" * 27 + "    8.0 ms"
        assert second == "  step" + " " * 27 + "█" * 13 + "▌" + "    4.0 ms"
