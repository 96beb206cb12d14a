"""Reader of AgentGym's recipe folder, which holds recipe files of Minecraft 1.16.

Recipes are selected as in ``agentenv-textcraft/agentenv_textcraft/crafting_tree.py``, in the order in which the
operating system lists the folder: that order decides the numbers of the goals and which recipe of a cycle is left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from runner.envs.data_labels import TEXTCRAFT_VARIABLE
from runner.envs.textcraft.recipes import Recipe, RecipeTable, shipped_table
from runner.errors import ConfigError, StoreError
from runner.util.files import read_file

RECIPES_FOLDER = "recipes"
_NAMESPACE = "minecraft:"
_SHAPED, _SHAPELESS = "minecraft:crafting_shaped", "minecraft:crafting_shapeless"


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
    """Return the recipes of AgentGym's folder ``agentenv_textcraft``, or the shipped recipes if ``folder`` is None.

    Raises:
        ConfigError: if the folder has no crafting recipes, a file is not a recipe, or an item is needed to make itself.
    """
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
        amounts = tuple(self._shaped(file) if shaped else self._shapeless(file))
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

    def _shaped(self, file: _RecipeFile) -> Iterator[tuple[str, int]]:
        for key, choice in file.key.items():
            yield self._name(choice), sum(line.count(key) for line in file.pattern)

    def _shapeless(self, file: _RecipeFile) -> Iterator[tuple[str, int]]:
        yield from Counter(map(self._name, file.ingredients)).items()

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
