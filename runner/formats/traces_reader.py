"""Reads traces of verifiers 0.4: each branch of the message graph becomes an episode of one group.

The reward is that of the whole trace, so it counts for the branch with the newest message; the others are not rated.
The branches of our own traces are parts of one episode: ``forks`` names the reply with which each later one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from runner.formats.drafts import Draft, Transcript, sequence_of, sequences_of
from runner.formats.foreign_values import (
    OwnFields,
    UnreadableItem,
    message_of,
    name_of,
    number_of,
    own_fields,
    time_of,
    tokens_of,
)
from runner.formats.format import Reader
from runner.formats.reading import Place
from runner.formats.recognition import Head
from runner.types import ErrorInfo, Outcome, TimeStep, Tokens, ToolSchema
from runner.util.json_accessors import as_dict, as_list, as_text

_BRANCHES: Final = "other branches of the trace"
MAX_BRANCH_IDS: Final = 1 << 22
"""Maximum number of token ids of all steps of a branch, prompts included; later steps are read without them."""


class TraceInfo(OwnFields, kw_only=True):
    """Our own fields of an exported trace."""

    steps: tuple[_Step, ...] = ()
    forks: tuple[int, ...] = ()
    sequences: Any = None
    unfinished_sequences: Any = None


class _Step(msgspec.Struct):
    reward: float = 0.0
    done: bool = False
    valid: bool = True
    refused: bool = False


def decode_trace(value: object, place: Place) -> Iterator[Draft]:
    """Yield the branches of a trace, the one with the newest message first."""
    trace = as_dict(value)
    nodes = [as_dict(node) for node in as_list(trace.get("nodes"))]
    for index, node in enumerate(nodes):
        if _is_index(node) and not 0 <= node["parent"] < index:
            raise UnreadableItem(f"node {index} has node {node['parent']} as parent, which does not come before it")
    calls = {call["node"]: call for call in map(as_dict, as_list(trace.get("calls"))) if type(call.get("node")) is int}
    leaves = sorted(set(range(len(nodes))) - {node.get("parent") for node in nodes if _is_index(node)}, reverse=True)
    info = own_fields(trace.get("info"), TraceInfo)
    if not nodes or (info is not None and info.forks):
        parts = _parts(nodes, frozenset(info.forks)) if info is not None and nodes else []
        yield _draft(trace, info, parts, nodes, calls, is_main=True, n_branches=1)
        return
    for leaf in leaves:
        path = [_path(nodes, leaf)]
        yield _draft(trace, info, path, nodes, calls, is_main=leaf == leaves[0], n_branches=len(leaves))


def _is_index(node: dict[str, Any]) -> bool:
    return type(node.get("parent")) is int


def _path(nodes: list[dict[str, Any]], leaf: int) -> list[int]:
    path = [leaf]
    while _is_index(nodes[path[-1]]):
        path.append(nodes[path[-1]]["parent"])
    return path[::-1]


def _parts(nodes: list[dict[str, Any]], forks: frozenset[int]) -> list[list[int]]:
    """Return the parts of our own trace: the first branch, then each later one from the reply with which it goes on.

    What the model received again is in no part.
    """
    parts = [[0]]
    for index, node in enumerate(nodes):
        if index in forks:
            parts.append([index])
        elif _is_index(node) and node["parent"] == parts[-1][-1]:
            parts[-1].append(index)
    return parts


def _draft(
    trace: dict[str, Any],
    info: TraceInfo | None,
    paths: list[list[int]],
    nodes: list[dict[str, Any]],
    calls: Mapping[int, dict[str, Any]],
    *,
    is_main: bool,
    n_branches: int,
) -> Draft:
    transcript = _transcript(paths, nodes, calls, info)
    task, timing = as_dict(trace.get("task")), as_dict(trace.get("timing"))
    data, span = as_dict(task.get("data")), as_dict(timing.get("agent"))
    times = [at for path in paths for index in path if (at := time_of(nodes[index].get("timestamp"))) is not None]
    started_at = time_of(timing.get("start")) or min(times, default=None)
    own = TraceInfo() if info is None else info
    index = data.get("idx")
    return Draft(
        transcript=transcript,
        id=name_of(trace.get("id")),
        env=own.env or as_text(task.get("type")),
        task=own.task_index if own.task_index is not None else index if type(index) is int else _task_name(task, data),
        agent=as_text(as_dict(trace.get("agent")).get("name")),
        model=_model(trace, calls),
        started_at=started_at,
        ended_at=time_of(span.get("end")) or max(times, default=None),
        reward=_reward(trace) if is_main else None,
        has_step_rewards=info is not None,
        rated=is_main,
        error=_error(trace),
        evaluation=own.evaluation if info is not None else _evaluation(trace),
        tools=[_tool(tool) for tool in map(as_dict, as_list(trace.get("tools")))],
        versions=_versions(trace),
        missing=[_BRANCHES] if n_branches > 1 and not is_main else [],
        outcome=own.outcome or (Outcome.TIMEOUT if trace.get("is_timeout") is True else None),
        **{name: getattr(own, name) for name in _SAME},
    )


_SAME: Final = ("data_label", "mode", "seed", "attempt", "success", "duration_s", "cost", "tokens")


def _transcript(
    paths: list[list[int]], nodes: list[dict[str, Any]], calls: Mapping[int, dict[str, Any]], info: TraceInfo | None
) -> Transcript:
    transcript = Transcript()
    budget = MAX_BRANCH_IDS
    for path in paths:
        ids: list[Any] = []
        for index in path:
            node = nodes[index]
            ids += as_list(node.get("token_ids"))
            message = message_of(node.get("message"))
            if message["role"] != "assistant":
                transcript.add(message)
                continue
            step = transcript.add_reply(message, **_call_fields(calls.get(index)))
            if node.get("sampled") is True and node.get("token_ids") and len(ids) <= budget:
                budget -= len(ids)
                _add_tokens(transcript, step, node, ids)
    if info is not None:
        _add_own(transcript, info)
    return transcript


def _add_own(transcript: Transcript, info: TraceInfo) -> None:
    for step in transcript.steps:
        if step.index < len(info.steps):
            known = info.steps[step.index]
            step.reward, step.done = known.reward, known.done
            refused = known.refused or msgspec.UNSET
            step.action = msgspec.structs.replace(step.action, valid=known.valid, refused=refused)
        transcript.add_sequences(step.index, sequences_of(as_dict(info.sequences).get(str(step.index))))
    transcript.add_sequences(None, sequences_of(info.unfinished_sequences))


def _add_tokens(transcript: Transcript, step: TimeStep, node: dict[str, Any], ids: list[Any]) -> None:
    """Add the token ids of a reply, the last ones of its branch: its completion has the mask True, its prompt not."""
    n_added, mask = len(as_list(node.get("token_ids"))), as_list(node.get("mask"))
    n_completion = mask.count(True)
    if len(mask) != n_added or True in mask[: n_added - n_completion]:
        return
    n_prompt = len(ids) - n_completion
    fields = {
        "prompt_token_ids": ids[:n_prompt],
        "completion_token_ids": ids[n_prompt:],
        "logprobs": node.get("logprobs"),
        "endpoint": step.endpoint,
        "model": step.model,
    }
    if (sequence := sequence_of(fields, None)) is not None:
        transcript.add_sequences(step.index, [sequence])


def _call_fields(call: dict[str, Any] | None) -> dict[str, Any]:
    if call is None:
        return {}
    span, usage = as_dict(call.get("time")), as_dict(call.get("usage"))
    start, end = number_of(span.get("start")), number_of(span.get("end"))
    return {
        "endpoint": name_of(call.get("endpoint")) or "verifiers",
        "model": name_of(call.get("model")) or None,
        "tokens": _tokens(usage),
        "cost": number_of(usage.get("cost")),
        "model_s": max(0.0, end - start) if start is not None and end else 0.0,
    }


def _tokens(usage: dict[str, Any]) -> Tokens | None:
    """Verifiers counts cached tokens apart from the others of the prompt."""
    counts = tokens_of(usage, "prompt_tokens", "completion_tokens", "cached_input_tokens", "reasoning_tokens")
    return None if counts is None else msgspec.structs.replace(counts, prompt=counts.prompt + counts.cached)


def _task_name(task: dict[str, Any], data: dict[str, Any]) -> str:
    return next((text for text in map(as_text, (data.get("name"), task.get("key"), task.get("hash"))) if text), "")


def _model(trace: dict[str, Any], calls: Mapping[int, dict[str, Any]]) -> str | None:
    config = as_dict(as_dict(trace.get("agent")).get("config"))
    named = as_text(config.get("model")) or as_text(as_dict(config.get("model")).get("name"))
    return named or next((model for call in calls.values() if (model := as_text(call.get("model")))), None)


def _reward(trace: dict[str, Any]) -> float | None:
    """Return the weighted sum of the rewards; None if scoring did not run."""
    rewards = [as_dict(each) for each in as_dict(trace.get("rewards")).values()]
    scores = [(number_of(each.get("score")), number_of(each.get("weight", 1.0))) for each in rewards]
    products = [score * weight for score, weight in scores if score is not None and weight is not None]
    return sum(products) if products else None


def _evaluation(trace: dict[str, Any]) -> dict[str, Any] | None:
    kept = {name: trace.get(name) for name in ("rewards", "metrics", "stop_condition")}
    return {name: value for name, value in kept.items() if value} or None


def _error(trace: dict[str, Any]) -> ErrorInfo | None:
    error = as_dict(next(iter(as_list(trace.get("errors"))), None))
    if not error:
        return None
    return ErrorInfo(
        type=name_of(error.get("type")) or "Error",
        message=as_text(error.get("message")),
        traceback=as_text(error.get("traceback")),
    )


def _tool(tool: dict[str, Any]) -> ToolSchema:
    function = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return {"type": "function", "function": function}


def _versions(trace: dict[str, Any]) -> dict[str, str]:
    version = name_of(as_dict(trace.get("verifiers")).get("version"))
    return {"verifiers": version} if version else {}


def is_trace(head: Head) -> bool:
    """Return whether the first object has the beginning of a trace; its nodes may be far behind."""
    first = head.first
    return (
        type(first.get("version")) is int
        and "id" in first
        and "task" in first
        and ("nodes" in first or "agent" in first)
    )


READER = Reader(
    signature="objects with a number as `version`, `id`, `task`, `agent` and `nodes`",
    matches=is_trace,
    decode=decode_trace,
)
