"""Secrets of the driver reach its workers over their channels, and are in the environment of no process."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.batch.batch import Batch
from runner.batch.workspace import Workspace
from runner.config import AgentSettings, EndpointConfig
from runner.inference.profile_models import Models
from runner.pool import fork_server
from runner.pool.fork_server import ForkServerClient
from runner.types import Item, WorkerState
from runner.worker.channel import StartMode
from tests.conftest import Install
from tests.support.batches import resolved_batch
from tests.support.rude_model import PendingRequest, RudeModel, completion_response

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="run on Linux: reads /proc"),
]

KEY, TOKEN, PASSWORD = "sk-8c1f0a-key-of-a-model", "t-51ab-token-of-an-environment", "p-90cc-password"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path / "data", node="test", profile="p1")
    yield workspace
    workspace.close()


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LAB_ACCESS": KEY, "LAB_TOKEN": TOKEN, "LAB_URL": f"http://u:{PASSWORD}@h/"}.items():
        monkeypatch.setenv(name, value)


class SeenProcesses:
    """Records what other processes can read about the workers and their fork server during a model request.

    Both workers make one request, and none is answered before the other: one of them could play both episodes.
    """

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.texts: dict[int, str] = {}
        self.client: ForkServerClient | None = None
        self._both, self._lock = threading.Barrier(2), threading.Lock()
        self._workers: set[int] = set()

    def answer(self, pending: PendingRequest) -> None:
        self._both.wait(60)
        with self._lock:
            self._look()
        pending.send(completion_response("Thought: on.\nAction: up"))

    def _look(self) -> None:
        assert self.client is not None
        while len(self._workers) < 2:  # the driver reports a worker when it gets to it
            item = self.items.get(timeout=60)
            if isinstance(item, WorkerState) and item.pid:
                self._workers.add(item.pid)
        for pid in filter(None, (self.client.pid, *self._workers)):
            parts = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
            self.texts[pid] = b"\0".join(parts).decode()


@pytest.mark.parametrize("mode", ["fork", "spawn"])
@pytest.mark.usefixtures("variables")
def test_no_environment_of_a_process_has_a_secret_of_the_driver(
    mode: StartMode, workspace: Workspace, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install({"ReadingKeys": "tests.support.rude_environments:ReadingKeys"})
    seen = SeenProcesses()

    def open_client(key_names: frozenset[str]) -> ForkServerClient:
        seen.client = ForkServerClient(mode, key_names)
        return seen.client

    monkeypatch.setattr(fork_server, "open_client", open_client)
    with RudeModel(seen.answer) as server:
        endpoint = EndpointConfig(url=server.url, name="lab", kind="openai", model="m", api_key_env="LAB_ACCESS")
        settings = AgentSettings(mode="local", local_fallback=None, endpoints=(endpoint,))
        models = Models(settings, os.environ)
        planned = resolved_batch(
            models=models, env="ReadingKeys", agent="react", model="m", repeat=2, concurrency=2, workers=2
        )
        result = Batch(planned, workspace, observers=[seen.items.put], models=models).run()
        assert seen.client is not None
        seen.client.close()
    assert {request.headers["authorization"] for request in server.chat_requests} == {f"Bearer {KEY}"}
    assert len(seen.texts) == 3
    assert all("PATH=" in text and "runner.worker" in text for text in seen.texts.values())
    assert not [text for text in seen.texts.values() if any(secret in text for secret in (KEY, TOKEN, PASSWORD))]
    records = [workspace.store.load(episode.episode_id) for episode in result.episodes]
    assert [record.reset_observation[0]["content"] for record in records] == [f"{len(KEY)} characters"] * 2
    assert {record.error.message for record in records if record.error} == {"the key *** is refused"}


@pytest.mark.usefixtures("variables")
def test_a_server_that_was_started_without_a_profile_has_no_recognized_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    clients: dict[frozenset[str], ForkServerClient] = {}
    monkeypatch.setattr(fork_server, "_clients", clients)
    early = fork_server.open_client()
    assert fork_server.open_client({"LAB_TOKEN"}) is early
    late = fork_server.open_client({"LAB_ACCESS"})
    assert late is not early
    for client in (early, late):
        client.start_worker("worker", print).sock.close()
    environs = [Path(f"/proc/{client.pid}/environ").read_text() for client in (early, late)]
    for client in clients.values():
        client.close()
    assert [secret in environs[0] for secret in (KEY, TOKEN, PASSWORD)] == [True, False, False]
    assert not [secret for secret in (KEY, TOKEN, PASSWORD) if secret in environs[1]]
