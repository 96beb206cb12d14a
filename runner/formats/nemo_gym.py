"""Reads rollouts of NeMo-Gym 0.4: lines with the request, the response of OpenAI's Responses API, and the reward.

The last item of a reply has its token ids, where the model server of NeMo-Gym gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from runner.formats.drafts import Draft, Transcript
from runner.formats.foreign_values import (
    UnreadableItem,
    content_of,
    int_of,
    message_of,
    name_of,
    number_of,
    task_of,
    tokens_of,
    tool_calls_from,
    tool_schema_of,
)
from runner.formats.format import Format
from runner.formats.reading import Place
from runner.types import Message
from runner.util.json_accessors import as_dict, as_list, as_text

_IDS: Final = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


class _Replies:
    """Joins the items of one reply: reasoning, text and tool calls, until something else follows."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._reply: Message | None = None
        self._ids: tuple[object, ...] = ()

    def add(self, item: dict[str, Any]) -> None:
        kind = as_text(item.get("type")) or "message"
        if kind == "reasoning":
            reasoning = content_of(item.get("summary")) or content_of(item.get("content"))
            self._open(is_new=True)["reasoning_content"] = reasoning
        elif kind == "function_call":
            self._open().setdefault("tool_calls", []).extend(tool_calls_from([item]))
        elif kind == "function_call_output":
            self.finish()
            call = as_text(item.get("call_id"))
            self._transcript.add({"role": "tool", "content": content_of(item.get("output")), "tool_call_id": call})
        elif kind == "message":
            self._add_message(message_of(item))
        ids = tuple(item.get(name) for name in _IDS)
        if self._reply is not None and any(ids):
            self._ids = ids

    def finish(self) -> None:
        if self._reply is not None:
            step = self._transcript.add_reply(self._reply)
            if self._ids:
                self._transcript.add_ids(step, *self._ids)
        self._reply, self._ids = None, ()

    def _add_message(self, message: Message) -> None:
        if message["role"] != "assistant":
            self.finish()
            self._transcript.add(message)
            return
        has_more = self._reply is not None and bool(self._reply["content"] or "tool_calls" in self._reply)
        self._open(is_new=has_more).update(message)

    def _open(self, *, is_new: bool = False) -> Message:
        if is_new or self._ids:  # an item with token ids is the last one of its reply
            self.finish()
        if self._reply is None:
            self._reply = {"role": "assistant", "content": ""}
        return self._reply


def decode_rollout_line(value: object, place: Place) -> Iterator[Draft]:
    fields = as_dict(value)
    request, response = as_dict(fields.get("responses_create_params")), as_dict(fields.get("response"))
    if not request and not response:
        raise UnreadableItem("it has neither responses_create_params nor response")
    transcript = Transcript()
    replies = _Replies(transcript)
    if instructions := as_text(request.get("instructions")):
        transcript.add({"role": "system", "content": instructions})
    given = request.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else as_list(given)
    for item in [*items, *as_list(response.get("output"))]:
        replies.add(as_dict(item))
    replies.finish()
    usage = as_dict(response.get("usage"))
    usage |= as_dict(usage.get("input_tokens_details")) | as_dict(usage.get("output_tokens_details"))
    task = int_of(fields.get("task_index", fields.get("_ng_task_index")))
    yield Draft(
        transcript=transcript,
        id=name_of(response.get("id")),
        env=as_text(as_dict(fields.get("agent_ref")).get("name")),
        task=task_of(fields.get("task_id") or fields.get("id")) if task is None else task,
        agent="NeMo-Gym",
        model=as_text(response.get("model")) or as_text(request.get("model")) or None,
        reward=number_of(fields.get("reward")),
        tokens=tokens_of(usage, "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"),
        evaluation=_evaluation(fields),
        tools=[tool_schema_of(tool) for tool in map(as_dict, as_list(request.get("tools")))],
    )


def _evaluation(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the verifier of the environment has added to the line: numbers, flags and short texts."""
    kept = {
        name: value
        for name, value in fields.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 1_000)
    }
    return kept or None


FORMAT = Format(
    name="nemo-gym",
    title="NeMo-Gym rollouts",
    signature="objects with `responses_create_params`",
    matches=lambda head: isinstance(head.first.get("responses_create_params"), dict),
    decode=decode_rollout_line,
)
