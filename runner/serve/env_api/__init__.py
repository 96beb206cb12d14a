"""HTTP servers for embedded environments, with AgentGym's protocol."""

from runner.serve.env_api.app import EnvironmentApp, environment_app
from runner.serve.env_api.dialects import DIALECTS
from runner.serve.env_api.pool import PoolOptions

__all__ = ["DIALECTS", "EnvironmentApp", "PoolOptions", "environment_app"]
