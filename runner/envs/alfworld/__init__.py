"""ALFWorld: household tasks in text, such as heating an object and putting it into a receptacle."""

from runner.envs.alfworld.environment import ALFWorld, LocalOracle

__all__ = ["ALFWorld", "LocalOracle"]
