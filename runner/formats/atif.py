"""ATIF v1.8, the agent trajectory interchange format: a file per episode; v1.0 to v1.8 are read.

Source: the models of ``harbor.models.trajectories`` in harbor 0.25.0, which forbid every other field. ATIF has no
reward: rewards, outcomes and what else it lacks are in ``extra.agentgym`` of the trajectory and of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from runner.formats.conversation import Turn, parsed_arguments, read_conversation, tool_calls_of
from runner.formats.drafts import Draft, Transcript, result_fields, sequences_of
from runner.formats.foreign_values import (
    EXTRA,
    OwnFields,
    UnreadableItem,
    content_of,
    message_of,
    name_of,
    number_of,
    own_fields,
    reply_of,
    time_of,
    tokens_of,
)
from runner.formats.format import Format, LeftOut
from runner.formats.reading import Place
from runner.formats.training import step_tokens, unfinished_tokens, usable_logprobs
from runner.store.episode_file import EpisodeRecord
from runner.types import Action, ErrorInfo, Message, Tokens
from runner.types.sequences import TokenSequence
from runner.util.json_accessors import as_dict, as_list, as_text

VERSION: Final = "ATIF-v1.8"
_PREFIX: Final = "ATIF-v1."
_MAX_DEPTH: Final = 8
"""Number of levels of agents below an agent that are read."""
_EPISODE_EXTRA: Final = (
    *("batch_id", "battery_id", "node", "profile", "env", "transport", "data_label", "mode", "task_index", "seed"),
    *("attempt", "duration_s", "paused_s", "evaluation", "n_planned", "cost", "tokens"),
)
_SAME: Final = (
    *("env", "data_label", "mode", "seed", "attempt", "outcome", "success", "reward", "duration_s", "paused_s"),
    *("evaluation", "error"),
)
_USAGE: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
_METRICS: Final = ("prompt_token_ids", "completion_token_ids", "logprobs", "completion_tokens")
_TOTALS: Final = ("total_prompt_tokens", "total_completion_tokens", "total_cached_tokens", "")


def encode_atif(episode: EpisodeRecord) -> dict[str, Any]:
    """Raises ``LeftOut`` if the episode has no message, as ATIF needs one step."""
    conversation = read_conversation(episode)
    steps: list[dict[str, Any]] = []
    if conversation.system is not None:
        steps.append({"step_id": 1, "source": "system", "message": conversation.system})
    for message in conversation.opening:
        source = "system" if message["role"] == "system" else "user"
        steps.append({"step_id": len(steps) + 1, "source": source, "message": message["content"] or ""})
    elapsed_s, n_before = 0.0, len(steps)
    for number, turn in enumerate(conversation.turns):
        elapsed_s += turn.step.model_s + turn.step.env_s
        at = episode.started_at + timedelta(seconds=min(elapsed_s, episode.duration_s))
        steps.append(_agent_step(turn, episode, number, n_before + number + 1, at))
    if not steps:
        raise LeftOut("it has no message, and ATIF needs one step")
    extra = {name: getattr(episode, name) for name in _EPISODE_EXTRA}
    extra |= result_fields(episode) | {"started_at": episode.started_at, "ended_at": episode.ended_at}
    extra["unfinished_sequences"] = unfinished_tokens(episode) or None
    return {
        "schema_version": VERSION,
        "session_id": episode.batch_id,
        "trajectory_id": episode.episode_id,
        "agent": _agent(episode),
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": episode.tokens.prompt,
            "total_completion_tokens": episode.tokens.completion,
            "total_cached_tokens": episode.tokens.cached,
            "total_steps": len(steps),
        },
        "extra": {EXTRA: _without_none(extra) | ({"error": episode.error} if episode.error else {})},
    }


def _agent(episode: EpisodeRecord) -> dict[str, Any]:
    agent = {
        "name": episode.agent or "unknown",
        "version": episode.versions.get("agentgym-console", "unknown"),
        "model_name": episode.model,
        "tool_definitions": episode.tool_schemas[0] if episode.tool_schemas and episode.tool_schemas[0] else None,
        "extra": {EXTRA: {"versions": episode.versions}} if episode.versions else None,
    }
    return _without_none(agent)


def _agent_step(turn: Turn, episode: EpisodeRecord, number: int, step_id: int, at: datetime) -> dict[str, Any]:
    step, reply = turn.step, turn.reply
    calls, unparsed = _tool_calls(reply)
    tokens = step_tokens(episode, number)
    extra = {
        "reward": None if episode.reward is None else step.reward,
        "done": step.done,
        "valid": step.valid,
        "actor": step.actor if step.actor != "agent" else None,
        "action": step.action,
        "endpoint": step.endpoint,
        "model_s": step.model_s,
        "env_s": step.env_s,
        "ttft_s": step.ttft_s,
        "warnings": step.warnings or None,
        "shape": None if step.shape is msgspec.UNSET else step.shape,
        "cost": step.cost,
        "unparsed_arguments": unparsed or None,
        "sequences": tokens.others or None,
    }
    fields = {
        "step_id": step_id,
        "timestamp": at,
        "source": "agent",
        "model_name": step.model if step.model != episode.model else None,
        "message": reply["content"] or "",
        "reasoning_content": reply.get("reasoning_content") or None,
        "tool_calls": calls or None,
        "observation": _observation(turn, calls),
        "metrics": (_metrics(step.tokens, tokens.trained) or None) if turn.prompted else None,
        "llm_call_count": 1 if turn.prompted and step.endpoint is not None else None,
        "extra": {EXTRA: _without_none(extra)},
    }
    return _without_none(fields)


def _tool_calls(reply: Message) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the tool calls of a reply, and by their ids the arguments that are no JSON object."""
    calls, unparsed = [], {}
    for id, name, text in tool_calls_of(reply):
        arguments = parsed_arguments(text)
        if arguments is None:
            unparsed[id] = text
        calls.append({"tool_call_id": id, "function_name": name, "arguments": arguments or {}})
    return calls, unparsed


