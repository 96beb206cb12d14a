"""Environments that are played on a server, over AgentGym's protocol."""

from runner.envs.http.address import ServerAddress
from runner.envs.http.dialects import Dialect, dialect_for
from runner.envs.http.environment import HttpEnvironment
from runner.envs.http.identify import Greeting, greeting

__all__ = ["Dialect", "Greeting", "HttpEnvironment", "ServerAddress", "dialect_for", "greeting"]
