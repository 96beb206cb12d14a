"""ATIF: what a trajectory becomes, and what an export of it has."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from runner.formats.atif import encode_atif
from runner.formats.foreign_values import content_of
from runner.store import EpisodeIndex, EpisodeRecord, EpisodeStore
from runner.types import Outcome, Tokens
from runner.util.safe_values import encode
from tests.support.json_values import JSON_VALUES
from tests.unit.formats.conftest import FILES, imported, read_all, stored

TRAJECTORY = FILES / "atif_v17.json"


def test_a_trajectory_becomes_an_episode() -> None:
    (found, below), malformed = read_all(TRAJECTORY)
    record = found.record
    assert not malformed
    assert (record.agent, record.model, record.env) == ("terminus-2", "qwen/qwen3-32b", "atif_v17")
    assert record.reset_observation == [{"role": "user", "content": "Sort the file data.csv by its second column."}]
    first, second = record.timesteps
    assert first.action.tool_calls[0].name == "bash_command"
    assert json.loads(first.action.tool_calls[0].arguments)["duration"] == 0.5
    assert first.chats[0][-1]["reasoning_content"] == "A header may be in line 1."
    assert first.tokens == Tokens(812, 64, 0, 512)
    assert [message["content"] for message in first.observation] == [
        "name,age\nbo,7\nal,3\n",
        "Keep the header.\n[image]",
    ]
    assert [message["role"] for message in second.observation] == ["tool", "user"]
    assert record.duration_s == 10.0
    assert record.cost == 0.00123
    assert below.record.agent == "summarizer"
    assert below.record.unscored


def test_what_a_trajectory_does_not_say_is_unknown_and_not_rated() -> None:
    (found, _), _ = read_all(TRAJECTORY)
    assert found.record.origin is not None
    assert set(found.record.origin.missing) == {"reward", "outcome", "task"}
    assert found.record.outcome == Outcome.INTERRUPTED
    assert found.record.unscored


def test_an_import_is_exported_with_its_replies_and_calls(store: EpisodeStore, index: EpisodeIndex) -> None:
    assert imported(store, index, TRAJECTORY).n_imported == 2
    (record,) = (each for each in stored(store, index) if each.agent == "terminus-2")
    trajectories = json.loads(encode(encode_atif(record))), json.loads(TRAJECTORY.read_bytes())
    again, original = ([step for step in each["steps"] if step["source"] == "agent"] for each in trajectories)
    for name in ("message", "reasoning_content", "tool_calls"):
        assert [step.get(name) for step in again] == [step.get(name) for step in original]


MESSAGES = st.sampled_from(
    ["", "a", [{"type": "text", "text": "b"}], [{"type": "image", "source": {"path": "/x"}}], None]
)
STEPS = st.fixed_dictionaries(
    {"step_id": st.integers(1, 3), "source": st.sampled_from(["user", "agent", "system"]), "message": MESSAGES},
    optional={
        "timestamp": st.sampled_from(["2026-01-02T03:04:05Z", "yesterday", "9999-12-31T23:59:59Z", "0001-01-01"]),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"tool_call_id": st.sampled_from(["a", "b"]), "function_name": st.just("f"), "arguments": JSON_VALUES}
            ),
            max_size=2,
        ),
        "observation": st.fixed_dictionaries({"results": st.lists(st.fixed_dictionaries({"content": MESSAGES}))}),
        "metrics": st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens", "cost_usd"]), st.integers()),
        "extra": JSON_VALUES,
    },
)


@given(st.lists(STEPS, min_size=1, max_size=5), JSON_VALUES)
def test_any_trajectory_is_exported_with_its_messages(tmp_path_factory: Any, steps: list[Any], extra: Any) -> None:  # noqa: ANN401
    trajectory = {"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": steps, "extra": extra}
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(encode(trajectory))
    (found, *_), _ = read_all(path)
    stored = msgspec.json.decode(encode(found.record), type=EpisodeRecord)
    again = json.loads(encode(encode_atif(stored)))
    replies = [content_of(step["message"]) for step in steps if step["source"] == "agent"]
    assert [step["message"] for step in again["steps"] if step["source"] == "agent"] == replies
    assert [step["step_id"] for step in again["steps"]] == list(range(1, len(again["steps"]) + 1))
