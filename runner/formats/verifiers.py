"""Traces of verifiers 0.4: a run folder with ``traces.jsonl``, one trace per line.

Source: ``verifiers.v1.trace.Trace`` and ``verifiers.v1.graph.MessageNode`` of verifiers 0.4.0; ``WireTrace`` reads the
lines without the run's own packages. An episode is a message graph with a single branch, unless the prompt of a step
does not begin with all ids of the steps before, as where thoughts are removed: it starts a new branch from the messages
that the model received, as verifiers itself does. So the nodes of each branch concatenate to what the model saw last.
Branches share the messages with which they begin, as long as these are no replies, whose nodes have ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.formats.conversation import read_conversation, received_messages, tool_calls_of
from runner.formats.drafts import result_fields
from runner.formats.foreign_values import EXTRA
from runner.formats.format import NOTHING_LEFT_OUT, Format
from runner.formats.output import Output
from runner.formats.traces_reader import READER
from runner.formats.training import described, step_tokens, trained_sequence, unfinished_tokens, usable_logprobs
from runner.store.episode_file import EpisodeRecord
from runner.store.safe_json import encode
from runner.types import Message, Outcome, TimeStep, ToolSchema
from runner.types.sequences import TokenSequence

TRACE_VERSION = 1
"""Version of the trace schema."""
LIBRARY_VERSION = "0.4.0"
"""Version of verifiers whose schema the lines have."""
TRACES_FILE = "traces.jsonl"
"""Name of the file with the traces in a run folder."""


class _Added(NamedTuple):
    """Ids that the reply of a step adds to its branch: the rest of its prompt, then its completion.

    ``is_fork``: they start a new branch, so the prompt has all of its ids.
    """

    prompt_ids: list[int]
    trained: TokenSequence
    is_fork: bool


def encode_trace(episode: EpisodeRecord) -> dict[str, Any]:
    """``info`` has the fields for which verifiers has no name."""
    added = _added_tokens(episode)
    nodes, calls, forks = _graph(episode, added)
    key = f"{episode.env.lower()}_{episode.task_index}"
    result = result_fields(episode)
    started, ended = episode.started_at.timestamp(), episode.ended_at.timestamp()
    model_s = sum(step.model_s for step in episode.timesteps)
    return {
        "version": TRACE_VERSION,
        "id": episode.episode_id,
        "verifiers": {"version": LIBRARY_VERSION, "commit": None},
        "task": {
            "type": episode.env,
            "data": {"idx": episode.task_index, "name": key, "prompt": None},
            "key": key,
        },
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
        "ok": episode.error is None,
        "stop_condition": result.get("outcome"),
        "is_timeout": episode.outcome == Outcome.TIMEOUT,
        "errors": [_error(episode)] if episode.error else [],
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


def _graph(
    episode: EpisodeRecord, added: Mapping[int, _Added]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[int]]:
    """Return the nodes of the conversation, the model calls of the replies, and the replies that start a new branch."""
    conversation = read_conversation(episode)
    at = episode.started_at.timestamp()
    graph = _Graph(is_shared=any(each.is_fork for each in added.values()))
    calls, forks = list[dict[str, Any]](), list[int]()
    if conversation.system is not None:
        graph.add_message({"role": "system", "content": conversation.system}, at)
    for message in conversation.opening:
        graph.add_message(_message(message), at)
    for number, turn in enumerate(conversation.turns):
        requested_at, at = at, at + turn.step.model_s
        tokens = added.get(number)
        if tokens is not None and tokens.is_fork:
            graph.leaf = None
            for message in received_messages(turn.step):
                graph.add_message(_message(message), at)
            forks.append(len(graph.nodes))
        is_sampled = turn.prompted and turn.step.actor == "agent"
        graph.add_reply(_message(turn.reply), at, is_sampled, {} if tokens is None else _token_fields(tokens))
        if turn.step.endpoint is not None:
            calls.append(_call(turn.step, len(graph.nodes) - 1, requested_at, at))
        at += turn.step.env_s
        for message in turn.observation:
            graph.add_message(_message(message), at)
    return graph.nodes, calls, forks


class _Graph:
    """The nodes of a trace; ``leaf`` is the node after which the next one comes, None at a root.

    ``is_shared``: it has several branches, so each message is looked up in the others.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self.nodes: list[dict[str, Any]] = []
        self.leaf: int | None = None
        self._messages: dict[tuple[int | None, bytes], int] = {}

    def add_message(self, message: dict[str, Any], at: float) -> None:
        """Another branch may have the message, since no agent replied it in this one."""
        added = known = len(self.nodes)
        if self._is_shared:
            known = self._messages.setdefault((self.leaf, encode(message)), added)
        if known == added:
            self._add(message, at, is_sampled=False)
        self.leaf = known

    def add_reply(self, message: dict[str, Any], at: float, is_sampled: bool, tokens: dict[str, Any]) -> None:
        """No other branch has the reply."""
        self._add(message, at, is_sampled=is_sampled, **tokens)
        self.leaf = len(self.nodes) - 1

    def _add(self, message: dict[str, Any], at: float, *, is_sampled: bool, **tokens: object) -> None:
        self.nodes.append({"parent": self.leaf, "message": message, "sampled": is_sampled, "timestamp": at, **tokens})


