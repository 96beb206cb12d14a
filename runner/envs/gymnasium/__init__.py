"""Gymnasium environments as text environments, named ``gymnasium:<id>``."""

from runner.envs.gymnasium.environment import GymnasiumEnvironment

__all__ = ["GymnasiumEnvironment"]
