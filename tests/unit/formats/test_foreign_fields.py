"""What a server sent beside its answer is stored, and reaches no export: the exported model alone spoke in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_tui.presenters.transcript import message_blocks
from runner.formats.chat import encode_messages
from runner.formats.conversation import read_conversation
from runner.formats.export import new_output, open_writer
from runner.formats.format import writable_formats
from runner.results.alignment import step_text
from runner.store import EpisodeRecord
from runner.store.passages import read_passages
from runner.types import Action, Message, ToolCall
from runner.util.safe_values import encode
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory
from tests.support.json_values import JSON_VALUES
from tests.unit.formats.conftest import CALL, SYSTEM, read_all

SECRET = "opaque-to-all-but-its-server"
EXTRA = {
    "reasoning_details": [{"type": "reasoning.encrypted", "data": SECRET}],
    "content_parts": [{"type": "thinking", "thinking": [{"type": "text", "text": SECRET}]}],
    "extra_content": {"google": {"thought_signature": SECRET}},
    "refusal": f"I refuse: {SECRET}",
    "origin": SECRET,
    "reasoning_field": SECRET,
    "annotations": [SECRET],
}
OPAQUE_CALL = {**CALL, "extra_content": {"google": {"thought_signature": SECRET}}, "index": SECRET}
OPAQUE_CALL["function"] = {**cast("dict[str, Any]", CALL["function"]), "thought_signature": SECRET}
ACTION = Action(tool_calls=[ToolCall("c1", "move", '{"direction":"left"}')])
ANSWER: list[Message] = [{"role": "tool", "content": "a wall", "tool_call_id": "c1"}]
PARQUET = "parquet"


def reply(thought: str, extra: dict[str, Any], call: dict[str, Any]) -> Message:
    fields = {**extra, "role": "assistant", "content": "Go on.", "reasoning_content": thought, "tool_calls": [call]}
    return cast("Message", fields)


def played(extra: dict[str, Any], call: dict[str, Any], reward: float = 1.0) -> EpisodeRecord:
    """Return three steps of a model, the second of which another endpoint's model played in its place."""
    chat, steps = [SYSTEM], []
    for number, model in enumerate(("own", "other", "own")):
        said = reply(f"thought of {model}", extra, call)
        fallback = {"endpoint": "b", "warnings": ("a: HTTP 503",)} if model == "other" else {"endpoint": "a"}
        fields = {"chats": [[*chat, said]], "action": ACTION, "observation": ANSWER, "model": model, **fallback}
        steps.append(make_step(number, reward=reward, **fields))
        chat = [*chat, said, *ANSWER]
    header = episode_header(agent="react", model="own", task_index=3)
    return finished_record(header, make_trajectory(header, steps))


OPAQUE, PLAIN = played(EXTRA, OPAQUE_CALL), played({}, CALL)


def written(form: str, folder: Path, *episodes: EpisodeRecord) -> Path:
    format = writable_formats()[form]
    path = folder / f"export{format.suffix}"
    with new_output(path, is_folder=not format.suffix) as output:
        writer = open_writer(format, output)
        for episode in episodes:
            writer.write(episode)
        writer.finish()
    return path


def contents(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()) or path.read_bytes()


def same_ids(episode: EpisodeRecord) -> EpisodeRecord:
    ids = {name: getattr(PLAIN, name) for name in ("episode_id", "batch_id")}
    return msgspec.structs.replace(episode, **ids)


@pytest.mark.parametrize("form", sorted(writable_formats()))
def test_an_export_is_the_same_with_and_without_the_fields_of_a_server(form: str, tmp_path: Path) -> None:
    if form == PARQUET:
        pytest.importorskip("pyarrow", reason="run `.venv/bin/pip install pyarrow`")
    worse = played(EXTRA, OPAQUE_CALL, reward=0.0)
    worse.timesteps[0].chats[0][-1]["content"] = "Go back."
    (tmp_path / "plain").mkdir()
    opaque = contents(written(form, tmp_path, same_ids(OPAQUE), worse))
    assert SECRET.encode() not in opaque
    worse = msgspec.structs.replace(worse, timesteps=[*map(without_extra, worse.timesteps)])
    assert contents(written(form, tmp_path / "plain", PLAIN, worse)) == opaque


def without_extra(step: Any) -> Any:  # noqa: ANN401
    known = {"role", "content", "reasoning_content", "tool_call_id"}
    chats = [
        [{**{name: value for name, value in each.items() if name in known}, **calls_of(each)} for each in step.chats[0]]
    ]
    return msgspec.structs.replace(step, chats=chats)


def calls_of(message: Message) -> dict[str, Any]:
    return {"tool_calls": [CALL]} if "tool_calls" in message else {}


@pytest.mark.parametrize("form", ["atif", "verifiers", "messages"])
def test_an_export_with_such_fields_is_read_again(form: str, tmp_path: Path) -> None:
    path = written(form, tmp_path, OPAQUE)
    (file,) = (each for each in (path, *path.rglob("*")) if each.is_file())
    found, malformed = read_all(file)
    assert not malformed
    (read,) = (each.record for each in found)
    assert [step.action for step in read.timesteps] == [ACTION] * 3
    assert read_conversation(read).messages()[2:4] == read_conversation(PLAIN).messages()[2:4]


def test_chats_for_training_have_no_thoughts_of_another_model() -> None:
    messages = encode_messages(OPAQUE)["messages"]
    replies = [message for message in messages if message["role"] == "assistant"]
    assert [each.get("reasoning_content") for each in replies] == ["thought of own", None, "thought of own"]
    assert {name for each in messages for name in each} <= {*SYSTEM, "reasoning_content", "tool_calls", "tool_call_id"}
    assert [each["tool_calls"] for each in replies] == [[CALL]] * 3


def test_the_name_that_an_endpoint_has_for_the_model_is_no_other_model() -> None:
    renamed = msgspec.structs.replace(PLAIN, model="the profile's name")
    replies = [each for each in encode_messages(renamed)["messages"] if each["role"] == "assistant"]
    assert [each.get("reasoning_content") for each in replies] == ["thought of own", None, "thought of own"]


def test_full_text_comparisons_and_transcripts_know_no_signature() -> None:
    passages = read_passages(encode(OPAQUE))
    assert passages == read_passages(encode(PLAIN))
    assert step_text(OPAQUE.timesteps[0]) == step_text(PLAIN.timesteps[0])
    blocks = list(message_blocks({**OPAQUE.timesteps[0].chats[0][-1], "refusal": "no\x1b[31m"}))
    assert [str(block.title) for block in blocks] == ["thought", "refusal", "assistant", "tool call move"]
    assert SECRET not in "".join(block.raw for block in blocks)
    assert "\x1b" not in "".join(str(line) for block in blocks for line in block.lines)


@given(st.dictionaries(st.sampled_from([*EXTRA, "thinking", "audio", "index"]), JSON_VALUES), JSON_VALUES)
def test_fields_of_any_shape_change_no_chat(extra: dict[str, Any], of_call: Any) -> None:  # noqa: ANN401
    call = {**CALL, "extra_content": of_call, "function": {**cast("dict[str, Any]", CALL["function"]), "x": of_call}}
    episode = played(extra, call)
    assert read_conversation(episode).messages() == read_conversation(PLAIN).messages()
    assert step_text(episode.timesteps[0]) == step_text(PLAIN.timesteps[0])
    assert list(message_blocks(episode.timesteps[0].chats[0][-1]))
