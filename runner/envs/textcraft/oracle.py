"""A planner that works back from the goal, recipe by recipe, and uses up what is there."""

from __future__ import annotations

from collections.abc import Mapping

from runner.envs.textcraft.crafting import Items, craft, fill
from runner.envs.textcraft.recipes import Recipe, Table, craft_command, spoken


class TextCraftOracle:
    """Gets all base items, then crafts upwards.

    The recipe for each ingredient is settled at the start, by trying one change after the other as long as the plan
    gets shorter; each action then is the first of a plan from the inventory of that moment.

    Args:
        table: the recipes.
        goal: the item to craft.
        inventory: what is held, which the episode changes.
    """

    def __init__(self, table: Table, goal: str, inventory: Items) -> None:
        self._table = table
        self._goal = goal
        self._inventory = inventory
        self._recipes = self._settled()

    def next_action(self) -> str:
        """The next ``get`` or ``craft`` command."""
        return self.plan()[0]

    def plan(self) -> list[str]:
        """All actions from here to the goal."""
        return _Plan(self._table, self._recipes, self._inventory).actions(self._goal)

    def _settled(self) -> dict[str, Recipe]:
        options = self._options()
        recipes = {name: possible[0] for name, possible in options.items()}
        trials = [(name, recipe) for name, possible in options.items() for recipe in possible[1:]]
        length, shortest = 0, self._length(recipes)
        while length != shortest:
            length = shortest
            for name, recipe in trials:
                trial = {**recipes, name: recipe}
                if (tried := self._length(trial)) < shortest:
                    recipes, shortest = trial, tried
        return recipes

    def _options(self) -> dict[str, list[Recipe]]:
        """Per crafted ingredient below the goal the recipes for it, those with the fewest levels of crafting first."""
        tree = self._table.tree(self._goal)
        names = dict.fromkeys([self._goal, *(name for recipe in tree for name, _ in recipe.ingredients)])
        options = {name: self._table.ways(name) for name in names}
        return {name: sorted(ways, key=self._table.depth_of_recipe) for name, ways in options.items() if ways}

    def _length(self, recipes: Mapping[str, Recipe]) -> int:
        return len(_Plan(self._table, recipes, self._inventory).actions(self._goal))


class _Plan:
    """The actions from one inventory with one recipe for each crafted ingredient."""

    def __init__(self, table: Table, recipes: Mapping[str, Recipe], inventory: Items) -> None:
        self._table = table
        self._recipes = recipes
        self._stock = dict(inventory)
        self._gets: dict[str, int] = {}
        self._crafts: list[str] = []

    def actions(self, goal: str) -> list[str]:
        self._make(goal, 1)
        return [f"get {count} {spoken(name)}" for name, count in self._gets.items()] + self._crafts

    def _make(self, name: str, needed: int) -> None:
        """Put at least ``needed`` more of an item, or of a member of a generic name, into the stock."""
        recipe = self._recipes[name]
        times = -(-needed // recipe.count)
        reserved: dict[str, int] = {}
        for ingredient, count in recipe.ingredients:
            self._reserve(ingredient, count * times, reserved)
        for _ in range(times):
            used = fill(self._table, recipe, reserved) or {}  # never None: all of it is reserved
            self._crafts.append(craft_command(recipe, used))
            craft(reserved, recipe, used)
        self._stock[recipe.output] = self._stock.get(recipe.output, 0) + reserved[recipe.output]

    def _reserve(self, name: str, needed: int, reserved: dict[str, int]) -> None:
        """Move ``needed`` of an ingredient from the stock to what is reserved, after adding what the stock lacks.

        What the plan itself adds is taken before anything else that serves. So one action later, when part of it is
        there, the next plan takes the same.
        """
        own = name if name in self._table.base else self._recipes[name].output
        serving = [own, *(item for item in self._stock if item in self._table.generics.get(name, ()) and item != own)]
        missing = needed - sum(self._stock.get(item, 0) for item in serving)
        if missing > 0 and name in self._table.base:
            self._gets[name] = self._gets.get(name, 0) + missing
            self._stock[name] = self._stock.get(name, 0) + missing
        elif missing > 0:
            self._make(name, missing)
        for item in serving:
            taken = min(needed, self._stock.get(item, 0))
            if taken:
                self._stock[item] -= taken
                reserved[item] = reserved.get(item, 0) + taken
                needed -= taken
