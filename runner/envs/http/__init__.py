"""Environments played over HTTP, on servers that speak AgentGym's protocol."""

from typing import TYPE_CHECKING

from runner.envs.http.address import ServerAddress
from runner.envs.http.dialects import ClientDialect, dialect_for
from runner.envs.http.identify import ServerIdentity, identify_server

if TYPE_CHECKING:
    from runner.envs.http.client import HttpTimings
    from runner.envs.http.environment import HttpEnvironment

__all__ = [
    "ClientDialect",
    "HttpEnvironment",
    "HttpTimings",
    "ServerAddress",
    "ServerIdentity",
    "dialect_for",
    "identify_server",
]


def __getattr__(name: str) -> object:
    """Import what sends requests on first use, because it loads ``asyncio``; a list of environments only probes."""
    if name == "HttpEnvironment":
        from runner.envs.http.environment import HttpEnvironment

        return HttpEnvironment
    if name == "HttpTimings":
        from runner.envs.http.client import HttpTimings

        return HttpTimings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
