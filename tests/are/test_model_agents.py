"""Model agents play ARE's scenarios, with tool calls and with text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.config import ARESettings
from runner.config.profile import EndpointConfig
from runner.inference.manager import InferenceManager
from runner.types import Limits, Outcome
from tests.support.batches import make_setup
from tests.support.inference import agent_settings
from tests.support.rude_model import RudeModel, chat_completion, http_response

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("SandboxLocalFileSystem__ls", {"path": "/", "detail": False}),
    ("SandboxLocalFileSystem__cat", {"path": "/no-such-file"}),
    ("AgentUserInterface__send_message_to_user", {"content": "It is llama.jpg."}),
]


def answer(message: dict[str, Any]) -> bytes:
    return http_response(200, json.dumps(chat_completion(message)).encode())


def as_text(name: str, arguments: dict[str, Any]) -> bytes:
    call = json.dumps({"name": name, "arguments": arguments})
    return answer({"role": "assistant", "content": f"Thought: look\nAction: {call}"})


def as_call(name: str, arguments: dict[str, Any]) -> bytes:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return answer(
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    )


@pytest.mark.parametrize("agent", ["react", "tools"])
async def test_a_model_solves_a_scenario(settings: ARESettings, agent: str) -> None:
    reply = as_call if agent == "tools" else as_text
    with RudeModel(*(reply(*call) for call in CALLS)) as model:
        models = agent_settings(EndpointConfig(url=model.url, name="a", kind="openai"), format="react")
        setup = make_setup("are:scenario_find_image_file", agent, are=settings, models=models, limits=Limits(10))
        manager = InferenceManager(models, {})
        trajectory = await setup.build_factory(manager).play_episode({"task_index": 0})
    assert (trajectory.outcome, len(trajectory.timesteps)) == (Outcome.SUCCESS, 3), trajectory.error_info
    assert all(step.valid for step in trajectory.timesteps)
    listed, failed, last = (str(step.observation[0]["content"]) for step in trajectory.timesteps)
    assert "'/llama.jpg'" in listed and failed.startswith("[error] FileNotFoundError") and last == "[result] None"
    requests = [request.json() for request in model.chat_requests]
    assert "I need to find the image file" in json.dumps(requests[0]["messages"])
    assert "[environment] Simulated time: 1970-01-01 00:00:01" in json.dumps(requests[1]["messages"])
    assert all(("tools" in request) is (agent == "tools") for request in requests)
    if agent == "react":
        assert "SandboxLocalFileSystem__ls(" in requests[0]["messages"][0]["content"]
