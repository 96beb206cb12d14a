"""Oracles of TextCraft: plan backwards from the goal and use items in the inventory before getting new ones.

``TextCraftOracle`` reads the episode's table and inventory; ``ListingPlanner`` needs nothing but the observations, for
servers with recipes of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from runner.envs.textcraft.recipes import (
    Amounts,
    Items,
    Recipe,
    RecipeTable,
    apply_crafting,
    craft_command,
    display_name,
    item_id,
    shipped_table,
)
from runner.errors import AgentFault

MAX_CRAFTINGS = 1000
"""Maximum number of craftings in a plan; AgentGym's recipes need fewer than 50."""
MAX_RECIPES = 1000
"""Maximum number of recipes in a first observation; AgentGym's longest list has fewer than 200."""
_COUNT = "[1-9][0-9]{0,3}"
_RECIPE = re.compile(rf"^craft ({_COUNT}) (.+?) using (.+)$", re.MULTILINE)
_AMOUNT = re.compile(rf"({_COUNT}) (.+)")
_GOAL = re.compile(r"^Goal: craft (.+)\.$", re.MULTILINE)


class CraftStep(NamedTuple):
    """An action and its effect on the inventory: ``used`` is removed, ``amount`` of ``item`` is added."""

    text: str
    used: Amounts
    item: str
    amount: int


class TextCraftOracle:
    """Planner that first gets all base items, then crafts the intermediate items and the goal.

    The recipe of each ingredient is chosen at the start by hill climbing: one recipe is changed at a time as long as
    the plan gets shorter. The oracle makes a new plan when the inventory, which the environment updates, differs from
    the expected one. Raises ``ValueError`` if the goal needs more than ``MAX_CRAFTINGS`` craftings.
    """

    def __init__(self, table: RecipeTable, goal: str, inventory: Items) -> None:
        self._table = table
        self._goal = goal
        self._inventory = inventory
        self._recipes = self._choose_recipes()
        self._expected: dict[str, int] = {}
        self._steps: list[CraftStep] = []

    def next_action(self) -> str:
        return self.next_step().text

    def next_step(self) -> CraftStep:
        if self._inventory != self._expected or not self._steps:
            self._expected = dict(self._inventory)
            self._steps = self._plan(self._recipes)
        step = self._steps.pop(0)
        apply_crafting(self._expected, step.used, step.item, step.amount)
        return step

    def plan(self) -> list[str]:
        return [step.text for step in self._plan(self._recipes)]

    def _choose_recipes(self) -> dict[str, Recipe]:
        # recipes of each crafted ingredient, those with the fewest crafting levels first
        tree = self._table.tree(self._goal)
        names = dict.fromkeys([self._goal, *(name for recipe in tree for name, _ in recipe.ingredients)])
        ways = {name: sorted(self._table.ways(name), key=self._table.depth_of_recipe) for name in names}
        options = {name: possible for name, possible in ways.items() if possible}
        recipes = {name: possible[0] for name, possible in options.items()}
        trials = [(name, recipe) for name, possible in options.items() for recipe in possible[1:]]
        length, shortest = 0, len(self._plan(recipes))
        while length != shortest:
            length = shortest
            for name, recipe in trials:
                trial = {**recipes, name: recipe}
                if (tried := len(self._plan(trial))) < shortest:
                    recipes, shortest = trial, tried
        return recipes

    def _plan(self, recipes: Mapping[str, Recipe]) -> list[CraftStep]:
        return _Plan(self._table, recipes, self._inventory).steps(self._goal)


class _Plan:
    def __init__(self, table: RecipeTable, recipes: Mapping[str, Recipe], inventory: Items) -> None:
        self._table = table
        self._recipes = recipes
        self._stock = dict(inventory)
        self._gets: dict[str, int] = {}
        self._crafts: list[CraftStep] = []

    def steps(self, goal: str) -> list[CraftStep]:
        self._make(goal)
        gets = [CraftStep(f"get {count} {display_name(name)}", (), name, count) for name, count in self._gets.items()]
        return gets + self._crafts

    def _make(self, name: str) -> None:
        if len(self._crafts) >= MAX_CRAFTINGS:
            raise ValueError(f"the goal needs more than {MAX_CRAFTINGS} craftings")
        recipe = self._recipes[name]
        used = [(self._reserve(ingredient, count), count) for ingredient, count in recipe.ingredients]
        self._crafts.append(CraftStep(craft_command(recipe, used), used, recipe.output, recipe.count))
        self._stock[recipe.output] = self._stock.get(recipe.output, 0) + recipe.count

    def _reserve(self, name: str, count: int) -> str:
        held = (item for item, n in self._stock.items() if n >= count and self._table.accepts(name, item))
        item = next(held, None)
        if item is None and name in self._recipes:
            item = self._recipes[name].output
            while self._stock.get(item, 0) < count:
                self._make(name)
        elif item is None:
            item = name
            self._gets[item] = self._gets.get(item, 0) + count - self._stock.get(item, 0)
            self._stock[item] = count
        self._stock[item] -= count
        return item


class ListingPlanner:
    """Planner that reads the goal and the recipes from the first observation, and the inventory from the replies.

    The list does not mark tags. A name is taken for a tag if it is one in Minecraft, or if the server does not provide
    it as an item; its members are the listed outputs that end with the name.
    """

    def __init__(self) -> None:
        self._goal = ""
        self._recipes: dict[str, list[Recipe]] = {}
        self._tags: set[str] = set()
        self._inventory: dict[str, int] = {}
        self._planner: TextCraftOracle
        self._last: CraftStep

    def start(self, observation: str) -> None:
        """Raises ``AgentFault`` if the text has no goal with a recipe, or its recipes cannot be planned with."""
        goal = _GOAL.search(observation)
        rows = _RECIPE.findall(observation)
        self._recipes, self._inventory = {}, {}
        for count, output, ingredients in rows[:MAX_RECIPES]:
            matches = map(_AMOUNT.fullmatch, ingredients.split(", "))
            amounts = tuple((item_id(match[2]), int(match[1])) for match in matches if match)
            recipe = Recipe(item_id(output), int(count), amounts)
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
        self._last = self._planner.next_step()
        return self._last.text

    def observe(self, observation: str) -> str:
        """Return the expected reply; raises ``AgentFault`` if no plan is possible after the reply."""
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
        recipes = [recipe for same in self._recipes.values() for recipe in same]
        names = {name for recipe in recipes for name in (recipe.output, *dict(recipe.ingredients))}
        try:
            table = RecipeTable(self._recipes, members, makers, names)
            self._planner = TextCraftOracle(table, self._goal, self._inventory)
        except (ValueError, RecursionError) as exc:
            raise AgentFault(f"The oracle cannot plan with the listed crafting commands: {exc}") from exc
