"""The picture of an environment as lines, from untrusted JSON."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_tui.presenters.cells import Cell, Tone, display_width, line_width
from agentgym_tui.presenters.episode_facts import (
    NO_PICTURE,
    NO_STEP_YET,
    ended_step,
    has_pictures,
    step_world_lines,
    world_at,
    world_lines,
)
from runner.types.cells import COLORS, FILLS, MAX_ROWS
from runner.util.display_text import is_unsafe
from tests.fuzz.targets import screen
from tests.support.console.samples import episode, step
from tests.support.json_values import JSON_VALUES

ODD = "a 漢👍🏽🇩🇪\u0301\u200d\ufe0f\x1b\u202e\t\u1100\u1161\n"
ODD_TEXTS = st.text(st.sampled_from(ODD) | st.characters(), max_size=40)


def packed(value: object) -> bytes:
    return msgspec.json.encode(value)


def test_runs_become_cells_with_the_tone_of_their_color_and_fill_and_unknown_names_read_as_plain() -> None:
    picture = [["a", ["b", "red"], ["c", "green", "solid"]], [], [["a", "ultraviolet", "striped"], ["b", 7, []], [], 3]]
    assert world_lines(packed(picture)) == [
        [Cell("a"), Cell("b", "red"), Cell("c", "green-solid")],
        [],
        [Cell("a"), Cell("b"), Cell(""), Cell("")],
    ]


def test_every_color_and_fill_has_a_tone() -> None:
    tones = {f"{color}-{fill}" if fill else color for color in COLORS for fill in FILLS}
    assert tones <= set(get_args(Tone))


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b"{}", b"7", b"[", b"\xff", b"[" * 100_000])
def test_what_is_no_picture_gives_a_note(raw: bytes) -> None:
    assert world_lines(raw) is NO_PICTURE


@given(value=JSON_VALUES)
def test_any_json_gives_safe_bounded_lines(value: object) -> None:
    lines = world_lines(packed(value))
    assert 0 < len(lines) <= MAX_ROWS
    assert not any(is_unsafe(cell.text) for line in lines for cell in line)


@given(texts=st.lists(ODD_TEXTS.map(lambda text: text.encode("utf-8", "replace").decode()), max_size=6))
def test_a_row_is_as_wide_as_the_terminal_draws_its_whole_text(texts: list[str]) -> None:
    for line in world_lines(packed([[[text, "red"] for text in texts]])):
        assert line_width(line) == display_width("".join(cell.text for cell in line))


def test_a_row_wider_than_its_pane_is_wrapped_with_its_indentation_and_tones() -> None:
    picture = packed([[["  ", "plain"], ["a lamp, ", "green"], ["for families and travel", "red"]], ["short"]])
    lines = world_lines(picture, 20)
    assert ["".join(cell.text for cell in line) for line in lines] == [
        "  a lamp, for",
        "  families and",
        "  travel",
        "short",
    ]
    assert lines[0] == [Cell("  "), Cell("a lamp, ", "green"), Cell("for", "red")]
    assert {cell.tone for line in lines[1:3] for cell in line[1:]} == {"red"}


@given(texts=st.lists(ODD_TEXTS.map(lambda text: text.encode("utf-8", "replace").decode()), max_size=6))
def test_a_wrapped_row_fits_and_loses_nothing_but_blanks(texts: list[str]) -> None:
    value = packed([[[text, "red"] for text in texts]])
    whole = "".join(cell.text for line in world_lines(value) for cell in line)
    rows = world_lines(value, 30)
    assert "".join(cell.text for line in rows for cell in line).replace(" ", "") == whole.replace(" ", "")
    indent = len(whole) - len(whole.lstrip(" "))
    assert indent > 22 or all(line_width(line) <= 30 for line in rows)


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(ODD_TEXTS, min_size=1, max_size=4))
def test_hostile_cells_stay_within_their_pane(rows: list[str]) -> None:
    screen.check(b"\x00agentgym.x\n\n" + "\n".join(rows).encode("utf-8", "replace"))


def test_the_picture_of_a_step_and_the_one_before_it() -> None:
    played = episode(steps=[step(0, world=b'["0"]'), step(2, world=b'["2"]')], reset_world=b'["reset"]')
    assert [world_at(played, index) for index in (0, 1, 2)] == [b'["0"]', b"", b'["2"]']
    assert [world_at(played, index, before=True) for index in (0, 1, 2)] == [b'["reset"]', b'["0"]', b""]
    assert [ended_step(played, index) for index in (0, 2, 3)] == [0, 2, 2]
    assert ended_step(episode(steps=[]), 0) == -1
    assert step_world_lines(played, 3) == world_lines(b'["2"]')
    assert has_pictures(played)
    assert not has_pictures(episode())


def test_an_episode_before_its_first_step_does_not_look_as_if_it_had_no_pictures() -> None:
    begun = episode(steps=[])
    begun.outcome = None
    assert step_world_lines(begun, 0) is NO_STEP_YET
    begun.reset_world = packed([["at the start"]])
    assert step_world_lines(begun, 0) == world_lines(begun.reset_world)
    assert step_world_lines(episode(steps=[]), 0) is NO_PICTURE
