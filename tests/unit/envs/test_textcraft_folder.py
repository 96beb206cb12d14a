"""TextCraft on a folder in the format of AgentGym's recipes, which the tests write themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.envs.base import TEXTCRAFT_VARIABLE, data_folder, data_label_of, missing_data
from runner.envs.textcraft import TextCraft
from runner.envs.textcraft.recipes import RecipeFile, recipe_table
from runner.errors import ConfigError
from runner.types import Action
from runner.util.files import package_resource


def item(name: str) -> dict[str, str]:
    return {"item": f"minecraft:{name}"}


def tag(name: str) -> dict[str, str]:
    return {"tag": f"minecraft:{name}"}


def shapeless(output: str, *ingredients: object, count: int | None = None, group: str | None = None) -> dict[str, Any]:
    result = item(output) if count is None else {**item(output), "count": count}
    optional = {} if group is None else {"group": group}
    return {"type": "minecraft:crafting_shapeless", "ingredients": list(ingredients), "result": result, **optional}


def shaped(output: str, pattern: list[str], key: dict[str, object], count: int = 1) -> dict[str, Any]:
    result = {**item(output), "count": count}
    return {"type": "minecraft:crafting_shaped", "pattern": pattern, "key": key, "result": result}


RECIPES: dict[str, dict[str, Any]] = {
    "oak_planks": shapeless("oak_planks", tag("oak_logs"), count=4, group="planks"),
    "birch_planks": shapeless("birch_planks", tag("birch_logs"), count=4, group="planks"),
    "oak_wood": shaped("oak_wood", ["##", "##"], {"#": item("oak_log")}, count=3),
    "stick": shaped("stick", ["#", "#"], {"#": tag("planks")}, count=4),
    "torch": shaped("torch", ["X", "#"], {"X": [item("coal"), item("charcoal")], "#": item("stick")}, count=4),
    "barrel": shaped("barrel", ["PSP", "P P", "PSP"], {"P": tag("planks"), "S": tag("wooden_slabs")}),
    "oak_slab": {**shaped("oak_slab", ["###"], {"#": item("oak_planks")}, count=6), "group": "wooden_slab"},
    "book": shapeless("book", item("paper"), item("paper"), item("leather"), item("paper")),
    "bone_meal": shapeless("bone_meal", item("bone"), count=3, group="bonemeal"),
    "bone_meal_from_block": shapeless("bone_meal", item("bone_block"), count=9, group="bonemeal"),
    "ingot": shapeless("ingot", *[item("nugget")] * 9),
    "nugget": shapeless("nugget", item("ingot"), count=9),
    "glass": {"type": "minecraft:smelting", "ingredient": item("sand"), "result": "minecraft:glass"},
    "special": {"type": "minecraft:crafting_special_firework_star"},
}


def write_folder(folder: Path, recipes: dict[str, dict[str, Any]]) -> Path:
    (folder / "recipes").mkdir(parents=True)
    for name, recipe in recipes.items():
        (folder / "recipes" / f"{name}.json").write_text(json.dumps(recipe))
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(TEXTCRAFT_VARIABLE, str(write_folder(tmp_path / "agentenv_textcraft", RECIPES)))
    return tmp_path / "agentenv_textcraft"


def observations(env: TextCraft, *texts: str) -> list[str | None]:
    return [env.step(Action(text=text))[0][0]["content"] for text in texts]


def test_the_recipes_are_selected_and_named_as_in_agentgym(folder: Path) -> None:
    table = recipe_table(data_folder("TextCraft"))
    commands = {recipe.command for same in table.recipes.values() for recipe in same}
    cycle = {"craft 1 ingot using 9 nugget", "craft 9 nugget using 1 ingot"}
    assert len(commands & cycle) == 1
    assert commands - cycle == {
        "craft 4 oak planks using 1 oak logs",
        "craft 4 birch planks using 1 birch logs",
        "craft 3 oak wood using 4 oak log",
        "craft 4 stick using 2 planks",
        "craft 4 torch using 1 coal, 1 stick",
        "craft 1 barrel using 6 planks, 2 wooden slabs",
        "craft 6 oak slab using 3 oak planks",
        "craft 1 book using 3 paper, 1 leather",
        "craft 3 bone meal using 1 bone",
    }
    assert table.members == {"planks": {"oak_planks", "birch_planks"}}
    assert table.base - {"ingot", "nugget"} == {
        "oak_logs", "birch_logs", "oak_log", "coal", "wooden_slabs", "paper", "leather", "bone", "bone_block",
    }  # fmt: skip


def test_the_goals_are_sorted_by_depth_in_the_order_of_the_folder(folder: Path) -> None:
    first = "ingot" if "ingot" in recipe_table(data_folder("TextCraft")).recipes else "nugget"
    depths = {"oak_planks": 1, "birch_planks": 1, "oak_wood": 1, "book": 1, "bone_meal": 1, first: 1}
    depths |= {"stick": 2, "oak_slab": 2, "barrel": 2, "torch": 3}
    listed = [path.stem for path in (folder / "recipes").iterdir()]
    assert first == min(("ingot", "nugget"), key=listed.index)
    in_order = [name for name in listed if name in depths]
    assert recipe_table(data_folder("TextCraft")).goals == tuple(sorted(in_order, key=lambda name: depths[name]))


def test_an_episode_follows_agentgyms_rules_for_tags(folder: Path) -> None:
    env = TextCraft()
    env.reset(task_index=recipe_table(data_folder("TextCraft")).goals.index("barrel"))
    assert observations(
        env, "get 1 charcoal", "get 1 planks", "get 1 wooden slab", "get 2 wooden slabs", "get 2 birch logs"
    ) == [
        "Could not find charcoal",
        "Could not find planks",
        "Could not find wooden slab",
        "Got 2 wooden slabs",
        "Got 2 birch logs",
    ]
    crafts = ["craft 4 birch planks using 1 birch logs"] * 2 + ["craft 1 barrel using 6 birch planks, 2 wooden slabs"]
    assert observations(env, *crafts)[-1] == "Crafted 1 minecraft:barrel"


def test_the_label_names_agentgyms_recipes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TextCraft.data_label == data_label_of("TextCraft", os.environ) == "AgentGym recipes"
    assert missing_data("TextCraft", os.environ) is None
    assert missing_data("TextCraft", {TEXTCRAFT_VARIABLE: "/nowhere"}) is not None
    monkeypatch.delenv(TEXTCRAFT_VARIABLE)
    assert TextCraft.data_label == "local recipes"
    assert TextCraft().n_tasks == 544


def test_a_folder_with_all_shipped_recipes_gives_tasks_that_the_oracle_solves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = msgspec.json.decode(package_resource("data", "textcraft", "recipes.json").read_bytes(), type=RecipeFile)
    group_of = {member: name for name, members in source.generics.items() for member in members}
    recipes = {}
    for number, (output, count, used) in enumerate(source.recipes):
        names = [name.split("|")[0] for name, n in used.items() for _ in range(n)]
        parts = [tag(name) if name in source.generics else item(name) for name in names]
        recipes[f"{number}_{output}"] = shapeless(output, *parts, count=count, group=group_of.get(output))
    monkeypatch.setenv(TEXTCRAFT_VARIABLE, str(write_folder(tmp_path, recipes)))
    env = TextCraft()
    assert env.n_tasks > 500
    for index in range(0, env.n_tasks, 7):
        env.reset(task_index=index)
        results = [env.step(Action(text=text)) for text in env.oracle(None).plan()]
        assert [result[1:] for result in results] == [(0.0, False)] * (len(results) - 1) + [(1.0, True)]


@pytest.mark.parametrize(
    ("recipes", "problem"),
    [
        ({}, "has no crafting recipes"),
        ({"a": {"type": "minecraft:crafting_shapeless", "ingredients": []}}, "a.json: .*result"),
        ({"a": shapeless("a")}, "a.json: a recipe needs ingredients"),
        ({"a": shapeless("a", [])}, "a.json: an ingredient is an empty list"),
        ({"a": shapeless("a", {})}, "a.json: an ingredient has neither item nor tag"),
        ({"a": shapeless("a", item("a"))}, "a is needed to make itself"),
        ({"a": {"type": 3}}, "a.json: "),
    ],
)
def test_an_unusable_folder_is_a_configuration_error(
    recipes: dict[str, dict[str, Any]], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TEXTCRAFT_VARIABLE, str(write_folder(tmp_path, recipes)))
    with pytest.raises(ConfigError, match=f"{TEXTCRAFT_VARIABLE} is .*{problem}"):
        TextCraft()
    monkeypatch.setenv(TEXTCRAFT_VARIABLE, str(tmp_path / "recipes"))
    with pytest.raises(ConfigError, match="Set it to the folder agentenv-textcraft/agentenv_textcraft"):
        TextCraft()
