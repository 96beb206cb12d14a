"""TextCraft: craft a Minecraft item from base items, given a list of recipes with distractors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any, ClassVar

import msgspec

from runner.envs.base import DataLabel, EmbeddedEnvironment, Grammar, StepText, command, data_folder
from runner.envs.textcraft.oracle import ListingPlanner, TextCraftOracle
from runner.envs.textcraft.recipes import (
    COUNT,
    IngredientFormatError,
    RecipeTable,
    Task,
    apply_crafting,
    choose_ingredients,
    craft_command,
    display_name,
    has_items,
    has_total,
    item_id,
    make_task,
    matching_recipe,
    parse_ingredients,
    recipe_table,
)
from runner.types import Action, CellRow, CellRun, Cells, InvalidAction, Mode
from runner.types.cells import CellColor

__all__ = ["ListingPlanner", "TextCraft", "TextCraftOracle"]

_MAX_DEPTH = 8
_MAX_NODES = 48
_WIDTH = 76


def draw_tree(table: RecipeTable, task: Task, inventory: Mapping[str, int]) -> Cells:
    """The amounts are those of one crafting."""
    shown = _Tree(table, inventory)
    goal = shown.node(task.goal, 1, "", "")
    rows = [goal, *shown.below(task.goal, "", 0)]
    held = ", ".join(f"{count} {display_name(name)}" for name, count in inventory.items())
    lines = wrap(f"Held: {held or 'nothing'}", _WIDTH, max_lines=6, placeholder=" …")
    legend = (CellRun("✓", "green"), CellRun(" held  "), CellRun("◐", "yellow"), CellRun(" too few  · none", "dim"))
    return Cells([*rows, (), *((CellRun(line),) for line in lines), legend])


class _Tree:
    def __init__(self, table: RecipeTable, inventory: Mapping[str, int]) -> None:
        self._table = table
        self._inventory = inventory
        self._expanded: set[str] = set()
        self._n_nodes = 1

    def below(self, name: str, indent: str, depth: int) -> Iterator[CellRow]:
        """Yield the ingredients of the first recipe of an item, and theirs; each item is expanded once."""
        ways = self._table.ways(name)
        if not ways or name in self._expanded or depth >= _MAX_DEPTH:
            return
        self._expanded.add(name)
        last = len(ways[0].ingredients) - 1
        for number, (part, count) in enumerate(ways[0].ingredients):
            self._n_nodes += 1
            if self._n_nodes > _MAX_NODES:
                return
            note = "" if self._table.ways(part) else "  get"
            yield self.node(part, count, f"{indent}{'└─' if number == last else '├─'} ", note)
            yield from self.below(part, f"{indent}{'  ' if number == last else '│ '} ", depth + 1)

    def node(self, name: str, needed: int, indent: str, note: str) -> CellRow:
        accepts = self._table.accepts
        held = sum(count for item, count in self._inventory.items() if accepts(name, item))
        mark, color = _mark(held, needed)
        return (
            CellRun(indent, "dim"),
            CellRun(f"{mark} ", color),
            CellRun(f"{display_name(name)} ", color if color != "dim" else "plain"),
            CellRun(f"{held}/{needed}", "dim"),
            CellRun(note, "cyan"),
        )


def _mark(held: int, needed: int) -> tuple[str, CellColor]:
    if held >= needed:
        return "✓", "green"
    return ("◐", "yellow") if held else ("·", "dim")


_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}


def _text(description: str) -> tuple[str, dict[str, Any]]:
    return ".*", {"type": "string", "description": description}


_GRAMMAR = Grammar(
    [
        command(
            "get {count} {item}",
            "Take items from the world. Only what cannot be crafted can be had this way.",
            {"count": (COUNT, _COUNT), "item": _text('As in "oak logs".')},
        ),
        command(
            "craft {count} {item} using {ingredients}",
            "Carry out one of the crafting commands once, with items you hold.",
            {
                "count": (COUNT, {**_COUNT, "description": "How many one crafting makes; the recipe decides."}),
                "item": _text('As in "oak sign".'),
                "ingredients": _text('Exactly what the recipe asks for, as in "6 oak planks, 1 stick".'),
            },
        ),
        command("inventory", "List the items you hold."),
    ],
    expected="get <count> <item>, craft <count> <item> using <count> <item>, <count> <item> …, or inventory",
    anchor="start",
)
_UNCOUNTED = re.compile(rf"\Acraft (?!{COUNT} .* using )")


class TextCraft(EmbeddedEnvironment):
    """Craft one item of Minecraft 1.16 from base items; success gives 1 and ends the episode.

    The first observation lists every recipe that may contribute to the goal, and up to ten distractors, which share an
    ingredient with one of these recipes. An item with a recipe cannot be taken with ``get``. A tag with a member that
    can be crafted, such as planks, accepts any one of its members; every other tag, such as oak logs, is an item of
    that name. One command is one crafting; the recipe determines how many items are made, whatever the given count. A
    text is matched at its beginning only. There is no step limit.

    The recipes are those of ``data/textcraft``, or AgentGym's own if ``AGENTENV_TEXTCRAFT_PATH`` names its folder
    ``agentenv_textcraft``; the goals are then in AgentGym's order.

    The texts are those of AgentGym's ``agentenv-textcraft/agentenv_textcraft/environment.py``. ``compat`` keeps two
    quirks of that server: steps after the end of the episode are executed, and some texts show the server's internal
    form of an item.
    """

    name: ClassVar[str] = "TextCraft"
    data_label = DataLabel("textcraft")
    grammar = _GRAMMAR
    steps_after_end = True

    def __init__(self, *, mode: Mode = "strict") -> None:
        super().__init__(mode=mode)
        self._table = recipe_table(data_folder(self.name))
        self.n_tasks = len(self._table.goals)
        self.inventory: dict[str, int] = {}
        """Item -> count, in order of acquisition."""
        self._task: Task

    def parse(self, text: str) -> Action | InvalidAction:
        """A text ``craft stick using …`` without a count means one stick."""
        parsed = super().parse(_UNCOUNTED.sub("craft 1 ", text))
        return msgspec.structs.replace(parsed, text=text)

    def admissible_actions(self) -> list[str]:
        table = self._table
        amounts = dict.fromkeys(amount for recipe in self._task.tree for amount in recipe.ingredients)
        gets = [f"get {count} {display_name(name)}" for name, count in amounts if name in table.base]
        filled = ((recipe, choose_ingredients(table, recipe, self.inventory)) for recipe in self._task.listed)
        return ["inventory", *gets, *(craft_command(recipe, used) for recipe, used in filled if used)]

    def oracle(self, seed: int | None) -> TextCraftOracle:
        return TextCraftOracle(self._table, self._task.goal, self.inventory)

    def render_cells(self) -> Cells:
        return draw_tree(self._table, self._task, self.inventory)

    def _reset(self, task_index: int) -> str:
        self._task = make_task(self._table, task_index)
        self.inventory = {}
        return self._task.observation

    def _step(self, text: str) -> StepText:
        parsed = self.parse(text)
        if isinstance(parsed, InvalidAction):
            return f"Could not execute {text}", 0.0, False
        call = parsed.tool_calls[0]
        arguments = json.loads(call.arguments)
        match call.name:
            case "get":
                return self._get(**arguments), 0.0, False
            case "craft":
                return self._craft(**arguments)
            case _:
                held = "".join(f"[{display_name(name)}] ({count}) " for name, count in self.inventory.items())
                return f"Inventory: {held or 'You are not carrying anything.'}", 0.0, False

    def _get(self, count: int, item: str) -> str:
        name = item_id(item)
        if name not in self._table.base:
            return f"Could not find {item}"
        apply_crafting(self.inventory, (), name, count)
        return f"Got {count} {item}"

    def _craft(self, count: int, item: str, ingredients: str) -> StepText:
        output = item_id(item)
        try:
            amounts = parse_ingredients(ingredients)
        except IngredientFormatError as exc:
            return f"Wrong item format: {exc}", 0.0, False
        # AgentGym prints the item id, which a tag does not have
        is_quirk = self.mode == "compat" and output in self._table.tags
        too_few = f"Could not find enough items to craft {'None' if is_quirk else f'minecraft:{output}'}", 0.0, False
        if not has_items(self._table, self.inventory, amounts):
            return too_few
        recipe = matching_recipe(self._table, output, amounts)
        if recipe is None:
            return f"Could not find a valid recipe for {self._recipe_name(count, output)}", 0.0, False
        if not has_total(self.inventory, amounts):
            return too_few
        apply_crafting(self.inventory, amounts, output, recipe.count)
        done = output == self._task.goal
        return f"Crafted {recipe.count} minecraft:{output}", float(done), done

    def _recipe_name(self, count: int, output: str) -> str:
        # AgentGym prints the dataclass of the output
        name = f"minecraft:{output}"
        if self.mode == "strict":
            return name
        tag, item = (name, None) if output in self._table.tags else (None, name)
        return f"ItemTagWithCount(item_tag=ItemTag(tag={tag!r}, item_id={item!r}), count={count})"
