"""Maze replays recorded exchanges of AgentGym's own server."""

from __future__ import annotations

from typing import Any

import pytest

from runner.envs.maze import STARTS, Maze
from runner.errors import EnvironmentFault
from runner.types import Action
from tests.support.recordings import load_recording

AGENTGYM_STARTS = len(STARTS) + 1
"""AgentGym's list of starts ends with the goal, which shifts negative indices."""


def step_maze(maze: Maze, text: str) -> dict[str, Any]:
    chat, reward, done = maze.step(Action(text=text))
    return {"observation": chat[0]["content"], "reward": reward, "done": done}


def test_every_recorded_reply_is_reproduced() -> None:
    maze = Maze(mode="compat")
    compared = {"reset": 0, "step": 0, "available_actions": 0, "detail": 0}
    observation = ""
    for exchange in load_recording("maze.jsonl"):
        sent, received = exchange.sent, exchange.received
        match exchange.kind:
            case "reset":
                chat = maze.reset(task_index=sent["game"] % AGENTGYM_STARTS)
                assert chat[0]["content"] == received["observation"]
                observation, n_steps = received["observation"], 0
            case "step":
                if received["observation"] == "Failure\n":
                    unchanged = {"observation": observation, "reward": 0, "done": False}
                    # the recording omits the repetitions of this step up to the step limit
                    while n_steps < 50:
                        assert step_maze(maze, sent["action"]) == unchanged
                        n_steps += 1
                assert step_maze(maze, sent["action"]) == received
                observation, n_steps = received["observation"], n_steps + 1
            case "available_actions":
                assert maze.admissible_actions() == received
            case "detail":
                assert received["observation"] == observation
            case "http error" | "server error" | "create":
                continue
            case other:
                pytest.fail(f"an exchange of unknown kind: {other}")
        compared[exchange.kind] += 1
    assert compared == {"reset": 4, "step": 46, "available_actions": 1, "detail": 1}


def test_a_request_that_agentgym_answers_with_an_error_is_a_fault() -> None:
    server_errors = [exchange for exchange in load_recording("maze.jsonl") if exchange.kind == "server error"]
    assert len(server_errors) == 8
    with pytest.raises(EnvironmentFault, match="call reset first"):
        step_maze(Maze(mode="compat"), "move up")
