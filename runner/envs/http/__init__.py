"""Environments played over HTTP, on servers that speak AgentGym's protocol."""

from runner.envs.http.address import ServerAddress
from runner.envs.http.client import HttpTimings
from runner.envs.http.dialects import ClientDialect, dialect_for
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.identify import ServerIdentity, identify_server

__all__ = [
    "ClientDialect",
    "HttpEnvironment",
    "HttpTimings",
    "ServerAddress",
    "ServerIdentity",
    "dialect_for",
    "identify_server",
]
