"""Chats for supervised training, one line of JSON per episode: OpenAI messages, and ShareGPT.

Sources: OpenAI's chat completions API for messages and tools; FastChat's conversation data for ``human``, ``gpt`` and
``system``, which Axolotl and LLaMA-Factory read. Trainers ignore the fields that name the episode.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.formats.conversation import command_renderer, read_conversation, reply_text, require_steps, text_of
from runner.formats.drafts import Draft, Transcript, add_messages, labelled_draft, result_fields
from runner.formats.foreign_values import UnreadableItem, name_of
from runner.formats.format import Format, Head
from runner.formats.reading import Place
from runner.store.episode_file import EpisodeRecord
from runner.types import join_models
from runner.util.json_accessors import as_dict, as_list, as_text

_ROLES = {
    **{"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"},
    **{"chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "function_call": "assistant"},
    **{"tool": "tool", "observation": "tool", "function_response": "tool"},
}
"""Roles by the speakers of FastChat, Axolotl and LLaMA-Factory."""


def encode_messages(episode: EpisodeRecord) -> dict[str, Any]:
    require_steps(episode)
    ref = episode.timesteps[0].tool_schemas_ref
    tools = episode.tool_schemas[ref] if isinstance(ref, int) else []
    return {
        "messages": read_conversation(episode).messages(),
        **({"tools": tools} if tools else {}),
        **_origin(episode),
    }


def encode_sharegpt(episode: EpisodeRecord) -> dict[str, Any]:
    """Speakers alternate, and tool calls are text."""
    require_steps(episode)
    conversation, render = read_conversation(episode), command_renderer(episode.env)
    items = [] if conversation.system is None else [{"from": "system", "value": conversation.system}]
    observation = text_of(conversation.opening)
    for turn in conversation.turns:
        items += [{"from": "human", "value": observation}, {"from": "gpt", "value": reply_text(turn, render)}]
        observation = text_of(turn.observation)
    return {"conversations": items, "final_observation": observation, **_origin(episode)}


def _origin(episode: EpisodeRecord) -> dict[str, Any]:
    return {
        "episode_id": episode.episode_id,
        "env": episode.env,
        "task_index": episode.task_index,
        "attempt": episode.attempt,
        "agent": episode.agent,
        "model": episode.model,
        **_answers(episode),
        **result_fields(episode),
    }


def _answers(episode: EpisodeRecord) -> dict[str, Any]:
    """Return endpoint and model of each reply, as ``_labelled_draft`` reads them, if not only ``model`` answered."""
    if join_models(episode.model, episode.models) == episode.model:
        return {}
    steps = episode.timesteps
    return {"endpoints": [step.endpoint for step in steps], "models": [step.model for step in steps]}


def _labelled_draft(fields: dict[str, Any], transcript: Transcript) -> Draft:
    answers = as_list(fields.get("endpoints")), as_list(fields.get("models"))
    for step, endpoint, model in zip(transcript.steps, *answers, strict=False):
        step.endpoint, step.model = name_of(endpoint) or None, name_of(model) or None
    return labelled_draft(fields, transcript)


def decode_messages(value: object, place: Place) -> Iterator[Draft]:
    """Yield the episode of a line; its result is known where the line has a reward or other fields of our exports.

    In results of tau-bench, the messages are ``traj``, beside ``task_id``, ``trial`` and ``reward``.
    """
    fields = as_dict(value)
    transcript = Transcript()
    add_messages(transcript, fields.get("messages") or fields.get("traj"))
    draft, task = _labelled_draft({"attempt": fields.get("trial"), **fields}, transcript), fields.get("task_id")
    if draft.task is None:
        draft.task = task if type(task) is int else name_of(task)
    yield draft


def decode_sharegpt(value: object, place: Place) -> Iterator[Draft]:
    """Yield the episode of a conversation with speakers; its result is known only in our own exports."""
    fields = as_dict(value)
    transcript = Transcript()
    for item in map(as_dict, as_list(fields.get("conversations"))):
        role = _ROLES.get(as_text(item.get("from")))
        if role is None:
            raise UnreadableItem("a message has no known speaker")
        add = transcript.add_reply if role == "assistant" else transcript.add
        add({"role": role, "content": as_text(item.get("value"))})
    if final := as_text(fields.get("final_observation")):
        transcript.add({"role": "user", "content": final})
    yield _labelled_draft(fields, transcript)


def is_messages(head: Head) -> bool:
    return any("role" in message for message in (*head.list("messages"), *head.list("traj")))


def is_sharegpt(head: Head) -> bool:
    """An item of AgentTraj is none."""
    return "item_id" not in head.first and any("from" in item for item in head.list("conversations"))


MESSAGES = Format(
    name="messages",
    title="OpenAI messages",
    suffix=".jsonl",
    encode=encode_messages,
    signature="objects with `messages`, or `traj` as of tau-bench, which have a `role`",
    matches=is_messages,
    decode=decode_messages,
)
SHAREGPT = Format(
    name="sharegpt",
    title="ShareGPT",
    suffix=".jsonl",
    encode=encode_sharegpt,
    signature="objects with `conversations`, whose items have `from` and `value`, and without `item_id`",
    matches=is_sharegpt,
    decode=decode_sharegpt,
)
