"""Plug-ins through the command: an agent of another package that asks a model, and constructors that do not fit."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from runner.serve.mock_llm.completion import ChatRequest
from runner.serve.mock_llm.script import ScriptedCall, ScriptedReply
from tests.support.command import REPOSITORY, environ_with_environments, run_agentgym
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.long

SAMPLE = REPOSITORY / "tests" / "sample_agent"


class Mover:
    """Thinks if it has no tools, else moves."""

    name = "mover"

    async def respond(self, request: ChatRequest) -> ScriptedReply:
        if not request.callable_tools:
            return ScriptedReply(content="A wall. Left is free.")
        return ScriptedReply(tool_calls=(ScriptedCall("move", '{"direction": "left"}'),))


def test_an_agent_of_another_package_asks_the_model_of_the_profile(tmp_path: Path) -> None:
    agents = tomllib.loads((SAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]["agentgym.agents"]
    environ = environ_with_environments(tmp_path, agents=agents)
    environ["PYTHONPATH"] += f":{SAMPLE}"
    with ModelServer(Mover()) as server:
        limits = ("--max-rounds", "2", "--workers", "1")
        model = ("--endpoint", server.url, "--model", "test-mover")
        completed = run_agentgym(tmp_path, "--run", "Maze", "--agent", "Think-First", *model, *limits, environ=environ)
    assert completed.returncode == 0, completed.stderr
    (file,) = (tmp_path / "data" / "runs").glob("*/*.json")
    episode = json.loads(file.read_bytes())
    assert (episode["agent"], episode["model"], episode["rounds"]) == ("think-first", "test-mover", 2)
    for step in episode["timesteps"]:
        thought, action = ([message["role"] for message in chat] for chat in step["chats"])
        assert thought == action == ["user", "assistant"] * (step["index"] + 1)
        assert (step["action"]["valid"], step["model"], step["warnings"]) == (True, "test-mover", [])
        sent = sum(len(message["content"].split()) for chat in step["chats"] for message in chat)
        assert sent / 2 < step["tokens"]["prompt"] < sent * 4  # of both requests
    assert episode["tokens"] == episode["timesteps"][0]["tokens"] | {
        name: sum(step["tokens"][name] for step in episode["timesteps"]) for name in ("prompt", "completion")
    }


def test_a_constructor_that_does_not_fit_is_named_before_the_run(tmp_path: Path) -> None:
    environ = environ_with_environments(tmp_path, agents={"greedy": "tests.support.fakes:InferenceAgent"})
    completed = run_agentgym(tmp_path, "--run", "Maze", "--agent", "greedy", environ=environ)
    assert (completed.returncode, completed.stdout) == (2, "")
    (line,) = completed.stderr.splitlines()
    assert "The constructor of the agent greedy does not fit: tests.support.fakes.InferenceAgent(*, " in line
    assert "missing a required argument: 'inference_mngr'. A run passes inference_mngr and settings" in line
    assert "with uses_model = True" in line
    assert not list((tmp_path / "data").glob("runs/*"))
