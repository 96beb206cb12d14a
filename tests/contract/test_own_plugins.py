"""Plug-ins through the command: an agent of another package that asks a model, and constructors that do not fit."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from runner.serve.mock_llm.chat_format import ChatRequest
from runner.serve.mock_llm.scripted_reply import ScriptedCall, ScriptedReply
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
        options = ("--endpoint", server.url, "--model", "test-mover", "--agent", "Think-First")
        options = ("--run", "Maze", "--max-rounds", "2", "--workers", "1", *options)
        completed = run_agentgym(tmp_path, *options, environ=environ)
    assert completed.returncode == 0, completed.stderr
    (file,) = (tmp_path / "data" / "runs").glob("*/*.json")
    episode = json.loads(file.read_bytes())
    print(json.dumps(episode)[:3000])
