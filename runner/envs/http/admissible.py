"""What can be done on servers that do not list it, as far as their texts tell; for agents that pick from a list."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CRAFTING = re.compile(r"^craft \d+ (?P<made>.+?) using (?P<used>.+)$", re.MULTILINE)
_BUTTON = "search"
"""WebShop's search bar has one, and a click on it does nothing."""


def craftings(opening: str) -> list[str]:
    """``inventory``, the crafting commands of a task of TextCraft, and getting what they take and none of them makes.

    There are more. Not all are possible at once, as that depends on what is held.
    """
    recipes = list(_CRAFTING.finditer(opening))
    made = {recipe["made"] for recipe in recipes}
    amounts = dict.fromkeys(amount for recipe in recipes for amount in recipe["used"].split(", "))
    gets = [f"get {amount}" for amount in amounts if amount.partition(" ")[2] not in made]
    return ["inventory", *gets, *(recipe[0] for recipe in recipes)]


def counts(opening: str) -> list[str] | None:
    """How many rows each table of a task of SQLGym has; None where the text names no tables."""
    names, more, _ = opening.partition(" contains tables such as ")[2].partition(". Table ")
    if not more:
        return None
    return ['SELECT count(*) FROM "{}"'.format(name.replace('"', '""')) for name in names.split(", ")]


def visits(opening: str, *, has_search_bar: bool, clickables: Iterable[str]) -> list[str]:
    """A click on each thing of WebShop's page, and where it has a search bar a search for what is wanted."""
    wanted = opening.partition("Instruction: [SEP] ")[2].partition(" [SEP] ")[0]
    searches = [f"search[{wanted}]"] if has_search_bar and wanted else []
    return searches + [f"click[{element}]" for element in clickables if element != _BUTTON]
