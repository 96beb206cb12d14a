"""Rules for crafting from an inventory, a dict of item -> count in the order of acquisition.

The rules follow AgentGym's ``agentenv-textcraft/agentenv_textcraft/crafting_tree.py`` and ``environment.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from runner.envs.textcraft.recipes import Amounts, Recipe, RecipeTable

Items: TypeAlias = Mapping[str, int]

COUNT = "[0-9]{1,4000}"
"""Pattern of a count. Python converts at most 4,300 digits, which sums of such counts do not reach in an episode."""

_AMOUNT = re.compile(rf"(?P<count>{COUNT}) (?P<item>.*)")


class IngredientFormatError(ValueError):
    """Raised for a part of an ingredient list that is not ``<count> <item>``."""

    published_error_type = "WrongFormat"


def item_id(text: str) -> str:
    """Return the item id for a name in a command; the item need not exist."""
    return text.replace(" ", "_")


def parse_ingredients(text: str) -> Amounts:
    """Parse an ingredient list such as ``2 oak planks, 1 stick``.

    Raises:
        IngredientFormatError: with the first invalid part as its message.
    """
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
    """Return the recipe that makes ``output`` from exactly the given amounts, None if there is none."""
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
    """Remove ``used`` from the inventory and add ``count`` of ``item``."""
    for name, taken in used:
        inventory[name] -= taken
    for name, _ in used:
        if not inventory.get(name, 1):
            del inventory[name]
    inventory[item] = inventory.get(item, 0) + count
