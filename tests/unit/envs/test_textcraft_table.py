from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.envs.textcraft import TextCraft
from runner.envs.textcraft.recipes import Recipe, RecipeFile, RecipeTable, select_recipes, shipped_table
from runner.util.files import package_resource
from scripts.build_textcraft_data import derive, main, render

NAMES = ("oak_planks", "spruce_planks", "chest", "poppy", "tulip", "dye", "door")
ITEMS = [{"id": number, "name": name} for number, name in enumerate(NAMES)]
RECIPES: dict[str, list[dict[str, Any]]] = {
    "6": [{"inShape": [[0, 0], [None, 0]], "result": {"id": 6, "count": 3}}],
    "2": [{"inShape": [[plank, plank], [plank, plank]], "result": {"id": 2, "count": 1}} for plank in (1, 0)],
    "5": [
        {"ingredients": [4], "result": {"id": 5, "count": 1}},
        {"ingredients": [3], "result": {"id": 5, "count": 1}},
        {"ingredients": [3, 4], "result": {"id": 5, "count": 2}},
    ],
}
DERIVED = """{
"source": "npm minecraft-data 3.117.0 (MIT), pc/1.16.2",
"generics": {
"planks": ["oak_planks", "spruce_planks"]
},
"recipes": [
["chest", 1, {"planks": 4}],
["door", 3, {"oak_planks": 3}],
["dye", 1, {"poppy|tulip": 1}],
["dye", 2, {"poppy": 1, "tulip": 1}]
]
}
"""


def recipe_file() -> RecipeFile:
    return msgspec.json.decode(package_resource("data", "textcraft", "recipes.json").read_bytes(), type=RecipeFile)


def test_the_derived_table_does_not_depend_on_the_input_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert render(derive(RECIPES, ITEMS)) == DERIVED
    backwards = {output: same[::-1] for output, same in reversed(RECIPES.items())}
    assert render(derive(backwards, ITEMS[::-1])) == DERIVED
    folder = tmp_path / "minecraft-data" / "data" / "pc" / "1.16.2"
    folder.mkdir(parents=True)
    (folder / "recipes.json").write_text(json.dumps(RECIPES))
    (folder / "items.json").write_text(json.dumps(ITEMS))
    target = tmp_path / "recipes.json"
    monkeypatch.setattr(sys, "argv", ["build", str(tmp_path), "--output", str(target)])
    main()
    assert target.read_text() == DERIVED


def test_variants_that_do_not_cover_all_combinations_stay_separate() -> None:
    pairs = [(0, 3), (1, 4)]
    recipes = {"2": [{"ingredients": list(pair), "result": {"id": 2, "count": 1}} for pair in pairs]}
    rows = derive(recipes, ITEMS)["recipes"]
    assert rows == [("chest", 1, {"oak_planks": 1, "poppy": 1}), ("chest", 1, {"spruce_planks": 1, "tulip": 1})]


def test_an_ambiguous_generic_name_is_rejected() -> None:
    with pytest.raises(ValueError, match="both an item and a set of items"):
        derive(RECIPES, [*ITEMS, {"id": 99, "name": "planks"}])
    boards = [{"ingredients": [plank], "result": {"id": 6, "count": 1}} for plank in (0, 99)]
    with pytest.raises(ValueError, match="planks names two sets of items"):
        derive({**RECIPES, "6": boards}, [*ITEMS, {"id": 99, "name": "birch_planks"}])


def test_the_shipped_table_has_the_documented_size_and_its_notice() -> None:
    assert len(recipe_file().recipes) == 626
    assert len({output for output, _, _ in recipe_file().recipes}) == 562
    assert len(package_resource("data", "textcraft", "recipes.json").read_bytes()) < 50_000
    assert "Permission is hereby granted" in package_resource("data", "textcraft", "LICENSE").read_text("utf-8")
    table = shipped_table()
    assert len(table.goals) == 544
    assert sum(map(len, table.recipes.values())) == 612
    assert table.goals[:2] == ("acacia_planks", "acacia_wood")


