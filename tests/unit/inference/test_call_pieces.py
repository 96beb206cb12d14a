"""Tool calls of streamed replies, in the forms in which servers send their pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.inference.chat_format import ModelReply
from runner.inference.sse import EventParser, StreamAccumulator
from runner.inference.tool_calls import MAX_TOOL_CALLS
from runner.types import StreamDelta
from tests.support.examples import examples
from tests.support.rude_model import FINISH_CHUNK, delta_chunk, sse_event

RIGHT, DOWN = '{"direction":"right"}', '{"direction":"down"}'


def piece(arguments: object = None, name: str | None = None, **fields: object) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**fields, "function": function}


def read_chunks(data: bytes, places: list[int]) -> tuple[ModelReply, list[StreamDelta]]:
    deltas: list[StreamDelta] = []
    accumulator, parser = StreamAccumulator(lambda: 0.0, deltas.append), EventParser()
    for start, stop in itertools.pairwise([0, *sorted({place % len(data) for place in places}), len(data)]):
        for event in parser.feed(data[start:stop]):
            accumulator.add(event)
    return accumulator.result(), deltas


def read(*events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    data = b"".join(sse_event(delta_chunk(tool_calls=pieces)) for pieces in events) + sse_event(FINISH_CHUNK)
    reply, deltas = read_chunks(data, [])
    assert shown(deltas) == [(call["function"]["name"], call["function"]["arguments"]) for call in reply.tool_calls]
    return reply.tool_calls


def shown(deltas: list[StreamDelta]) -> list[tuple[str, str]]:
    """Return the calls that a reader of the deltas sees."""
    calls: dict[int, tuple[str, str]] = {}
    for delta in deltas:
        if delta.restart:
            calls.clear()
        elif delta.part == "call":
            calls[delta.call] = delta.tool, calls.get(delta.call, ("", ""))[1] + delta.text
    assert list(calls) == list(range(len(calls)))
    return [(name, arguments or "{}") for name, arguments in calls.values()]


def moves(*arguments: str, ids: tuple[str, ...] = ("a", "b")) -> list[tuple[str, str, str]]:
    return [(id, "move", each) for id, each in zip(ids, arguments, strict=False)]


HEADS = [piece("", "move", index=0, id=id) for id in "ab"]
WHOLE = [piece(arguments, "move", index=0, id=id) for id, arguments in (("a", RIGHT), ("b", DOWN))]
UNKNOWN = [piece(arguments, "move", index=0, id="") for arguments in (RIGHT, DOWN)]
MADE = ("call00000", "call00001")


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        pytest.param([WHOLE], moves(RIGHT, DOWN), id="one index in one event"),
        pytest.param(
            [[HEADS[0]], [piece(RIGHT[:3], index=0)], [piece(RIGHT[3:], index=0)], [piece(json.loads(RIGHT), index=0)]],
            moves(RIGHT),
            id="then whole as an object",
        ),
        pytest.param([[WHOLE[0]], [piece(DOWN, index=0)]], moves(DOWN), id="then others as a whole"),
        pytest.param([[WHOLE[0]], [piece({}, index=0)]], moves(RIGHT), id="then an empty object"),
        pytest.param(
            [[piece("{}", "move", index=0, id="a")], [piece(RIGHT[:8], index=0)], [piece(RIGHT[8:], index=0)]],
            moves(RIGHT),
            id="after an empty object",
        ),
        pytest.param(
            [[HEADS[0]], [piece('{"a":', index=0)], [piece("{}", index=0)], [piece("}", index=0)]],
            moves('{"a":{}}'),
            id="an empty object inside",
        ),
        pytest.param([UNKNOWN[:1], UNKNOWN[1:]], moves(RIGHT, DOWN, ids=MADE), id="one index and no ids"),
        pytest.param([UNKNOWN[:1] * 2], moves(RIGHT, RIGHT, ids=MADE), id="equal calls without ids in one event"),
        pytest.param([UNKNOWN[:1]] * 2, moves(RIGHT, ids=MADE), id="one call without id, sent twice"),
        pytest.param(
            [[piece("", "move", index=0)], [piece(RIGHT, index=0, id="a")]], moves(RIGHT), id="the id after the name"
        ),
        pytest.param(
            [[piece("", index=0, id="a")], [piece(None, "move", index=0)], [piece(RIGHT, index=0)]],
            moves(RIGHT),
            id="the name after the id",
        ),
        pytest.param(
            [[piece(RIGHT, index=0, id="a")], [piece("", "move", index=0)]], moves(RIGHT), id="the name at the end"
        ),
        pytest.param(
            [[piece("{}", "look", index=0, id="a")], [piece("{}", "go", index=0, id="a")]],
            [("a", "look", "{}"), ("call00001", "go", "{}")],
            id="one id for two names",
        ),
        pytest.param(
            [[piece("{}", "look", index=n, id="") for n in range(2)]],
            [(id, "look", "{}") for id in MADE],
            id="empty ids",
        ),
        pytest.param(
            [[piece("", "up", id="a")], [piece("{}")], [piece("", "down", id="b")], [piece("[]")]],
            [("a", "up", "{}"), ("b", "down", "[]")],
            id="a name starts a call without an index",
        ),
        pytest.param([[piece(RIGHT, index=0), "x", None, piece("{}", index=4)], WHOLE[:1]], moves(RIGHT), id="no name"),
    ],
)
def test_calls_are_what_their_pieces_are_and_not_what_their_index_is(
    events: list[list[dict[str, Any]]], calls: list[tuple[str, str, str]]
) -> None:
    found = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in read(*events)]
    assert found == calls


def test_pieces_beyond_the_last_call_do_not_extend_it() -> None:
    events = [[piece("", "up", id=f"c{number}")] for number in range(MAX_TOOL_CALLS + 2)]
    calls = read(*events, [piece(RIGHT)], [piece(DOWN, index=3)])
    assert [call["function"]["arguments"] for call in calls] == ["{}"] * MAX_TOOL_CALLS


def test_what_else_a_server_sends_with_a_call_is_kept_behind_the_standard_fields() -> None:
    signature = {"google": {"thought_signature": "c2ln", "n": [1, None]}}
    head = piece("", "move", index=0, id="a", type="function", extra_content={"google": {"thought_signature": ""}})
    rest = piece(RIGHT, index=0, extra_content=signature, note=None)
    rest["function"]["thought_signature"] = "Zm4="
    whole = {**head, **rest, "function": {**head["function"], **rest["function"]}}
    (streamed,) = read([head], [rest])
    accumulator = StreamAccumulator(lambda: 0.0)
    accumulator.add(json.dumps({"choices": [{"message": {"tool_calls": [whole]}, "finish_reason": "stop"}]}).encode())
    assert accumulator.result().tool_calls == [streamed]
    assert list(streamed) == ["id", "type", "function", "extra_content"]
    assert list(streamed["function"]) == ["name", "arguments", "thought_signature"]
    assert (streamed["extra_content"], streamed["function"]["thought_signature"]) == (signature, "Zm4=")


class Style(NamedTuple):
    """How a server streams calls: the first of each is the custom of OpenAI's."""

    place: Literal["own", "zero", "none", "growing"]
    ids: Literal["first", "each", "none", "fresh"]
    names: Literal["first", "each"]
    form: Literal["pieces", "object", "placeholder", "again"]

    @property
    def is_clear_for_equal_names(self) -> bool:
        return self.ids != "none" or self.place == "own"

    @property
    def is_possible(self) -> bool:
        if self.names == "each" and self.place == "growing":
            return self.ids == "each"
        return self.ids != "fresh" or (self.place != "growing" and self.names == "first")


