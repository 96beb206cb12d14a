"""Replies recorded by AgentGym's own evaluator are parsed into the actions that its clients sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner import plugins
from runner.agents.model.action_text import action_style
from runner.agents.model.conversation import strip_thinking
from runner.agents.model.reply_parsing import parse_reply
from runner.types import Action, Message
from tests.support.recordings import RECORDINGS_FOLDER

NAMES = {
    "babyai": "BabyAI",
    "textcraft": "TextCraft",
    "maze": "Maze",
    "wordle": "Wordle",
    "sciworld": "SciWorld",
    "sqlgym": "SQLGym",
}
SENT_ACTIONS = {
    "babyai_0": ["go to red ball 1"],
    "textcraft_1": ["get 9 emerald", "craft 1 emerald block using 9 emerald"],
    "maze_4": ["move right"] * 6,
    "wordle_0": ["p a n i c", "s o l a r", "s h i r e", "p r o x y", "p o i n t", "r o b o t"],
    "sciworld_0": ["look around"] * 6,
    "sqlgym_0": ["SELECT COUNT(*) FROM customers WHERE city='Rome'"],
}
"""Actions sent to the servers, inferred from the observations, for example ``Got 9 emerald``."""


def conversations() -> dict[str, list[Message]]:
    path = RECORDINGS_FOLDER / "client_results.jsonl"
    if not path.is_file():
        pytest.skip(f"no recorded conversations: {path} is missing")
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {row["item_id"]: row["conversations"][2:] for row in rows}  # without the instructions and the "OK."


def parse_action(item: str, reply: Message) -> str | None:
    env = NAMES[item.partition("_")[0]]
    schemas = [] if env == "SciWorld" else plugins.load(plugins.ENVS, env)().get_tool_schemas()
    answer = parse_reply(strip_thinking(reply), action_style(env), schemas, as_calls=False)
    assert isinstance(answer, Action)
    assert not answer.tool_calls
    return answer.text


def test_parsed_actions_equal_the_actions_sent_to_the_servers() -> None:
    chats = conversations()
    assert chats.keys() == SENT_ACTIONS.keys()
    for item, chat in chats.items():
        replies = [message for message in chat if message["role"] == "assistant"]
        assert [parse_action(item, reply) for reply in replies] == SENT_ACTIONS[item], item


@pytest.mark.parametrize("item", ["babyai_0", "maze_4", "wordle_0"])
def test_parsed_actions_reproduce_the_observations(item: str) -> None:
    chat = conversations()[item]
    name, _, task = item.partition("_")
    env = plugins.load(plugins.ENVS, NAMES[name])(mode="compat")
    env.reset(task_index=int(task))
    for reply, observed in zip(chat[1::2], chat[2::2], strict=True):
        (observation,), _, _ = env.step(Action(text=parse_action(item, reply)))
        assert observation["content"] == observed["content"]