def levels(table: RecipeTable, name: str, ancestors: frozenset[str] = frozenset()) -> int:
    """Return the crafting levels of an ingredient; fail on a cycle."""
    assert name not in ancestors
    ways = table.ways(name)
    return min((1 + max(levels(table, n, ancestors | {name}) for n, _ in way.ingredients) for way in ways), default=0)


def test_every_goal_can_be_crafted_and_goals_are_sorted_by_depth() -> None:
    depths = [levels(shipped_table(), goal) for goal in shipped_table().goals]
    assert depths == sorted(depths)
    assert Counter(depths) == {1: 125, 2: 291, 3: 117, 4: 11}


def test_block_recipes_are_not_reversed_and_cycles_drop_the_later_recipe() -> None:
    rows = [("a", 1, {"b": 1}), ("b", 1, {"a": 1}), ("gem", 9, {"gem_block": 1}), ("gem_block", 1, {"gem": 9})]
    table = select_recipes(RecipeFile("", {}, rows))
    assert table.recipes == {"a": [Recipe("a", 1, (("b", 1),))], "gem_block": [Recipe("gem_block", 1, (("gem", 9),))]}
    assert table.base == {"b", "gem"}


def test_an_item_that_is_needed_to_make_itself_is_rejected() -> None:
    rows = {"a": [Recipe("a", 1, (("b", 1),))], "b": [Recipe("b", 1, (("c", 1),))], "c": [Recipe("c", 1, (("as", 2),))]}
    with pytest.raises(ValueError, match="is needed to make itself"):
        RecipeTable(rows, {"as": ["a"]}, {"as": rows["a"]}, "abc")


def test_tags_and_alternatives_have_the_names_of_agentgym() -> None:
    table = shipped_table()
    commands = {recipe.command for same in table.recipes.values() for recipe in same}
    assert commands > {
        "craft 1 furnace using 8 stone crafting materials",
        "craft 1 brewing stand using 1 blaze rod, 3 stone crafting materials",
        "craft 1 stone sword using 2 stone tool materials, 1 stick",
        "craft 4 torch using 1 coal, 1 stick",
        "craft 1 campfire using 3 stick, 1 coals, 3 logs",
        "craft 4 oak planks using 1 oak logs",
        "craft 6 sandstone slab using 3 sandstone",
    }
    assert {tag: len(members) for tag, members in table.members.items()} == {"planks": 8, "wool": 15}
    assert {"oak_logs", "wooden_slabs", "coals", "quartz_slab", "purpur_slab"} <= table.base
    assert not {"planks", "wool", "soul_sand", "charcoal"} & table.base


def test_the_ingredients_of_a_recipe_never_compete() -> None:
    table = shipped_table()
    for recipe in (recipe for same in table.recipes.values() for recipe in same):
        accepted_items = [item for name, _ in recipe.ingredients for item in table.members.get(name, {name})]
        assert len(accepted_items) == len(set(accepted_items)), recipe


def test_the_first_observation_lists_the_recipe_tree_and_at_most_ten_distractors() -> None:
    env = TextCraft()
    for index in (0, 100, 300, 543):
        goal = shipped_table().goals[index]
        text = env.reset(task_index=index)[0]["content"] or ""
        commands = text.removeprefix("Crafting commands:\n").removesuffix(f"\n\nGoal: craft {goal.replace('_', ' ')}.")
        tree = {recipe.command for recipe in shipped_table().tree(goal)}
        listed = commands.split("\n")
        assert len(listed) == len(set(listed))
        assert tree <= {*listed}
        assert len(listed) <= len(tree) + 10
        assert listed != sorted(listed) or len(listed) < 4
        used = {part.split(" ", 1)[1] for command in tree for part in command.split(" using ")[1].split(", ")}
        for command in {*listed} - tree:
            assert used & {part.split(" ", 1)[1] for part in command.split(" using ")[1].split(", ")}
