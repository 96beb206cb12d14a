"""Recipes, shipped or of AgentGym's folder, the tasks made from them, and the rules for crafting from an inventory.

An inventory is a dict of item -> count in the order of acquisition. All follows AgentGym's
``agentenv-textcraft/agentenv_textcraft/crafting_tree.py`` and ``environment.py``. In AgentGym's folder, the order in
which the operating system lists the files decides the numbers of the goals and which recipe of a cycle is left out.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeAlias

import msgspec

from runner.envs.base import TEXTCRAFT_VARIABLE
from runner.errors import ConfigError, StoreError
from runner.util.files import package_resource, read_file

Amounts: TypeAlias = Sequence[tuple[str, int]]
"""``(item or tag, count)`` pairs."""
Items: TypeAlias = Mapping[str, int]

MAX_DISTRACTORS = 10
COUNT = "[0-9]{1,4000}"
"""Pattern of a count. Python converts at most 4,300 digits, which sums of such counts do not reach in an episode."""
RECIPES_FOLDER = "recipes"
_AMOUNT = re.compile(rf"(?P<count>{COUNT}) (?P<item>.*)")
_NAMESPACE = "minecraft:"
_SHAPED, _SHAPELESS = "minecraft:crafting_shaped", "minecraft:crafting_shapeless"


class Recipe(msgspec.Struct, frozen=True, dict=True, cache_hash=True):
    """One crafting: makes ``count`` of ``output`` from the ingredients, which are items or tags."""

    output: str
    count: int
    ingredients: tuple[tuple[str, int], ...]

    @cached_property
    def command(self) -> str:
        return craft_command(self, self.ingredients)

    @property
    def unpacks_a_block(self) -> bool:
        """Whether the only ingredient is a ``*_block``; such a recipe reverses the one that makes the block."""
        return len(self.ingredients) == 1 and self.ingredients[0][0].endswith("_block")


class RecipeFile(msgspec.Struct, frozen=True):
    """Content of the shipped ``recipes.json``.

    A row of ``recipes`` is ``[output, count, {ingredient: n}]``. An ingredient ``a|b`` stands for two recipes, one with
    ``a`` and one with ``b``. ``generics`` are the tags with members that can be crafted.
    """

    source: str
    generics: dict[str, tuple[str, ...]]
    recipes: list[tuple[str, int, dict[str, int]]]


class RecipeTable:
    """Immutable set of recipes without cycles; raises ``ValueError`` if an item is needed to make itself.

    A tag is a set of items that a recipe accepts in place of each other. A name is treated as a tag only if one of its
    members can be crafted; otherwise it is an item of that name, which ``get`` provides.

    Args:
        members: tag -> items that the tag accepts.
        groups: further names that are not items, such as groups of recipes that no recipe accepts.
    """

    def __init__(
        self,
        recipes: Mapping[str, Sequence[Recipe]],
        members: Mapping[str, Iterable[str]],
        makers: Mapping[str, Sequence[Recipe]],
        items: Iterable[str],
        groups: Iterable[str] = (),
    ) -> None:
        self.recipes = recipes
        self.members = {tag: frozenset(accepted) for tag, accepted in members.items()}
        self.tags = frozenset((*self.members, *groups))
        self._makers = makers
        self.base = frozenset(items) - self.tags - recipes.keys() - makers.keys()
        """Items that need no crafting."""
        self._depths: dict[str, int] = {}
        below = {name: {part for way in self.ways(name) for part, _ in way.ingredients} for name in (*recipes, *makers)}
        try:
            for name in TopologicalSorter(below).static_order():
                self._depths[name] = min(map(self.depth_of_recipe, self.ways(name)), default=0)
        except CycleError as exc:
            raise ValueError(f"{display_name(exc.args[1][0])} is needed to make itself") from exc

    @cached_property
    def goals(self) -> Sequence[str]:
        """All items with a recipe, sorted by number of crafting levels, then in the order of ``recipes``."""
        return tuple(sorted(self.recipes, key=self._depth))

    @cached_property
    def uses(self) -> Mapping[str, Sequence[Recipe]]:
        uses: dict[str, list[Recipe]] = defaultdict(list)
        for recipe in itertools.chain.from_iterable(self.recipes.values()):
            for name, _ in recipe.ingredients:
                uses[name].append(recipe)
        return dict(uses)

    def accepts(self, ingredient: str, item: str) -> bool:
        return item == ingredient or item in self.members.get(ingredient, ())

    def ways(self, name: str) -> Sequence[Recipe]:
        """Empty for base items."""
        return self.recipes.get(name) or self._makers.get(name) or ()

    def depth_of_recipe(self, recipe: Recipe) -> int:
        """The minimum number of crafting levels, including the recipe itself."""
        return 1 + max((self._depth(name) for name, _ in recipe.ingredients), default=0)

    def tree(self, goal: str) -> list[Recipe]:
        """Return every recipe that may contribute to making ``goal``."""
        tree = dict.fromkeys(self.ways(goal))
        pending = list(tree)
        for recipe in pending:
            new = dict.fromkeys(way for name, _ in recipe.ingredients for way in self.ways(name) if way not in tree)
            tree.update(new)
            pending.extend(new)
        return pending

    def _depth(self, name: str) -> int:
        return self._depths.get(name, 0)


def craft_command(recipe: Recipe, ingredients: Amounts) -> str:
    using = ", ".join(f"{count} {display_name(name)}" for name, count in ingredients)
    return f"craft {recipe.count} {display_name(recipe.output)} using {using}"


def display_name(name: str) -> str:
    return name.replace("_", " ")


@cache
def shipped_table() -> RecipeTable:
    text = package_resource("data", "textcraft", "recipes.json").read_bytes()
    return select_recipes(msgspec.json.decode(text, type=RecipeFile))


def select_recipes(source: RecipeFile) -> RecipeTable:
    """Left out are recipes that unpack a ``*_block`` or close a cycle, such as gold nuggets from their own ingot."""
    chosen: dict[str, list[Recipe]] = {}
    for recipe in itertools.chain.from_iterable(map(_alternatives, source.recipes)):
        if not recipe.unpacks_a_block and not _closes_a_cycle(recipe, chosen, source.generics):
            chosen.setdefault(recipe.output, []).append(recipe)
    makers = {
        tag: [recipe for item in members for recipe in chosen.get(item, ())] for tag, members in source.generics.items()
    }
    names = {name for _, _, ingredients in source.recipes for places in ingredients for name in places.split("|")}
    names |= {output for output, _, _ in source.recipes}
    return RecipeTable(chosen, source.generics, makers, names)


def _closes_a_cycle(
    recipe: Recipe, chosen: Mapping[str, Sequence[Recipe]], members: Mapping[str, Sequence[str]]
) -> bool:
    pending = [name for name, _ in recipe.ingredients]
    visited = set(pending)
    for name in pending:
        below = [used for other in chosen.get(name, ()) for used, _ in other.ingredients]
        new = {*below, *members.get(name, ())} - visited
        visited |= new
        pending.extend(new)
    return recipe.output in visited


def _alternatives(row: tuple[str, int, dict[str, int]]) -> Iterator[Recipe]:
    output, count, ingredients = row
    for names in itertools.product(*(name.split("|") for name in ingredients)):
        yield Recipe(output, count, tuple(zip(names, ingredients.values(), strict=True)))


class Task(msgspec.Struct, frozen=True):
    """A task: the goal, the recipes that may contribute to the goal, and all listed recipes in display order."""

    goal: str
    tree: Sequence[Recipe]
    listed: Sequence[Recipe]

    @property
    def observation(self) -> str:
        commands = "\n".join(recipe.command for recipe in self.listed)
        return f"Crafting commands:\n{commands}\n\nGoal: craft {display_name(self.goal)}."


def make_task(table: RecipeTable, task_index: int) -> Task:
    """Tasks are in the order of ``RecipeTable.goals``."""
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


class IngredientFormatError(ValueError):
    """Raised for a part of an ingredient list that is not ``<count> <item>``."""

    published_error_type = "WrongFormat"


def item_id(text: str) -> str:
    return text.replace(" ", "_")


def parse_ingredients(text: str) -> Amounts:
    """Parse e.g. ``2 oak planks, 1 stick``; ``IngredientFormatError`` has the first invalid part as its message."""
    amounts: list[tuple[str, int]] = []
    for part in text.split(","):
        match = _AMOUNT.match(part.strip())
        if match is None:
            raise IngredientFormatError(part.strip())
        amounts.append((item_id(match["item"]), int(match["count"])))
    return amounts


def has_items(table: RecipeTable, inventory: Items, needed: Amounts) -> bool:
    """Return whether an inventory contains each amount by itself; a tag is not an item, so no inventory contains it."""
    return all(item not in table.tags and inventory.get(item, -1) >= count for item, count in needed)


def has_total(inventory: Items, needed: Amounts) -> bool:
    """Return whether an inventory contains all of ``needed`` together."""
    totals: dict[str, int] = {}
    for item, count in needed:
        totals[item] = totals.get(item, 0) + count
    return all(inventory.get(item, 0) >= count for item, count in totals.items())


def choose_ingredients(table: RecipeTable, recipe: Recipe, stock: Items) -> Amounts | None:
    """Choose one item of ``stock`` per ingredient for one crafting; None if the items do not suffice."""
    left, chosen = dict(stock), []
    for name, count in recipe.ingredients:
        item = next((item for item in left if table.accepts(name, item) and left[item] >= count), None)
        if item is None:
            return None
        left[item] -= count
        chosen.append((item, count))
    return chosen


def matching_recipe(table: RecipeTable, output: str, amounts: Amounts) -> Recipe | None:
    if output in table.tags:
        return None
    return next((recipe for recipe in table.recipes.get(output, ()) if _matches(table, recipe, amounts)), None)


def _matches(table: RecipeTable, recipe: Recipe, amounts: Amounts) -> bool:
    # an ingredient takes the first amount of an accepted item, even if its count is wrong
    left = list(amounts)
    for name, count in recipe.ingredients:
        amount = next((amount for amount in left if table.accepts(name, amount[0])), None)
        if amount is None or amount[1] != count:
            return False
        left.remove(amount)
    return not left


def apply_crafting(inventory: dict[str, int], used: Amounts, item: str, count: int) -> None:
    for name, taken in used:
        inventory[name] -= taken
    for name, _ in used:
        if not inventory.get(name, 1):
            del inventory[name]
    inventory[item] = inventory.get(item, 0) + count


class _Ingredient(msgspec.Struct):
    item: str | None = None
    tag: str | None = None


_Choice: TypeAlias = _Ingredient | list[_Ingredient]


class _Result(msgspec.Struct):
    item: str
    count: int | None = None


class _RecipeFile(msgspec.Struct):
    """The fields of a crafting recipe's file; ``key`` and ``pattern`` of shaped, ``ingredients`` of shapeless ones."""

    result: str | _Result
    group: str | None = None
    pattern: list[str] = []
    key: dict[str, _Choice] = {}
    ingredients: list[_Choice] = []


