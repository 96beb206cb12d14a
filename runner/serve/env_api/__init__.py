"""HTTP servers for embedded environments, with AgentGym's protocol."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from runner import plugins
from runner.envs.base import EmbeddedEnvironment
from runner.errors import ConfigError
from runner.serve.env_api.app import EnvironmentApp
from runner.serve.env_api.dialects import DIALECTS
from runner.serve.env_api.pool import InstancePool
from runner.types import Mode
from runner.util.clock import Clock

__all__ = ["DIALECTS", "EnvironmentApp", "environment_app"]


def environment_app(
    name: str,
    *,
    mode: Mode,
    max_open: int,
    idle_s: float,
    executor: Executor,
    clock: Clock | None = None,
    first_id: int = 0,
) -> EnvironmentApp:
    """Build the web application of a registered environment; construct one instance to check that it loads.

    The id of the first instance should differ after each start, so that an id from before is unknown. ``idle_s`` are
    the seconds without a request after which an instance is closed. Raises ``ConfigError`` if the environment is
    unknown or cannot be loaded, or AgentGym has no server for it.
    """
    name = plugins.find(plugins.ENVS, name).name
    if name not in DIALECTS:
        raise ConfigError(
            f"AgentGym has no protocol for {name}. Environments that can be served: {', '.join(DIALECTS)}"
        )
    build: Callable[[], EmbeddedEnvironment] = partial(plugins.load(plugins.ENVS, name), mode=mode)
    pool = InstancePool(build, limit=max_open, idle_s=idle_s, clock=clock, first_id=first_id)
    return EnvironmentApp(DIALECTS[name], build(), pool, executor)
