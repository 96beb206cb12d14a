"""A task: what is to be crafted, and which commands are shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from runner.envs.textcraft.recipes import Recipe, Table, spoken

MAX_DISTRACTORS = 10


class Task(msgspec.Struct, frozen=True):
    """The goal, the recipes that may lead to it, and all listed ones in the order of the listing."""

    goal: str
    tree: Sequence[Recipe]
    listed: Sequence[Recipe]

    @property
    def observation(self) -> str:
        """The first observation."""
        commands = "\n".join(recipe.command for recipe in self.listed)
        return f"Crafting commands:\n{commands}\n\nGoal: craft {spoken(self.goal)}."


def make_task(table: Table, task_index: int) -> Task:
    """Task ``task_index`` of a table: its goals in order, so the first ones take the fewest levels of crafting."""
    goal = table.goals[task_index]
    tree = table.tree(goal)
    known = frozenset(tree)
    ingredients = dict.fromkeys(name for recipe in tree for name, _ in recipe.ingredients)
    related = dict.fromkeys(recipe for name in ingredients for recipe in table.uses[name])
    distractors = _shuffled((recipe for recipe in related if recipe not in known), task_index)[:MAX_DISTRACTORS]
    return Task(goal, tree, _shuffled([*tree, *distractors], task_index))


def _shuffled(recipes: Iterable[Recipe], seed: int) -> list[Recipe]:
    """In an order that depends on the seed only: ``random.shuffle`` may change between Python versions."""
    return sorted(recipes, key=lambda recipe: hashlib.sha256(f"{seed} {recipe.command}".encode()).digest())
