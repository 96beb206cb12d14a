"""Environment and model servers of this process, on a separate thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from starlette.types import ASGIApp

from runner.serve.env_api import PoolOptions, environment_app
from runner.serve.host import DEFAULT_LIMITS, ServerLimits, Site, serve_apps
from runner.serve.request_guard import RequestGuard
from runner.types import Mode
from runner.util.clock import Clock

START_TIMEOUT_S = 30.0


@contextmanager
def serve_in_thread(apps: Mapping[str, ASGIApp], limits: ServerLimits = DEFAULT_LIMITS) -> Iterator[dict[str, str]]:
    """Serve the applications on free loopback ports; yields their URLs by name."""
    announcements: queue.Queue[str] = queue.Queue()
    stop, loop = asyncio.Event(), asyncio.new_event_loop()
    sites = [Site(app, "127.0.0.1", 0, name) for name, app in apps.items()]

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve_apps(sites, on_ready=announcements.put, stop=stop, limits=limits))

    thread = threading.Thread(target=run, name="servers", daemon=True)
    thread.start()
    try:
        ready = [announcements.get(timeout=START_TIMEOUT_S).split(" ", 1) for _ in sites]
        yield {name: url for url, name in ready}
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(START_TIMEOUT_S)
        assert not thread.is_alive()


@contextmanager
def serve_environments(
    names: Sequence[str],
    *,
    mode: Mode = "strict",
    token: str | None = None,
    max_open: int = 64,
    idle_s: float = 600.0,
    clock: Clock | None = None,
    limits: ServerLimits = DEFAULT_LIMITS,
) -> Iterator[dict[str, str]]:
    """Serve each embedded environment on its own server; yields their URLs by name."""
    with ThreadPoolExecutor(8, "environment") as executor:
        options = PoolOptions(executor, max_open, idle_s, clock=clock or Clock())
        apps = {name: environment_app(name, mode, options).application() for name in names}
        guarded = {name: RequestGuard(app, token=token) for name, app in apps.items()}
        with serve_in_thread(guarded, limits) as urls:
            yield urls
