"""Chats for supervised training, one line of JSON per episode: OpenAI messages, and ShareGPT.

Sources: OpenAI's chat completions API for messages and tools; FastChat's conversation data for ``human``, ``gpt`` and
``system``, which Axolotl and LLaMA-Factory read. Trainers ignore the fields that name the episode.
"""

from __future__ import annotations

from typing import Any

from runner.formats.conversation import command_renderer, read_conversation, reply_text, require_steps, text_of
from runner.formats.format import Format
from runner.formats.writers import LinesWriter
from runner.store.episode_file import EpisodeRecord


def encode_messages(episode: EpisodeRecord) -> dict[str, Any]:
    """Return one line: the messages, the tools of the first step, and the origin."""
    require_steps(episode)
    ref = episode.timesteps[0].tool_schemas_ref
    tools = episode.tool_schemas[ref] if isinstance(ref, int) else []
    return {
        "messages": read_conversation(episode).messages(),
        **({"tools": tools} if tools else {}),
        **_origin(episode),
    }


def encode_sharegpt(episode: EpisodeRecord) -> dict[str, Any]:
    """Return one line: the conversation, in which speakers alternate and tool calls are text, and the origin."""
    require_steps(episode)
    conversation, render = read_conversation(episode), command_renderer(episode.env)
    items = [] if conversation.system is None else [{"from": "system", "value": conversation.system}]
    observation = text_of(conversation.opening)
    for turn in conversation.turns:
        items += [{"from": "human", "value": observation}, {"from": "gpt", "value": reply_text(turn, render)}]
        observation = text_of(turn.observation)
    return {"conversations": items, "final_observation": observation, **_origin(episode)}


def _origin(episode: EpisodeRecord) -> dict[str, Any]:
    """Return the fields that name the episode of a line, and its result."""
    return {
        "episode_id": episode.episode_id,
        "env": episode.env,
        "task_index": episode.task_index,
        "attempt": episode.attempt,
        "agent": episode.agent,
        "model": episode.model,
        "outcome": episode.outcome,
        "success": episode.success,
        "reward": episode.reward,
    }


MESSAGES = Format(
    name="messages",
    title="OpenAI messages",
    suffix=".jsonl",
    open_writer=lambda output: LinesWriter(output, encode_messages),
)
SHAREGPT = Format(
    name="sharegpt",
    title="ShareGPT",
    suffix=".jsonl",
    open_writer=lambda output: LinesWriter(output, encode_sharegpt),
)
