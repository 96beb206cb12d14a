"""Meta's Agents Research Environments (ARE) as environments, named ``are:<scenario>``."""

from runner.envs.are.environment import AREEnvironment

__all__ = ["AREEnvironment"]
