"""Replies recorded by AgentGym's own evaluator are parsed into the actions that its clients sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner import plugins
from runner.agents.model.react import strip_thinking
from runner.agents.model.reply_parsing import action_style, parse_reply
from runner.envs.base import BIRD_VARIABLE
from runner.envs.textcraft.recipes import shipped_table
from runner.types import Action, Message, TimeStep, Trajectory
from tests.support.bird_sample import write_bird
from tests.support.episodes import make_step
from tests.support.recordings import load_rows

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


def recorded_results() -> dict[str, dict[str, Any]]:
    return {row["item_id"]: row for row in load_rows("client_results.jsonl")}


def conversations() -> dict[str, list[Message]]:
    # without the instructions and the "OK."
    return {item: row["conversations"][2:] for item, row in recorded_results().items()}


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


TASKS = {
    "babyai_0": 0,
    "textcraft_1": shipped_table().goals.index("emerald_block"),
    "maze_4": 4,
    "wordle_0": 0,
    "sqlgym_0": 0,
}
"""Our task of each result; AgentGym's TextCraft numbers its tasks differently. SciWorld runs only on servers."""
NO_SUCCESS_BELOW_1 = {"babyai_0"}
"""AgentGym's evaluator counts only a reward of 1 as success, which BabyAI never gives."""


@pytest.mark.parametrize("item", TASKS)
def test_parsed_actions_reproduce_the_episode(item: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BIRD_VARIABLE, str(write_bird(tmp_path)))
    result, chat = recorded_results()[item], conversations()[item]
    env = plugins.load(plugins.ENVS, NAMES[item.partition("_")[0]])(mode="compat")
    opening = env.reset(task_index=TASKS[item])[0]["content"]
    if item in ("babyai_0", "sqlgym_0"):  # other clients prepend their instructions or, in TextCraft, list distractors
        assert opening == chat[0]["content"]
    steps: list[TimeStep] = []
    for index, (reply, observed) in enumerate(zip(chat[1::2], chat[2::2], strict=True)):
        action = Action(text=parse_action(item, reply))
        (observation,), reward, done = env.step(action)
        assert observation["content"] == observed["content"]
        steps.append(make_step(index, action=action, observation=[observation], reward=reward, done=done))
    assert steps[-1].reward == result["reward"]
    success = env.success(Trajectory(episode_id="x", timesteps=steps))
    assert success == (True if item in NO_SUCCESS_BELOW_1 else bool(result["success"]))
