"""Environment and model servers of this process, on a separate thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager

from anyio.from_thread import start_blocking_portal
from starlette.types import ASGIApp

from runner.serve.env_api import PoolOptions, environment_app
from runner.serve.host import DEFAULT_LIMITS, ServerLimits, Site, serve_apps
from runner.serve.request_guard import RequestGuard
from runner.types import Mode
from runner.util.clock import Clock


@contextmanager
def serve_in_thread(apps: Mapping[str, ASGIApp], limits: ServerLimits = DEFAULT_LIMITS) -> Iterator[dict[str, str]]:
    """Serve the applications on free loopback ports; yields their URLs by name."""
    sites = [Site(app, "127.0.0.1", 0, name) for name, app in apps.items()]
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve_sites(sites, limits)) as lines:
        yield {name: url for url, name in (line.split(" ", 1) for line in lines)}


@asynccontextmanager
async def serve_sites(sites: Sequence[Site], limits: ServerLimits) -> AsyncIterator[list[str]]:
    """Serve during the block; yields the lines that the sites announce themselves with."""
    stop, lines = asyncio.Event(), asyncio.Queue[str]()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve_apps(sites, on_ready=lines.put_nowait, stop=stop, limits=limits))
        yield [await lines.get() for _ in sites]
        stop.set()


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
