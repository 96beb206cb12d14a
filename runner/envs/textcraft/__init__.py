"""TextCraft: craft a Minecraft item from base items, given a list of recipes with distractors."""

from runner.envs.textcraft.environment import TextCraft
from runner.envs.textcraft.oracle import ListingPlanner, TextCraftOracle

__all__ = ["ListingPlanner", "TextCraft", "TextCraftOracle"]
