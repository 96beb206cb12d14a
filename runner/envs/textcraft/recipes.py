"""Recipe table without cycles, and the tasks made from the table: ``RecipeTable``, ``Task`` and ``make_task``.

The tasks have the form of AgentGym's ``agentenv-textcraft/agentenv_textcraft/environment.py``. The goals are sorted,
while AgentGym's order depends on the order of the files in its recipe folder.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property

import msgspec

from runner.util.package_data import package_resource


class Recipe(msgspec.Struct, frozen=True, dict=True, cache_hash=True):
    """One crafting: makes ``count`` of ``output`` from ``(item or generic name, count)`` ingredients."""

    output: str
    count: int
    ingredients: tuple[tuple[str, int], ...]

    @cached_property
    def command(self) -> str:
        """Command by which observations list the recipe, e.g. ``craft 4 stick using 2 planks``."""
        return craft_command(self, dict(self.ingredients))


class RecipeFile(msgspec.Struct, frozen=True):
    """Content of the shipped ``recipes.json``.

    A row of ``recipes`` is ``[output, count, {ingredient: n}]``. An ingredient ``a|b`` stands for two recipes, one with
    ``a`` and one with ``b``.
    """

    source: str
    generics: dict[str, tuple[str, ...]]
    recipes: list[tuple[str, int, dict[str, int]]]


class RecipeTable:
    """Immutable set of recipes in which every output can be crafted.

    Recipes are added in the order of the file. Left out are recipes that unpack a single ``*_block``, and recipes that
    would close a cycle, such as gold nuggets from an ingot that is made of gold nuggets.
    """

    def __init__(self, source: RecipeFile) -> None:
        """Select the recipes of ``source``."""
        self._members = source.generics
        chosen: dict[str, list[Recipe]] = {}
        for recipe in itertools.chain.from_iterable(map(_alternatives, source.recipes)):
            if not _unpacks_a_block(recipe) and not self._closes_a_cycle(recipe, chosen):
                chosen.setdefault(recipe.output, []).append(recipe)
        self.recipes: Mapping[str, Sequence[Recipe]] = chosen
        self.base = frozenset(filter(self._is_base, _names(source)))
        """Items that need no crafting: those without a recipe, and generic names without a crafted member."""

    @cached_property
    def generics(self) -> Mapping[str, frozenset[str]]:
        """Generic name -> accepted names: its members, and base items that are generic names of some members."""
        return {
            name: frozenset(members).union(
                other for other, narrower in self._members.items() if other in self.base and {*narrower} <= {*members}
            )
            for name, members in self._members.items()
        }

    @cached_property
    def goals(self) -> Sequence[str]:
        """All items with a recipe, sorted by number of crafting levels, then by name."""
        return tuple(sorted(self.recipes, key=lambda item: (self._depth(item), item)))

    @cached_property
    def uses(self) -> Mapping[str, Sequence[Recipe]]:
        """Ingredient -> recipes that use the ingredient."""
        uses: dict[str, list[Recipe]] = defaultdict(list)
        for recipe in itertools.chain.from_iterable(self.recipes.values()):
            for name, _ in recipe.ingredients:
                uses[name].append(recipe)
        return dict(uses)

    def ways(self, name: str) -> list[Recipe]:
        """Return the recipes that make an ingredient or a member of a generic name; empty for base items."""
        makers = () if name in self.base else self._members.get(name, (name,))
        return [recipe for item in makers for recipe in self.recipes.get(item, ())]

    def depth_of_recipe(self, recipe: Recipe) -> int:
        """Return the minimum number of crafting levels of a recipe, including the recipe itself."""
        return 1 + max(self._depth(name) for name, _ in recipe.ingredients)

    def tree(self, goal: str) -> list[Recipe]:
        """Return every recipe that may contribute to making ``goal``."""
        tree = dict.fromkeys(self.ways(goal))
        pending = list(tree)
        for recipe in pending:
            new = dict.fromkeys(way for name, _ in recipe.ingredients for way in self.ways(name) if way not in tree)
            tree.update(new)
            pending.extend(new)
        return pending

    def _closes_a_cycle(self, recipe: Recipe, chosen: Mapping[str, Sequence[Recipe]]) -> bool:
        """Return whether an ingredient of the recipe, or a member of one, is itself made from the recipe's output."""
        pending = [name for name, _ in recipe.ingredients]
        visited = set(pending)
        for name in pending:
            below = [used for other in chosen.get(name, ()) for used, _ in other.ingredients]
            new = {*below, *self._members.get(name, ())} - visited
            visited |= new
            pending.extend(new)
        return recipe.output in visited

    def _is_base(self, name: str) -> bool:
        members = self._members.get(name)
        if members is None:
            return name not in self.recipes
        needed = {used for item in members for recipe in self.recipes.get(item, ()) for used, _ in recipe.ingredients}
        return needed <= {*members}

    def _depth(self, name: str) -> int:
        return min(map(self.depth_of_recipe, self.ways(name)), default=0)


