"""The load of the model servers is read while a foreground run plays, and no longer."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from runner.cli import run
from runner.config.profile import EndpointConfig
from runner.inference.profile_models import Models
from runner.types.phases import ServerTimes
from tests.support.command import run_agentgym
from tests.support.inference import agent_settings
from tests.support.rude_model import PendingRequest, RudeModel, chat_completion, http_response

TIMEOUT_S = 30
MOVE = {"role": "assistant", "content": "Thought: on.\nAction: move up"}


class BusyServer:
    """Has ended one more request, of 1 s in the queue and 3 s of decode, at each reading of its metrics."""

    def __init__(self) -> None:
        self.n_readings = 0
        self.is_compared = threading.Event()
        """Set when two readings have been compared, because the third one has begun."""

    def metrics(self, pending: PendingRequest) -> None:
        self.n_readings += 1
        if self.n_readings == 3:
            self.is_compared.set()
        sums = {"queue": 1, "prefill": 0, "decode": 3}
        lines = [f"vllm:request_{part}_time_seconds_sum {s * self.n_readings}" for part, s in sums.items()]
        lines += [f"vllm:request_{part}_time_seconds_count {self.n_readings}" for part in sums]
        pending.send(http_response(200, "\n".join(lines).encode(), "text/plain", Connection="close"))

    def answer(self, pending: PendingRequest) -> None:
        assert self.is_compared.wait(TIMEOUT_S)
        body = json.dumps(chat_completion(MOVE)).encode()
        pending.send(http_response(200, body, Connection="close"))


def test_the_means_of_a_server_are_known_while_a_run_plays_and_then_the_thread_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "SERVER_INTERVAL_S", 0.01)
    busy = BusyServer()
    with RudeModel(busy.answer, routes={"/metrics": busy.metrics}) as server:
        models = Models(agent_settings(EndpointConfig(url=server.url, name="lab", kind="openai")), {})
        with run._reading_servers(models):
            (thread,) = [each for each in threading.enumerate() if each.name == "model servers"]
            assert busy.is_compared.wait(TIMEOUT_S)
        thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    assert models.gate.server_times.values.get("lab") == ServerTimes(queue_s=1.0, prefill_s=0.0, decode_s=3.0)


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_answers_of_a_foreground_run_are_split_by_the_metrics(tmp_path: Path, workers: str) -> None:
    busy = BusyServer()

    def answer(pending: PendingRequest) -> None:
        if pending.request.json().get("messages"):
            busy.answer(pending)
        else:  # a health check
            pending.send(http_response(400, b'{"error": "no messages"}', Connection="close"))

    with RudeModel(answer, routes={"/metrics": busy.metrics}) as server:
        endpoints = [{"url": server.url, "name": "lab", "kind": "openai"}]
        agent = {"mode": "local", "local_fallback": None, "model": "small", "stream": False, "endpoints": endpoints}
        profile = {"id": "lab", "agent": agent, "environments": {"lightweight": [{"name": "Maze"}]}}
        (tmp_path / "lab.yaml").write_text(json.dumps(profile))
        options = ("--config", "lab.yaml", "--data-dir", "data", "--max-rounds", "2", "--workers", workers)
        completed = run_agentgym(tmp_path, "--run", "Maze", *options)
    assert completed.returncode == 0, completed.stderr
    (file,) = (tmp_path / "data" / "runs").rglob("*.json")
    phases = json.loads(file.read_bytes())["timesteps"][-1]["phases"]
    assert phases["about"] is True
    assert phases["queue"] == pytest.approx(phases["model"] / 4)
