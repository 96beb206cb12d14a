"""A Maze server of this process whose steps wait for permits of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx

from runner.envs.maze import Maze
from runner.serve.env_api import DIALECTS, EnvironmentApp, PoolOptions
from runner.serve.host import DEFAULT_LIMITS, ServerLimits
from runner.serve.request_guard import RequestGuard
from runner.util.clock import Clock
from tests.support.serving import serve_in_thread


class Gated(Maze):
    """Each step waits for a permit; counts the steps that run at the same time."""

    entered = threading.Semaphore(0)
    permit = threading.Semaphore(0)
    n_running = 0
    max_running = 0

    def _step(self, text: str) -> tuple[str, float, bool]:
        Gated.n_running += 1
        Gated.max_running = max(Gated.max_running, Gated.n_running)
        self.entered.release()
        assert self.permit.acquire(timeout=30)
        Gated.n_running -= 1
        return super()._step(text)


@contextmanager
def serve_gated_maze(limits: ServerLimits = DEFAULT_LIMITS, clock: Clock | None = None) -> Iterator[str]:
    """Serve a Maze whose steps wait for permits; yield its URL."""
    Gated.entered, Gated.permit, Gated.max_running = threading.Semaphore(0), threading.Semaphore(0), 0
    with ThreadPoolExecutor(8) as executor:
        app = EnvironmentApp(DIALECTS["Maze"], Gated, PoolOptions(executor, 4, 60, clock=clock or Clock()))
        with serve_in_thread({"Maze": RequestGuard(app.application())}, limits) as urls:
            yield urls["Maze"]


def start_instance(http: httpx.Client) -> dict[str, int]:
    instance: dict[str, int] = http.post("/maze/create").json()
    assert http.post("/maze/reset", json={**instance, "game": 0}).is_success
    return instance
