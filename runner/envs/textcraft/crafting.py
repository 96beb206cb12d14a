"""The rules of crafting with an inventory: a dict of items and how many, in the order in which they came."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from runner.envs.textcraft.recipes import Recipe, RecipeTable

Items: TypeAlias = Mapping[str, int]

COUNT = "[1-9][0-9]{0,8}"
"""How counts are written; longer ones are not understood, so that no number can grow out of hand."""

_ITEMS = re.compile(rf"(?P<count>{COUNT}) (?P<item>.+)")


class IngredientFormatError(ValueError):
    """A part of an ingredient list that is not ``<count> <item>``."""


def item_id(text: str) -> str:
    """The item that a command's words name, without saying whether there is one."""
    return text.replace(" ", "_")


def parse_ingredients(text: str) -> dict[str, int]:
    """Read an ingredient list such as ``2 oak planks, 1 stick``; an item named twice is added up.

    Raises:
        WrongFormat: with the first part that cannot be read.
    """
    given: dict[str, int] = {}
    for part in text.split(","):
        match = _ITEMS.fullmatch(part.strip())
        if match is None:
            raise IngredientFormatError(part.strip())
        item = item_id(match["item"])
        given[item] = given.get(item, 0) + int(match["count"])
    return given


def has_items(inventory: Items, needed: Items) -> bool:
    """Whether an inventory has all of ``needed``."""
    return all(inventory.get(item, 0) >= count for item, count in needed.items())


def choose_ingredients(table: RecipeTable, recipe: Recipe, stock: Items) -> dict[str, int] | None:
    """Items out of ``stock`` for one crafting, or None; different members may share a generic ingredient."""
    taken: dict[str, int] = {}
    for name, count in recipe.ingredients:
        accepted = table.generics.get(name, (name,))
        for item in [item for item in stock if item in accepted]:
            taken[item] = min(count, stock[item])
            count -= taken[item]
            if not count:
                break
        if count:
            return None
    return taken


def matching_recipe(table: RecipeTable, output: str, given: Items) -> Recipe | None:
    """The recipe that makes ``output`` of exactly the given items."""
    return next(
        (recipe for recipe in table.recipes.get(output, ()) if choose_ingredients(table, recipe, given) == given), None
    )


def apply_crafting(inventory: dict[str, int], used: Items, item: str, count: int) -> None:
    """Take ``used``, which the inventory holds, and put in ``count`` of ``item``."""
    for name, taken in used.items():
        inventory[name] -= taken
        if not inventory[name]:
            del inventory[name]
    inventory[item] = inventory.get(item, 0) + count
