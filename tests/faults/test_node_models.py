"""A node and its models: reported health, rejected batches, and a batch that resumes once its model is back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ulid import ULID

from tests.support.model_server import ModelServer
from tests.support.node_process import clean_environ, running_node

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

MODELS = ("qwen3:8b",)


@pytest.fixture
def ollama() -> Iterator[ModelServer]:
    """A stopped model server in place of Ollama; it keeps its port."""
    server = ModelServer(models=MODELS)
    with server:
        pass
    yield server
    server.stop()


async def test_batches_start_only_while_a_model_is_available(ollama: ModelServer, tmp_path: Path) -> None:
    env = clean_environ(TENSORZERO_URL="http://127.0.0.1:1", OLLAMA_HOST=ollama.url)
    async with running_node(tmp_path / "data", env=env) as (node, connection):
        first, waiting = str(ULID()), str(ULID())
        first_request = {"batch_id": first, "envs": ["Maze"]}
        error = (await node.request_reply(connection, "start", **first_request))["error"]
        assert error["code"] == "no_model"
        assert "no model answers: gateway: no connection" in error["message"]
        assert "ollama: start it with: ollama serve; or choose an agent that uses no model" in error["hint"]
        listed = await node.request(connection, "list")
        assert (listed["batches"], listed["models"]) == ([], ["qwen35_9b", "qwen3:8b"])

        await asyncio.to_thread(ollama.start)
        (started,) = await node.request(connection, "start", **first_request)
        assert (started["agent"], started["model"]) == ("react", "qwen35_9b")
        await node.wait_for_batch(connection, first, "completed", n_done=1)
        (gateway,) = (
            item
            for item in (await node.request(connection, "health"))["items"]
            if item["kind"] == "model.health" and item["endpoint"] == "gateway"
        )
        assert (gateway["status"], gateway["model"]) == ("down", "qwen35_9b")
        assert "TENSORZERO_URL" in gateway["hint"]

        running = await node.start_batch(connection, "BabyAI", repeat=5000)
        waiting_request = {"batch_id": waiting, "envs": ["Maze"], "model": "qwen3:8b"}
        await node.request(connection, "start", **waiting_request)
        await asyncio.to_thread(ollama.stop)
        await node.request(connection, "cancel", batch_id=running)
        batch = await node.wait_for_batch(connection, waiting, "interrupted")
        assert (batch["n_done"], batch["model"]) == (0, "qwen3:8b")
        log = (tmp_path / "data" / "logs" / "runner.log").read_text()
        assert "the batch player failed: NoModel: no model answers: gateway: no connection" in log
        rejected = await node.request_reply(connection, "start", **waiting_request, resume=True)
        assert rejected["error"]["code"] == "no_model"

        await asyncio.to_thread(ollama.start)
        await node.request(connection, "start", **waiting_request, resume=True)
        await node.wait_for_batch(connection, waiting, "completed", n_done=1)
    (path,) = (tmp_path / "data" / "runs" / first).glob("*.json")
    episode = json.loads(path.read_bytes())
    assert (episode["agent"], episode["model"], episode["outcome"]) == ("react", "qwen35_9b", "success")
    assert all(step["endpoint"] == "ollama" and step["warnings"] for step in episode["timesteps"])


async def test_unknown_models_and_models_for_agents_without_one_are_rejected(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data", env=clean_environ(OLLAMA_HOST="127.0.0.1:1")) as (node, connection):
        rejected = await node.request_reply(
            connection, "start", batch_id=str(ULID()), envs=["Maze"], model="unheard-of"
        )
        assert rejected["error"]["code"] == "unknown_model"
        assert rejected["error"]["hint"] == "its models: qwen35_9b, qwen3:8b"
        request = {"envs": ["Maze"], "agent": "oracle", "model": "qwen3:8b"}
        rejected = await node.request_reply(connection, "start", batch_id=str(ULID()), **request)
        assert rejected["error"]["code"] == "refused"
        assert "uses no model" in rejected["error"]["message"]
