"""Build ``data/textcraft/recipes.json`` from the unpacked npm package ``minecraft-data``.

    npm pack minecraft-data@3.117.0 && tar xzf minecraft-data-3.117.0.tgz
    python scripts/build_textcraft_data.py package

The output is deterministic. The package lists every variant of a recipe separately, e.g. a chest eight times, once per
kind of planks. Variants of equal shape become one row here, and a set of items with a name in ``_GENERICS`` becomes
that name. The required license notice of the table is ``data/textcraft/LICENSE``.
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
_GENERICS: dict[str, str] = {
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
    generics: dict[str, list[str]] = {}
    rows = [row for shape, used in variants.items() for row in _rows(shape, used, generics)]
    if clashes := generics.keys() & set(names.values()):
        raise ValueError(f"names of both an item and a set of items: {sorted(clashes)}")
    return {"source": SOURCE, "generics": dict(sorted(generics.items())), "recipes": sorted(rows, key=json.dumps)}


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


def _rows(shape: Shape, variants: set[tuple[str, ...]], generics: dict[str, list[str]]) -> Iterator[Row]:
    """Yield one row if the variants are all combinations of the items of each slot, else one row per variant."""
    slots = [sorted(set(items)) for items in zip(*variants, strict=True)]
    n_combinations = 1
    for items in slots:
        n_combinations *= len(items)
    combinations = [slots] if n_combinations == len(variants) else [[[item] for item in used] for used in variants]
    counts = Counter(cell for line in shape.grid for cell in line)
    for combination in combinations:
        ingredients = {_ingredient(items, generics): counts[index] for index, items in enumerate(combination)}
        yield shape.output, shape.makes, ingredients


def _ingredient(items: list[str], generics: dict[str, list[str]]) -> str:
    """Return the ingredient name of a slot: its only item, the name of its set of items, or its items with ``|``."""
    name = next((name for name, form in _GENERICS.items() if all(re.fullmatch(form, item) for item in items)), None)
    if len(items) == 1 or name is None:
        return "|".join(items)
    if generics.setdefault(name, items) != items:
        raise ValueError(f"{name} names two sets of items: {generics[name]} and {items}")
    return name


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
