"""ATIF v1.8, the agent trajectory interchange format: a file per episode.

Source: the models of ``harbor.models.trajectories`` in harbor 0.25.0, which forbid every other field. ATIF has no
reward: rewards, outcomes and what else it lacks are in ``extra.agentgym`` of the trajectory and of its steps.
``atif_reader.py`` reads it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from runner.formats.atif_reader import READER, TITLE
from runner.formats.conversation import Turn, parsed_arguments, read_conversation, tool_calls_of
from runner.formats.drafts import result_fields
from runner.formats.foreign_values import EXTRA
from runner.formats.format import Format, LeftOut
from runner.formats.training import step_tokens, unfinished_tokens, usable_logprobs
from runner.formats.writers import FolderWriter
from runner.store.episode_file import EpisodeRecord
from runner.types import Action, Message, Tokens
from runner.types.sequences import TokenSequence
from runner.util.json_accessors import as_dict, as_list

VERSION = "ATIF-v1.8"
VALUE: Final = "value"
SET, REMOVED, CHANGED, ITEMS = "set", "removed", "changed", "items"
"""Keys of the difference between two objects, and of that between two lists of one length."""
_T = TypeVar("_T")

_EPISODE_EXTRA = (
    *("batch_id", "battery_id", "node", "profile", "env", "transport", "data_label", "mode", "task_index", "seed"),
    *("attempt", "duration_s", "paused_s", "evaluation", "n_planned", "cost", "tokens"),
)


class _StepExtra(msgspec.Struct, kw_only=True):
    """Our own fields of a step, see ``StepExtra``."""

    reward: float | UnsetType = UNSET
    done: bool
    valid: bool
    actor: str | UnsetType = UNSET
    action: Action
    endpoint: str | UnsetType = UNSET
    model_s: float
    env_s: float
    ttft_s: float | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET
    shape: str | UnsetType = UNSET
    cost: float | UnsetType = UNSET
    unparsed_arguments: dict[str, str] | UnsetType = UNSET
    sequences: list[dict[str, Any]] | UnsetType = UNSET


class _Step(msgspec.Struct, kw_only=True):
    step_id: int
    timestamp: datetime | UnsetType = UNSET
    source: str
    model_name: str | UnsetType = UNSET
    message: str
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET
    observation: dict[str, Any] | UnsetType = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET
    llm_call_count: int | UnsetType = UNSET
    extra: dict[str, _StepExtra] | UnsetType = UNSET


def encode_atif(episode: EpisodeRecord) -> dict[str, Any]:
    """Return the trajectory of an episode; that of an imported one equals the original.

    Raises ``LeftOut`` if the episode has no message, as ATIF needs one step.
    """
    trajectory = _trajectory(episode)
    origin = episode.origin
    if origin is None or origin.format != TITLE:
        return trajectory
    original: dict[str, Any] = restored(_plain(trajectory), origin.rest)
    return original


def difference_to(episode: EpisodeRecord, original: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a JSON value
    return difference(_plain(_trajectory(episode)), original)


def _plain(trajectory: dict[str, Any]) -> Any:  # noqa: ANN401
    return msgspec.to_builtins(trajectory)


def _trajectory(episode: EpisodeRecord) -> dict[str, Any]:
    conversation = read_conversation(episode)
    steps: list[_Step] = []
    if conversation.system is not None:
        steps.append(_Step(step_id=1, source="system", message=conversation.system))
    for message in conversation.opening:
        source = "system" if message["role"] == "system" else "user"
        steps.append(_Step(step_id=len(steps) + 1, source=source, message=message["content"] or ""))
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


def _agent_step(turn: Turn, episode: EpisodeRecord, number: int, step_id: int, at: datetime) -> _Step:
    step, reply = turn.step, turn.reply
    calls, unparsed = _tool_calls(reply)
    tokens = step_tokens(episode, number)
    extra = _StepExtra(
        reward=UNSET if episode.reward is None else step.reward,
        done=step.done,
        valid=step.valid,
        actor=step.actor if step.actor != "agent" else UNSET,
        action=step.action,
        endpoint=_known(step.endpoint),
        model_s=step.model_s,
        env_s=step.env_s,
        ttft_s=_known(step.ttft_s),
        warnings=step.warnings or UNSET,
        shape=step.shape,
        cost=_known(step.cost),
        unparsed_arguments=unparsed or UNSET,
        sequences=tokens.others or UNSET,
    )
    return _Step(
        step_id=step_id,
        timestamp=at,
        source="agent",
        model_name=_known(step.model) if step.model != episode.model else UNSET,
        message=reply["content"] or "",
        reasoning_content=reply.get("reasoning_content") or UNSET,
        tool_calls=calls or UNSET,
        observation=_observation(turn, calls),
        metrics=(_metrics(step.tokens, tokens.trained) or UNSET) if turn.prompted else UNSET,
        llm_call_count=1 if turn.prompted and step.endpoint is not None else UNSET,
        extra={EXTRA: extra},
    )


def _known(value: _T | None) -> _T | UnsetType:
    return UNSET if value is None else value


def _tool_calls(reply: Message) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the tool calls of a reply, and by their ids the arguments that are no JSON object."""
    calls, unparsed = [], {}
    for id, name, text in tool_calls_of(reply):
        arguments = parsed_arguments(text)
        if arguments is None:
            unparsed[id] = text
        calls.append({"tool_call_id": id, "function_name": name, "arguments": arguments or {}})
    return calls, unparsed


def _observation(turn: Turn, calls: list[dict[str, Any]]) -> dict[str, Any] | UnsetType:
    ids = [call["tool_call_id"] for call in calls]
    results = [
        {"source_call_id": call, "content": content} if call in ids else {"content": content}
        for message in turn.observation
        for call, content in [(message.get("tool_call_id"), message["content"] or "")]
    ]
    return {"results": results} if results else UNSET


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


def difference(old: object, new: object) -> dict[str, Any] | None:
    if isinstance(old, dict) and isinstance(new, dict):
        changed = {key: diff for key in new if key in old and (diff := difference(old[key], new[key])) is not None}
        parts = {
            SET: {key: value for key, value in new.items() if key not in old},
            REMOVED: [key for key in old if key not in new],
            CHANGED: changed,
        }
        return {name: part for name, part in parts.items() if part} or None
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        items = {str(n): diff for n, (one, other) in pairs if (diff := difference(one, other)) is not None}
        return {ITEMS: items} if items else None
    return None if type(old) is type(new) and old == new else {VALUE: new}


def restored(old: Any, diff: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return ``new`` from ``old`` and their ``difference``; parts that do not fit ``old`` are ignored."""
    fields = as_dict(diff)
    if VALUE in fields:
        return fields[VALUE]
    if isinstance(old, dict):
        removed, changed = as_list(fields.get(REMOVED)), as_dict(fields.get(CHANGED))
        kept = {key: restored(value, changed.get(key)) for key, value in old.items() if key not in removed}
        return {**kept, **as_dict(fields.get(SET))}
    if isinstance(old, list):
        items = as_dict(fields.get(ITEMS))
        return [restored(value, items.get(str(n))) for n, value in enumerate(old)]
    return old


FORMAT = Format(
    name="atif",
    title=TITLE,
    open_writer=lambda output: FolderWriter(output, encode_atif),
    reader=msgspec.structs.replace(READER, difference=difference_to),
)