def _observation(turn: Turn, calls: list[dict[str, Any]]) -> dict[str, Any] | None:
    ids = [call["tool_call_id"] for call in calls]
    results = [
        {"source_call_id": call, "content": content} if call in ids else {"content": content}
        for message in turn.observation
        for call, content in [(message.get("tool_call_id"), message["content"] or "")]
    ]
    return {"results": results} if results else None


def _metrics(tokens: Tokens | None, trained: TokenSequence | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    if tokens is not None:
        metrics = {
            "prompt_tokens": tokens.prompt,
            "completion_tokens": tokens.completion,
            "cached_tokens": tokens.cached,
        }
        if tokens.reasoning:
            metrics["extra"] = {EXTRA: {"reasoning_tokens": tokens.reasoning}}
    if trained is not None:
        metrics |= {"prompt_token_ids": trained.prompt_ids, "completion_token_ids": trained.completion_ids}
        if logprobs := usable_logprobs(trained):
            metrics["logprobs"] = logprobs
    return metrics


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class EpisodeExtra(OwnFields, kw_only=True):
    reward: float | None = None
    paused_s: float = 0.0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: ErrorInfo | None = None
    unfinished_sequences: Any = None


class StepExtra(msgspec.Struct, kw_only=True):
    reward: float = 0.0
    done: bool = False
    actor: str = "agent"
    action: Action | None = None
    endpoint: str | None = None
    model_s: float = 0.0
    env_s: float = 0.0
    ttft_s: float | None = None
    warnings: tuple[str, ...] = ()
    shape: str | msgspec.UnsetType = msgspec.UNSET
    cost: float | None = None
    unparsed_arguments: dict[str, str] = {}
    sequences: Any = None


def decode_atif(value: object, place: Place) -> Iterator[Draft]:
    """The agents below the episode follow; they are not rated."""
    yield from _drafts(as_dict(value), _MAX_DEPTH, is_root=True)


def _drafts(trajectory: dict[str, Any], depth: int, *, is_root: bool) -> Iterator[Draft]:
    if not as_text(trajectory.get("schema_version")).startswith(_PREFIX):
        raise UnreadableItem("it has no schema_version of ATIF v1")
    steps = as_list(trajectory.get("steps"))
    if not steps:
        raise UnreadableItem("the trajectory has no steps")
    yield _draft(trajectory, steps, is_root=is_root)
    below = as_list(trajectory.get("subagent_trajectories"))
    if below and depth == 0:
        raise UnreadableItem(f"agents more than {_MAX_DEPTH} levels below the first one are left out")
    for each in below:
        yield from _drafts(as_dict(each), depth - 1, is_root=False)


def _draft(trajectory: dict[str, Any], steps: list[Any], *, is_root: bool) -> Draft:
    agent, metrics = as_dict(trajectory.get("agent")), as_dict(trajectory.get("final_metrics"))
    extra = own_fields(trajectory.get("extra"), EpisodeExtra)
    model, known = as_text(agent.get("model_name")) or None, extra or EpisodeExtra()
    transcript = Transcript()
    for step in map(as_dict, steps):
        _add_step(transcript, step, model)
    times = sorted(filter(None, (time_of(as_dict(step).get("timestamp")) for step in steps)))
    transcript.add_sequences(None, sequences_of(known.unfinished_sequences))
    return Draft(
        transcript=transcript,
        id=name_of(trajectory.get("trajectory_id") or trajectory.get("session_id")),
        agent=as_text(agent.get("name")),
        model=model,
        task=known.task_index,
        started_at=known.started_at or (times[0] if times else None),
        ended_at=known.ended_at or (times[-1] if times else None),
        has_step_rewards=extra is not None,
        rated=is_root,
        tokens=known.tokens or tokens_of(metrics, *_TOTALS),
        cost=number_of(metrics.get("total_cost_usd")) if known.cost is None else known.cost,
        tools=[each for each in as_list(agent.get("tool_definitions")) if isinstance(each, dict)],
        versions=_versions(agent),
        **{name: getattr(known, name) for name in _SAME},
    )


def _versions(agent: dict[str, Any]) -> dict[str, str]:
    own = as_dict(as_dict(as_dict(agent.get("extra")).get(EXTRA)).get("versions"))
    if own:
        return {name_of(name): name_of(version) for name, version in own.items()}
    name, version = name_of(agent.get("name")), name_of(agent.get("version"))
    return {name: version} if name and version else {}


def _add_step(transcript: Transcript, step: dict[str, Any], model: str | None) -> None:
    source, content = step.get("source"), content_of(step.get("message"))
    if source == "agent":
        _add_reply(transcript, step, content, model)
    elif source in ("system", "user"):
        transcript.add({"role": source, "content": content})
    else:
        raise UnreadableItem("a step has no source")
    for result in map(as_dict, as_list(as_dict(step.get("observation")).get("results"))):
        call = as_text(result.get("source_call_id"))
        transcript.add(message_of({**result, "role": "tool" if call else "user", "tool_call_id": call}))


def _add_reply(transcript: Transcript, step: dict[str, Any], content: str, model: str | None) -> None:
    extra = own_fields(step.get("extra"), StepExtra) or StepExtra()
    metrics, calls = as_dict(step.get("metrics")), list[dict[str, Any]]()
    own = as_dict(as_dict(metrics.get("extra")).get(EXTRA))  # has the tokens of reasoning
    for call in map(as_dict, as_list(step.get("tool_calls"))):
        id = as_text(call.get("tool_call_id"))
        arguments = extra.unparsed_arguments.get(id, call.get("arguments"))
        calls.append({"id": id, "name": call.get("function_name"), "arguments": arguments})
    played = transcript.add_reply(
        reply_of(content, step.get("reasoning_content"), calls),
        extra.action,
        model=as_text(step.get("model_name")) or model,
        tokens=tokens_of(own | metrics, *_USAGE),
        cost=number_of(metrics.get("cost_usd")) if extra.cost is None else extra.cost,
        actor="human" if extra.actor == "human" else "agent",
        **{name: getattr(extra, name) for name in ("reward", "done", "endpoint", "model_s", "env_s", "ttft_s")},
        warnings=extra.warnings,
        shape=extra.shape,
    )
    transcript.add_sequences(played.index, sequences_of(extra.sequences))
    prompt, completion, logprobs, n = (metrics.get(name) for name in _METRICS)
    transcript.add_ids(played, prompt, completion, logprobs, n)


FORMAT = Format(
    name="atif",
    title="ATIF v1.8",
    encode=encode_atif,
    signature='an object with `"schema_version": "ATIF-v1.…"`',
    matches=lambda head: as_text(head.first.get("schema_version")).startswith(_PREFIX),
    decode=decode_atif,
)
