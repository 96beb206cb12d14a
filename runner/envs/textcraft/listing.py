"""Planner that needs nothing but the observations of a TextCraft task, for servers with recipes of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runner.envs.textcraft.crafting import apply_crafting, item_id
from runner.envs.textcraft.oracle import CraftStep, TextCraftOracle
from runner.envs.textcraft.recipes import Amounts, Recipe, RecipeTable, display_name, shipped_table
from runner.errors import AgentFault

MAX_RECIPES = 1000
"""Maximum number of recipes in a first observation; AgentGym's longest list has fewer than 200."""
_COUNT = "[1-9][0-9]{0,3}"
_RECIPE = re.compile(rf"^craft ({_COUNT}) (.+?) using (.+)$", re.MULTILINE)
_AMOUNT = re.compile(rf"({_COUNT}) (.+)")
_GOAL = re.compile(r"^Goal: craft (.+)\.$", re.MULTILINE)


class ListingPlanner:
    """Planner that reads the goal and the recipes from the first observation, and the inventory from the replies.

    The list does not mark tags. A name is taken for a tag if it is one in Minecraft, or if the server does not provide
    it as an item; its members are the listed outputs that end with the name.
    """

    def __init__(self) -> None:
        """Create a planner without a task; ``start`` reads one."""
        self._goal = ""
        self._recipes: dict[str, list[Recipe]] = {}
        self._tags: set[str] = set()
        self._inventory: dict[str, int] = {}
        self._planner: TextCraftOracle
        self._last: CraftStep

    def start(self, observation: str) -> None:
        """Read a task from its first observation.

        Raises:
            AgentFault: if the text has no goal with a recipe, or its recipes cannot be planned with.
        """
        goal = _GOAL.search(observation)
        rows = _RECIPE.findall(observation)
        self._recipes, self._inventory = {}, {}
        for count, output, ingredients in rows[:MAX_RECIPES]:
            recipe = Recipe(item_id(output), int(count), tuple(_amounts(ingredients)))
            self._recipes.setdefault(recipe.output, []).append(recipe)
        self._goal = item_id(goal[1]) if goal else ""
        if self._goal not in self._recipes or len(rows) > MAX_RECIPES:
            raise AgentFault(
                f"The first observation has {len(rows)} crafting commands and no usable goal among them; the oracle "
                'needs a line "Goal: craft <item>." and the commands for the item'
            )
        self._tags = {tag for tag in shipped_table().members if self._members(tag)}
        self._plan()

    def next_action(self) -> str:
        """Return the next ``get`` or ``craft`` command."""
        self._last = self._planner.next_step()
        return self._last.text

    def observe(self, observation: str) -> str:
        """Take the reply to the latest action into account, and return the expected reply.

        Raises:
            AgentFault: if no plan is possible after the reply.
        """
        step, name = self._last, display_name(self._last.item)
        is_get = step.text.startswith("get ")
        is_refused = is_get and observation == f"Could not find {name}" and step.item not in self._tags
        if is_refused and self._members(step.item):
            self._tags.add(step.item)
            self._plan()
            return observation
        apply_crafting(self._inventory, step.used, step.item, step.amount)
        return f"Got {step.amount} {name}" if is_get else f"Crafted {step.amount} minecraft:{step.item}"

    def _members(self, tag: str) -> list[str]:
        known = shipped_table().members.get(tag)
        if tag in self._recipes:
            return []
        return [item for item in self._recipes if (item in known if known else item.endswith(f"_{tag}"))]

    def _plan(self) -> None:
        members = {tag: self._members(tag) for tag in self._tags}
        makers = {tag: [recipe for item in items for recipe in self._recipes[item]] for tag, items in members.items()}
        try:
            table = RecipeTable(self._recipes, members, makers, _names(self._recipes.values()))
            self._planner = TextCraftOracle(table, self._goal, self._inventory)
        except (ValueError, RecursionError) as exc:
            raise AgentFault(f"The oracle cannot plan with the listed crafting commands: {exc}") from exc


def _amounts(text: str) -> Amounts:
    matches = map(_AMOUNT.fullmatch, text.split(", "))
    return [(item_id(match[2]), int(match[1])) for match in matches if match]


def _names(recipes: Iterable[Iterable[Recipe]]) -> set[str]:
    return {name for same in recipes for recipe in same for name in (recipe.output, *dict(recipe.ingredients))}
