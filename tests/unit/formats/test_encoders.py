"""Episodes in the formats of trainers: what each has of a conversation, its calls, rewards and tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import ConfigError
from runner.formats.agentgym import encode_agenttraj, encode_rollout
from runner.formats.atif import encode_atif
from runner.formats.chat import encode_messages, encode_pair, encode_sharegpt
from runner.formats.conversation import read_conversation
from runner.formats.export import new_output, open_writer
from runner.formats.format import Format, LeftOut, _usable_formats, find_format, readable_formats, writable_formats
from runner.formats.verifiers import encode_trace
from runner.plugins import FORMATS, registered_names
from runner.store import EpisodeRecord
from runner.util.safe_values import encode
from tests.support.episodes import episode_header, finished_record, make_step, make_trajectory
from tests.support.json_values import JSON_VALUES
from tests.unit.formats.conftest import CALL, chat_of


def plain(value: object) -> Any:  # noqa: ANN401
    return msgspec.json.decode(encode(value))


def test_messages_are_the_whole_conversation(episode: EpisodeRecord) -> None:
    line = plain(encode_messages(episode))
    assert [(m["role"], m["content"]) for m in line["messages"]] == [
        ("system", "You walk through a maze."),
        ("user", "observation 0"),
        ("assistant", "Go on."),
        ("tool", "a wall"),
        ("assistant", "Where am I?"),
        ("user", "not an action"),
    ]
    assert line["messages"][2]["tool_calls"] == [CALL]
    assert line["tools"][0]["function"]["name"] == "move"
    assert (line["task_index"], line["reward"], line["model"]) == (17, -0.5, "qwen3:8b")


def test_atif_has_what_its_models_allow(episode: EpisodeRecord) -> None:
    trajectory = plain(encode_atif(episode))
    assert trajectory["schema_version"] == "ATIF-v1.8"
    assert [step["step_id"] for step in trajectory["steps"]] == [1, 2, 3, 4]
    assert [step["source"] for step in trajectory["steps"]] == ["system", "user", "agent", "agent"]
    called, second = trajectory["steps"][2:]
    assert called["tool_calls"] == [{"tool_call_id": "c1", "function_name": "move", "arguments": {"direction": "left"}}]
    assert called["observation"] == {"results": [{"source_call_id": "c1", "content": "a wall"}]}
    assert called["reasoning_content"] == "hm"
    assert called["metrics"] == {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "cached_tokens": 50,
        "extra": {"agentgym": {"reasoning_tokens": 3}},
    }
    assert called["extra"]["agentgym"]["reward"] == -1.0
    assert "model_name" not in called
    assert second["model_name"] == "qwen3:14b"
    assert second["observation"] == {"results": [{"content": "not an action"}]}
    assert trajectory["extra"]["agentgym"]["reward"] == -0.5
    assert trajectory["final_metrics"]["total_steps"] == 4


def test_atif_keeps_arguments_that_are_no_object(episode: EpisodeRecord) -> None:
    call = {**CALL, "function": {"name": "move", "arguments": "left"}}
    episode.timesteps[0].chats[0][-1]["tool_calls"] = [call]
    step = plain(encode_atif(episode))["steps"][2]
    assert step["tool_calls"][0]["arguments"] == {}
    assert step["extra"]["agentgym"]["unparsed_arguments"] == {"c1": "left"}


def test_agenttraj_trains_on_valid_actions_and_writes_calls_as_commands(episode: EpisodeRecord) -> None:
    item = plain(encode_agenttraj(episode))
    assert item["item_id"] == "lmrlgym_maze_17"
    assert [(each["from"], each["loss"], each["value"]) for each in item["conversations"]] == [
        ("human", None, "You walk through a maze."),
        ("gpt", False, "Ok."),
        ("human", None, "observation 0"),
        ("gpt", True, "Thought:\nGo on.\n\nAction:\nmove left"),
        ("human", None, "a wall"),
        ("gpt", False, "Where am I?"),
        ("human", None, "not an action"),
    ]


def test_a_rollout_has_a_number_and_the_last_reward(episode: EpisodeRecord) -> None:
    item = plain(encode_rollout(episode))
    assert (item["item_id"], item["reward"]) == (17, 0.5)
    assert {each["role"] for each in item["conversations"]} == {"user", "assistant"}


def test_speakers_of_sharegpt_alternate(episode: EpisodeRecord) -> None:
    line = plain(encode_sharegpt(episode))
    assert [each["from"] for each in line["conversations"]] == ["system", "human", "gpt", "human", "gpt"]
    assert line["final_observation"] == "not an action"


def test_a_trace_is_a_graph_with_one_branch(episode: EpisodeRecord) -> None:
    trace = plain(encode_trace(episode))
    assert [node["parent"] for node in trace["nodes"]] == [None, 0, 1, 2, 3, 4]
    assert [node["sampled"] for node in trace["nodes"]] == [False, False, True, False, True, False]
    assert trace["nodes"][2]["message"]["tool_calls"][0]["name"] == "move"
    assert [call["node"] for call in trace["calls"]] == [2, 4]
    assert trace["calls"][0]["usage"]["prompt_tokens"] == 50
    assert trace["rewards"]["reward"]["score"] == -0.5
    assert trace["ok"] is True


def test_a_pair_begins_at_the_first_different_reply(episode: EpisodeRecord) -> None:
    header = episode_header(agent="react", model="qwen3:8b", task_index=17)
    better = [
        episode.timesteps[0],
        make_step(1, chats=chat_of({"role": "assistant", "content": "move up"}), reward=3.0),
    ]
    other = finished_record(header, make_trajectory(header, better))
    pair = plain(encode_pair([other, episode]))
    assert [message["content"] for message in pair["prompt"]][-2:] == ["Go on.", "a wall"]
    assert pair["chosen"][0]["content"] == "move up"
    assert pair["rejected"][0]["content"] == "Where am I?"
    assert (pair["score_chosen"], pair["score_rejected"]) == (2.0, -0.5)
    with pytest.raises(LeftOut, match="same reward"):
        encode_pair([episode, episode])


def test_an_episode_without_a_step_is_left_out_of_training_data() -> None:
    header = episode_header()
    empty = finished_record(header, make_trajectory(header, []))
    for encoder in (encode_messages, encode_sharegpt, encode_agenttraj, encode_rollout):
        with pytest.raises(LeftOut, match="no step"):
            encoder(empty)


@given(messages=st.lists(JSON_VALUES, max_size=3), observation=st.lists(JSON_VALUES, max_size=3))
def test_messages_of_any_form_become_chat_messages(messages: list[Any], observation: list[Any]) -> None:
    header = episode_header()
    record = finished_record(header, make_trajectory(header, [make_step(0, chats=[messages], observation=observation)]))
    for message in read_conversation(record).messages():
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)
    for encoder in (encode_atif, encode_trace, encode_messages, encode_sharegpt, encode_agenttraj):
        assert isinstance(plain(encoder(record)), dict)


def test_registered_formats_are_loaded_by_name() -> None:
    both = ["agentgym-rl", "agenttraj", "atif", "messages", "parquet", "preferences", "sharegpt", "verifiers"]
    assert list(writable_formats()) == sorted([*both, "html"])
    assert set(readable_formats()) == {*both, "harbor", "inspect", "nemo-gym", "verifiers-results"}
    with pytest.raises(ConfigError, match="Did you mean atif"):
        find_format("atiff")


@pytest.mark.parametrize(
    ("suffix", "file", "files"),
    [
        (".jsonl", "", {"": b'{"total":1}\n{"total":2}\n'}),
        (".json", "", {"": b'[\n{"total":1},\n{"total":2}\n]\n'}),
        ("", "", {"a.json": b'{"total":1}\n', "b.json": b'{"total":2}\n'}),
        ("", "below/all.jsonl", {"below/all.jsonl": b'{"total":1}\n{"total":2}\n'}),
    ],
)
def test_a_format_of_another_package_needs_one_function(
    suffix: str, file: str, files: dict[str, bytes], episode: EpisodeRecord, tmp_path: Path
) -> None:
    totals = {"a": 1, "b": 2}
    target = Format(
        name="total", title="Totals", suffix=suffix, file=file, encode=lambda each: {"total": totals[each.episode_id]}
    )
    with new_output(tmp_path / "o", is_folder=not suffix) as output:
        writer = open_writer(target, output)
        for id in totals:
            writer.write(msgspec.structs.replace(episode, episode_id=id))
        assert writer.finish() == {}
        described = {each.path if files.keys() != {""} else "": each for each in output.complete()}
    assert described.keys() == files.keys()
    for name, data in files.items():
        assert (tmp_path / "o" / name).read_bytes() == data
        assert (described[name].bytes, described[name].sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_failed_output_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_output(tmp_path / "o", is_folder=True) as output:
        output.add("a.json", b"{}")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_broken_format_of_another_package_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = registered_names(FORMATS)
    monkeypatch.setattr("runner.formats.format.registered_names", lambda group: ["broken", *names])
    _usable_formats.cache_clear()
    try:
        assert set(readable_formats()) | set(writable_formats()) == set(names)
    finally:
        _usable_formats.cache_clear()
    assert "broken" in caplog.text
