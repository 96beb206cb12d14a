from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.presenters.cells import FOLD_WIDTH
from agentgym_tui.presenters.payload import TextRows, pretty_json
from agentgym_tui.presenters.transcript import (
    MAX_CHAT,
    MAX_INLINE_ARGUMENTS,
    MAX_STREAMING_CHARS,
    MAX_TEXT,
    Block,
    split_thought,
    step_blocks,
    streaming_tail,
)
from agentgym_tui.safe_text import has_unsafe_chars
from agentgym_tui.state.episode import StreamingAnswer, StreamingToolCall
from agentgym_tui.state.episodes import MAX_STREAMED_CHARS
from runner.events.live import LiveAction
from runner.types import Tokens, ToolCall
from tests.support.console.samples import ESCAPES, HOSTILE, HUGE, episode, hostile_episode, step, user

SYSTEM: dict[str, Any] = {"role": "system", "content": "play well"}


def assistant_message(text: str, **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def summary(blocks: list[Block]) -> list[tuple[str, str, str]]:
    return [(block.kind, block.title, "|".join(block.lines)) for block in blocks]


def test_a_step_shows_prompt_thought_action_and_reply_in_order() -> None:
    chat = [SYSTEM, user("a room"), assistant_message("go", reasoning_content="north is free")]
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


def test_only_new_messages_of_a_step_are_shown_unless_full() -> None:
    chat = [
        SYSTEM,
        user("one"),
        assistant_message("first"),
        user("two"),
        {"role": "tool", "content": "3"},
        assistant_message("second"),
    ]
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


def test_without_chats_the_previous_observation_is_shown() -> None:
    played = episode(steps=[step(0, chats=[], observation=[user("then")]), step(1, chats=[])])
    assert summary(step_blocks(played, 0))[0] == ("observation", "observation", "observation 0")
    assert summary(step_blocks(played, 1))[0] == ("observation", "observation", "then")
    missing = "step 3 was not received; the episode file has it"
    assert summary(step_blocks(episode(steps=[step(0), step(5)]), 3))[0] == ("note", missing, "")


def test_several_chats_and_omitted_messages_have_headings() -> None:
    played = episode(
        steps=[
            step(0, chats=[[user("a"), assistant_message("b")], [user("c"), assistant_message("guess 0")]], left_out=4)
        ]
    )
    titles = [block.title for block in step_blocks(played, 0)]
    assert titles[0] == "… 4 messages not sent live; see the episode file"
    assert titles[1:6] == ["chat 1 of 2", "observation", "assistant", "chat 2 of 2", "observation"]


@pytest.mark.parametrize(
    ("text", "thought", "rest"),
    [
        ("<think>a b</think>\ngo", "a b", "go"),
        ("a b</think>go", "a b", "go"),
        ("<think>cut off", "cut off", ""),
        ("<thinking>a</thinking>go", "a", "go"),
        ("<think>a</think>go <think>b</think>north", "a\nb", "go north"),
        ("<think></think>go", "", "go"),
        ("Thought:\nit is near\n\nAction:\ngo north", "it is near", "go north"),
        ("Action: go", "", "Action: go"),
        ("no thought at all", "", "no thought at all"),
        ("", "", ""),
    ],
)
def test_thoughts_are_split_from_actions(text: str, thought: str, rest: str) -> None:
    assert split_thought(text) == (thought, rest)


def test_the_title_of_an_action_names_its_actor_and_validity() -> None:
    played = episode(steps=[step(0, actor="human", valid=False, action=LiveAction("nonsense"))])
    assert ("action", "action · by a human · ✗ not valid", "nonsense") in summary(step_blocks(played, 0))
    played = episode(steps=[step(0, refused=True, action=LiveAction("drop"))])
    assert ("action", "action · ✗ refused", "drop") in summary(step_blocks(played, 0))


def test_texts_clipped_in_transit_show_their_full_length() -> None:
    action = LiveAction("go", [ToolCall("c", "move", "{}")], {"text": 70_000, "tool_calls/0/arguments": 80_000})
    chat = [
        {**user("seen"), "full_length": {"content": 90_000}},
        {**assistant_message("go on"), "full_length": {"content": 70_000}},
    ]
    blocks = step_blocks(episode(steps=[step(0, chats=[chat], action=action)]), 0)
    lengths = [line.split(", ")[1] for block in blocks for line in block.lines if line.startswith("… cut on the way")]
    assert lengths == ["90000 characters in all", "70000 characters in all", "80000 characters in all"]
    assert [block.lines[0] for block in blocks if block.kind == "action"] == ["go"]


def test_long_json_arguments_are_indented_and_other_text_is_unchanged() -> None:
    long = json.dumps({"word": "x" * MAX_INLINE_ARGUMENTS})
    calls = [ToolCall("1", "a", long), ToolCall("2", "b", "not json " * 20), ToolCall("3", "c", "[" * 50_000)]
    blocks = step_blocks(episode(steps=[step(0, action=LiveAction(None, calls))]), 0)
    first, second, third = (block.lines for block in blocks if block.kind == "tool")
    assert first == ["{", f'  "word": "{"x" * MAX_INLINE_ARGUMENTS}"', "}"]
    assert second == ["not json " * 20]
    assert third[0].startswith("[[[[")


@pytest.mark.parametrize(("n_steps", "observation"), [(0, "observation 0"), (2, None)])
def test_a_streaming_step_shows_the_reset_or_the_last_observation_and_its_text(
    n_steps: int, observation: str | None
) -> None:
    playing = episode(n_steps=n_steps, outcome=None, streaming=StreamingAnswer(text="I thi"))
    assert summary(step_blocks(playing, n_steps)) == [
        ("observation", "observation", observation or playing.steps[-1].observation[0]["content"]),
        ("streaming", "streaming …", "I thi"),
    ]


def test_thoughts_text_and_tool_calls_stream_as_separate_blocks() -> None:
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
    blocks = summary(step_blocks(episode(n_steps=0, outcome=None, streaming=answer), 0))
    assert blocks == [
        ("observation", "observation", "observation 0"),
        ("warning", "↷ no answer from", "gateway: no connection to http://***@host/"),
        ("thought", "thought · streaming …", "north is free"),
        ("thought", "thought · streaming …", "or south"),
        ("streaming", "streaming …", "I go"),
        ("tool", "tool call move · streaming …", '{"to": "no'),
        ("note", "≈ 12 tokens · first token 500 ms · m", ""),
    ]
    waiting = episode(n_steps=0, outcome=None, streaming=StreamingAnswer(endpoint="ollama"))
    assert summary(step_blocks(waiting, 0))[-1] == ("note", "waiting for ollama", "")


def test_an_answer_shows_its_usage_and_the_endpoint_it_replaced() -> None:
    usage: dict[str, Any] = {
        "tokens": Tokens(1_200, 60, 20, 1_000),
        "ttft_s": 0.25,
        "tokens_per_s": 7.25,
        "cost": 0.002,
    }
    answer = step(0, endpoint="ollama", model="m", warnings=["gateway: away", "ollama: late"], **usage)
    played = episode(steps=[answer], currency="EUR")
    answered = next(each for each in summary(step_blocks(played, 0)) if "answered" in each[1])
    assert answered == (
        "note",
        "↷ answered instead of gateway by",
        "ollama · m · first token 250 ms · 7.2 tokens/s · cost 0.002 EUR"
        "|1.2k prompt (1.0k cached) + 60 completion (20 reasoning) tokens",
    )


def numbered_text(n: int) -> str:
    return " ".join(f"number {index}," for index in range(n))


@pytest.mark.parametrize("n_dropped", [0, 5, 81_070])
def test_a_long_streaming_line_shows_its_end_and_the_number_of_hidden_characters(n_dropped: int) -> None:
    text = numbered_text(4_000)
    call = StreamingToolCall(0, "note", text, n_dropped)
    answer = StreamingAnswer(
        text=text, reasoning=text, calls=(call,), n_text_dropped=n_dropped, n_reasoning_dropped=n_dropped
    )
    streaming = episode(n_steps=0, outcome=None, streaming=answer)
    blocks = [block for block in step_blocks(streaming, 0) if "streaming" in block.title]
    assert [block.kind for block in blocks] == ["thought", "streaming", "tool"]
    for block in blocks:
        notice, end = block.lines
        assert notice == f"… ({n_dropped + len(text) - len(end)} earlier characters hidden while streaming)"
        assert text.endswith(f" {end}") and end.startswith(("number ", *"0123456789"))
        assert MAX_STREAMING_CHARS // 2 < len(end) <= MAX_STREAMING_CHARS
        assert block.raw == text


def test_the_rows_of_a_growing_line_rarely_shift() -> None:
    text, shown = numbered_text(9_000), list[str]()
    for stop in range(70_000, 74_000, 100):
        visible = text[stop - MAX_STREAMED_CHARS : stop]
        shown.append(streaming_tail(visible, stop - MAX_STREAMED_CHARS).split("\n")[1])
    assert all(text[:stop].endswith(end) for stop, end in zip(range(70_000, 74_000, 100), shown, strict=True))
    assert sum(not later.startswith(earlier) for earlier, later in pairwise(shown)) == 2


def test_a_streaming_text_of_many_lines_keeps_its_newest_lines() -> None:
    short_lines = "\n".join(["a line of an answer"] * 1_000)
    assert streaming_tail(short_lines) == short_lines
    assert streaming_tail(short_lines, 7) == f"… (7 earlier characters hidden while streaming)\n{short_lines}"
    long = f"first\n{numbered_text(2_000)}\nlast"
    first, notice, end, last = streaming_tail(long).split("\n")
    assert (first, last, len(end) <= MAX_STREAMING_CHARS) == ("first", "last", True) and end.endswith("number 1999,")
    assert notice.startswith(f"… ({len(numbered_text(2_000)) - len(end)} earlier characters")
    lines = step_blocks(episode(n_steps=0, outcome=None, streaming=StreamingAnswer(text="x\n" * 30_000 + "last")), 0)[
        -1
    ].lines
    assert lines[0] == f"… ({60_000 - 2 * 3_999} earlier characters hidden while streaming)"
    assert (lines[1], lines[-1]) == ("x", "last")


def test_a_long_streaming_line_is_sanitized_and_its_raw_text_is_kept() -> None:
    text = numbered_text(4_000) + "\x1b[2J\u202e[red]"
    (block,) = step_blocks(
        episode(steps=[], outcome=None, streaming=StreamingAnswer(text=text), reset_observation=[]), 0
    )
    assert block.lines[-1].endswith("␛[2J\\u{202e}[red]")
    assert (block.has_unsafe, block.raw) == (True, text)


def test_a_long_line_of_a_finished_step_is_complete() -> None:
    text = numbered_text(4_000)
    calls = [ToolCall("1", "note", json.dumps({"text": text}))]
    action = LiveAction(f"<think>{text}</think>{text}", calls)
    blocks = step_blocks(episode(steps=[step(0, chats=[[user(text)]], action=action, observation=[user(text)])]), 0)
    assert [block.kind for block in blocks] == ["observation", "thought", "action", "tool", "reply"]
    assert all(any(text in line for line in block.lines) for block in blocks)


def test_streaming_text_and_errors_follow_only_the_last_step() -> None:
    ended = episode(
        streaming=StreamingAnswer(text="on"),
        error_type="timeout",
        error_message="no answer from http://me:secret@host/",
    )
    assert [block.kind for block in step_blocks(ended, 2)][-2:] == ["streaming", "error"]
    assert not {"streaming", "error"} & {block.kind for block in step_blocks(ended, 1)}
    assert step_blocks(ended, 2)[-1].title == "✗ timeout"
    assert "secret" not in repr(step_blocks(ended, 2)[-1])


@pytest.mark.parametrize("text", [*ESCAPES, HOSTILE, HUGE, ""])
def test_hostile_texts_of_any_shape_become_safe_lines(text: str) -> None:
    played = hostile_episode(text=text)
    for index in (0, 1, 7):
        for block in step_blocks(played, index, full=True):
            shown = [block.title, *block.lines]
            assert not any(has_unsafe_chars(line) or "\n" in line or "\t" in line for line in shown)
            assert max(map(len, shown)) <= MAX_TEXT
            assert block.has_unsafe or not has_unsafe_chars(block.raw[:MAX_TEXT])


def test_a_block_with_an_unsafe_title_is_unsafe() -> None:
    blocks = step_blocks(episode(steps=[step(0, action=LiveAction(None, [ToolCall("c", "run\x1b[2J", "{}")]))]), 0)
    (call,) = (block for block in blocks if block.kind == "tool")
    assert (call.title, call.has_unsafe, call.raw) == ("tool call run␛[2J", True, "run\x1b[2J\n{}")


def test_long_chats_keep_their_last_messages_within_the_limit() -> None:
    long = [user(f"{number}" + "x" * MAX_TEXT * 2) for number in range(100)]
    blocks = step_blocks(episode(steps=[step(0, chats=[long])]), 0)
    observations = [block for block in blocks if block.kind == "observation"]
    assert sum(len(line) for block in observations for line in block.lines) < MAX_CHAT + MAX_TEXT
    assert blocks[0].title == "… 95 earlier messages, too long to show; see the JSON"
    assert observations[-1].lines[0].startswith("99x")


def test_messages_that_are_left_out_of_a_reply_or_an_observation_are_named_and_searched() -> None:
    long = [user(f"word{number} " + "x" * MAX_TEXT * 2) for number in range(100)]
    played = episode(steps=[step(0, chats=[], observation=long), step(1, chats=[])], reset_observation=long)
    note = "… 95 earlier messages, too long to show; see the JSON"
    first, second = step_blocks(played, 0), step_blocks(played, 1)
    for blocks in (first, second):
        assert blocks[0].title == note
        assert len([*blocks[0].matches_hidden(re.compile("word94 "))]) == 1
        assert [*blocks[0].matches_hidden(re.compile("word95 "))] == []
    reply = next(number for number, block in enumerate(first) if block.title.startswith("reply"))
    assert [block.title for block in first[reply + 1 : reply + 2]] == [note]
    assert first[-1].lines[0].startswith("word99 x")


def test_json_is_indented_and_other_text_is_unchanged() -> None:
    assert pretty_json(b'{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert pretty_json(b'{"a":') == '{"a":'
    assert pretty_json(b"[" * 100_000) == "[" * 100_000
    assert pretty_json(b"\xff") == "\ufffd"


def test_long_lines_of_a_text_are_broken_and_numbered_once() -> None:
    rows = TextRows(HUGE + "\nplain")
    number, text = rows.line(0, 80)
    assert (number.text, text.text[:4], len(text.text)) == ("⚠ ", "␛[2J", FOLD_WIDTH)
    assert len(rows) == 1 + -(-len(HUGE) // FOLD_WIDTH)
    assert [cell.text for cell in rows.line(len(rows) - 1, 80)] == ["2 ", "plain"]
    assert TextRows("x" * (FOLD_WIDTH + 1)).line(1, 80)[0].text == "  "


@given(
    st.lists(st.text("ab \t", max_size=3 * FOLD_WIDTH), min_size=1, max_size=4),
    st.sampled_from(["ab", "abb", "aab", "b\ta"]),
)
def test_words_that_go_on_in_the_next_row_are_found_and_marked(lines: list[str], words: str) -> None:
    rows, expression = TextRows("\n".join(lines)), re.compile(words)
    matches = [match[0] for line in lines for match in expression.finditer(line)]
    assert len(rows.find_rows(expression)) == len(matches)
    texts = ["".join(cell.text for cell in rows.line(index, 80)) for index in range(len(rows))]
    marked = [text[slice(*place)] for index, text in enumerate(texts) for place in rows.found_in(index, expression)]
    assert "".join(marked) == "".join(matches).replace("\t", "    ")


def test_secrets_in_the_names_of_endpoint_and_model_are_masked() -> None:
    secret = "http://user:hunter2@host/v1"
    played = episode(steps=[step(0, endpoint=secret, model=secret)])
    shown = "\n".join(line for block in step_blocks(played, 0) for line in (block.title, *block.lines))
    assert "http://***@host" in shown and "hunter2" not in shown
