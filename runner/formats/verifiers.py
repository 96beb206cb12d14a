"""Traces of verifiers 0.4: a run folder with ``traces.jsonl``, one trace per line, which is a message graph.

Source: ``verifiers.v1.trace.Trace`` and ``verifiers.v1.graph.MessageNode`` of verifiers 0.4.0; ``WireTrace`` reads the
lines without the run's own packages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from runner.formats.conversation import read_conversation, received_messages, tool_calls_of
from runner.formats.drafts import Draft, Transcript, result_fields, sequences_of
from runner.formats.foreign_values import (
    EXTRA,
    OwnFields,
    UnreadableItem,
    error_of,
    int_of,
    message_of,
    name_of,
    number_of,
    own_fields,
    time_of,
    tokens_of,
    tool_schema_of,
)
from runner.formats.format import Format
from runner.formats.reading import Place
from runner.formats.training import described, step_tokens, trained_sequence, unfinished_tokens, usable_logprobs
from runner.store.episode_file import EpisodeRecord
from runner.types import Message, Outcome, TimeStep, ToolSchema
from runner.types.sequences import TokenSequence
from runner.util.json_accessors import as_dict, as_list, as_text
from runner.util.safe_values import encode

TRACE_VERSION: Final = 1
LIBRARY_VERSION: Final = "0.4.0"
"""Version of verifiers whose schema the lines have."""
_INFO: Final = (
    *("batch_id", "env", "data_label", "mode", "task_index", "seed", "attempt"),
    *("duration_s", "cost", "tokens", "evaluation"),
)
_SAME: Final = ("data_label", "mode", "seed", "attempt", "success", "duration_s", "cost", "tokens")
_USAGE: Final = ("prompt_tokens", "completion_tokens", "cached_input_tokens", "reasoning_tokens")
MAX_BRANCH_IDS: Final = 1 << 22
"""Maximum number of token ids of all steps of a branch, prompts included; later steps are read without them."""


class TraceInfo(OwnFields, kw_only=True):
    steps: tuple[_Step, ...] = ()
    forks: tuple[int, ...] = ()
    sequences: Any = None
    unfinished_sequences: Any = None


class _Step(msgspec.Struct):
    reward: float = 0.0
    done: bool = False
    valid: bool = True
    refused: bool = False


class _Trace(NamedTuple):
    """``calls`` by their node; ``info`` are the fields of our own traces."""

    fields: dict[str, Any]
    nodes: list[dict[str, Any]]
    calls: Mapping[int, dict[str, Any]]
    info: TraceInfo | None


def decode_trace(value: object, place: Place) -> Iterator[Draft]:
    """Yield the branches of a trace as episodes of one group, the one with the newest message first.

    The reward is that of the whole trace, so it counts for the first; the others are not rated. The branches of our own
    traces are parts of one episode: ``forks`` names the reply with which each later one goes on.
    """
    fields = as_dict(value)
    nodes = [as_dict(node) for node in as_list(fields.get("nodes"))]
    for index, node in enumerate(nodes):
        if _is_index(node) and not 0 <= node["parent"] < index:
            raise UnreadableItem(f"node {index} has node {node['parent']} as parent, which does not come before it")
    calls = {call["node"]: call for call in map(as_dict, as_list(fields.get("calls"))) if type(call.get("node")) is int}
    leaves = sorted(set(range(len(nodes))) - {node.get("parent") for node in nodes if _is_index(node)}, reverse=True)
    trace = _Trace(fields, nodes, calls, own_fields(fields.get("info"), TraceInfo))
    if trace.info is not None and (trace.info.forks or not nodes):
        yield _draft(trace, _parts(nodes, trace.info.forks) if nodes else [], is_main=True)
    elif not nodes:
        yield _draft(trace, [], is_main=True)
    else:
        for leaf in leaves:
            yield _draft(trace, [_path(nodes, leaf)], is_main=leaf == leaves[0])


def _is_index(node: dict[str, Any]) -> bool:
    return type(node.get("parent")) is int


def _path(nodes: list[dict[str, Any]], leaf: int) -> list[int]:
    path = [leaf]
    while _is_index(nodes[path[-1]]):
        path.append(nodes[path[-1]]["parent"])
    return path[::-1]


def _parts(nodes: list[dict[str, Any]], forks: Collection[int]) -> list[list[int]]:
    """Return the first branch of our own trace, then each later one from the reply with which it goes on."""
    parts = [[0]]
    for index, node in enumerate(nodes):
        if index in forks:
            parts.append([index])
        elif _is_index(node) and node["parent"] == parts[-1][-1]:
            parts[-1].append(index)
    return parts


def _draft(trace: _Trace, paths: list[list[int]], *, is_main: bool) -> Draft:
    fields, own = trace.fields, trace.info or TraceInfo()
    task, timing = as_dict(fields.get("task")), as_dict(fields.get("timing"))
    data, version = as_dict(task.get("data")), name_of(as_dict(fields.get("verifiers")).get("version"))
    stamps = [trace.nodes[index].get("timestamp") for path in paths for index in path]
    times = sorted(filter(None, map(time_of, stamps)))
    names = map(as_text, (data.get("name"), task.get("key"), task.get("hash")))
    index = int_of(data.get("idx")) if own.task_index is None else own.task_index
    return Draft(
        transcript=_transcript(trace, paths),
        id=name_of(fields.get("id")),
        env=own.env or as_text(task.get("type")),
        task=next(filter(None, names), "") if index is None else index,
        agent=as_text(as_dict(fields.get("agent")).get("name")),
        model=_model(trace),
        started_at=time_of(timing.get("start")) or (times[0] if times else None),
        ended_at=time_of(as_dict(timing.get("agent")).get("end")) or (times[-1] if times else None),
        reward=_reward(fields) if is_main else None,
        has_step_rewards=trace.info is not None,
        rated=is_main,
        error=error_of(next(iter(as_list(fields.get("errors"))), None)),
        evaluation=own.evaluation if trace.info is not None else _evaluation(fields),
        tools=[tool_schema_of(tool) for tool in map(as_dict, as_list(fields.get("tools")))],
        versions={"verifiers": version} if version else {},
        missing=[] if is_main else ["other branches of the trace"],
        outcome=own.outcome or (Outcome.TIMEOUT if fields.get("is_timeout") is True else None),
        **{name: getattr(own, name) for name in _SAME},
    )


def _transcript(trace: _Trace, paths: list[list[int]]) -> Transcript:
    transcript = Transcript()
    budget = MAX_BRANCH_IDS
    for path in paths:
        ids: list[Any] = []
        for index in path:
            node = trace.nodes[index]
            ids += as_list(node.get("token_ids"))
            message = message_of(node.get("message"))
            if message["role"] != "assistant":
                transcript.add(message)
                continue
            step = transcript.add_reply(message, **_call_fields(trace.calls.get(index)))
            if node.get("sampled") is True and node.get("token_ids") and len(ids) <= budget:
                budget -= len(ids)
                _add_tokens(transcript, step, node, ids)
    if trace.info is not None:
        _add_own(transcript, trace.info)
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
    transcript.add_ids(step, ids[:n_prompt], ids[n_prompt:], node.get("logprobs"))


def _call_fields(call: dict[str, Any] | None) -> dict[str, Any]:
    if call is None:
        return {}
    span, usage = as_dict(call.get("time")), as_dict(call.get("usage"))
    start, end = number_of(span.get("start")), number_of(span.get("end"))
    return {
        "endpoint": name_of(call.get("endpoint")) or "verifiers",
        "model": name_of(call.get("model")) or None,
        "tokens": tokens_of(usage, *_USAGE, is_cached_apart=True),
        "cost": number_of(usage.get("cost")),
        "model_s": max(0.0, end - start) if start is not None and end else 0.0,
    }


def _model(trace: _Trace) -> str | None:
    config = as_dict(as_dict(trace.fields.get("agent")).get("config"))
    named = as_text(config.get("model")) or as_text(as_dict(config.get("model")).get("name"))
    return named or next(filter(None, (as_text(call.get("model")) for call in trace.calls.values())), None)


def _reward(fields: dict[str, Any]) -> float | None:
    """Return the weighted sum of the rewards; None if scoring did not run."""
    rewards = [as_dict(each) for each in as_dict(fields.get("rewards")).values()]
    scores = [(number_of(each.get("score")), number_of(each.get("weight", 1.0))) for each in rewards]
    products = [score * weight for score, weight in scores if score is not None and weight is not None]
    return sum(products) if products else None


def _evaluation(fields: dict[str, Any]) -> dict[str, Any] | None:
    kept = {name: fields.get(name) for name in ("rewards", "metrics", "stop_condition")}
    return {name: value for name, value in kept.items() if value} or None


class _Added(NamedTuple):
    """Ids that the reply of a step adds to its branch: the rest of its prompt, then its completion.

    ``is_fork``: they start a new branch, so the prompt has all of its ids.
    """

    prompt_ids: list[int]
    trained: TokenSequence
    is_fork: bool

    def fields(self) -> dict[str, Any]:
        prompt, completion = self.prompt_ids, self.trained.completion_ids
        return {
            "token_ids": prompt + completion,
            "mask": [False] * len(prompt) + [True] * len(completion),
            "logprobs": self.trained.logprobs,
        }


def encode_trace(episode: EpisodeRecord) -> dict[str, Any]:
    """Return the trace of an episode; ``info`` has the fields for which verifiers has no name.

    It has a single branch, unless the prompt of a step does not begin with all ids of the steps before, as where
    thoughts are removed: it starts a new branch from the messages that the model received, as verifiers itself does. So
    the nodes of each branch concatenate to what the model saw last. Branches share the messages with which they begin,
    as long as these are no replies, whose nodes have ids.
    """
    added = _added_tokens(episode)
    nodes, calls, forks = _graph(episode, added)
    key = f"{episode.env.lower()}_{episode.task_index}"
    result, error = result_fields(episode), episode.error
    started, ended = episode.started_at.timestamp(), episode.ended_at.timestamp()
    model_s = sum(step.model_s for step in episode.timesteps)
    return {
        "version": TRACE_VERSION,
        "id": episode.episode_id,
        "verifiers": {"version": LIBRARY_VERSION, "commit": None},
        "task": {"type": episode.env, "data": {"idx": episode.task_index, "name": key, "prompt": None}, "key": key},
        "agent": {"config": {"model": episode.model}, "name": episode.agent or "agent"},
        "tools": [_tool(schema) for schema in (episode.tool_schemas[0] if episode.tool_schemas else [])],
        "nodes": nodes,
        "calls": calls,
        "rewards": {} if episode.reward is None else {"reward": {"score": episode.reward, "weight": 1.0}},
        "metrics": {
            **({"success": float(episode.success)} if "success" in result else {}),
            "rounds": float(episode.rounds),
        },
        "info": {EXTRA: _info(episode, added) | ({"forks": forks} if forks else {})},
        "is_completed": result.get("outcome") not in (Outcome.CANCELLED, Outcome.INTERRUPTED),
        "ok": error is None,
        "stop_condition": result.get("outcome"),
        "is_timeout": episode.outcome == Outcome.TIMEOUT,
        "errors": [{"type": error.type, "message": error.message, "traceback": error.traceback}] if error else [],
        "timing": {
            "start": started,
            "agent": {
                "start": started,
                "end": ended,
                "model": {"duration": model_s},
                "harness": {"duration": max(0.0, episode.duration_s - model_s)},
            },
        },
    }


class _Graph:
    """The nodes of a trace; ``leaf`` is the node after which the next one comes, None at a root."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.leaf: int | None = None
        self._messages: dict[tuple[int | None, bytes], int] = {}

    def add_messages(self, messages: Iterable[Message], at: float) -> None:
        """Another branch may have a message, since no agent replied it in this one."""
        for message in map(_message, messages):
            known = self._messages.setdefault((self.leaf, encode(message)), len(self.nodes))
            if known == len(self.nodes):
                self.add_node(message, at)
            self.leaf = known

    def add_node(self, message: dict[str, Any], at: float, *, is_sampled: bool = False, **tokens: object) -> None:
        self.nodes.append({"parent": self.leaf, "message": message, "sampled": is_sampled, "timestamp": at, **tokens})
        self.leaf = len(self.nodes) - 1


