"""Readers of the other formats: our own exports are read again, and what each format lacks stays unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.errors import StoreError
from runner.formats.agentgym import encode_agenttraj, encode_rollout
from runner.formats.chat import encode_pair
from runner.formats.format import recognise
from runner.formats.parquet import episode_items
from runner.formats.reading import LIMITS
from runner.formats.training import trained_sequence
from runner.formats.verifiers import encode_trace
from runner.store import EpisodeRecord
from runner.store.token_file import TokenizedEpisode
from runner.types import Outcome, Tokens, ToolCall
from runner.util.safe_values import encode
from tests.unit.formats.conftest import FILES, model_episode, read_all


def written(path: Path, *values: object) -> Path:
    path.write_bytes(b"".join(encode(value) + b"\n" for value in values))
    return path


def node(parent: int | None, role: str, content: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"parent": parent, "message": {"role": role, "content": content, **fields}, "sampled": role == "assistant"}


def trace(*nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    known = {
        "version": 1,
        "id": "t1",
        "task": {"type": "Sums", "data": {"idx": 3}, "key": "k"},
        "agent": {"name": "agent", "config": {"model": "m"}},
    }
    return {**known, "nodes": list(nodes), **fields}


def test_branches_of_a_trace_are_attempts_of_which_one_is_rated(tmp_path: Path) -> None:
    value = trace(
        node(None, "user", "2 + 2?"),
        node(0, "assistant", "5"),
        node(0, "assistant", "4"),
        node(2, "user", "sure?"),
        node(3, "assistant", "yes"),
        rewards={"right": {"score": 1.0, "weight": 2.0}, "short": {"score": 0.5}, "unscored": None},
        calls=[{"node": 2, "usage": {"prompt_tokens": 5, "completion_tokens": 1, "cached_input_tokens": 2}}],
        is_completed=True,
    )
    (main, other), _ = read_all(written(tmp_path / "traces.jsonl", value))
    assert [step.action.text for step in main.record.timesteps] == ["4", "yes"]
    assert [step.action.text for step in other.record.timesteps] == ["5"]
    assert (main.record.reward, main.record.outcome, main.record.unscored) == (2.5, Outcome.SUCCESS, False)
    assert other.record.unscored
    assert main.record.task_index == other.record.task_index == 3
    assert main.record.timesteps[0].tokens == Tokens(7, 1, 0, 2)
    assert main.record.episode_id != other.record.episode_id


def test_a_trace_that_verifiers_has_written_is_read_with_its_branches() -> None:
    (main, other), malformed = read_all(FILES / "verifiers_traces.jsonl")
    assert not malformed
    assert [step.action.text for step in main.record.timesteps] == ["4", "yes"]
    assert [step.action.text for step in other.record.timesteps] == ["5"]
    assert other.record.unscored


def test_results_of_an_old_verifiers_have_example_reward_and_rubric(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    completion = [
        {"role": "assistant", "content": "", "tool_calls": [json.dumps(call)]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "assistant", "content": "4"},
    ]
    row = {
        **{"example_id": 5, "prompt": [{"role": "user", "content": "2+2?"}], "completion": completion, "answer": "4"},
        **{"task": "sum", "info": {}, "reward": 1.5, "right": 1.0, "total_ms": 2500.0},
    }
    text = {"id": 6, "prompt": "2+2?", "completion": "5", "task": "default", "reward": 0.0}
    (chat, plain), malformed = read_all(written(tmp_path / "results.jsonl", row, text))
    record = chat.record
    assert not malformed
    assert (record.env, record.task_index, record.reward, record.success) == ("sum", 5, 1.5, True)
    assert (record.duration_s, record.evaluation) == (2.5, {"right": 1.0, "answer": "4"})
    assert record.reset_observation == row["prompt"]
    assert [step.action.tool_calls or step.action.text for step in record.timesteps] == [
        [ToolCall("c1", "add", '{"a": 2}')],
        "4",
    ]
    assert record.timesteps[0].observation == completion[1:2]
    assert (plain.record.env, plain.record.task_index, plain.record.outcome) == ("results", 6, Outcome.FAILURE)
    assert plain.record.timesteps[0].action.text == "5"


@pytest.mark.parametrize("parent", [2, 1, 99, -1])
def test_a_graph_that_is_none_costs_its_line(parent: int, tmp_path: Path) -> None:
    damaged = trace(node(None, "user", "a"), node(parent, "assistant", "b"))
    found, malformed = read_all(written(tmp_path / "traces.jsonl", trace(node(None, "user", "a")), damaged))
    assert len(found) == 1
    assert [each.place.number for each in malformed] == [2]


def test_agenttraj_and_rollouts_are_read_again(episode: EpisodeRecord, tmp_path: Path) -> None:
    path = tmp_path / "agenttraj.json"
    path.write_bytes(encode([encode_agenttraj(episode)]))
    (found,), _ = read_all(path)
    assert (found.record.env, found.record.task_index, found.record.reward) == ("Maze", 17, -0.5)
    assert [step.valid for step in found.record.timesteps] == [True, False]
    assert encode_agenttraj(found.record) == encode_agenttraj(episode)
    path.write_bytes(encode([encode_rollout(episode)]))
    (found,), _ = read_all(path)
    assert (found.record.task_index, found.record.timesteps[-1].reward) == (17, 0.5)
    assert found.record.origin is not None
    assert "environment" in found.record.origin.missing


def test_a_pair_is_two_attempts_that_are_not_rated(tmp_path: Path) -> None:
    better, worse = model_episode(), model_episode()
    worse.timesteps[1].chats[0][-1]["content"] = "I give up."
    better.reward, worse.reward = 1.0, 0.0
    (chosen, rejected), _ = read_all(written(tmp_path / "pairs.jsonl", encode_pair([better, worse])))
    assert chosen.record.task_index == rejected.record.task_index == 17
    assert (chosen.record.attempt, rejected.record.attempt) == (0, 1)
    assert chosen.record.timesteps[1].action.text == "Where am I?"
    assert rejected.record.timesteps[1].action.text == "I give up."
    assert chosen.record.unscored
    assert rejected.record.unscored


def test_the_token_ids_of_a_nemo_gym_rollout_belong_to_its_replies(tmp_path: Path) -> None:
    def ids(prompt: list[int], *generated: int) -> dict[str, object]:
        logprobs = [-0.5] * len(generated)
        return {"prompt_token_ids": prompt, "generation_token_ids": generated, "generation_log_probs": logprobs}

    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I need the tool."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}", **ids([1, 2], 3, 4)},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "message", "role": "assistant", "content": "It is", **ids([1, 2, 3, 4, 5], 6)},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
    ]
    line = {"responses_create_params": {"input": "Weather?"}, "response": {"output": output}, "reward": 1.0}
    (found,), _ = read_all(written(tmp_path / "rollouts.jsonl", line))
    record = found.record
    assert isinstance(record, TokenizedEpisode)
    assert [[(each.prompt_ids, each.completion_ids, each.logprobs) for each in step] for step in record.sequences] == [
        [([1, 2], [3, 4], [-0.5, -0.5])],
        [([1, 2, 3, 4, 5], [6], [-0.5])],
        [],
    ]
    assert [step.chats[0][-1]["content"] for step in record.timesteps] == ["", "It is", ""]
    assert trained_sequence(record, 0) is not None


def test_a_rollout_of_nemo_gym_is_read(tmp_path: Path) -> None:
    line = {
        "responses_create_params": {
            "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Rome?"}],
            "tools": [{"type": "function", "name": "weather", "parameters": {}}],
        },
        "response": {
            "id": "resp_1",
            "model": "qwen3",
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I need the tool."}]},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'},
                {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sunny."}]},
            ],
            "usage": {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2}},
        },
        "reward": 1.0,
    }
    (found,), _ = read_all(written(tmp_path / "rollouts.jsonl", line))
    record = found.record
    first, second = record.timesteps
    assert (first.chats[0][-1]["reasoning_content"], first.action.tool_calls[0].name) == ("I need the tool.", "weather")
    assert first.observation == [{"role": "tool", "content": "sunny", "tool_call_id": "c1"}]
    assert second.action.text == "Sunny."
    assert (record.outcome, record.reward, record.tokens) == (Outcome.SUCCESS, 1.0, Tokens(9, 4, 0, 2))
    assert record.origin is not None
    assert "success, which is taken from a reward of 1 or more" in record.origin.missing


def test_each_signature_excludes_the_others(episode: EpisodeRecord, tmp_path: Path) -> None:
    worse = model_episode()
    worse.timesteps[1].chats[0][-1]["content"], worse.reward = "I give up.", -9.0
    values = {
        "verifiers": encode_trace(episode),
        "agenttraj": encode_agenttraj(episode),
        "agentgym-rl": encode_rollout(episode),
        "preferences": encode_pair([episode, worse]),
    }
    for name, value in values.items():
        form = recognise(written(tmp_path / "x.jsonl", value))
        assert form is not None
        assert form.name == name
    assert recognise(written(tmp_path / "x.jsonl", {"level": "info", "message": "a log"})) is None
    assert recognise(written(tmp_path / "x.jsonl", json.loads(encode(episode)))) is None


def test_a_damaged_table_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "episodes.parquet"
    path.write_bytes(b"PAR1 and nothing else PAR1")
    form = recognise(path)
    assert form is not None
    with pytest.raises(StoreError, match=r"pyarrow|damaged"):
        list(episode_items(path, LIMITS))
