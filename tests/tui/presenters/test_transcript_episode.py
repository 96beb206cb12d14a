from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from agentgym_tui.presenters.chat_blocks import MAX_CHAT, MAX_INLINE_ARGUMENTS, MAX_TEXT, Block, split_thought
from agentgym_tui.presenters.payload import TextRows, pretty_json
from agentgym_tui.presenters.transcript import MAX_STREAMING_CHARS, step_blocks, streaming_tail
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.models import StreamingAnswer, StreamingToolCall
from agentgym_tui.state.streaming_answer import MAX_STREAMED_CHARS
from runner.events.live import LiveAction
from runner.types import Tokens, ToolCall
from tests.support.console.samples import ESCAPES, HOSTILE, HUGE, episode, hostile_episode, step, user

SYSTEM: dict[str, Any] = {"role": "system", "content": "play well"}


def said(text: str, **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def summary(found: list[Block]) -> list[tuple[str, str, str]]:
    return [(block.kind, block.title, "|".join(block.lines)) for block in found]


def test_a_step_reads_from_what_was_given_to_what_came_back() -> None:
    chat = [SYSTEM, user("a room"), said("go", reasoning_content="north is free")]
    action = LiveAction("go", [ToolCall("c", "move", '{"to": "north"}')])
    played = episode(steps=[step(0, chats=[chat], action=action, observation=[user("a wall")], reward=-0.5, done=True)])
    assert summary(step_blocks(played, 0)) == [
        ("system", "system", "play well"),
        ("observation", "observation", "a room"),
        ("thought", "thought", "north is free"),
        ("action", "action", "go"),
        ("tool", "tool call move", '{"to": "north"}'),
        ("reply", "reply · reward -0.5 · done", "a wall"),
    ]


def test_only_what_is_new_in_the_step_is_shown_unless_all_is_wanted() -> None:
    chat = [SYSTEM, user("one"), said("first"), user("two"), {"role": "tool", "content": "3"}, said("second")]
    played = episode(steps=[step(0), step(1, chats=[chat], action=LiveAction("second"))])
    assert summary(step_blocks(played, 1))[:4] == [
        ("earlier", "… 3 earlier messages", ""),
        ("observation", "observation", "two"),
        ("tool", "tool result", "3"),
        ("action", "action", "second"),
    ]
    everything = step_blocks(played, 1, full=True)
    assert [block.title for block in everything[:3]] == ["system", "observation", "assistant"]
    assert everything[2].lines == ["first"]


def test_an_agent_without_chats_was_given_what_the_environment_said_before() -> None:
    played = episode(steps=[step(0, chats=[], observation=[user("then")]), step(1, chats=[])])
    assert summary(step_blocks(played, 0))[0] == ("observation", "observation", "observation 0")
    assert summary(step_blocks(played, 1))[0] == ("observation", "observation", "then")


def test_several_chats_and_messages_that_were_left_out_say_so() -> None:
    played = episode(steps=[step(0, chats=[[user("a"), said("b")], [user("c"), said("guess 0")]], left_out=4)])
    titles = [block.title for block in step_blocks(played, 0)]
    assert titles[0] == "… 4 messages not sent live; see the episode file"
    assert titles[1:6] == ["chat 1 of 2", "observation", "assistant", "chat 2 of 2", "observation"]


@pytest.mark.parametrize(
    ("text", "thought", "rest"),
    [
        ("<think>a b</think>\ngo", "a b", "go"),
        ("a b</think>go", "a b", "go"),
        ("<think>cut off", "cut off", ""),
        ("Thought:\nit is near\n\nAction:\ngo north", "it is near", "go north"),
        ("Action: go", "", "Action: go"),
        ("no thought at all", "", "no thought at all"),
        ("", "", ""),
    ],
)
def test_thoughts_are_told_from_actions(text: str, thought: str, rest: str) -> None:
    assert split_thought(text) == (thought, rest)


def test_what_an_action_is_stands_in_its_title() -> None:
    played = episode(steps=[step(0, actor="human", valid=False, action=LiveAction("nonsense"))])
    assert ("action", "action · by a human · ✗ not valid", "nonsense") in summary(step_blocks(played, 0))


def test_texts_that_were_cut_on_their_way_say_how_long_they_were() -> None:
    action = LiveAction("go", [ToolCall("c", "move", "{}")], {"text": 70_000, "tool_calls/0/arguments": 80_000})
    chat = [{**user("seen"), "full_length": {"content": 90_000}}, {**said("go on"), "full_length": {"content": 70_000}}]
    found = step_blocks(episode(steps=[step(0, chats=[chat], action=action)]), 0)
    lengths = [
        line.split(", ")[1] for block in found for line in block.lines if line.startswith("… clipped in transit")
    ]
    assert lengths == ["90000 characters in all", "70000 characters in all", "80000 characters in all"]
    assert [block.lines[0] for block in found if block.kind == "action"] == ["go"]


def test_long_arguments_are_indented_and_what_is_no_json_stays() -> None:
    long = json.dumps({"word": "x" * MAX_INLINE_ARGUMENTS})
    calls = [ToolCall("1", "a", long), ToolCall("2", "b", "not json " * 20), ToolCall("3", "c", "[" * 50_000)]
    found = step_blocks(episode(steps=[step(0, action=LiveAction(None, calls))]), 0)
    first, second, third = (block.lines for block in found if block.kind == "tool")
    assert first == ["{", f'  "word": "{"x" * MAX_INLINE_ARGUMENTS}"', "}"]
    assert second == ["not json " * 20]
    assert third[0].startswith("[[[[")


def test_before_the_first_step_there_is_the_reset_and_what_streams_in() -> None:
    starting = episode(n_steps=0, outcome=None, streaming=StreamingAnswer(text="I thi"))
    assert summary(step_blocks(starting, 0)) == [
        ("observation", "observation", "observation 0"),
        ("streaming", "streaming …", "I thi"),
    ]


def test_the_step_that_is_being_answered_shows_what_the_agent_was_given_and_what_streams_in() -> None:
    playing = episode(n_steps=2, outcome=None, streaming=StreamingAnswer(text="I thi"))
    given = playing.steps[1].observation[0]
    assert summary(step_blocks(playing, 2)) == [
        ("observation", "observation", given["content"]),
        ("streaming", "streaming …", "I thi"),
    ]


def test_thoughts_and_calls_stream_apart_from_what_is_said() -> None:
    answer = StreamingAnswer(
        reasoning="north is free",
        text="<think>or south</think>I go",
        calls=(StreamingToolCall(0, "move", '{"to": "no'),),
        failures=("gateway: no connection to http://me:secret@host/",),
        endpoint="ollama",
        model="m",
        n_tokens=12,
        ttft_s=0.5,
    )
    found = summary(step_blocks(episode(n_steps=0, outcome=None, streaming=answer), 0))
    assert found == [
        ("observation", "observation", "observation 0"),
        ("warning", "↷ no answer from", "gateway: no connection to http://***@host/"),
        ("thought", "thought · streaming …", "north is free"),
        ("thought", "thought · streaming …", "or south"),
        ("streaming", "streaming …", "I go"),
        ("tool", "tool call move · streaming …", '{"to": "no'),
        ("note", "≈ 12 tokens · first token 500 ms · m", ""),
    ]
    asked = episode(n_steps=0, outcome=None, streaming=StreamingAnswer(endpoint="ollama"))
    assert summary(step_blocks(asked, 0))[-1] == ("note", "waiting for ollama", "")


def test_an_answer_says_what_it_took_and_in_whose_place_it_came() -> None:
    took: dict[str, Any] = {"tokens": Tokens(1_200, 60, 20, 1_000), "ttft_s": 0.25, "tokens_per_s": 7.25, "cost": 0.002}
    played = episode(steps=[step(0, endpoint="ollama", model="m", warnings=["gateway: away", "ollama: late"], **took)])
    answered = next(each for each in summary(step_blocks(played, 0)) if "answered" in each[1])
    assert answered == (
        "note",
        "↷ answered instead of gateway by",
        "ollama · m · first token 250 ms · 7.2 tokens/s · cost 0.002"
        "|1.2k prompt (1.0k cached) + 60 completion (20 reasoning) tokens",
    )


def numbered(n: int) -> str:
    return " ".join(f"number {index}," for index in range(n))


@pytest.mark.parametrize("n_gone", [0, 5, 81_070])
def test_of_a_long_line_that_comes_the_end_is_shown_and_what_is_left_out_is_said(n_gone: int) -> None:
    text = numbered(4_000)
    call = StreamingToolCall(0, "note", text, n_gone)
    answer = StreamingAnswer(
        text=text, reasoning=text, calls=(call,), n_text_dropped=n_gone, n_reasoning_dropped=n_gone
    )
    coming = episode(n_steps=0, outcome=None, streaming=answer)
    found = [block for block in step_blocks(coming, 0) if "streaming" in block.title]
    assert [block.kind for block in found] == ["thought", "streaming", "tool"]
    for block in found:
        said, end = block.lines
        assert said == f"… ({n_gone + len(text) - len(end)} earlier characters hidden while streaming)"
        assert text.endswith(f" {end}") and end.startswith(("number ", *"0123456789"))
        assert MAX_STREAMING_CHARS // 2 < len(end) <= MAX_STREAMING_CHARS
        assert block.raw == text


def test_the_rows_of_a_long_line_stay_where_they_are_while_it_grows() -> None:
    text, shown = numbered(9_000), list[str]()
    for stop in range(70_000, 74_000, 100):
        kept = text[stop - MAX_STREAMED_CHARS : stop]
        shown.append(streaming_tail(kept, stop - MAX_STREAMED_CHARS).split("\n")[1])
    assert all(text[:stop].endswith(end) for stop, end in zip(range(70_000, 74_000, 100), shown, strict=True))
    assert sum(not later.startswith(earlier) for earlier, later in pairwise(shown)) == 2


def test_what_comes_in_lines_keeps_those_there_is_room_for_and_the_newest_are_among_them() -> None:
    usual = "\n".join(["a line of an answer"] * 1_000)
    assert streaming_tail(usual) == usual
    assert streaming_tail(usual, 7) == f"… (7 earlier characters hidden while streaming)\n{usual}"
    long = f"first\n{numbered(2_000)}\nlast"
    first, said, end, last = streaming_tail(long).split("\n")
    assert (first, last, len(end) <= MAX_STREAMING_CHARS) == ("first", "last", True) and end.endswith("number 1999,")
    assert said.startswith(f"… ({len(numbered(2_000)) - len(end)} earlier characters")
    many = step_blocks(episode(n_steps=0, outcome=None, streaming=StreamingAnswer(text="x\n" * 30_000 + "last")), 0)[
        -1
    ].lines
    assert many[0] == f"… ({60_000 - 2 * 3_999} earlier characters hidden while streaming)"
    assert (many[1], many[-1]) == ("x", "last")


def test_a_long_line_that_comes_is_cleaned_and_its_text_is_there_as_it_came() -> None:
    text = numbered(4_000) + "\x1b[2J\u202e[red]"
    (block,) = step_blocks(
        episode(steps=[], outcome=None, streaming=StreamingAnswer(text=text), reset_observation=[]), 0
    )
    assert block.lines[-1].endswith("␛[2J\\u{202e}[red]")
    assert (block.has_unsafe, block.raw) == (True, text)


def test_a_long_line_of_what_is_over_is_there_to_its_end() -> None:
    text = numbered(4_000)
    calls = [ToolCall("1", "note", json.dumps({"text": text}))]
    action = LiveAction(f"<think>{text}</think>{text}", calls)
    found = step_blocks(episode(steps=[step(0, chats=[[user(text)]], action=action, observation=[user(text)])]), 0)
    assert [block.kind for block in found] == ["observation", "thought", "action", "tool", "reply"]
    assert all(any(text in line for line in block.lines) for block in found)


def test_streamed_text_and_errors_come_after_the_last_step_alone() -> None:
    ended = episode(
        streaming=StreamingAnswer(text="on"),
        error_type="timeout",
        error_message="no answer from http://me:secret@host/",
    )
    assert [block.kind for block in step_blocks(ended, 2)][-2:] == ["streaming", "error"]
    assert not {"streaming", "error"} & {block.kind for block in step_blocks(ended, 1)}
    assert step_blocks(ended, 2)[-1].title == "✗ timeout"
    assert "secret" not in repr(step_blocks(ended, 2)[-1])


def test_a_step_that_never_came_is_said_to_be_missing() -> None:
    assert summary(step_blocks(episode(steps=[step(0), step(5)]), 3))[0] == ("note", "step 3 not received", "")


@pytest.mark.parametrize("text", [*ESCAPES, HOSTILE, HUGE, ""])
def test_hostile_texts_of_any_shape_become_safe_lines(text: str) -> None:
    played = hostile_episode(text=text)
    for index in (0, 1, 7):
        for block in step_blocks(played, index, full=True):
            shown = [block.title, *block.lines]
            assert not any(has_unsafe_chars(line) or "\n" in line or "\t" in line for line in shown)
            assert max(map(len, shown)) <= MAX_TEXT
            assert block.has_unsafe or not has_unsafe_chars(block.raw[:MAX_TEXT])


def test_a_block_knows_when_its_title_is_what_was_changed() -> None:
    found = step_blocks(episode(steps=[step(0, action=LiveAction(None, [ToolCall("c", "run\x1b[2J", "{}")]))]), 0)
    (call,) = (block for block in found if block.kind == "tool")
    assert (call.title, call.has_unsafe, call.raw) == ("tool call run␛[2J", True, "run\x1b[2J\n{}")


def test_chats_are_laid_out_within_bounds_the_last_messages_first() -> None:
    long = [user(f"{number}" + "x" * MAX_TEXT * 2) for number in range(100)]
    found = step_blocks(episode(steps=[step(0, chats=[long])]), 0)
    given = [block for block in found if block.kind == "observation"]
    assert sum(len(line) for block in given for line in block.lines) < MAX_CHAT + MAX_TEXT
    assert found[0].title == "… 95 earlier messages"
    assert given[-1].lines[0].startswith("99x")


def test_json_is_indented_and_anything_else_stays_as_it_is() -> None:
    assert pretty_json(b'{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert pretty_json(b'{"a":') == '{"a":'
    assert pretty_json(b"[" * 100_000) == "[" * 100_000
    assert pretty_json(b"\xff") == "\ufffd"


def test_long_lines_of_a_text_are_cut_and_say_so() -> None:
    rows = TextRows(HUGE + "\nplain")
    number, text, rest = rows.line(0, 80)
    assert (number.text, text.text[:4], len(text.text)) == ("⚠ ", "␛[2J", 2_000)
    assert rest.text == f"… (+{len(HUGE) - 2_000})"
    assert [cell.text for cell in rows.line(1, 80)] == ["2 ", "plain"]
