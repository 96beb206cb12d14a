from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from runner import plugins
from runner.types import Action, Chat, Message, Mode, ToolCall
from tests.support.model_server import ModelServer


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with ModelServer() as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def environment(name: str, mode: Mode = "strict") -> Any:  # noqa: ANN401
    return plugins.load(plugins.ENVS, name)(mode=mode)


def reply_to(client: httpx.Client, messages: Chat, **more: Any) -> Message:  # noqa: ANN401
    reply = client.post("/v1/chat/completions", json={"model": "test-oracle", "messages": messages, **more})
    message: Message = reply.json()["choices"][0]["message"]
    return message


def first_messages(env: Any, task_index: int) -> Chat:  # noqa: ANN401
    (observation,) = env.reset(task_index=task_index)
    return [
        {"role": "system", "content": "You play a game. Answer with a Thought and an Action."},
        {"role": "user", "content": f"This is your task.\n\n{observation['content']}\n"},
    ]


def action_of(message: Message) -> Action:
    if calls := message.get("tool_calls"):
        function = calls[0]["function"]
        return Action(tool_calls=[ToolCall(calls[0]["id"], function["name"], function["arguments"])])
    thought, _, action = (message["content"] or "").partition("\nAction:")
    assert thought.startswith("Thought: ")
    return Action(text=action.strip())


def play(client: httpx.Client, env: Any, chat: Chat, *, tools: bool = False, n_recent: int = 1000) -> float:  # noqa: ANN401
    """Run an episode whose requests contain the first and the last ``n_recent`` messages; return the reward."""
    recent: Chat = []
    total, done = 0.0, False
    more = {"tools": env.get_tool_schemas()} if tools else {}
    for _ in range(40):
        message = reply_to(client, [*chat, *recent[-n_recent:]], **more)
        assert bool(message.get("tool_calls")) == tools, message
        observation, reward, done = env.step(action_of(message))
        recent += [message, *observation]
        total += reward
        if done:
            break
    assert done
    return total


@pytest.mark.parametrize("name", ["Maze", "Wordle"])
def test_the_oracle_plays_in_the_other_mode(client: httpx.Client, name: str) -> None:
    env = environment(name, "compat")
    assert play(client, env, first_messages(env, 11)) > 0


@pytest.mark.parametrize("tools", [False, True])
def test_a_conversation_may_omit_earlier_turns(client: httpx.Client, tools: bool) -> None:
    env = environment("Maze")
    assert play(client, env, first_messages(env, 0), tools=tools, n_recent=4) == 1


def test_episodes_of_the_same_task_do_not_disturb_each_other(client: httpx.Client) -> None:
    envs = [environment("Maze") for _ in range(3)]
    chats = [first_messages(env, task_index) for env, task_index in zip(envs, (3, 4, 3), strict=True)]
    running, rewards = [0, 1, 2], [0.0] * 3
    while running:
        for index in running.copy():
            message = reply_to(client, chats[index])
            assert reply_to(client, chats[index]) == message  # a repeated request, as after a lost reply
            observation, reward, done = envs[index].step(action_of(message))
            chats[index] += [message, *observation]
            rewards[index] += reward
            if done:
                running.remove(index)
    assert min(rewards) == 1


def test_foreign_and_invalid_actions_are_replayed(client: httpx.Client) -> None:
    env = environment("Maze")
    chat = first_messages(env, 7)
    for text, call in (("Action: move right", Action(text="move right")), ("nonsense", Action(text="nonsense"))):
        chat += [{"role": "assistant", "content": text}, *env.step(call)[0]]
    chat += [
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "Invalid action. Expected exactly one of: move left."},
    ]
    assert play(client, env, chat) == 1


def test_the_first_observation_may_follow_other_messages(client: httpx.Client) -> None:
    env = environment("Maze")
    chat: Chat = [
        {"role": "user", "content": "Rules."},
        {"role": "assistant", "content": "OK."},
        *first_messages(env, 3),
    ]
    assert play(client, env, chat) == 1


def test_the_model_name_may_select_the_task(client: httpx.Client) -> None:
    message = reply_to(client, [{"role": "user", "content": "Play!"}], model="oracle:maze:3")
    assert message["content"] is not None
    assert message["content"].endswith("Action: move left")


def test_what_the_oracle_cannot_go_on_with_is_answered_with_the_reason(client: httpx.Client) -> None:
    def reason(chat: Chat) -> str:
        return reply_to(client, chat)["content"] or ""

    unknown = reason([{"role": "user", "content": "What is the meaning of life?"}])
    assert "not a language model" in unknown
    assert "does not recognize the environment and task" in unknown
    env = environment("Maze")
    moved: Message = {"role": "assistant", "content": "Action: move left"}
    elsewhere: Message = {"role": "user", "content": "You are on the moon."}
    assert "does not recognize" in reason([*first_messages(env, 3), moved, elsewhere])
    chat = first_messages(env, 18)
    message = reply_to(client, chat)
    observation, _, done = env.step(action_of(message))
    assert done
    assert "is over" in reason([*chat, message, *observation])


def test_a_tool_that_is_not_offered_is_not_called(client: httpx.Client) -> None:
    env = environment("Maze")
    other = {"type": "function", "function": {"name": "fly"}}
    chat = first_messages(env, 3)
    assert "tool_calls" not in reply_to(client, chat, tools=[other])
    assert "tool_calls" not in reply_to(client, chat, tools=env.get_tool_schemas(), tool_choice="none")
