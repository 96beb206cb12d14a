"""ALFWorld: household tasks in words; find things, heat, cool, clean or light them, and put them where they belong."""

from runner.envs.alfworld.environment import ALFWorld
from runner.envs.alfworld.oracle import LocalOracle

__all__ = ["ALFWorld", "LocalOracle"]
