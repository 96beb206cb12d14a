"""Results of ``vf-eval`` of verifiers 0.1: a file ``results.jsonl``, one rollout per line; only read.

Source: ``verifiers.utils.eval_utils`` of verifiers 0.1. A line has ``prompt`` and ``completion``, each a text or a list
of messages, ``task``, ``info``, ``answer``, ``reward`` and a column for each function of the rubric. The number of its
example is ``example_id``, in older versions ``id``. Tool calls are objects, or texts with the JSON of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.formats.drafts import Draft, Transcript, add_messages
from runner.formats.foreign_values import name_of, number_of
from runner.formats.format import Format, Head
from runner.formats.reading import Place
from runner.types import Outcome
from runner.util.json_accessors import as_dict, as_list, as_text, decode_json

_COLUMNS = frozenset(("id", "example_id", "reward", "generation_ms", "scoring_ms", "total_ms"))
"""Numbers of a line that are no results of the rubric."""


def decode_result(value: object, place: Place) -> Iterator[Draft]:
    fields = as_dict(value)
    transcript = Transcript()
    add_messages(transcript, _messages(fields.get("prompt"), "user"))
    add_messages(transcript, _messages(fields.get("completion"), "assistant"))
    number, task = fields.get("example_id", fields.get("id")), as_text(fields.get("task"))
    total_ms = number_of(fields.get("total_ms", as_dict(fields.get("timing")).get("total_ms")))
    yield Draft(
        transcript=transcript,
        env="" if task == "default" else task,
        task=number if type(number) is int else name_of(number),
        agent="verifiers",
        duration_s=None if total_ms is None else total_ms / 1000,
        outcome=Outcome.TRUNCATED if fields.get("is_truncated") is True else None,
        reward=number_of(fields.get("reward")),
        evaluation=_evaluation(fields),
    )


def _messages(value: object, role: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [{**message, "tool_calls": _calls(message.get("tool_calls"))} for message in map(as_dict, as_list(value))]


def _calls(value: object) -> list[object]:
    return [decode_json(call.encode()) if isinstance(call, str) else call for call in as_list(value)]


def _evaluation(fields: dict[str, Any]) -> dict[str, Any] | None:
    columns = {**as_dict(fields.get("metrics")), **fields}
    rubric = {name: value for name, value in columns.items() if name not in _COLUMNS and type(value) in (int, float)}
    answer = as_text(fields.get("answer"))[:1_000]
    return rubric | ({"answer": answer} if answer else {}) or None


def is_result(head: Head) -> bool:
    return {"prompt", "completion", "reward"} <= head.first.keys() and not {"id", "example_id"}.isdisjoint(head.first)


FORMAT = Format(
    name="verifiers-results",
    title="verifiers 0.1 results",
    signature="objects with `prompt`, `completion`, `reward`, and `example_id` or `id`",
    matches=is_result,
    decode=decode_result,
)
