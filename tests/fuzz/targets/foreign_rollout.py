"""A rollout of NeMo-Gym: its items in their order become messages, and none is lost."""

from __future__ import annotations

from pathlib import Path

from runner.formats.foreign_values import tool_calls_from
from runner.formats.nemo_gym import FORMAT, decode_rollout_line
from runner.formats.reading import LIMITS, Place, decode_item
from runner.util.json_accessors import as_dict, as_list
from tests.fuzz.foreign_items import check_path, messages_of
from tests.fuzz.oracles import scratch_folder

TOKENS = (
    *(b'"responses_create_params":{"input":[', b'"instructions":"', b'"response":{"output":[', b'"reward":1.0'),
    *(b'{"type":"function_call","name":"', b'"call_id":"c1","arguments":"{}"', b'{"type":"reasoning","summary":['),
    *(
        b'{"type":"function_call_output","call_id":"c1","output":"',
        b'{"role":"assistant","content":[{"type":"output_text"',
    ),
    *(
        b'"prompt_token_ids":[1],"generation_token_ids":[2],"generation_log_probs":[-1]',
        b'"usage":{"input_tokens":',
        b'"tools":[{"type":"function","name":"',
        b'"_ng_task_index":',
    ),
)
PATH = scratch_folder("foreign_rollout") / "rollouts.jsonl"


def check(data: bytes) -> None:
    line = data.replace(b"\n", b" ")
    PATH.write_bytes(line)
    check_path(PATH, FORMAT)
    try:
        rollout = as_dict(decode_item(line, LIMITS))
        (draft,) = decode_rollout_line(rollout, Place(Path("rollouts.jsonl"), 1))
    except ValueError:
        return
    request, response = as_dict(rollout.get("responses_create_params")), as_dict(rollout.get("response"))
    items = [as_dict(item) for item in (*as_list(request.get("input")), *as_list(response.get("output")))]
    calls = tool_calls_from([item for item in items if item.get("type") == "function_call"])
    called = [call["function"]["name"] for call in calls]
    messages = messages_of(draft.transcript)
    names = [call["function"]["name"] for message in messages for call in message.get("tool_calls", [])]
    remaining = iter(names)  # calls within messages of OpenAI's chat shape come in between
    assert all(name in remaining for name in called), (called, names)
    n_results = sum(item.get("type") == "function_call_output" for item in items)
    assert sum(message["role"] == "tool" for message in messages) >= n_results
