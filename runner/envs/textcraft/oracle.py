"""Oracle of TextCraft: plans backwards from the goal and uses items in the inventory before getting new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from runner.envs.textcraft.crafting import Items, apply_crafting
from runner.envs.textcraft.recipes import Amounts, Recipe, RecipeTable, craft_command, display_name

MAX_CRAFTINGS = 1000
"""Maximum number of craftings in a plan; AgentGym's recipes need fewer than 50."""


class CraftStep(NamedTuple):
    """An action and its effect on the inventory: ``used`` is removed, ``amount`` of ``item`` is added."""

    text: str
    used: Amounts
    item: str
    amount: int


class TextCraftOracle:
    """Planner that first gets all base items, then crafts the intermediate items and the goal.

    The recipe of each ingredient is chosen at the start by hill climbing: one recipe is changed at a time as long as
    the plan gets shorter. The oracle makes a new plan when the inventory differs from the expected one.

    Args:
        table: the recipe table.
        goal: the item to craft.
        inventory: the episode's inventory, which the environment updates.

    Raises:
        ValueError: if the goal needs more than ``MAX_CRAFTINGS`` craftings.
    """

    def __init__(self, table: RecipeTable, goal: str, inventory: Items) -> None:
        self._table = table
        self._goal = goal
        self._inventory = inventory
        self._recipes = self._choose_recipes()
        self._expected: dict[str, int] = {}
        self._steps: list[CraftStep] = []

    def next_action(self) -> str:
        """Return the next ``get`` or ``craft`` command."""
        return self.next_step().text

    def next_step(self) -> CraftStep:
        """Return the next ``get`` or ``craft`` command with its effect."""
        if self._inventory != self._expected or not self._steps:
            self._expected = dict(self._inventory)
            self._steps = self._plan(self._recipes)
        step = self._steps.pop(0)
        apply_crafting(self._expected, step.used, step.item, step.amount)
        return step

    def plan(self) -> list[str]:
        """Return all actions from the current inventory to the goal."""
        return [step.text for step in self._plan(self._recipes)]

    def _choose_recipes(self) -> dict[str, Recipe]:
        options = self._options()
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

    def _options(self) -> dict[str, list[Recipe]]:
        # recipes of each crafted ingredient, those with the fewest crafting levels first
        tree = self._table.tree(self._goal)
        names = dict.fromkeys([self._goal, *(name for recipe in tree for name, _ in recipe.ingredients)])
        options = {name: self._table.ways(name) for name in names}
        return {name: sorted(ways, key=self._table.depth_of_recipe) for name, ways in options.items() if ways}

    def _plan(self, recipes: Mapping[str, Recipe]) -> list[CraftStep]:
        return _Plan(self._table, recipes, self._inventory).steps(self._goal)


class _Plan:
    """One plan: from an inventory to the goal, with a fixed recipe for each crafted ingredient."""

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
        """Plan one crafting of an item or of a member of a tag, and add the result to the stock."""
        if len(self._crafts) >= MAX_CRAFTINGS:
            raise ValueError(f"the goal needs more than {MAX_CRAFTINGS} craftings")
        recipe = self._recipes[name]
        used = [(self._reserve(ingredient, count), count) for ingredient, count in recipe.ingredients]
        self._crafts.append(CraftStep(craft_command(recipe, used), used, recipe.output, recipe.count))
        self._stock[recipe.output] = self._stock.get(recipe.output, 0) + recipe.count

    def _reserve(self, name: str, count: int) -> str:
        """Remove an ingredient from the stock, after planning to get or craft what is missing; return the item."""
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
