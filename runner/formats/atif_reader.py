"""Reads ATIF v1.0 to v1.8; what ``extra.agentgym`` of our own exports has is restored."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from runner.formats.drafts import Draft, Transcript, sequence_of, sequences_of
from runner.formats.foreign_values import (
    EXTRA,
    OwnFields,
    UnreadableItem,
    content_of,
    name_of,
    number_of,
    own_fields,
    time_of,
    tokens_of,
    tool_calls_from,
)
from runner.formats.format import Head, Reader
from runner.formats.reading import Place
from runner.types import Action, ErrorInfo, Message, Tokens
from runner.util.json_accessors import as_dict, as_list, as_text

TITLE: Final = "ATIF v1.8"
_PREFIX: Final = "ATIF-v1."
_MAX_DEPTH: Final = 8
"""Number of levels of agents below an agent that are read."""
_SAME: Final = (
    *("env", "data_label", "mode", "seed", "attempt", "outcome", "success", "reward", "duration_s", "paused_s"),
    *("evaluation", "error"),
)
_TOTALS: Final = ("total_prompt_tokens", "total_completion_tokens", "total_cached_tokens", "")


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
    model = as_text(agent.get("model_name")) or None
    transcript, times = Transcript(), list[datetime]()
    for step in map(as_dict, steps):
        _add_step(transcript, step, model)
        if (at := time_of(step.get("timestamp"))) is not None:
            times.append(at)
    known = EpisodeExtra() if extra is None else extra
    transcript.add_sequences(None, sequences_of(known.unfinished_sequences))
    return Draft(
        transcript=transcript,
        id=name_of(trajectory.get("trajectory_id") or trajectory.get("session_id")),
        agent=as_text(agent.get("name")),
        model=model,
        task=known.task_index,
        started_at=known.started_at or min(times, default=None),
        ended_at=known.ended_at or max(times, default=None),
        has_step_rewards=extra is not None,
        rated=is_root,
        tokens=known.tokens or tokens_of(metrics, *_TOTALS),
        cost=number_of(metrics.get("total_cost_usd")) if known.cost is None else known.cost,
        tools=[each for each in as_list(agent.get("tool_definitions")) if isinstance(each, dict)],
        versions=_versions(agent),
        original=trajectory if is_root else None,
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
        transcript.add(_observation(result))


def _observation(result: dict[str, Any]) -> Message:
    content = content_of(result.get("content"))
    if call := as_text(result.get("source_call_id")):
        return {"role": "tool", "content": content, "tool_call_id": call}
    return {"role": "user", "content": content}


def _add_reply(transcript: Transcript, step: dict[str, Any], content: str, model: str | None) -> None:
    extra = own_fields(step.get("extra"), StepExtra) or StepExtra()
    reply: Message = {"role": "assistant", "content": content}
    if reasoning := as_text(step.get("reasoning_content")):
        reply["reasoning_content"] = reasoning
    calls = tool_calls_from([_call(call, extra) for call in map(as_dict, as_list(step.get("tool_calls")))])
    if calls:
        reply["tool_calls"] = calls
    metrics = as_dict(step.get("metrics"))
    played = transcript.add_reply(
        reply,
        extra.action,
        model=as_text(step.get("model_name")) or model,
        tokens=_tokens(metrics),
        cost=number_of(metrics.get("cost_usd")) if extra.cost is None else extra.cost,
        actor="human" if extra.actor == "human" else "agent",
        **{name: getattr(extra, name) for name in ("reward", "done", "endpoint", "model_s", "env_s", "ttft_s")},
        warnings=extra.warnings,
        shape=extra.shape,
    )
    transcript.add_sequences(played.index, sequences_of(extra.sequences))
    named = {**metrics, "endpoint": played.endpoint, "model": played.model, "label": "agent", "problems": []}
    if (trained := sequence_of(named, metrics.get("completion_tokens"))) is not None:
        transcript.add_sequences(played.index, [trained])


def _call(call: dict[str, Any], extra: StepExtra) -> dict[str, Any]:
    id = as_text(call.get("tool_call_id"))
    arguments = extra.unparsed_arguments.get(id, call.get("arguments"))
    return {"id": id, "function": {"name": call.get("function_name"), "arguments": arguments}}


def _tokens(metrics: dict[str, Any]) -> Tokens | None:
    counts = tokens_of(metrics, "prompt_tokens", "completion_tokens", "cached_tokens", "")
    if counts is None:
        return None
    own = as_dict(as_dict(metrics.get("extra")).get(EXTRA))
    reasoning = own.get("reasoning_tokens")
    return msgspec.structs.replace(counts, reasoning=reasoning) if type(reasoning) is int and reasoning > 0 else counts


def is_atif(head: Head) -> bool:
    return as_text(head.first.get("schema_version")).startswith(_PREFIX)


READER = Reader(signature='an object with `"schema_version": "ATIF-v1.…"`', matches=is_atif, decode=decode_atif)