def _token_fields(added: _Added) -> dict[str, Any]:
    prompt, completion = added.prompt_ids, added.trained.completion_ids
    return {
        "token_ids": prompt + completion,
        "mask": [False] * len(prompt) + [True] * len(completion),
        "logprobs": added.trained.logprobs,
    }


def _added_tokens(episode: EpisodeRecord) -> dict[int, _Added]:
    """Return what the reply of each step adds to its branch, by the position of the step.

    A step without a trained sequence, or without its log-probabilities, adds nothing: its ids are in the prompt of the
    next step.
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
    tokens = step.tokens
    usage = None
    if tokens is not None:
        usage = {
            "prompt_tokens": max(0, tokens.prompt - tokens.cached),
            "completion_tokens": tokens.completion,
            "cached_input_tokens": tokens.cached,
            "reasoning_tokens": tokens.reasoning,
        }
    return {"node": node, "model": step.model, "usage": usage, "time": {"start": start, "end": end}}


def _tool(schema: ToolSchema) -> dict[str, Any]:
    function = schema.get("function") or {}
    return {
        "type": "function",
        "name": function.get("name", ""),
        "description": function.get("description", ""),
        "parameters": function.get("parameters", {}),
    }


def _error(episode: EpisodeRecord) -> dict[str, Any] | None:
    error = episode.error
    return None if error is None else {"type": error.type, "message": error.message, "traceback": error.traceback}


def _info(episode: EpisodeRecord, added: Mapping[int, _Added]) -> dict[str, Any]:
    names = (
        *("batch_id", "env", "data_label", "mode", "task_index", "seed", "attempt"),
        *("duration_s", "cost", "tokens", "evaluation"),
    )
    steps: list[dict[str, Any]] = [
        {"valid": step.valid, "done": step.done}
        | ({} if episode.reward is None else {"reward": step.reward})
        | ({"refused": True} if step.refused else {})
        for step in episode.timesteps
    ]
    fields = {name: getattr(episode, name) for name in names} | result_fields(episode)
    return {**fields, "steps": steps, **_other_tokens(episode, added)}


def _other_tokens(episode: EpisodeRecord, added: Mapping[int, _Added]) -> dict[str, Any]:
    """Return the sequences that the nodes do not have: by step, and those of calls whose step did not end."""
    by_step: dict[str, list[dict[str, Any]]] = {}
    for number in range(len(episode.timesteps)):
        trained, others = step_tokens(episode, number)
        found = others if number in added or trained is None else [*others, described(trained)]
        if found:
            by_step[str(number)] = found
    unfinished = unfinished_tokens(episode)
    fields = {"sequences": by_step, "unfinished_sequences": unfinished}
    return {name: value for name, value in fields.items() if value}


class TracesWriter:
    def __init__(self, output: Output) -> None:
        self._file = output.create(TRACES_FILE)

    def write(self, episode: EpisodeRecord) -> None:
        self._file.write(encode(encode_trace(episode)) + b"\n")

    def finish(self) -> Mapping[str, int]:
        """Each line is complete."""
        return NOTHING_LEFT_OUT


FORMAT = Format(name="verifiers", title="verifiers 0.4 traces", open_writer=TracesWriter, reader=READER)
