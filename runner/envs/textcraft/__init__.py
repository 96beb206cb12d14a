"""TextCraft: craft an item of Minecraft from what can be got, by a list of recipes with distractors."""

from runner.envs.textcraft.environment import TextCraft
from runner.envs.textcraft.oracle import TextCraftOracle

__all__ = ["TextCraft", "TextCraftOracle"]
