"""The command with TensorZero's own gateway in front of the test model: runs through it, and survives its end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import COMMAND, ENVIRON, run_agentgym
from tests.support.model_server import ModelServer
from tests.support.tensorzero_gateway import Gateway

pytestmark = pytest.mark.long

MODEL, FALLBACK = "qwen35_9b", "qwen3:8b"
"""Models of the default profile."""
OPTIONS = ("--run", "Wordle", "--json", "--repeat")


@pytest.fixture(scope="module")
def provider() -> Iterator[ModelServer]:
    """The test model behind the gateway, which also replaces Ollama."""
    with ModelServer(models=(MODEL, FALLBACK)) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(provider: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), f"{provider.url}/v1", (MODEL,)) as running:
        yield running


def gateway_environ(gateway: Gateway, fallback: str) -> dict[str, str]:
    return {"TENSORZERO_URL": gateway.origin, "OLLAMA_HOST": fallback}


def steps_of(folder: Path, batch: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the timesteps of each episode, in the order they were played."""
    files = sorted((folder / "data" / "runs" / batch["batch_id"]).glob("*.json"))
    episodes = [json.loads(path.read_bytes()) for path in files]
    assert {episode["model"] for episode in episodes} == {MODEL}
    return [episode["timesteps"] for episode in episodes]


def test_the_default_profile_plays_through_the_gateway(gateway: Gateway, tmp_path: Path) -> None:
    environ = gateway_environ(gateway, "127.0.0.1:1")
    completed = run_agentgym(tmp_path, *OPTIONS, "20", environ=environ)
    assert completed.returncode == 0, completed.stderr
    assert "ollama (ollama, http://127.0.0.1:1" in completed.stderr
    (batch,) = json.loads(completed.stdout)["batches"]
    assert (batch["agent"], batch["model"], batch["baseline"]) == ("react", MODEL, False)
    assert batch["outcomes"] == {"success": 20}
    steps = [step for episode in steps_of(tmp_path, batch) for step in episode]
    assert {(step["endpoint"], step["model"], tuple(step["warnings"])) for step in steps} == {("gateway", MODEL, ())}
    assert all(step["tokens"]["prompt"] and step["tokens"]["completion"] for step in steps)
    assert batch["answers"] == {f"gateway: {MODEL}": len(steps)}
    assert batch["tokens"]["prompt"] == sum(step["tokens"]["prompt"] for step in steps)
    assert batch["latency_s"] > 0
    (row,) = json.loads(run_agentgym(tmp_path, "--results", "--json").stdout)["results"]
    assert (row["model"], row["tokens"]["prompt"], row["n_success"]) == (MODEL, batch["tokens"]["prompt"], 20)
    assert row["latency_s"] == pytest.approx(batch["latency_s"])


def test_a_killed_gateway_fails_no_episode(gateway: Gateway, provider: ModelServer, tmp_path: Path) -> None:
    command = [COMMAND, *OPTIONS, "12"]
    environ = ENVIRON | gateway_environ(gateway, provider.url)
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        assert next(line for line in run.stderr if "task 1 " in line)
        gateway.kill()
        stdout, stderr = run.communicate(timeout=60)
    gateway.start()
    assert run.returncode == 0, stderr
    (batch,) = json.loads(stdout)["batches"]
    assert batch["outcomes"] == {"success": 12}
    assert "answers came from more than one model" in stderr
    steps = [step for episode in steps_of(tmp_path, batch) for step in episode]
    first = next(number for number, step in enumerate(steps) if step["endpoint"] == "ollama")
    before, after = steps[:first], steps[first:]
    assert {(step["endpoint"], tuple(step["warnings"])) for step in before} == {("gateway", ())}
    assert {(step["endpoint"], step["model"]) for step in after} == {("ollama", FALLBACK)}
    assert all(len(step["warnings"]) == 1 and step["warnings"][0].startswith("gateway: ") for step in after)
    assert all(step["tokens"]["prompt"] for step in after)


def test_preflight_names_the_requested_model_and_its_url(gateway: Gateway, tmp_path: Path) -> None:
    environ = gateway_environ(gateway, "127.0.0.1:1")
    completed = run_agentgym(tmp_path, "preflight", "--env", "Wordle", "--json", environ=environ)
    assert completed.returncode == 0, completed.stderr
    rows = {row["name"]: row for row in json.loads(completed.stdout)["rows"]}
    request = f"tensorzero, tensorzero::model_name::{MODEL} at {gateway.origin}/openai/v1/chat/completions"
    assert (rows["gateway"]["state"], rows["gateway"]["detail"]) == ("ok", request)
    assert (rows["ollama"]["state"], rows["ollama"]["hint"]) == ("warn", "start it with: ollama serve")
    unknown = run_agentgym(tmp_path, "preflight", "--model", "unknown-model", environ=environ)
    assert unknown.returncode == 1
    assert "add [models.unknown-model] to the gateway's configuration" in unknown.stdout