def craft_command(recipe: Recipe, ingredients: Mapping[str, int]) -> str:
    """Return the command that crafts ``recipe`` once from the given ingredients."""
    using = ", ".join(f"{count} {display_name(name)}" for name, count in ingredients.items())
    return f"craft {recipe.count} {display_name(recipe.output)} using {using}"


def display_name(name: str) -> str:
    """Return an item's name in observations and commands."""
    return name.replace("_", " ")


@cache
def shipped_table() -> RecipeTable:
    """Return the table of ``data/textcraft/recipes.json``, read once per process."""
    text = package_resource("data", "textcraft", "recipes.json").read_bytes()
    return RecipeTable(msgspec.json.decode(text, type=RecipeFile))


def _names(source: RecipeFile) -> set[str]:
    names = {name for _, _, ingredients in source.recipes for places in ingredients for name in places.split("|")}
    return names.union((output for output, _, _ in source.recipes), *source.generics.values())


def _alternatives(row: tuple[str, int, dict[str, int]]) -> Iterator[Recipe]:
    output, count, ingredients = row
    for names in itertools.product(*(name.split("|") for name in ingredients)):
        yield Recipe(output, count, tuple(zip(names, ingredients.values(), strict=True)))


def _unpacks_a_block(recipe: Recipe) -> bool:
    return len(recipe.ingredients) == 1 and recipe.ingredients[0][0].endswith("_block")


MAX_DISTRACTORS = 10


class Task(msgspec.Struct, frozen=True):
    """A task: the goal, the recipes that may contribute to the goal, and all listed recipes in display order."""

    goal: str
    tree: Sequence[Recipe]
    listed: Sequence[Recipe]

    @property
    def observation(self) -> str:
        """First observation."""
        commands = "\n".join(recipe.command for recipe in self.listed)
        return f"Crafting commands:\n{commands}\n\nGoal: craft {display_name(self.goal)}."


def make_task(table: RecipeTable, task_index: int) -> Task:
    """Return a task by its index; tasks are in the order of ``RecipeTable.goals``."""
    goal = table.goals[task_index]
    tree = table.tree(goal)
    in_tree = frozenset(tree)
    ingredients = dict.fromkeys(name for recipe in tree for name, _ in recipe.ingredients)
    related = dict.fromkeys(recipe for name in ingredients for recipe in table.uses[name])
    distractors = _shuffled((recipe for recipe in related if recipe not in in_tree), task_index)[:MAX_DISTRACTORS]
    return Task(goal, tree, _shuffled([*tree, *distractors], task_index))


def _shuffled(recipes: Iterable[Recipe], seed: int) -> list[Recipe]:
    # by digest, because random.shuffle may change between Python versions
    return sorted(recipes, key=lambda recipe: hashlib.sha256(f"{seed} {recipe.command}".encode()).digest())