def _graph(
    episode: EpisodeRecord, added: Mapping[int, _Added]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[int]]:
    """Return the nodes of the conversation, the model calls of the replies, and the replies that start a new branch."""
    conversation, graph = read_conversation(episode), _Graph()
    at = episode.started_at.timestamp()
    calls, forks = list[dict[str, Any]](), list[int]()
    if conversation.system is not None:
        graph.add_messages([{"role": "system", "content": conversation.system}], at)
    graph.add_messages(conversation.opening, at)
    for number, turn in enumerate(conversation.turns):
        requested_at, at = at, at + turn.step.model_s
        tokens = added.get(number)
        if tokens is not None and tokens.is_fork:
            graph.leaf = None
            graph.add_messages(received_messages(turn.step), at)
            forks.append(len(graph.nodes))
        is_sampled = turn.prompted and turn.step.actor == "agent"
        graph.add_node(_message(turn.reply), at, is_sampled=is_sampled, **({} if tokens is None else tokens.fields()))
        if turn.step.endpoint is not None:
            calls.append(_call(turn.step, len(graph.nodes) - 1, requested_at, at))
        at += turn.step.env_s
        graph.add_messages(turn.observation, at)
    return graph.nodes, calls, forks


def _added_tokens(episode: EpisodeRecord) -> dict[int, _Added]:
    """Return what the reply of each step adds to its branch, by the position of the step.

    A step without a usable sequence adds nothing: its ids are in the prompt of the next step.
    """
    added: dict[int, _Added] = {}
    known: list[int] = []
    for number in range(len(episode.timesteps)):
        trained = trained_sequence(episode, number)
        if trained is None or not usable_logprobs(trained):
            continue
        is_fork = trained.prompt_ids[: len(known)] != known
        added[number] = _Added(trained.prompt_ids[0 if is_fork else len(known) :], trained, is_fork)
        known = trained.prompt_ids + trained.completion_ids
    return added