STYLES = [
    style
    for style in itertools.starmap(
        Style,
        itertools.product(
            ("own", "zero", "none", "growing"),
            ("first", "each", "none", "fresh"),
            ("first", "each"),
            ("pieces", "object", "placeholder", "again"),
        ),
    )
    if style.is_possible
]
JSON_ARGUMENTS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.text(max_size=3), st.text(max_size=4) | st.integers() | st.just({}), max_size=3
)
CALLS = st.lists(st.tuples(st.sampled_from(["move", "look", "m"]), JSON_ARGUMENTS), min_size=1, max_size=4)


def cut(style: Style, number: int, name: str, arguments: dict[str, Any], draw: st.DataObject) -> list[dict[str, Any]]:
    """Return the pieces of a call, without those indexes that depend on the pieces of the other calls."""
    text = json.dumps(arguments, ensure_ascii=False)
    places = draw.draw(st.lists(st.integers(1, len(text)), max_size=4), label="places in the arguments")
    edges = [0, *sorted({*places} - {len(text)}), len(text)]
    texts: list[Any] = [text[start:stop] for start, stop in itertools.pairwise(edges)]
    texts = [arguments] if style.form == "object" else texts
    texts = [{}, *texts] if style.form == "placeholder" else texts
    texts = [*texts, text] if style.form == "again" else texts
    if draw.draw(st.booleans(), label="head without arguments"):
        texts.insert(0, None)
    pieces = []
    for place, each in enumerate(texts):
        fields: dict[str, Any] = {"extra_content": {"n": number}} if place == len(texts) - 1 else {}
        if style.ids == "each" or (style.ids in ("first", "fresh") and place == 0):
            fields["id"] = f"id{number}"
        elif style.ids == "fresh":
            fields["id"] = f"fresh{number}-{place}"
        if style.place in ("own", "zero"):
            fields["index"] = number * (style.place == "own")
        pieces.append(piece(each, name if place == 0 or style.names == "each" else None, **fields))
    return pieces


@settings(max_examples=examples(800), deadline=None)
@given(st.sampled_from(STYLES), CALLS, st.lists(st.integers(0, 100_000), max_size=5), st.data())
def test_calls_do_not_depend_on_how_they_are_cut(
    style: Style, calls: list[tuple[str, dict[str, Any]]], places: list[int], draw: st.DataObject
) -> None:
    if not style.is_clear_for_equal_names:
        calls = [group for _, (group, *_) in itertools.groupby(calls, key=lambda call: call[0])]
    pieces = [each for number, call in enumerate(calls) for each in cut(style, number, *call, draw)]
    if style.place == "growing":
        pieces = [{**each, "index": place} for place, each in enumerate(pieces)]
    data = b"".join(sse_event(delta_chunk(tool_calls=[each])) for each in pieces) + sse_event(FINISH_CHUNK)
    reply, deltas = read_chunks(data, places)
    found = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in reply.tool_calls]
    assert found == calls
    assert [(name, json.loads(arguments)) for name, arguments in shown(deltas)] == calls
    assert [call["extra_content"] for call in reply.tool_calls] == [{"n": number} for number in range(len(calls))]
    form = "call{:05}" if style.ids == "none" else "id{}"
    assert [call["id"] for call in reply.tool_calls] == [form.format(number) for number in range(len(calls))]
