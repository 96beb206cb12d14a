"""Rules for crafting from an inventory, a dict of item -> count in the order of acquisition.

The rules follow AgentGym's ``agentenv-textcraft/agentenv_textcraft/crafting_tree.py`` and ``environment.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from runner.envs.textcraft.recipes import Recipe, RecipeTable

Items: TypeAlias = Mapping[str, int]

COUNT = "[1-9][0-9]{0,8}"
"""Pattern of a count with at most nine digits, to keep numbers small."""

_ITEMS = re.compile(rf"(?P<count>{COUNT}) (?P<item>.+)")


class IngredientFormatError(ValueError):
    """Raised for a part of an ingredient list that is not ``<count> <item>``."""

    published_error_type = "WrongFormat"


def item_id(text: str) -> str:
    """Return the item id for a name in a command; the item need not exist."""
    return text.replace(" ", "_")


def parse_ingredients(text: str) -> dict[str, int]:
    """Parse an ingredient list such as ``2 oak planks, 1 stick``; counts of a repeated item are added.

    Raises:
        IngredientFormatError: with the first invalid part as its message.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        match = _ITEMS.fullmatch(part.strip())
        if match is None:
            raise IngredientFormatError(part.strip())
        item = item_id(match["item"])
        counts[item] = counts.get(item, 0) + int(match["count"])
    return counts


def has_items(inventory: Items, needed: Items) -> bool:
    """Return whether an inventory contains all of ``needed``."""
    return all(inventory.get(item, 0) >= count for item, count in needed.items())


def choose_ingredients(table: RecipeTable, recipe: Recipe, stock: Items) -> dict[str, int] | None:
    """Choose items from ``stock`` for one crafting of a recipe; None if the items do not suffice.

    Different members of a generic ingredient may be mixed.
    """
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


def matching_recipe(table: RecipeTable, output: str, items: Items) -> Recipe | None:
    """Return the recipe that makes ``output`` from exactly the given items, None if there is none."""
    return next(
        (recipe for recipe in table.recipes.get(output, ()) if choose_ingredients(table, recipe, items) == items), None
    )


def apply_crafting(inventory: dict[str, int], used: Items, item: str, count: int) -> None:
    """Remove ``used`` from the inventory and add ``count`` of ``item``."""
    for name, taken in used.items():
        inventory[name] -= taken
        if not inventory[name]:
            del inventory[name]
    inventory[item] = inventory.get(item, 0) + count