def _message(message: Message) -> dict[str, Any]:
    if message["role"] != "assistant":
        return {name: value for name, value in message.items() if name in ("role", "content", "tool_call_id")}
    calls = [
        {"id": id, "type": "function", "name": name, "arguments": arguments}
        for id, name, arguments in tool_calls_of(message)
    ]
    return {
        "role": "assistant",
        "content": message["content"],
        "reasoning_content": message.get("reasoning_content"),
        "tool_calls": calls or None,
    }


def _call(step: TimeStep, node: int, start: float, end: float) -> dict[str, Any]:
    tokens, usage = step.tokens, None
    if tokens is not None:
        counts = (max(0, tokens.prompt - tokens.cached), tokens.completion, tokens.cached, tokens.reasoning)
        usage = dict(zip(_USAGE, counts, strict=True))
    return {"node": node, "model": step.model, "usage": usage, "time": {"start": start, "end": end}}


def _tool(schema: ToolSchema) -> dict[str, Any]:
    defaults = {"name": "", "description": "", "parameters": {}}
    function = schema.get("function") or {}
    return {"type": "function", **{name: function.get(name, default) for name, default in defaults.items()}}


def _info(episode: EpisodeRecord, added: Mapping[int, _Added]) -> dict[str, Any]:
    """Sequences are those that the nodes do not have: by step, and of calls whose step did not end."""
    steps, sequences = list[dict[str, Any]](), dict[str, list[dict[str, Any]]]()
    for number, step in enumerate(episode.timesteps):
        fields = {"valid": step.valid, "done": step.done}
        known = {"reward": None if episode.reward is None else step.reward, "refused": step.refused or None}
        steps.append(fields | {name: value for name, value in known.items() if value is not None})
        trained, others = step_tokens(episode, number)
        if found := others if number in added or trained is None else [*others, described(trained)]:
            sequences[str(number)] = found
    tokens = {"sequences": sequences, "unfinished_sequences": unfinished_tokens(episode)}
    fields = {name: getattr(episode, name) for name in _INFO} | result_fields(episode)
    return {**fields, "steps": steps, **{name: value for name, value in tokens.items() if value}}


FORMAT = Format(
    name="verifiers",
    title="verifiers 0.4 traces",
    file="traces.jsonl",
    encode=encode_trace,
    signature="objects with a number as `version`, `id`, `task`, `agent` and `nodes`",
    matches=lambda head: (
        type(head.first.get("version")) is int
        and head.has("id", "task")
        and (head.has("agent") or head.has("nodes"))  # which may be far behind
    ),
    decode=decode_trace,
)
