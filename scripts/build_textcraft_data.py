"""Build ``data/textcraft/recipes.json`` from the unpacked npm package ``minecraft-data``.

    npm pack minecraft-data@3.117.0 && tar xzf minecraft-data-3.117.0.tgz
    python scripts/build_textcraft_data.py package

The output is deterministic. The package lists every variant of a recipe separately, e.g. a chest eight times, once per
kind of planks. Variants of equal shape become one row here, and a set of items with a name in ``_TAGS`` becomes that
name. As in AgentGym's ``agentenv-textcraft/agentenv_textcraft/crafting_tree.py``, the members of a tag are the items
whose recipes are in the group of that name, and a recipe that lists alternatives instead of a tag takes the first one.
The required license notice of the table is ``data/textcraft/LICENSE``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

TARGET = Path(__file__).resolve().parent.parent / "data" / "textcraft" / "recipes.json"
SOURCE = "npm minecraft-data 3.117.0 (MIT), pc/1.16.2"

_WOODS = ("oak", "spruce", "birch", "jungle", "acacia", "dark_oak")
_FUNGI = ("crimson", "warped")
_TAGS: dict[str, str] = {
    "coals": r"coal|charcoal",
    "stone_tool_materials": r"cobblestone|blackstone",
    "soul_fire_base_blocks": r"soul_sand|soul_soil",
    "planks": r"\w+_planks",
    "wool": r"\w+_wool",
    "wooden_slabs": rf"({'|'.join(_WOODS + _FUNGI)})_slab",
    **{f"{wood}_logs": rf"(stripped_)?{wood}_(log|wood)" for wood in _WOODS},
    **{f"{fungus}_stems": rf"(stripped_)?{fungus}_(stem|hyphae)" for fungus in _FUNGI},
    "logs": r"\w+_(log|wood|stem|hyphae)",
}
"""Minecraft's name of a set of interchangeable items -> pattern of its members; the first match applies."""
_RENAMED = {
    ("brewing_stand", "stone_tool_materials"): "stone_crafting_materials",
    ("furnace", "stone_tool_materials"): "stone_crafting_materials",
}
"""Output and tag -> the tag with the same members that this recipe names in Minecraft."""
_GROUPS = {"planks": r"\w+_planks", "wool": r"(?!white_)\w+_wool"}
"""Tag that is also a group of recipes -> pattern of the outputs of these recipes."""
_FIRST_ALTERNATIVES = {
    **dict.fromkeys(("fire_charge", "soul_torch", "torch"), "coal"),
    **dict.fromkeys(("purpur_slab", "purpur_stairs"), "purpur_block"),
    **dict.fromkeys(("quartz_slab", "quartz_stairs"), "chiseled_quartz_block"),
    **dict.fromkeys(("red_sandstone_slab", "red_sandstone_stairs"), "red_sandstone"),
    **dict.fromkeys(("sandstone_slab", "sandstone_stairs"), "sandstone"),
    "tnt": "sand",
}
"""Output -> first of the alternatives that its recipe lists. Other alternatives are recipes of their own."""

Row: TypeAlias = tuple[str, int, dict[str, int]]
"""Output, count and ingredients; an ingredient ``a|b`` stands for two recipes, one with ``a`` and one with ``b``."""


class Shape(NamedTuple):
    """What the variants of a recipe have in common; only the items in the cells of the grid differ."""

    output: str
    makes: int
    grid: tuple[tuple[int, ...], ...]
    """Number of the item in each cell, by order of the items' first appearance; -1 for an empty cell."""


def derive(recipes: Mapping[str, list[dict[str, Any]]], items: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the recipe table for a package's ``recipes.json`` and ``items.json``, each part of the table sorted."""
    names = {item["id"]: item["name"] for item in items}
    variants: dict[Shape, set[tuple[str, ...]]] = defaultdict(set)
    for recipe in (recipe for same_output in recipes.values() for recipe in same_output):
        shape, used = _shape(recipe, names)
        variants[shape].add(used)
    tags: dict[str, list[str]] = {}
    rows = [row for shape, used in variants.items() for row in _rows(shape, used, tags)]
    if clashes := tags.keys() & set(names.values()):
        raise ValueError(f"names of both an item and a set of items: {sorted(clashes)}")
    groups = {
        tag: [item for item in tags[tag] if re.fullmatch(_GROUPS[tag], item)]
        for tag in sorted(_GROUPS.keys() & tags.keys())
    }
    return {"source": SOURCE, "generics": groups, "recipes": sorted(rows, key=json.dumps)}


def render(table: Mapping[str, Any]) -> str:
    """Return the recipe table as JSON, with one line per set of items and per recipe."""
    generics = ",\n".join(f"{json.dumps(name)}: {json.dumps(members)}" for name, members in table["generics"].items())
    recipes = ",\n".join(map(json.dumps, table["recipes"]))
    source = json.dumps(table["source"])
    return f'{{\n"source": {source},\n"generics": {{\n{generics}\n}},\n"recipes": [\n{recipes}\n]\n}}\n'


def _shape(recipe: dict[str, Any], names: Mapping[int, str]) -> tuple[Shape, tuple[str, ...]]:
    # returns the shape and the items in order of first appearance
    grid = recipe.get("inShape") or [recipe["ingredients"]]
    used = list(dict.fromkeys(cell for line in grid for cell in line if cell is not None))
    cells = tuple(tuple(-1 if cell is None else used.index(cell) for cell in line) for line in grid)
    result = recipe["result"]
    return Shape(names[result["id"]], result["count"], cells), tuple(names[item] for item in used)


def _rows(shape: Shape, variants: set[tuple[str, ...]], tags: dict[str, list[str]]) -> Iterator[Row]:
    """Yield one row if the variants are all combinations of the items of each slot, else one row per variant."""
    slots = [sorted(set(items)) for items in zip(*variants, strict=True)]
    n_combinations = 1
    for items in slots:
        n_combinations *= len(items)
    combinations = [slots] if n_combinations == len(variants) else [[[item] for item in used] for used in variants]
    counts = Counter(cell for line in shape.grid for cell in line)
    for combination in combinations:
        names = [_ingredient(shape.output, items, tags) for items in combination]
        yield shape.output, shape.makes, {name: counts[index] for index, name in enumerate(names)}


def _ingredient(output: str, items: list[str], tags: dict[str, list[str]]) -> str:
    """Return the ingredient name of a slot: its only item, the first alternative, a tag, or its items with ``|``."""
    if (first := _FIRST_ALTERNATIVES.get(output)) in items and len(items) > 1:
        return str(first)
    tag = next((tag for tag, form in _TAGS.items() if all(re.fullmatch(form, item) for item in items)), None)
    if len(items) == 1 or tag is None:
        return "|".join(items)
    if tags.setdefault(tag, items) != items:
        raise ValueError(f"{tag} names two sets of items: {tags[tag]} and {items}")
    return _RENAMED.get((output, tag), tag)


def main() -> None:
    """Read the package named on the command line and write the recipe table."""
    parser = argparse.ArgumentParser(description="Derive TextCraft's recipe table.")
    parser.add_argument("package", type=Path, help="the folder of the unpacked npm package minecraft-data")
    parser.add_argument("--output", type=Path, default=TARGET)
    arguments = parser.parse_args()
    folder = arguments.package / "minecraft-data" / "data" / "pc" / "1.16.2"
    recipes, items = (json.loads((folder / name).read_text("utf-8")) for name in ("recipes.json", "items.json"))
    arguments.output.write_text(render(derive(recipes, items)), "utf-8")


if __name__ == "__main__":
    main()
