"""Secrets of a run or node reach its workers, but no environment or command line of a process that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from ulid import ULID

from tests.support.command import ENVIRON
from tests.support.held_steps import StepGate
from tests.support.node_process import NodeProcess
from tests.support.rude_model import PendingRequest, RudeModel, completion_response
from tests.support.worker_runs import StartMode, WorkerRun, worker_environ

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="run on Linux: reads /proc"),
]

KEY, TOKEN, PASSWORD = "sk-8c1f0a-key-of-a-model", "t-51ab-token-of-an-environment", "p-90cc-password"
VARIABLES = {"LAB_ACCESS": KEY, "LAB_TOKEN": TOKEN, "LAB_URL": f"http://u:{PASSWORD}@h/"}
"""The first one is a secret only if the profile names it; the others are by their name or their value."""
ALL_SECRETS = (KEY, TOKEN, PASSWORD)


class ModelThatLooksAround:
    """Answers two requests at a time, and reads first what other processes can read about the tester's processes.

    Each worker makes one of the two requests: an answer waits for the other request, so none could play both episodes.
    """

    def __init__(self) -> None:
        self.root: psutil.Process | None = None
        self.texts: dict[int, bytes] = {}
        self.started = threading.Event()
        self._both, self._lock = threading.Barrier(2), threading.Lock()

    def answer(self, pending: PendingRequest) -> None:
        if "messages" in pending.request.json():  # else the run asks whether the model is there
            self._both.wait(60)
            assert self.started.wait(60)
            with self._lock:
                self.look()
        pending.send(completion_response("Thought: on.\nAction: up"))

    def look(self) -> None:
        assert self.root is not None
        for process in self.root.children(recursive=True):
            with contextlib.suppress(OSError):  # it has just ended
                environ, command = (Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("environ", "cmdline"))
                if environ:  # else it is a zombie
                    self.texts[process.pid] = environ + command

    def look_at(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.started.set()


def write_profile(folder: Path, url: str, key_name: str) -> None:
    endpoint = {"url": url, "name": "lab", "kind": "openai", "model": "m", "api_key_env": key_name}
    environments = {"lightweight": [{"name": "ReadingKeys"}]}
    agent = {"mode": "local", "local_fallback": None, "endpoints": [endpoint]}
    (folder / "p.yaml").write_text(json.dumps({"id": "p", "agent": agent, "environments": environments}))


def check_episodes(data_dir: Path) -> None:
    """Check that the environment had its secrets, and that no file has one."""
    episodes: list[dict[str, Any]] = [json.loads(path.read_bytes()) for path in data_dir.glob("runs/*/*.json")]
    observations = [episode["reset_observation"][0]["content"] for episode in episodes]
    assert observations == [f"{len(KEY)} characters"] * 2
    assert {episode["error"]["message"] for episode in episodes} == {"the key *** is refused"}
    files = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}
    assert not [path for path, text in files.items() if has_secret(text, ALL_SECRETS)]


def has_secret(text: bytes, secrets: tuple[str, ...]) -> bool:
    return any(secret.encode() in text for secret in secrets)


def check_processes(seen: ModelThatLooksAround, n_processes: int, secrets: tuple[str, ...]) -> None:
    """Check that workers and what started them have variables of the run, and none of its secrets."""
    assert len(seen.texts) >= n_processes
    assert all(b"PATH=" in text for text in seen.texts.values())
    assert not [pid for pid, text in seen.texts.items() if has_secret(text, secrets)]


@pytest.mark.parametrize(
    ("mode", "key_name", "secrets"),
    [
        ("fork", "LAB_ACCESS", ALL_SECRETS),
        ("spawn", "LAB_ACCESS", ALL_SECRETS),
        ("fork", "LAB_TOKEN", (TOKEN, PASSWORD)),
    ],
)
def test_no_process_of_a_run_shows_a_secret(
    mode: StartMode, key_name: str, secrets: tuple[str, ...], tmp_path: Path
) -> None:
    seen = ModelThatLooksAround()
    with RudeModel(seen.answer) as server:
        write_profile(tmp_path, server.url, key_name)
        options = ("--agent", "react", "--repeat", "2", "--config", "./p.yaml")
        environ = worker_environ(tmp_path) | VARIABLES
        with WorkerRun(tmp_path, "ReadingKeys", *options, workers=2, environ=environ, mode=mode) as run:
            seen.look_at(run.pid)
            assert run.wait() == 1
    assert {request.headers["authorization"] for request in server.chat_requests} == {f"Bearer {VARIABLES[key_name]}"}
    check_processes(seen, 3, secrets)
    check_episodes(tmp_path / "data")
    assert not has_secret(run.errors.encode() + (tmp_path / "output").read_bytes(), ALL_SECRETS)


async def test_no_process_of_a_node_shows_a_secret(tmp_path: Path) -> None:
    seen, batch_id = ModelThatLooksAround(), str(ULID())
    with RudeModel(seen.answer) as server:
        write_profile(tmp_path, server.url, "LAB_ACCESS")
        environ = ENVIRON | worker_environ(tmp_path) | VARIABLES
        with NodeProcess(tmp_path / "data", "--config", str(tmp_path / "p.yaml"), env=environ) as node:
            seen.look_at(node.pid)
            async with await node.connect() as connection:
                batch: dict[str, Any] = {"envs": ["ReadingKeys"], "agent": "react", "repeat": 2, "concurrency": 2}
                await node.request(connection, "start", batch_id=batch_id, workers=2, **batch)
                await node.wait_for_batch(connection, batch_id, "completed", n_done=2)
            await asyncio.to_thread(node.terminate)
    check_processes(seen, 4, ALL_SECRETS)  # with its broker
    check_episodes(tmp_path / "data")


def test_no_worker_of_an_agent_without_a_model_has_the_key_of_the_profile(tmp_path: Path) -> None:
    write_profile(tmp_path, "http://127.0.0.1:1", "LAB_ACCESS")
    seen = ModelThatLooksAround()
    with StepGate() as gate:
        environ = worker_environ(tmp_path) | VARIABLES | gate.environ
        options = ("--repeat", "2", "--config", "./p.yaml")
        with WorkerRun(tmp_path, "HeldSteps", *options, workers=2, environ=environ) as run:
            steps = [gate.next(), gate.next()]
            seen.look_at(run.pid)
            seen.look()
    assert len({step.pid for step in steps}) == 2
    check_processes(seen, 3, ALL_SECRETS)
