from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.logs import LOG_FIELDS
from agentgym_tui.presenters.cells import N_ROWS, query_note
from agentgym_tui.presenters.result_rows import result_listing
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.episode_list import EPISODE_FIELDS
from agentgym_tui.state.event_log import EVENT_FIELDS
from agentgym_tui.state.query import FieldSet, Query, complete, quoted, word_test
from agentgym_tui.state.run_tree import RUN_FIELDS
from tests.support.console.line_views import line_text
from tests.support.console.samples import HOSTILE


class Door(NamedTuple):
    color: str
    width: float = 1.0
    id: str = "7"


FIELDS: FieldSet[Door] = FieldSet(
    ("color", "text", "colour of the door", lambda door: door.color),
    ("width", "number", "width in metres", lambda door: door.width),
    ("id", "id", "beginning of its number", lambda door: door.id),
    values={"color": ("red", "green", "light green")},
)
DOORS = [Door("red"), Door("red"), Door("blue", 2.5, "70"), Door("Straße, Ärger", 9)]


def found(text: str) -> list[int]:
    query = Query(FIELDS, text, word_test=word_test(lambda door: door.color.casefold()))
    assert query.error is None
    return [number for number, door in enumerate(DOORS) if query.matches(door)]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", [0, 1, 2, 3]),
        (" RED ", [0, 1]),
        ("straße ärger", [3]),
        ("STRASSE", [3]),
        ("color:blue OR width>5", [2, 3]),
        ("-color:red width:..3", [2]),
        ("id:7 -id:70", [0, 1, 3]),
        ('color:"red"', [0, 1]),
        ("color:b*", [2]),
    ],
)
def test_words_and_terms_select_rows(text: str, numbers: list[int]) -> None:
    assert found(text) == numbers


def test_a_query_with_an_error_matches_all_rows_and_names_its_place() -> None:
    query = Query(FIELDS, "red colr:blue")
    assert query.error is not None and query.matches(DOORS[2])
    assert (query.error.start, query.error.end) == (4, 13)
    assert "did you mean color" in str(query.error)


@pytest.mark.parametrize(
    ("text", "options", "best"),
    [
        ("", ("color:", "width>", "id:"), ""),
        ("red ", ("color:", "width>", "id:"), ""),
        ("co", ("color:",), "color:"),
        ("(a OR -Wi", ("width>",), "(a OR -width>"),
        ("color:", ("red", "blue", '"Straße, Ärger"', "green", '"light green"'), "color:red"),
        ("color:red,B", ("blue",), "color:red,blue"),
        ('color:"light', ('"light green"',), 'color:"light green"'),
        ('color:"a,b",li', ('"light green"',), 'color:"a,b","light green"'),
        ("color:blue", ("blue",), ""),
        ("width>", (), ""),
        ('"co', (), ""),
        ("colr:", (), ""),
    ],
)
def test_the_end_of_a_query_is_completed(text: str, options: tuple[str, ...], best: str) -> None:
    completion = complete(text, FIELDS.fields, lambda name: FIELDS.values_of(name, DOORS))
    assert (completion.options, completion.best) == (options, best)


def test_unsafe_and_long_values_are_not_offered() -> None:
    doors = [Door(HOSTILE), Door("x" * 100), Door("\x1b[2Jred"), Door("blue")]
    completion = complete("color:", FIELDS.fields, lambda name: FIELDS.values_of(name, doors))
    assert completion.options == ("blue", "red", "green", '"light green"')


@given(st.text(max_size=40) | st.text(alphabet='color:width>,()"\\- *?\x1b\u202e', max_size=40), st.text(max_size=30))
def test_any_typed_text_has_a_safe_note_of_few_rows(text: str, value: str) -> None:
    query = Query(FIELDS, text, word_test=word_test(lambda door: door.color.casefold()))
    assert isinstance(query.matches(DOORS[0]), bool)
    completion = complete(text, FIELDS.fields, lambda name: [value])
    assert not any(map(has_unsafe_chars, completion.options))
    for width in (20, 80):
        lines = query_note(query.error, completion, width)
        assert len(lines) <= N_ROWS
        assert not any(has_unsafe_chars(line_text(line)) or "\n" in line_text(line) for line in lines)


@pytest.mark.parametrize(
    "fields",
    [EPISODE_FIELDS, RUN_FIELDS, result_listing(lambda row: False, str).query_fields, EVENT_FIELDS, LOG_FIELDS],
    ids=lambda fields: min(fields.fields),
)
def test_all_fields_of_a_list_are_named_in_80_columns(fields: FieldSet[Any]) -> None:
    lines = query_note(None, complete("", fields.fields, lambda name: []), 78)
    named = " ".join(map(line_text, lines)).split()
    assert [name.rstrip(":>") for name in named] == [*fields.fields]


@given(st.text(max_size=20))
def test_a_quoted_value_is_found_as_it_is(value: str) -> None:
    if value and not any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        assert Query(FIELDS, f"color:{quoted(value)}").matches(Door(value))
        assert not Query(FIELDS, f"color:{quoted(value)}").matches(Door(f"{value}x"))
