"""Environments of this process over AgentGym's protocol."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from runner import plugins as registry
from runner.envs.base import EmbeddedEnvironment
from runner.errors import ConfigError
from runner.serve.env_api.app import EnvironmentApp
from runner.serve.env_api.dialects import DIALECTS
from runner.serve.env_api.pool import Pool
from runner.types import Mode
from runner.util.clock import Clock

__all__ = ["DIALECTS", "EnvironmentApp", "environment_app"]


def environment_app(
    name: str, *, mode: Mode, max_open: int, idle_s: float, executor: Executor, clock: Clock | None = None
) -> EnvironmentApp:
    """The application of a registered environment; an instance is built at once, to find out whether it works.

    Args:
        name: the environment, in any case.
        mode: by which rules it is played.
        max_open: how many instances can be open.
        idle_s: seconds without a request after which an instance is taken back.
        executor: runs whatever the environment does.
        clock: where the time for that comes from.

    Raises:
        ConfigError: where there is no such environment, it cannot be loaded, or it has no protocol.
    """
    name = registry.canonical(registry.ENVS, name)
    if name not in DIALECTS:
        raise ConfigError(f"AgentGym has no protocol for {name}. These can be served: {', '.join(DIALECTS)}")
    make: Callable[[], EmbeddedEnvironment] = partial(registry.load(registry.ENVS, name), mode=mode)
    pool = Pool(make, limit=max_open, idle_s=idle_s, clock=clock)
    return EnvironmentApp(DIALECTS[name], make(), pool, executor)
