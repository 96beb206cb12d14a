"""ATIF v1.8, the agent trajectory interchange format: a file per episode.

Source: the models of ``harbor.models.trajectories`` in harbor 0.25.0, which forbid every other field. ATIF has no
reward: rewards, outcomes and what else it lacks are in ``extra.agentgym`` of the trajectory and of its steps.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from runner.formats.conversation import Turn, parsed_arguments, read_conversation, tool_calls_of
from runner.formats.format import Format, LeftOut
from runner.formats.writers import FolderWriter
from runner.store.episode_file import EpisodeRecord
from runner.types import Message, Tokens

VERSION = "ATIF-v1.8"
EXTRA = "agentgym"
"""Key of our own fields in ``extra``."""

_EPISODE_EXTRA = (
    *("batch_id", "battery_id", "node", "profile", "env", "transport", "data_label", "mode", "task_index", "seed"),
    *("attempt", "outcome", "success", "reward", "duration_s", "paused_s", "evaluation", "n_planned"),
)


def encode_atif(episode: EpisodeRecord) -> dict[str, Any]:
    """Return the trajectory of an episode; raises ``LeftOut`` if it has no message, as ATIF needs one step."""
    conversation = read_conversation(episode)
    steps: list[dict[str, Any]] = []
    if conversation.system is not None:
        steps.append({"source": "system", "message": conversation.system})
    steps += [{"source": _source(message), "message": message["content"] or ""} for message in conversation.opening]
    elapsed_s = 0.0
    for turn in conversation.turns:
        elapsed_s += turn.step.model_s + turn.step.env_s
        at = episode.started_at + timedelta(seconds=min(elapsed_s, episode.duration_s))
        steps.append({"timestamp": at.isoformat(), **_agent_step(turn, episode)})
    if not steps:
        raise LeftOut("it has no message, and ATIF needs one step")
    extra = {name: getattr(episode, name) for name in _EPISODE_EXTRA}
    extra |= {"started_at": episode.started_at, "ended_at": episode.ended_at}
    return {
        "schema_version": VERSION,
        "session_id": episode.batch_id,
        "trajectory_id": episode.episode_id,
        "agent": _agent(episode),
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": _final_metrics(episode, len(steps)),
        "extra": {EXTRA: _without_none(extra) | ({"error": episode.error} if episode.error else {})},
    }


def _source(message: Message) -> str:
    return "system" if message["role"] == "system" else "user"


def _agent(episode: EpisodeRecord) -> dict[str, Any]:
    agent = {
        "name": episode.agent or "unknown",
        "version": episode.versions.get("agentgym-console", "unknown"),
        "model_name": episode.model,
        "tool_definitions": episode.tool_schemas[0] if episode.tool_schemas and episode.tool_schemas[0] else None,
        "extra": {EXTRA: {"versions": episode.versions}} if episode.versions else None,
    }
    return _without_none(agent)


def _agent_step(turn: Turn, episode: EpisodeRecord) -> dict[str, Any]:
    step, reply = turn.step, turn.reply
    calls, unparsed = _tool_calls(reply)
    extra = {
        "reward": step.reward,
        "done": step.done,
        "valid": step.valid,
        "actor": step.actor if step.actor != "agent" else None,
        "action": step.action,
        "endpoint": step.endpoint,
        "model_s": step.model_s,
        "env_s": step.env_s,
        "ttft_s": step.ttft_s,
        "warnings": step.warnings or None,
        "cost": step.cost,
        "unparsed_arguments": unparsed or None,
    }
    answered = turn.prompted and step.endpoint is not None
    fields = {
        "source": "agent",
        "model_name": step.model if step.model != episode.model else None,
        "message": reply["content"] or "",
        "reasoning_content": reply.get("reasoning_content") or None,
        "tool_calls": calls or None,
        "observation": _observation(turn, {call["tool_call_id"] for call in calls}),
        "metrics": _metrics(step.tokens) if turn.prompted else None,
        "llm_call_count": 1 if answered else None,
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


def _observation(turn: Turn, calls: set[str]) -> dict[str, Any] | None:
    results = [
        _without_none({"source_call_id": call if call in calls else None, "content": message["content"] or ""})
        for message in turn.observation
        for call in [message.get("tool_call_id")]
    ]
    return {"results": results} if results else None


def _metrics(tokens: Tokens | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    extra = {EXTRA: {"reasoning_tokens": tokens.reasoning}} if tokens.reasoning else None
    counts = {
        "prompt_tokens": tokens.prompt,
        "completion_tokens": tokens.completion,
        "cached_tokens": tokens.cached,
        "extra": extra,
    }
    return _without_none(counts)


def _final_metrics(episode: EpisodeRecord, n_steps: int) -> dict[str, Any]:
    tokens = episode.tokens
    metrics = {
        "total_prompt_tokens": tokens.prompt,
        "total_completion_tokens": tokens.completion,
        "total_cached_tokens": tokens.cached,
        "total_steps": n_steps,
        "extra": {EXTRA: {"cost": episode.cost}} if episode.cost is not None else None,
    }
    return _without_none(metrics)


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


FORMAT = Format(name="atif", title="ATIF v1.8", open_writer=lambda output: FolderWriter(output, encode_atif))