class _Kind(msgspec.Struct):
    type: str


_DECODER = msgspec.json.Decoder(_RecipeFile)


@cache
def recipe_table(folder: str | None) -> RecipeTable:
    """Return the recipes of AgentGym's folder, the shipped ones for None; raises ``ConfigError`` for unusable ones."""
    if folder is None:
        return shipped_table()
    path = Path(folder, RECIPES_FOLDER)
    selection = _Selection()
    try:
        for name in os.listdir(path):  # noqa: PTH208 - AgentGym's order of goals is that of os.listdir
            if name.endswith(".json"):
                selection.add_file(path / name)
        table = selection.table()
    except (OSError, ValueError) as exc:
        advice = "Set it to the folder agentenv-textcraft/agentenv_textcraft of an AgentGym checkout, or unset it"
        raise ConfigError(
            f"{TEXTCRAFT_VARIABLE} is {folder!r}, whose {RECIPES_FOLDER} cannot be used: {exc}. {advice}"
        ) from exc
    if not table.goals:
        raise ConfigError(f"{TEXTCRAFT_VARIABLE} is {folder!r}, which has no crafting recipes in {RECIPES_FOLDER}")
    return table


class _Selection:
    """The recipes selected so far, with the names that AgentGym knows as items and as tags."""

    def __init__(self) -> None:
        self._recipes: dict[str, list[Recipe]] = {}
        self._makers: dict[str, list[Recipe]] = {}
        self._items: set[str] = set()
        self._tags: set[str] = set()
        self._ingredient_tags: set[str] = set()
        self._tag_of: dict[str, str] = {}
        self._made_from: dict[str, set[str]] = {}

    def add_file(self, path: Path) -> None:
        try:
            data = read_file(path)
            kind = msgspec.json.decode(data, type=_Kind).type
            if kind in (_SHAPED, _SHAPELESS):
                self._add(_DECODER.decode(data), shaped=kind == _SHAPED)
        except (StoreError, ValueError, RecursionError) as exc:
            raise ValueError(f"{path.name}: {exc}") from exc

    def table(self) -> RecipeTable:
        """A tag without a craftable member becomes an item."""
        selected = {name for same in self._recipes.values() for recipe in same for name, _ in recipe.ingredients}
        used = selected & self._ingredient_tags
        craftable = {self._tag_of[item] for item in self._recipes if item in self._tag_of}
        uncraftable = used - craftable
        members = {tag: [item for item, own in self._tag_of.items() if own == tag] for tag in used & craftable}
        return RecipeTable(
            self._recipes, members, self._makers, self._items | uncraftable, groups=self._tags - uncraftable
        )

    def _add(self, file: _RecipeFile, *, shaped: bool) -> None:
        if shaped:
            counts = ((choice, sum(line.count(key) for line in file.pattern)) for key, choice in file.key.items())
            amounts = tuple((self._name(choice), count) for choice, count in counts)
        else:
            amounts = tuple(Counter(map(self._name, file.ingredients)).items())
        result = file.result if isinstance(file.result, _Result) else _Result(file.result)
        recipe = Recipe(_plain(result.item), result.count or 1, amounts)
        if not amounts or recipe.count < 0:
            raise ValueError("a recipe needs ingredients and a positive count")
        self._items.add(recipe.output)
        if recipe.unpacks_a_block:
            return
        if file.group is not None and file.group != recipe.output:
            self._tags.add(file.group)
            self._tag_of[recipe.output] = file.group
        if not self._closes_a_cycle(recipe):
            self._recipes.setdefault(recipe.output, []).append(recipe)
            if file.group is not None:
                self._makers.setdefault(file.group, []).append(recipe)

    def _closes_a_cycle(self, recipe: Recipe) -> bool:
        """Return whether an ingredient is made from the output; if not, store what the output is made from."""
        made_from = self._made_from.setdefault(recipe.output, set())
        below = [self._made_from.get(name, set()) for name, _ in recipe.ingredients]
        if any(recipe.output in names for names in below):
            return True
        made_from.update(*below, (name for name, _ in recipe.ingredients))
        return False

    def _name(self, choice: _Choice) -> str:
        if isinstance(choice, list) and not choice:
            raise ValueError("an ingredient is an empty list")
        ingredient = choice[0] if isinstance(choice, list) else choice
        if ingredient.item is not None:
            self._items.add(_plain(ingredient.item))
            return _plain(ingredient.item)
        if ingredient.tag is None:
            raise ValueError("an ingredient has neither item nor tag")
        self._tags.add(_plain(ingredient.tag))
        self._ingredient_tags.add(_plain(ingredient.tag))
        return _plain(ingredient.tag)


def _plain(name: str) -> str:
    return name.removeprefix(_NAMESPACE)
